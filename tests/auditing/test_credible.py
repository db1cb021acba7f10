"""Credible bounds: against quadrature, a published number, and rates drawn from the prior."""

import functools

import numpy as np
import pytest
from scipy.special import betainc
from scipy.stats import beta, binom

from dpaudit import _validate
from dpaudit.auditing.bounds import credible
from dpaudit.auditing.bounds.estimate import epsilon_from_rates

TABLES = [
    (5, 7, 1000, 1000),
    (0, 0, 50, 50),
    (0, 30, 100, 100_000),
    (300, 2, 1_000_000, 20),
    (50, 450, 500, 500),
    (1, 1, 2, 2),
    (512, 0, 513, 487),
]


@functools.cache
def quantiles(wrong: int, trials: int) -> np.ndarray:
    """The posterior's, of one rate."""
    return beta.ppf((np.arange(100_000) + 0.5) / 100_000, wrong + 0.5, trials - wrong + 0.5)


def brute_force(epsilon: float, table: tuple[int, int, int, int], delta: float, *, either_way: bool) -> float:
    """The posterior probability of the region between the trade-off lines, by a midpoint rule over FPR's quantiles."""
    fp, fn, negatives, positives = table
    x = quantiles(fp, negatives)

    def line(fpr: np.ndarray) -> np.ndarray:
        return np.maximum.reduce([0 * fpr, 1 - delta - np.exp(epsilon) * fpr, np.exp(-epsilon) * (1 - delta - fpr)])

    lowest, highest = line(x), 1 - line(1 - x) if either_way else np.ones_like(x)
    inside = betainc(fn + 0.5, positives - fn + 0.5, highest) - betainc(fn + 0.5, positives - fn + 0.5, lowest)
    return float(inside.mean())


@pytest.mark.parametrize("either_way", [False, True])
@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.05])
@pytest.mark.parametrize("table", TABLES)
def test_posterior_is_the_area_between_the_lines(table, delta, either_way):
    bounds = credible.joint_beta(*table, delta=delta, confidence=0.9, either_way=either_way)
    for epsilon, level in zip(bounds, (0.1, 0.9), strict=True):
        found = credible.posterior(epsilon, *table, delta=delta, either_way=either_way)
        assert found == pytest.approx(brute_force(float(epsilon), table, delta, either_way=either_way), abs=2e-6)
        if epsilon > 0:
            assert found == pytest.approx(level, abs=1e-8)
        else:
            assert found >= level


def test_known_answer_of_the_source():
    # TP 487, TN 1, FP 512, FN 0, delta 1e-5, 90%: printed as [0.145, 6.399] by a coarser quadrature, whose ends leave
    # 5.04% outside on either side; by the exact integral 5% lie outside of [0.1439, 6.4156].
    table = (512, 0, 513, 487)
    lower, upper = credible.joint_beta(*table, delta=1e-5, confidence=0.95, either_way=True)
    assert (lower, upper) == pytest.approx((0.145, 6.399), abs=0.02)
    for printed, level in ((0.145, 0.0504), (6.399, 1 - 0.0504)):
        assert brute_force(printed, table, 1e-5, either_way=True) == pytest.approx(level, abs=1e-4)


def test_jeffreys_is_the_quantile_of_its_beta_law():
    k = np.array([0, 1, 30, 99, 100])
    low, high = credible.jeffreys(k, 100, alpha=0.02)
    np.testing.assert_allclose(low, beta(k + 0.5, 100.5 - k).ppf(0.02), rtol=1e-9)
    np.testing.assert_allclose(high, beta(k + 0.5, 100.5 - k).ppf(0.98), rtol=1e-9)


def test_arrays_in_arrays_out():
    fp = np.array([[3, 9], [0, 500]])
    for bounds in (credible.jeffreys_epsilon, credible.joint_beta):
        many = bounds(fp, 7, 1000, 800, delta=1e-5, confidence=0.9)
        for i, j in np.ndindex(2, 2):
            one = bounds(fp[i, j], 7, 1000, 800, delta=1e-5, confidence=0.9)
            assert one == pytest.approx((many[0][i, j], many[1][i, j]), abs=1e-9)


@pytest.mark.parametrize("bounds", [credible.jeffreys_epsilon, credible.joint_beta])
def test_below_and_close_to_the_truth(bounds):
    # the expected counts of randomised response at epsilon 2, where both rates are 1/(1 + e^2)
    trials = np.array([100, 10_000, 1_000_000])
    errors = np.round(trials / (1 + np.exp(2)))
    lower, upper = bounds(errors, errors, trials, trials, delta=0.0, confidence=0.95)
    assert (lower < 2).all()
    assert (upper > 2).all()
    assert (np.diff(lower) > 0).all()
    assert lower[-1] > 1.98
    assert upper[-1] < 2.02


