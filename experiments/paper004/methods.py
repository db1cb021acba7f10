"""Fits and scores the methods compared: each method by name, what may be chosen of it, and how it is scored."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpaudit._engine import hosts
from dpaudit.data.ratings import Ratings
from dpaudit.personalization import user_level
from dpaudit.personalization.als import biases, factored, metrics, recommender, spectral
from dpaudit.personalization.als.biases import Biases
from dpaudit.personalization.als.layout import Users, arranged
from dpaudit.personalization.als.recommender import Catalogue, Ranking, Recipe
from dpaudit.personalization.als.spectral import Spectrum
from dpaudit.personalization.als.steps import Model
from dpaudit.personalization.boundary.aggregator import run
from dpaudit.training.accounting import noise_multiplier
from dpaudit.training.sampling import poisson
from experiments.paper004.descent import descended

Choice = Mapping[str, Any]
DELTA = 1e-5  # of up to MANY users
MANY = 50_000
CENTRE = 3.5  # of ratings from 1 to 5, guessed without a look at any: people rate what they expect to like


def delta_for(users: int) -> float:
    """Returns a delta below one over the number of users: DELTA, or a tenth of 1/users where they are many."""
    return DELTA if users <= MANY else 0.1 / users


class Told(NamedTuple):
    """A model and what it cost: epsilon at :func:`delta_for` its users, as the transcript has it."""

    model: Model
    epsilon: float


Fit = Callable[[jax.Array, Ratings, Choice, float, float], Told]


class Method(NamedTuple):
    """One way to learn."""

    fit: Fit  # ``fit(key, train, choice, epsilon, mu)``; epsilon infinite and mu 0 stand for no noise
    space: Mapping[str, tuple[Any, ...]]  # field -> values to choose from; choosing begins at the first of each
    ranks: bool = False  # it ranks items, and is scored by recall; else by the error of ratings
    gaussian: bool = True  # all releases of a model are one Gaussian, so that those of several compose exactly
    without: "Method | None" = None  # learns in its place where there is no noise


def catalogue(ratings: Ratings, *, features: bool) -> Catalogue:
    """Genres and release decades, or ones alone."""
    ones = jnp.ones((ratings.num_items, 1))
    if not features:
        return Catalogue(ones, ones)
    known = jnp.concatenate([ones, jnp.asarray(ratings.features)], axis=1)
    return Catalogue(known, known)


def device_rows(ratings: Ratings) -> tuple[Users, ...]:
    """All users in one rectangle where they are few, which compiles once; in buckets where they are many."""
    most = int(np.bincount(ratings.users).max())
    return arranged(ratings, buckets=[most] if ratings.num_users < 10_000 else None)


def private(mu: float) -> dict[str, Any]:
    """Returns the noise that a fit is given, and all devices to share its users out over."""
    return {"noise_multiplier": 1 / mu if mu else 0.0, "mesh": hosts.mesh("users")}


def alternating(*, features: bool, **fixed: Any) -> Fit:
    """:func:`dpaudit.personalization.als.recommender.fit`."""

    def fit(key: jax.Array, train: Ratings, choice: Choice, epsilon: float, mu: float) -> Told:
        recipe = Recipe(**{"centre": CENTRE, **fixed, **choice})
        known = catalogue(train, features=features)
        model, transcript = recommender.fit(key, device_rows(train), known, recipe, **private(mu))
        return Told(model, transcript.epsilon(delta_for(train.num_users), users=train.num_users))

    return fit


def ranked(key: jax.Array, train: Ratings, choice: Choice, epsilon: float, mu: float) -> Told:
    """:func:`dpaudit.personalization.als.recommender.fit_ranking`."""
    rows = recommender.seen(device_rows(train))
    known = catalogue(train, features=True)
    model, transcript = recommender.fit_ranking(key, rows, known, Ranking(**choice), **private(mu))
    return Told(model, transcript.epsilon(delta_for(train.num_users), users=train.num_users))


def moments(*, features: bool, **fixed: Any) -> Fit:
    """:func:`dpaudit.personalization.als.spectral.fit` of ratings, after popularity and biases, which have their
    shares of mu^2; the moments have what is left."""

    def fit(key: jax.Array, train: Ratings, choice: Choice, epsilon: float, mu: float) -> Told:
        recipe, known = Recipe(**{"centre": CENTRE, **fixed, **choice}), catalogue(train, features=features)
        rows, (first_key, key) = device_rows(train), jax.random.split(key)
        before = recipe.popularity_share + recipe.bias_share
        first = recipe._replace(rank=0, rounds=0, popularity_share=recipe.popularity_share / before)
        model, told = recommender.fit(first_key, rows, known, first, **private(mu * before**0.5))
        learned = Spectrum(recipe.rank, power=1.0, precision=recipe.factor_precision)
        model, more = spectral.fit(key, rows, model, recommender.PLAIN, learned, **private(mu * (1 - before) ** 0.5))
        return Told(model, (told + more).epsilon(delta_for(train.num_users), users=train.num_users))

    return fit


def rests(begin: Callable[[Ratings, Choice], Model]) -> Fit:
    """:func:`dpaudit.personalization.als.biases.fit` of what tastes leave of ratings, and then a taste in popularity.

    Args:
      begin: ``begin(train, choice)``, the public model of users' tastes, of which ``train`` tells the items alone.
    """

    def fit(key: jax.Array, train: Ratings, choice: Choice, epsilon: float, mu: float) -> Told:
        learned = Biases(**{name: value for name, value in choice.items() if name in Biases._fields})
        known, rows = catalogue(train, features=True).features, device_rows(train)
        model, transcript = biases.fit(key, rows, begin(train, choice), known, learned, **private(mu))
        popular = jnp.log(jnp.maximum(model.popularity, 1.0))
        popular = (popular - jnp.mean(popular)) / jnp.maximum(jnp.std(popular), 1e-3)
        tastes = model.public.shape[1]
        model = model._replace(
            public=jnp.concatenate([model.public, popular[:, None]], axis=1),
            mean=jnp.insert(model.mean, tastes, 0.0),
            precision=jnp.insert(model.precision, tastes, choice["popularity_precision"]),
        )
        return Told(model, transcript.epsilon(delta_for(train.num_users), users=train.num_users))

    return fit


def ranked_moments(key: jax.Array, train: Ratings, choice: Choice, epsilon: float, mu: float) -> Told:
    """:func:`dpaudit.personalization.als.spectral.fit` of who rated what, after popularity, which has its share."""
    rows, ranking = recommender.seen(device_rows(train)), ranking_of(choice)
    first_key, key = jax.random.split(key)
    share, first = ranking.popularity_share, ranking._replace(rank=0)
    known = catalogue(train, features=True)
    model, told = recommender.fit_ranking(first_key, rows, known, first, **private(mu * share**0.5))
    learned = Spectrum(ranking.rank, choice["most"], precision=ranking.factor_precision)
    step = recommender.ranking_step(ranking)
    model, more = spectral.fit(key, rows, model, step, learned, **private(mu * (1 - share) ** 0.5))
    return Told(model, (told + more).epsilon(delta_for(train.num_users), users=train.num_users))


def ranking_of(choice: Choice) -> Ranking:
    """Returns what a choice says of a ranking."""
    return Ranking(**{name: value for name, value in choice.items() if name in Ranking._fields})


def popular(key: jax.Array, train: Ratings, choice: Choice, epsilon: float, mu: float) -> Told:
    """Returns the same items for everybody, by noisy popularity alone."""
    rows = recommender.seen(device_rows(train))
    nothing = Catalogue(jnp.zeros((train.num_items, 0)), jnp.zeros((train.num_items, 0)))
    model, transcript = recommender.fit_ranking(key, rows, nothing, Ranking(), **private(mu))
    return Told(model, transcript.epsilon(delta_for(train.num_users), users=train.num_users))


def gradient_steps(
    key: jax.Array,
    train: Ratings,
    choice: Choice,
    epsilon: float,
    mu: float,
    *,
    features: bool = True,
    centre: float = CENTRE,
    optimizer: Callable[[float], optax.GradientTransformation] = optax.sgd,
) -> Told:
    """User-level DP-SGD on biases and factors of the same model, users' halves solved for on their devices."""
    first_key, cohort_key, key = jax.random.split(key, 3)
    begun = first(first_key, train, choice["rank"], features=features, centre=centre)
    known, mean, precision = begun.public, begun.mean, begun.precision
    model = factored.Factored(
        lambda params, items: jnp.concatenate([known[items], params[items]], axis=1),
        precision,
        lambda params, features: mean,
    )
    (rows,) = arranged(train, buckets=[int(np.bincount(train.users).max())])
    sampling = poisson(examples=len(rows.index), batch_size=choice["batch_size"])
    rounds = choice["rounds"]
    multiplier = noise_multiplier(sampling, epsilon, rounds, delta=delta_for(train.num_users)) if mu else 1e-6
    training = user_level.dp_sgd(
        factored.loss(model, items=train.num_items),
        sampling=sampling,
        clip_norm=choice["clip_norm"],
        noise_multiplier=multiplier,
        optimizer=optimizer(choice["learning_rate"]),
        mesh=hosts.mesh("users"),
    )
    everyone = factored.everyone(cohort_key, rows)
    state, _, transcript = run(key, training.protocol, *training.init(begun.factors), everyone, rounds)
    learned = begun._replace(factors=state.params)
    return Told(learned, transcript.epsilon(delta_for(train.num_users), users=train.num_users) if mu else np.inf)


