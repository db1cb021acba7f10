"""Fits recommenders in one call, and predicts with them on the devices.

For ratings, it releases popularity, then a bias for each item, then rounds of alternating minimisation::

    model, transcript = fit(key, arranged(train), Catalogue(public, features), Recipe(centre=3.5),
                            noise_multiplier=3.73)
    transcript.epsilon(delta=1e-5)                          # 1.0: the cost of all three phases together
    predicted(model, history, asked)                        # on the device: [u, k], of the items asked for

Each phase is a run of its own (:mod:`dpaudit.personalization.als.least_squares`), and their transcripts are joined.
What stays on a device costs nothing: a user's intercept, their taste in public features, the weight they give to an
item's bias, and their factor.

Rankings order items by how likely a user is to rate them next; a rated item counts as a 1 and any other as a 0 of
small weight::

    model, transcript = fit_ranking(key, seen(arranged(train)), Catalogue(public, features), Ranking(),
                                    noise_multiplier=0.892)
    scores = own_factors(model, history, ranking_step(Ranking()), num_users=n) @ embedded(model).T

Popularity, from one noisy release, becomes a public feature of the items. A device weighs it against its user's taste
in the other public features and, after rounds of alternating minimisation, against learned factors.

Source: Chien et al. 2021, "Private Alternating Least Squares", Section 5; Hu, Koren and Volinsky 2008 (weights of
items without a rating).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from dpaudit import _validate
from dpaudit.kernels import philox
from dpaudit.mechanisms.sampling import normal
from dpaudit.personalization.als import least_squares, steps
from dpaudit.personalization.als.layout import Users, refuse_missing_items, sound
from dpaudit.personalization.als.steps import Model, Prior, Step
from dpaudit.personalization.boundary.aggregator import run
from dpaudit.personalization.boundary.processes import memoryless
from dpaudit.personalization.boundary.protocol import Protocol
from dpaudit.personalization.boundary.transcript import Transcript

PLAIN = Step(1.0, 1.0, steps.uniform)  # for predictions, which do not depend on clipping


class Catalogue(NamedTuple):
    """Public knowledge of the items.

    Attributes:
      public: [m, p], the features in which a user's own model has a taste; the first column, of ones, is the
        intercept.
      features: [m, f], from which the server predicts biases and factors.
    """

    public: jax.Array
    features: jax.Array


class Recipe(NamedTuple):
    """What to learn of ratings and the priors, in the units of ratings.

    Attributes:
      centre: the prior mean of users' intercepts; it must not be computed from ratings, or it would be a release.
      rank: learned factors besides the bias, >= 0.
      rounds: of alternating minimisation after the bias's round, >= 0; 0 if rank is 0.
      popularity_share, bias_share: of mu^2, for the first two phases; the rounds share the rest equally. Without
        rounds, the bias gets all that popularity leaves.
      rating_clip: Y.
      clip_together: whether Y bounds all of a user's weighted rests of ratings together, in norm, and not each rest.
      factor_norm: L in the rounds; the bias is one with L = 1.
      power: of adaptive weights, 0 for uniform ones.
      bias_variance, factor_variance: of an item about its features' prediction.
      feature_ridge: inverse variance of the features' weights.
      rating_variance: of a rating about its prediction, times a typical weight.
      intercept_precision, taste_precision, bias_precision, factor_precision: of a user's intercept about ``centre``,
        taste about 0, weight of the bias about 1 (infinity fixes it), and factor about 0; in units of one rating's.
      first: standard deviation of the initial factors of the rounds.
    """

    centre: float
    rank: int = 0
    rounds: int = 0
    popularity_share: float = 0.1
    bias_share: float = 0.5
    rating_clip: float = 1.5
    factor_norm: float = 1.2
    power: float = 0.15
    bias_variance: float = 0.1
    factor_variance: float = 0.1
    feature_ridge: float = 5.0
    rating_variance: float = 0.1
    intercept_precision: float = 5.0
    taste_precision: float = 30.0
    bias_precision: float = 5.0
    factor_precision: float = 10.0
    first: float = 0.3
    clip_together: bool = False


def fit(
    key: jax.Array,
    buckets: tuple[Users, ...],
    catalogue: Catalogue,
    recipe: Recipe,
    *,
    noise_multiplier: float,
    mesh: Mesh | None = None,
) -> tuple[Model, Transcript]:
    """Fits a model to ratings; returns it with the transcript of all its releases.

    Args:
      key: JAX random key, consumed.
      buckets: of :func:`dpaudit.personalization.als.layout.arranged`.
      catalogue: of the items.
      recipe: what to learn.
      noise_multiplier: z > 0, of all phases together: mu = 1/z; 0 for none and no privacy.
      mesh: a mesh whose devices share the users, as for :func:`dpaudit.personalization.boundary.protocol.each`.

    Returns:
      (model, transcript).

    Raises:
      InputError: a value out of range; a catalogue that lacks items of the ratings.
    """
    refuse_unsound(recipe)
    catalogue, key = checked(catalogue), _validate.key(key=key)
    refuse_missing_items(buckets, catalogue=len(catalogue.public))
    phases = _phases(catalogue, recipe, noise_multiplier, mesh)
    model, transcript = _pinned(catalogue, recipe), Transcript(())
    for phase_key, phase in zip(jax.random.split(philox.from_key(key), len(phases)), phases, strict=True):
        first_key, run_key = jax.random.split(phase_key)
        model = phase.prepared(first_key, model)
        model, _, told = run(run_key, phase.protocol, model, memoryless(), buckets, phase.rounds)
        transcript = transcript + told
    return _free(catalogue, recipe, model), transcript


def predicted(model: Model, history: Users, asked: jax.Array) -> jax.Array:
    """Predicts users' ratings [u, k] of the items asked for, int32 [u, k], on their devices.

    Args:
      model: as released.
      history: the users' own ratings, of which their devices make their factors.
      asked: items, on the scale of ratings but not clipped to it.
    """
    users = sound(history, len(model.factors))
    own = steps.solved(PLAIN, steps.common(model), steps.taken(model, users.items), users)
    rows = steps.taken(model, asked)
    return jnp.einsum("ukz,uz->uk", jnp.concatenate([rows.public, rows.factors], axis=-1), own)


class _Phase(NamedTuple):
    """One run; its first round begins with ``prepared(key, model) -> model``."""

    prepared: Callable[[jax.Array, Model], Model]
    protocol: Protocol
    rounds: int


def checked(catalogue: Catalogue) -> Catalogue:
    """Returns a catalogue if its numbers are finite and its two tables have the same items.

    Raises:
      InputError: another one.
    """
    shapes = [jnp.shape(table) for table in catalogue]
    if any(len(shape) != 2 for shape in shapes) or shapes[0][0] != shapes[1][0]:
        raise _validate.expected("catalogue", "public [m, p] and features [m, f]", " and ".join(map(str, shapes)))
    return Catalogue(*(jnp.asarray(_validate.finite(**{name: table})) for name, table in catalogue._asdict().items()))


def refuse_unsound(believed: Any) -> None:
    """Refuses impossible settings of a recipe, before any privacy is spent.

    Args:
      believed: a NamedTuple, whose fields are checked by their names.

    Raises:
      InputError: a variance, ridge, norm or scale that is not > 0, a precision that is neither > 0 nor infinite, a
        centre that is no number.
    """
    for name, value in believed._asdict().items():
        if name.endswith("_precision"):
            _validate.positive(infinity_allowed=True, **{name: value})
        elif name.endswith(("_variance", "_ridge", "_norm", "_clip")) or name == "first":
            _validate.positive(**{name: value})
        elif name == "centre":
            _validate.real(**{name: value})


def _phases(catalogue: Catalogue, recipe: Recipe, noise_multiplier: float, mesh: Mesh | None) -> list[_Phase]:
    rank = _validate.at_least(0, rank=recipe.rank)
    rounds = _validate.at_least(1 if rank else 0, rounds=recipe.rounds)
    _validate.probability(popularity_share=recipe.popularity_share)
    _validate.open_unit(bias_share=recipe.bias_share)
    counted = recipe.popularity_share
    bias = recipe.bias_share if rounds else 1 - counted
    if rounds and counted + bias >= 1:
        raise _validate.expected("bias_share", "a number that leaves a share for the rounds", bias)
    rule = steps.adaptive(recipe.power)

    def alternating(name: str, share: float, length: float, variance: list[float]) -> Protocol:
        return least_squares.alternating(
            Step(length, recipe.rating_clip, rule, together=recipe.clip_together),
            noise_multiplier=noise_multiplier / share**0.5,
            features=catalogue.features,
            prior=Prior(jnp.array(variance), recipe.feature_ridge, recipe.rating_variance),
            name=name,
            mesh=mesh,
        )

    phases = []
    if counted:
        z = noise_multiplier / counted**0.5
        protocol = least_squares.counted(items=len(catalogue.public), noise_multiplier=z, mesh=mesh)
        phases.append(_Phase(lambda key, model: model, protocol, 1))
    phases.append(_Phase(lambda key, model: model, alternating("biases", bias, 1.0, [recipe.bias_variance]), 1))
    if rounds:
        share = (1 - counted - bias) / rounds
        variance = [recipe.bias_variance] + rank * [recipe.factor_variance]

        def begun(key: jax.Array, model: Model) -> Model:
            first = recipe.first * normal(key, (len(model.factors), rank), jnp.float32)
            model = model._replace(factors=jnp.concatenate([model.factors, first], axis=1))
            return _free(catalogue, recipe, model)

        phases.append(_Phase(begun, alternating("factors", share, recipe.factor_norm, variance), rounds))
    return phases


def _pinned(catalogue: Catalogue, recipe: Recipe) -> Model:
    """Returns a model of intercepts only, with a bias of 0 that every user gives weight 1."""
    items = len(catalogue.public)
    mean, precision = [recipe.centre, 1.0], [recipe.intercept_precision, jnp.inf]
    return Model(jnp.ones((items, 1)), jnp.zeros((items, 1)), jnp.zeros(items), jnp.array(mean), jnp.array(precision))


def _free(catalogue: Catalogue, recipe: Recipe, model: Model) -> Model:
    """Returns the model with all coordinates that a user may have of their own."""
    tastes, rank = catalogue.public.shape[1] - 1, model.factors.shape[1] - 1
    mean = [recipe.centre] + tastes * [0.0] + [1.0] + rank * [0.0]
    precision = [recipe.intercept_precision] + tastes * [recipe.taste_precision] + [recipe.bias_precision]
    precision += rank * [recipe.factor_precision]
    return model._replace(public=catalogue.public, mean=jnp.array(mean), precision=jnp.array(precision))


class Ranking(NamedTuple):
    """What to learn for a ranking and the priors; names as in :class:`Recipe`.

    Attributes:
      unobserved: a_0, > 0, the weight of an item without a rating; that of a rating is 1.
      popularity_share: of mu^2; the rounds share the rest equally. Without rounds, popularity gets all.
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
    """Replaces every rating by 1."""
    return tuple(users._replace(values=users.weights) for users in buckets)


