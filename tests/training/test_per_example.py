from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from dpaudit import _platform, _validate
from dpaudit.training import models, per_example
from tests.training import by_vmap

Batch = tuple[jax.Array, jax.Array]


class Net(nn.Module):
    """Tapped, shared and home-made parameters in one network, with dropout; an example is [3, 4]."""

    @nn.compact
    def __call__(self, x: jax.Array, dropout: bool = False) -> jax.Array:
        x = nn.LayerNorm()(nn.Dense(5)(x))
        twice = nn.Dense(5)
        x = twice(jnp.tanh(twice(x))) * self.param("scale", nn.initializers.ones, (5,)) ** 2
        x = nn.Dropout(0.5, deterministic=not dropout)(x)
        return nn.Dense(2)(x.ravel())


NET = Net()


def loss(params: Any, example: Batch) -> Any:
    x, y = example
    return jnp.sum((jnp.asarray(NET.apply({"params": params}, x)) - y) ** 2)


def dropout_loss(params: Any, example: Batch, key: jax.Array) -> Any:
    x, y = example
    return jnp.sum((jnp.asarray(NET.apply({"params": params}, x, True, rngs={"dropout": key})) - y) ** 2)


@pytest.fixture(scope="module")
def params() -> Any:
    return by_vmap.some_parameters(0, NET, np.zeros((3, 4), np.float32))


@pytest.fixture(scope="module")
def batch() -> Batch:
    rng = np.random.default_rng(1)
    return jnp.asarray(rng.normal(size=(8, 3, 4)), jnp.float32), jnp.asarray(rng.normal(size=(8, 2)), jnp.float32)


@lru_cache
def compiled(loss_fn: Any, **settings: Any) -> Any:
    return jax.jit(partial(per_example.clipped_sum, loss_fn, **settings))


def run(
    params: Any,
    batch: Any,
    loss_fn: Any = loss,
    clip_norm: float = 4.0,
    weights: Any = None,
    key: jax.Array | None = None,
    **settings: Any,
) -> Any:
    """(total [d], info), by one program for all weights and keys."""
    clipped_sum = compiled(loss_fn, **settings)
    total, info = clipped_sum(params, batch, clip_norm=clip_norm, weights=weights, key=key)
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(total)]).astype(np.float64), info


@pytest.mark.integration
def test_image_network() -> None:
    """The shipped CNN, its losses, and that no [n, in, out] is ever formed for its dense layer."""
    model = models.CNN8()
    cross_entropy = models.cross_entropy(model)
    images = np.random.default_rng(1).uniform(size=(16, 8, 8, 1)).astype(np.float32)
    params = models.initial_parameters(jax.random.key(0), model, (8, 8, 1))
    batch = jnp.asarray(images), jnp.arange(16) % 10

    def loss(params: Any, example: Batch) -> Any:
        return cross_entropy(params, *example)

    each = by_vmap.gradients(loss, params, batch)
    wanted, norms = by_vmap.clipped_sum(each, 2.0)
    total, info = run(params, batch, loss, 2.0)
    assert by_vmap.relative_error(total, wanted) < 1e-5
    np.testing.assert_allclose(info.norms, norms, rtol=1e-5)
    losses = jax.jit(jax.vmap(loss, in_axes=(None, 0)))(params, batch)
    np.testing.assert_allclose(info.losses, losses, rtol=1e-5)
    assert int(info.dropped) == 0
    call = partial(per_example.clipped_sum, loss, clip_norm=2.0)
    assert (16, 64, 10) not in set(_shapes(jax.make_jaxpr(call)(params, batch).jaxpr))
    plain = jax.make_jaxpr(jax.vmap(jax.grad(loss), in_axes=(None, 0)))(params, batch)
    assert (16, 64, 10) in set(_shapes(plain.jaxpr))


def _shapes(jaxpr: Any) -> Iterator[tuple[int, ...]]:
    for equation in jaxpr.eqns:
        yield from (v.aval.shape for v in equation.outvars)
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            if hasattr(getattr(inner, "jaxpr", inner), "eqns"):
                yield from _shapes(getattr(inner, "jaxpr", inner))


