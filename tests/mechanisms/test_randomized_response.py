import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpaudit import _validate
from dpaudit.mechanisms import randomized_response, sampling


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
