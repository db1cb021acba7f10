"""Faults that releases under one key show, each beside its correct twin: shared noise, sensitivity, NaN."""

import math

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from dpaudit import Claim, inspect

X0 = jnp.array([0.6, -0.3, 0.2])
X1 = jnp.array([-0.5, 0.1, 0.7])
BATCH0 = jnp.array([[0.6, -0.3], [0.1, 0.2], [0.3, 0.4], [-0.2, 0.8]])
BATCH1 = BATCH0.at[2].set(jnp.array([-0.9, 0.3]))
normal, fold_in = jax.random.normal, jax.random.fold_in


def clip(x, norm=1.0):
    return x / jnp.maximum(1.0, jnp.linalg.norm(x) / norm)


@pytest.mark.parametrize(
    "faulty",
    [
        lambda k, xs: jax.vmap(lambda x: clip(x) + normal(k, x.shape))(xs),
        lambda k, xs: {"update": jax.vmap(clip)(xs) + normal(k, xs.shape[1:])},
        lambda k, xs: xs + jnp.tile(normal(k, (2, xs.shape[1])), (len(xs) // 2, 1)),
    ],
)
def test_clients_with_the_same_noise(faulty):
    assert inspect(faulty, BATCH0, BATCH1).kinds == {"shared_noise"}
    assert inspect(faulty, BATCH0, BATCH1, per_client=False).findings == ()


def test_a_row_for_everybody_is_not_a_client():
    def broadcast_mean(key, xs):
        return jnp.broadcast_to(jnp.mean(jax.vmap(clip)(xs), axis=0) + normal(key, xs.shape[1:]), xs.shape)

    assert inspect(broadcast_mean, BATCH0, BATCH1).findings == ()
    assert inspect(broadcast_mean, BATCH0, BATCH1, per_client=True).kinds == {"shared_noise"}
    ages = jnp.array([0.1, 0.4, 0.8])
    assert inspect(lambda k, x: x + normal(k), ages, -ages, per_client=True).kinds == {"shared_noise"}
    assert inspect(lambda k, x: x + normal(k, x.shape), ages, -ages, per_client=True).findings == ()


def test_devices_of_a_mesh_with_the_same_noise():
    mesh, rows = Mesh(jax.devices()[:1], ("clients",)), PartitionSpec("clients")

    def sharded(local):
        return jax.shard_map(local, mesh=mesh, in_specs=(PartitionSpec(), rows), out_specs=rows)

    faulty = sharded(lambda k, xs: xs + normal(k, xs.shape[1:]))
    correct = sharded(lambda k, xs: xs + normal(fold_in(k, lax.axis_index("clients")), xs.shape))
    assert inspect(faulty, BATCH0, BATCH1).kinds == {"shared_noise"}
    assert inspect(correct, BATCH0, BATCH1).findings == ()


@pytest.mark.parametrize(
    "faulty, correct, sensitivity",
    [
        (lambda xs: jnp.sum(xs, axis=0), lambda xs: jnp.sum(jax.vmap(clip)(xs), axis=0), 2.0),  # forgot to clip
        (lambda xs: clip(jnp.mean(xs, axis=0)), lambda xs: jnp.mean(jax.vmap(clip)(xs), axis=0), 0.5),  # the mean
        (  # along the wrong axis
            lambda xs: jnp.sum(jax.vmap(clip, 1, 1)(xs), axis=0),
            lambda xs: jnp.sum(jax.vmap(clip, 0, 0)(xs), axis=0),
            2.0,
        ),
        (  # each coordinate, claimed for the whole
            lambda xs: jnp.sum(jnp.clip(xs, -1, 1), axis=0),
            lambda xs: jnp.sum(jnp.clip(xs, -1, 1), axis=0) / math.sqrt(2),
            2.0,
        ),
    ],
)
def test_a_missing_clip_shows_on_stretched_inputs(faulty, correct, sensitivity):
    def noisy(value):
        return lambda key, xs: value(xs) + normal(key, xs.shape[1:])

    replaced = {"claim": Claim(1.0), "sensitivity": sensitivity}
    assert inspect(noisy(faulty), BATCH0, BATCH1, sensitivity=sensitivity, stretches=()).findings == ()
    (finding,) = inspect(noisy(faulty), BATCH0, BATCH1, **replaced).findings
    assert finding.kind == "sensitivity"
    assert "1000 (x1 - x0)" in finding.sentence
    found = inspect(noisy(correct), BATCH0, BATCH1, **replaced)
    assert found.findings == ()
    assert found.shift is not None
    assert 0.5 * sensitivity < found.shift <= 1.001 * sensitivity


def test_an_absent_record_stays_absent():
    def total(key, xs):
        return jnp.sum(jax.vmap(clip)(xs), axis=0) + normal(key, xs.shape[1:])

    without = BATCH1.at[2].set(0.0)
    added, replaced = Claim(1.0, neighbouring="add_remove"), Claim(1.0)
    for claim in (added, None):
        assert inspect(total, without, BATCH1, claim=claim, sensitivity=1.0).findings == ()
    assert inspect(total, without, BATCH1, claim=replaced, sensitivity=1.0).kinds == {"sensitivity"}
    assert inspect(total, without, BATCH1, claim=replaced, sensitivity=2.0).findings == ()


def test_the_declared_norm_counts():
    def noisy(key, x):
        return {"a": x + jax.random.laplace(key, x.shape)}

    left, right = jnp.zeros(4), jnp.ones(4)
    for order, norm in ((1, 4.0), (2, 2.0), (math.inf, 1.0)):
        assert inspect(noisy, left, right, sensitivity=norm, norm_order=order, stretches=()).findings == ()
        (finding,) = inspect(noisy, left, right, sensitivity=norm / 2, norm_order=order, stretches=()).findings
        assert f"{norm:g} apart in the norm of order {order:g}" in finding.sentence


def test_a_release_that_is_not_finite():
    def scaled(key, x):
        return x / jnp.linalg.norm(x) + normal(key, x.shape)

    assert inspect(scaled, X0, jnp.zeros(3)).kinds == {"non_finite"}
    assert inspect(scaled, X0, X1).findings == ()
