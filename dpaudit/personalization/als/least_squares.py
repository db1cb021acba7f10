"""Private alternating least squares: factored models whose user half never leaves the device.

    protocol = alternating(step, noise_multiplier=4.0, features=features, prior=prior)
    model, _, transcript = run(key, protocol, model, memoryless(), buckets, rounds=3)
    transcript.epsilon(delta=1e-5)

Every round devices solve for their users' factors (:mod:`dpaudit.personalization.als.user_step`), the aggregator releases
one noisy sum of their statistics, and the server solves for the item factors
(:mod:`dpaudit.personalization.als.least_squares`). The statistics are released in units in which one user moves all of them
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

from dpaudit import _validate
from dpaudit.personalization.als import solve, user_step
from dpaudit.personalization.als.layout import Users, everybody
from dpaudit.personalization.als.solve import spectrum
from dpaudit.personalization.als.user_step import Model, Statistics, Step
from dpaudit.personalization.boundary import processes
from dpaudit.personalization.boundary.aggregator import Protocol, Select
from dpaudit.personalization.boundary.processes import Memory, Release

# The server's half of alternating minimisation: item factors from noisy statistics and public features.
#
# The devices' ratings of item j say b_j = A_j v_j + noise, A_j = sum_i w_ij u_i u_i', b_j = sum_i w_ij y_ij u_i: to a
# server that knows no more than the released A_j and b_j, a linear regression with noise of covariance
#
#     s_w A_j + s_b^2 I,
#
# s_w the ratings' own variance times a typical weight, s_b the standard deviation of the release's noise. With
# v_j ~ N(W' x_j, diag(lambda)) beforehand, x_j the public features of item j, the most likely W and then every v_j have
# closed forms. Whatever is done with released statistics costs no privacy, so nothing here is approximate.
#
# Source: Chien et al. 2021, Algorithm 1 (the item step, projection); Krichene et al. 2023 (public features).


class Prior(NamedTuple):
    """What is believed of item factors before anything is released.

    Attributes:
      variance: lambda, [r], > 0: how far a factor lies from what the features say.
      ridge: of the map W, > 0: the inverse variance of its entries.
      rating_variance: s_w, > 0.
    """

    variance: jax.Array
    ridge: float
    rating_variance: float


def item_factors(
    gram: jax.Array, moment: jax.Array, features: jax.Array, prior: Prior, *, moment_stddev: jax.Array | float
) -> jax.Array:
    """The most likely item factors [m, r].

    Minimises, over V and W at once,

        sum_j (b_j - A_j v_j)' (s_w A_j + s_b^2 I)^-1 (b_j - A_j v_j)
            + (v_j - W' x_j)' diag(lambda)^-1 (v_j - W' x_j)  +  ridge |W|_F^2

    with A_j projected to the nearest positive semi-definite matrix. Without noise and features, v_j is the ridge
    regression (A_j + s_w diag(lambda)^-1)^-1 b_j.

    Args:
      gram: A, [m, r, r], symmetric, as released.
      moment: b, [m, r], as released.
      features: x, [m, f]; a column of ones lets all items have a common factor, [m, 0] has all start at 0.
      prior: of the factors.
      moment_stddev: s_b, >= 0, of the noise on each entry of ``moment``.
    """
    variance = jnp.asarray(prior.variance)
    values, vectors = spectrum(gram)
    noise = prior.rating_variance * values + moment_stddev**2
    informed = values > 0
    gain = jnp.where(informed, values / jnp.where(informed, noise, 1.0), 0.0)  # A (s_w A + s_b^2)^-1, eigenvalues
    precision = jnp.einsum("jab,jb,jcb->jac", vectors, gain * values, vectors)
    evidence = jnp.einsum("jab,jb,jcb,jc->ja", vectors, gain, vectors, moment)
    covariance = jnp.linalg.inv(precision + jnp.diag(1 / variance))
    weights = _map(precision, evidence, covariance, features, variance, prior.ridge)
    expected = features @ weights
    return jnp.einsum("jab,jb->ja", covariance, evidence + expected / variance)


def _map(
    precision: jax.Array,
    evidence: jax.Array,
    covariance: jax.Array,
    features: jax.Array,
    variance: jax.Array,
    ridge: float,
) -> jax.Array:
    """W [f, r]: the regression of all items on their features, each item's factor integrated out."""
    f, r = features.shape[1], len(variance)
    if not f:
        return jnp.zeros((0, r))
    # what an item says of its expected factor: (Lambda + precision^-1)^-1 = Lambda^-1 covariance precision
    seen = jnp.einsum("a,jab,jbc->jac", 1 / variance, covariance, precision)
    said = jnp.einsum("a,jab,jb->ja", 1 / variance, covariance, evidence)
    matrix = jnp.einsum("jp,jab,jq->paqb", features, seen, features).reshape(f * r, f * r)
    rows = jnp.einsum("jp,ja->pa", features, said).reshape(f * r)
    return jnp.linalg.solve(matrix + ridge * jnp.eye(f * r), rows).reshape(f, r)


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
    :func:`dpaudit.personalization.als.layout.arranged` makes them.

    Args:
      step: of the devices.
      noise_multiplier: z, > 0, or 0 for none and no privacy.
      features: [m, f], public, from which the server expects factors, along with the logarithm of their popularity
        (0 before that was released); a column of ones for what items have in common.
      prior: of item factors.
      shares: of mu^2.
      name: of the process that releases; those of one transcript have different ones.
      mesh: shares users out, as for :func:`dpaudit.personalization.boundary.aggregator.each`; buckets that ``arranged(rows=)``
        filled up to a multiple of its size fit it evenly. The noise is the same, sums are but for rounding.

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
        return model._replace(factors=item_factors(gram, told["moment"], described, prior, moment_stddev=stddev))

    return Protocol(lambda model: model, devices, release, update)


def _refuse_unsound(prior: Prior) -> None:
    """Refuses a prior of which the server would make NaN after everything is spent."""
    _validate.positive(ridge=prior.ridge)
    _validate.positive(rating_variance=prior.rating_variance)
    if not isinstance(prior.variance, Tracer):
        variance = np.ravel(np.asarray(prior.variance))
        for number in variance[~((variance > 0) & np.isfinite(variance))][:1]:
            raise _validate.expected("variance", "finite numbers > 0", float(number))


def _units(step: Step, shares: Shares) -> Shares:
    """s_A, s_b and s_G, 0 for what is not released."""
    if abs(sum(shares) - 1) > 1e-6 or min(shares) < 0 or (shares.users > 0) != (step.unobserved > 0):
        wanted = "numbers >= 0 that are 1 in all, users 0 where unobserved items do not count and only there"
        raise _validate.expected("shares", wanted, tuple(shares))
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
