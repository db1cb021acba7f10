"""The benchmark of private training compares like with like."""

import flax.linen as nn
import jax
import numpy as np
import pytest

from experiments.bench import sides


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
    for ours in ("ours, clipped", "ours, clipped, a user's network"):
        assert apart.pop(ours) < 3e-5  # which leaves room for the rounding of the sum
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


@pytest.mark.parametrize(
    "name, kernels, dense",
    [
        ("CNN8", ((3, 1, 8), (3, 8, 16)), (2, 16)),  # window, channels, outputs; the flattened image and its channels
        ("CNN28", ((8, 1, 16), (4, 16, 32)), (4, 32)),
        ("CNN32", ((5, 3, 64), (5, 64, 64)), (5, 64)),
    ],
)
def test_weights_in_the_order_of_pytorch(name, kernels, dense):
    """A layer's weights are [outputs, channels, rows, columns], and its biases come behind them."""
    network = sides.NETWORKS[name]
    params, *_ = sides.batch(jax.random.key(0), network, 1)
    vector, begin = sides.as_torch(params, network), 0
    assert vector.shape == (network.parameters,)
    for i, (window, channels, outputs) in enumerate(kernels):
        kernel, bias = (np.asarray(params[f"Conv_{i}"][part]) for part in ("kernel", "bias"))
        for out, channel, row in ((0, 0, 0), (1, channels - 1, 1), (outputs - 1, channels // 2, window - 1)):
            at = begin + ((out * channels + channel) * window + row) * window
            np.testing.assert_array_equal(vector[at : at + window], kernel[row, :, channel, out])
        begin += kernel.size + bias.size
        np.testing.assert_array_equal(vector[begin - bias.size : begin], bias)
    (side, channels), kernel = dense, np.asarray(params["Dense_0"]["kernel"])
    for out, channel, row in ((0, 0, 0), (1, channels - 1, 1)):
        at = begin + ((out * channels + channel) * side + row) * side
        seen = (row * side + np.arange(side)) * channels + channel  # where these pixels are in our flattened image
        np.testing.assert_array_equal(vector[at : at + side], kernel[seen, out])


def test_weights_of_another_network_are_refused():
    params, *_ = sides.batch(jax.random.key(0), sides.NETWORKS["CNN32"], 1)
    with pytest.raises(AssertionError, match=r"a kernel \(5, 5, 3, 64\) behind 1 channels"):
        sides.as_torch(params, sides.NETWORKS["CNN28"])


@pytest.mark.parametrize("apart", [1.1e-4, float("inf"), float("nan")])
def test_sides_that_compute_different_things_end_a_benchmark(apart):
    sides.refuse_different({"first": 0.0, "second": 0.9e-4})
    with pytest.raises(AssertionError, match=r"sides that compute different things: \{'first': 0.0, 'second': "):
        sides.refuse_different({"first": 0.0, "second": apart})


def test_what_moves_in_a_training_that_is_compared_is_a_plain_loop_s():
    batch = sides.batch(jax.random.key(0), SMALL, 8)
    params = batch.params
    for _ in range(sides.CHECKED):
        total = jax.jit(sides.clipped_sums(SMALL)["vmap(grad) and clip"])(params, *batch[1:])
        params = jax.tree.map(lambda p, g: p - sides.LEARNING_RATE * g / 8, params, total)
    ends = {"loop": params, "ours": sides.trained(SMALL, batch, batch_size=8)}
    moved = {side: jax.tree.map(np.subtract, end, batch.params) for side, end in ends.items()}
    assert sides.differences(moved)["ours"] < 1e-5
    once = jax.tree.map(lambda step: step / sides.CHECKED, moved["loop"])
    assert sides.differences({"loop": moved["loop"], "one step": once})["one step"] > 0.4
