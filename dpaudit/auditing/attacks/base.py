"""Defines the types shared by all distinguishers, and reads a release as one vector of numbers."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from dpaudit._engine.game import trial_key
from dpaudit.mechanisms.claim import Mechanism

Score = Callable[[Any], jax.Array]


class Distinguisher(NamedTuple):
    """An attack: what it computes from a release, and where it draws the line.

    Attributes:
      fit: ``fit(key, mechanism, x0, x1) -> score`` with ``score(release) -> float``, jittable.
      threshold: guess world 1 where score > threshold; None to have it chosen on a first split.
      name: for tables.
    """

    fit: Callable[[jax.Array, Mechanism, Any, Any], Score]
    threshold: float | None
    name: str = "own distinguisher"


def flat(tree: Any) -> jax.Array:
    """All numbers of a pytree as one vector, float32 or wider."""
    vector = ravel_pytree(tree)[0]
    return vector.astype(jnp.promote_types(vector.dtype, jnp.float32))


def reader(reference: Any) -> Callable[[Any], jax.Array]:
    """:func:`flat` for trees like ``reference``, but for whole numbers of 32 bits and more, which no float32 holds.

    These are read as their difference from the reference, which is taken as whole numbers: what varies is small where
    it matters, however far from 0 it lies. float64 holds those of 64 bits.

    Args:
      reference: an example of what is to be read.
    """
    if not any(map(_wide, jax.tree.leaves(reference))):
        return flat

    def less(leaf: Any, at: Any) -> jax.Array:
        leaf = jnp.asarray(leaf)
        if not _wide(leaf):
            return leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))
        bits = 8 * leaf.dtype.itemsize  # a difference modulo 2^bits, read as a signed number
        difference = jax.lax.bitcast_convert_type(leaf - jnp.asarray(at, leaf.dtype), jnp.dtype(f"int{bits}"))
        return difference.astype(jnp.float32 if bits == 32 else jnp.float64)

    return lambda tree: flat(jax.tree.map(less, tree, reference))


def release_reader(key: jax.Array, mechanism: Mechanism, x: Any) -> Callable[[Any], jax.Array]:
    """The :func:`reader` of a mechanism's releases; their reference, where they need one, is a release of ``x``."""
    key = trial_key(key)  # of the kind that trials have
    shapes = jax.eval_shape(lambda: mechanism.apply(key, x))
    if not any(map(_wide, jax.tree.leaves(shapes))):
        return flat
    return reader(jax.jit(mechanism.apply)(key, x))


def _wide(leaf: Any) -> bool:
    kind = leaf.dtype if hasattr(leaf, "dtype") else jnp.asarray(leaf).dtype
    return bool(jnp.issubdtype(kind, jnp.integer)) and kind.itemsize >= 4
