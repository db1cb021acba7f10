"""Solves for users' own factors exactly from item factors and their ratings; packs symmetric matrices as vectors."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import linalg
from jax.sharding import Mesh

from dpaudit import _platform, _validate
from dpaudit._engine import memory, sharding, worlds
from dpaudit._engine.sharding import ALIKE, CUT
from dpaudit.mechanisms.clipping import einsum
from dpaudit.personalization.als.layout import Users

CACHED = 1 << 16  # numbers in one group of users on a CPU, so that its systems stay in a core's cache
SMALL = 12  # coordinates up to which a CPU solves for users side by side
SUMMED = 24  # ratings of a user whose products one loop over users adds up
RESIDENT = 1 << 26  # the same on an accelerator, which is fastest with as many users at a time as memory holds


def user_factors(
    item_factors: jax.Array,
    prior: jax.Array,
    users: Users,
    *,
    ridge: jax.typing.ArrayLike,
    mesh: Mesh | None = None,
) -> jax.Array:
    """Solves for the least-squares factor of every user.

    With item factors v_j, ratings y_ij of weight w_ij, and r_i = sum_j w_ij,

        u_i = (sum_j w_ij v_j v_j' + prior + ridge max(r_i, 1) I)^-1 sum_j w_ij y_ij v_j,

    so that ridge counts per rating, and a user without ratings has u_i = 0. A ridge per user is part of ``prior``.
    Users with fewer places than the factors have coordinates are solved in the space of their ratings: with
    D_i = prior + ridge max(r_i, 1) I and V_i the rows sqrt(w_ij) v_j', u_i = D_i^-1 V_i' (I + V_i D_i^-1 V_i')^-1
    sqrt(w_i) y_i, where one eigenbasis of the prior serves all users. Up to rounding, a row's result does not depend
    on the other rows.

    Args:
      item_factors: ``[m, r]``.
      prior: ``[r, r]``, symmetric and positive semidefinite.
      users: their ratings; weights >= 0.
      ridge: > 0, in squared units of the factors.
      mesh: a mesh whose devices share the users; their number has to divide the rows (``arranged(rows=)``).

    Returns:
      ``[u, r]``; 0 for padding.

    Raises:
      InputError: a ridge that is not positive, shapes that do not fit.

    Source: Chien et al. 2021, "Private Alternating Least Squares", Algorithm 1, the solve before its clipping.
    """
    ridge = _validate.positive(ridge=ridge)
    (_, rank), (rows, width) = item_factors.shape, users.items.shape
    if prior.shape != (rank, rank):
        raise _validate.expected(
            "prior", f"shape [{rank}, {rank}], as the factors have columns", f"{list(prior.shape)}"
        )
    if not rows:
        return jnp.zeros((0, rank), item_factors.dtype)
    mesh, devices = sharding.flat(mesh), sharding.devices(mesh)
    if rows % devices:
        raise _validate.expected("users", f"rows that the mesh's {devices} devices divide", rows)
    room = CACHED if memory.platform(mesh) == "cpu" else RESIDENT
    size = min(rows // devices, max(1, room // (width * rank + min(width, rank) ** 2)))
    found = _shared_out(size, mesh, item_factors, prior, ridge, users.items, users.values, users.weights)
    return worlds.waited_for(found)


@partial(jax.jit, static_argnums=(0, 1))
def _shared_out(size: int, mesh: Mesh | None, *given: jax.Array) -> jax.Array:
    def own(*given: jax.Array) -> jax.Array:
        return sharding.gathered(_in_groups(size, *given), mesh)

    return sharding.shared_out(own, mesh, (*[ALIKE] * 3, *[CUT] * 3), ALIKE)(*given)


def _in_groups(
    size: int, factors: jax.Array, prior: jax.Array, per_rating: jax.Array, *columns: jax.Array
) -> jax.Array:
    """Solves for ``size`` users at a time, in the smaller of the two spaces."""
    (rows, width), rank = columns[0].shape, len(prior)
    groups = -(-rows // size)
    padding = ((0, groups * size - rows), (0, 0))
    ratings = tuple(jnp.pad(column, padding).reshape(groups, size, width) for column in columns)
    if width >= rank:
        found = jax.lax.map(lambda group: _by_factors(factors, prior, per_rating, *group), ratings)
        return found.reshape(-1, rank)[:rows]
    spread, basis = jnp.linalg.eigh(prior)
    turned, spread = einsum("mr,rs->ms", factors, basis), jnp.maximum(spread, 0)
    found = jax.lax.map(lambda group: _by_ratings(turned, spread, per_rating, *group), ratings)
    return einsum("us,rs->ur", found.reshape(-1, rank)[:rows], basis)


def ridge(
    rows: jax.Array,
    values: jax.Array,
    weights: jax.Array,
    prior: jax.Array,
    pull: jax.typing.ArrayLike = 0.0,
) -> jax.Array:
    """Solves argmin_u sum_j w_ij (y_ij - u' v_ij)^2 + u' prior u - 2 pull' u for every user.

    Args:
      rows: v, ``[u, w, r]``.
      values, weights: ``[u, w]``; weights >= 0.
      prior: ``[r, r]`` or ``[u, r, r]``, positive definite.
      pull: ``[r]``.

    Returns:
      ``[u, r]``.
    """
    root = jnp.sqrt(weights)
    if _platform.on_cpu() and rows.shape[-1] <= SMALL and len(rows) > 1:
        prior = jnp.expand_dims(prior, -1) if prior.ndim == 2 else _users_last(prior)
        system = _products(_users_last(rows) * root.T[:, None], (root * values).T)
        return _eliminated(system[:, :-1] + prior, system[:, -1] + jnp.asarray(pull)[..., None]).T
    scaled = root[..., None] * rows
    matrix = einsum("uwr,uws->urs", scaled, scaled) + prior
    return _solved(matrix, einsum("uwr,uw->ur", scaled, root * values) + pull)


def _users_last(rows: jax.Array) -> jax.Array:
    """Puts the users of ``[u, ...]`` last, so that a CPU's vectors hold the same number of different users."""
    return _once(jnp.moveaxis(_once(rows), 0, -1))


def _once(array: jax.Array) -> jax.Array:
    """Has an array written to memory, where the compiler might compute it again for each of its uses."""
    return jax.lax.optimization_barrier(array)


def _products(rows: jax.Array, values: jax.Array) -> jax.Array:
    """Computes sum_w v_w (v_w, y_w)', ``[r, r + 1, u]``, of every user's v ``[w, r, u]`` and y ``[w, u]``."""
    both = _once(jnp.concatenate([rows, values[:, None]], axis=1))
    width, places, users = both.shape
    size = min(width, SUMMED)
    blocks = jnp.pad(both, ((0, -width % size), (0, 0), (0, 0))).reshape(-1, size, places, users)

    def add(total: jax.Array, block: jax.Array) -> tuple[jax.Array, None]:
        return sum((block[i, :-1, None] * block[i] for i in range(size)), total), None

    return jax.lax.scan(add, jnp.zeros((places - 1, places, users), both.dtype), blocks)[0]


def _eliminated(matrix: jax.Array, right: jax.Array) -> jax.Array:
    """Computes matrix^-1 right for positive definite ``[k, k, u]`` and ``[k, u]``, by Gauss and Jordan's elimination.

    No pivots are sought. Its error is of the size of Cholesky's.

    Source: Higham 2002, "Accuracy and Stability of Numerical Algorithms", Section 14.4 (positive definite systems).
    """
    system = jnp.concatenate([matrix, right[:, None]], axis=1)

    def eliminate(i: jax.Array, system: jax.Array) -> jax.Array:
        row = system[i] / system[i, i]
        return (system - system[:, i, None] * row).at[i].set(row)

    return jax.lax.fori_loop(0, len(matrix), eliminate, system)[:, -1]


def _by_factors(
    factors: jax.Array,
    prior: jax.Array,
    per_rating: jax.Array,
    items: jax.Array,
    values: jax.Array,
    weights: jax.Array,
) -> jax.Array:
    """Solves systems of the size of the rank."""
    whole = prior + _ridges(per_rating, weights)[..., None] * jnp.eye(len(prior), dtype=prior.dtype)
    return ridge(factors[items], values, weights, whole)


def _by_ratings(
    factors: jax.Array,
    spread: jax.Array,
    per_rating: jax.Array,
    items: jax.Array,
    values: jax.Array,
    weights: jax.Array,
) -> jax.Array:
    """Solves systems of the size of the width, in the eigenbasis of a prior with the eigenvalues ``spread``."""
    rows = jnp.sqrt(weights)[..., None] * factors[items]
    scaled = rows / (spread + _ridges(per_rating, weights))[:, None, :]
    matrix = einsum("uwr,uxr->uwx", scaled, rows) + jnp.eye(items.shape[1], dtype=factors.dtype)
    return einsum("uwr,uw->ur", scaled, _solved(matrix, jnp.sqrt(weights) * values))


def _ridges(per_rating: jax.Array, weights: jax.Array) -> jax.Array:
    """Returns each user's ridge, [u, 1]."""
    return per_rating * jnp.maximum(weights.sum(axis=1, keepdims=True), 1)


def _solved(matrix: jax.Array, right: jax.Array) -> jax.Array:
    """Computes matrix^-1 right for positive definite ``[u, k, k]`` and ``[u, k]``."""
    kind = jnp.result_type(matrix, right)
    lower = linalg.cholesky(matrix.astype(kind), symmetrize_input=False)
    half = linalg.triangular_solve(lower, right.astype(kind)[..., None], left_side=True, lower=True)
    return linalg.triangular_solve(lower, half, left_side=True, lower=True, transpose_a=True)[..., 0]


def coordinates(rank: int) -> int:
    """Returns the number of coordinates of a symmetric [rank, rank] matrix, rank (rank + 1)/2."""
    return rank * (rank + 1) // 2


@jax.jit
def packed(matrix: jax.Array) -> jax.Array:
    """Packs symmetric [..., r, r] into [..., r (r + 1)/2]: the upper triangle, sqrt(2) times off the diagonal.

    Lengths are preserved, |packed(A)|_2 = |A|_F, so |packed(u u')| = |u|^2 for any direction of u. Gaussian noise of
    variance s^2 on a packed matrix has variance s^2 on the diagonal and s^2/2 off it.
    """
    rows, columns, scale = _places(matrix.shape[-1])
    return matrix[..., rows, columns] * scale


@jax.jit
def packed_square(vector: jax.Array) -> jax.Array:
    """Computes packed(u u'), [..., r (r + 1)/2], of u [..., r]."""
    rows, columns, scale = _places(vector.shape[-1])
    return vector[..., rows] * vector[..., columns] * scale


@partial(jax.jit, static_argnames="rank")
def unpacked(vector: jax.Array, rank: int) -> jax.Array:
    """Restores the symmetric matrix [..., rank, rank] that :func:`packed` made a vector of."""
    rows, columns, scale = _places(rank)
    upper = jnp.zeros((*vector.shape[:-1], rank, rank), vector.dtype).at[..., rows, columns].set(vector / scale)
    return upper + jnp.swapaxes(jnp.triu(upper, 1), -1, -2)


@jax.jit
def spectrum(matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns (eigenvalues [..., r], eigenvectors [..., r, r]) of the nearest positive semi-definite matrix.

    By the Frobenius norm: those of ``matrix`` with negative eigenvalues at 0.
    """
    values, vectors = jnp.linalg.eigh(matrix)
    return jnp.maximum(values, 0.0), vectors


def _places(rank: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows, columns = np.triu_indices(rank)
    return rows, columns, np.where(rows == columns, 1.0, np.sqrt(2.0)).astype(np.float32)
