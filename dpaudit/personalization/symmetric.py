"""Symmetric matrices as vectors of the same length, their noise, and the nearest positive semi-definite one."""

import jax
import jax.numpy as jnp
import numpy as np


def coordinates(rank: int) -> int:
    """How many numbers a symmetric [rank, rank] matrix has: rank (rank + 1)/2."""
    return rank * (rank + 1) // 2


def packed(matrix: jax.Array) -> jax.Array:
    """[..., r, r] -> [..., r (r + 1)/2]: the upper triangle, sqrt(2) times what is off the diagonal.

    Lengths stay what they are, |packed(A)|_2 = |A|_F, so |packed(u u')| = |u|^2 whichever way u points. Gaussian noise
    of variance s^2 on a packed matrix has variance s^2 on the diagonal and s^2/2 off it.
    """
    rows, columns, scale = _places(matrix.shape[-1])
    return matrix[..., rows, columns] * scale


def packed_square(vector: jax.Array) -> jax.Array:
    """u [..., r] -> packed(u u') [..., r (r + 1)/2]."""
    rows, columns, scale = _places(vector.shape[-1])
    return vector[..., rows] * vector[..., columns] * scale


def unpacked(vector: jax.Array, rank: int) -> jax.Array:
    """The symmetric matrix [..., rank, rank] that :func:`packed` made [..., rank (rank + 1)/2] of."""
    rows, columns, scale = _places(rank)
    upper = jnp.zeros((*vector.shape[:-1], rank, rank), vector.dtype).at[..., rows, columns].set(vector / scale)
    return upper + jnp.swapaxes(jnp.triu(upper, 1), -1, -2)


def spectrum(matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(eigenvalues [..., r], eigenvectors [..., r, r]) of the nearest positive semi-definite matrix.

    By the Frobenius norm: those of ``matrix`` with negative eigenvalues at 0.
    """
    values, vectors = jnp.linalg.eigh(matrix)
    return jnp.maximum(values, 0.0), vectors


def _places(rank: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows, columns = np.triu_indices(rank)
    return rows, columns, np.where(rows == columns, 1.0, np.sqrt(2.0)).astype(np.float32)
