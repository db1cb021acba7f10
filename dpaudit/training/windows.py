"""What a window sees as it slides over images: the patches of a convolution, and the largest value for pooling.

Every element of the window is one strided slice of the images. On a CPU that is several times faster than XLA's own
``conv_general_dilated_patches``, ``reduce_window`` and, above all, the gradients of these.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

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

    Where all strides are 1 it has a gradient of its own, for reverse mode alone.
    """
    spread = [(low, high, dilation - 1) for (low, high), dilation in zip(padding, input_dilation, strict=True)]
    x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *spread, (0, 0, 0)])
    if set(strides) == {1}:
        seen: jax.Array = _stacked(x, tuple(window), tuple(kernel_dilation))
    else:
        seen = jnp.stack(list(_shifts(x, window, strides, kernel_dilation)), axis=-2)
    return seen.reshape(*seen.shape[:-2], *window, x.shape[-1])


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _stacked(x: jax.Array, window: tuple[int, ...], dilation: tuple[int, ...]) -> jax.Array:
    return lax.optimization_barrier(jnp.stack(list(_shifts(lax.optimization_barrier(x), window, [1] * len(window), dilation)), axis=-2))


def _stacked_forward(x: jax.Array, window: tuple[int, ...], dilation: tuple[int, ...]) -> tuple[jax.Array, None]:
    return _stacked(x, window, dilation), None


def _stacked_backward(window: tuple[int, ...], dilation: tuple[int, ...], _: Any, d: jax.Array) -> tuple[jax.Array]:
    """Adds what every element of the window has seen in its place, one after another.

    JAX's own gradient is a sum of padded arrays, which XLA computes anew in every loop that reads it: on a CPU most of
    the time of a small network.
    """
    n, *out, _, c = d.shape
    reach = [(size - 1) * apart for size, apart in zip(window, dilation, strict=True)]
    total = jnp.zeros((n, *(size + more for size, more in zip(out, reach, strict=True)), c), d.dtype)
    for i, offset in enumerate(itertools.product(*map(range, window))):
        start = [0, *(at * apart for at, apart in zip(offset, dilation, strict=True)), 0]
        here = lax.dynamic_slice(total, start, (n, *out, c))
        total = lax.dynamic_update_slice(total, here + d[..., i, :], start)
    return (total,)


_stacked.defvjp(_stacked_forward, _stacked_backward)


def max_pool(x: jax.Array, window: Sequence[int], strides: Sequence[int]) -> jax.Array:
    """The largest value in every window, without padding: [..., *spatial, c] -> [..., *out, c].

    As ``flax.linen.max_pool``: the first of equal values takes the gradient, NaN stays.
    """
    if tuple(window) == tuple(strides):
        return _first_largest(_cells(x, window))
    ones = [1] * len(window)
    for axis in reversed(range(len(window))):  # within a row first, so that the first of equal values is found
        along = [*ones[:axis], window[axis], *ones[axis + 1 :]], [*ones[:axis], strides[axis], *ones[axis + 1 :]]
        x = _first_largest(_shifts(x, *along, ones))
    return x


def _first_largest(values: Iterable[jax.Array]) -> jax.Array:
    first, *others = values
    for other in others:
        first = jnp.where((first >= other) | jnp.isnan(first), first, other)
    return first


def _cells(x: jax.Array, window: Sequence[int]) -> list[jax.Array]:
    """As ``_shifts`` for windows side by side, whose gradient is the parts put together again, without additions."""
    parts = [x]
    for axis, size in enumerate(window, start=x.ndim - len(window) - 1):
        whole = x.shape[axis] // size * size
        shape = [*parts[0].shape[:axis], -1, size, *parts[0].shape[axis + 1 :]]
        rows = [lax.slice_in_dim(part, 0, whole, axis=axis).reshape(shape) for part in parts]
        parts = [cell.squeeze(axis + 1) for row in rows for cell in lax.split(row, [1] * size, axis=axis + 1)]
    return parts


def _shifts(
    x: jax.Array, window: Sequence[int], strides: Sequence[int], dilation: Sequence[int]
) -> Iterator[jax.Array]:
    """For every element of the window, row by row, what it sees: [..., *out, c]."""
    *many, c = x.shape[: -len(window) - 1] + x.shape[-1:]
    spatial = x.shape[-len(window) - 1 : -1]
    reach = [(size - 1) * apart for size, apart in zip(window, dilation, strict=True)]
    out = [(size - last - 1) // step + 1 for size, last, step in zip(spatial, reach, strides, strict=True)]
    for offset in itertools.product(*map(range, window)):
        start = [i * apart for i, apart in zip(offset, dilation, strict=True)]
        stop = [at + (count - 1) * step + 1 for at, count, step in zip(start, out, strides, strict=True)]
        yield lax.slice(x, [0] * len(many) + [*start, 0], [*many, *stop, c], [1] * len(many) + [*strides, 1])
