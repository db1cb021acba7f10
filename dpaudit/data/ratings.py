"""Holds the ratings of many users, checks them, and splits them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpaudit import _validate


class Ratings(NamedTuple):
    """Ratings of items by users, in the order of their source.

    Attributes:
      users: int32 ``[n]``, 0 to num_users - 1.
      items: int32 ``[n]``, 0 to num_items - 1; nobody rates an item twice.
      values: float32 ``[n]``, low to high.
      num_users: number of users, some of whom may have no rating.
      num_items: number of items, some of which may have no rating.
      low, high: the ends of the scale.
      times: int64 ``[n]``, seconds since 1970; ``[0]`` where they are not known.
      features: float32 ``[num_items, f]``, public features of an item: 1 where it has one, else 0.
      feature_names: f names.
      titles: num_items titles, or none.
      origin: one line to display: what, how many, from where.
    """

    users: np.ndarray
    items: np.ndarray
    values: np.ndarray
    num_users: int
    num_items: int
    low: float
    high: float
    times: np.ndarray
    features: np.ndarray
    feature_names: tuple[str, ...]
    titles: tuple[str, ...]
    origin: str


def from_arrays(
    users: np.ndarray,
    items: np.ndarray,
    values: np.ndarray,
    *,
    num_users: int,
    num_items: int,
    low: float,
    high: float,
    features: np.ndarray | None = None,
    origin: str = "from arrays",
) -> Ratings:
    """Checks ratings given as arrays; without ``features`` an item has none, ``[num_items, 0]``.

    Raises:
      InputError: a user, an item or a value out of range (NaN is), the same user and item twice, columns of other
        lengths; the message names the first rating that is wrong.
    """
    shape = np.shape(users)
    for name, column in (("users", users), ("items", items), ("values", values)):
        if len(shape) != 1 or np.shape(column) != shape:
            raise _validate.expected(name, "shape [n], as long as users", f"shape {list(np.shape(column))}")
    for name, column, count in (("users", users, num_users), ("items", items, num_items)):
        number = np.asarray(column)
        wrong = np.flatnonzero(~((number >= 0) & (number < count) & (number == np.floor(number))))
        if wrong.size:
            wanted = f"whole numbers from 0 to {count - 1}"
            raise _validate.expected(name, wanted, f"{number[wrong[0]]} in rating {wrong[0]}")
    wrong = np.flatnonzero(~((np.asarray(values) >= low) & (np.asarray(values) <= high)))
    if wrong.size:
        wanted = f"numbers from {low} to {high}"
        raise _validate.expected("values", wanted, f"{np.asarray(values)[wrong[0]]} in rating {wrong[0]}")
    told = np.zeros((num_items, 0)) if features is None else np.asarray(_validate.finite(features=features))
    if told.ndim != 2 or len(told) != num_items:
        raise _validate.expected("features", f"shape [{num_items}, f]", f"shape {list(told.shape)}")
    columns = np.asarray(users, np.int32), np.asarray(items, np.int32), np.asarray(values, np.float32)
    twice = repeated(*columns[:2])
    if twice is not None:
        first, again = twice
        got = f"user {columns[0][again]} and item {columns[1][again]} in ratings {first} and {again}"
        raise _validate.expected("ratings", "no user to rate an item twice", got)
    names = tuple(f"feature {i}" for i in range(told.shape[1]))
    known = np.zeros(0, np.int64), told.astype(np.float32), names, ()
    return Ratings(*columns, num_users, num_items, low, high, *known, origin)


def repeated(users: np.ndarray, items: np.ndarray) -> tuple[int, int] | None:
    """Finds two ratings of one item by one user, the later one as early as possible; None where there are none."""
    pairs = users.astype(np.int64) << 32 | items
    order = np.argsort(pairs, kind="stable")
    again = np.flatnonzero(pairs[order[1:]] == pairs[order[:-1]])
    if not again.size:
        return None
    place = again[np.argmin(order[again + 1])]
    return int(order[place]), int(order[place + 1])


def split(ratings: Ratings, *, fractions: Sequence[float] = (0.8, 0.1, 0.1), seed: int) -> tuple[Ratings, ...]:
    """Splits ratings into several parts at random; users and items keep their numbers.

    Args:
      ratings: the ratings to split; each part keeps their order.
      fractions: of each part, in sum 1.
      seed: of the permutation; the same parts for the same seed and number of ratings.

    Raises:
      InputError: fractions that are not positive or do not sum to 1.
    """
    parts = _parts(len(ratings.values), fractions, seed)
    return tuple(_chosen(ratings, np.sort(part)) for part in parts)


def split_users(ratings: Ratings, *, fractions: Sequence[float] = (0.9, 0.1), seed: int) -> tuple[Ratings, ...]:
    """Splits users, each with all ratings, into several parts at random; items keep their numbers.

    In each part the users are renumbered in their order.

    Args:
      ratings: the ratings to split; each part keeps their order.
      fractions: of the users in each part, in sum 1.
      seed: of the permutation; the same parts for the same seed and number of users.

    Raises:
      InputError: fractions that are not positive or do not sum to 1.
    """
    found = []
    for part in _parts(ratings.num_users, fractions, seed):
        number = np.full(ratings.num_users, -1, np.int32)
        number[np.sort(part)] = np.arange(len(part))
        chosen = _chosen(ratings, np.flatnonzero(number[ratings.users] >= 0))
        found.append(chosen._replace(users=number[chosen.users], num_users=len(part)))
    return tuple(found)


def _parts(count: int, fractions: Sequence[float], seed: int) -> list[np.ndarray]:
    if not fractions or not all(f > 0 for f in fractions) or abs(sum(fractions) - 1) > 1e-9:
        raise _validate.expected("fractions", "positive numbers that sum to 1", list(fractions))
    ends = np.round(count * np.cumsum(fractions)).astype(int)
    return np.split(np.random.default_rng(seed).permutation(count), ends[:-1])


def _chosen(ratings: Ratings, rows: np.ndarray) -> Ratings:
    times = ratings.times[rows] if len(ratings.times) else ratings.times
    columns = {"users": ratings.users[rows], "items": ratings.items[rows], "values": ratings.values[rows]}
    return ratings._replace(**columns, times=times)
