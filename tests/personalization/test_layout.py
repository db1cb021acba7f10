"""Nothing is lost, doubled or moved between users when ratings are laid out in buckets."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpaudit import _validate
from dpaudit.data.ratings import Ratings, from_arrays
from dpaudit.personalization.als import layout
from tests.personalization import people

LENGTHS = [0, 1, 3, 4, 5, 7, 20, 20, 33, 0, 40]


def ratings(lengths=LENGTHS, seed=0) -> Ratings:
    """Users of given lengths whose ratings stand in a random order; value and item differ for all of a user's."""
    rng = np.random.default_rng(seed)
    users = rng.permutation(np.repeat(np.arange(len(lengths)), lengths))
    items = np.array([np.count_nonzero(users[:row] == user) for row, user in enumerate(users)], np.int32)
    values = rng.uniform(1, 5, len(users))
    return from_arrays(users, items, values, num_users=len(lengths), num_items=50, low=1, high=5)


def triples(found: Ratings) -> list[tuple[int, int, float]]:
    return sorted(zip(found.users.tolist(), found.items.tolist(), found.values.tolist(), strict=True))


def unpacked(buckets) -> list[tuple[int, int, float]]:
    return sorted(
        (int(index), int(item), float(value))
        for users in (jax.tree.map(np.asarray, bucket) for bucket in buckets)
        for index, *row in zip(users.index, users.items, users.values, users.weights, strict=True)
        for item, value, weight in zip(*row, strict=True)
        if weight
    )


@pytest.mark.parametrize("named", [{}, {"buckets": [1, 8, 64]}, {"buckets": [40]}, {"rows": 8}])
def test_every_rating_is_in_one_place_and_every_user_in_one_row(named):
    given = ratings()
    buckets = layout.arranged(given, **named)
    assert unpacked(buckets) == triples(given)
    rows = np.concatenate([users.index for users in buckets])
    assert sorted(rows[rows >= 0]) == list(range(len(LENGTHS)))
    for users in buckets:
        assert (users.items.dtype, users.values.dtype, users.weights.dtype) == (jnp.int32, jnp.float32, jnp.float32)
        assert len(users.index) % named.get("rows", 1) == 0
        empty = np.asarray(users.weights) == 0
        assert not np.asarray(users.items)[empty].any()
        assert not np.asarray(users.values)[empty].any()
        assert not np.asarray(users.weights)[np.asarray(users.index) < 0].any()
        for index, weights in zip(np.asarray(users.index), np.asarray(users.weights), strict=True):
            assert weights.sum() == (LENGTHS[index] if index >= 0 else 0)


def test_widths_are_what_users_need():
    assert [users.items.shape for users in layout.arranged(ratings())] == [(5, 4), (2, 7), (2, 20), (2, 40)]
    assert [users.items.shape for users in layout.arranged(ratings([20] * 9))] == [(9, 20)]
    assert [users.items.shape for users in layout.arranged(ratings([0, 0]))] == [(2, 1)]
    assert [users.items.shape for users in layout.arranged(ratings(), buckets=[2, 50, 60], rows=4)] == [
        (4, 2),
        (8, 50),
    ]
    places = sum(users.weights.size for users in layout.arranged(ratings([*range(4, 50)])))
    assert places < 2 * sum(range(4, 50))


def test_results_come_back_in_the_order_of_users():
    given = ratings()
    buckets = layout.arranged(given, rows=4)
    sums = [jnp.stack([(users.weights * users.values).sum(1), users.weights.sum(1)], 1) for users in buckets]
    wanted = np.stack([np.bincount(given.users, weights, len(LENGTHS)) for weights in (given.values, None)], 1)
    np.testing.assert_allclose(layout.by_user(buckets, sums, len(LENGTHS)), wanted, rtol=1e-6)
    np.testing.assert_array_equal(np.asarray(layout.by_user(buckets, sums, 20))[11:], 0)


def test_a_row_that_no_sound_device_sends_is_nobodys():
    """Each hostile row breaks one rule alone; what is left of a sound one is all of it."""
    nan, most = float("nan"), people.ITEMS - 1
    honest = [[(0, 1.0)], [(0, 1.0), (most, -2.0)], [(1, 0.0), (2, 3.0), (4, 1.0)], []]
    hostile = [
        [(2, 1.0), (2, 1.0)],  # one item twice
        [(0, 1.0), (3, 1.0), (3, 2.0)],
        [(3, 1.0), (1, 1.0)],  # not in order
        [(most + 1, 1.0)],
        [(-1, 1.0), (0, 1.0)],
        [(0, nan), (1, 1.0)],
        [(0, 1.0), (1, -np.inf)],
    ]
    given = people.batch([*honest, *hostile, [(0, 1.0), (1, 1.0), (2, 1.0)]], 3)
    hole = given._replace(weights=given.weights.at[-1, 1].set(0))  # of the last row, whose middle place is not in use
    found = jax.tree.map(np.asarray, layout.sound(hole, people.ITEMS))
    np.testing.assert_array_equal(found.weights.sum(axis=1), [1, 2, 3, 0] + [0] * (len(hostile) + 1))
    for name in ("items", "values", "weights"):
        np.testing.assert_array_equal(getattr(found, name)[:4], getattr(given, name)[:4])
        assert not getattr(found, name)[4:].any()
    doubled = given._replace(weights=5 * given.weights)  # a weight is 1 or 0, whatever is sent
    assert set(np.unique(layout.sound(doubled, people.ITEMS).weights)) == {0.0, 1.0}


@pytest.mark.parametrize(
    "named, message",
    [
        ({"buckets": [4, 32]}, "buckets: expected a last width >= 40, the ratings of the user with most, got 32"),
        ({"buckets": [8, 8, 64]}, r"buckets: expected ascending widths, got \[8, 8, 64\]"),
        ({"buckets": []}, r"buckets: expected ascending widths, got \[\]"),
        ({"buckets": [0, 64]}, "buckets: expected a whole number >= 1, got 0"),
        ({"rows": 0}, "rows: expected a whole number >= 1, got 0"),
    ],
)
def test_what_would_lose_ratings_is_refused(named, message):
    with pytest.raises(_validate.InputError, match=message):
        layout.arranged(ratings(), **named)
