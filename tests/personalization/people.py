"""Small populations for tests: rows of a batch from lists, honest and hostile ones."""

import jax.numpy as jnp
import numpy as np

from dpaudit.personalization.als.layout import Users
from dpaudit.personalization.als.steps import Model

ITEMS, RANK, PUBLIC = 6, 2, 2


def batch(rows, width):
    """Users from lists of (item, rating), as a device would send them: in any order, repeated, or wrong."""
    items, values, weights = (np.zeros((len(rows), width)) for _ in range(3))
    for u, row in enumerate(rows):
        for place, (item, value) in enumerate(row):
            items[u, place], values[u, place], weights[u, place] = item, value, 1
    columns = jnp.asarray(items, jnp.int32), jnp.asarray(values, jnp.float32), jnp.asarray(weights, jnp.float32)
    return Users(*columns, jnp.arange(len(rows)))


def honest(count, seed, width=4):
    """Users with 0 to ``width`` ratings of distinct items, in order, as lists."""
    rng = np.random.default_rng(seed)
    chosen = (np.sort(rng.choice(ITEMS, rng.integers(0, width + 1), replace=False)) for _ in range(count))
    return [[(int(item), float(rng.normal())) for item in items] for items in chosen]


HOSTILE = [
    [(0, 1e30), (1, -1e30), (4, 1e30)],
    [(2, -3e38)],
    [(3, 1e6)],
    [(0, np.nan), (1, 1.0)],
    [(1, np.inf), (5, -np.inf)],
    [(2, 5.0)] * 4,  # one item again and again
    [(4, 9.0), (1, -9.0)],  # not in order
    [(1, 9.0), (1_000_000, 9.0)],
    [(-1, 9.0), (3, 9.0)],
    [],
    [(item, 1e10) for item in range(4)],
]


def model(seed=0, rank=RANK):
    """Factors drawn at random, an intercept and one taste; popularity as noise may leave it."""
    rng = np.random.default_rng(seed)
    public = np.column_stack([np.ones(ITEMS), rng.normal(size=ITEMS)])
    factors, popularity, mean = (rng.normal(size=shape) for shape in ((ITEMS, rank), ITEMS, PUBLIC + rank))
    public, factors, popularity, mean = (jnp.asarray(x, jnp.float32) for x in (public, factors, 3 * popularity, mean))
    return Model(public, factors, popularity, mean, jnp.full(PUBLIC + rank, 2.0))
