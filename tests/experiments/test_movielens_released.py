"""Tastes that public users have are found, and the page says of one release what its rows say."""

import jax
import numpy as np
import pytest

from dpaudit.data.ratings import Ratings, from_arrays
from dpaudit.personalization.als import metrics, recommender
from experiments.paper004 import methods, movielens, page, prior
from experiments.paper004.jester import made_up
from experiments.paper004.run import mu_of

SPREAD = np.array([[0.5, 0.2, 0.0], [0.2, 0.3, 0.0], [0.0, 0.0, 0.1]])  # of tastes
MEAN = np.array([3.4, 0.6, -0.3])


def tasting(users: int, seed: int, noise: float = 0.5) -> tuple[Ratings, np.ndarray, np.ndarray, np.ndarray]:
    """Ratings by users whose tastes are drawn from a prior, what is public of the items, their biases, and tastes."""
    rng = np.random.default_rng(seed)
    public = np.column_stack([np.ones(40), rng.random((40, 2)) < 0.5]).astype(float)
    own = rng.multivariate_normal(MEAN, SPREAD, users)
    biases = 0.3 * rng.normal(size=40)
    biases -= public @ np.linalg.lstsq(public, biases, rcond=None)[0]  # what tastes do not tell of the items
    values = own @ public.T + biases + noise * rng.normal(size=(users, 40))
    of, rated = np.nonzero(rng.random(values.shape) < 0.5)
    ratings = from_arrays(of, rated, values[of, rated], num_users=users, num_items=40, low=-20, high=20)
    return ratings, public, biases, own


def test_the_prior_that_tastes_were_drawn_from_is_found():
    ratings, public, biases, own = tasting(1_000, seed=1)
    found = prior.learned(ratings, public, weight=1.0, shrinkage=1.0)
    close = 5 * np.sqrt(np.diag(SPREAD) / 1_000)
    assert (np.abs(found.mean - own.mean(0)) < close).all()
    np.testing.assert_allclose(found.covariance, SPREAD, atol=5 * 0.5 * (2 / 1_000) ** 0.5 + 0.01)
    assert found.variance == pytest.approx(0.25, rel=0.05)
    np.testing.assert_allclose(found.biases, biases, atol=0.15)
    few = prior.learned(ratings, public, weight=1e9)
    np.testing.assert_allclose(few.covariance, 0.85 * np.diag([1 / 5, 1 / 30, 1 / 30]), rtol=1e-3, atol=1e-6)


def test_the_model_has_that_prior():
    """A device's own half is the posterior mean, the same in the turned features as in those of the items."""
    ratings, public, _, _ = tasting(50, seed=2)
    tastes = prior.learned(ratings, public)
    model = prior.model(tastes, public, biased=False)
    rows = methods.device_rows(ratings)
    own = metrics.own_factors(model, rows, recommender.PLAIN, num_users=50)
    ours = np.asarray(own @ np.concatenate([model.public, model.factors], axis=1).T)
    for user in range(3):
        chosen = ratings.users == user
        items, values = ratings.items[chosen], ratings.values[chosen]
        spread = tastes.covariance @ public[items].T
        gain = spread @ np.linalg.inv(public[items] @ spread + tastes.variance * np.eye(len(items)))
        wanted = public @ (tastes.mean + gain @ (values - public[items] @ tastes.mean))
        np.testing.assert_allclose(ours[user], wanted, atol=0.01)
    begun = prior.model(tastes, public, biased=True)
    np.testing.assert_allclose(begun.public[:, 0] - model.public[:, 0], tastes.biases, atol=1e-5)


def test_popularity_is_one_more_taste_and_one_release_is_all_that_is_charged():
    ratings = made_up(0, 300)
    choice = {name: values[0] for name, values in movielens.RELEASED.items()} | {"taste_precision": 25.0}
    fit = methods.rests(movielens.isotropic)
    model, told = fit(jax.random.key(0), ratings, choice, 5.0, mu_of(5.0))
    assert told == pytest.approx(5.0, rel=1e-3)
    popular = np.asarray(model.public[:, -1])
    assert popular.mean() == pytest.approx(0, abs=1e-4)
    assert np.corrcoef(popular, np.log(np.maximum(model.popularity, 1)))[0, 1] > 0.999
    assert np.asarray(model.precision).tolist() == [5.0, 300.0, 5.0]
    assert np.asarray(model.mean).tolist() == [3.5, 0.0, 1.0]


def row(method: str, ours: float, epsilon: float, quantity: str = "movielens rmse") -> dict:
    return {"quantity": quantity, "setting": {"method": method, "epsilon": epsilon}, "ours": ours}


def page_rows(released=(0.975, 0.945), tastes=(0.97, 0.93), begun=(0.94, 0.92), alone=0.95) -> list[dict]:
    found = [row(movielens.ALONE, alone, 0.0, "movielens without release")]
    for place, epsilon in enumerate((1.0, 5.0)):
        found += [row(movielens.ALTERNATING, 0.98 - 0.03 * place, epsilon)]
        found += [row(movielens.RELEASE, released[place], epsilon), row(movielens.TASTES, tastes[place], epsilon)]
        found += [row(movielens.BEGUN, begun[place], epsilon)]
        for method in (movielens.ALTERNATING, "gradient steps, public features", "NoisyAdam, public features"):
            found.append(row(method, 0.985 - 0.03 * place, epsilon, "rmse"))
    return found


def test_one_release_leads_only_where_it_is_below_every_other_method():
    assert page.movielens_better(page_rows()).holds
    told = page.one_release(page_rows())
    assert told.holds
    assert told.values["values"] == "0.975, 0.945"
    assert told.values["tastes"] == "0.970, 0.930"
    assert told.values["least"] == pytest.approx(0.005)
    assert not page.one_release(page_rows(released=(0.981, 0.945))).holds
    assert not page.one_release(page_rows(tastes=(0.97, 0.95))).holds
    steps = [
        one | {"ours": 0.974} if "steps" in one["setting"]["method"] and one["setting"]["epsilon"] == 1 else one
        for one in page_rows()
    ]
    assert not page.one_release(steps).holds


def test_public_users_alone_are_passed_from_some_epsilon_on():
    told = page.public_alone(page_rows())
    assert told.holds
    assert told.values["passes"] == "from ε = 5 on"
    assert not page.public_alone(page_rows(alone=0.98)).holds  # passed at every epsilon
    assert not page.public_alone(page_rows(begun=(0.94, 0.935))).holds  # worse than without
    assert not page.public_alone(page_rows(begun=(0.96, 0.92))).holds  # worse than what it began with
