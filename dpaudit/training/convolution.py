"""A convolution that is fast on a CPU as well: patches times weights there, XLA's own elsewhere."""

from collections.abc import Sequence

import flax.linen as nn
import jax
from jax import lax

from dpaudit.training.windows import patches


class Conv(nn.Module):
    """``flax.linen.Conv`` (same parameters, names and initial values) that a CPU runs as patches times weights.

    Elsewhere it is XLA's convolution. The platform is JAX's default backend when the network is traced. On a CPU
    the derivative is for reverse mode alone (``jax.grad``, ``jax.vjp``).

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
            ones = (1,) * axes
            seen = patches(batch, window, strides, padding, input_dilation=ones, kernel_dilation=ones)
            y = seen.reshape(*seen.shape[: axes + 1], -1) @ kernel.reshape(-1, self.features)
        else:
            space = "".join("DHW"[-axes:])
            numbers = (f"N{space}C", f"{space}IO", f"N{space}C")
            y = lax.conv_general_dilated(batch, kernel, strides, padding, dimension_numbers=numbers)
        return (y + bias).reshape(*x.shape[: -axes - 1], *y.shape[1:])