@pytest.mark.integration
def test_dropout_by_a_key_per_example_and_microbatches(params: Any, batch: Batch) -> None:
    key = jax.random.key(5)
    keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(8))
    wanted, norms = by_vmap.clipped_sum(by_vmap.gradients(dropout_loss, params, batch, keys), 4.0, 2)
    whole, info = run(params, batch, dropout_loss, key=key, group_size=2)
    assert by_vmap.relative_error(whole, wanted) < 1e-5
    np.testing.assert_allclose(info.norms, norms, rtol=1e-5)
    parts, parted = run(params, batch, dropout_loss, key=key, group_size=2, microbatch=4)
    np.testing.assert_allclose(parts, whole, rtol=1e-5, atol=1e-5)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5), parted, info)
    other, _ = run(params, batch, dropout_loss, key=jax.random.key(6), group_size=2)
    assert np.abs(other - whole).max() > 0.1


@pytest.mark.parametrize(("microbatch", "group_size"), [(1, 1), (3, 1), (5, 1), (2, 2), (6, 2), (4, 4)])
@pytest.mark.parametrize("weights", [None, [1, 0, 2, 1, 1, 0, 0, 0], [1, 1, 0, 0, 0, 0, 0.5, 1]])
def test_microbatches_of_any_size(params: Any, batch: Batch, microbatch: int, group_size: int, weights: Any) -> None:
    weights = None if weights is None else jnp.array(weights, jnp.float32)
    settings: dict[str, Any] = {"group_size": group_size, "weights": weights}
    whole, info = run(params, batch, **settings)
    parts, parted = run(params, batch, **settings, microbatch=microbatch)
    np.testing.assert_allclose(parts, whole, rtol=1e-5, atol=1e-5)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), parted, info)


def test_dense_layers_are_added_up_once_where_there_is_room(
    params: Any, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = (15, 2)  # the kernel that meets one position; that of the layer used twice has no such place
    assert last in {leaf.shape for leaf in jax.tree.leaves(params)}

    def found(cached: int) -> tuple[bool, Any]:
        monkeypatch.setattr(per_example, "ROWS", cached)
        call = partial(per_example.clipped_sum, loss, clip_norm=1.0, microbatch=2)
        loops = [step for step in jax.make_jaxpr(call)(params, batch).eqns if step.primitive.name in ("scan", "while")]
        assert loops
        added = {variable.aval.shape for step in loops for variable in step.outvars}
        return last in added, jax.jit(call)(params, batch)[0]

    (parts, plain), (once, late) = found(0), found(1 << 20)
    assert (parts, once) == (True, False)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), late, plain)


@pytest.mark.integration
def test_clippings(params: Any, batch: Batch) -> None:
    each = by_vmap.gradients(loss, params, batch)
    unravel = jax.jit(ravel_pytree(params)[1])
    clip_norm = float(np.median(np.linalg.norm(each, axis=1)))
    layers = [
        [np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(layer)]) for layer in unravel(g).values()]
        for g in each.astype(np.float32)
    ]
    share = clip_norm / np.sqrt(len(layers[0]))
    by_layer = np.sum(
        [np.concatenate([x * min(1, share / np.linalg.norm(x)) for x in layer]) for layer in layers], axis=0
    )
    total, info = run(params, batch, clip_norm=clip_norm, clipping=per_example.per_layer)
    assert by_vmap.relative_error(total, by_layer) < 1e-5
    np.testing.assert_allclose(info.norms, np.linalg.norm(each, axis=1), rtol=1e-5)
    total, _ = run(params, batch, clip_norm=clip_norm, clipping=per_example.automatic)
    normalised = clip_norm * np.sum([g / (np.linalg.norm(g) + 0.01) for g in each], axis=0)
    assert by_vmap.relative_error(total, normalised) < 1e-5


def test_a_norm_whose_square_is_not_finite_is_not_finite() -> None:
    """Of one number too, where a compiler takes sqrt(x^2) for |x|."""
    total, info = run({"w": jnp.zeros(1)}, jnp.array([3.0, 1e30]), lambda params, x: x * params["w"][0], clip_norm=1.0)
    np.testing.assert_array_equal(info.norms, [3, np.inf])
    np.testing.assert_allclose(total, [1], rtol=1e-5)
    assert int(info.dropped) == 1


