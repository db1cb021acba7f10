"""Pytrees as bytes whose number depends on the shapes alone."""

import math
from typing import Any

import jax
import numpy as np

from dpaudit import check


def length(like: Any) -> int:
    """Bytes of :func:`pack` for a pytree of these shapes and types."""
    return sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(like))


def pack(tree: Any, like: Any) -> bytes:
    """The leaves' bytes, one after the other.

    Args:
      tree: pytree of arrays.
      like: pytree of ``jax.ShapeDtypeStruct``: what the receiver expects.

    Raises:
      InputError: another structure, shape or type than ``like``; the message names no contents.
    """
    leaves, structure = jax.tree.flatten(tree)
    arrays = [np.asarray(leaf) for leaf in leaves]
    found, wanted = ([_kind(leaf) for leaf in several] for several in (arrays, jax.tree.leaves(like)))
    if found != wanted or structure != jax.tree.structure(like):
        raise check.expected("message", f"{wanted} in {jax.tree.structure(like)}", f"{found} in {structure}")
    return b"".join(array.tobytes() for array in arrays)


def unpack(data: bytes, like: Any) -> Any:
    """What :func:`pack` packed.

    Raises:
      InputError: another number of bytes.
    """
    if len(data) != length(like):
        raise check.expected("message", f"{length(like)} bytes", f"{len(data)} bytes")
    leaves, start = [], 0
    for leaf in jax.tree.leaves(like):
        array = np.frombuffer(data, leaf.dtype, math.prod(leaf.shape), start).reshape(leaf.shape)
        leaves.append(array)
        start += array.nbytes
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _kind(leaf: Any) -> str:
    return f"{np.dtype(leaf.dtype).name}{list(leaf.shape)}"
