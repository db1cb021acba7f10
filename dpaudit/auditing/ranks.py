"""Maps scores of any type to integers in the same order, which stay distinct on a CPU that flushes subnormals."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from dpaudit import _validate

INFINITY = {4: 0x7F800000, 8: 0x7FF0000000000000}  # its bits


def bar(threshold: float, kind: np.dtype) -> np.ndarray:
    """Returns the rank of the largest number of the scores' type that is <= threshold, which splits scores equally."""
    kind = wide(kind)
    if kind.kind == "f":
        with np.errstate(over="ignore"):
            near = kind.type(threshold)
        above = near > np.float64(threshold)  # a Python float would be rounded as near was
        return rank(np.asarray(np.nextafter(near, kind.type(-np.inf)) if above else near))
    least, most = np.iinfo(kind).min, np.iinfo(kind).max
    if threshold < least:
        raise _validate.expected("threshold", f"at least {least}, the smallest score of type {kind}", threshold)
    return np.asarray(most if threshold >= most else int(np.floor(np.nan_to_num(threshold))), kind)


def wide(kind: np.dtype) -> np.dtype:
    """Returns the scores' type, or one of 32 bits that holds all its numbers."""
    if kind.itemsize >= 4:
        return kind
    return np.dtype(np.float32 if jnp.issubdtype(kind, jnp.floating) else np.int32)


def rank(numbers: Any) -> Any:
    """Returns integers in the order of the numbers, NumPy's or JAX's, with NaN on top.

    A CPU that flushes subnormals to zero cannot distinguish the smallest floats, but it can distinguish integers.
    """
    if numbers.dtype.kind != "f":
        return numbers
    kind = np.dtype(f"int{8 * numbers.dtype.itemsize}")
    bits, most = numbers.view(kind), np.iinfo(kind).max
    negative = bits >> (8 * kind.itemsize - 1)  # 0 or -1
    order = (bits ^ (negative & most)) - negative
    missing = -((bits & most) > INFINITY[kind.itemsize]).astype(kind)  # 0 or -1
    return (order & ~missing) | (most & missing)
