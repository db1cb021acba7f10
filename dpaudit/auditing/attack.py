"""What every distinguisher is: types, and the one way to read a release as numbers."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

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
