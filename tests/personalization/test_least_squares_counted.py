"""Noisy counts: what they are of, their noise, and that the server learns nothing else."""

import jax
import numpy as np
import pytest

from dpaudit import InputError
from dpaudit.personalization.als import least_squares
from dpaudit.personalization.boundary.aggregator import run
from dpaudit.personalization.boundary.processes import memoryless
from tests.personalization import people

KEY, START = jax.random.key(0), memoryless()


def test_counts_are_of_ratings_over_the_root_of_a_user_s_and_broken_devices_count_for_nobody():
    rows = [*people.honest(30, seed=2), [(5, np.nan)], [(0, 1.0), (0, 1.0)], [(people.ITEMS, 1.0)]]
    wanted = np.zeros(people.ITEMS)
    for row in rows[:30]:
        for item, _ in row:
            wanted[item] += len(row) ** -0.5
    silent = least_squares.counted(items=people.ITEMS, noise_multiplier=0.0)
    buckets = people.batch(rows[:20], 4), people.batch(rows[20:], 7)
    model, _, transcript = run(KEY, silent, people.model(), START, buckets, 1)
    np.testing.assert_allclose(model.popularity, wanted, rtol=1e-5)
    np.testing.assert_array_equal(model.popularity, transcript.values("popularity")[0])
    for name in ("public", "factors", "mean", "precision"):
        np.testing.assert_array_equal(getattr(model, name), getattr(people.model(), name))


def test_noise_is_what_is_accounted():
    z, runs = 3.0, 4_000
    noisy = least_squares.counted(items=people.ITEMS, noise_multiplier=z)
    nobody = (people.batch([[]], 4),)
    keys = jax.random.split(KEY, runs)
    model, _, transcript = jax.jit(jax.vmap(lambda key: run(key, noisy, people.model(), START, nobody, 1)))(keys)
    spread = np.asarray(model.popularity, np.float64).var(axis=0) / z**2
    np.testing.assert_allclose(spread, 1, rtol=4.5 * np.sqrt(2 / runs))
    assert transcript.mu() == pytest.approx(1 / z, rel=1e-12)


def test_settings_out_of_range():
    with pytest.raises(InputError, match="noise_multiplier: expected a finite number >= 0, got -1"):
        least_squares.counted(items=3, noise_multiplier=-1)
