"""Slides windows over images: patches for convolutions, the largest value for pooling, and a convolution layer.

Every element of the window is one strided slice of the images. On a CPU this is several times faster than XLA's own
``conv_general_dilated_patches``, ``reduce_window`` and especially their gradients.
"""

import functools
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from dpaudit import _platform

FEW = 16  # number of channels below which axis by axis is faster on a CPU, in longer runs: measured from 4 to 16

Along = tuple[int, int, int]  # a window along one axis: size, stride, dilation


def patches(
    x: jax.Array,
    window: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    *,
    input_dilation: Sequence[int],
    kernel_dilation: Sequence[int],
) -> jax.Array:
    """Returns the input of a convolution's kernel at every output position: [n, *spatial, c] -> [n, *out, *window, c].

    Only reverse-mode derivatives are defined.
    """
    spread = [(low, high, dilation - 1) for (low, high), dilation in zip(padding, input_dilation, strict=True)]
    x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *spread, (0, 0, 0)])
    seen: jax.Array = _seen(x, tuple(zip(window, strides, kernel_dilation, strict=True)))
    return seen.reshape(*seen.shape[:-1], *window, x.shape[-1])


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _seen(x: jax.Array, windows: tuple[Along, ...]) -> jax.Array:
    """Slices [n, *spatial, c] into [n, *out, elements c], all at once, or axis by axis for few channels."""
    axes = range(1, 1 + len(windows))
    if x.shape[-1] < FEW:
        for axis, window in reversed(list(zip(axes, windows, strict=True))):
            x = jnp.concatenate(_along(x, axis, window), axis=-1)
        return x
    parts = [x]
    for axis, window in zip(axes, windows, strict=True):
        parts = [shift for part in parts for shift in _along(part, axis, window)]
    return jnp.concatenate(parts, axis=-1)


def _seen_forward(x: jax.Array, windows: tuple[Along, ...]) -> tuple[jax.Array, Any]:
    return _seen(x, windows), jax.ShapeDtypeStruct(x.shape, x.dtype)


