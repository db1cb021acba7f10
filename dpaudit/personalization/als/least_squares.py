"""Defines private alternating least squares as protocols: factored models whose user factors never leave the devices.

    model, _, popular = run(key, counted(items=1_682, noise_multiplier=10.0), model, memoryless(), buckets, rounds=1)
    protocol = alternating(step, noise_multiplier=4.0, features=features, prior=prior)
    model, _, transcript = run(key, protocol, model, memoryless(), buckets, rounds=3)
    transcript.epsilon(delta=1e-5)

In every round of :func:`alternating` the devices solve for their users' factors, the aggregator releases one noisy sum
of their statistics, and the server solves for the item factors (:mod:`dpaudit.personalization.als.steps`). The
statistics are released in units in which one user moves all of them together by at most 1,

    (s_A A, s_b b, s_G G),    s_A = sqrt(q_A)/L^2,  s_b = sqrt(q_b)/(Y L),  s_G = sqrt(q_G)/L^2,  q_A + q_b + q_G = 1,

so T rounds of noise multiplier z have mu = sqrt(T)/z, or rho = T/(2 z^2) of zero-concentrated DP.

A bias for each item is the special case of one factor whose user part is pinned: mean 1, precision infinite, L = 1.

The single round of :func:`counted` releases the popularity of items, on which weights and features may depend. A user
with n ratings adds 1/sqrt(n) to each of their items, so that one user moves all counts together by at most 1 and no
ratings have to be dropped.

Source: Chien et al. 2021, "Private Alternating Least Squares", Algorithm 1; Jain et al. 2021 (the billboard model);
Krichene et al. 2023, arXiv 2302.07975 (counts; there a user's first k ratings add 1 each); paper 004, "DP alternating
minimisation".
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh

from dpaudit import _validate
from dpaudit.personalization.als import solve, steps
from dpaudit.personalization.als.layout import Users, everybody
from dpaudit.personalization.als.steps import Model, Prior, Statistics, Step, item_factors, uniform
from dpaudit.personalization.boundary import processes
from dpaudit.personalization.boundary.processes import Memory, Release
from dpaudit.personalization.boundary.protocol import Protocol, Select, everything

CHUNK = 1_024  # devices computed at a time


class Shares(NamedTuple):
    """The share of mu^2 that each statistic gets; they add up to 1.

    Attributes:
      gram: q_A.
      moment: q_b.
      users: q_G, 0 if unobserved items do not count.
    """

    gram: float
    moment: float
    users: float = 0.0


RATINGS = Shares(0.2, 0.8)  # for ratings, where unobserved items do not count


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
    """Makes the protocol of alternating minimisation.

    With unobserved items and public features together its item step is an approximation, so that rounds need not lower
    the objective (:mod:`dpaudit.personalization.als.steps`).

    Its state is a :class:`~dpaudit.personalization.als.steps.Model`. Its users are buckets (a tuple of ``Users``) as
    :func:`dpaudit.personalization.als.layout.arranged` makes them.

    Args:
      step: of the devices.
      noise_multiplier: z, > 0, or 0 for no noise and no privacy.
      features: [m, f], public, from which the server predicts factors, with the logarithm of items' popularity (0
        until it is released) as another feature; a column of ones gives items a common part.
      prior: of item factors.
      shares: of mu^2.
      name: the name of the process that releases; processes in one transcript need different names.
      mesh: a mesh whose devices share the users, as for :func:`dpaudit.personalization.boundary.protocol.each`, evenly
        if ``arranged(rows=)`` padded the buckets to a multiple of its size. The noise is the same, and sums are equal
        up to rounding.

    Returns:
      A :class:`Protocol` for :func:`dpaudit.personalization.boundary.aggregator.run`.

    Raises:
      InputError: a value out of range.
    """
    _validate.positive(factor_norm=step.factor_norm)
    _validate.positive(rating_clip=step.rating_clip)
    _validate.non_negative(unobserved=step.unobserved)
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
        gram = solve.unpacked(told["gram"], rank)
        if step.unobserved:
            gram = gram + step.unobserved * solve.unpacked(told["users"], rank)
        described = jnp.concatenate([features, jnp.log(jnp.maximum(model.popularity, 1.0))[:, None]], axis=1)
        found = item_factors(gram, told["moment"], described, prior, moment_stddev=stddev)
        return model._replace(factors=found.astype(model.factors.dtype))

    return Protocol(lambda model: model, devices, release, update)


def counted(*, items: int, noise_multiplier: float, mesh: Mesh | None = None) -> Protocol:
    """Makes the protocol of one round that releases items' popularity, with the users of :func:`alternating`.

    Args:
      items: how many there are.
      noise_multiplier: standard deviation of the noise on each count, > 0, or 0 for no noise and no privacy.
      mesh: a mesh whose devices share the users, as for :func:`dpaudit.personalization.boundary.protocol.each`.

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
        everybody(everything, _count, partial(_counts_added, items), items=items, chunk=CHUNK, mesh=mesh),
        release,
        lambda model, releases: model._replace(popularity=releases[0].value.astype(model.popularity.dtype)),
    )


