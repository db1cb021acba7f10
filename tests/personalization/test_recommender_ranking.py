"""Ranking: what all phases cost, that popularity is a feature and what is believed of it, and who is refused."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpaudit import InputError
from dpaudit.personalization.als import recommender
from dpaudit.personalization.als.recommender import Catalogue, Ranking
from tests.personalization import people

KEY, Z = jax.random.key(3), 30.0
POPULATION = people.honest(60, seed=1)
USERS = recommender.seen((people.batch(POPULATION, 4),))
TASTES = jnp.asarray(np.random.default_rng(2).normal(size=(people.ITEMS, 3)), jnp.float32)
CATALOGUE = Catalogue(TASTES, TASTES[:, :2])
ROUNDS = Ranking(rank=2, rounds=3, popularity_share=0.25)


@cache
def fitted(recipe, noise_multiplier):
    return recommender.fit_ranking(KEY, USERS, CATALOGUE, recipe, noise_multiplier=noise_multiplier)


@pytest.mark.integration
@pytest.mark.parametrize("recipe", [Ranking(), ROUNDS])
def test_all_phases_together_cost_what_the_noise_multiplier_says(recipe):
    model, transcript = fitted(recipe, Z)
    assert transcript.mu() == pytest.approx(1 / Z, rel=1e-12)
    assert model.factors.shape == (people.ITEMS, recipe.rank)
    assert np.isfinite(model.factors).all()
    counted = transcript.parts[0]
    assert [release.process.name for release in counted] == ["popularity"]
    share = recipe.popularity_share if recipe.rounds else 1.0
    assert type(transcript)((counted,)).mu() == pytest.approx(share**0.5 / Z, rel=1e-12)


@pytest.mark.integration
def test_a_ranking_is_fitted_where_64_bits_are_on():
    with jax.enable_x64(True):
        model, _ = recommender.fit_ranking(KEY, USERS, CATALOGUE, ROUNDS, noise_multiplier=Z)
    assert model.factors.dtype == np.float32
    np.testing.assert_allclose(model.popularity, fitted(ROUNDS, Z)[0].popularity, rtol=1e-5)


def test_phases_draw_from_keys_of_their_own_and_all_that_they_tell_of_nobody_is_noise(monkeypatch):
    keys = []

    def watched(draw):
        def watching(key, *given):
            keys.append(tuple(jax.random.key_data(key).tolist()))
            return draw(key, *given)

        return watching

    for name in ("run", "normal"):  # two runs, and the factors that the rounds begin with
        monkeypatch.setattr(recommender, name, watched(getattr(recommender, name)))
    nobody = (people.batch([[] for _ in POPULATION], 4),)
    _, transcript = recommender.fit_ranking(KEY, nobody, CATALOGUE, ROUNDS, noise_multiplier=Z)
    assert len(keys) == len(set(keys)) == 3
    counts = np.asarray(transcript.values("popularity")) / (Z / 0.25**0.5)
    others = jax.tree.map(lambda leaf: np.asarray(leaf) / (Z / (0.75 / 3) ** 0.5), transcript.values("statistics"))
    drawn = np.concatenate([np.ravel(leaf) for leaf in (counts, *jax.tree.leaves(others))])
    assert abs(drawn.std() - 1) < 4.5 / np.sqrt(2 * drawn.size) < 0.5


def test_popularity_is_the_first_feature_and_the_most_popular_item_has_one():
    model, transcript = fitted(ROUNDS, Z)
    told = np.asarray(transcript.values("popularity")[0])
    assert told.min() < 0 < told.max()  # nothing is less popular than not at all
    np.testing.assert_allclose(model.public[:, 0], np.maximum(told, 0) / told.max(), rtol=1e-6)
    np.testing.assert_array_equal(model.public[:, 1:], TASTES)
    np.testing.assert_array_equal(model.popularity, told)
    np.testing.assert_array_equal(model.mean, [1.0] + 5 * [0.0])
    wanted = [ROUNDS.popularity_precision, *3 * [ROUNDS.taste_precision], *2 * [ROUNDS.factor_precision]]
    np.testing.assert_allclose(model.precision, wanted, rtol=1e-6)


def test_without_noise_popularity_is_counted():
    counts = np.zeros(people.ITEMS)
    for row in POPULATION:
        for item, _ in row:
            counts[item] += len(row) ** -0.5
    model, transcript = fitted(Ranking(), 0.0)
    np.testing.assert_allclose(model.popularity, counts, rtol=1e-5)
    np.testing.assert_allclose(model.public[:, 0], counts / counts.max(), rtol=1e-5)
    assert transcript.mu() == np.inf


def test_what_was_seen_is_a_one_whatever_its_rating():
    rated = people.batch(POPULATION, 4)
    (seen,) = USERS
    assert not np.array_equal(rated.values, seen.values)
    np.testing.assert_array_equal(seen.values, rated.weights)
    for name in ("items", "weights", "index"):
        np.testing.assert_array_equal(getattr(seen, name), getattr(rated, name))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"popularity_precision": 0.0}, "popularity_precision: expected a number > 0, got 0.0"),
        ({"factor_precision": np.nan}, "factor_precision: expected a number > 0, got nan"),
        ({"factor_variance": 0}, "factor_variance: expected a finite number > 0, got 0"),
        ({"factor_norm": -1.0}, "factor_norm: expected a finite number > 0, got -1.0"),
        ({"power": -1.0}, "power: expected a finite number >= 0, got -1.0"),
        ({"unobserved": 0.0}, "unobserved: expected a finite number > 0, got 0.0"),
        ({"rank": -1}, "rank: expected a whole number >= 0, got -1"),
        ({"rounds": 0}, "rounds: expected a whole number >= 1, got 0"),
        ({"popularity_share": 1.0}, r"popularity_share: expected a number in \(0, 1\), got 1.0"),
    ],
)
def test_settings_out_of_range(change, message, monkeypatch):
    monkeypatch.setattr(recommender, "run", lambda *given: pytest.fail("something was spent"))
    with pytest.raises(InputError, match=message):
        fitted(ROUNDS._replace(**change), Z)


def test_a_catalogue_without_items_of_the_ratings_is_refused_before_anything_is_spent(monkeypatch):
    """Users who rated them would lose all of their ratings, and pay."""
    monkeypatch.setattr(recommender, "run", lambda *given: pytest.fail("something was spent"))
    few = Catalogue(*(table[:-1] for table in CATALOGUE))
    wanted = f"^catalogue: expected at least {people.ITEMS} items, those of the ratings, got {people.ITEMS - 1}$"
    with pytest.raises(InputError, match=wanted):
        recommender.fit_ranking(KEY, USERS, few, ROUNDS, noise_multiplier=Z)
