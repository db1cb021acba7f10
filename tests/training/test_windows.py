"""Patches by slices, against XLA's own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpaudit._validate import InputError
from dpaudit.training.per_example import clipped_sum
from dpaudit.training.windows import patches


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


@pytest.mark.parametrize("size, dilation, reach", [(5, 1, 5), (2, 3, 4)])
def test_a_window_that_is_larger_than_the_image_is_refused_in_one_line(size, dilation, reach):
    def loss(params, x):
        shape = {"window_strides": (1, 1), "padding": "VALID", "rhs_dilation": (dilation, dilation)}
        return jnp.sum(jax.lax.conv_general_dilated(x[None, None], params, **shape))

    kernel, images = jnp.ones((1, 1, size, size)), jnp.ones((2, 3, 3))
    wanted = f"^window: expected at most the 3 elements of its axis, padding included, got {reach}"
    with pytest.raises(InputError, match=wanted):
        clipped_sum(loss, kernel, images, clip_norm=1.0)
