"""Networks of flax.nnx and of Equinox as they are: clipped sums, and samples with dropout."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dpaudit import _validate
from dpaudit._engine.programs import record
from dpaudit.training import per_example, taps
from dpaudit.training.dropout import mc_dropout
from dpaudit.training.forms import quick
from tests.training import by_vmap

IMAGES = jax.random.normal(jax.random.key(0), (4, 9, 8, 3))


class Given(NamedTuple):
    """A network of another library."""

    params: Any
    network: Callable[..., jax.Array]  # (params, image, key=None)


class NNX(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Conv(3, 4, (3, 3), rngs=rngs)
        self.second = nnx.Conv(4, 4, (2, 2), strides=2, feature_group_count=2, rngs=rngs)
        self.drop = nnx.Dropout(0.5)
        self.head = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, x: jax.Array, rngs: nnx.Rngs | None = None) -> jax.Array:
        x = nnx.max_pool(nnx.relu(self.first(x)), (2, 2), strides=(2, 2))
        x = nnx.avg_pool(self.second(self.drop(x, deterministic=rngs is None, rngs=rngs)), (1, 2))
        return self.head(x.ravel())


class Normalised(nnx.Module):
    def __init__(self, train: bool) -> None:
        self.first, self.norm = nnx.Linear(4, 3, rngs=nnx.Rngs(1)), nnx.BatchNorm(3, rngs=nnx.Rngs(2))
        self.live = train

    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.sum(self.norm(self.first(x), use_running_average=not self.live) ** 2)


@pytest.mark.integration
def test_batch_norm_of_nnx_is_refused_in_training_mode_alone() -> None:
    x, own = jax.random.normal(jax.random.key(1), (6, 5, 4)), nnx.BatchNorm.__call__

    def summed(train: bool) -> jax.Array:
        graph, params, rest = nnx.split(Normalised(train), nnx.Param, ...)

        def loss(params: Any, x: jax.Array) -> jax.Array:
            return nnx.merge(graph, params, rest, copy=True)(x)

        return per_example.clipped_sum(loss, params, x, clip_norm=1.0)[1].norms

    assert jnp.all(jnp.isfinite(summed(False)))
    with pytest.raises(_validate.InputError, match=r"loss_fn: expected examples .*, got a BatchNorm in training mode"):
        summed(True)
    assert nnx.BatchNorm.__call__ is own
    assert jnp.isfinite(Normalised(True)(x[0]))


def of_nnx() -> Given:
    graph, params = nnx.split(NNX(nnx.Rngs(1)))

    def network(params: Any, image: jax.Array, key: jax.Array | None = None) -> jax.Array:
        return nnx.merge(graph, params)(image, None if key is None else nnx.Rngs(key))

    return Given(params, network)


def of_nnx_whole() -> Given:
    """The module itself as parameters."""
    return Given(NNX(nnx.Rngs(1)), lambda model, image, key=None: model(image, None if key is None else nnx.Rngs(key)))


def of_equinox() -> Given:
    eqx = pytest.importorskip("equinox", reason="Equinox is not installed: pip install equinox")
    keys = jax.random.split(jax.random.key(1), 3)
    layers = (
        eqx.nn.Conv2d(3, 4, 3, padding=1, key=keys[0]),
        eqx.nn.Lambda(jax.nn.relu),
        eqx.nn.MaxPool2d(2, 2),
        eqx.nn.Dropout(0.5),
        eqx.nn.Conv2d(4, 4, 2, stride=2, groups=2, key=keys[1]),
        eqx.nn.AvgPool2d((1, 2)),
        eqx.nn.Lambda(jnp.ravel),
        eqx.nn.Linear(8, 3, key=keys[2]),
    )
    params, rest = eqx.partition(eqx.nn.Sequential(layers), eqx.is_inexact_array)

    def network(params: Any, image: jax.Array, key: jax.Array | None = None) -> jax.Array:
        model = eqx.nn.inference_mode(eqx.combine(params, rest), key is None)
        return model(image.transpose(2, 0, 1), key=key)

    return Given(params, network)


@pytest.mark.integration
@pytest.mark.parametrize("of", [of_nnx, of_nnx_whole, of_equinox])
def test_a_network_works_as_it_is(of: Callable[[], Given]) -> None:
    params, network = of()

    def loss(params: Any, image: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sin(network(params, image) * jnp.arange(1.0, 4.0)))

    wanted, norms = by_vmap.clipped_sum(by_vmap.gradients(loss, params, IMAGES), 1.0)
    total, info = jax.jit(partial(per_example.clipped_sum, loss, clip_norm=1.0))(params, IMAGES)
    assert jax.tree.structure(total) == jax.tree.structure(params)
    assert by_vmap.relative_error(total, wanted) < 1e-5
    assert by_vmap.relative_error(info.norms, norms) < 1e-5
    tape = record(quick(loss), params, IMAGES[0])
    assert len(taps.sites(tape, jax.tree.leaves(params))) == len(jax.tree.leaves(params)) == 6
    assert not {"conv_general_dilated", "reduce_window_max"} & {step.primitive.name for step in tape.steps}
    found = mc_dropout.sample(jax.random.key(2), network, params, IMAGES[:1], samples=50)
    plain = network(params, IMAGES[0])
    assert 0 < np.linalg.norm(found.mean(axis=(0, 1)) - plain) < np.linalg.norm(found - plain, axis=-1).mean()


def test_what_is_no_array_is_refused_by_its_name() -> None:
    params = {"layers": [{"fn": jnp.tanh, "weight": jnp.ones(3)}]}
    wanted = r"^params\['layers'\]\[0\]\['fn'\]: expected an array, the rest being apart .*, got PjitFunction$"
    with pytest.raises(_validate.InputError, match=wanted):
        per_example.clipped_sum(lambda p, x: jnp.sum(x), params, jnp.ones((2, 3)), clip_norm=1.0)
