"""Private alternating least squares: factored models whose user half never leaves the device.

    protocol = alternating(step, noise_multiplier=4.0, features=features, prior=prior)
    model, _, transcript = run(key, protocol, model, memoryless(), buckets, rounds=3)
    transcript.epsilon(delta=1e-5)

Every round devices solve for their users' factors (:mod:`dpaudit.personalization.user_step`), the aggregator releases
one noisy sum of their statistics, and the server solves for the item factors
(:mod:`dpaudit.personalization.items`). The statistics are released in units in which one user moves all of them
together by at most 1,

    (s_A A, s_b b, s_G G),    s_A = sqrt(q_A)/L^2,  s_b = sqrt(q_b)/(Y L),  s_G = sqrt(q_G)/L^2,  q_A + q_b + q_G = 1,

so T rounds of noise multiplier z have mu = sqrt(T)/z, rho = T/(2 z^2) of zero-concentrated DP.

A bias for each item is the special case of one factor whose user's half is pinned: mean 1, precision infinite, L = 1.

Source: Chien et al. 2021, Algorithm 1; Jain et al. 2021 (the billboard model); paper 004, "DP alternating
minimisation".
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh

from dpaudit import check
from dpaudit.personalization import processes, symmetric, user_step
from dpaudit.personalization.boundary import Protocol, Select
from dpaudit.personalization.items import Prior, item_factors
from dpaudit.personalization.layout import Users, everybody
from dpaudit.personalization.processes import Memory, Release
from dpaudit.personalization.user_step import Model, Statistics, Step

CHUNK = 1_024  # devices computed at a time


class Shares(NamedTuple):
    """What part of mu^2 each statistic gets; in all 1.

    Attributes:
      gram: q_A.
      moment: q_b.
      users: q_G, 0 where unobserved items do not count.
    """

    gram: float
    moment: float
    users: float = 0.0


RATINGS = Shares(0.2, 0.8)  # where unobserved items do not count


def alternating(
    step: Step,
    *,
    noise_multiplier: float,
    features: jax.Array,
    prior: Prior,
    shares: Shares = RATINGS,
    name: str = "statistics",
    mesh: Mesh | None = None,
) -> Protocol:
    """A protocol whose state is a :class:`Model`, and whose users are buckets (``tuple[Users, ...]``) as
    :func:`dpaudit.personalization.layout.arranged` makes them.

    Args:
      step: of the devices.
      noise_multiplier: z, > 0, or 0 for none and no privacy.
      features: [m, f], public, from which the server expects factors, along with the logarithm of their popularity
        (0 before that was released); a column of ones for what items have in common.
      prior: of item factors.
      shares: of mu^2.
      name: of the process that releases; those of one transcript have different ones.
      mesh: shares users out, as for :func:`dpaudit.personalization.boundary.each`; buckets that ``arranged(rows=)``
        filled up to a multiple of its size fit it evenly. The noise is the same, sums are but for rounding.

    Returns:
      A :class:`Protocol` for :func:`dpaudit.personalization.boundary.run`.

    Raises:
      InputError: a value out of range.
    """
    check.positive(factor_norm=step.factor_norm)
    check.positive(rating_clip=step.rating_clip)
    check.non_negative(unobserved=step.unobserved)
    _refuse_unsound(prior)
    units = _units(step, shares)
    stream = processes.gaussian(name, noise_multiplier=noise_multiplier)
    stddev = noise_multiplier / units.moment
    items = len(features)
    devices = everybody(
        Select(_asked, _taken), partial(_message, step), partial(_added, items), items=items, chunk=CHUNK, mesh=mesh
    )

    def release(key: jax.Array, total: Statistics, memory: Memory) -> tuple[tuple[Release], Memory]:
        scaled = {name: unit * part for name, unit, part in zip(units._fields, units, total, strict=True) if unit}
        out, memory = stream.release(key, scaled, memory, sensitivity=1.0)
        return (out,), memory

    def update(model: Model, releases: tuple[Release, ...]) -> Model:
        told = {name: value / getattr(units, name) for name, value in releases[0].value.items()}
        rank = model.factors.shape[1]
        gram = symmetric.unpacked(told["gram"], rank)
        if step.unobserved:
            gram = gram + step.unobserved * symmetric.unpacked(told["users"], rank)
        described = jnp.concatenate([features, jnp.log(jnp.maximum(model.popularity, 1.0))[:, None]], axis=1)
        return model._replace(factors=item_factors(gram, told["moment"], described, prior, moment_stddev=stddev))

    return Protocol(lambda model: model, devices, release, update)


def _refuse_unsound(prior: Prior) -> None:
    """Refuses a prior of which the server would make NaN after everything is spent."""
    check.positive(ridge=prior.ridge)
    check.positive(rating_variance=prior.rating_variance)
    if not isinstance(prior.variance, Tracer):
        variance = np.ravel(np.asarray(prior.variance))
        for number in variance[~((variance > 0) & np.isfinite(variance))][:1]:
            raise check.expected("variance", "finite numbers > 0", float(number))


def _units(step: Step, shares: Shares) -> Shares:
    """s_A, s_b and s_G, 0 for what is not released."""
    if abs(sum(shares) - 1) > 1e-6 or min(shares) < 0 or (shares.users > 0) != (step.unobserved > 0):
        wanted = "numbers >= 0 that are 1 in all, users 0 where unobserved items do not count and only there"
        raise check.expected("shares", wanted, tuple(shares))
    length, rating = float(step.factor_norm), float(step.rating_clip)
    moved = Shares(length**2, rating * length, length**2)
    return Shares(*(share**0.5 / most for share, most in zip(shares, moved, strict=True)))


def _asked(user: Users) -> jax.Array:
    return user.items


def _taken(model: Model, items: jax.Array) -> tuple[user_step.Common, user_step.Slice]:
    return user_step.common(model), user_step.taken(model, items)


def _message(step: Step, key: jax.Array, downloaded: Any, user: Users) -> tuple[jax.Array, Statistics]:
    """Of one device: the items that its rows belong to, and the rows."""
    shared, slices = downloaded
    slices, users = jax.tree.map(lambda leaf: leaf[None], (slices, user))
    return user.items, jax.tree.map(lambda leaf: leaf[0], user_step.statistics(step, shared, slices, users))


def _added(items: int, total: Statistics | None, messages: tuple[jax.Array, Statistics]) -> Statistics:
    rows, statistics = messages
    if total is None:
        widths = statistics.gram.shape[-1], statistics.moment.shape[-1]
        total = Statistics(jnp.zeros((items, widths[0])), jnp.zeros((items, widths[1])), jnp.zeros(widths[0]))
    return user_step.added(total, rows, statistics)