def _refuse_unsound(prior: Prior) -> None:
    """Refuses a prior from which the server would compute NaN after the budget is spent."""
    _validate.positive(ridge=prior.ridge)
    _validate.positive(rating_variance=prior.rating_variance)
    if not isinstance(prior.variance, Tracer):
        variance = np.ravel(np.asarray(prior.variance))
        for number in variance[~((variance > 0) & np.isfinite(variance))][:1]:
            raise _validate.expected("variance", "finite numbers > 0", float(number))


def _units(step: Step, shares: Shares) -> Shares:
    """Returns s_A, s_b and s_G, 0 for what is not released."""
    if abs(sum(shares) - 1) > 1e-6 or min(shares) < 0 or (shares.users > 0) != (step.unobserved > 0):
        wanted = "numbers >= 0 that add up to 1, users > 0 exactly if unobserved items count"
        raise _validate.expected("shares", wanted, tuple(shares))
    length, rating = float(step.factor_norm), float(step.rating_clip)
    moved = Shares(length**2, rating * length, length**2)
    return Shares(*(share**0.5 / most for share, most in zip(shares, moved, strict=True)))


def _asked(user: Users) -> jax.Array:
    return user.items


def _taken(model: Model, items: jax.Array) -> tuple[steps.Common, steps.Slice]:
    return steps.common(model), steps.taken(model, items)


def _message(step: Step, key: jax.Array, downloaded: Any, user: Users) -> tuple[jax.Array, Statistics]:
    """Computes one device's message: the items that its rows belong to, and the rows.

    Mapped over users, it calls :func:`~dpaudit.personalization.als.steps.statistics` once for all of them.
    """

    @jax.custom_batching.custom_vmap
    def of_one(shared: steps.Common, slices: steps.Slice, user: Users) -> Statistics:
        slices, users = jax.tree.map(lambda leaf: leaf[None], (slices, user))
        return jax.tree.map(lambda leaf: leaf[0], steps.statistics(step, shared, slices, users))

    @of_one.def_vmap
    def _(count: int, mapped: Any, *given: Any) -> tuple[Statistics, Statistics]:
        if any(jax.tree.leaves(mapped[0])) or not all(jax.tree.leaves(mapped[1:])):
            raise NotImplementedError("devices are mapped over together, with one model for all")
        sent = steps.statistics(step, *given)
        return sent, jax.tree.map(lambda leaf: True, sent)

    return user.items, of_one(*downloaded, user)


def _added(items: int, total: Statistics | None, messages: tuple[jax.Array, Statistics]) -> Statistics:
    rows, statistics = messages
    if total is None:
        widths = statistics.gram.shape[-1], statistics.moment.shape[-1]
        total = Statistics(jnp.zeros((items, widths[0])), jnp.zeros((items, widths[1])), jnp.zeros(widths[0]))
    return steps.added(total, rows, statistics)


def _count(key: jax.Array, downloaded: Any, user: Users) -> tuple[jax.Array, jax.Array]:
    return user.items, uniform(user.items, user.weights)


def _counts_added(items: int, total: jax.Array | None, messages: tuple[jax.Array, jax.Array]) -> jax.Array:
    rows, counts = messages
    return (jnp.zeros(items) if total is None else total).at[rows].add(counts)
