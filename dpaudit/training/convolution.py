"""A convolution that is fast on a CPU as well: patches times weights there, XLA's own elsewhere."""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from dpaudit.training.windows import patches


class Conv(nn.Module):
    """``flax.linen.Conv`` (same parameters, names and initial values) that a CPU runs as patches times weights.

    Elsewhere it is XLA's convolution. The platform is JAX's default backend when the network is traced. On a CPU with
    strides of 1 the derivative is for reverse mode alone (``jax.grad``, ``jax.vjp``).

    Attributes:
      features: output channels.
      kernel_size: one size per spatial axis.
      strides: one per spatial axis, or one for all.
      padding: "SAME" or "VALID".
    """

    features: int
    kernel_size: Sequence[int]
    strides: int | Sequence[int] = 1
    padding: str = "SAME"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., *spatial, c] -> [..., *out, features]."""
        window = tuple(self.kernel_size)
        axes = len(window)
        strides = (self.strides,) * axes if isinstance(self.strides, int) else tuple(self.strides)
        shape = (*window, x.shape[-1], self.features)
        kernel = self.param("kernel", nn.initializers.lecun_normal(), shape)
        bias = self.param("bias", nn.initializers.zeros_init(), (self.features,))
        batch = x.reshape(-1, *x.shape[-axes - 1 :])
        padding = lax.padtype_to_pads(batch.shape[1:-1], window, strides, self.padding)
        if jax.default_backend() == "cpu":
            blocks, weights = _blocked(batch, kernel, strides, padding)
            ones = (1,) * axes
            seen = patches(
                blocks, weights.shape[:axes], ones, [(0, 0)] * axes, input_dilation=ones, kernel_dilation=ones
            )
            y = seen.reshape(*seen.shape[: axes + 1], -1) @ weights.reshape(-1, self.features)
        else:
            space = "".join("DHW"[-axes:])
            numbers = (f"N{space}C", f"{space}IO", f"N{space}C")
            y = lax.conv_general_dilated(batch, kernel, strides, padding, dimension_numbers=numbers)
        return (y + bias).reshape(*x.shape[: -axes - 1], *y.shape[1:])


def _blocked(
    x: jax.Array, kernel: jax.Array, strides: Sequence[int], padding: Sequence[tuple[int, int]]
) -> tuple[jax.Array, jax.Array]:
    """The same convolution with strides of 1: what lies within a stride becomes channels.

    x [n, *spatial, c] and kernel [*window, c, o] -> [n, *blocks, c'] and [*window', c', o], c' = c times all strides.
    """
    spatial, window = x.shape[1:-1], kernel.shape[: len(strides)]
    sizes = [size + low + high for size, (low, high) in zip(spatial, padding, strict=True)]
    reach = [-(-width // step) for width, step in zip(window, strides, strict=True)]
    blocks = [
        (size - width) // step + more
        for size, width, step, more in zip(sizes, window, strides, reach, strict=True)
    ]
    zero = jnp.zeros((), x.dtype)
    fill = [
        (low, count * step - low - size, 0)
        for count, step, size, (low, _) in zip(blocks, strides, spatial, padding, strict=True)
    ]
    x = lax.pad(x, zero, [(0, 0, 0), *fill, (0, 0, 0)])
    more = [(0, count * step - width, 0) for count, step, width in zip(reach, strides, window, strict=True)]
    if any(high for _, high, _ in more):
        kernel = lax.pad(kernel, jnp.zeros((), kernel.dtype), [*more, (0, 0, 0), (0, 0, 0)])
    axes = len(strides)
    cut = [part for count, step in zip(blocks, strides, strict=True) for part in (count, step)]
    within = [*range(1, 2 * axes, 2), *range(2, 2 * axes + 1, 2), 2 * axes + 1]
    x = x.reshape(len(x), *cut, -1).transpose(0, *within).reshape(len(x), *blocks, -1)
    cut = [part for count, step in zip(reach, strides, strict=True) for part in (count, step)]
    order = [*range(0, 2 * axes, 2), *range(1, 2 * axes, 2), 2 * axes, 2 * axes + 1]
    kernel = kernel.reshape(*cut, *kernel.shape[axes:]).transpose(order)
    return x, kernel.reshape(*reach, -1, kernel.shape[-1])
