"""Reads scores and releases that were obtained elsewhere as arrays of numbers."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpaudit import _validate

UNLIKELY = math.log(1e-9)  # probability at which values in order are taken for sorted ones


def row(**named: Any) -> np.ndarray:
    """Returns scores [n] in float64.

    Raises:
      InputError: not numbers of this shape, none at all, or NaN.
    """
    ((name, given),) = named.items()
    found = _numbers(name, given)
    if found.ndim != 1:
        raise _validate.expected(name, "scores of shape [n]", f"shape {list(found.shape)}")
    if not len(found):
        raise _validate.expected(name, "at least one score", "none")
    found = found.astype(np.float64)
    missing = np.flatnonzero(np.isnan(found))
    if len(missing):
        raise _validate.expected(name, "numbers", f"{len(missing):,} NaN, the first at index {missing[0]}")
    return found


def leaves(**named: Any) -> tuple[list[list[np.ndarray]], tuple[int, int]]:
    """Returns the arrays of both worlds' releases, [n, *shape] each, and both n.

    Raises:
      InputError: releases that are not numbers or of different shapes.
    """
    worlds, forms, counts = [], [], []
    for name, given in named.items():
        parts, form = jax.tree.flatten(given, is_leaf=lambda part: not isinstance(part, dict))
        arrays = [_numbers(name, part) for part in parts]
        lengths = {len(array) if array.ndim else 0 for array in arrays}
        if len(lengths) != 1 or 0 in lengths:
            raise _validate.expected(name, "releases [n, ...], as many in every array", f"{sorted(lengths)} releases")
        worlds.append(arrays)
        forms.append((form, [array.shape[1:] for array in arrays]))
        counts.append(lengths.pop())
    one, other = named
    if forms[0] != forms[1]:
        shapes = [str([list(shape) for shape in shapes]) for _, shapes in forms]
        raise _validate.expected(other, f"releases like those of {one}, of shape {shapes[0]}", f"shape {shapes[1]}")
    if not sum(array[0].size for array in worlds[0]):
        raise _validate.expected(one, "releases of at least one number", "none")
    pairs = zip(*worlds, strict=True)
    alike = [[leaf.astype(np.result_type(first, second)) for leaf in (first, second)] for first, second in pairs]
    return [list(own) for own in zip(*alike, strict=True)], (counts[0], counts[1])


def _numbers(name: str, given: Any) -> np.ndarray:
    """Returns an array of numbers, of the type that it has.

    Raises:
      InputError: something else, such as text, or rows of different lengths.
    """
    try:
        found = np.asarray(given)
    except ValueError:  # of different lengths
        raise _validate.expected(name, "numbers or arrays of one shape", "different shapes") from None
    if found.dtype.kind in "biuf" or jnp.issubdtype(found.dtype, jnp.floating):
        return found
    if found.size == 0:
        return found.astype(np.float64)
    first = found.reshape(-1)[0] if found.ndim else given
    raise _validate.expected(name, "numbers or arrays of one shape", f"{type(first).__name__} {first!r}")


def refuse_sorted(name: str, values: np.ndarray) -> None:
    """Refuses values in order, as the first of them would be no sample of the others.

    Raises:
      InputError: values that independent trials give in this order with a probability below 1e-9.
    """
    if not ((values[1:] >= values[:-1]).all() or (values[1:] <= values[:-1]).all()):
        return
    repeats = np.unique(values, return_counts=True)[1].tolist()
    if sum(math.lgamma(count + 1) for count in repeats) - math.lgamma(len(values) + 1) < UNLIKELY:
        raise _validate.expected(name, "values in the order in which they were drawn", "sorted ones")