@pytest.mark.integration
@pytest.mark.parametrize("either_way", [False, True])
def test_joint_beta_errs_as_often_as_it_says_over_rates_from_the_prior(either_way):
    rng = np.random.default_rng(0)
    audits, n, confidence = 1000, 300, 0.9
    rates = rng.beta(0.5, 0.5, size=(2, audits))
    truth = epsilon_from_rates(rates[0], rates[1])
    if either_way:
        truth = np.maximum(truth, epsilon_from_rates(1 - rates[0], 1 - rates[1]))
    fp, fn = rng.binomial(n, rates)
    lower, upper = credible.joint_beta(fp, fn, n, n, delta=0.0, confidence=confidence, either_way=either_way)
    certain = lower > 0
    error = 3 * np.sqrt(0.1 * 0.9 / certain.sum())
    assert np.mean(lower[certain] > truth[certain]) == pytest.approx(0.1, abs=error)
    assert np.mean(upper[certain] < truth[certain]) == pytest.approx(0.1, abs=error)
    narrower, _ = credible.joint_beta(fp, fn, n, n, delta=0.0, confidence=0.8, either_way=either_way)
    assert np.mean(narrower[certain] > truth[certain]) > 0.1 + error  # the twin


def test_only_the_one_way_posterior_lets_a_harmless_test_go():
    # no leak at all: the source's region counts the test read backwards, so its lower bound is never 0
    counts = np.random.default_rng(1).binomial(1000, 0.5, size=(2, 600))
    one_way = functools.partial(credible.joint_beta, counts[0], counts[1], 1000, 1000, delta=0.0, confidence=0.9)
    rectangle = credible.jeffreys_epsilon(counts[0], counts[1], 1000, 1000, delta=0.0, confidence=0.9)
    error = 3 * np.sqrt(0.1 * 0.9 / 600)
    assert np.mean(one_way()[0] > 0) == pytest.approx(0.1, abs=error)
    assert np.mean(one_way(either_way=True)[0] > 0) == 1
    assert np.mean(rectangle[0] > 0) < 0.1 + error


def test_a_credible_bound_is_no_confidence_bound():
    # exactly: over all rates the Jeffreys upper bound at 2.5% errs up to 8% of the time
    high = credible.jeffreys(np.arange(1001), 1000, alpha=0.025)[1]
    rates = high[:50] + 1e-9
    errors = binom.cdf(np.searchsorted(high, rates) - 1, 1000, rates)
    assert errors.max() == pytest.approx(0.081, abs=0.002)
    assert errors.mean() < 0.04


def test_bad_input():
    with pytest.raises(_validate.InputError, match=r"false_negatives: expected whole numbers in 0 .. 10, got 11"):
        credible.joint_beta(1, [3, 11], 10, 10, delta=0.0, confidence=0.9)
    with pytest.raises(_validate.InputError, match=r"false_positives: expected whole numbers in 0 .. 10, got -1"):
        credible.posterior(1.0, -1, 0, 10, 10, delta=0.0)
    with pytest.raises(_validate.InputError, match=r"successes: expected whole numbers in 0 .. 10, got 0.5"):
        credible.jeffreys(0.5, 10, alpha=0.1)
    with pytest.raises(_validate.InputError, match="positives: expected at least one trial, got 0"):
        credible.jeffreys_epsilon(1, 0, 10, 0, delta=0.0, confidence=0.9)
    with pytest.raises(_validate.InputError, match="delta: expected a number in"):
        credible.joint_beta(1, 1, 10, 10, delta=1.0, confidence=0.9)
    with pytest.raises(_validate.InputError, match="confidence: expected a number in"):
        credible.joint_beta(1, 1, 10, 10, delta=0.0, confidence=0.0)


@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_jeffreys_bounds_give_each_end_of_each_rate_half_of_the_level(confidence):
    lower, upper = credible.jeffreys_epsilon(30, 50, 400, 300, delta=0.01, confidence=confidence)
    posteriors = beta(30.5, 370.5), beta(50.5, 250.5)

    def by_hand(level):
        ends = [[law.ppf(1 - level) for law in posteriors], [law.ppf(level) for law in posteriors]]
        return [float(epsilon_from_rates(fpr, fnr, 0.01)) for fpr, fnr in ends]

    np.testing.assert_allclose([lower, upper], by_hand((1 - confidence) / 2), rtol=1e-9)
    assert abs(lower - by_hand(1 - confidence)[0]) > 0.01  # the twin: all of it for each end
