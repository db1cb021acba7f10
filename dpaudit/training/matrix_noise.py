"""Makes correlated noise: the matrices C with which DP-FTRL lets later noise cancel part of the earlier noise.

A training in n rounds releases prefix sums A x of its clipped gradient sums x [n, d], A = B C the lower triangle of
ones, as B (C x + z), z Gaussian: every round releases (x + C^-1 z)_t. Privacy is that of C x + z, one Gaussian release
with the sensitivity of C; the error of the prefix sums is that of B z. C = I is DP-SGD.

    pattern = cyclic(examples=60_000, batch_size=500).participation(2_000)
    strategy = banded(pattern, bands=120)

Factorisations and sensitivities are jax-privacy's, computed in float64 on the host.

Source: Denisov et al. 2022 (with C lower triangular, x may depend on earlier releases); Choquette-Choo et al. 2023a
(several participations).
"""

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg

from dpaudit import _validate
from dpaudit.training.sampling import Participation, participation

with _validate.extra("train"):
    from jax_privacy.matrix_factorization import buffered_toeplitz, sensitivity, streaming_matrix
    from jax_privacy.matrix_factorization import toeplitz as _toeplitz
    from jax_privacy.matrix_factorization.streaming_matrix import StreamingMatrix


class Strategy(NamedTuple):
    """A lower-triangular matrix C for n rounds.

    Attributes:
      noising: C^-1, applied round by round.
      matrix: ``matrix() -> C``, float64 [n, n].
      sensitivity: ``sensitivity(pattern) -> float``: the largest |C x|, or a bound on it, where x [n, d] has rows of
        norm <= 1 in the rounds of one example's participations and 0 elsewhere. A pattern of fewer rounds than n
        covers the first ones; more are refused with InputError.
      pattern: the participation that the strategy is designed for; noise multipliers are relative to its sensitivity.
    """

    noising: StreamingMatrix
    matrix: Callable[[], np.ndarray]
    sensitivity: Callable[[Participation], float]
    pattern: Participation


def independent(pattern: Participation) -> Strategy:
    """Draws fresh noise every round, C = I, as in DP-SGD. Sensitivity sqrt(participations), exact."""

    def norm(pattern: Participation) -> float:
        return math.sqrt(pattern.most)

    return _strategy(streaming_matrix.identity(), lambda: np.eye(pattern.rounds), norm, pattern)


def tree(pattern: Participation) -> Strategy:
    """Aggregates by a tree: a prefix sum is the sum of at most log2(n) + 1 noisy sums over dyadic intervals.

    Row t of C sums rounds t - 2^l + 1..t, 2^l the largest power of two that divides t (rounds from 1). These are the
    nodes of the binary tree that prefix sums use; the other nodes are never read and need not be released. The noise
    is kept as one array per level.

    Returns:
      A :class:`Strategy`. Its sensitivity is exact for one participation, a bound for more, and takes memory n^2:
      :func:`restarted` serves where n passes ten thousand.

    Source: Kairouz et al. 2021, without Honaker's averaging of nodes; sensitivity: Choquette-Choo et al. 2023b,
    Algorithm 4.
    """
    rounds = pattern.rounds
    levels = rounds.bit_length()

    def matrix() -> np.ndarray:
        t = np.arange(1, rounds + 1)
        age = t[:, None] - t
        return ((age >= 0) & (age < (t & -t)[:, None])).astype(float)

    def norm(pattern: Participation) -> float:
        with jax.enable_x64(True):
            first = jnp.asarray(matrix()[: pattern.rounds, : pattern.rounds])
            return float(sensitivity.get_min_sep_sensitivity_upper_bound(first, pattern.separation, pattern.most))

    def init(like: jax.Array | jax.ShapeDtypeStruct) -> tuple[jax.Array, jax.Array]:
        return jnp.int32(1), jnp.zeros((levels, *like.shape), like.dtype)

    def following(fresh: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, Any]:
        t, nodes = (
            state  # a node is read only after it was written: those below t's level were, since t's own was last
        )
        level = jax.lax.population_count((t & -t) - 1)
        replaced = jnp.arange(levels) < level
        back = jnp.tensordot(replaced.astype(nodes.dtype), nodes, axes=1)
        return fresh - back, (t + 1, nodes.at[level].set(fresh))

    return _strategy(StreamingMatrix.from_array_implementation(init, following), matrix, norm, pattern)


