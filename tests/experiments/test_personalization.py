"""The experiment of paper 004: its population, its choosing, and what it writes."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpaudit.data.ratings import Ratings, split, split_users
from dpaudit.personalization.als import recommender
from dpaudit.personalization.als.recommender import Ranking
from dpaudit.personalization.als.steps import Model
from experiments.common import Rows
from experiments.paper004 import descent, jester, methods, page, rankings
from experiments.paper004 import run as personalization
from experiments.paper004.methods import METHODS, Method, Told, candidates, device_rows, score
from experiments.paper004.population import NOISE, population


@pytest.mark.slow
def test_population_has_the_noise_and_the_rank_that_it_says() -> None:
    """The true factors, found with all ratings of few items known, leave the noise and nothing more."""
    train, held_out = population(3, users=4_000, items=40, rank=2)
    assert np.all(np.bincount(train.users, minlength=4_000) <= 20)
    assert np.all(np.bincount(held_out.users, minlength=4_000) <= 1)
    both = set(zip(train.users.tolist(), train.items.tolist(), strict=True))
    assert not both & set(zip(held_out.users.tolist(), held_out.items.tolist(), strict=True))
    choice = {"popularity_share": 0.0, "rating_clip": 5.0, "power": 0.0, "first": 0.6, "rounds": 12}
    fit = METHODS["alternating"].fit(jax.random.key(0), train, choice | {"rank": 2}, math.inf, 0.0)
    found = score(METHODS["alternating"], fit.model, choice, train, held_out)
    alone = score(METHODS["alternating"], fit.model._replace(factors=0 * fit.model.factors), choice, train, held_out)
    assert NOISE < found < 1.3 * NOISE < alone


def test_candidates_are_different_and_begin_with_the_first() -> None:
    space = METHODS["alternating"].space
    found = candidates(space, 8, seed=0)
    assert len(found) == 8
    assert len({tuple(sorted(choice.items())) for choice in found}) == 8
    assert all(found[0][name] == values[0] for name, values in space.items() if name != "rounds")
    assert all((choice["rounds"] == 0) == (choice["rank"] == 0) for choice in found)
    assert candidates({}, 8, seed=0) == [{}]


def test_the_best_candidate_of_the_choosing_users_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the users that choose are not those that are learned from."""
    ratings, _ = population(0, users=200, items=30)
    learning, choosing = split_users(ratings, seed=0)
    assert learning.num_users + choosing.num_users == 200
    asked: list[int] = []
    ones, mean = jnp.ones((30, 1)), jnp.array([3.5, 1.0])

    def fit(key, train, choice, epsilon, mu) -> Told:
        asked.append(train.num_users)
        bias = jnp.full((30, 1), 0.0 if choice["sound"] else 3.0)
        return Told(Model(ones, bias, jnp.zeros(30), mean, jnp.array([5.0, jnp.inf])), 0.0)

    method = Method(fit, {"sound": (False, True)})
    seen, held_out, _ = split(choosing, seed=0)
    chosen = personalization.choose(jax.random.key(0), method, math.inf, learning, seen, held_out, most=2)
    assert chosen == {"sound": True}
    assert asked == [learning.num_users] * 2


def test_public_users_choose_alone_and_count_several_times(tmp_path) -> None:
    """No candidate is fitted to a private user's rating, and every split is fitted once."""
    ratings = jester.made_up(0, 2_000)
    private, public = split_users(ratings, seed=0)
    seen, _, _ = split(public, seed=0)
    asked: list[Ratings] = []
    method = METHODS["item bias"]

    def fit(key, train, choice, epsilon, mu) -> Told:
        asked.append(train)
        return method.fit(key, train, choice, epsilon, mu)

    fixed = {"rating_clip": (7.5, 5.0), "rating_variance": (2.5,), "bias_variance": (2.5,)}
    rows = Rows("004", "personalization_jester", str(tmp_path), 0)
    jester.compare(rows, ratings, [5.0], trials=2, most=2, methods={"watched": Method(fit, fixed)})
    assert [train.num_users for train in asked] == [9 * public.num_users] * 2 + [private.num_users] * 2
    for train in asked[:2]:
        assert len(train.values) == 9 * len(seen.values)
        for copy in range(9):
            own = train.users // public.num_users == copy
            np.testing.assert_array_equal(train.users[own] % public.num_users, seen.users)
            np.testing.assert_array_equal(train.values[own], seen.values)
    (row,) = rows.rows
    assert row["setting"]["transcript_epsilon"] == pytest.approx(5.0, rel=2e-3)
    assert row["setting"]["public_users"] == public.num_users
    assert "| watched | 5 |" in page.jester(rows.rows)


def test_choosing_is_counted() -> None:
    mu = personalization.mu_of(5.0)
    assert personalization.counted(mu, 1) == pytest.approx(5.0)
    assert (personalization.counted(mu, 9) or 0) > 15
    assert personalization.counted(0.0, 9) is None


TESTED = ("alternating, public features", "gradient steps, public features", "ranking, public features")


