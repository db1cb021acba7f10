"""A convolution that is fast on a CPU as well: patches times weights there, XLA's own elsewhere."""

import itertools
from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax


def patches(
    x: jax.Array,
    window: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    *,
    input_dilation: Sequence[int],
    kernel_dilation: Sequence[int],
) -> jax.Array:
    """What a convolution's kernel sees at every output position: [n, *spatial, c] -> [n, *out, *window, c].

    Cut out as one strided slice per element of the window, several times faster on a CPU than
    ``lax.conv_general_dilated_patches``.
    """
    spread = [(low, high, dilation - 1) for (low, high), dilation in zip(padding, input_dilation, strict=True)]
    x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *spread, (0, 0, 0)])
    reach = [(size - 1) * dilation for size, dilation in zip(window, kernel_dilation, strict=True)]
    out = [(size - last - 1) // step + 1 for size, last, step in zip(x.shape[1:-1], reach, strides, strict=True)]
    pieces = []
    for offset in itertools.product(*map(range, window)):
        start = [i * dilation for i, dilation in zip(offset, kernel_dilation, strict=True)]
        stop = [at + (count - 1) * step + 1 for at, count, step in zip(start, out, strides, strict=True)]
        pieces.append(lax.slice(x, [0, *start, 0], [x.shape[0], *stop, x.shape[-1]], [1, *strides, 1]))
    return jnp.stack(pieces, axis=-2).reshape(x.shape[0], *out, *window, x.shape[-1])


class Conv(nn.Module):
    """``flax.linen.Conv`` (same parameters, names and initial values) that a CPU runs as patches times weights.

    Elsewhere it is XLA's convolution. The platform is JAX's default backend when the network is traced.

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
