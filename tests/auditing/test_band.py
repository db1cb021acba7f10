"""Simultaneous bands: exact probabilities, and whole audits whose threshold is chosen on the same scores."""

import numpy as np
import pytest
from scipy.stats import binom, ksone, norm

from dpaudit import _validate
from dpaudit.auditing.bounds import band, gdp
from dpaudit.auditing.bounds.estimate import clopper_pearson, epsilon_from_rates

BANDS = (band.equal_level, band.dkw)


def one_threshold(trials: int, *, alpha: float) -> np.ndarray:
    """The wrong twin: Clopper-Pearson at level alpha at every threshold, as if it had been fixed."""
    return clopper_pearson(np.arange(trials + 1), trials, alpha=alpha)[1]


def misses(table: np.ndarray) -> float:
    """The exact probability that some order statistic of n uniforms lies above its bound, by first passage.

    The first rank i that fails has exactly i - 1 points below its bound; given that, the rest are uniform above it.
    """
    n = len(table) - 1
    first = np.zeros(np.count_nonzero(table < 1))  # a bound of 1 never fails
    for i in range(len(first)):
        gone, bounds = np.arange(i), table[:i]
        again = binom.pmf(i - gone, n - gone, (table[i] - bounds) / (1 - bounds))
        first[i] = binom.pmf(i, n, table[i]) - first[:i] @ again
    return float(first.sum())


@pytest.mark.parametrize("n, width", [(1, 0.4), (10, 0.3), (100, 0.1), (1000, 0.03)])
def test_stays_below_agrees_with_kolmogorov(n, width):
    ranks = np.arange(1, n + 1)
    found = band.stays_below(ranks, np.minimum((ranks - 1) / n + width, 1), n)
    assert found == pytest.approx(ksone.cdf(width, n), abs=1e-9)


@pytest.mark.parametrize("n", [1, 2, 60, 300])
@pytest.mark.parametrize("alpha", [0.3, 0.025, 1e-4])
def test_bands_err_as_often_as_they_say(n, alpha):
    assert misses(band.equal_level(n, alpha=alpha)) == pytest.approx(alpha, rel=1e-3)
    assert misses(band.dkw(n, alpha=alpha)) <= alpha
    if n > 2:
        assert misses(one_threshold(n, alpha=alpha)) > 3 * alpha or alpha > 0.1
        assert misses(one_threshold(n, alpha=alpha)) > 1.5 * alpha


@pytest.mark.integration
def test_equal_level_is_narrow_at_small_rates():
    n = 10_000
    table, constant = (make(n, alpha=(1 - 0.95) / 2) for make in BANDS)  # of the audits below, to the last bit
    assert table[0] * n == pytest.approx(7.91, abs=0.01)  # a fixed threshold: 3.69; the constant band: 136
    assert table[0] < constant[0] / 15
    assert table[5000] < 1.35 * constant[5000]
    assert (np.diff(table) >= 0).all()
    assert (table > np.arange(n + 1) / n)[:-1].all()
    assert table[-1] == 1


def quantile_scores(mu: float, n: int) -> np.ndarray:
    q = norm.ppf((np.arange(n) + 0.5) / n)
    return np.stack([q, q + mu])


@pytest.mark.integration
def test_below_and_close_to_the_truth():
    delta, mu = 0.05, 1.0
    truth = gdp.epsilon_from_mu(mu, delta)
    lower = [band.epsilon_lower(quantile_scores(mu, n), delta=delta, confidence=0.95) for n in (100, 1_000, 10_000)]
    epsilons = np.array([found.epsilon_lower for found in lower])
    assert (epsilons < truth).all()
    assert (np.diff(epsilons) > 0).all()
    assert epsilons[-1] > 0.78 * truth
    constant = band.epsilon_lower(quantile_scores(mu, 10_000), delta=delta, confidence=0.95, band=band.dkw)
    assert constant.epsilon_lower < epsilons[-1]
    best = lower[-1].threshold
    assert epsilon_from_rates(norm.sf(best), norm.cdf(best - mu), delta) > epsilons[-1]


