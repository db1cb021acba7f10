"""How good a model is, against loops over users: factors, errors within the scale, items among the first k."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpaudit import InputError
from dpaudit.data.ratings import Ratings, from_arrays
from dpaudit.personalization.als import metrics, steps
from dpaudit.personalization.als.layout import arranged
from dpaudit.personalization.als.steps import Model, Step

USERS, ITEMS, RANK = 30, 700, 2  # so many items that partitions are not sorted by the way
RNG = np.random.default_rng(4)
STEP = Step(1.0, 1.0, steps.uniform)


def model() -> Model:
    factors = jnp.asarray(RNG.normal(size=(ITEMS, RANK)), jnp.float32)
    mean = jnp.asarray(RNG.normal(size=1 + RANK), jnp.float32)
    return Model(jnp.ones((ITEMS, 1)), factors, jnp.zeros(ITEMS), mean, jnp.array([0.5, 1.0, 2.0]))


def ratings(pairs: list[tuple[int, int]]) -> Ratings:
    """Of these users and items, from -2 to 2."""
    users, items = np.array(pairs, int).reshape(-1, 2).T
    values = RNG.uniform(-2, 2, len(users))
    return from_arrays(users, items, values, num_users=USERS, num_items=ITEMS, low=-2, high=2)


def population() -> tuple[Ratings, Ratings]:
    """(seen, held out): user u has rated u % 8 items, and u % 7 others are held out; of those that FACTORS praise."""
    likes = FACTORS @ EMBEDDED.T
    order = np.argsort(RNG.normal(likes, 0.5), axis=1)[:, ::-1].tolist()
    seen = [(u, i) for u in range(USERS) for i in order[u][: u % 8]]
    return ratings(seen), ratings([(u, i) for u in range(USERS) for i in order[u][8 : 8 + u % 7]])


MODEL = model()
EMBEDDED = np.concatenate([np.ones((ITEMS, 1)), np.asarray(MODEL.factors, np.float64)], axis=1)
FACTORS = RNG.normal(size=(USERS, 1 + RANK)).astype(np.float32)
SEEN, HELD_OUT = population()


def solved(user: int) -> np.ndarray:
    own = SEEN.users == user
    rows, precision = EMBEDDED[SEEN.items[own]], np.asarray(MODEL.precision, np.float64)
    right = rows.T @ SEEN.values[own] + precision * np.asarray(MODEL.mean)
    return np.linalg.solve(rows.T @ rows + np.diag(precision), right)


def by_sorting(k: int, *, known: bool = True) -> float:
    """Recall of FACTORS; ``known`` items are not ranked."""
    shares = []
    for user in range(USERS):
        wanted = set(HELD_OUT.items[HELD_OUT.users == user].tolist())
        rated = set(SEEN.items[SEEN.users == user].tolist()) if known else set()
        ranked = [item for item in np.argsort(-(EMBEDDED @ FACTORS[user])) if item not in rated]
        if wanted:
            shares.append(len(wanted & set(ranked[:k])) / min(k, len(wanted)))
    return float(np.mean(shares))


def test_devices_find_their_users_factors_whatever_bucket_they_are_in() -> None:
    solve = jax.jit(lambda *history: metrics.own_factors(MODEL, history, STEP, num_users=USERS))
    history = arranged(SEEN, rows=4)
    assert len(history) > 1
    found = np.asarray(solve(*history))
    np.testing.assert_allclose(found, [solved(user) for user in range(USERS)], atol=1e-5)
    np.testing.assert_allclose(found[0], MODEL.mean, atol=1e-6)  # who has rated nothing
    broken = history[-1]._replace(items=history[-1].items[:, ::-1])  # out of order
    others = np.asarray(solve(*history[:-1], broken))
    there = np.asarray(broken.index)[np.asarray(broken.index) >= 0]
    np.testing.assert_allclose(others[there], np.broadcast_to(MODEL.mean, (len(there), 1 + RANK)), atol=1e-6)
    assert np.abs(found[there] - others[there]).max() > 0.1


def test_errors_are_of_predictions_within_the_scale() -> None:
    factors = np.where(np.arange(USERS)[:, None] % 2, FACTORS, -FACTORS)
    guesses = np.array([EMBEDDED[i] @ factors[u] for u, i in zip(HELD_OUT.users, HELD_OUT.items, strict=True)])
    assert guesses.min() < -2.5 < 2.5 < guesses.max()
    wanted = np.sqrt(np.mean([(min(max(g, -2), 2) - y) ** 2 for g, y in zip(guesses, HELD_OUT.values, strict=True)]))
    assert metrics.rmse(MODEL, jnp.asarray(factors), HELD_OUT) == pytest.approx(wanted, rel=1e-6)
    assert np.sqrt(np.mean((guesses - HELD_OUT.values) ** 2)) > 1.05 * wanted


@pytest.mark.parametrize("k", [1, 6, 20, ITEMS, ITEMS + 5])
def test_recall_is_that_of_sorting(k: int) -> None:
    found = metrics.recall(MODEL, jnp.asarray(FACTORS), SEEN, HELD_OUT, k=k)
    assert found == pytest.approx(by_sorting(k), rel=1e-12)
    if k < ITEMS:
        others = [by_sorting(k + 1), by_sorting(k, known=False)] + ([by_sorting(k - 1)] if k > 1 else [])
        assert min(abs(other - found) for other in others) > 1e-3
    else:
        assert found == 1


def test_of_items_that_tie_no_more_and_no_fewer_than_k_are_first() -> None:
    """Nobody is told apart from anybody: of all items that are left, those held out, k are found, whichever."""
    alike, known = jnp.zeros((USERS, 1 + RANK)), ratings([(3, item) for item in range(20, ITEMS)])
    for k in (1, 7, 20):
        assert metrics.recall(MODEL, alike, known, ratings([(3, item) for item in range(20)]), k=k) == 1
    few = ratings([(3, item) for item in range(15)])  # five that are left are not among them
    assert 10 / 15 <= metrics.recall(MODEL, alike, known, few, k=15) <= 1


def test_a_k_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="k: expected a whole number >= 1, got 0"):
        metrics.recall(MODEL, jnp.asarray(FACTORS), SEEN, HELD_OUT, k=0)


@pytest.mark.parametrize(
    "judge", [metrics.rmse, lambda model, own, held_out: metrics.recall(model, own, SEEN, held_out)]
)
def test_a_model_that_says_nothing_is_not_scored(judge: Callable[..., float]) -> None:
    """Of NaN, some order is the first one and some items are among the first k."""
    lost = MODEL._replace(factors=jnp.full((ITEMS, RANK), jnp.nan))
    own = jnp.asarray(FACTORS)
    with pytest.raises(InputError, match=f"^model: expected finite numbers, got {ITEMS * RANK} NaN or infinite of "):
        judge(lost, own, HELD_OUT)
    with pytest.raises(InputError, match=r"^factors: expected finite numbers, got 1 NaN or infinite of "):
        judge(MODEL, own.at[3, 0].set(jnp.inf), HELD_OUT)
    with pytest.raises(InputError, match=f"^factors: expected a row for each of {USERS} users, got 4 rows$"):
        judge(MODEL, own[:4], HELD_OUT)
    with pytest.raises(InputError, match=r"^held_out: expected at least one rating, got none$"):
        judge(MODEL, own, ratings([]))


def test_nobody_need_have_rated_before() -> None:
    found = metrics.recall(MODEL, jnp.asarray(FACTORS), ratings([]), HELD_OUT, k=5)
    assert found == pytest.approx(by_sorting(5, known=False), abs=1e-12)
