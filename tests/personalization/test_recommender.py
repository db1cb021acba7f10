"""The recommender in one call: what it costs, what it learns, and whose data a prediction is made of."""

from functools import cache
from typing import Any

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpaudit import InputError
from dpaudit.personalization.als import layout, recommender
from dpaudit.personalization.als.recommender import Catalogue, Recipe
from tests.personalization import people

KEY, USERS, DELTA = jax.random.key(0), 200, 1e-5
RECIPE = Recipe(0.0, rank=1, rounds=40, rating_clip=5.0, factor_norm=5.0, bias_variance=1.0, factor_variance=1.0)
RECIPE = RECIPE._replace(intercept_precision=1.0, bias_precision=20.0, factor_precision=1.0, power=0.0)


def population():
    """Users who rate all items but one by an intercept, the item's bias and one factor; and how they like that one."""
    rng = np.random.default_rng(0)
    intercept, taste = rng.normal(size=(USERS, 1)), rng.normal(size=(USERS, 1))
    bias, factor = rng.normal(size=people.ITEMS), 1.5 * np.sin(np.arange(people.ITEMS))
    values = intercept + bias + taste * factor + 0.1 * rng.normal(size=(USERS, people.ITEMS))
    kept = np.arange(USERS) % people.ITEMS
    rows = [[(i, row[i]) for i in range(people.ITEMS) if i != kept[u]] for u, row in enumerate(values)]
    return people.batch(rows, people.ITEMS - 1), kept, values


HISTORY, KEPT, VALUES = population()
CATALOGUE = Catalogue(jnp.ones((people.ITEMS, 1)), jnp.ones((people.ITEMS, 1)))
predicted = jax.jit(recommender.predicted)


@cache
def fitted(noise_multiplier, recipe=RECIPE):
    return recommender.fit(KEY, (HISTORY,), CATALOGUE, recipe, noise_multiplier=noise_multiplier)


def additive():
    """The least-squares prediction by an intercept of each user and a bias of each item, [users]."""
    seen = np.arange(people.ITEMS) != KEPT[:, None]
    users, items = np.nonzero(seen)
    design = np.concatenate([np.eye(USERS)[users], np.eye(people.ITEMS)[items]], axis=1)
    found = np.linalg.lstsq(design, VALUES[seen], rcond=None)[0]
    return found[:USERS] + found[USERS:][KEPT]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("epsilon", "recipe"),
    [
        (1.0, RECIPE),
        pytest.param(5.0, RECIPE._replace(popularity_share=0.0, bias_share=0.2), marks=pytest.mark.slow),
        pytest.param(10.0, RECIPE._replace(rounds=3, popularity_share=0.3), marks=pytest.mark.slow),
        (20.0, RECIPE._replace(rank=0, rounds=0)),
    ],
)
def test_all_phases_together_cost_what_the_noise_multiplier_says(epsilon, recipe):
    z = dp_accounting.get_sigma_gaussian(epsilon, DELTA)
    model, transcript = fitted(z, recipe)
    assert transcript.mu() == pytest.approx(1 / z, rel=1e-12)
    assert transcript.epsilon(DELTA) == pytest.approx(epsilon, rel=1e-6)
    assert np.isfinite(model.factors).all()
    assert model.factors.shape == (people.ITEMS, 1 + recipe.rank)


@pytest.mark.integration
def test_without_noise_it_learns_the_factor():
    model, transcript = fitted(0.0)
    assert transcript.epsilon(DELTA) == np.inf
    found = np.asarray(predicted(model, HISTORY, KEPT[:, None]))[:, 0]
    truth = VALUES[np.arange(USERS), KEPT]
    errors = [np.sqrt(np.mean((guess - truth) ** 2)) for guess in (found, additive())]
    assert errors[0] < 0.35
    assert errors[1] > 0.8


