"""Makes up a population of any size with tastes of known rank, to show what a small data set cannot.

y_ij = 3.5 + b_j + u_i' v_j + noise, b_j ~ N(0, 0.4^2), u_i and v_j standard normal over sqrt of the rank times 0.6,
noise ~ N(0, 0.5^2), so that nobody can predict better than 0.5. Items are as popular as 1/(10 + place), and each user
rates up to 20 different ones; one more is held out.
"""

import numpy as np

from dpaudit.data.ratings import Ratings, from_arrays

NOISE, PLACES = 0.5, 24


def population(seed: int, *, users: int, items: int = 2_000, rank: int = 4) -> tuple[Ratings, Ratings]:
    """(train, held out) ratings: about 20 and 1 of every user."""
    rng = np.random.default_rng(seed)
    bias, taste = 0.4 * rng.standard_normal(items), 0.6 * rng.standard_normal((items, rank))
    popular = 1 / (10 + np.arange(items))
    ends = np.cumsum(popular / popular.sum())
    parts: list[tuple[np.ndarray, ...]] = []
    for first in range(0, users, 100_000):
        count = min(100_000, users - first)
        own = rng.standard_normal((count, rank)) / np.sqrt(rank)
        drawn = np.sort(np.minimum(np.searchsorted(ends, rng.random((count, PLACES))), items - 1), axis=1)
        new = np.concatenate([np.ones((count, 1), bool), drawn[:, 1:] > drawn[:, :-1]], axis=1)
        wanted = 3.5 + bias[drawn] + np.einsum("ur,uwr->uw", own, taste[drawn])
        values = wanted + NOISE * rng.standard_normal(drawn.shape)
        order = np.argsort(np.where(new, rng.random(drawn.shape), 2.0), axis=1)
        place = np.argsort(order, axis=1)
        kept = new & (place < 21)
        row, column = np.nonzero(kept)
        parts.append((row + first, drawn[row, column], values[row, column], place[row, column]))
    owner, item, value, place = (np.concatenate(column) for column in zip(*parts, strict=True))
    low, high = float(np.floor(value.min())), float(np.ceil(value.max()))

    def part(chosen: np.ndarray) -> Ratings:
        return from_arrays(
            owner[chosen], item[chosen], value[chosen], num_users=users, num_items=items, low=low, high=high
        )

    return part(place > 0), part(place == 0)
