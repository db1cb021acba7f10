"""Puts a release into another form: what anyone could undo, so neither the loss nor the verdict should change."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpaudit import Case, Mechanism

FAR = 2**20


def as_float(leaf: jax.Array) -> jax.Array:
    return leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))


def signed(leaf: jax.Array) -> jax.Array:
    """Numbers that can be negated and moved: floats of at least 32 bits, whole numbers of 32."""
    return as_float(leaf) if jnp.issubdtype(leaf.dtype, jnp.inexact) else leaf.astype(jnp.int32)


def permuted(leaf: jax.Array) -> jax.Array:
    """Returns the entries in another order, the same at every call."""
    order = np.random.default_rng(25).permutation(leaf.size)
    return leaf.reshape(-1)[order].reshape(leaf.shape)


DISGUISES: dict[str, Callable[[jax.Array], jax.Array]] = {
    "negated": lambda leaf: -signed(leaf),
    "permuted": permuted,
    "shifted": lambda leaf: signed(leaf) + FAR,  # a float32 there is a multiple of 1/8
    "scaled": lambda leaf: as_float(leaf) / FAR,
}


def disguised(case: Case, how: str) -> Case:
    """Returns the case whose releases are given another form, without a density: that was of the old form.

    Args:
      case: any.
      how: a key of DISGUISES.
    """
    mechanism = case.mechanism if isinstance(case.mechanism, Mechanism) else Mechanism(case.mechanism)
    change = DISGUISES[how]

    def apply(key: jax.Array, x: Any) -> Any:
        return jax.tree.map(lambda leaf: change(jnp.asarray(leaf)), mechanism.apply(key, x))

    return case._replace(mechanism=mechanism._replace(apply=apply, log_prob=None))
