"""Audits a run by the likelihood ratio of its whole transcript: does one more user take part, given all the others?

    made = partial(alternating, step, features=features, prior=prior)
    recipe = Recipe(made, noise_multiplier, model, memory, buckets, extreme(item=0), rounds=5)
    dpaudit.audit(whole(recipe, delta=1e-5), ABSENT, PRESENT, key=key, trials=200_000)

From the transcript the adversary recomputes the server's state before every round, and the noiseless releases of that
round: s_t for the others alone, s_t + Delta_t with the canary. If the noise on every number of a round's releases x_t
is N(0, z^2),

    y_t = <x_t - s_t, Delta_t>/|Delta_t|

is N(0, z^2) without the canary and N(|Delta_t|, z^2) with it, whatever was released before. The sum over rounds of
(y_t - |Delta_t|/2) |Delta_t|/z^2 is therefore the optimal statistic. A canary that attains the sensitivity, 1, in each
of T rounds has mu = sqrt(T)/z, the whole accounted mu.

It is apart from ``dpaudit.audit(protocol, ...)`` because alternating least squares releases several statistics in
units of its own: their likelihood needs the same protocol without noise, ``Recipe.make``, which a protocol lacks.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from dpaudit import _validate
from dpaudit.audits.training_canary import ABSENT, PRESENT
from dpaudit.mechanisms.claim import Claim, Mechanism
from dpaudit.personalization.als.layout import Users
from dpaudit.personalization.boundary.aggregator import run
from dpaudit.personalization.boundary.protocol import Protocol
from dpaudit.personalization.boundary.transcript import Transcript, without_values

__all__ = ["ABSENT", "PRESENT", "Recipe", "Seen", "extreme", "whole"]

LONGEST = 1e9  # a rating beyond every clip norm, with a finite square


class Recipe(NamedTuple):
    """A run to audit, and the user that it should hide.

    Attributes:
      make: ``make(noise_multiplier=z) -> Protocol``, such as
        :func:`dpaudit.personalization.als.least_squares.alternating` with its settings bound by ``functools.partial``:
        with z > 0 the audited protocol; with 0 the same without noise, by which the adversary computes what the noise
        was added to. Its devices draw no randomness.
      noise_multiplier: z > 0, the standard deviation of the noise on every released number.
      state: the server's initial state.
      memory: of the aggregator.
      users: the others, in buckets.
      canary: a bucket with one additional user.
      rounds: T >= 1.
    """

    make: Callable[..., Protocol]
    noise_multiplier: float
    state: Any
    memory: Any
    users: tuple[Users, ...]
    canary: Users
    rounds: int


class Seen(NamedTuple):
    """All that a transcript reveals about the canary.

    Attributes:
      along: y, [T].
      reach: |Delta|, [T].
    """

    along: jax.Array
    reach: jax.Array


def extreme(*, item: int) -> Users:
    """Makes the user who moves alternating minimisation furthest, with one item and an impossibly large rating.

    The user's factor and the residual of the rating are both as long as clipping allows, and the only weight is 1.

    Args:
      item: an item whose factor is nonzero in every round.

    Raises:
      InputError: a negative item.
    """
    one = jnp.ones((1, 1))
    return Users(
        jnp.full((1, 1), _validate.at_least(0, item=item), jnp.int32), LONGEST * one, one, jnp.full(1, -1, jnp.int32)
    )


def whole(recipe: Recipe, *, delta: float | None = None) -> Mechanism:
    """Makes a run a mechanism of "is the canary there?", for an adversary who reads the whole transcript.

    Args:
      recipe: of the run.
      delta: in (0, 1), of the claim; None claims the whole accounted curve, against which fewer trials suffice to
        show a fault.

    Returns:
      A :class:`dpaudit.Mechanism` for the inputs ``ABSENT`` and ``PRESENT``: releases :class:`Seen`; with the log
      density that noise of deviation z gives them, and the accounting of the transcript as its claim ("add_remove").

    Raises:
      InputError: a value out of range; a run whose accounted epsilon is infinite.

    Source: the likelihood ratio of Gaussian releases (Neyman and Pearson).
    """
    z = _validate.positive(noise_multiplier=recipe.noise_multiplier)
    protocol, silent = recipe.make(noise_multiplier=z), recipe.make(noise_multiplier=0.0)

    def world(present: Any) -> tuple[Users, ...]:
        return *recipe.users, recipe.canary._replace(weights=recipe.canary.weights * present)

    def noiseless(state: Any, users: tuple[Users, ...]) -> jax.Array:
        total = silent.devices(jax.random.key(0), silent.broadcast(state), users)
        return _numbers(silent.release(jax.random.key(0), total, recipe.memory)[0])

    def looked(state: Any, releases: Any) -> tuple[Any, Seen]:
        others, moved = noiseless(state, recipe.users), noiseless(state, (recipe.canary,))
        reach = jnp.linalg.norm(moved)
        direction = moved / jnp.maximum(reach, jnp.finfo(reach.dtype).tiny)
        return protocol.update(state, releases), Seen((_numbers(releases) - others) @ direction, reach)

    def played(key: jax.Array, present: Any) -> Transcript:
        return run(key, protocol, recipe.state, recipe.memory, world(present), recipe.rounds)[2]

    def apply(key: jax.Array, present: Any) -> Seen:
        return jax.lax.scan(looked, recipe.state, played(key, present).parts[0])[1]

    def log_prob(seen: Seen, present: Any) -> jax.Array:
        return -0.5 * jnp.sum(((seen.along - present * seen.reach) / z) ** 2)

    accounted = without_values(lambda key: played(key, PRESENT), jax.random.key(0))
    claim = accounted.claim() if delta is None else Claim(accounted.epsilon(delta), delta, "add_remove")
    return Mechanism(apply, claim, log_prob)


def _numbers(releases: Any) -> jax.Array:
    """Returns all numbers that a round released, [n]."""
    return ravel_pytree([release.value for release in releases])[0]