@pytest.mark.slow
def test_methods_cost_what_they_are_given_and_the_page_tells_of_them(tmp_path, monkeypatch) -> None:
    ratings, _ = population(0, users=300, items=40)
    features = np.eye(4, dtype=np.float32)[np.arange(40) % 4]
    ratings = ratings._replace(features=features, feature_names=tuple("abcd"))
    for name, method in ((name, METHODS[name]) for name in TESTED):
        first = {field: values[0] for field, values in method.space.items()}
        quick = {"rounds": 3, "batch_size": 30} if "batch_size" in first else {}
        narrow = {field: (value,) for field, value in (first | quick).items()}
        monkeypatch.setitem(METHODS, name, method._replace(space=narrow))
    rows = Rows("004", "personalization", str(tmp_path), 0)
    personalization.compare(rows, ratings, names=list(TESTED), epsilons=(2.0,), trials=1, most=2)
    for row in rows.rows:
        assert row["setting"]["transcript_epsilon"] == pytest.approx(2.0, rel=2e-3)
        assert row["setting"]["epsilon_with_choosing"] == (
            pytest.approx(2.0) if METHODS[row["setting"]["method"]].gaussian else None
        )
    text = page.utility(rows.rows)
    assert all(f": {name} | 2 |" in text for name in TESTED)


def test_recall_is_that_of_counting() -> None:
    """A model without factors ranks by popularity: recall by hand."""
    ratings, _ = population(1, users=120, items=60)
    train, _, held_out = split(ratings, seed=0)
    method = METHODS["popularity"]
    model, _ = method.fit(jax.random.key(0), train, {}, math.inf, 0.0)
    rows = recommender.seen(device_rows(train))
    counts = np.zeros(60)
    for items, weights in zip(*(np.asarray(leaf) for leaf in (rows[0].items, rows[0].weights)), strict=True):
        np.add.at(counts, items[weights > 0], 1 / np.sqrt(max(weights.sum(), 1)))
    np.testing.assert_allclose(model.popularity, counts, rtol=1e-5, atol=1e-5)
    shares = []
    for user in np.unique(held_out.users):
        wanted = set(held_out.items[held_out.users == user].tolist())
        known = set(train.items[train.users == user].tolist())
        first = [item for item in np.argsort(-counts) if item not in known][:20]
        shares.append(len(wanted & set(first)) / min(20, len(wanted)))
    assert score(method, model, {}, train, held_out) == pytest.approx(np.mean(shares), abs=0.01)


@pytest.mark.parametrize(
    ("quantity", "setting", "wanted"),
    [
        ("rmse", {"candidates": 8, "epsilon": 1.0, "epsilon_with_choosing": 3.4}, "tuned"),
        ("rmse", {"candidates": 8, "epsilon": 1.0, "epsilon_with_choosing": None}, "oracle"),
        ("rmse", {"candidates": 8, "epsilon": None, "epsilon_with_choosing": None}, "tuned"),
        ("rmse", {"candidates": 1, "epsilon": 1.0, "epsilon_with_choosing": None}, "default"),
        ("jester rmse", {"candidates": 10, "epsilon": 1.0, "public_users": 94}, "tuned"),
        ("jester rmse", {"candidates": 10, "epsilon": 1.0}, "oracle"),
        ("population rmse", {"epsilon": 1.0}, "oracle"),
    ],
)
def test_a_row_says_how_its_settings_came_about(quantity, setting, wanted) -> None:
    assert page.settled({"quantity": quantity, "setting": setting}) == wanted


def test_descent_without_privacy_finds_tastes_and_stops_by_itself() -> None:
    """Tastes lower the error by more than its standard error of 3%, of some 600 ratings; a first model does not."""
    ratings = jester.made_up(0, 400)
    train, _, held_out = split(ratings, seed=0)
    errors = {}
    for rank in (0, 2):
        begun = methods.first(jax.random.key(1), train, rank, features=False, centre=0.0)
        found = descent.descended(jax.random.key(2), train, begun, {"learning_rate": 0.1, "decay": 3.0})
        method = METHODS["gradient steps, public features"]
        errors[rank] = score(method, found, {"rank": rank}, train, held_out)
        errors["first"] = score(method, begun, {"rank": rank}, train, held_out)
    assert errors[2] < 0.95 * errors[0] < errors["first"]


def test_people_who_count_twice_have_moments_twice_as_long() -> None:
    train, _ = population(0, users=60, items=40)
    model, _ = METHODS["ranking, public features"].fit(jax.random.key(0), train, rankings.FACTORS, math.inf, 0.0)
    once, twice = (
        rankings.moment_over_noise(model, jester.repeated(train, count), Ranking(**rankings.FACTORS), 1.0)
        for count in (1, 2)
    )
    assert twice == pytest.approx(2 * once, rel=1e-4)
    quieter = rankings.moment_over_noise(model, train, Ranking(**rankings.FACTORS), 3.0)
    assert quieter == pytest.approx(3 * once, rel=1e-4)
