"""Pooling by slices, against Flax's by XLA's windows."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpaudit.training.windows import max_pool, patches

CASES = [
    ((6, 8, 3), (2, 2), (2, 2)),
    ((7, 9, 3), (2, 2), (2, 2)),
    ((7, 9, 3), (2, 2), (1, 1)),
    ((9, 8, 2), (3, 2), (2, 1)),
    ((7, 4), (3,), (3,)),
    ((5, 6, 7, 2), (2, 3, 2), (2, 3, 2)),
]


@pytest.mark.parametrize(("shape", "window", "strides"), CASES)
@pytest.mark.parametrize("batch", [(), (4,)])
@pytest.mark.parametrize("once", [False, True])
def test_values_and_gradients_are_those_of_flax(once, batch, shape, window, strides):
    x = jnp.round(2 * jax.random.normal(jax.random.key(0), (*batch, *shape)))  # with many ties

    def ours(x):
        return max_pool(x, window, strides, once=once)

    def flax(x):
        return nn.max_pool(x, window, strides)

    np.testing.assert_array_equal(ours(x), flax(x))
    ct = jax.random.normal(jax.random.key(1), ours(x).shape)
    (mine,), (theirs,) = jax.vjp(ours, x)[1](ct), jax.vjp(flax, x)[1](ct)
    np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-6)


def test_nan_stays():
    for place in range(4):
        x = jnp.arange(4.0).at[place].set(jnp.nan).reshape(2, 2, 1)
        assert all(np.isnan(max_pool(x, (2, 2), (2, 2), once=once)).all() for once in (False, True))


@pytest.mark.parametrize("strides", [(1, 1), (2, 1)])
@pytest.mark.parametrize("kernel_dilation", [(1, 1), (2, 3)])
@pytest.mark.parametrize("input_dilation", [(1, 1), (1, 2)])
def test_patches_and_their_gradients_are_those_of_xla(strides, kernel_dilation, input_dilation):
    x, window, padding = jax.random.normal(jax.random.key(2), (2, 9, 8, 3)), (3, 2), ((1, 2), (0, 1))

    def ours(x):
        seen = patches(x, window, strides, padding, input_dilation=input_dilation, kernel_dilation=kernel_dilation)
        return jnp.moveaxis(seen, -1, -3).reshape(*seen.shape[:3], -1)  # XLA's order: channel, then window

    def xla(x):
        return jax.lax.conv_general_dilated_patches(
            x, window, strides, padding, input_dilation, kernel_dilation, ("NHWC", "HWIO", "NHWC")
        )

    np.testing.assert_array_equal(ours(x), xla(x))
    ct = jax.random.normal(jax.random.key(3), ours(x).shape)
    (mine,), (theirs,) = jax.vjp(ours, x)[1](ct), jax.vjp(xla, x)[1](ct)
    np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)
