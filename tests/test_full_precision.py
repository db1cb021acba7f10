"""Every product that decides a bound names its precision: programs are walked, and an accelerator is imitated."""

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any
from unittest import mock

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.lax import Precision

from dpaudit import _platform
from dpaudit.federated import clients
from dpaudit.mechanisms import gaussian, laplace, ldp_sgd, privunit
from dpaudit.personalization import user_level
from dpaudit.personalization.als import least_squares, solve, steps
from dpaudit.personalization.als.steps import Prior
from dpaudit.personalization.boundary.processes import correlated, memoryless
from dpaudit.training import dp_ftrl, dp_sgd, matrix_noise, per_example
from dpaudit.training.sampling import cyclic, participation, poisson
from tests.personalization import people

KEY = jax.random.key(0)
HIGHEST = Precision.HIGHEST
PRODUCTS = {"dot_general", "conv_general_dilated", "ragged_dot_general"}


class Net(nn.Module):
    """Every way in which a gradient is taken; its own products say HIGHEST, so that any other is the bookkeeping's."""

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = nn.Embed(7, 4)(tokens)
        x = nn.Conv(30, (2,), precision=HIGHEST)(x)  # positions, norms without writing out
        x = nn.Conv(2, (2,), precision=HIGHEST)(x)  # written out
        twice = nn.Dense(2, precision=HIGHEST)
        return jnp.sum(nn.Dense(3, precision=HIGHEST)(twice(jnp.sin(twice(x))).ravel()) ** 2)


NET = Net()
TOKENS = jnp.arange(8 * 5).reshape(8, 5) % 7
PARAMS = NET.init(KEY, TOKENS[0])["params"]
PATTERN = participation(8, separation=4)


def any_blt() -> matrix_noise.Strategy:
    """With the first buffers that come to mind: to look for the best takes long."""
    found = np.array([0.5], np.float32), np.array([0.2], np.float32)
    with mock.patch.object(matrix_noise, "_optimal_blt", return_value=found):
        return matrix_noise.blt(PATTERN, buffers=1)


TREE = lru_cache(lambda: matrix_noise.tree(PATTERN))
STRATEGIES: dict[str, Callable[[], matrix_noise.Strategy]] = {
    "tree": TREE,
    "toeplitz": lru_cache(lambda: matrix_noise.toeplitz(PATTERN)),
    "banded": lru_cache(lambda: matrix_noise.banded(PATTERN, bands=3)),
    "blt": lru_cache(any_blt),
    "restarted": lru_cache(lambda: matrix_noise.restarted(matrix_noise.tree(participation(4, separation=4)), 2)),
}


def loss(params: Any, tokens: jax.Array) -> Any:
    return NET.apply({"params": params}, tokens)


def plain(params: Any, x: jax.Array) -> jax.Array:
    return jnp.sum(params["w"] * x)


def clipped(group: int) -> Any:
    return jax.make_jaxpr(
        lambda params: per_example.clipped_sum(loss, params, TOKENS, clip_norm=1.0, group_size=group)
    )(PARAMS)


def trained(make: Callable[..., dp_sgd.Trainer], **settings: Any) -> Any:
    trainer = make(loss, clip_norm=1.0, noise_multiplier=1.0, batch_size=8, optimizer=optax.sgd(0.1), **settings)
    return jax.make_jaxpr(lambda state: trainer.step(KEY, state, TOKENS, jnp.ones(8)))(trainer.init(PARAMS))


def noise(make: Callable[[], matrix_noise.Strategy]) -> Any:
    noising = make().noising
    fresh = jnp.zeros(3)
    return jax.make_jaxpr(noising.multiply_next)(fresh, noising.init_multiply(fresh))


def sent(client: clients.Client) -> Any:
    keys, batch = jax.random.split(KEY, 2), TOKENS.reshape(2, 4, 5)
    return jax.make_jaxpr(lambda params: client.send(keys, params, batch, 1.0))(PARAMS)


FEDSGD = clients.gradients(loss)
FEDAVG = clients.local_training(loss, optax.sgd(0.1), steps=2)