@pytest.mark.parametrize("group_size", [1, 2])
def test_what_is_not_finite_is_contained_and_padding_adds_nothing(params: Any, batch: Batch, group_size: int) -> None:
    """Units 0 and 3 of 4 are broken; unit 2 and half of unit 1 are padding, full of NaN."""
    per = 2 // group_size
    x, y = batch
    x = x.at[0, 0, 0].set(jnp.nan).at[jnp.array([3, 5])].set(jnp.nan).at[4].set(jnp.inf)
    y = y.at[7, 0].set(1e30)
    weights = jnp.array([1, 1, 2, 0, 0, 0, 1, 1])
    total, info = run(params, (x, y), group_size=group_size, weights=weights)
    kept = weights.at[jnp.array([0, 1, 6, 7] if group_size == 2 else [0, 7])].set(0)
    clean, _ = run(params, batch, group_size=group_size, weights=kept)
    np.testing.assert_allclose(total, clean, rtol=1e-5, atol=1e-6)
    assert int(info.dropped) == 2
    assert not np.isfinite(info.norms[0])
    np.testing.assert_array_equal(info.norms[2 * per : 3 * per], 0)
    np.testing.assert_array_equal(info.losses[2 * per : 3 * per], 0)
    nothing, info = run(params, (x, y), group_size=group_size, weights=jnp.zeros(8))
    np.testing.assert_array_equal(nothing, 0)
    assert int(info.dropped) == 0


def test_losses_are_weighted_and_added_by_unit(params: Any, batch: Batch) -> None:
    weights = jnp.array([1, 0.5, 0, 2, 1, 1, 0, 0])
    _, info = run(params, batch, group_size=2, weights=weights)
    each = np.asarray(weights) * jax.jit(jax.vmap(loss, in_axes=(None, 0)))(params, batch)
    np.testing.assert_allclose(info.losses, each.reshape(4, 2).sum(axis=1), rtol=1e-5)


@pytest.mark.integration
def test_many_networks_at_once(params: Any, batch: Batch) -> None:
    stack = jax.tree.map(lambda x: jnp.stack([x, 0.5 * x, -x]), params)
    keys, norms = jax.random.split(jax.random.key(4), 3), jnp.array([0.5, 2.0, 9.0])

    def one(params: Any, key: jax.Array, clip_norm: jax.Array) -> Any:
        return per_example.clipped_sum(dropout_loss, params, batch, clip_norm=clip_norm, key=key)

    together = jax.jit(jax.vmap(one))(stack, keys, norms)
    alone = jax.jit(one)
    for i in range(3):
        wanted = alone(jax.tree.map(lambda x, i=i: x[i], stack), keys[i], norms[i])
        got = jax.tree.map(lambda x, i=i: x[i], together)
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), got, wanted)


ADVERSARIAL: dict[str, Callable[[jax.Array], jax.Array]] = {
    "huge": lambda x: x.at[2].mul(1e6),
    "overflowing": lambda x: x.at[2].set(1e38),
    "zero": lambda x: x.at[2].set(0),
    "nan": lambda x: x.at[2, 1].set(jnp.nan),
    "duplicates": lambda x: x.at[3].set(x[2]).at[4].set(x[2]),
}


@pytest.mark.integration
@pytest.mark.parametrize("clipping", [per_example.flat, per_example.per_layer, per_example.automatic])
def test_sensitivity_by_brute_force(params: Any, batch: Batch, clipping: Any) -> None:
    """Every example removed (a weight of 0) or replaced, among adversarial ones."""
    x, y = batch

    def moves(clipping: Any, clip_norm: float) -> tuple[float, float]:
        call = partial(per_example.clipped_sum, loss, clip_norm=clip_norm, clipping=clipping)
        total = jax.jit(lambda x, weights: ravel_pytree(call(params, (x, y), weights=weights)[0])[0])
        sums = jax.vmap(total, in_axes=(None, 0))
        removed, replaced = 0.0, 0.0
        every = jnp.stack([jnp.ones(8), *(1 - jnp.eye(8))])
        versions = {name: np.asarray(sums(change(x), every), np.float64) for name, change in ADVERSARIAL.items()}
        chex.assert_tree_all_finite(versions)
        for sums in versions.values():
            removed = max(removed, float(np.linalg.norm(sums[1:] - sums[0], axis=1).max()))
        same = [name for name in versions if name != "duplicates"]  # they differ in example 2 only
        for a in same:
            replaced = max(replaced, *(float(np.linalg.norm(versions[a][0] - versions[b][0])) for b in same))
        return removed, replaced

    removed, replaced = moves(clipping, 0.3)
    assert removed <= 0.3 * (1 + 1e-4)
    assert replaced <= 0.6 * (1 + 1e-4)
    assert removed > 0.29  # the bound is met: a smaller one would be wrong
    unclipped, _ = moves(lambda norms, clip_norm: jnp.ones_like(norms), 0.3)
    assert unclipped > 3