def first(key: jax.Array, train: Ratings, rank: int, *, features: bool = True, centre: float = CENTRE) -> Model:
    """Returns the model that gradient steps begin with: no biases, and small random factors."""
    chosen, known = Recipe(centre=centre, rank=rank), catalogue(train, features=features).public
    tastes = known.shape[1] - 1
    mean = jnp.array([chosen.centre] + tastes * [0.0] + [1.0] + rank * [0.0])
    precision = [chosen.intercept_precision] + tastes * [chosen.taste_precision] + [chosen.bias_precision]
    precision += rank * [chosen.factor_precision]
    factors = chosen.first * jax.random.normal(key, (train.num_items, rank))
    factors = jnp.concatenate([jnp.zeros((train.num_items, 1)), factors], axis=1)
    return Model(known, factors, jnp.zeros(train.num_items), mean, jnp.array(precision))


def plain_descent(key: jax.Array, train: Ratings, choice: Choice, epsilon: float, mu: float) -> Told:
    """:func:`experiments.paper004.descent.descended`."""
    first_key, key = jax.random.split(key)
    return Told(descended(key, train, first(first_key, train, choice["rank"]), choice), np.inf)


BIAS_SPACE = {"rating_clip": (1.5, 1.0, 2.0), "bias_variance": (0.1, 0.05, 0.2), "power": (0.15, 0.0, 0.3)}
FACTOR_SPACE = {
    **BIAS_SPACE,
    "rank": (0, 2, 4, 8),
    "rounds": (2, 4, 8),
    "factor_precision": (10.0, 5.0),
    "factor_variance": (0.1, 0.03),
    "bias_precision": (5.0, 10.0),
    "taste_precision": (30.0, 15.0),
}
METHODS = {
    "item bias": Method(alternating(features=False, bias_precision=float("inf")), BIAS_SPACE),
    "alternating": Method(alternating(features=False), FACTOR_SPACE),
    "alternating, public features": Method(alternating(features=True), FACTOR_SPACE),
    "gradient steps, public features": Method(
        gradient_steps,
        {
            "rank": (0, 2),
            "rounds": (100,),
            "batch_size": (100, 400),
            "clip_norm": (0.05, 0.02, 0.1),
            "learning_rate": (8.0, 3.0, 20.0),
        },
        gaussian=False,
        without=Method(plain_descent, {"rank": (2, 4), "learning_rate": (0.03,), "decay": (10.0,)}),
    ),
    "NoisyAdam, public features": Method(  # Bu, Dong, Long and Su 2020, Algorithm 2, of users in place of examples
        partial(gradient_steps, optimizer=optax.adam),
        {"rank": (0,), "rounds": (100,), "batch_size": (400,), "clip_norm": (0.05,), "learning_rate": (0.03,)},
        gaussian=False,
    ),
    "popularity": Method(popular, {}, ranks=True),
    "ranking, public features": Method(
        ranked,
        {
            "rank": (0, 4, 8),
            "rounds": (2, 4, 6),
            "unobserved": (0.1, 0.03),
            "popularity_share": (0.3, 0.5),
            "taste_precision": (20.0, 100.0),
            "factor_variance": (0.1, 1.0),
        },
        ranks=True,
    ),
}