@pytest.mark.parametrize("rounding", [None, 0.5])
def test_all_rates_lie_within_the_band_at_the_stated_rate(rounding):
    rng = np.random.default_rng(6)
    audits, n, mu, confidence = 400, 150, 1.0, 0.8

    def outside(make: band.Band) -> np.ndarray:
        wrong = np.zeros((2, audits), bool)
        for audit in range(audits):
            scores = rng.normal(size=(2, n)) + np.array([[0.0], [mu]])
            if rounding is not None:
                scores = np.floor(scores / rounding) * rounding
            curve = band.tradeoff(scores, confidence=confidence, band=make)
            edge = curve.thresholds + (rounding or 0)  # score > t means that the score before rounding is >= t + step
            fpr, fnr = norm.sf(edge), norm.cdf(edge - mu)
            wrong[0, audit] = (fpr > curve.fpr_high).any() or (fnr > curve.fnr_high).any()
            wrong[1, audit] = (fpr < curve.fpr_low).any() or (fnr < curve.fnr_low).any()
        return wrong.mean(axis=1)

    error = 3 * np.sqrt(0.2 * 0.8 / audits)
    for make in BANDS:
        assert (outside(make) < 0.2 + error).all()
    assert (outside(one_threshold) > 0.2 + error).all()


@pytest.mark.integration
def test_covers_where_nothing_leaks():
    rng = np.random.default_rng(7)
    scores = rng.normal(size=(200, 2, 1000))
    found = {
        make: np.mean([band.epsilon_lower(s, delta=0.0, confidence=0.8, band=make).epsilon_lower > 0 for s in scores])
        for make in (*BANDS, one_threshold)
    }
    error = 3 * np.sqrt(0.2 * 0.8 / len(scores))
    assert max(found[make] for make in BANDS) < 0.2 + error
    assert found[one_threshold] > 0.2 + error


def test_tradeoff_counts_ties_with_world_0():
    scores = np.array([[1.0, 1.0, 2.0, 2.0], [1.0, 2.0, 2.0, 3.0]])
    curve = band.tradeoff(scores, confidence=0.9)
    np.testing.assert_array_equal(curve.thresholds, [-np.inf, 1, 2, 3])
    np.testing.assert_array_equal(curve.fpr, [1, 0.5, 0, 0])
    np.testing.assert_array_equal(curve.fnr, [0, 0.25, 0.75, 1])
    for low, rate, high in ((curve.fpr_low, curve.fpr, curve.fpr_high), (curve.fnr_low, curve.fnr, curve.fnr_high)):
        assert (low <= rate).all()
        assert (rate <= high).all()
    constant = band.epsilon_lower(np.zeros((2, 500)), delta=0.0, confidence=0.9)
    assert constant.epsilon_lower == 0


def test_bad_input():
    with pytest.raises(_validate.InputError, match=r"scores: expected shape \[2, n\]"):
        band.tradeoff(np.zeros(4), confidence=0.9)
    with pytest.raises(_validate.InputError, match="scores: expected numbers, got NaN in 1"):
        band.epsilon_lower([[0.0, np.nan], [0.0, 1.0]], delta=0.0, confidence=0.9)
    with pytest.raises(_validate.InputError, match="confidence: expected a number in"):
        band.tradeoff(np.zeros((2, 3)), confidence=1.0)
    with pytest.raises(_validate.InputError, match="delta: expected a number in"):
        band.epsilon_lower(np.zeros((2, 3)), delta=1.0, confidence=0.9)
    with pytest.raises(_validate.InputError, match=r"alpha: expected a number in \(0, 0.5\], got 0.6"):
        band.dkw(10, alpha=0.6)
    with pytest.raises(_validate.InputError, match="trials: expected a whole number >= 1"):
        band.equal_level(0, alpha=0.1)