@pytest.mark.parametrize("slip", [0.0, 1e-6, 3e-5, 1e-3, 5e-3])
def test_positions_that_cancel_do_not_hide_from_the_norm(slip: float) -> None:
    """Two huge opposite examples of a unit leave a small gradient: how small, float32 can hardly tell."""

    def loss(params: Any, x: jax.Array) -> Any:
        return jnp.sum(x @ params["kernel"])

    params = {"kernel": jnp.zeros((5_000, 8))}
    x = 1e4 * jax.random.normal(jax.random.key(0), (10, 5_000))
    x = jnp.where(jnp.arange(10)[:, None] < 5, x, jnp.abs(x[:, :1]))  # half of them constant: rounding adds up
    clipped = jax.jit(partial(per_example.clipped_sum, loss, clip_norm=1.0, group_size=2))
    sums = [clipped(params, unit)[0] for unit in jnp.stack([x, -x * (1 + slip)], axis=1)]
    assert max(float(jnp.linalg.norm(total["kernel"])) for total in sums) <= 1 + 1e-5


@pytest.mark.parametrize("count", [3, 16, 64])
def test_rows_read_often_do_not_hide_from_the_norm(count: int) -> None:
    """Huge parts that cancel up to rounding, all of them one row's."""

    def loss(params: Any, example: Any) -> Any:
        index, scales = example
        return jnp.sum(scales[:, None] * params["table"][index])

    rng = np.random.default_rng(0)
    scales = 1e8 * rng.normal(size=(20, count)).astype(np.float32)
    scales[:, -1] -= scales.astype(np.float64).sum(axis=1)
    clipped = jax.jit(partial(per_example.clipped_sum, loss, clip_norm=1.0))
    params, index = {"table": jnp.zeros((5, 7))}, jnp.zeros((1, count), int)
    sums = [clipped(params, (index, one[None]))[0] for one in jnp.asarray(scales)]
    assert max(float(jnp.linalg.norm(total["table"])) for total in sums) <= 1 + 1e-5


def test_half_precision_layers() -> None:
    net = nn.Dense(3, dtype=jnp.bfloat16)
    x = jax.random.normal(jax.random.key(0), (8, 5, 4))
    params = net.init(jax.random.key(1), x[0])["params"]

    def loss(params: Any, x: jax.Array) -> Any:
        return jnp.sum(jnp.asarray(net.apply({"params": params}, x), jnp.float32) ** 2)

    total, info = run(params, x, loss, 2.0)
    wanted, norms = by_vmap.clipped_sum(by_vmap.gradients(loss, params, x), 2.0)
    assert by_vmap.relative_error(total, wanted) < 2e-2
    np.testing.assert_allclose(info.norms, norms, rtol=2e-2)
    assert total.shape == wanted.shape


class Normalised(nn.Module):
    train: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.sum(nn.BatchNorm(use_running_average=not self.train)(nn.Dense(3)(x)) ** 2)