def test_a_prediction_is_made_of_the_model_and_the_user_s_own_ratings():
    model, asked = fitted(0.0)[0], jnp.broadcast_to(jnp.arange(people.ITEMS), (USERS, people.ITEMS))
    before = np.asarray(predicted(model, HISTORY, asked))
    for user in (0, 77):
        for row in (-HISTORY.values[user], jnp.full(people.ITEMS - 1, 1e30), jnp.full(people.ITEMS - 1, jnp.nan)):
            other = HISTORY._replace(values=HISTORY.values.at[user].set(row))
            after = np.asarray(predicted(model, other, asked))
            np.testing.assert_array_equal(np.flatnonzero((before != after).any(axis=1)), [user])
        nothing = predicted(model, HISTORY._replace(weights=HISTORY.weights.at[user].set(0.0)), asked)
        np.testing.assert_array_equal(after[user], nothing[user])  # of ratings that are no numbers, the last


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"factor_precision": -1}, "factor_precision: expected a number > 0, got -1"),
        ({"intercept_precision": 0.0}, "intercept_precision: expected a number > 0, got 0.0"),
        ({"taste_precision": np.nan}, "taste_precision: expected a number > 0, got nan"),
        ({"bias_variance": 0}, "bias_variance: expected a finite number > 0, got 0"),
        ({"factor_variance": np.inf}, "factor_variance: expected a finite number > 0, got inf"),
        ({"rating_variance": -0.1}, "rating_variance: expected a finite number > 0, got -0.1"),
        ({"feature_ridge": 0.0}, "feature_ridge: expected a finite number > 0, got 0.0"),
        ({"first": 0.0}, "first: expected a finite number > 0, got 0.0"),
        ({"centre": np.nan}, "centre: expected a finite number, got nan"),
        ({"power": np.nan}, "power: expected a finite number >= 0, got nan"),
        ({"rating_clip": 0.0}, "rating_clip: expected a finite number > 0, got 0.0"),
        ({"rank": -1}, "rank: expected a whole number >= 0, got -1"),
        ({"rounds": 0}, "rounds: expected a whole number >= 1, got 0"),
        ({"popularity_share": 1.0}, r"popularity_share: expected a number in \[0, 1\), got 1.0"),
        ({"bias_share": 0.0}, r"bias_share: expected a number in \(0, 1\), got 0.0"),
        ({"bias_share": 0.95}, "bias_share: expected a number that leaves a share for the rounds, got 0.95"),
    ],
)
def test_settings_out_of_range(change, message, monkeypatch):
    monkeypatch.setattr(recommender, "run", lambda *given: pytest.fail("something was spent"))
    with pytest.raises(InputError, match=message):
        fitted(1.0, RECIPE._replace(**change))


@pytest.mark.parametrize(
    ("catalogue", "message"),
    [
        (
            CATALOGUE._replace(features=CATALOGUE.features.at[2].set(jnp.nan)),
            "features: expected finite numbers, got 1",
        ),
        (CATALOGUE._replace(public=jnp.inf * CATALOGUE.public), "public: expected finite numbers, got "),
        (CATALOGUE._replace(features=jnp.ones((2, 1))), "catalogue: expected public .m, p. and features .m, f., got "),
        (
            Catalogue(CATALOGUE.public[:-1], CATALOGUE.features[:-1]),
            f"^catalogue: expected at least {people.ITEMS} items, those of the ratings, got {people.ITEMS - 1}$",
        ),
    ],
)
def test_a_catalogue_that_is_none_is_refused_before_anything_is_spent(catalogue, message, monkeypatch):
    monkeypatch.setattr(recommender, "run", lambda *given: pytest.fail("something was spent"))
    with pytest.raises(InputError, match=message):
        recommender.fit(KEY, (HISTORY,), catalogue, RECIPE, noise_multiplier=1.0)


class Begun(Exception):
    """Nothing that could be refused is left to be looked at."""


def test_a_key_of_the_old_kind_is_that_of_the_new_kind_and_what_is_no_key_is_one_line(monkeypatch):
    keys = []

    def begun(key, *given):
        keys.append(jax.random.key_data(key).tolist())
        raise Begun

    monkeypatch.setattr(recommender, "run", begun)
    calls: Any = (recommender.fit, RECIPE), (recommender.fit_ranking, recommender.Ranking())
    for call, wanted in calls:
        for key in (jax.random.key(5), jax.random.PRNGKey(5)):
            with pytest.raises(Begun):
                call(key, (HISTORY,), CATALOGUE, wanted, noise_multiplier=1.0)
        assert keys[-1] == keys[-2]
        with pytest.raises(InputError, match=r"^key: expected a key, as made by jax.random.key, got 5$"):
            call(5, (HISTORY,), CATALOGUE, wanted, noise_multiplier=1.0)


def test_buckets_that_are_traced_are_not_looked_at():
    items = jax.eval_shape(lambda buckets: layout.refuse_missing_items(buckets, catalogue=1), (HISTORY,))
    assert items is None
    with pytest.raises(
        InputError, match=rf"^model: expected at least {people.ITEMS} items, those of the ratings, got 1$"
    ):
        layout.refuse_missing_items((HISTORY,), model=1)
    assert layout.refuse_missing_items((HISTORY._replace(weights=0 * HISTORY.weights),), model=0) is None


@pytest.mark.integration
def test_infinite_precision_pins_what_it_is_of():
    """All users then have the prior's own intercept and weight of the bias: one prediction an item, for everybody."""
    asked = jnp.tile(jnp.arange(people.ITEMS), (USERS, 1))

    def spread(**given):
        alone = RECIPE._replace(rank=0, rounds=0, **given)
        told = np.asarray(predicted(fitted(1.0, alone)[0], HISTORY, asked))
        assert np.isfinite(told).all()
        return np.ptp(told, axis=0), np.ptp(told, axis=1)

    of_users, of_items = spread(intercept_precision=np.inf, bias_precision=np.inf)
    np.testing.assert_array_equal(of_users, 0)
    assert of_items.min() > 0.1
    assert spread(intercept_precision=1.0, bias_precision=np.inf)[0].min() > 0.1
