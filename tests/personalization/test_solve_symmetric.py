"""Symmetric matrices as vectors: lengths, noise, the nearest positive semi-definite one."""

import jax
import jax.numpy as jnp
import numpy as np

from dpaudit.personalization.als import solve

RANK, DRAWS = 4, 40_000


def test_packing_keeps_lengths_and_can_be_undone():
    rng = np.random.default_rng(0)
    u = rng.normal(size=(50, RANK)) * np.logspace(-3, 3, 50)[:, None]
    found = np.asarray(solve.packed_square(jnp.asarray(u, jnp.float32)), np.float64)
    assert found.shape == (50, solve.coordinates(RANK))
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), (u**2).sum(axis=1), rtol=1e-6)
    outer = np.einsum("na,nb->nab", u, u)
    np.testing.assert_allclose(solve.unpacked(jnp.asarray(found, jnp.float32), RANK), outer, rtol=1e-5)
    np.testing.assert_allclose(solve.packed(jnp.asarray(outer, jnp.float32)), found, rtol=1e-5)


def test_noise_has_half_the_variance_off_the_diagonal_and_is_the_same_in_every_direction():
    draws = jax.random.normal(jax.random.key(0), (DRAWS, solve.coordinates(RANK)))
    noise = np.asarray(solve.unpacked(draws, RANK), np.float64)
    np.testing.assert_array_equal(noise, np.swapaxes(noise, 1, 2))
    tolerance = 4.5 * np.sqrt(2 / DRAWS)  # of a variance, relative
    wanted = np.where(np.eye(RANK, dtype=bool), 1.0, 0.5)
    np.testing.assert_allclose(noise.var(axis=0), wanted, rtol=tolerance)
    directions = np.random.default_rng(1).normal(size=(20, RANK))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    along = np.einsum("da,nab,db->nd", directions, noise, directions)
    np.testing.assert_allclose(along.var(axis=0), 1.0, rtol=tolerance)
    plain = noise * np.where(np.eye(RANK, dtype=bool), 1.0, np.sqrt(2))  # as if packed without the sqrt(2)
    assert np.einsum("da,nab,db->nd", directions, plain, directions).var(axis=0).max() > 1 + 2 * tolerance


def test_the_projection_is_the_nearest_of_all_positive_semi_definite_matrices():
    rng = np.random.default_rng(2)
    matrix = rng.normal(size=(100, RANK, RANK))
    matrix = matrix + np.swapaxes(matrix, 1, 2)
    values, vectors = map(np.asarray, solve.spectrum(jnp.asarray(matrix, jnp.float32)))
    projected = np.einsum("nab,nb,ncb->nac", vectors, values, vectors)
    assert values.min() == 0
    positive, negative = np.linalg.eigvalsh(projected), np.linalg.eigvalsh(projected - matrix)
    assert min(positive.min(), negative.min()) > -1e-5  # what is added is positive too, and at right angles:
    np.testing.assert_allclose(np.einsum("nab,nab->n", projected, projected - matrix), 0, atol=1e-4)
    sound = np.einsum("nab,ncb->nac", matrix, matrix)
    values, vectors = map(np.asarray, solve.spectrum(jnp.asarray(sound, jnp.float32)))
    np.testing.assert_allclose(np.einsum("nab,nb,ncb->nac", vectors, values, vectors), sound, atol=1e-4)