def test_batch_norm() -> None:
    variables = Normalised(False).init(jax.random.key(0), jnp.zeros((5, 4)))
    x = jax.random.normal(jax.random.key(1), (6, 5, 4))

    def loss(params: Any, x: jax.Array, train: bool = False) -> Any:
        return Normalised(train).apply({**variables, "params": params}, x, mutable=["batch_stats"])[0]

    total, _ = run(variables["params"], x, loss)
    wanted, _ = by_vmap.clipped_sum(by_vmap.gradients(loss, variables["params"], x), 4.0)
    assert by_vmap.relative_error(total, wanted) < 1e-5
    training = jax.jit(partial(loss, train=True))
    training(variables["params"], x[0])  # traced before: still found
    with pytest.raises(_validate.InputError, match=r"loss_fn: expected examples .*, got a BatchNorm in training mode"):
        per_example.clipped_sum(training, variables["params"], x, clip_norm=1.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clip_norm": 0.0}, "clip_norm: expected a finite number > 0, got 0.0"),
        ({"clip_norm": -1.0}, "clip_norm: expected a finite number > 0, got -1.0"),
        ({"group_size": 3}, "group_size: expected a divisor of the 8 examples, got 3"),
        ({"group_size": 0}, "group_size: expected a whole number >= 1, got 0"),
        ({"microbatch": 0}, "microbatch: expected a whole number >= 1, got 0"),
        ({"microbatch": 2, "group_size": 4}, "microbatch: expected a multiple of group_size=4, got 2"),
        ({"weights": np.ones(7)}, r"weights: expected shape \[8\], one per example, got shape \[7\]"),
        (
            {"clipping": lambda norms, clip_norm: per_example.flat(norms, clip_norm)[0]},
            r"clipping: expected factors of shape \[1, 8\], one per layer and unit, as its norms, got shape \[8\]",
        ),
        ({"key": 3}, "key: expected a key, as made by jax.random.key, got 3"),
        ({"loss_fn": lambda p, e: e[1] * p["a"]}, r"loss_fn: expected one floating-point number .*float32\[2\]"),
        ({"loss_fn": lambda p, e: (p["a"], e[1])}, r"loss_fn: expected one .*float32\[\], float32\[2\]"),
        ({"loss_fn": lambda p, e: None}, "loss_fn: expected one floating-point number .* got .*nothing"),
        ({"loss_fn": lambda p, e: jnp.int32(3)}, r"loss_fn: expected one .* got .*int32\[\]"),
        ({"params": {"a": 1.0, "b": 2.0}}, r"params\['b'\]: expected a parameter that the loss uses, got one that"),
        ({"params": {"a": 1}}, r"params\['a'\]: expected floating-point numbers, got .*int32"),
        ({"params": {}}, "params: expected at least one array, got none"),
        (
            {"batch": (np.zeros((8, 1)), np.zeros((7, 2)))},
            r"batch: expected arrays with one leading axis .*\[7\].*\[8\]",
        ),
        ({"batch": ()}, "batch: expected arrays with one leading axis of n >= 1 examples, got .*none"),
        ({"batch": np.zeros((0, 3))}, r"batch: expected arrays with one leading axis .*\[0\]"),
    ],
)
def test_bad_input(batch: Batch, change: dict[str, Any], message: str) -> None:
    settings: dict[str, Any] = {
        "loss_fn": lambda params, example: jnp.sum(example[0]) * params["a"],
        "params": {"a": 1.0},
        "batch": batch,
        "clip_norm": 1.0,
        **change,
    }
    with pytest.raises(_validate.InputError, match=message):
        per_example.clipped_sum(settings.pop("loss_fn"), settings.pop("params"), settings.pop("batch"), **settings)


def test_the_form_for_an_accelerator_is_the_same_sum() -> None:
    """Of units with several positions, more of them than are added plainly; without a loop over them."""
    inputs = jax.random.normal(jax.random.key(3), (70, 3, 40)) / 2
    params = {"kernel": jnp.ones((40, 30)), "scale": jnp.ones(30)}  # too large to be written out for all units

    def loss(params: Any, x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sin(x @ params["kernel"]) * params["scale"])

    found = []
    for kind in ("cpu", "gpu"):
        with _platform.named(kind):
            call = jax.jit(partial(per_example.clipped_sum, loss, clip_norm=0.7))
            program = str(jax.make_jaxpr(call)(params, inputs))
            found.append((call(params, inputs), "length=70" in program))
    ((here, info), loops), ((there, same), also) = found
    for own, other in zip(jax.tree.leaves((here, info)), jax.tree.leaves((there, same)), strict=True):
        np.testing.assert_allclose(own, other, rtol=2e-6, atol=1e-6)
    assert (loops, also) == (True, False)
