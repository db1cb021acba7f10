"""The benchmark of user solves compares sides that compute the same, on the users that it says."""

import jax
import jax.numpy as jnp
import numpy as np

from dpaudit.personalization.als.layout import arranged
from experiments.bench import personalization as bench


def test_all_sides_solve_the_same_systems():
    rng = np.random.default_rng(0)
    factors = (rng.normal(size=(bench.ITEMS, bench.RANK)) / np.sqrt(bench.RANK)).astype(np.float32)
    prior = (0.1 * factors.T @ factors / bench.ITEMS).astype(np.float32)
    (users,) = arranged(bench.population(rng, np.full(8, bench.RATINGS)))
    given = jax.tree.map(np.asarray, tuple(users))
    exact = bench.by_loop(factors.astype(np.float64), prior.astype(np.float64), *given)
    for found in (
        bench.solve(factors, prior, users),
        bench.by_stack(factors, prior, *given),
        jax.jit(bench.by_vmap)(factors, prior, users),
    ):
        np.testing.assert_allclose(found, exact, rtol=0, atol=1e-5 * np.abs(exact).max())
    wrong = jax.jit(bench.by_vmap)(factors, prior, users._replace(values=jnp.roll(users.values, 1)))
    assert np.abs(wrong - exact).max() > 0.1 * np.abs(exact).max()


def test_users_have_the_ratings_that_are_counted():
    rng = np.random.default_rng(0)
    lengths = np.minimum(500, rng.lognormal(np.log(bench.RATINGS) - 0.5, 1.0, 5_000)).astype(int)
    drawn = bench.population(rng, lengths)  # refuses an item that is rated twice
    np.testing.assert_array_equal(np.bincount(drawn.users, minlength=5_000), lengths)
