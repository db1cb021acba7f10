import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpaudit import _validate
from dpaudit.mechanisms import randomized_response, sampling

KEY = jax.random.key(0)


@pytest.mark.parametrize("num_categories", [2, 5])
def test_probabilities(num_categories: int) -> None:
    epsilon, truth, count = 1.2, 1, 100_000

    def expected(epsilon: float) -> np.ndarray:
        weights = np.ones(num_categories)
        weights[truth] = math.exp(epsilon)
        return count * weights / weights.sum()

    mechanism = randomized_response.mechanism(epsilon=epsilon, num_categories=num_categories)
    released = jax.jit(jax.vmap(mechanism.apply, (0, None)))(jax.random.split(jax.random.key(0), count), truth)
    seen = np.bincount(released, minlength=num_categories)
    assert stats.chisquare(seen, expected(epsilon)).pvalue > 1e-3
    assert stats.chisquare(seen, expected(epsilon + 0.1)).pvalue < 1e-6


@pytest.mark.parametrize("epsilon", [0.1, 20.0, 800.0])
def test_log_prob_is_normalised(epsilon: float) -> None:
    mechanism = randomized_response.mechanism(epsilon=epsilon, num_categories=4)
    assert mechanism.log_prob is not None
    log_prob = np.array([mechanism.log_prob(z, 2) for z in range(4)], np.float64)
    np.testing.assert_allclose(np.exp(log_prob).sum(), 1, rtol=1e-6)
    np.testing.assert_allclose(log_prob[2] - log_prob[0], epsilon, rtol=1e-6)


def test_the_rare_lie_keeps_its_probability(monkeypatch: pytest.MonkeyPatch) -> None:
    """At epsilon 20 a lie has probability 2e-9: below the grid of float32 uniforms."""
    asked = []
    monkeypatch.setattr(randomized_response, "bernoulli", lambda _, p: asked.append(p) or jnp.bool_(True))
    assert int(randomized_response.mechanism(epsilon=20.0).apply(jax.random.key(0), 1)) == 0
    np.testing.assert_allclose(asked, 1 / (1 + math.exp(20)), rtol=1e-10)


@pytest.mark.parametrize("epsilon", [43.5, 45.0, 100.0, 800.0])
def test_a_lie_is_never_rarer_than_epsilon_allows(monkeypatch: pytest.MonkeyPatch, epsilon: float) -> None:
    """The coin compares 64 bits with its probability: above epsilon 44.4, rounded down, it never showed a lie."""
    asked: list[float] = []
    monkeypatch.setattr(randomized_response, "bernoulli", lambda _, p: asked.append(p) or jnp.bool_(True))
    randomized_response.mechanism(epsilon=epsilon).apply(jax.random.key(0), 1)
    high, low = sampling._fixed_point(jnp.float32(asked[0]))
    counted = (int(high) << 32) + int(low)  # of 2^64 values of the bits
    assert counted >= 1
    assert math.log((2**64 - counted) / counted) <= epsilon


@pytest.mark.parametrize(
    ("x", "got"), [(3, "3"), (-1, "-1"), (2**80, str(2**80)), (0.5, "0.5"), (np.array([0, 1]), r"array\(\[0, 1\]\)")]
)
def test_refuses_what_is_no_category(x: object, got: str) -> None:
    mechanism = randomized_response.mechanism(epsilon=1.0, num_categories=3)
    with pytest.raises(_validate.InputError, match=f"x: expected one category, an integer in 0..2, got {got}$"):
        mechanism.apply(jax.random.key(0), x)


def test_refuses_one_category() -> None:
    with pytest.raises(_validate.InputError, match="num_categories: expected a whole number >= 2, got 1"):
        randomized_response.mechanism(epsilon=1.0, num_categories=1)


def test_a_lie_about_one_of_many_categories_is_any_other_one_alike() -> None:
    """Truth plus shift, up to 3e9, wrapped around in int32, and shifts below 1.3e9 were as likely as 3 to 2."""
    most, count = 1_500_000_000, 20_000
    apply = randomized_response.mechanism(epsilon=1.0, num_categories=most).apply
    keys = jax.random.split(jax.random.key(0), count)
    release = jax.jit(jax.vmap(apply, (0, None)))

    def chance(released: np.ndarray) -> float:
        return float(stats.chisquare(np.bincount(released // (most // 10), minlength=10)).pvalue)

    for truth in (0, most // 2, most - 1):
        released = np.asarray(release(keys, truth))
        assert released.dtype == np.int32
        assert released.min() >= 0
        assert chance(released) > 1e-3
    shifts = np.asarray(release(keys, 0))  # the twins have the same power at x = most - 1
    wrapped = (shifts.astype(np.int64) + most - 1 + 2**31) % 2**32 - 2**31
    uneven = np.random.default_rng(0).integers(0, 2**32, count) % (most - 1)
    assert chance(wrapped % most) < 1e-6
    assert chance(uneven) < 1e-6


@pytest.mark.parametrize("most", [1, 2, 65_537, 1_499_999_999, 2**31 - 2])
def test_a_shift_is_the_share_that_64_bits_say(most: int) -> None:
    for seed in range(5):
        high, low = map(int, jax.random.bits(jax.random.key(seed), (2,), jnp.uint32))
        shift = randomized_response._up_to(most, jax.random.key(seed))
        assert int(shift) == 1 + (most * ((high << 32) + low) >> 64)


@pytest.mark.parametrize("num_categories", [1_000, 10**8, 2**31 - 1])
def test_a_rare_truth_keeps_its_probability(monkeypatch: pytest.MonkeyPatch, num_categories: int) -> None:
    """Float32 has no probability of lying that is so close to 1: the truth was never told, which only it never is."""
    asked: list[float] = []
    monkeypatch.setattr(randomized_response, "bernoulli", lambda _, p: asked.append(p) or jnp.bool_(True))
    assert int(randomized_response.mechanism(epsilon=1.0, num_categories=num_categories).apply(KEY, 7)) == 7
    keep = float(np.float32(asked[0]))
    assert math.log(keep * (num_categories - 1) / (1 - keep)) == pytest.approx(1.0, abs=1.2e-7)


@pytest.mark.parametrize("epsilon", [np.uint8(1), np.float16(1.5), jnp.int8(2)])
def test_numbers_of_narrow_types_are_the_numbers(epsilon: Any) -> None:
    hundred: Any = np.int8(100)
    narrow = randomized_response.mechanism(epsilon=epsilon, num_categories=hundred)
    plain = randomized_response.mechanism(epsilon=float(epsilon), num_categories=100)
    assert narrow.log_prob is not None
    assert plain.log_prob is not None
    for z in (3, 4):
        assert narrow.log_prob(z, 3) == plain.log_prob(z, 3)
    keys = jax.random.split(KEY, 50)
    released = jax.vmap(narrow.apply, (0, None))(keys, 3)
    np.testing.assert_array_equal(released, jax.vmap(plain.apply, (0, None))(keys, 3))
