"""Learns factors of items in one release: the leading eigenvectors of the second moments of users' ratings.

    model, before = recommender.fit(key, buckets, catalogue, Recipe(centre=3.5), noise_multiplier=z / 0.2**0.5)
    model, after = spectral.fit(key, buckets, model, PLAIN, Spectrum(rank=10), noise_multiplier=z / 0.8**0.5)
    (before + after).epsilon(delta=1e-5)             # of both together: mu = 1/z

A device solves for its user's own half of the model so far and takes what is left of the ratings: the rests of the
items in question, r in R^k, and 0 for an item without a rating; or, where unobserved items count, the rests of all of
them with 0 for "no rating". It sends r / |r|. The aggregator releases

    S = sum_i r_i r_i' / |r_i|^2  +  noise,

packed (:func:`dpaudit.personalization.als.solve.packed`), so that one user moves it by the Frobenius norm of
one summand, at most 1. With noise multiplier z, an entry off the diagonal has noise of deviation z / sqrt(2), and the
eigenvalues of noise alone stay below sqrt(2 k) z. A direction of S is kept if its eigenvalue l is larger: with
s^2 = k z^2 / 2, it estimates an eigenvalue t = (l + sqrt(l^2 - 4 s^2)) / 2 and its direction has a squared cosine of
1 - s^2/t^2 with the true one, by which its strength t is lowered.

So factors need no first guess and no rounds, and their signal is that of all users and all items together, while
alternating minimisation has to find each item's factor in the noise on that item.

Source: Dwork, Talwar, Thakurta and Zhang 2014, "Analyze Gauss" (the release); Benaych-Georges and Nadakuditi 2011,
Section 3.1 (eigenvalues and directions under noise).
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from dpaudit import _validate
from dpaudit.mechanisms.clipping import clip, einsum
from dpaudit.personalization.als import solve, steps
from dpaudit.personalization.als.layout import Users, everybody, refuse_missing_items
from dpaudit.personalization.als.steps import Model, Step
from dpaudit.personalization.boundary import processes
from dpaudit.personalization.boundary.aggregator import run
from dpaudit.personalization.boundary.processes import Memory, Release, memoryless
from dpaudit.personalization.boundary.protocol import Protocol, everything

CHUNK = 1_024  # devices computed at a time
MARGIN = 2.0**-16  # the fraction of the norm that is left for rounding errors


class Spectrum(NamedTuple):
    """What to learn of second moments.

    Attributes:
      rank: directions, >= 1; those that do not stand out of the noise are 0.
      most: k, the items in question, the most popular ones by the released counts; at most all.
      power: moments of items j and l are divided by (n_j n_l)^power, n the released counts; 1 where items without a
        rating are left out, so that rare items are not taken for items with small rests, and 0 where they count.
      precision: of a user's own half about 0, > 0, in units of one rating's; the mean square of the strongest factor
        over the items is 1.
    """

    rank: int
    most: int = 1_000
    power: float = 0.0
    precision: float = 10.0


def fit(
    key: jax.Array,
    buckets: tuple[Users, ...],
    model: Model,
    step: Step,
    spectrum: Spectrum,
    *,
    noise_multiplier: float,
    mesh: Mesh | None = None,
) -> tuple[Model, Any]:
    """Adds factors to a model that was released; returns it with the transcript of this release.

    Args:
      key: JAX random key, consumed.
      buckets: of :func:`dpaudit.personalization.als.layout.arranged`.
      model: as released, with popularity.
      step: of the devices, of which only ``unobserved`` matters.
      spectrum: what to learn.
      noise_multiplier: z > 0, or 0 for no noise and no privacy.
      mesh: a mesh whose devices share the users, as for :func:`dpaudit.personalization.boundary.protocol.each`.

    Returns:
      (model, transcript).

    Raises:
      InputError: a value out of range; a model that lacks items of the ratings.
    """
    protocol = second_moments(step, spectrum, items=len(model.factors), noise_multiplier=noise_multiplier, mesh=mesh)
    refuse_missing_items(buckets, model=len(model.factors))
    model, _, transcript = run(key, protocol, widened(model, spectrum.rank), memoryless(), buckets, 1)
    return model._replace(precision=model.precision.at[-spectrum.rank :].set(spectrum.precision)), transcript


def widened(model: Model, rank: int) -> Model:
    """Returns the model with as many more factors, all 0, of which users have 0."""
    return steps.widened(model, jnp.zeros(rank))


def second_moments(
    step: Step, spectrum: Spectrum, *, items: int, noise_multiplier: float, mesh: Mesh | None = None
) -> Protocol:
    """Makes the protocol of one round, whose state is a model :func:`widened` by the factors that it releases.

    Args:
      step, spectrum, noise_multiplier, mesh: as for :func:`fit`.
      items: how many there are.

    Raises:
      InputError: a value out of range.
    """
    most = min(_validate.at_least(1, most=spectrum.most), items)
    rank = _validate.at_least(1, rank=spectrum.rank)
    if rank > most:
        raise _validate.expected("rank", f"at most the number of items in question, {most}", rank)
    power = _validate.non_negative(power=spectrum.power)
    _validate.positive(precision=spectrum.precision)
    _validate.non_negative(unobserved=step.unobserved)
    stream = processes.gaussian("moments", noise_multiplier=noise_multiplier)

    def broadcast(model: Model) -> tuple[Model, jax.Array]:
        return model, popular(model, most)

    def release(key: jax.Array, total: jax.Array, memory: Memory) -> tuple[tuple[Release], Memory]:
        out, memory = stream.release(key, solve.packed(total), memory, sensitivity=1.0)
        return (out,), memory

    def update(model: Model, releases: tuple[Release, ...]) -> Model:
        asked = popular(model, most)
        scale = jnp.maximum(model.popularity[asked], 1.0) ** -power
        moments = solve.unpacked(releases[0].value, most) * scale[:, None] * scale
        noise = noise_multiplier * jnp.sqrt(0.5 / most) * jnp.sum(scale**2)
        found = directions(moments, rank, noise)
        return model._replace(factors=model.factors.at[asked, -rank:].set(found.astype(model.factors.dtype)))

    compute = partial(_rests, step)
    devices = everybody(everything, compute, _added, items=items, chunk=CHUNK, mesh=mesh)
    return Protocol(broadcast, devices, release, update)


def popular(model: Model, most: int) -> jax.Array:
    """Returns the numbers [most] of the most popular items by the released counts, ascending."""
    return jnp.sort(jnp.argsort(-model.popularity, stable=True)[:most])


def directions(moments: jax.Array, rank: int, noise: jax.Array | float) -> jax.Array:
    """Returns the leading eigenvectors of a noisy matrix, each with the square root of its strength, [k, rank].

    The mean square of the strongest is 1; directions that do not stand out of the noise are 0.

    Args:
      moments: [k, k], symmetric.
      rank: how many.
      noise: s, the root of the mean over rows of the sum of their noise's variances; its eigenvalues reach 2 s.
    """
    values, vectors = jnp.linalg.eigh(moments)
    values, vectors = values[::-1][:rank], vectors[:, ::-1][:, :rank]
    above = values > jnp.maximum(2 * noise, 1e-6 * jnp.abs(values[0]))
    true = (values + jnp.sqrt(jnp.maximum(values**2 - 4 * noise**2, 0.0))) / 2
    strength = jnp.where(above, true - noise**2 / jnp.where(above, true, 1.0), 0.0)
    share = strength / jnp.maximum(jnp.max(strength), 1e-30)
    return vectors * jnp.sqrt(share * len(moments))


def _rests(step: Step, key: jax.Array, sent: tuple[Model, jax.Array], user: Users) -> jax.Array:
    """Computes one device's message, [k], of norm 1, or 0 where nothing is left."""
    model, asked = sent
    slices = steps.taken(model, user.items)
    own = steps.solved_alone(step, steps.common(model), slices, user)
    place = jnp.searchsorted(asked, user.items)
    within = (user.weights > 0) & (jnp.take(asked, place, mode="clip") == user.items)
    place = jnp.where(within, place, len(asked))
    if step.unobserved:
        rated = jnp.zeros(len(asked)).at[place].add(user.values, mode="drop")
        rests = rated - steps.embedded(model)[asked] @ own
    else:
        told = jnp.concatenate([slices.public, slices.factors], axis=1) @ own
        rests = jnp.zeros(len(asked)).at[place].add(user.values - told, mode="drop")
    rests = jnp.where(jnp.any(user.weights > 0), rests, 0.0)
    return rests / jnp.maximum(jnp.linalg.norm(rests), 1e-20)


def _added(total: jax.Array | None, messages: jax.Array) -> jax.Array:
    """Adds r r' of every message, clipped to norm 1; one that is not finite counts as 0."""
    sound = jnp.where(jnp.all(jnp.isfinite(messages), axis=1, keepdims=True), messages, 0.0)
    clipped = jax.vmap(lambda message: clip(message, 1 - MARGIN))(sound)
    squares = einsum("uk,ul->kl", clipped, clipped)
    return squares if total is None else total + squares
