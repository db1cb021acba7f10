"""Tests whether a rule's errors break a promise that is a whole curve, and chooses the rule to test. NumPy float64.

A rule has true error rates (a, b) and is played n0 and n1 times; x false positives and y false negatives are seen. A
promise f is broken where b < f(a). For any rates, U0 = Pr[Bin(n0, a) <= x] and U1 = Pr[Bin(n1, b) <= y] are
independent and stochastically no smaller than uniform, so Pr[U0 U1 <= t] <= t (1 - log t), as in Fisher's combination
of two tests. If the promise is kept, (a, b) is on the curve or above it, where U0 U1 is at most ::

    T = max over a of Pr[Bin(n0, a) <= x] Pr[Bin(n1, f(a)) <= y]

so T (1 - log T) is a p-value of "the promise is kept". A box of two Clopper-Pearson limits, of half the error each,
that is wholly below the curve says the same with less power: at 95% its sides are 2 standard errors long each, where
1.3 are enough here.

T is bounded from above on a grid of a: between two points the first factor is largest at the left one and the second
at the right one.

Source: Clopper and Pearson 1934; Fisher 1932, Section 21.1; Dong, Roth and Su 2022 for the curve.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import betainc, expit, logit
from scipy.stats import binom

from dpaudit import _validate
from dpaudit.auditing.bounds.estimate import checked_scores
from dpaudit.mechanisms.claim import TINY, Claim
from dpaudit.mechanisms.trade_off import TradeOff

NEAR, FAR = 400, 60  # points of the grid around what was seen, and elsewhere
REACH = 12.0  # standard errors around it
SLOPES = 200  # of tangents that are looked at
CANDIDATES = 256  # thresholds that are looked at, evenly spread over the log-odds of a score's rank
NOTHING = 0.5  # a p-value from which on the best threshold shows nothing
NEARBY = 0.2  # how far thresholds count as near, in ranks over the number of scores
RULES, NODES, OFTEN = 41, 10, 0.8  # points of a curve, equally likely counts at each, and the power that is asked for
CHANCE = 1.5  # standard deviations of log p, about sqrt(-2 log p) by the normal law, that a choice by chance gains

Against = Callable[[float, float, int], Callable[[Any, Any], np.ndarray]]  # (fpr, fnr, pairs) -> counts -> refuted


def p_value(claim: Claim, false_positives: Any, false_negatives: Any, negatives: Any, positives: Any) -> np.ndarray:
    """Computes the p-value of "the mechanism keeps its promise" from the counts of a rule that was fixed before them.

    Where the promise has two directions it is the larger of both: the rule does not say which world has the record.

    Args:
      claim: any, a curve or (epsilon, delta).
      false_positives: guesses of world 1 among ``negatives`` trials of world 0, any broadcastable shape.
      false_negatives: guesses of world 0 among ``positives`` trials of world 1.
      negatives, positives: trials of world 0 and of world 1.

    Returns:
      p in [0, 1], float64, of the counts' shape: at most alpha with probability <= alpha if the promise is kept.

    Raises:
      InputError: counts out of range.
    """
    counts = _checked(false_positives, false_negatives, negatives, positives)
    first, second = claim.directions
    largest = _largest(first, *counts)
    if second is not first:
        largest = np.maximum(largest, _largest(second, *counts))
    largest = np.maximum(largest, np.finfo(float).tiny)  # where a product underflows
    return np.minimum(1.0, largest * (1 - np.log(largest)))


def violated(
    claim: Claim, false_positives: int, false_negatives: int, negatives: int, positives: int, *, confidence: float
) -> bool:
    """Tells whether the counts of a fixed rule show, at this confidence, that the promise is broken.

    Args:
      claim, false_positives, false_negatives, negatives, positives: as for :func:`p_value`.
      confidence: in (0, 1). A promise that is kept is called broken with probability <= 1 - confidence.

    Raises:
      InputError: a value out of range.
    """
    _validate.open_unit(confidence=confidence)
    return bool(p_value(claim, false_positives, false_negatives, negatives, positives) <= 1 - confidence)


def finds_twice(claim: Claim, pairs: int, *, confidence: float, against: Against | None = None) -> bool:
    """Tells whether a perfect attack on a mechanism with twice the promised loss would be a violation with probability
    0.8.

    Twice is what two records lose together where one keeps the curve f: f(1 - f(.)), which turns epsilon into
    2 epsilon and mu into 2 mu.

    Args:
      claim: any.
      pairs: counted trials of each world.
      confidence: in (0, 1).
      against: the test, for a rule's true rates; None for that of :func:`p_value`.

    Source: Dong, Roth and Su 2022, Theorem 2.14, for two records.
    """
    fpr = expit(np.linspace(-10.0, 10.0, RULES))
    rates = fpr, np.clip(claim.fnr(1 - claim.fnr(fpr)), 0.0, 1.0)

    def refuted(shares: np.ndarray) -> np.ndarray:
        """Of all combinations of these quantiles of both counts, at every point of the curve."""
        x, y = (binom.ppf(shares[:, None], pairs, rate).astype(int) for rate in rates)
        if against is None:
            return p_value(claim, x[:, None], y[None], pairs, pairs) <= 1 - confidence
        tests = [against(float(one), float(other), pairs) for one, other in zip(*rates, strict=True)]
        return np.stack([test(x[:, None, i], y[None, :, i]) for i, test in enumerate(tests)], axis=-1)

    if refuted(np.sqrt([OFTEN])).any():  # counts up to both quantiles have this probability
        return True
    return bool(refuted((np.arange(NODES) + 0.5) / NODES).mean(axis=(0, 1)).max() >= OFTEN)


def tangent(claim: Claim, false_positives: int, false_negatives: int, negatives: int, positives: int) -> Claim:
    """Chooses the (epsilon, delta) of a curve that these counts refute most strongly.

    The curve promises each of its (epsilon, delta), so a violation of this one violates the curve. Methods for such a
    claim, betting above all, therefore test a curve too, without the evidence of its other points.

    Args:
      claim: any.
      false_positives, false_negatives, negatives, positives: counts of a rule, of the split set aside for choosing.

    Returns:
      A claim of epsilon and delta; the claim itself if it is one.

    Raises:
      InputError: counts out of range.
    """
    if not claim.is_curve:
        return claim
    _checked(false_positives, false_negatives, negatives, positives)
    a, b = false_positives / negatives, false_negatives / positives
    wide = np.array([a * (1 - a) / negatives, b * (1 - b) / positives]) + 0.25 / np.array([negatives, positives]) ** 2

    def strength(epsilon: float) -> float:
        """Returns the larger distance of (a, b) below the two lines, in standard errors."""
        slope, delta = np.exp(epsilon), claim.delta_at(epsilon)
        if delta >= 1:  # nothing is promised there
            return -np.inf
        steep = (1 - delta - slope * a - b) / np.sqrt(slope**2 * wide[0] + wide[1])
        flat = (1 - delta - a - slope * b) / np.sqrt(wide[0] + slope**2 * wide[1])
        return float(max(steep, flat))

    epsilons = np.concatenate([[TINY], np.geomspace(1e-3, 20.0, SLOPES)])
    best = float(max(epsilons, key=strength))
    if claim.delta_at(best) >= 1:  # a promise of less than these epsilons say
        return claim.at(0.5)
    return Claim(best, claim.delta_at(best), claim.neighbouring)


def choose_threshold(claim: Claim, scores: Any) -> tuple[float, float]:
    """Chooses the threshold at which these scores refute the promise most strongly; its p-value must not be reported.

    The p-value weighs the gap below the curve by its certainty, so a lucky extreme score counts for little, and no
    confidence level for the choice has to be set. Where no threshold shows anything, it is the most accurate one.
    Among many thresholds its logarithm is averaged over those nearby, which reduces the influence of chance; a narrow
    peak that is higher than chance explains is taken instead.

    Args:
      claim: any.
      scores: [2, n], one row per world; the split set aside for choosing.

    Returns:
      (threshold, p): a threshold t for the rule "world 1 where score > t", and its p-value on these scores, by which
      attacks can be compared.

    Raises:
      InputError: no scores, or NaN among them.
    """
    ordered = np.sort(checked_scores(scores), axis=1)
    values = np.unique(ordered)
    places = np.arange(len(values))
    if len(values) > CANDIDATES:
        end = logit(1 - 0.5 / len(values))
        places = np.unique((expit(np.linspace(-end, end, CANDIDATES)) * len(values)).astype(int))
        values = values[places]
    n = ordered.shape[1]
    false_positives = n - np.searchsorted(ordered[0], values, side="right")
    false_negatives = np.searchsorted(ordered[1], values, side="right")
    p = p_value(claim, false_positives, false_negatives, n, n)
    logs = np.log(p)
    peak = best = int(np.argmin(logs))
    if len(values) >= CANDIDATES // 2:
        best = int(np.argmin(_averaged(places / places[-1], logs)))
    if logs[best] > logs[peak] + CHANCE * np.sqrt(1 - 2 * logs[peak]):  # of log p, a standard deviation or so
        best = peak
    if p[best] > NOTHING:
        best = int(np.argmin(false_positives + false_negatives))
    return float(values[best]), float(p[best])


def _checked(*given: Any) -> tuple[np.ndarray, ...]:
    """Broadcasts false positives, false negatives, negatives and positives to one shape."""
    counts = np.broadcast_arrays(*(np.asarray(count, np.float64) for count in given))
    for name, count, most in (("false_positives", counts[0], counts[2]), ("false_negatives", counts[1], counts[3])):
        if not ((count >= 0) & (count <= most)).all() or (most < 1).any():
            raise _validate.expected(name, "a number from 0 to that of trials, which is >= 1", count)
    return tuple(counts)


def _averaged(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Averages a function of [0, 1], 0 elsewhere, over what is within NEARBY of each x, by the trapezoidal rule."""
    areas = np.concatenate([[0.0], np.cumsum(np.diff(x) * (y[1:] + y[:-1]) / 2)])
    return (np.interp(x + NEARBY, x, areas) - np.interp(x - NEARBY, x, areas)) / (2 * NEARBY)


