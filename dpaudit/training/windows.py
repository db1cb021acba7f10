"""Slides windows over arrays, every element of the window as one strided slice: patches of images, for convolutions.

On a CPU this is several times faster than XLA's own ``conv_general_dilated_patches`` and especially its gradient.
"""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from dpaudit import _platform, _validate

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
    if any(map(any, spread)):
        x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *spread, (0, 0, 0)])
    seen: jax.Array = _seen(x, tuple(zip(window, strides, kernel_dilation, strict=True)), x.shape[1:-1])
    return seen.reshape(*seen.shape[:-1], *window, x.shape[-1])


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _seen(x: jax.Array, windows: tuple[Along, ...], spatial: tuple[int, ...]) -> jax.Array:
    """Slices [n, *spatial, c] into [n, *out, elements c], all at once, or axis by axis for few channels."""
    axes = range(1, 1 + len(windows))
    if x.shape[-1] < FEW and _platform.current() != "gpu":  # which would write and read the first axis's slices
        for axis, window in reversed(list(zip(axes, windows, strict=True))):
            x = jnp.concatenate(along(x, axis, window), axis=-1)
        return x
    parts = [x]
    for axis, window in zip(axes, windows, strict=True):
        parts = [shift for part in parts for shift in along(part, axis, window)]
    return jnp.concatenate(parts, axis=-1)


def _seen_forward(x: jax.Array, windows: tuple[Along, ...], spatial: tuple[int, ...]) -> tuple[jax.Array, None]:
    return _seen(x, windows, spatial), None


def _seen_backward(windows: tuple[Along, ...], spatial: tuple[int, ...], _: None, d: jax.Array) -> tuple[jax.Array]:
    """Adds each window element's gradient to the places that it has read, axis by axis."""
    for axis, (window, length) in enumerate(zip(windows, spatial, strict=True), start=1):
        d = spread(jnp.split(d, window[0], axis=-1), axis, window, length)
    return (d,)


_seen.defvjp(_seen_forward, _seen_backward)


def along(x: jax.Array, axis: int, window: Along) -> list[jax.Array]:
    """Returns one slice for every element of a window that slides along one axis.

    Raises:
      InputError: a window that is longer than the axis.
    """
    size, stride, dilation = window
    if (reach := (size - 1) * dilation + 1) > x.shape[axis]:
        wanted = f"at most the {x.shape[axis]} elements of its axis, padding included"
        raise _validate.expected("window", wanted, reach)
    count = (x.shape[axis] - (size - 1) * dilation - 1) // stride + 1
    starts = [i * dilation for i in range(size)]
    return [lax.slice_in_dim(x, start, start + (count - 1) * stride + 1, stride, axis) for start in starts]


def spread(parts: Sequence[jax.Array], axis: int, window: Along, length: int) -> jax.Array:
    """Adds each slice of :func:`along` to the places that it was taken from, along an axis of ``length``.

    JAX's own gradient is a sum of padded arrays, which XLA recomputes in every loop that reads it: on a CPU that takes
    most of the time of a small network. Here an axis is divided into [blocks, stride], where an element's places are a
    slice.
    """
    size, stride, dilation = window
    shape = parts[0].shape
    blocks = max(shape[axis] + (size - 1) * dilation // stride, -(-length // stride))
    total = jnp.zeros((*shape[:axis], blocks, stride, *shape[axis + 1 :]), parts[0].dtype)
    for i, part in enumerate(parts):
        part = jnp.expand_dims(part, axis + 1)
        start = [0] * axis + list(divmod(i * dilation, stride)) + [0] * (len(shape) - axis - 1)
        total = lax.dynamic_update_slice(total, lax.dynamic_slice(total, start, part.shape) + part, start)
    whole = total.reshape(*shape[:axis], blocks * stride, *shape[axis + 1 :])
    return lax.slice_in_dim(whole, 0, length, axis=axis)
