"""How an observer turns a release into a number: larger means world 1.

A distinguisher is fitted to the mechanism and the pair, and returns the score. With a fixed threshold the rule is set
in advance; with None the threshold is chosen on a first split of the trials and the bound is computed on the rest.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from dpaudit import check
from dpaudit.mechanisms.claim import Mechanism
from dpaudit.mechanisms.clipping import norm_and_direction

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


def cosine_direction(x0: jax.Array, x1: jax.Array) -> jax.Array:
    """x1/|x1| - x0/|x0|, [d]: its inner product with a unit vector is the difference of the two cosines.

    A zero vector has cosine 0 with everything. Vectors that point the same way up to float32 rounding give exactly
    zero, so that every trial is the tie that Eq. (3) gives to x0.
    """
    difference = norm_and_direction(x1)[1] - norm_and_direction(x0)[1]
    return jnp.where(norm_and_direction(difference)[0] <= 1e-6, 0.0, difference)


def _fit_cosine(key: jax.Array, mechanism: Mechanism, x0: Any, x1: Any) -> Score:
    del key
    direction = cosine_direction(_flat(x0), _flat(x1))
    _same_size(mechanism, x0, direction, "cosine")

    def score(release: Any) -> jax.Array:
        return jnp.sum(norm_and_direction(_flat(release))[1] * direction)

    return score


def _fit_projection(key: jax.Array, mechanism: Mechanism, x0: Any, x1: Any) -> Score:
    del key
    direction = _flat(x1) - _flat(x0)
    _same_size(mechanism, x0, direction, "projection")

    def score(release: Any) -> jax.Array:
        return jnp.sum(_flat(release) * direction)

    return score


def _fit_likelihood_ratio(key: jax.Array, mechanism: Mechanism, x0: Any, x1: Any) -> Score:
    del key
    log_prob = mechanism.log_prob
    if log_prob is None:
        raise check.expected(
            "distinguisher", "one that needs no density (the mechanism has no log_prob)", "likelihood_ratio"
        )

    def score(release: Any) -> jax.Array:
        return log_prob(release, x1) - log_prob(release, x0)

    return score


def _flat(tree: Any) -> jax.Array:
    """All numbers of a pytree as one vector, float32 or wider."""
    flat = ravel_pytree(tree)[0]
    return flat.astype(jnp.promote_types(flat.dtype, jnp.float32))


def _same_size(mechanism: Mechanism, x: Any, direction: jax.Array, name: str) -> None:
    released = jax.eval_shape(lambda key: _flat(mechanism.apply(key, x)), jax.random.key(0))
    if released.shape != direction.shape:
        wanted = f"one that can read a release of {released.size} numbers for inputs of {direction.size}"
        raise check.expected("distinguisher", wanted, name)


cosine = Distinguisher(_fit_cosine, 0.0, "cosine")
"""Difference of cosines, cos(z, x1) - cos(z, x0), threshold 0: paper 000, Eq. (3); ties go to x0."""

projection = Distinguisher(_fit_projection, None, "projection")
"""<release, x1 - x0>: the likelihood ratio of a Gaussian release; the default where there is no density."""

likelihood_ratio = Distinguisher(_fit_likelihood_ratio, None, "likelihood ratio")
"""log_prob(release, x1) - log_prob(release, x0): the optimal test (Neyman-Pearson); the default with a density."""
