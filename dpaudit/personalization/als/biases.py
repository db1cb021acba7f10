"""Learns a bias for each item in one release: how often items are rated, and what is left of their ratings.

    model, transcript = biases.fit(key, buckets, model, features, Biases(), noise_multiplier=z)
    transcript.epsilon(delta=1e-5)                          # mu = 1/z

A device solves for its user's own half of the model so far, such as an intercept and tastes in public features. What
is left of their n ratings is r. For each of their items it sends 1/sqrt(n) and the item's part of clip(r/sqrt(n), Y).
The aggregator releases the sums

    c_j = sum_i 1/sqrt(n_i),     b_j = sum_i clip(r_i/sqrt(n_i), Y)_j,

in the units (sqrt(q) c, sqrt(1 - q)/Y b), in which one user moves all of them together by at most 1.

As everybody has the bias in full, c is both the popularity of items and the A_j of
:mod:`dpaudit.personalization.als.steps`, of which :func:`dpaudit.personalization.als.recommender.fit` releases two
noisy copies. Tastes leave less than an intercept alone does, so Y, and with it the noise, can be smaller.

Most items are rated seldom, so much of a large released count may be noise. The server replaces the counts by their
means given what was released (:func:`denoised`), and solves for the most likely biases
(:func:`dpaudit.personalization.als.steps.item_factors`). Both only process what was released.

Source: Chien et al. 2021, "Private Alternating Least Squares", Section 4 (uniform weights); Koenker and Mizera 2014,
"Convex Optimization, Shape Constraints, Compound Decisions, and Empirical Bayes Rules" (means of many normals).
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from dpaudit import _validate
from dpaudit.mechanisms.clipping import clip
from dpaudit.personalization.als import steps
from dpaudit.personalization.als.layout import Users, everybody, refuse_missing_items
from dpaudit.personalization.als.recommender import PLAIN, refuse_unsound
from dpaudit.personalization.als.steps import Model, Prior
from dpaudit.personalization.boundary import processes
from dpaudit.personalization.boundary.aggregator import run
from dpaudit.personalization.boundary.processes import Memory, Release, memoryless
from dpaudit.personalization.boundary.protocol import Protocol, Select
from dpaudit.personalization.boundary.transcript import Transcript

CHUNK = 1_024  # devices computed at a time
POINTS, STEPS = 128, 100  # of the distribution of counts: where it may have mass, and how often it is improved


class Biases(NamedTuple):
    """What to learn of biases; names as in :class:`dpaudit.personalization.als.recommender.Recipe`.

    Attributes:
      popularity_share: q, of mu^2, in (0, 1); the rests have 1 - q.
      rating_clip: Y, of all of a user's weighted rests together.
      bias_precision: of a user's weight of the bias about 1, in units of one rating's; infinity fixes it.
    """

    popularity_share: float = 0.3
    rating_clip: float = 0.75
    bias_variance: float = 0.1
    feature_ridge: float = 20.0
    rating_variance: float = 0.1
    bias_precision: float = 5.0


def fit(
    key: jax.Array,
    buckets: tuple[Users, ...],
    model: Model,
    features: jax.Array,
    biases: Biases,
    *,
    noise_multiplier: float,
    mesh: Mesh | None = None,
) -> tuple[Model, Transcript]:
    """Adds biases to a model, as one more factor; returns it with the transcript of this release.

    Args:
      key: JAX random key, consumed.
      buckets: of :func:`dpaudit.personalization.als.layout.arranged`.
      model: public, or as released; its popularity is replaced.
      features: [m, f], public, from which the server predicts biases, with the logarithm of popularity as another.
      biases: what to learn.
      noise_multiplier: z > 0, or 0 for no noise and no privacy.
      mesh: a mesh whose devices share the users, as for :func:`dpaudit.personalization.boundary.protocol.each`.

    Returns:
      (model, transcript).

    Raises:
      InputError: a value out of range; features that lack items of the ratings.
    """
    protocol = moments(biases, features, noise_multiplier=noise_multiplier, mesh=mesh)
    refuse_missing_items(buckets, features=len(features))
    model, _, transcript = run(key, protocol, widened(model), memoryless(), buckets, 1)
    return model._replace(precision=model.precision.at[-1].set(biases.bias_precision)), transcript


def widened(model: Model) -> Model:
    """Returns the model with a bias of 0 that every user gives weight 1."""
    return steps.widened(model, jnp.ones(1))


def moments(biases: Biases, features: jax.Array, *, noise_multiplier: float, mesh: Mesh | None = None) -> Protocol:
    """Makes the protocol of one round, whose state is a model :func:`widened` by the biases that it releases.

    Args:
      biases, features, noise_multiplier, mesh: as for :func:`fit`.

    Raises:
      InputError: a value out of range.
    """
    refuse_unsound(biases)
    features = jnp.asarray(_validate.finite(features=features))
    share = _validate.open_unit(popularity_share=biases.popularity_share)
    units = {"counts": share**0.5, "moments": (1 - share) ** 0.5 / biases.rating_clip}
    stream = processes.gaussian("biases", noise_multiplier=noise_multiplier)
    prior = Prior(jnp.array([biases.bias_variance]), biases.feature_ridge, biases.rating_variance)

    def release(key: jax.Array, total: dict[str, jax.Array], memory: Memory) -> tuple[tuple[Release], Memory]:
        out, memory = stream.release(key, {name: units[name] * total[name] for name in units}, memory, sensitivity=1.0)
        return (out,), memory

    def update(model: Model, releases: tuple[Release, ...]) -> Model:
        told = {name: value / units[name] for name, value in releases[0].value.items()}
        popularity = denoised(told["counts"], noise_multiplier / units["counts"])
        described = jnp.concatenate([features, jnp.log(jnp.maximum(popularity, 1.0))[:, None]], axis=1)
        stddev = noise_multiplier / units["moments"]
        found = steps.item_factors(
            popularity[:, None, None], told["moments"][:, None], described, prior, moment_stddev=stddev
        )
        return model._replace(
            factors=model.factors.at[:, -1].set(found[:, 0].astype(model.factors.dtype)),
            popularity=popularity.astype(model.popularity.dtype),
        )

    devices = everybody(
        Select(lambda user: user.items, lambda model, items: (steps.common(model), steps.taken(model, items))),
        partial(_message, biases.rating_clip),
        partial(_added, len(features)),
        items=len(features),
        chunk=CHUNK,
        mesh=mesh,
    )
    return Protocol(lambda model: model, devices, release, update)


def denoised(noisy: jax.Array, stddev: float) -> jax.Array:
    """Returns the means of numbers >= 0 given their noisy values, under the numbers' most likely distribution.

    The distribution has masses p_k at places t_k between 0 and the largest noisy value, and maximises
    prod_j sum_k p_k exp(-(y_j - t_k)^2/(2 s^2)), as expectation maximisation finds it.

    Args:
      noisy: y, [m]; y_j is number j with Gaussian noise.
      stddev: s, >= 0, of the noise.

    Source: Kiefer and Wolfowitz 1956 (the distribution); Koenker and Mizera 2014 (on a grid).
    """
    if not stddev:
        return jnp.maximum(noisy, 0.0)
    places = jnp.maximum(jnp.max(noisy), stddev) * jnp.linspace(0.0, 1.0, POINTS, dtype=noisy.dtype) ** 2
    far = -0.5 * ((noisy[:, None] - places) / stddev) ** 2
    likely = jnp.exp(far - jnp.max(far, axis=1, keepdims=True))

    def given(mass: jax.Array) -> jax.Array:
        joint = likely * mass
        return joint / jnp.sum(joint, axis=1, keepdims=True)

    mass = jax.lax.fori_loop(
        0, STEPS, lambda _, mass: jnp.mean(given(mass), axis=0), jnp.full(POINTS, 1 / POINTS, noisy.dtype)
    )
    return given(mass) @ places


def _message(most: float, key: jax.Array, sent: Any, user: Users) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Computes one device's message: its items, [w], its user's weight of each and the weighted rests, [w]."""
    shared, slices = sent
    own = steps.solved_alone(PLAIN, shared, slices, user)
    told = jnp.concatenate([slices.public, slices.factors], axis=1) @ own
    weights = steps.uniform(slices.popularity, user.weights)
    return user.items, weights, clip(weights * jnp.nan_to_num(user.values - told), most)


def _added(items: int, total: Any, messages: tuple[jax.Array, jax.Array, jax.Array]) -> dict[str, jax.Array]:
    rows, weights, rests = messages
    if total is None:
        total = {"counts": jnp.zeros(items), "moments": jnp.zeros(items)}
    return {"counts": total["counts"].at[rows].add(weights), "moments": total["moments"].at[rows].add(rests)}
