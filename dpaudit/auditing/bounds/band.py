"""Bounds error rates at all thresholds at once, so that the threshold may be chosen on the scores that are counted.

A band is a table of upper bounds [n + 1] on an error rate, one for each count of errors among n trials. It holds for
all thresholds together with probability >= 1 - alpha, in finite samples and whatever the law of the scores, ties
included, so the largest epsilon over all thresholds may be reported as it stands. Larger scores mean world 1.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy
from scipy.special import betainccinv, gammaln, xlogy

from dpaudit import _validate
from dpaudit.auditing.bounds.estimate import checked_worlds, epsilon_from_rates
from dpaudit.auditing.bounds.roots import increasing_root

FINENESS = 0.25  # ranks checked are at most this many standard deviations apart ...
COARSENESS = 0.01  # ... or this share of the way to the nearer end
TAIL = 1e-13  # probability left out at each step: it makes a band wider, never narrower

Band = Callable[..., np.ndarray]


def dkw(trials: int, *, alpha: float) -> np.ndarray:
    """Returns the band of constant width sqrt(ln(1/alpha)/(2 n)).

    Args:
      trials: n >= 1.
      alpha: error probability of the whole band, in (0, 1/2].

    Returns:
      Upper bounds, [n + 1].

    Raises:
      InputError: a value out of range.

    Source: Dvoretzky, Kiefer and Wolfowitz 1956; the constant is Massart's, 1990.
    """
    n = _validate.at_least(1, trials=trials)
    if not 0 < alpha <= 0.5:
        raise _validate.expected("alpha", "a number in (0, 0.5]", alpha)
    return np.minimum(np.arange(n + 1) / n + np.sqrt(np.log(1 / alpha) / (2 * n)), 1.0)


@functools.lru_cache(maxsize=64)
def equal_level(trials: int, *, alpha: float) -> np.ndarray:
    """Returns the band that errs equally often at every rank: Clopper-Pearson at a local level at which all hold
    together.

    The bound for k errors is the 1 - eta quantile of Beta(k + 1, n - k), the law of the next order statistic of n
    uniforms; eta is the largest with Pr[every order statistic within its bound] >= 1 - alpha, which
    :func:`stays_below` computes exactly: for alpha = 0.025, alpha/17 at n = 50, alpha/68 at 10^4, alpha/119 at 10^6.
    It is narrow at small rates: with no error among 10^4 it allows a rate of 7.9e-4 (a threshold fixed in advance
    3.7e-4, :func:`dkw` 1.4e-2). In large samples some ranks are not checked but bounded by the next one that is.

    Args:
      trials: n >= 1.
      alpha: error probability of the whole band, in (0, 1).

    Returns:
      Upper bounds, [n + 1], read-only; kept for the next call.

    Raises:
      InputError: a value out of range.

    Source: Berk and Jones 1979; Aldor-Noiman et al. 2013, The American Statistician 67.
    """
    n = _validate.at_least(1, trials=trials)
    _validate.open_unit(alpha=alpha)
    ranks = _checked_ranks(n)

    def bounds(log_level: np.ndarray) -> np.ndarray:
        return betainccinv(ranks, n - ranks + 1, np.exp(log_level))

    def excess(log_level: np.ndarray) -> np.ndarray:
        return np.asarray(1 - alpha - stays_below(ranks, bounds(log_level), n))

    lowest, highest = np.log([alpha / (2 * len(ranks)), alpha])
    log_level = increasing_root(excess, lowest, highest, tolerance=1e-7) - 2e-7  # on the safe side
    table = np.append(bounds(log_level)[np.searchsorted(ranks, np.arange(1, n + 1))], 1.0)
    table.flags.writeable = False
    return table


def _checked_ranks(n: int) -> np.ndarray:
    """Returns ranks of 1..n, thinned where neighbouring bounds differ by much less than their own uncertainty."""
    ranks, rank = [], 1
    while rank <= n:
        ranks.append(rank)
        near = min(rank, n - rank)
        rank += max(1, int(FINENESS * np.sqrt(near)), int(COARSENESS * near))
    return np.array(ranks if ranks[-1] == n else [*ranks, n])


def stays_below(ranks: np.ndarray, bounds: np.ndarray, n: int) -> float:
    """Computes Pr[U_(rank) <= bound for every rank] for the order statistics of n uniforms, up to 1e-13 a step.

    The number of uniforms below t is a Poisson process of rate n, given that it ends at n. Its law is propagated from
    bound to bound; at each one, paths with too few points are dropped.

    Args:
      ranks: increasing, in 1..n.
      bounds: nondecreasing, in [0, 1].
      n: sample size.

    Returns:
      The probability, never too large.

    Source: Khmaladze and Shinjikashvili 2001; Moscovich and Nadler 2017, Statistics and Probability Letters 123.
    """
    lowest, law, time = 0, np.ones(1), 0.0
    highest = np.minimum(scipy.stats.binom.isf(TAIL, n, bounds).astype(int) + 1, n)
    for rank, bound, high in zip(ranks, bounds, highest, strict=True):
        mean = n * (bound - time)
        few, many = scipy.stats.poisson.ppf([TAIL, 1 - TAIL], mean) if mean > 0 else (0, 0)
        steps = np.arange(int(few), int(many) + 1)
        law = scipy.signal.fftconvolve(law, np.exp(xlogy(steps, mean) - mean - gammaln(steps + 1)))
        first = lowest + int(few)
        law = np.maximum(law[max(rank - first, 0) : high + 1 - first], 0.0)
        lowest, time = max(rank, first), bound
        if law.size == 0:
            return 0.0
    left, mean = n - lowest - np.arange(law.size), n * (1 - time)
    rest = np.exp(xlogy(left, mean) - mean - gammaln(left + 1))
    return float(law @ rest / np.exp(n * np.log(n) - n - gammaln(n + 1)))


class Tradeoff(NamedTuple):
    """The empirical trade-off curve of the rules "world 1 where score > threshold", and its band; each [t].

    All upper ends hold together with probability >= confidence, and so do all lower ends: the curve of the true laws
    runs between (fpr_low, fnr_low) and (fpr_high, fnr_high).
    """

    thresholds: np.ndarray  # increasing; the first is -inf: always world 1
    fpr: np.ndarray
    fnr: np.ndarray
    fpr_low: np.ndarray
    fpr_high: np.ndarray
    fnr_low: np.ndarray
    fnr_high: np.ndarray


def tradeoff(scores: Any, *, confidence: float, band: Band = equal_level) -> Tradeoff:
    """Computes the error rates at every threshold with simultaneous bounds; the worlds share 1 - confidence equally.

    Args:
      scores: one row per world, [n0] and [n1].
      confidence: in (0, 1), of all upper bounds together, and of all lower bounds together.
      band: :func:`equal_level` or :func:`dkw`.

    Returns:
      A :class:`Tradeoff` with one entry for every value among the scores, and one for -inf.

    Raises:
      InputError: scores that are empty or not numbers; confidence out of range.
    """
    alpha = (1 - _validate.open_unit(confidence=confidence)) / 2
    ordered = [np.sort(own) for own in checked_worlds(scores)]
    n0, n1 = map(len, ordered)
    thresholds = np.union1d(np.concatenate(ordered), [-np.inf])
    false_positives = n0 - np.searchsorted(ordered[0], thresholds, side="right")
    false_negatives = np.searchsorted(ordered[1], thresholds, side="right")
    high = [band(n, alpha=alpha) for n in (n0, n1)]
    low = [1 - bounds[::-1] for bounds in high]
    return Tradeoff(
        thresholds,
        false_positives / n0,
        false_negatives / n1,
        low[0][false_positives],
        high[0][false_positives],
        low[1][false_negatives],
        high[1][false_negatives],
    )


class BestThreshold(NamedTuple):
    """The largest lower bound over all thresholds, and the threshold that gives it."""

    epsilon_lower: float
    threshold: float


def epsilon_lower(scores: Any, *, delta: float, confidence: float, band: Band = equal_level) -> BestThreshold:
    """Finds the largest epsilon that some threshold certifies, where the threshold is chosen on these same scores.

    Args:
      scores: one row per world, [n0] and [n1].
      delta: in [0, 1).
      confidence: in (0, 1): with at least this probability the mechanism's epsilon is at least the bound.
      band: :func:`equal_level` or :func:`dkw`.

    Returns:
      A :class:`BestThreshold`; epsilon in nats, never below 0.

    Raises:
      InputError: as for :func:`tradeoff`; delta out of range.

    Source: paper 000, Eq. (2), at the upper ends of the band.
    """
    _validate.probability(delta=delta)
    curve = tradeoff(scores, confidence=confidence, band=band)
    lower = epsilon_from_rates(curve.fpr_high, curve.fnr_high, delta)
    best = int(np.argmax(lower))
    return BestThreshold(float(lower[best]), float(curve.thresholds[best]))
