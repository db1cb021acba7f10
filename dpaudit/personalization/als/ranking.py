"""What a user will look at next: an item that was rated is a 1, every other a 0 of little weight.

    model, transcript = fit(key, seen(arranged(train)), Catalogue(public, features), Ranking(), noise_multiplier=0.892)
    scores = own_factors(model, history, STEP, num_users=n) @ embedded(model).T

Popularity, one noisy release, is a feature of items that everybody holds afterwards: a device weighs it against its
user's taste in public features and, after rounds of alternating minimisation, against learned factors.

Source: Hu, Koren and Volinsky 2008 (weights of what is not observed); Chien et al. 2021, Section 5.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from dpaudit import _validate
from dpaudit.kernels import philox
from dpaudit.mechanisms.sampling import normal
from dpaudit.personalization.als import least_squares, popularity
from dpaudit.personalization.als.layout import Users
from dpaudit.personalization.als.least_squares import Prior
from dpaudit.personalization.als.recommender import Catalogue, checked, refuse_unsound
from dpaudit.personalization.als.user_step import Model, Step
from dpaudit.personalization.boundary.aggregator import run
from dpaudit.personalization.boundary.processes import memoryless
from dpaudit.personalization.boundary.transcript import Transcript


class Ranking(NamedTuple):
    """What is learned, and what is believed beforehand; names as in
    :class:`dpaudit.personalization.als.recommender.Recipe`.

    Attributes:
      unobserved: a_0, > 0, the weight of what was not rated; that of a rating is 1.
      popularity_share: of mu^2; the rounds have the rest, in equal parts. Without rounds, popularity has all.
      popularity_precision: of a user's weight of popularity about 1.
    """

    rank: int = 0
    rounds: int = 0
    unobserved: float = 0.1
    popularity_share: float = 0.3
    factor_norm: float = 1.0
    power: float = 0.15
    factor_variance: float = 0.1
    feature_ridge: float = 5.0
    rating_variance: float = 0.1
    popularity_precision: float = 0.5
    taste_precision: float = 20.0
    factor_precision: float = 5.0
    first: float = 0.1


def seen(buckets: tuple[Users, ...]) -> tuple[Users, ...]:
    """Users whose every rating is a 1."""
    return tuple(users._replace(values=users.weights) for users in buckets)


def step(ranking: Ranking) -> Step:
    """Of the devices."""
    return Step(ranking.factor_norm, 1.0, popularity.adaptive(ranking.power), ranking.unobserved)


def fit(
    key: jax.Array,
    buckets: tuple[Users, ...],
    catalogue: Catalogue,
    ranking: Ranking,
    *,
    noise_multiplier: float,
    mesh: Mesh | None = None,
) -> tuple[Model, Transcript]:
    """A model, and all that was ever released of its users.

    Args:
      key: JAX random key, consumed.
      buckets: of :func:`seen`.
      catalogue: of the items; ``public`` needs no intercept.
      ranking: what to learn.
      noise_multiplier: z > 0, of all phases together: mu = 1/z; 0 for none and no privacy.
      mesh: shares users out, as for :func:`dpaudit.personalization.boundary.aggregator.each`.

    Returns:
      (model, transcript).

    Raises:
      InputError: a value out of range.
    """
    refuse_unsound(ranking)
    catalogue = checked(catalogue)
    _validate.positive(unobserved=ranking.unobserved)
    rank = _validate.at_least(0, rank=ranking.rank)
    rounds = _validate.at_least(1 if rank else 0, rounds=ranking.rounds)
    counted = float(_validate.open_unit(popularity_share=ranking.popularity_share)) if rounds else 1.0
    count_key, first_key, key = jax.random.split(philox.from_key(key), 3)
    items = len(catalogue.public)
    empty = Model(jnp.zeros((items, 0)), jnp.zeros((items, 0)), jnp.zeros(items), jnp.zeros(0), jnp.zeros(0))
    protocol = popularity.counted(items=items, noise_multiplier=noise_multiplier / counted**0.5, mesh=mesh)
    alternating = least_squares.alternating(
        step(ranking),
        noise_multiplier=noise_multiplier / ((1 - counted) / rounds) ** 0.5 if rounds else 0.0,
        features=catalogue.features,
        prior=Prior(jnp.full(rank, ranking.factor_variance), ranking.feature_ridge, ranking.rating_variance),
        shares=least_squares.Shares(0.15, 0.7, 0.15),
        mesh=mesh,
    )
    model, _, transcript = run(count_key, protocol, empty, memoryless(), buckets, 1)
    model = _popular(catalogue, ranking, model, ranking.first * normal(first_key, (items, rank), jnp.float32))
    if rounds:
        model, _, told = run(key, alternating, model, memoryless(), buckets, rounds)
        transcript = transcript + told
    return model, transcript


def _popular(catalogue: Catalogue, ranking: Ranking, model: Model, factors: jax.Array) -> Model:
    """The model whose public features begin with popularity, the most popular item's being 1."""
    counts = jnp.maximum(model.popularity, 0.0)
    tastes, rank = catalogue.public.shape[1], factors.shape[1]
    precision = [ranking.popularity_precision] + tastes * [ranking.taste_precision] + rank * [ranking.factor_precision]
    return Model(
        jnp.concatenate([(counts / jnp.maximum(jnp.max(counts), 1e-30))[:, None], catalogue.public], axis=1),
        factors,
        model.popularity,
        jnp.array([1.0] + (tastes + rank) * [0.0]),
        jnp.array(precision),
    )