def _largest(direction: TradeOff, x: np.ndarray, y: np.ndarray, n0: np.ndarray, n1: np.ndarray) -> np.ndarray:
    """Bounds T from above."""
    x, y, n0, n1 = (count[..., None] for count in (x, y, n0, n1))
    middle = (x + 1) / (n0 + 2)
    spread = REACH / np.sqrt((n0 + 2) * middle * (1 - middle))  # of the log-odds
    near = expit(logit(middle) + spread * np.linspace(-1, 1, NEAR))
    far = np.broadcast_to(expit(np.linspace(-30, 30, FAR)), (*near.shape[:-1], FAR))
    ends = np.broadcast_to([0.0, 1.0], (*near.shape[:-1], 2))
    a = np.sort(np.concatenate([near, far, ends], axis=-1), axis=-1)
    b = direction.fnr(a)
    return (_at_most(x, n0, a[..., :-1]) * _at_most(y, n1, b[..., 1:])).max(axis=-1)


def _at_most(count: np.ndarray, trials: np.ndarray, rate: np.ndarray) -> np.ndarray:
    """Returns Pr[Bin(trials, rate) <= count]."""
    below = np.minimum(count, trials - 1)
    return np.where(count >= trials, 1.0, betainc(trials - below, below + 1, 1 - rate))