def _seen_backward(windows: tuple[Along, ...], x: Any, d: jax.Array) -> tuple[jax.Array]:
    """Adds each window element's gradient to the places that it has read, axis by axis.

    JAX's own gradient is a sum of padded arrays, which XLA recomputes in every loop that reads it: on a CPU that takes
    most of the time of a small network. Here an axis is divided into [blocks, stride], where an element's places are a
    slice.
    """
    for axis, (size, stride, dilation) in enumerate(windows, start=1):
        length = x.shape[axis]
        blocks = max(d.shape[axis] + (size - 1) * dilation // stride, -(-length // stride))
        total = jnp.zeros((*d.shape[:axis], blocks, stride, *d.shape[axis + 1 : -1], d.shape[-1] // size), d.dtype)
        for i, part in enumerate(jnp.split(d, size, axis=-1)):
            part = jnp.expand_dims(part, axis + 1)
            start = [0] * axis + list(divmod(i * dilation, stride)) + [0] * (d.ndim - axis - 1)
            total = lax.dynamic_update_slice(total, lax.dynamic_slice(total, start, part.shape) + part, start)
        whole = total.reshape(*total.shape[:axis], blocks * stride, *total.shape[axis + 2 :])
        d = lax.slice_in_dim(whole, 0, length, axis=axis)
    return (d,)


_seen.defvjp(_seen_forward, _seen_backward)


def max_pool(x: jax.Array, window: Sequence[int], strides: Sequence[int], *, once: bool = False) -> jax.Array:
    """Takes the largest value in every window, without padding: [..., *spatial, c] -> [..., *out, c].

    Like ``flax.linen.max_pool``: the first of equal values takes the gradient, NaN is kept. Only reverse-mode
    derivatives are defined where windows overlap, or with ``once``. Set ``once`` where x is expensive to compute and
    windows do not
    overlap: XLA recomputes a few comparisons, and everything before them, for every slice of the result that a
    convolution takes, but it does not recompute a reduction.
    """
    if tuple(window) == tuple(strides):
        return _pooled_once(x, tuple(window)) if once else _first_largest(_cells(x, window))
    for axis in reversed(range(len(window))):  # within a row first, so that the first of equal values is found
        x = _largest(x, x.ndim - len(window) - 1 + axis, (window[axis], strides[axis], 1))
    return x


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _pooled_once(x: jax.Array, window: tuple[int, ...]) -> jax.Array:
    first = x.ndim - len(window) - 1
    for axis, size in enumerate(window, start=first):
        x = lax.slice_in_dim(x, 0, x.shape[axis] // size * size, axis=axis)
    cells = [n for size, length in zip(window, x.shape[first:-1], strict=True) for n in (length // size, size)]
    return x.reshape(*x.shape[:first], *cells, x.shape[-1]).max(
        axis=tuple(range(first + 1, x.ndim + len(window) - 1, 2))
    )


def _pooled_once_forward(x: jax.Array, window: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    return _pooled_once(x, window), x


def _pooled_once_backward(window: tuple[int, ...], x: jax.Array, d: jax.Array) -> tuple[jax.Array]:
    return jax.vjp(lambda x: _first_largest(_cells(x, window)), x)[1](d)


_pooled_once.defvjp(_pooled_once_forward, _pooled_once_backward)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _largest(x: jax.Array, axis: int, window: Along) -> jax.Array:
    return functools.reduce(jnp.maximum, _along(x, axis, window))


def _largest_forward(x: jax.Array, axis: int, window: Along) -> tuple[jax.Array, jax.Array]:
    return _largest(x, axis, window), x


def _largest_backward(axis: int, window: Along, x: jax.Array, d: jax.Array) -> tuple[jax.Array]:
    """Compares again, which is faster on a CPU than saving the masks."""
    return jax.vjp(lambda x: _first_largest(_along(x, axis, window)), x)[1](d)


_largest.defvjp(_largest_forward, _largest_backward)


def _along(x: jax.Array, axis: int, window: Along) -> list[jax.Array]:
    """Returns one slice for every element of a window that slides along one axis."""
    size, stride, dilation = window
    count = (x.shape[axis] - (size - 1) * dilation - 1) // stride + 1
    starts = [i * dilation for i in range(size)]
    return [lax.slice_in_dim(x, start, start + (count - 1) * stride + 1, stride, axis) for start in starts]


def _first_largest(values: Iterable[jax.Array]) -> jax.Array:
    first, *others = values
    for other in others:
        first = jnp.where((first >= other) | jnp.isnan(first), first, other)
    return first


def _cells(x: jax.Array, window: Sequence[int]) -> list[jax.Array]:
    """Returns the elements of windows that do not overlap, whose gradient needs no additions."""
    parts = [x]
    for axis, size in enumerate(window, start=x.ndim - len(window) - 1):
        whole = x.shape[axis] // size * size
        shape = [*parts[0].shape[:axis], -1, size, *parts[0].shape[axis + 1 :]]
        rows = [lax.slice_in_dim(part, 0, whole, axis=axis).reshape(shape) for part in parts]
        parts = [cell.squeeze(axis + 1) for row in rows for cell in lax.split(row, [1] * size, axis=axis + 1)]
    return parts


class Conv(nn.Module):
    """Convolves as ``flax.linen.Conv`` (same parameters, names and initial values), on a CPU as patches times weights.

    Elsewhere it is XLA's convolution. The platform is that which the network is traced for. On a CPU only
    reverse-mode derivatives are defined (``jax.grad``, ``jax.vjp``).

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
        """Convolves [..., *spatial, c] to [..., *out, features]."""
        window = tuple(self.kernel_size)
        axes = len(window)
        strides = (self.strides,) * axes if isinstance(self.strides, int) else tuple(self.strides)
        shape = (*window, x.shape[-1], self.features)
        kernel = self.param("kernel", nn.initializers.lecun_normal(), shape)
        bias = self.param("bias", nn.initializers.zeros_init(), (self.features,))
        batch = x.reshape(-1, *x.shape[-axes - 1 :])
        padding = lax.padtype_to_pads(batch.shape[1:-1], window, strides, self.padding)
        if _platform.on_cpu():
            ones = (1,) * axes
            seen = patches(batch, window, strides, padding, input_dilation=ones, kernel_dilation=ones)
            y = seen.reshape(*seen.shape[: axes + 1], -1) @ kernel.reshape(-1, self.features)
        else:
            space = "".join("DHW"[-axes:])
            numbers = (f"N{space}C", f"{space}IO", f"N{space}C")
            y = lax.conv_general_dilated(batch, kernel, strides, padding, dimension_numbers=numbers)
        return (y + bias).reshape(*x.shape[: -axes - 1], *y.shape[1:])