def toeplitz(pattern: Participation, *, bands: int | None = None) -> Strategy:
    """Minimises the largest error of one participation: the Toeplitz matrix with coefficients binom(2k, k)/4^k.

    Args:
      pattern: participation.
      bands: coefficients that are kept, which is also the number of noise arrays in memory; None for all.

    Returns:
      A :class:`Strategy` with exact sensitivity.

    Raises:
      InputError: bands not in 1..rounds.

    Source: Fichtenberger, Henzinger and Upadhyay 2023; sensitivity: arXiv 2405.13763, Theorem 2.
    """
    kept = pattern.rounds if bands is None else _bands(pattern, bands)
    with jax.enable_x64(True):
        coefficients = np.asarray(_toeplitz.optimal_max_error_strategy_coefs(kept))
    return _banded(coefficients, pattern)


def banded(pattern: Participation, *, bands: int) -> Strategy:
    """Minimises the mean squared error of one participation over Toeplitz matrices of ``bands`` diagonals.

    With at most as many bands as the separation, participations do not overlap, and each costs the same: k of them
    have sqrt(k) times the sensitivity of one. bands - 1 arrays of noise are kept in memory.

    Args:
      pattern: participation.
      bands: at most the separation.

    Returns:
      A :class:`Strategy` with exact sensitivity.

    Raises:
      InputError: bands not in 1..min(rounds, separation).

    Source: Choquette-Choo et al. 2023b (banded); arXiv 2405.15913 (Toeplitz).
    """
    if _bands(pattern, bands) > pattern.separation:
        raise _validate.expected("bands", f"at most the {pattern.separation} rounds between participations", bands)
    return _banded(_optimal_banded(pattern.rounds, int(bands)), pattern)


def blt(pattern: Participation, *, buffers: int = 3) -> Strategy:
    """Optimises a buffered linear Toeplitz matrix, coefficients 1 and sum_j w_j theta_j^(k-1), for the pattern.

    It is nearly as good as the best Toeplitz matrix and keeps only ``buffers`` arrays of noise in memory.

    Args:
      pattern: participation; the mean squared error of its prefix sums at equal privacy is minimised.
      buffers: 1..10.

    Returns:
      A :class:`Strategy` with exact sensitivity.

    Raises:
      InputError: buffers out of range.

    Source: Dvijotham et al. 2024; several participations: McMahan, Xu and Zhang 2024.
    """
    if _validate.at_least(1, buffers=buffers) > 10:
        raise _validate.expected("buffers", "at most 10, beyond which the optimisation is not stable", buffers)
    decay, scale = _optimal_blt(pattern, int(buffers))
    with jax.enable_x64(True):
        exact = buffered_toeplitz.BufferedToeplitz.build(decay, scale)
        coefficients = np.asarray(exact.toeplitz_coefs(pattern.rounds))
    rounded = buffered_toeplitz.BufferedToeplitz.build(decay, scale, jnp.float32)
    inverse = rounded.inverse_as_streaming_matrix()

    def init(like: Any) -> Any:
        """Starts buffers in the type of the noise, where that is wider than float32."""
        return jax.tree.map(
            lambda leaf, memory: memory.astype(jnp.promote_types(leaf.dtype, memory.dtype)),
            like,
            inverse.init_multiply(like),
        )

    return _of_coefficients(coefficients, StreamingMatrix(init, inverse.multiply_next), pattern)


def restarted(block: Strategy, times: int) -> Strategy:
    """Repeats ``block`` every n rounds with fresh noise: C is block-diagonal.

    Args:
      block: the strategy between restarts.
      times: number of blocks, >= 1.

    Returns:
      A :class:`Strategy` of n times rounds, designed for the block's separation and its participations in every block.
      Its sensitivity is that of the worst way to spread participations over blocks, as if the last one were complete.

    Raises:
      InputError: times out of range.

    Source: Kairouz et al. 2021 (restarted trees).
    """
    every, separation, most = block.pattern
    times = _validate.at_least(1, times=times)

    def norm(pattern: Participation) -> float:
        blocks = math.ceil(pattern.rounds / every)
        fitting = participation(every, separation=pattern.separation, most=pattern.most)

        def squared(most: int) -> float:
            return block.sensitivity(fitting._replace(most=most)) ** 2

        if pattern.most >= blocks * fitting.most:
            return math.sqrt(blocks * squared(fitting.most))
        gains = [0.0, *map(squared, range(1, fitting.most + 1))]
        best = [0.0] * (pattern.most + 1)  # of the blocks so far, by participations
        for _ in range(blocks):
            best = [max(best[n - k] + gain for k, gain in enumerate(gains[: n + 1])) for n in range(pattern.most + 1)]
        return math.sqrt(best[-1])

    def init(like: Any) -> tuple[jax.Array, Any]:
        return jnp.int32(0), block.noising.init_multiply(like)

    def following(fresh: Any, state: tuple[jax.Array, Any]) -> tuple[Any, tuple[jax.Array, Any]]:
        t, memory = state
        empty = block.noising.init_multiply(fresh)
        memory = jax.tree.map(partial(jnp.where, t % every == 0), empty, memory)
        noise, memory = block.noising.multiply_next(fresh, memory)
        return noise, (t + 1, memory)

    whole = participation(every * times, separation=separation, most=most * times)
    return _strategy(StreamingMatrix(init, following), lambda: np.kron(np.eye(times), block.matrix()), norm, whole)


