"""Bounds epsilon from counts or scores, with confidence. NumPy float64 throughout.

Two rates describe a test that guesses a world: FPR = Pr[guess 1 | world 0] and FNR = Pr[guess 0 | world 1]. Every
bound here holds for a rule that was fixed before the counted trials were seen; a threshold must therefore be chosen on
a split of the trials that is not counted.
"""

from typing import Any, NamedTuple

import numpy as np
from scipy.special import betaincinv

from dpaudit import _validate


def epsilon_from_rates(fpr: Any, fnr: Any, delta: Any = 0.0) -> np.ndarray:
    """Returns the smallest epsilon that is consistent with two error rates.

    max( ln((1 - delta - FPR)/FNR), ln((1 - delta - FNR)/FPR), 0 ); infinite where a rate is zero and the other leaves
    1 - delta - rate > 0.

    Args:
      fpr, fnr: rates in [0, 1], any broadcastable shape.
      delta: in [0, 1).

    Returns:
      epsilon in nats, float64.

    Source: paper 000, Eq. (2); with delta, paper 003, Eq. (7).
    """
    fpr, fnr, delta = (np.asarray(value, np.float64) for value in (fpr, fnr, delta))
    shown = np.maximum(_log_ratio(1 - delta - fpr, fnr), _log_ratio(1 - delta - fnr, fpr))
    return np.where(np.isnan(fpr + fnr), np.nan, np.maximum(shown, 0.0))


