"""Computes credible bounds from counts, under a Jeffreys prior on the two error rates. NumPy float64 throughout.

These bounds are Bayesian. Averaged over rates drawn from the prior, a bound fails exactly as often as it states.
At one fixed rate it may fail more often, most of all where few errors are expected (up to 8% for a Jeffreys bound at
2.5%): no monotone upper bound on a binomial rate below Clopper-Pearson's keeps its level everywhere. A verdict
therefore belongs to :func:`estimate.epsilon_bounds`.
"""

from typing import Any, NamedTuple

import numpy as np
from scipy.special import betainc, betainccinv, betaincinv, betaln

from dpaudit import _validate
from dpaudit.auditing.bounds.estimate import ErrorTable, counts_within, epsilon_from_rates, error_table
from dpaudit.auditing.bounds.roots import increasing_root

PRIOR = 0.5  # Jeffreys: Beta(1/2, 1/2) for each rate
TAIL = 1e-12  # posterior mass left out at each end of a rate
NODES, WEIGHTS = np.polynomial.legendre.leggauss(32)  # on -1..1


def jeffreys(successes: Any, trials: Any, *, alpha: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns posterior quantiles of a binomial probability under the Jeffreys prior, each one-sided at level alpha.

    p | k ~ Beta(k + 1/2, n - k + 1/2); low and high are its alpha and 1 - alpha quantiles.

    Args:
      successes: counts in 0..trials, any shape.
      trials: numbers of trials, >= 1.
      alpha: posterior probability outside of each bound, in (0, 1).

    Returns:
      (low, high), float64, always inside (0, 1).

    Source: Brown, Cai and DasGupta 2001, Statistical Science 16, without its changes at k = 0 and k = n.
    """
    n = np.asarray(trials, np.float64)
    k = counts_within(n, successes=successes)
    return betaincinv(k + PRIOR, n - k + PRIOR, alpha), betainccinv(k + PRIOR, n - k + PRIOR, alpha)


def jeffreys_epsilon(
    false_positives: Any, false_negatives: Any, negatives: Any, positives: Any, *, delta: float, confidence: float
) -> tuple[np.ndarray, np.ndarray]:
    """Returns credible bounds on epsilon from :func:`jeffreys` bounds on the two rates, alpha/2 each.

    As :func:`estimate.epsilon_bounds` with posterior quantiles in place of Clopper-Pearson bounds: each of the two has
    posterior probability >= confidence.

    Args:
      false_positives: guesses of world 1 among ``negatives`` trials of world 0.
      false_negatives: guesses of world 0 among ``positives`` trials of world 1.
      negatives, positives: trials of world 0 and of world 1.
      delta: in [0, 1).
      confidence: in (0, 1).

    Returns:
      (lower, upper) in nats, finite, never below 0.

    Raises:
      InputError: a value out of range.
    """
    _validate.probability(delta=delta)
    alpha = (1 - _validate.open_unit(confidence=confidence)) / 2
    table = error_table(false_positives, false_negatives, negatives, positives)
    fpr_low, fpr_high = jeffreys(table.false_positives, table.negatives, alpha=alpha)
    fnr_low, fnr_high = jeffreys(table.false_negatives, table.positives, alpha=alpha)
    return epsilon_from_rates(fpr_high, fnr_high, delta), epsilon_from_rates(fpr_low, fnr_low, delta)


def posterior(
    epsilon: Any,
    false_positives: Any,
    false_negatives: Any,
    negatives: Any,
    positives: Any,
    *,
    delta: float,
    either_way: bool = False,
) -> np.ndarray:
    """Returns the posterior probability that the test shows at most ``epsilon``.

    With X = FPR and Y = FNR independent, X ~ Beta(FP + 1/2, TN + 1/2) and Y ~ Beta(FN + 1/2, TP + 1/2), this is
    1 - Pr[ Y < max(1 - delta - e^epsilon X, e^-epsilon (1 - delta - X)) ]. The region below the two lines is a square
    up to their corner c = (1 - delta)/(1 + e^epsilon) and two wings, so the probability is
    F_X(c) F_Y(c) + sum over both orders of the integral from c of f_Y(y) F_X(e^-epsilon (1 - delta - y)) dy.
    With y = sin(t)^2 the Jeffreys posterior is smooth in t and nearly normal: 32 Gauss-Legendre nodes.

    Args:
      epsilon: in nats, >= 0, any shape that broadcasts with the counts.
      false_positives, false_negatives, negatives, positives: as for :func:`jeffreys_epsilon`.
      delta: in [0, 1).
      either_way: whether the test read backwards counts as well, as in the source: the pair of lines above
        FPR + FNR = 1 then bounds the region too.

    Returns:
      Probabilities, float64.

    Raises:
      InputError: a value out of range.

    Source: Zanella-Beguelin et al. 2022, Bayesian Estimation of Differential Privacy.
    """
    _validate.probability(delta=delta)
    table = error_table(false_positives, false_negatives, negatives, positives)
    epsilon, *counts = np.broadcast_arrays(np.asarray(epsilon, np.float64), *table)
    return _posterior(epsilon, _sides(ErrorTable(*counts), either_way), delta)


def joint_beta(
    false_positives: Any,
    false_negatives: Any,
    negatives: Any,
    positives: Any,
    *,
    delta: float,
    confidence: float,
    either_way: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns credible bounds on epsilon from the joint posterior of both rates: the quantiles of :func:`posterior`.

    Each bound has posterior probability ``confidence`` (so both together make an interval at 2 confidence - 1, which
    is the source's 1 - alpha). At one fixed truth the lower bound may err far more often than 1 - confidence: for a
    symmetric test, where both rates alike decide epsilon, up to a fifth of the time at 95% (coverage study).

    Args:
      false_positives, false_negatives, negatives, positives: as for :func:`jeffreys_epsilon`.
      delta: in [0, 1).
      confidence: in (0, 1).
      either_way: as for :func:`posterior`. The source counts both directions; its lower bound is then above zero in
        every audit with delta = 0, a mechanism that leaks nothing included.

    Returns:
      (lower, upper) in nats, finite, never below 0.

    Raises:
      InputError: a value out of range.

    Source: Zanella-Beguelin et al. 2022, Bayesian Estimation of Differential Privacy.
    """
    _validate.probability(delta=delta)
    _validate.open_unit(confidence=confidence)
    table = error_table(false_positives, false_negatives, negatives, positives)
    sides = _sides(ErrorTable(*(counts[np.newaxis] for counts in table)), either_way)
    levels = np.reshape([1 - confidence, confidence], (2,) + (1,) * table.negatives.ndim)
    # All rates of an order below their upper quantiles (above their lower ones) with probability >= level (1 - level)
    # puts each quantile between two rectangles.
    lowest = epsilon_from_rates(sides.outer.above(levels / 2)[0], sides.inner.above(levels / 2)[0], delta)
    misses = (1 - levels) / len(sides.outer.a)
    highest = epsilon_from_rates(sides.outer.below(misses), sides.inner.below(misses), delta).max(axis=0)
    lower, upper = increasing_root(lambda epsilon: _posterior(epsilon, sides, delta) - levels, lowest, highest)
    return lower, upper


class _Beta(NamedTuple):
    """Beta laws of many rates: a = errors + 1/2, b = right guesses + 1/2."""

    a: np.ndarray
    b: np.ndarray

    def cdf(self, x: np.ndarray) -> np.ndarray:
        return betainc(self.a, self.b, x)

    def below(self, probability: Any) -> np.ndarray:
        """Returns the quantile with this probability below it."""
        return betaincinv(self.a, self.b, probability)

    def above(self, probability: Any) -> np.ndarray:
        """Returns the quantile with this probability above it."""
        return betainccinv(self.a, self.b, probability)


class _Sides(NamedTuple):
    """Both orders of (X, Y), and of (1 - X, 1 - Y) where the test counts either way, on a leading axis of 2 or 4."""

    outer: _Beta  # integrated over
    inner: _Beta  # inside as its distribution function
    outer_ends: tuple[np.ndarray, np.ndarray]  # the outer rate is in between but for 2 TAIL
    inner_ends: tuple[np.ndarray, np.ndarray]


def _sides(table: ErrorTable, either_way: bool) -> _Sides:
    x = _Beta(table.false_positives + PRIOR, table.negatives - table.false_positives + PRIOR)
    y = _Beta(table.false_negatives + PRIOR, table.positives - table.false_negatives + PRIOR)
    orders = [(x, y), (y, x)]
    if either_way:
        orders += [(_Beta(*p[::-1]), _Beta(*q[::-1])) for p, q in orders]
    outer, inner = (_Beta(*map(np.stack, zip(*(order[i] for order in orders), strict=True))) for i in (0, 1))
    (low, high) = (outer.below(TAIL), outer.above(TAIL))
    swap = [1, 0, 3, 2][: len(orders)]
    return _Sides(outer, inner, (low, high), (low[swap], high[swap]))


def _posterior(epsilon: np.ndarray, sides: _Sides, delta: float) -> np.ndarray:
    """Returns Pr[epsilon of the test <= epsilon], in the shape of ``epsilon``."""
    outer, inner = sides.outer, sides.inner
    grow = np.exp(np.minimum(epsilon, 700.0))[np.newaxis]
    whole = 1 - delta
    corner = whole / (1 + grow)
    # On a wing the inner rate's distribution function is 1 up to ``full`` and 0 beyond ``reach``, but for TAIL.
    full = np.clip(whole - grow * sides.inner_ends[1], corner, 1)
    reach = np.clip(whole - grow * sides.inner_ends[0], 0, 1)
    start = np.maximum(full, sides.outer_ends[0])
    end = np.maximum(start, np.minimum(reach, sides.outer_ends[1]))
    wing = outer.cdf(full) - outer.cdf(corner) + _integral(start, end, grow, whole, outer, inner)
    square = outer.cdf(corner) * inner.cdf(corner)
    return np.clip(1 - (wing + square / 2).sum(axis=0), 0, 1)  # each order's square is counted twice


def _integral(
    start: np.ndarray, end: np.ndarray, grow: np.ndarray, whole: float, outer: _Beta, inner: _Beta
) -> np.ndarray:
    """Integrates f_outer(y) F_inner((whole - y)/grow) over start..end, in t with y = sin(t)^2."""
    first, last = (np.arcsin(np.sqrt(end_point))[..., np.newaxis] for end_point in (start, end))
    middle, half = (last + first) / 2, (last - first) / 2
    t = middle + half * NODES
    a, b, c, d, grow = (value[..., np.newaxis] for value in (*outer, *inner, grow))
    y = np.sin(t) ** 2
    log_density = (2 * a - 1) * np.log(np.sin(t)) + (2 * b - 1) * np.log(np.cos(t)) - betaln(a, b)
    inside = betainc(c, d, np.clip((whole - y) / grow, 0, 1))
    return np.sum(2 * WEIGHTS * half * np.exp(log_density) * inside, axis=-1)
