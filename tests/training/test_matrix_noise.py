"""Correlated noise: published numbers, dense algebra, and sensitivity by brute force over participations."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.special

from dpaudit._validate import InputError
from dpaudit.training.dp_ftrl import correlated
from dpaudit.training.matrix_noise import (
    Strategy,
    banded,
    blt,
    independent,
    prefix_error,
    restarted,
    toeplitz,
    tree,
)
from dpaudit.training.sampling import Participation, participation

KEY = jax.random.key(11)
ROUNDS = 12
PATTERN = participation(ROUNDS, separation=4)
BLOCK = participation(5, separation=4)
TOEPLITZ = toeplitz(PATTERN)

MAKE = {
    "independent": lambda: independent(PATTERN),
    "tree": lambda: tree(PATTERN),
    "toeplitz": lambda: toeplitz(PATTERN),
    "truncated": lambda: toeplitz(PATTERN, bands=5),
    "banded": lambda: banded(PATTERN, bands=4),
    "blt": lambda: blt(PATTERN, buffers=1),
    "restarted tree": lambda: restarted(tree(BLOCK), 3),
    "restarted toeplitz": lambda: restarted(toeplitz(BLOCK), 3),
}


@pytest.fixture(scope="module")
def strategies() -> dict[str, Strategy]:
    return {name: make() for name, make in MAKE.items()}


# Published numbers


@pytest.mark.integration
def test_prefix_sums_have_the_known_errors():
    once = participation(512, separation=512)
    assert prefix_error(tree(once)) == pytest.approx(6.71, abs=5e-3)
    assert prefix_error(toeplitz(once)) == pytest.approx(2.89, abs=5e-3)
    assert prefix_error(independent(once)) == pytest.approx(math.sqrt(513 / 2), rel=1e-5)


@pytest.mark.integration
def test_optimised_strategies_are_worth_it(strategies):
    error = {name: prefix_error(strategy) for name, strategy in strategies.items()}
    assert error["blt"] < error["toeplitz"] < error["independent"]
    assert error["banded"] < error["independent"]
    assert not jax.config.read("jax_enable_x64")


@pytest.mark.parametrize("rounds", [16, 100])
def test_prefix_sums_of_a_trees_noise_have_as_much_variance_as_set_bits(rounds):
    matrix = tree(participation(rounds, separation=rounds)).matrix()
    prefix = np.tril(np.ones((rounds, rounds))) @ np.linalg.inv(matrix)
    bits = [t.bit_count() for t in range(1, rounds + 1)]
    np.testing.assert_allclose(np.sum(prefix**2, axis=1), bits, atol=1e-9)


# Closed forms


def test_toeplitz_is_the_square_root_of_the_prefix_sums():
    matrix = TOEPLITZ.matrix()
    np.testing.assert_allclose(matrix @ matrix, np.tril(np.ones((ROUNDS, ROUNDS))), atol=1e-6)
    k = np.arange(ROUNDS)
    np.testing.assert_allclose(matrix[:, 0], scipy.special.binom(2 * k, k) / 4.0**k, rtol=1e-6)
    np.testing.assert_allclose(toeplitz(PATTERN, bands=3).matrix()[:, 0], [1, 1 / 2, 3 / 8] + [0] * 9, rtol=1e-6)


def test_a_tree_of_four_rounds_by_hand():
    matrix = tree(participation(4, separation=4)).matrix()
    assert matrix.tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [1, 1, 1, 1]]
    assert tree(participation(4, separation=4)).sensitivity(participation(4, separation=4)) == pytest.approx(
        math.sqrt(3)
    )


def test_independent_noise_of_several_participations():
    strategy = independent(PATTERN)
    assert np.array_equal(strategy.matrix(), np.eye(ROUNDS))
    assert [strategy.sensitivity(participation(12, separation=4, most=most)) for most in (1, 2, 3)] == pytest.approx(
        [1, math.sqrt(2), math.sqrt(3)]
    )


def test_a_single_buffer_decays_geometrically():
    column = blt(PATTERN, buffers=1).matrix()[:, 0]
    assert column[0] == 1
    ratios = column[2:] / column[1:-1]
    np.testing.assert_allclose(ratios, ratios[0], rtol=1e-6)
    assert 0 < ratios[0] < 1
    assert 0 < column[1] < 1


def dense_error(strategy):
    """sens(C) times the root mean square of the rows of A C^-1."""
    matrix = strategy.matrix()
    prefix = np.tril(np.ones(matrix.shape)) @ np.linalg.inv(matrix)
    return strategy.sensitivity(strategy.pattern) * math.sqrt(np.sum(prefix**2) / len(matrix))


@pytest.mark.parametrize("name", MAKE)
def test_the_error_of_prefix_sums_is_that_of_dense_algebra(strategies, name):
    assert prefix_error(strategies[name]) == pytest.approx(dense_error(strategies[name]), rel=1e-5)


def test_no_other_bands_have_a_smaller_error_of_one_participation():
    """The mean over rounds, at the privacy of one participation; any neighbour of the coefficients is worse."""
    best = banded(PATTERN, bands=4).matrix()[:, 0]

    def error(column):
        matrix = scipy.linalg.toeplitz(column, np.zeros(ROUNDS))
        prefix = np.tril(np.ones(matrix.shape)) @ np.linalg.inv(matrix)
        return np.linalg.norm(column) * math.sqrt(np.sum(prefix**2) / ROUNDS)

    assert not best[4:].any()
    for moved in itertools.product((-0.03, 0, 0.03), repeat=3):
        other = best + np.pad([0, *moved], (0, ROUNDS - 4))
        assert error(other) >= error(best) - 1e-6
    assert error(best + np.eye(ROUNDS)[1] * 0.03) > error(best) + 1e-5  # the twin


# The matrix, its inverse and the noise


@pytest.mark.parametrize("name", MAKE)
def test_noising_is_the_inverse_of_the_matrix(strategies, name):
    strategy = strategies[name]
    rounds = strategy.pattern.rounds
    matrix = strategy.matrix()
    assert matrix.shape == (rounds, rounds)
    assert np.array_equal(matrix, np.tril(matrix))
    inverse = jax.jit(strategy.noising.materialize, static_argnums=0)(rounds)
    np.testing.assert_allclose(matrix @ inverse, np.eye(rounds), atol=2e-6)


@pytest.mark.parametrize("name", MAKE)
def test_noise_has_the_covariance_it_claims(strategies, name):
    strategy = strategies[name]
    stddev, width = 0.3, 20_000
    noise = correlated(strategy, stddev)

    def step(memory, key):
        noisy, memory = noise.add(key, {"w": jnp.zeros(width, jnp.bfloat16), "b": jnp.zeros(())}, memory)
        return memory, noisy["w"]

    memory = noise.init({"w": jnp.zeros(width, jnp.bfloat16), "b": jnp.zeros(())})
    _, drawn = jax.lax.scan(step, memory, jax.random.split(KEY, strategy.pattern.rounds))
    assert drawn.dtype == jnp.float32
    assert _deviation(drawn, strategy.matrix(), stddev) < 5
    assert _deviation(drawn, strategy.matrix(), stddev * 1.05) > 5
    other = toeplitz(strategy.pattern, bands=3).matrix()
    assert _deviation(drawn, other, stddev) > 20


@pytest.mark.parametrize("name", MAKE)
def test_noise_of_a_sum_in_float64_hides_its_last_digits_too(strategies, name):
    """Whoever knows two possible sums would otherwise see which one leaves noise that is a float32 number."""
    sums = (0.1, 1 / 3)
    with jax.enable_x64(True):
        noise = correlated(strategies[name], 1.0)
        memory = noise.init({"w": jnp.zeros(500), "b": jnp.zeros(500, jnp.float32)})

        def step(memory, key):
            noisy, memory = noise.add(
                key, {"w": jnp.full(500, sums[1], jnp.float64), "b": jnp.zeros(500, jnp.float32)}, memory
            )
            return memory, noisy

        _, noisy = jax.lax.scan(step, memory, jax.random.split(KEY, ROUNDS))
    assert (noisy["w"].dtype, noisy["b"].dtype) == (jnp.float64, jnp.float32)
    for known in sums:
        rest = np.asarray(noisy["w"]) - known
        assert np.mean(rest.astype(np.float32) == rest) < 0.01


def _deviation(drawn: jax.Array, matrix: np.ndarray, stddev: float) -> float:
    """The largest deviation of the empirical covariance [n, n] from stddev^2 C^-1 C^-T, in standard errors."""
    sample = np.asarray(drawn, float)
    inverse = np.linalg.inv(matrix)
    claimed = stddev**2 * inverse @ inverse.T
    error = np.sqrt((np.outer(np.diag(claimed), np.diag(claimed)) + claimed**2) / sample.shape[1])
    return float(np.max(np.abs(sample @ sample.T / sample.shape[1] - claimed) / error))


# Sensitivity by brute force

EXACT = {"independent", "toeplitz", "truncated", "banded", "blt"}


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("seen", [(12, 4, 3), (12, 4, 2), (7, 4, 2), (12, 12, 1)], ids=str)
def test_no_participation_moves_a_release_further_than_claimed(strategies, name, seen):
    pattern, strategy = Participation(*seen), strategies[name]
    worst = _worst(strategy.matrix()[: pattern.rounds, : pattern.rounds], pattern)
    claimed = strategy.sensitivity(pattern)
    assert worst <= claimed * (1 + 1e-6)
    assert claimed <= worst * (1 + 1e-6 if name in EXACT or pattern.most == 1 else 1.25)


def _worst(matrix: np.ndarray, pattern: Participation) -> float:
    """The largest |C x| over all rounds that the pattern allows and all signs in them."""
    worst = 0.0
    for count in range(1, pattern.most + 1):
        signs = np.array(list(itertools.product([-1, 1], repeat=count))).T
        for taken in itertools.combinations(range(pattern.rounds), count):
            if all(later - earlier >= pattern.separation for earlier, later in itertools.pairwise(taken)):
                worst = max(worst, np.linalg.norm(matrix[:, list(taken)] @ signs, axis=0).max())
    return worst


def test_a_restart_every_epoch_costs_one_tree_each():
    strategy = restarted(tree(participation(8, separation=8)), 5)
    assert strategy.pattern == (40, 8, 5)
    for most in (1, 3, 5):
        seen = participation(40, separation=8, most=most)
        assert strategy.sensitivity(seen) == pytest.approx(math.sqrt(4 * most))  # 1 + log2(8) nodes hold a round
    assert strategy.sensitivity(participation(15, separation=8)) == pytest.approx(math.sqrt(4 * 2))


# Bad input


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: banded(PATTERN, bands=5), "bands: expected at most the 4 rounds between participations, got 5"),
        (lambda: toeplitz(PATTERN, bands=13), "bands: expected at most the 12 rounds, got 13"),
        (lambda: blt(PATTERN, buffers=11), "buffers: expected at most 10, .*, got 11"),
        (lambda: restarted(TOEPLITZ, 0), "times: expected a whole number >= 1, got 0"),
        (
            lambda: TOEPLITZ.sensitivity(participation(13)),
            "pattern: expected at most the 12 rounds of the strategy, got 13",
        ),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()