def _log_ratio(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    """Returns ln(top/bottom) for bottom >= 0; -inf where top <= 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(top > 0, np.log(np.maximum(top, 0.0)) - np.log(bottom), -np.inf)


def clopper_pearson(successes: Any, trials: Any, *, alpha: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns exact bounds on a binomial probability, each of them one-sided at level alpha.

    Pr[p < low] <= alpha and Pr[p > high] <= alpha for every true p (so low..high is an interval at 1 - 2 alpha). They
    hold as well for the mean of unequal probabilities of independent trials (Hoeffding 1956), as when every trial has
    its own pair of inputs.

    Args:
      successes: counts in 0..trials, any shape.
      trials: numbers of trials, >= 1.
      alpha: error probability of each bound, in (0, 1).

    Returns:
      (low, high), float64.

    Source: Clopper and Pearson 1934; quantiles of the beta law.
    """
    k, n = np.broadcast_arrays(np.asarray(successes, np.float64), np.asarray(trials, np.float64))
    inner_low = betaincinv(np.maximum(k, 1), n - np.maximum(k, 1) + 1, alpha)
    return np.where(k == 0, 0.0, inner_low), upper_bound(k, n, alpha=alpha)


def upper_bound(successes: Any, trials: Any, *, alpha: float) -> np.ndarray:
    """Returns the upper one of the bounds of :func:`clopper_pearson` alone, in half the time."""
    k, n = np.broadcast_arrays(np.asarray(successes, np.float64), np.asarray(trials, np.float64))
    inner = betaincinv(np.minimum(k, n - 1) + 1, n - np.minimum(k, n - 1), 1 - alpha)
    return np.where(k == n, 1.0, inner)


def epsilon_bounds(
    false_positives: Any,
    false_negatives: Any,
    negatives: Any,
    positives: Any,
    *,
    delta: float,
    confidence: float,
    both_events: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns lower and upper confidence bounds on the epsilon that this test attains, by Clopper-Pearson.

    alpha = 1 - confidence is shared equally by the two rates, so both rates' bounds hold together with probability
    >= confidence and Eq. (2) at the rates' upper (lower) ends bounds epsilon from below (above). Each of the two
    bounds holds with probability >= confidence. The lower one is a lower bound on the mechanism's epsilon; the upper
    one is about this test only: another test may attain more.

    Args:
      false_positives: guesses of world 1 among ``negatives`` trials of world 0.
      false_negatives: guesses of world 0 among ``positives`` trials of world 1.
      negatives, positives: trials of world 0 and of world 1.
      delta: in [0, 1).
      confidence: in (0, 1).
      both_events: the larger of the bounds of this test and of its opposite, which guesses the other world each time;
        each is given half of the error.

    Returns:
      (lower, upper) in nats, never below 0; the upper bound is infinite where a count is zero.

    Source: paper 000, Eq. (2); paper 003, Eq. (7) with delta.
    """
    if both_events:
        counts = [np.asarray(count) for count in (false_positives, false_negatives, negatives, positives)]
        opposite = counts[2] - counts[0], counts[3] - counts[1], *counts[2:]
        settings = {"delta": delta, "confidence": (1 + confidence) / 2}
        one, other = epsilon_bounds(*counts, **settings), epsilon_bounds(*opposite, **settings)
        return np.maximum(one[0], other[0]), np.maximum(one[1], other[1])
    alpha = (1 - confidence) / 2
    fpr_low, fpr_high = clopper_pearson(false_positives, negatives, alpha=alpha)
    fnr_low, fnr_high = clopper_pearson(false_negatives, positives, alpha=alpha)
    return epsilon_from_rates(fpr_high, fnr_high, delta), epsilon_from_rates(fpr_low, fnr_low, delta)


def errors(scores: np.ndarray, threshold: float, above: bool = True) -> tuple[int, int]:
    """Counts (false positives, false negatives) of the rule "world 1 where score > threshold"; ties go to world 0.

    Args:
      scores: [2, n], one row per world; NaN counts as larger than any number.
      threshold: the rule's number.
      above: False for the rule "world 1 where not score > threshold".
    """
    guesses = (scores > threshold) | np.isnan(scores)
    guesses = guesses if above else ~guesses
    return int(np.sum(guesses[0])), int(np.sum(~guesses[1]))


def checked_scores(scores: Any) -> np.ndarray:
    """Returns scores [2, n] in float64, after refusing those that are empty or not numbers."""
    scores = np.asarray(scores, np.float64)
    if scores.ndim != 2 or scores.shape[0] != 2 or scores.shape[1] < 1:
        raise _validate.expected("scores", "shape [2, n] with n >= 1", f"shape {list(scores.shape)}")
    if np.isnan(scores).any():
        raise _validate.expected("scores", "numbers", f"NaN in {int(np.isnan(scores).sum())} of {scores.size} trials")
    return scores


def checked_worlds(scores: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns the scores of both worlds, [n0] and [n1] in float64, after refusing what :func:`checked_scores` does."""
    rows = [np.asarray(row, np.float64) for row in scores]
    if len(rows) == 2 and np.shape(rows[0]) != np.shape(rows[1]):
        return checked_scores([rows[0]] * 2)[0], checked_scores([rows[1]] * 2)[0]
    first, second = checked_scores(rows)
    return first, second


class ErrorTable(NamedTuple):
    """The four counts of a test in float64, of one shape: errors beside the trials that they are out of."""

    false_positives: np.ndarray
    false_negatives: np.ndarray
    negatives: np.ndarray
    positives: np.ndarray


def counts_within(limit: Any, **named: Any) -> np.ndarray:
    """Returns the counts ``name=counts`` in float64, after checking that each is a whole number in 0 .. limit.

    Args:
      limit: the largest count, any shape that broadcasts with the counts.
      named: one array of counts, under the name that the error message shows.

    Raises:
      InputError: a count that is negative, above its limit, or not a whole number.
    """
    ((name, counts),) = named.items()
    counts, limit = np.broadcast_arrays(np.asarray(counts, np.float64), np.asarray(limit, np.float64))
    wrong = ~((counts >= 0) & (counts <= limit) & (counts == np.floor(counts)))
    if wrong.any():
        first = np.flatnonzero(wrong)[0]
        raise _validate.expected(name, f"whole numbers in 0 .. {limit.flat[first]:g}", f"{counts.flat[first]:g}")
    return counts


def error_table(false_positives: Any, false_negatives: Any, negatives: Any, positives: Any) -> ErrorTable:
    """Broadcasts the four counts to one shape.

    Raises:
      InputError: no trials in a world, or more errors than trials.
    """
    for name, trials in (("negatives", negatives), ("positives", positives)):
        if np.size(trials) and np.min(trials) < 1:
            raise _validate.expected(name, "at least one trial", int(np.min(trials)))
    false_positives = counts_within(negatives, false_positives=false_positives)
    false_negatives = counts_within(positives, false_negatives=false_negatives)
    negatives, positives = np.asarray(negatives, np.float64), np.asarray(positives, np.float64)
    return ErrorTable(*np.broadcast_arrays(false_positives, false_negatives, negatives, positives))