def sound(choice: dict[str, Any]) -> dict[str, Any]:
    """Without factors there are no rounds for them."""
    return choice | ({"rounds": 0} if choice.get("rank") == 0 and choice.get("batch_size") is None else {})


def candidates(space: Mapping[str, tuple[Any, ...]], count: int, seed: int) -> list[dict[str, Any]]:
    """``count`` different choices, or all there are: the first of each field, then drawn at random."""
    rng, total = np.random.default_rng(seed), int(np.prod([len(values) for values in space.values()]))
    found = [sound({name: values[0] for name, values in space.items()})]
    for _ in range(100 * count):
        drawn = sound({name: values[rng.integers(len(values))] for name, values in space.items()})
        if len(found) < min(count, total) and drawn not in found:
            found.append(drawn)
    return found


def score(method: Method, model: Model, choice: Choice, seen: Ratings, held_out: Ratings) -> float:
    """Error of ratings, or recall@20, of the users of ``seen``, whose devices know these ratings of theirs; NaN where
    the model has diverged."""
    rows = device_rows(seen)
    step = recommender.ranking_step(ranking_of(choice)) if method.ranks else recommender.PLAIN
    own = metrics.own_factors(model, recommender.seen(rows) if method.ranks else rows, step, num_users=seen.num_users)
    if not all(np.isfinite(np.asarray(leaf)).all() for leaf in (model.public, model.factors, own)):
        return np.nan
    return metrics.recall(model, own, seen, held_out) if method.ranks else metrics.rmse(model, own, held_out)