def ranking_step(ranking: Ranking) -> Step:
    """Returns the devices' settings of a ranking."""
    return Step(ranking.factor_norm, 1.0, steps.adaptive(ranking.power), ranking.unobserved)


def fit_ranking(
    key: jax.Array,
    buckets: tuple[Users, ...],
    catalogue: Catalogue,
    ranking: Ranking,
    *,
    noise_multiplier: float,
    mesh: Mesh | None = None,
) -> tuple[Model, Transcript]:
    """Fits a model that ranks items; returns it with the transcript of all its releases.

    Args:
      key: JAX random key, consumed.
      buckets: of :func:`seen`.
      catalogue: of the items; ``public`` needs no intercept.
      ranking: what to learn.
      noise_multiplier: z > 0, of all phases together: mu = 1/z; 0 for none and no privacy.
      mesh: a mesh whose devices share the users, as for :func:`dpaudit.personalization.boundary.protocol.each`.

    Returns:
      (model, transcript).

    Raises:
      InputError: a value out of range; a catalogue that lacks items of the ratings.
    """
    refuse_unsound(ranking)
    catalogue, key = checked(catalogue), _validate.key(key=key)
    refuse_missing_items(buckets, catalogue=len(catalogue.public))
    _validate.positive(unobserved=ranking.unobserved)
    rank = _validate.at_least(0, rank=ranking.rank)
    rounds = _validate.at_least(1 if rank else 0, rounds=ranking.rounds)
    counted = float(_validate.open_unit(popularity_share=ranking.popularity_share)) if rounds else 1.0
    count_key, first_key, key = jax.random.split(philox.from_key(key), 3)
    items = len(catalogue.public)
    empty = Model(jnp.zeros((items, 0)), jnp.zeros((items, 0)), jnp.zeros(items), jnp.zeros(0), jnp.zeros(0))
    protocol = least_squares.counted(items=items, noise_multiplier=noise_multiplier / counted**0.5, mesh=mesh)
    alternating = least_squares.alternating(
        ranking_step(ranking),
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
    """Returns the model whose first public feature is popularity, 1 for the most popular item."""
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
