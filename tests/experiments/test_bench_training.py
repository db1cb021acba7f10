"""The benchmark of private training compares like with like."""

import flax.linen as nn
import jax
import numpy as np
import pytest

from experiments import bench_training_sides as sides


class Flat(nn.Module):
    """One dense layer, for one image or a batch of them."""

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        return nn.Dense(10)(images.reshape(*images.shape[:-3], -1))


SMALL = sides.Network(Flat(), Flat(), (2, 2, 1), 50)


def test_all_sides_return_the_same_clipped_sum():
    batch = sides.batch(jax.random.key(0), SMALL, 2 * sides.MICROBATCH)
    runs = sides.clipped_sums(SMALL)
    runs["wrong"] = sides.clipped_sums(SMALL, clip_norm=1.01 * sides.CLIP_NORM)["ours, clipped"]
    apart = sides.differences({side: jax.jit(run)(*batch) for side, run in runs.items()})
    assert 1e-3 < apart.pop("wrong") < 0.011
    assert apart.pop("ours, clipped") < 3e-5  # which leaves room for the rounding of the sum
    assert max(apart.values()) < 1e-6


def test_all_sides_return_the_same_plain_gradient():
    batch = sides.batch(jax.random.key(0), SMALL, 2 * sides.MICROBATCH)
    runs = sides.plain_gradients(SMALL)
    runs["wrong"] = sides.clipped_sums(SMALL)["vmap(grad) and clip"]
    apart = sides.differences({side: jax.jit(run)(*batch) for side, run in runs.items()})
    assert apart.pop("wrong") > 1
    assert max(apart.values()) < 1e-6


@pytest.mark.parametrize("name", sides.NETWORKS)
def test_flax_layers_make_the_same_network(name):
    network = sides.NETWORKS[name]
    params, images, _ = sides.batch(jax.random.key(0), network, 3)
    theirs = jax.jit(network.flax.apply)({"params": params}, images)
    ours = jax.jit(jax.vmap(network.ours.apply, (None, 0)))({"params": params}, images)
    assert np.ptp(theirs) > 0.1
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
