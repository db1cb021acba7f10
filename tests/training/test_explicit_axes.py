"""Tests that training accepts data and parameters on a mesh with explicit axes, as ``jax.make_mesh`` makes them."""

from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from dpaudit.training import dp_sgd, per_example
from dpaudit.training.sampling import shuffled
from tests.processes import said, start

BATCH = (
    np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32),
    np.random.default_rng(1).standard_normal(8).astype(np.float32),
)
PARAMS = {"w": np.linspace(-1.0, 1.0, 6, dtype=np.float32), "b": np.float32(0.5)}
TRAINER = dp_sgd.dp_sgd(
    lambda params, example: loss(params, example),
    clip_norm=0.7,
    noise_multiplier=1.0,
    batch_size=4,
    optimizer=optax.sgd(0.1, momentum=0.9),
)


def loss(params: Any, example: Any) -> jax.Array:
    return jnp.square(example[0] @ params["w"] + params["b"] - example[1])


def with_dropout(params: Any, example: Any, key: jax.Array) -> jax.Array:
    return loss(params, (example[0] * jax.random.bernoulli(key, 0.5, (6,)), example[1]))


def everything(put: Any, whole: Any) -> Any:
    """Calls what takes arrays of a user's, compiled and not, on batches that ``put`` has placed."""
    data, params, key = put(BATCH), whole(PARAMS), jax.random.key(3)
    weights = put(np.array([1, 1, 1, 0, 1, 1, 1, 1], np.float32))

    def total(params: Any, data: Any) -> Any:
        return per_example.clipped_sum(loss, params, data, clip_norm=0.7, weights=weights)

    def dropped(params: Any, data: Any) -> Any:
        return per_example.clipped_sum(with_dropout, params, data, clip_norm=0.7, key=key)

    def step(state: Any, data: Any) -> Any:
        return TRAINER.step(key, state, data, weights)

    state = TRAINER.init(params)
    trained = dp_sgd.train(key, TRAINER, state, data, shuffled(8, 4), 3)
    fitted = dp_sgd.fit(key, TRAINER, params, data, shuffled(8, 4), 3, every=2)
    per_network = jax.vmap(total, in_axes=(0, None))(
        jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), params), data
    )
    return [
        total(params, data),
        jax.jit(total)(params, data),
        per_network,
        jax.jit(step)(state, data),
        trained,
        fitted,
    ]


def as_they_are(tree: Any) -> Any:
    return jax.tree.map(jnp.asarray, tree)


def agree() -> float:
    """Returns the largest difference between what arrays on an explicit mesh give and what NumPy's do."""
    mesh = jax.make_mesh((len(jax.devices()),), ("rows",), axis_types=(AxisType.Explicit,))

    def put(tree: Any, *axes: str) -> Any:
        return jax.device_put(tree, NamedSharding(mesh, PartitionSpec(*axes)))

    wanted, worst = everything(as_they_are, as_they_are), 0.0
    for inside, place, whole in (
        (False, lambda tree: put(tree, "rows"), put),
        (True, lambda tree: put(tree, "rows"), put),
        (True, as_they_are, as_they_are),
    ):
        with jax.set_mesh(mesh) if inside else nullcontext():
            found = everything(place, whole)
            for one, other in zip(jax.tree.leaves(wanted), jax.tree.leaves(found), strict=True):
                worst = max(worst, float(np.max(np.abs(np.asarray(one) - np.asarray(other)))))
    return worst


@pytest.mark.integration
def test_an_explicit_mesh_of_two_devices() -> None:
    assert said(start("tests.training.test_explicit_axes", "agree", devices=2)) < 1e-5


def test_a_loss_with_noise_of_its_own_where_a_mesh_is_set() -> None:
    """Random bits are recorded with the gradients, and have a context of their own where axes are explicit."""

    def noisy(params: Any, example: Any, key: jax.Array) -> jax.Array:
        return loss(params, example) + params["w"][0] * jax.random.normal(key)

    def total(key: jax.Array) -> Any:
        return per_example.clipped_sum(noisy, PARAMS, BATCH, clip_norm=0.7, key=key)[0]

    keys, totals = jax.random.split(jax.random.key(4), 3), jax.jit(jax.vmap(total))
    wanted = totals(keys)
    with jax.set_mesh(jax.make_mesh((1,), ("rows",), axis_types=(AxisType.Explicit,))):
        found = jax.jit(jax.vmap(total))(keys)
    for name, leaf in wanted.items():
        np.testing.assert_allclose(found[name], leaf, rtol=1e-5)
