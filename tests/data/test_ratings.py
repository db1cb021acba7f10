"""Ratings of one's own are held to what they must be, and splits lose and double nothing."""

from typing import Any

import numpy as np
import pytest

from dpaudit import _validate
from dpaudit.data.ratings import Ratings, from_arrays, split, split_users

RNG = np.random.default_rng(0)


def some(count=1_000, users=40, items=60) -> Ratings:
    pairs = RNG.permutation(users * items)[:count]
    values = RNG.uniform(1, 5, count)
    named = {"num_users": users, "num_items": items, "low": 1.0, "high": 5.0}
    found = from_arrays(pairs // items, pairs % items, values, **named, features=RNG.random((items, 2)))
    return found._replace(times=np.arange(count))


def test_arrays_become_ratings():
    found = some()
    assert [column.dtype for column in found[:3]] == [np.int32, np.int32, np.float32]
    assert (found.features.shape, found.features.dtype, len(found.feature_names)) == ((60, 2), np.float32, 2)
    none = from_arrays(np.array([], int), np.array([], int), np.array([]), num_users=3, num_items=2, low=0, high=1)
    assert (none.features.shape, len(none.values)) == ((2, 0), 0)


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"users": [0, 1, 3]}, "users: expected whole numbers from 0 to 2, got 3 in rating 2"),
        ({"users": [0, -1, 2]}, "users: expected whole numbers from 0 to 2, got -1 in rating 1"),
        ({"items": [0, 1.5, 2]}, "items: expected whole numbers from 0 to 4, got 1.5 in rating 1"),
        ({"items": [0, float("nan"), 2]}, "items: expected whole numbers from 0 to 4, got nan in rating 1"),
        ({"values": [1, 5, 5.5]}, "values: expected numbers from 1 to 5, got 5.5 in rating 2"),
        ({"values": [float("nan"), 5, 5]}, "values: expected numbers from 1 to 5, got nan in rating 0"),
        ({"values": [1, 5]}, r"values: expected shape \[n\], as long as users, got shape \[2\]"),
        ({"users": [2, 0, 2], "items": [4, 4, 4]}, "rate an item twice, got user 2 and item 4 in ratings 0 and 2"),
        (
            {"users": [0, 2, 2, 0], "items": [1, 4, 4, 1], "values": [1, 2, 5, 1]},  # twice twice: the earlier again
            "rate an item twice, got user 2 and item 4 in ratings 1 and 2",
        ),
        ({"features": np.ones((4, 1))}, r"features: expected shape \[5, f\], got shape \[4, 1\]"),
        ({"features": np.full((5, 1), np.inf)}, "features: expected finite numbers, got 5 NaN or infinite of 5"),
    ],
)
def test_what_is_no_rating_is_refused(changed, message):
    given = {"users": [0, 1, 2], "items": [0, 1, 4], "values": [1, 2, 5]} | changed
    arrays: dict[str, Any] = {name: np.array(value) for name, value in given.items()}
    with pytest.raises(_validate.InputError, match=message):
        from_arrays(**arrays, num_users=3, num_items=5, low=1, high=5)


def test_a_split_is_a_partition_drawn_by_its_seed():
    whole = some()
    parts = split(whole, seed=3)
    assert [len(part.values) for part in parts] == [800, 100, 100]
    assert sorted(time for part in parts for time in part.times) == list(range(1_000))
    for part in parts:
        assert (np.diff(part.times) > 0).all()
        for name in ("users", "items", "values"):
            np.testing.assert_array_equal(getattr(part, name), getattr(whole, name)[part.times])
        assert (part.num_users, part.num_items, part.origin) == (40, 60, whole.origin)
    for seed, same in ((3, True), (4, False)):
        assert np.array_equal(split(whole, seed=seed)[1].times, parts[1].times) == same
    drawn = np.mean([split(whole, seed=seed)[2].times.mean() for seed in range(50)])
    assert abs(drawn - 499.5) < 4 * 1_000 / 12**0.5 / 5_000**0.5  # of all places alike


def test_users_are_split_whole_and_numbered_anew():
    whole = some()
    parts = split_users(whole, fractions=(0.75, 0.25), seed=3)
    assert [part.num_users for part in parts] == [30, 10]
    assert sorted(time for part in parts for time in part.times) == list(range(1_000))
    owners = []
    for part in parts:
        before = whole.users[part.times]
        number = {new: {*before[part.users == new]} for new in range(part.num_users)}
        assert all(len(old) == 1 for old in number.values())
        owners += [old.pop() for old in number.values()]
        assert owners[-part.num_users :] == sorted(owners[-part.num_users :])
        np.testing.assert_array_equal(part.items, whole.items[part.times])
    assert sorted(owners) == list(range(40))


@pytest.mark.parametrize("fractions", [(), (0.5, 0.4), (1.2, -0.2), (float("nan"), 0.5)])
def test_fractions_that_are_no_shares_are_refused(fractions):
    for parts in (split, split_users):
        with pytest.raises(_validate.InputError, match="fractions: expected positive numbers that sum to 1, got"):
            parts(some(), fractions=fractions, seed=0)
