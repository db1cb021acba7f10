"""The exact user solve against NumPy in float64, in both of its spaces, whatever it is padded with."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpaudit import _platform, _validate
from dpaudit.data.ratings import from_arrays
from dpaudit.personalization.als import layout, solve

ITEMS = 60


def problem(rank, width, users=7, seed=0, decay=0.0):
    """Item factors with columns that shrink by e^-decay over all of them, a prior, and users of which one is empty."""
    rng = np.random.default_rng(seed)
    factors = rng.normal(size=(ITEMS, rank)) * np.exp(-decay * np.linspace(0, 1, rank))
    weights = (rng.random((users, width)) < 0.7).astype(np.float32)
    weights[2] = 0
    found = layout.Users(
        jnp.asarray(rng.integers(0, ITEMS, (users, width)), jnp.int32),
        jnp.asarray(rng.normal(size=(users, width)), jnp.float32),
        jnp.asarray(weights),
        jnp.arange(users),
    )
    return jnp.asarray(factors, jnp.float32), jnp.asarray(0.2 * factors.T @ factors, jnp.float32), found


def by_numpy(factors, prior, users, ridge):
    """One user after another in float64: factors, and the condition of each system."""
    factors, prior = np.asarray(factors, np.float64), np.asarray(prior, np.float64)
    found, conditions = [], []
    for items, values, weights, _ in zip(*map(np.asarray, users), strict=True):
        rows, much = factors[items], max(weights.sum(), 1)
        matrix = (rows.T * weights) @ rows + prior + ridge * much * np.eye(len(prior))
        found.append(np.linalg.solve(matrix, rows.T @ (weights * values)))
        conditions.append(np.linalg.cond(matrix))
    return np.array(found), np.array(conditions)


def off(found, wanted):
    """Per user, relative; of an empty user the size itself."""
    size = np.linalg.norm(wanted, axis=1)
    return np.linalg.norm(found - wanted, axis=1) / np.where(size > 0, size, 1)


@pytest.mark.parametrize("rank, width", [(1, 1), (8, 3), (8, 7), (8, 8), (8, 40), (32, 20), (32, 33)])
def test_it_is_the_solution_of_the_normal_equations(rank, width):
    factors, prior, users = problem(rank, width)
    found = solve.user_factors(factors, prior, users, ridge=0.1)
    wanted, _ = by_numpy(factors, prior, users, 0.1)
    assert (found.shape, found.dtype) == ((7, rank), jnp.float32)
    assert off(found, wanted).max() < 1e-5
    assert not np.asarray(found[2]).any()
    for twin in (by_numpy(factors, prior, users, 0.11)[0], by_numpy(factors, 1.2 * prior, users, 0.1)[0]):
        assert off(found, twin).max() > 1e-3


@pytest.mark.parametrize("width", [5, 15, 16, 40])
def test_the_error_is_that_of_the_systems_condition(width):
    worst = 0.0
    for decay, scale, ridge in itertools.product([0.0, 4.0], [0.0, 1.0], [1e-1, 1e-3, 1e-5]):
        factors, prior, users = problem(16, width, decay=decay)
        found = solve.user_factors(factors, scale * prior, users, ridge=ridge)
        wanted, conditions = by_numpy(factors, scale * prior, users, ridge)
        assert (off(found, wanted) < 8 * np.finfo(np.float32).eps * conditions).all()
        worst = max(worst, conditions.max())
    assert worst > 1e4


@pytest.mark.integration
def test_neither_buckets_nor_padding_nor_groups_nor_neighbours_change_a_user(monkeypatch):
    rng, rank = np.random.default_rng(1), 8
    lengths = rng.choice([0, 3, 27], 50)
    who = np.repeat(np.arange(50), lengths)
    items = np.concatenate([rng.permutation(ITEMS)[:length] for length in lengths])
    values = rng.uniform(1, 5, len(who))
    given = from_arrays(who, items, values, num_users=50, num_items=ITEMS, low=1, high=5)
    factors, prior, _ = problem(rank, 1)

    def solved(ratings, **named):
        buckets = layout.arranged(ratings, **named)
        found = [solve.user_factors(factors, prior, users, ridge=0.05) for users in buckets]
        for users, rows in zip(buckets, found, strict=True):
            assert not np.asarray(rows)[np.asarray(users.index) < 0].any()
        return np.asarray(layout.by_user(buckets, found, 50))

    plain = solved(given)
    assert off(solved(given, buckets=[64]), plain).max() < 1e-5  # one space for all
    assert off(solved(given, buckets=[5, 40], rows=16), plain).max() < 1e-5
    changed = given._replace(values=np.where(given.users == 7, 6 - given.values, given.values).astype(np.float32))
    others = np.arange(50) != 7
    np.testing.assert_array_equal(solved(changed)[others], plain[others])
    assert lengths[7] == 27
    assert off(solved(changed), plain)[7] > 1e-2
    monkeypatch.setattr(solve, "CACHED", 2000)  # groups of a few users, the last of them filled up
    assert off(solved(given), plain).max() < 1e-6


def test_weights_count_as_ratings_given_so_often():
    for width in (2, 9):  # of a rank of 6
        factors, prior, once = problem(6, width)
        doubled = once._replace(weights=2 * once.weights)
        items, values, weights = (jnp.concatenate([column, column], 1) for column in once[:3])
        twice = layout.Users(items, values, weights, once.index)
        pair = (solve.user_factors(factors, prior, given, ridge=0.1) for given in (doubled, twice))
        assert off(*map(np.asarray, pair)).max() < 1e-5


def test_it_compiles_once_and_maps_over_models():
    factors, prior, users = problem(8, 5)
    run: Any = jax.jit(lambda factors, prior, users, ridge: solve.user_factors(factors, prior, users, ridge=ridge))
    models, ridges = jnp.stack([factors, 2 * factors]), jnp.array([0.1, 0.3])
    mapped = jax.vmap(run, in_axes=(0, None, None, 0))(models, prior, users, ridges)
    for one, model, ridge in zip(mapped, models, ridges, strict=True):
        assert off(one, np.asarray(run(model, prior, users, ridge))).max() < 1e-5
    assert run._cache_size() == 1


def test_a_bucket_without_rows_has_no_factors():
    factors, prior, users = problem(8, 5, users=3)
    none = jax.tree.map(lambda column: column[:0], users)
    assert solve.user_factors(factors, prior, none, ridge=0.1).shape == (0, 8)


@pytest.mark.parametrize("ridge", [0.0, -1.0, float("nan")])
def test_a_ridge_that_leaves_systems_singular_is_refused(ridge):
    with pytest.raises(_validate.InputError, match="ridge: expected a finite number > 0, got"):
        solve.user_factors(*problem(8, 5), ridge=ridge)


def test_a_prior_of_another_rank_is_refused():
    factors, prior, users = problem(8, 5)
    with pytest.raises(
        _validate.InputError, match=r"prior: expected shape \[8, 8\], as the factors have columns, got \[7, 7"
    ):
        solve.user_factors(factors, prior[1:, 1:], users, ridge=1.0)


@pytest.mark.parametrize("rank", [3, solve.SMALL + 1])
def test_ridge_is_the_least_of_its_quadratic_the_pull_included(rank):
    rng = np.random.default_rng(4)
    rows, values, weights = rng.normal(size=(2, 5, rank)), rng.normal(size=(2, 5)), rng.uniform(0, 2, (2, 5))
    prior, pull = np.diag(np.geomspace(0.5, 2.0, rank)), rng.normal(size=rank)
    found = solve.ridge(*(jnp.asarray(x, jnp.float32) for x in (rows, values, weights, prior, pull)))
    for user in range(2):
        weighted = weights[user][:, None] * rows[user]
        exact = np.linalg.solve(rows[user].T @ weighted + prior, weighted.T @ values[user] + pull)
        np.testing.assert_allclose(found[user], exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("width", [1, solve.SUMMED, 2 * solve.SUMMED + 3])
@pytest.mark.parametrize("own_prior", [False, True])
def test_ridge_is_as_exact_side_by_side_as_by_cholesky(width, own_prior):
    """Systems whose eigenvalues differ a thousandfold, on a CPU and as on an accelerator."""
    rng = np.random.default_rng(width)
    count, rank = 33, 6
    rows = rng.normal(size=(count, width, rank)) * np.geomspace(1, 0.03, rank)
    values, weights = rng.normal(size=(count, width)), (rng.random((count, width)) < 0.8).astype(float)
    prior = np.diag(np.geomspace(1, 0.001, rank)) * (rng.uniform(1, 2, (count, 1, 1)) if own_prior else 1.0)
    each = np.broadcast_to(prior, (count, rank, rank))
    exact = np.stack(
        [
            np.linalg.solve((v.T * w) @ v + p, (v.T * w) @ y)
            for v, y, w, p in zip(rows, values, weights, each, strict=True)
        ]
    )
    given = [jnp.asarray(x, jnp.float32) for x in (rows, values, weights, prior)]
    for kind in ("cpu", "tpu"):
        with _platform.named(kind):
            found = jax.jit(solve.ridge)(*given)
        np.testing.assert_allclose(found, exact, atol=1e-4 * np.abs(exact).max())
    assert np.abs(np.asarray(jax.jit(solve.ridge)(*given[:3], 1.001 * given[3])) - exact).max() > 1e-4
