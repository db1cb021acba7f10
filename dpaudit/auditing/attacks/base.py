"""Defines the types shared by all distinguishers, and reads a release as one vector of numbers."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from dpaudit._engine.game import of_trials, trial_key
from dpaudit.mechanisms.claim import Mechanism

Score = Callable[[Any], jax.Array]


class Distinguisher(NamedTuple):
    """An attack: the score that it computes from a release, and its threshold.

    Attributes:
      fit: ``fit(key, mechanism, x0, x1) -> score`` with ``score(release) -> float``, jittable.
      threshold: guess world 1 where score > threshold; None to have it chosen on a first split.
      name: for tables.
    """

    fit: Callable[[jax.Array, Mechanism, Any, Any], Score]
    threshold: float | None
    name: str = "own distinguisher"


def flat(tree: Any) -> jax.Array:
    """Returns all numbers of a pytree as one vector, float32 or wider."""
    vector = ravel_pytree(tree)[0]
    return vector.astype(jnp.promote_types(vector.dtype, jnp.float32))


def reader(reference: Any) -> Callable[[Any], jax.Array]:
    """Returns :func:`flat` for trees like ``reference``, adapted to integers of 32 bits and more, which float32 cannot
    hold.

    Such integers are read as their integer difference from the reference, which is small wherever precision matters.
    Those of 64 bits are read in float64.

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
    """Returns the :func:`reader` of a mechanism's releases, with a release of ``x`` as the reference where one is
    needed."""
    shapes = jax.eval_shape(lambda key: mechanism.apply(key, x), of_trials())
    if not any(map(_wide, jax.tree.leaves(shapes))):
        return flat
    return reader(jax.jit(mechanism.apply)(trial_key(key), x))


def _wide(leaf: Any) -> bool:
    kind = leaf.dtype if hasattr(leaf, "dtype") else jnp.asarray(leaf).dtype
    return bool(jnp.issubdtype(kind, jnp.integer)) and kind.itemsize >= 4
