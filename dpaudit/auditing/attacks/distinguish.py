"""Provides the attacks that can be named: each turns a release into a score that distinguishes the two worlds.

A distinguisher is fitted to the mechanism and the pair, and gives the score. If its threshold is a number, the rule is
fixed in advance: guess world 1 where the score is larger; both this event and its opposite are tested. If the
threshold is None, it is chosen with its side on a first split of the trials, and the bound is computed on the rest. A
score that is NaN counts as larger than any number.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from dpaudit import _validate
from dpaudit._engine import programs
from dpaudit._engine.game import of_trials, trial_key
from dpaudit.auditing.attacks import features
from dpaudit.auditing.attacks.base import Distinguisher, Score, flat, release_reader
from dpaudit.auditing.attacks.learned import learned
from dpaudit.mechanisms.claim import Mechanism
from dpaudit.mechanisms.clipping import norm_and_direction

__all__ = [
    "Distinguisher",
    "Score",
    "cosine",
    "cosine_direction",
    "learned",
    "likelihood_ratio",
    "lowest_bits",
    "moments",
    "projection",
]

PILOT = 1000  # releases per world for estimating a direction
MOMENTS_PILOT = 500  # releases per world for estimating means and variances; no bound counts them
LARGEST_LOSS = 1e3  # the most that one number may add to a score, in nats


def cosine_direction(x0: jax.Array, x1: jax.Array) -> jax.Array:
    """Returns x1/|x1| - x0/|x0|, [d], whose inner product with a unit vector is the difference of the two cosines.

    A zero vector has cosine 0 with everything. Vectors that are parallel up to float32 rounding give exactly zero, so
    that every trial is a tie, which Eq. (3) decides for x0.
    """
    difference = norm_and_direction(x1)[1] - norm_and_direction(x0)[1]
    return jnp.where(norm_and_direction(difference)[0] <= 1e-6, 0.0, difference)


def _fit_cosine(key: jax.Array, mechanism: Mechanism, x0: Any, x1: Any) -> Score:
    del key
    if flat(x0).size != flat(x1).size:
        raise _validate.expected("x1", f"{flat(x0).size} numbers, as x0", flat(x1).size)
    direction = cosine_direction(flat(x0), flat(x1))
    if _release_size(mechanism, x0) != direction.size:
        wanted = (
            f"one that can read a release of {_release_size(mechanism, x0)} numbers for inputs of {direction.size}"
        )
        raise _validate.expected("distinguisher", wanted, "cosine")

    def score(release: Any) -> jax.Array:
        return jnp.sum(norm_and_direction(flat(release))[1] * direction)

    return score


def _fit_projection(key: jax.Array, mechanism: Mechanism, x0: Any, x1: Any) -> Score:
    size, read = _release_size(mechanism, x0), release_reader(key, mechanism, x0)
    if flat(x0).size == flat(x1).size == size:
        direction = jnp.asarray(difference(x0, x1))
    else:
        direction = _pilot_direction(key, mechanism, x0, x1, read)

    def score(release: Any) -> jax.Array:
        return along(read(release), direction)

    return score


def difference(x0: Any, x1: Any) -> Any:
    """Returns x1 - x0 of two inputs of one size, [d], exact for integers of one type.

    NumPy computes it, which compiles nothing; JAX where the inputs are traced.
    """
    traced = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((x0, x1)))
    xp, array = (jnp, jnp.asarray) if traced else (np, features.array)
    one, other = ([array(leaf) for leaf in jax.tree.leaves(x)] for x in (x0, x1))
    if jax.tree.structure(x0) == jax.tree.structure(x1) and [a.dtype for a in one] == [b.dtype for b in other]:
        return features.View(xp, other, one).numbers - features.View(xp, one, one).numbers
    return xp.asarray(flat(x1) - flat(x0))


def along(vector: jax.Array, direction: jax.Array) -> jax.Array:
    """Returns the inner product, in which coordinates of direction 0 count as 0 even where they are not finite."""
    return jnp.sum(jnp.where(direction == 0, 0, vector * direction))


def _fit_likelihood_ratio(key: jax.Array, mechanism: Mechanism, x0: Any, x1: Any) -> Score:
    del key
    log_prob = mechanism.log_prob
    if log_prob is None:
        raise _validate.expected(
            "distinguisher", "one that needs no density (the mechanism has no log_prob)", "likelihood_ratio"
        )

    def score(release: Any) -> jax.Array:
        return log_prob(release, x1) - log_prob(release, x0)

    return score


def _fit_lowest_bits(key: jax.Array, mechanism: Mechanism, x0: Any, x1: Any) -> Score:
    del key, mechanism, x0, x1

    def score(release: Any) -> jax.Array:
        numbers = flat(release)
        return jnp.min(features.lowest_bit(jnp, numbers))

    return score


def _fit_moments(key: jax.Array, mechanism: Mechanism, x0: Any, x1: Any) -> Score:
    def release(key: jax.Array, x: Any) -> jax.Array:
        return flat(mechanism.apply(key, x))

    @programs.shared  # one program for both worlds, of which the inputs are data
    def pilot(key: jax.Array, worlds: Any) -> tuple[jax.Array, jax.Array]:
        keys = jax.random.split(trial_key(key), MOMENTS_PILOT)  # the same in both worlds: what they share cancels
        releases = jax.vmap(jax.vmap(release, (0, None)), (None, 0))(keys, worlds)
        means, variances = releases.mean(axis=1), releases.var(axis=1)
        least = 1e-6 * (variances.sum(axis=0) + (means[1] - means[0]) ** 2) + jnp.finfo(means.dtype).tiny
        return means, jnp.maximum(variances, least)

    (mean0, mean1), (variance0, variance1) = pilot(key, jax.tree.map(lambda *leaves: jnp.stack(leaves), x0, x1))

    def score(release: Any) -> jax.Array:
        z = flat(release)
        losses = ((z - mean0) ** 2 / variance0 - (z - mean1) ** 2 / variance1 + jnp.log(variance0 / variance1)) / 2
        return jnp.sum(jnp.clip(losses, -LARGEST_LOSS, LARGEST_LOSS))

    return score


def _release_size(mechanism: Mechanism, x: Any) -> int:
    return jax.eval_shape(lambda key: flat(mechanism.apply(key, x)), of_trials()).size


def _pilot_direction(
    key: jax.Array, mechanism: Mechanism, x0: Any, x1: Any, read: Callable[[Any], jax.Array]
) -> jax.Array:
    """Estimates the difference of the mean releases of x1 and x0, from ``PILOT`` releases each that no bound will
    count. Numbers that are not finite count as 0."""

    key = trial_key(key)

    def add(i: jax.Array, totals: jax.Array) -> jax.Array:
        own = jax.random.fold_in(key, i)
        numbers = jnp.stack([read(mechanism.apply(own, x)) for x in (x0, x1)])
        return totals + jnp.where(jnp.isfinite(numbers), numbers, 0)

    @programs.shared
    def means() -> jax.Array:
        start = jnp.zeros_like(jax.eval_shape(add, 0, jnp.zeros((2, 1))))
        total0, total1 = jax.lax.fori_loop(0, PILOT, add, start)
        return (total1 - total0) / PILOT  # exactly 0 where the totals are the same

    return means()


cosine = Distinguisher(_fit_cosine, 0.0, "cosine")
"""Difference of cosines, cos(z, x1) - cos(z, x0), threshold 0: paper 000, Eq. (3); ties go to x0."""

projection = Distinguisher(_fit_projection, None, "projection")
"""<release, x1 - x0>, of either sign: the likelihood ratio of a Gaussian release; the default where there is no
density. For a release that is not of its input's size, the difference of the mean releases of a pilot takes the place
of x1 - x0."""

lowest_bits = Distinguisher(_fit_lowest_bits, None, "lowest bits")
"""The exponent of the last binary digit of any number of the release: finds floating-point noise that leaves gaps
(Mironov 2012), as almost every mechanism does that adds a float to a float. The portfolio does not read digits that
low; ``attacks=(distinguish.lowest_bits,)`` adds this attack to it."""

likelihood_ratio = Distinguisher(_fit_likelihood_ratio, None, "likelihood ratio")
"""log_prob(release, x1) - log_prob(release, x0): the optimal test (Neyman-Pearson); the default with a density."""

moments = Distinguisher(_fit_moments, None, "moments")
"""The log likelihood ratio of releases whose numbers are independent and normal, with means and variances estimated
from a pilot: finds shifts, also of releases that have not their input's size, and leaks in a variance."""
