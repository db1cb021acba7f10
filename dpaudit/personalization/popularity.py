"""How popular items are, as noisy counts tell it; what weights and the server's expectations may depend on.

    protocol = counted(items=1_682, noise_multiplier=10.0)

A user of n ratings adds 1/sqrt(n) to each of their items, so that one user moves all counts together by at most 1 and
nobody's ratings have to be dropped.

Source: Krichene et al. 2023 (arXiv 2302.07975), where a user's first k ratings add 1 each.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from dpaudit.personalization import processes, weights
from dpaudit.personalization.boundary import Protocol, everything
from dpaudit.personalization.layout import Users, everybody
from dpaudit.personalization.processes import Memory, Release

CHUNK = 1_024  # devices computed at a time


def counted(*, items: int, noise_multiplier: float, mesh: Mesh | None = None) -> Protocol:
    """A protocol of one round, whose state is a :class:`Model` and whose users are buckets (``tuple[Users, ...]``).

    Args:
      items: how many there are.
      noise_multiplier: standard deviation of the noise on each count, > 0, or 0 for none and no privacy.
      mesh: shares users out, as for :func:`dpaudit.personalization.boundary.each`.

    Returns:
      A :class:`Protocol` for :func:`dpaudit.personalization.boundary.run`.

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
    return user.items, weights.uniform(user.items, user.weights)


def _added(items: int, total: jax.Array | None, messages: tuple[jax.Array, jax.Array]) -> jax.Array:
    rows, counts = messages
    return (jnp.zeros(items) if total is None else total).at[rows].add(counts)
