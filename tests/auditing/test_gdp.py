"""Gaussian-DP estimates: against dp-accounting, on normal scores, and where their assumption fails."""

import dp_accounting
import numpy as np
import pytest
from scipy.stats import beta, norm

from dpaudit import _validate
from dpaudit.auditing.bounds import gdp


def threshold_rates(mu: float, threshold: float) -> tuple[float, float]:
    """FPR and FNR of "score > threshold" between N(0, 1) and N(mu, 1)."""
    return float(norm.sf(threshold)), float(norm.cdf(threshold - mu))


@pytest.mark.parametrize("delta", [1e-12, 1e-6, 1e-2, 0.3])
def test_epsilon_from_mu_agrees_with_dp_accounting(delta):
    mu = np.array([[0.1, 0.5, 1.0], [3.0, 8.0, 20.0]])
    expected = [dp_accounting.get_epsilon_gaussian(1 / value, delta) for value in mu.flat]
    np.testing.assert_allclose(gdp.epsilon_from_mu(mu, delta).ravel(), expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("delta", [1e-7, 1e-3, 0.3, 0.99])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 30.0])
def test_mu_is_the_inverse_of_epsilon(epsilon, delta):
    mu = gdp.mu_from_epsilon(epsilon, delta)
    shown = norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    assert shown == pytest.approx(delta, rel=1e-5)
    assert gdp.epsilon_from_mu(mu + 1e-4, delta) > epsilon


def test_epsilon_from_mu_at_the_ends():
    np.testing.assert_array_equal(gdp.epsilon_from_mu([0.0, 1.0, np.inf], 0.0), [0, np.inf, np.inf])
    np.testing.assert_array_equal(gdp.epsilon_from_mu([0.0, 1e-7, np.inf], 1e-6), [0, 0, np.inf])


def test_mu_from_rates():
    for mu, threshold in ((0.5, -1.0), (1.0, 0.5), (6.0, 2.0)):
        assert gdp.mu_from_rates(*threshold_rates(mu, threshold)) == pytest.approx(mu, rel=1e-9)
    np.testing.assert_array_equal(
        gdp.mu_from_rates([0.6, 0.0, 1.0, 0.0, 0.5], [0.6, 1.0, 0.0, 0.2, 0.5]), [0, 0, 0, np.inf, 0]
    )


def test_below_and_close_to_the_truth():
    trials = np.array([100, 10_000, 1_000_000])
    fp, fn = (np.round(rate * trials) for rate in threshold_rates(1.0, 1.2))
    lower, upper = gdp.mu_bounds(fp, fn, trials, trials, confidence=0.95)
    assert (lower < 1).all()
    assert (upper > 1).all()
    assert (np.diff(lower) > 0).all()
    assert lower[-1] > 0.99
    epsilon, _ = gdp.epsilon_bounds(fp, fn, trials, trials, delta=1e-6, confidence=0.95)
    truth = dp_accounting.get_epsilon_gaussian(1.0, 1e-6)
    assert (epsilon < truth).all()
    assert epsilon[-1] > 0.98 * truth


@pytest.mark.parametrize("mu", [0.0, 1.0, 3.0])
def test_covers_at_the_stated_rate(mu):
    rng = np.random.default_rng(5)
    audits, n = 5000, 400
    fpr, fnr = threshold_rates(mu, mu / 2 + 0.3)
    fp, fn = rng.binomial(n, fpr, audits), rng.binomial(n, fnr, audits)
    lower, upper = gdp.mu_bounds(fp, fn, n, n, confidence=0.8)
    error = 3 * np.sqrt(0.2 * 0.8 / audits)
    assert np.mean(lower > mu) < 0.2 + error
    assert np.mean(upper < mu) < 0.2 + error
    # twins: the estimate at the observed rates is no bound, and a smaller mu is refuted
    assert np.mean(gdp.mu_from_rates(fp / n, fn / n) > mu) > 0.2 + error
    assert np.mean(lower > mu - 0.3) > 0.2 + error


def test_the_epsilon_stands_on_its_assumption():
    # Laplace noise with epsilon 1 exactly, a test in the middle, a million trials: a Gaussian would be at 6.4
    n = 1_000_000
    errors = round(0.5 * np.exp(-0.5) * n)
    lower, _ = gdp.epsilon_bounds(errors, errors, n, n, delta=1e-9, confidence=0.95)
    assert lower > 6


def test_bad_input():
    with pytest.raises(_validate.InputError, match="mu: expected numbers >= 0, got"):
        gdp.epsilon_from_mu([1.0, -0.1], 1e-6)
    with pytest.raises(_validate.InputError, match="delta: expected a number in"):
        gdp.epsilon_from_mu(1.0, 1.5)
    with pytest.raises(_validate.InputError, match="confidence: expected a number in"):
        gdp.mu_bounds(1, 1, 10, 10, confidence=2.0)
    with pytest.raises(_validate.InputError, match=r"false_positives: expected whole numbers in 0 .. 10, got 12"):
        gdp.epsilon_bounds(12, 1, 10, 10, delta=0.1, confidence=0.9)


@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_bounds_of_mu_give_each_end_of_each_rate_half_of_the_level(confidence):
    lower, upper = gdp.mu_bounds(30, 50, 400, 300, confidence=confidence)

    def by_hand(level):
        high = beta.ppf(1 - level, 31, 370), beta.ppf(1 - level, 51, 250)
        low = beta.ppf(level, 30, 371), beta.ppf(level, 50, 251)
        return [-norm.ppf(ends).sum() for ends in (high, low)]

    np.testing.assert_allclose([lower, upper], by_hand((1 - confidence) / 2), rtol=1e-9)
    assert abs(lower - by_hand(1 - confidence)[0]) > 0.01  # the twin: all of it for each end
