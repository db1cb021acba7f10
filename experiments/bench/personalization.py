"""Times exact user solves beside NumPy and plain JAX, and user-level sums beside jax-privacy.

    python -m experiments.bench.personalization                    # a million users; minutes
    python -m experiments.bench.personalization --quick --out DIR  # 20,000 users: under a minute
    python -m experiments.bench.personalization --part solve       # one part alone; the rows of the others stay

Expect, on two cores: a million solves of 20 ratings and rank 32 at least five times as fast as a NumPy loop of them.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_factor, cho_solve

from dpaudit.data.ratings import Ratings, from_arrays
from dpaudit.personalization.als.layout import Users, arranged
from dpaudit.personalization.als.solve import user_factors
from experiments.bench.sides import in_turn, ratio, timed
from experiments.bench.user_sums import sums
from experiments.common import Rows, options

PARTS = SOLVE, SUMS = "solve", "sums"
COHORTS = {"MLP": 64, "FlaxCNN28": 64, "FlaxCNN32": 32}  # users whose examples are clipped as one
ITEMS, RANK, RATINGS, RIDGE = 10_000, 32, 20, 0.05
SLICE = 10_000  # users whom the other sides solve for; their time for each is the same for more
OURS, LOOP, STACKED, VMAP = "ours", "NumPy loop", "NumPy, stacked", "JAX vmap of cho_solve"


def solves(rows: Rows, users: int, rounds: int) -> None:
    """Exact solves of as many users by every side, the same factors of a sample in float64."""
    rng = np.random.default_rng(rows.seed)
    factors = (rng.normal(size=(ITEMS, RANK)) / np.sqrt(RANK)).astype(np.float32)
    prior = (0.1 * factors.T @ factors / ITEMS).astype(np.float32)
    (everybody,) = arranged(population(rng, np.full(users, RATINGS)))
    few = jax.tree.map(lambda column: column[: min(users, SLICE)], everybody)
    given = tuple(map(np.asarray, few))
    plain = jax.jit(by_vmap)
    runs = {
        OURS: timed(solve, factors, prior, everybody),
        LOOP: timed(by_loop, factors, prior, *given),
        STACKED: timed(by_stack, factors, prior, *given),
        VMAP: timed(plain, factors, prior, few),
    }
    exact = by_loop(factors.astype(np.float64), prior.astype(np.float64), *given)
    setting, scale = {"rank": RANK, "ratings": RATINGS, "items": ITEMS}, f"{rounds} rounds, all sides in turn"
    computed = {
        OURS: solve(factors, prior, few),
        LOOP: by_loop(factors, prior, *given),
        STACKED: by_stack(factors, prior, *given),
        VMAP: plain(factors, prior, few),
    }
    for side, found in computed.items():
        error = np.linalg.norm(np.asarray(found) - exact) / np.linalg.norm(exact)
        assert error < 1e-5, f"{side} is not the solution: {error}"
    _, times = in_turn(runs, rounds)
    each = {side: np.divide(times[side], users if side == OURS else len(given[0])).tolist() for side in times}
    for side, values in each.items():
        how = setting | {"side": side, "users": users if side == OURS else len(given[0])}
        rows.spread("users_per_second", how, np.divide(1, values).tolist(), scale=scale)
    for side in each:
        if side != OURS:
            ratio(rows, "solve_ratio", setting, each, side, OURS, scale)
    rows.finish_part("solves")


def population(rng: np.random.Generator, lengths: np.ndarray) -> Ratings:
    """Users of these lengths; each rates a run of items from one of their own on, so that none is rated twice."""
    owners = np.repeat(np.arange(len(lengths)), lengths)
    places = np.arange(len(owners)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    items = (rng.integers(ITEMS, size=len(lengths))[owners] + 7 * places) % ITEMS
    values = rng.normal(size=len(owners)).clip(-3, 3)
    return from_arrays(owners, items, values, num_users=len(lengths), num_items=ITEMS, low=-3, high=3)


def solve(factors: np.ndarray, prior: np.ndarray, users: Users) -> jax.Array:
    return user_factors(jnp.asarray(factors), jnp.asarray(prior), users, ridge=RIDGE)


def by_loop(factors: np.ndarray, prior: np.ndarray, items: Any, values: Any, weights: Any, index: Any) -> np.ndarray:
    """User after user, all of whose places are ratings."""
    del weights
    found = np.empty((len(index), RANK), factors.dtype)
    ridge = RIDGE * items.shape[1] * np.eye(RANK, dtype=factors.dtype)
    for i in range(len(index)):
        rows = factors[items[i]]
        found[i] = np.linalg.solve(rows.T @ rows + prior + ridge, rows.T @ values[i])
    return found


def by_stack(factors: np.ndarray, prior: np.ndarray, items: Any, values: Any, weights: Any, index: Any) -> np.ndarray:
    """Solves for all users in one call."""
    del weights, index
    rows = factors[items]
    matrix = rows.mT @ rows + prior + RIDGE * items.shape[1] * np.eye(RANK, dtype=factors.dtype)
    return np.linalg.solve(matrix, rows.mT @ values[..., None])[..., 0]


def by_vmap(factors: jax.Array, prior: jax.Array, users: Users) -> jax.Array:
    """Returns the formula for one user, mapped."""

    def one(items: jax.Array, values: jax.Array, weights: jax.Array) -> jax.Array:
        rows = factors[items]
        matrix = (rows.T * weights) @ rows + prior + RIDGE * weights.sum() * jnp.eye(RANK)
        return cho_solve(cho_factor(matrix), rows.T @ (weights * values))

    return jax.vmap(one)(users.items, users.values, users.weights)


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--rounds", type=int, default=None, help="how often each side is timed; default 8, quick 3")
    parser.add_argument("--part", choices=PARTS, default=None, help="measure one part; rows of the others stay")
    chosen = parser.parse_args()
    parts = [chosen.part] if chosen.part else list(PARTS)
    rounds = chosen.rounds or (3 if chosen.quick else 8)
    rows = Rows("004", "bench_personalization", chosen.out, chosen.seed, keep=chosen.part is not None)
    if SOLVE in parts:
        solves(rows, 20_000 if chosen.quick else 1_000_000, rounds)
    if SUMS in parts:
        for name, users in ({"MLP": 16} if chosen.quick else COHORTS).items():
            sums(rows, jax.random.key(chosen.seed), name, users, rounds)


if __name__ == "__main__":
    main()