def cohort(make: Callable[..., user_level.Training], **settings: Any) -> Any:
    training = make(loss, clip_norm=1.0, noise_multiplier=1.0, optimizer=optax.sgd(0.1), **settings)
    (state, memory), everyone = training.init(PARAMS), user_level.users(KEY, TOKENS, np.arange(8) // 2)
    return inside(training.protocol, state, memory, everyone)


def inside(protocol: Any, state: Any, memory: Any, users: Any) -> Any:
    """Devices, aggregator and release of a round; what the server makes of a release decides nothing."""

    def round(state: Any, users: Any) -> Any:
        return protocol.release(KEY, protocol.devices(KEY, protocol.broadcast(state), users), memory)

    return jax.make_jaxpr(round)(state, users)


def alternating() -> Any:
    step = steps.Step(0.8, 1.5, steps.uniform, 0.3)
    settings = {"features": jnp.ones((people.ITEMS, 1)), "prior": Prior(jnp.ones(2), 3.0, 0.4)}
    protocol = least_squares.alternating(
        step, noise_multiplier=1.0, shares=least_squares.Shares(0.3, 0.5, 0.2), **settings
    )
    return inside(protocol, people.model(), memoryless(), (people.batch(people.honest(4, seed=1), 4),))


def factors(rank: int, kind: str = "gpu") -> Any:
    users = people.batch(people.honest(4, seed=1), 4)
    given = jnp.ones((people.ITEMS, rank)), jnp.eye(rank)
    with _platform.named(kind):
        return jax.make_jaxpr(lambda v, prior: solve.user_factors(v, prior, users, ridge=0.1))(*given)


# name: (the program, whether it has products other than the network's)
PROGRAMS: dict[str, tuple[Callable[[], Any], bool]] = {
    "clipped sum": (partial(clipped, 1), True),
    "clipped sum of groups": (partial(clipped, 2), True),
    "dp_sgd": (partial(trained, dp_sgd.dp_sgd), True),
    "dp_ftrl": (lambda: trained(dp_ftrl.dp_ftrl, strategy=TREE()), True),
    **{f"noise, {name}": (partial(noise, make), True) for name, make in STRATEGIES.items()},
    "clients' gradients": (lambda: sent(clients.gaussian(FEDSGD, noise_multiplier=1.0)), True),
    "clients' trainings": (lambda: sent(clients.gaussian(FEDAVG, noise_multiplier=1.0)), True),
    "randomized clients": (lambda: sent(clients.randomized(FEDSGD, epsilon=1.0)), False),
    "users, dp_sgd": (lambda: cohort(user_level.dp_sgd, sampling=poisson(4, 2)), True),
    "users, dp_ftrl": (
        lambda: cohort(user_level.dp_ftrl, sampling=cyclic(4, 1), strategy=TREE()),
        True,
    ),
    "alternating minimisation": (alternating, True),
    "user factors, by factors": (partial(factors, 2), True),
    "user factors, by factors side by side": (partial(factors, 2, "cpu"), False),
    "user factors, by ratings": (partial(factors, 9), True),
    "popularity": (
        lambda: inside(
            least_squares.counted(items=people.ITEMS, noise_multiplier=1.0),
            people.model(),
            memoryless(),
            (people.batch(people.honest(4, seed=1), 4),),
        ),
        False,
    ),
    "ldp_sgd": (lambda: applied(ldp_sgd.mechanism(epsilon=1.0, clip_norm=1.0)), False),
    "gaussian": (lambda: applied(gaussian.mechanism(epsilon=1.0, delta=1e-5, clip_norm=1.0)), False),
    "laplace": (lambda: applied(laplace.mechanism(epsilon=1.0, clip_norm=1.0)), False),
    "privunit": (lambda: applied(privunit.mechanism(epsilon=1.0)), False),
}


def applied(mechanism: Any) -> Any:
    return jax.make_jaxpr(mechanism.apply)(KEY, jnp.ones(5))


def equations(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from equations(inner)


def products(program: Any) -> tuple[int, list[str]]:
    """(how many products of floating-point numbers, those of them that are not in full precision)."""
    found = [
        equation
        for equation in equations(program.jaxpr)
        if equation.primitive.name in PRODUCTS and jnp.issubdtype(equation.outvars[0].aval.dtype, jnp.floating)
    ]
    loose = [str(e) for e in found if e.params["precision"] not in (HIGHEST, (HIGHEST, HIGHEST))]
    return len(found), loose


def forgotten(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments, precision=None, **settings: function(*arguments, **settings)


@pytest.mark.integration
@pytest.mark.parametrize("name", PROGRAMS)
def test_no_product_that_decides_a_bound_leaves_its_precision_open(name: str) -> None:
    make, some = PROGRAMS[name]
    count, loose = products(make())
    assert not loose
    assert count >= some


@pytest.mark.integration
def test_a_precision_that_is_left_open_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """In each of the same programs. What is traced here is kept apart by a setting that nothing else has."""
    for function in ("einsum", "tensordot"):
        monkeypatch.setattr(jnp, function, forgotten(getattr(jnp, function)))
    monkeypatch.setattr(jax, "default_matmul_precision", lambda precision: jax.named_scope("none"))
    with jax.default_device("cpu"):
        seen = {name: bool(products(make())[1]) for name, (make, _) in PROGRAMS.items()}
    assert seen == {name: some for name, (_, some) in PROGRAMS.items()}


def as_on_an_accelerator(function: Callable[..., Any], narrow: Any = jnp.bfloat16) -> Callable[..., Any]:
    """The product with factors rounded unless it names its precision."""

    def call(*arguments: Any, precision: Any = None, **settings: Any) -> Any:
        if precision != HIGHEST:
            arguments = tuple(
                x.astype(narrow).astype(x.dtype) if hasattr(x, "dtype") and x.dtype == jnp.float32 else x
                for x in arguments
            )
        return function(*arguments, precision=precision, **settings)

    return call


class Wide(nn.Module):
    """One position, so that no norm is written out."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.sum(nn.Dense(4, use_bias=False)(x) * jnp.array([1.0, 0.3, -0.7, 2.1]))


def test_an_accelerator_s_products_do_not_lengthen_a_clipped_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    net, clip_norm = Wide(), 0.77
    xs = jax.random.normal(KEY, (40, 1, 3)) * 100
    params = net.init(KEY, xs[0, 0])["params"]

    def longest() -> float:
        def one(x: jax.Array) -> jax.Array:
            return per_example.clipped_sum(
                lambda params, x: jnp.asarray(net.apply({"params": params}, x)), params, x, clip_norm=clip_norm
            )[0]["Dense_0"]["kernel"]

        found = np.asarray(jax.lax.map(one, xs), np.float64)
        return float(np.linalg.norm(found, axis=(1, 2)).max()) / clip_norm

    with monkeypatch.context() as imitated:
        for function in ("einsum", "tensordot"):
            imitated.setattr(jnp, function, as_on_an_accelerator(getattr(jnp, function)))
        assert 0.9999 < longest() <= 1
        for function in ("einsum", "tensordot"):
            imitated.setattr(jnp, function, forgotten(getattr(jnp, function)))
        assert longest() > 1.001


def test_an_accelerator_s_products_cancel_the_noise_of_a_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """C times the noise C^-1 z is z again: what is not, no later round takes back."""

    def left() -> float:
        strategy = STRATEGIES["tree"]()
        z = np.asarray(jax.random.normal(KEY, (8, 50)))
        memory, rows = strategy.noising.init_multiply(jnp.zeros(50)), []
        for row in z:
            noise, memory = strategy.noising.multiply_next(jnp.asarray(row), memory)
            rows.append(np.asarray(noise, np.float64))
        return float(np.abs(strategy.matrix() @ np.array(rows) - z).max())

    def tensordot(a: Any, b: Any, axes: Any = 2, precision: Any = None) -> Any:
        named = precision == HIGHEST or jax.config.values["jax_default_matmul_precision"] == "highest"
        factors = (a, b) if named else (x.astype(jnp.bfloat16).astype(jnp.float32) for x in (a, b))
        return plainly(*factors, axes=axes)

    plainly = jnp.tensordot
    monkeypatch.setattr(jnp, "tensordot", tensordot)
    assert left() < 1e-6
    monkeypatch.setattr(jax, "default_matmul_precision", lambda precision: jax.named_scope("none"))
    assert left() > 1e-3


def test_correlated_processes_use_these_strategies() -> None:
    process = correlated("sums", STRATEGIES["toeplitz"](), 1.0)
    total = jnp.zeros(3)
    program = jax.make_jaxpr(lambda total: process.release(KEY, total, process.init(total), sensitivity=1.0)[1])(total)
    assert products(program)[0] > 0
    assert not products(program)[1]