def prefix_error(strategy: Strategy) -> float:
    """Returns the root mean squared error of the prefix sums at noise multiplier 1 and clip norm 1.

    sensitivity(C) sqrt(mean_t |row t of A C^-1|^2), per coordinate, in float32.
    """
    decoder = streaming_matrix.multiply_streaming_matrices(streaming_matrix.prefix_sum(), strategy.noising)
    squared = np.asarray(jax.jit(decoder.row_norms_squared, static_argnums=0)(strategy.pattern.rounds), float)
    return strategy.sensitivity(strategy.pattern) * math.sqrt(squared.mean())


def _strategy(
    noising: StreamingMatrix,
    matrix: Callable[[], np.ndarray],
    norm: Callable[[Participation], float],
    pattern: Participation,
) -> Strategy:
    """Builds a strategy that multiplies in full precision: noise cancels only as far as its products are exact."""

    @cache
    def bounded(asked: Participation) -> float:
        if asked.rounds > pattern.rounds:
            raise _validate.expected("pattern", f"at most the {pattern.rounds} rounds of the strategy", asked.rounds)
        with jax.default_matmul_precision("highest"):
            return norm(asked)

    def following(fresh: Any, state: Any) -> tuple[Any, Any]:
        with jax.default_matmul_precision("highest"):
            return noising.multiply_next(fresh, state)

    return Strategy(StreamingMatrix(noising.init_multiply, following), matrix, bounded, pattern)


def _banded(coefficients: np.ndarray, pattern: Participation) -> Strategy:
    rounded = coefficients.astype(np.float32)  # C is the matrix that the noise is made with
    return _of_coefficients(
        rounded.astype(float), _toeplitz.inverse_as_streaming_matrix(jnp.asarray(rounded)), pattern
    )


def _of_coefficients(coefficients: np.ndarray, noising: StreamingMatrix, pattern: Participation) -> Strategy:
    """Builds a Toeplitz matrix of positive, non-increasing coefficients, or with bands at most the separation."""

    def norm(pattern: Participation) -> float:
        rounds, separation, most = pattern
        if len(coefficients) > separation and np.any(np.diff(coefficients, append=0) > 0):
            raise _validate.expected("pattern", f"a separation of at least the {len(coefficients)} bands", separation)
        with jax.enable_x64(True):
            squared = _sensitivity_squared(jnp.asarray(coefficients), separation, most, rounds)
        return math.sqrt(float(squared))

    def matrix() -> np.ndarray:
        column = np.pad(coefficients, (0, pattern.rounds - len(coefficients)))
        return scipy.linalg.toeplitz(column, np.zeros(pattern.rounds))

    return _strategy(noising, matrix, norm, pattern)


@partial(jax.jit, static_argnums=(1, 2, 3))
def _sensitivity_squared(coefficients: jax.Array, separation: int, most: int, rounds: int) -> jax.Array:
    return _toeplitz.minsep_sensitivity_squared(coefficients, separation, most, rounds, skip_checks=True)


def _bands(pattern: Participation, bands: int) -> int:
    if _validate.at_least(1, bands=bands) > pattern.rounds:
        raise _validate.expected("bands", f"at most the {pattern.rounds} rounds", bands)
    return int(bands)


@cache
def _optimal_banded(rounds: int, bands: int) -> np.ndarray:
    with jax.enable_x64(True):
        return np.asarray(_toeplitz.optimize_banded_toeplitz(rounds, bands))


@cache
def _optimal_blt(pattern: Participation, buffers: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns (decay, scale), rounded to float32 as the noise uses them."""
    rounds, separation, most = pattern
    loss = buffered_toeplitz.LossFn.build_min_sep(rounds, "mean", separation, most)
    found, _ = buffered_toeplitz.optimize_loss(loss, buffers)
    return np.asarray(found.buf_decay, np.float32), np.asarray(found.output_scale, np.float32)
