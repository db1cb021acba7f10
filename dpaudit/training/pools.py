"""Takes the largest value, or the sum, of every window that slides over an array.

Every element of the window is one strided slice. On a CPU this is several times faster than XLA's ``reduce_window``
and especially its gradient.
"""

import functools
from collections.abc import Iterable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from dpaudit.training.windows import Along, along, spread


def largest(x: jax.Array, windows: tuple[Along, ...]) -> jax.Array:
    """Takes the largest value in every window, without padding; one window for every axis of x.

    As of XLA's ``reduce_window_max``: the first of equal values takes the gradient, NaN is kept. Only reverse-mode
    derivatives are defined.
    """
    if _apart(windows):
        return _largest_of_blocks(x, windows)
    for axis, window in reversed(list(enumerate(windows))):  # within a row first: the first of equal values is found
        if window != (1, 1, 1):
            x = _largest(x, axis, window)
    return x


def total(x: jax.Array, windows: tuple[Along, ...]) -> jax.Array:
    """Adds up every window, without padding; one window for every axis of x."""
    if _apart(windows):
        cells, elements = _blocks(x, windows)
        return cells.sum(axis=tuple(elements))
    for axis, window in enumerate(windows):
        if window != (1, 1, 1):
            x = _added(x, axis, window, x.shape[axis])
    return x


def _apart(windows: tuple[Along, ...]) -> bool:
    """Tells whether windows lie side by side."""
    return all(size == stride and dilation == 1 for size, stride, dilation in windows)


def _blocks(x: jax.Array, windows: tuple[Along, ...]) -> tuple[jax.Array, list[int]]:
    """Divides every axis that has windows into [windows, elements]; returns that and the axes of elements."""
    shape: list[int] = []
    elements: list[int] = []
    for axis, (size, _, _) in enumerate(windows):
        x = lax.slice_in_dim(x, 0, x.shape[axis] // size * size, axis=axis)
        shape.append(x.shape[axis] // size)
        if size > 1:
            elements.append(len(shape))
            shape.append(size)
    return x.reshape(shape), elements


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _largest_of_blocks(x: jax.Array, windows: tuple[Along, ...]) -> jax.Array:
    """Reduces, because XLA does not recompute a reduction for every slice of it that a convolution takes.

    It would recompute comparisons, and everything before them, such as a dropout mask.
    """
    cells, elements = _blocks(x, windows)
    return cells.max(axis=tuple(elements))


def _largest_of_blocks_forward(x: jax.Array, windows: tuple[Along, ...]) -> tuple[jax.Array, jax.Array]:
    return _largest_of_blocks(x, windows), x


def _largest_of_blocks_backward(windows: tuple[Along, ...], x: jax.Array, d: jax.Array) -> tuple[jax.Array]:
    return jax.vjp(lambda x: _first_largest(_cells(x, windows)), x)[1](d)


_largest_of_blocks.defvjp(_largest_of_blocks_forward, _largest_of_blocks_backward)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _largest(x: jax.Array, axis: int, window: Along) -> jax.Array:
    return functools.reduce(jnp.maximum, along(x, axis, window))


def _largest_forward(x: jax.Array, axis: int, window: Along) -> tuple[jax.Array, jax.Array]:
    return _largest(x, axis, window), x


def _largest_backward(axis: int, window: Along, x: jax.Array, d: jax.Array) -> tuple[jax.Array]:
    """Compares again, which is faster on a CPU than saving the masks."""
    return jax.vjp(lambda x: _first_largest(along(x, axis, window)), x)[1](d)


_largest.defvjp(_largest_forward, _largest_backward)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def _added(x: jax.Array, axis: int, window: Along, length: int) -> jax.Array:
    return functools.reduce(jnp.add, along(x, axis, window))


def _added_forward(x: jax.Array, axis: int, window: Along, length: int) -> tuple[jax.Array, None]:
    return _added(x, axis, window, length), None


def _added_backward(axis: int, window: Along, length: int, _: None, d: jax.Array) -> tuple[jax.Array]:
    return (spread([d] * window[0], axis, window, length),)


_added.defvjp(_added_forward, _added_backward)


def _first_largest(values: Iterable[jax.Array]) -> jax.Array:
    first, *others = values
    for other in others:
        first = jnp.where((first >= other) | jnp.isnan(first), first, other)
    return first


def _cells(x: jax.Array, windows: tuple[Along, ...]) -> list[jax.Array]:
    """Returns the elements of windows that do not overlap, whose gradient needs no additions."""
    parts = [x]
    for axis, (size, _, _) in enumerate(windows):
        if size == 1:
            continue
        whole = x.shape[axis] // size * size
        shape = [*parts[0].shape[:axis], -1, size, *parts[0].shape[axis + 1 :]]
        rows = [lax.slice_in_dim(part, 0, whole, axis=axis).reshape(shape) for part in parts]
        parts = [cell.squeeze(axis + 1) for row in rows for cell in lax.split(row, [1] * size, axis=axis + 1)]
    return parts
