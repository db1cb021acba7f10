"""How popular items are, as noisy counts tell it; what weights and the server's expectations may depend on.

    protocol = counted(items=1_682, noise_multiplier=10.0)

A user of n ratings adds 1/sqrt(n) to each of their items, so that one user moves all counts together by at most 1 and
nobody's ratings have to be dropped.

Source: Krichene et al. 2023 (arXiv 2302.07975), where a user's first k ratings add 1 each.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from dpaudit import _validate
from dpaudit.personalization.als.layout import Users, everybody
from dpaudit.personalization.boundary import processes
from dpaudit.personalization.boundary.aggregator import Protocol, everything
from dpaudit.personalization.boundary.processes import Memory, Release

# How much each of a user's ratings counts, decided on the device from what everybody knows of the items.
#
#     rule = adaptive(0.25)
#     rule(popularity, present)       # [w] each -> weights [w], the sum of whose squares is at most 1
#
# Sensitivities are those of weights with sum_j w_ij^2 <= 1; any other bound is the same as other noise. A rule may look
# at how popular items are, as noisy counts that were released tell it, and at which of a row's places hold a rating;
# never at others' data.
#
# Source: Chien et al. 2021, Section 4 (uniform, tail); Krichene et al. 2023 (arXiv 2302.07975; adaptive).

LEAST = 1e-15  # whose square is a float32 still

Rule = Callable[[jax.Array, jax.Array], jax.Array]


def uniform(popularity: jax.Array, present: jax.Array) -> jax.Array:
    """1/sqrt(n) for each of a user's n ratings."""
    return _of_norm_one(present)


def tail(most: int) -> Rule:
    """1/sqrt(n) for each of the user's ``most`` least popular items, of which there are n; 0 for the others.

    Args:
      most: how many ratings of a user count, >= 1; ties go to the earlier rating.
    """
    most = _validate.at_least(1, most=most)

    def weights(popularity: jax.Array, present: jax.Array) -> jax.Array:
        order = jnp.argsort(jnp.where(present > 0, popularity, jnp.inf), stable=True)
        place = jnp.zeros_like(order).at[order].set(jnp.arange(len(order)))
        return _of_norm_one(jnp.where(place < most, present, 0))

    return weights


def adaptive(power: float) -> Rule:
    """In proportion to popularity^-power: rare items get more of what a user may say than popular ones.

    Args:
      power: >= 0; 0 is :func:`uniform`. A popularity below 1 counts as 1.
    """
    power = _validate.non_negative(power=power)

    def weights(popularity: jax.Array, present: jax.Array) -> jax.Array:
        return _of_norm_one(present * jnp.maximum(popularity, 1.0) ** -power)

    return weights


def _of_norm_one(weights: jax.Array) -> jax.Array:
    """At most 1, whatever rounding does; 0 without ratings, or where popularity makes weights NaN or next to nothing.

    The server that tells how popular items are is not trusted.
    """
    norm = jnp.sqrt(jnp.sum(weights**2, axis=-1, keepdims=True))
    return jnp.where(norm > LEAST, weights / (norm * (1 + 1e-6)), 0.0)


CHUNK = 1_024  # devices computed at a time


def counted(*, items: int, noise_multiplier: float, mesh: Mesh | None = None) -> Protocol:
    """A protocol of one round, whose state is a :class:`Model` and whose users are buckets (``tuple[Users, ...]``).

    Args:
      items: how many there are.
      noise_multiplier: standard deviation of the noise on each count, > 0, or 0 for none and no privacy.
      mesh: shares users out, as for :func:`dpaudit.personalization.boundary.aggregator.each`.

    Returns:
      A :class:`Protocol` for :func:`dpaudit.personalization.boundary.aggregator.run`.

    Raises:
      InputError: a value out of range.
    """
    stream = processes.gaussian("popularity", noise_multiplier=noise_multiplier)

    def release(key: jax.Array, total: jax.Array, memory: Memory) -> tuple[tuple[Release], Memory]:
        out, memory = stream.release(key, total, memory, sensitivity=1.0)
        return (out,), memory

    return Protocol(
        lambda model: (),
        everybody(everything, _message, partial(_added, items), items=items, chunk=CHUNK, mesh=mesh),
        release,
        lambda model, releases: model._replace(popularity=releases[0].value),
    )


def _message(key: jax.Array, downloaded: Any, user: Users) -> tuple[jax.Array, jax.Array]:
    return user.items, uniform(user.items, user.weights)


def _added(items: int, total: jax.Array | None, messages: tuple[jax.Array, jax.Array]) -> jax.Array:
    rows, counts = messages
    return (jnp.zeros(items) if total is None else total).at[rows].add(counts)
