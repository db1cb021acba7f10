"""Computes, before an audit, what a number of trials can show."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy  # its stats are imported when they are first used, as they are not by every audit
from scipy.special import betaincc, expit

from dpaudit import _validate
from dpaudit.auditing.bounds import betting
from dpaudit.auditing.bounds.estimate import epsilon_bounds, upper_bound
from dpaudit.auditing.bounds.roots import increasing_root

POWER = 0.8  # the probability at which a violation counts as detectable
LARGEST = 1 << 31  # trials of a world: the most that a game can have
SIMULATED = 4000  # audits that stop early, from which their length is read off
CLOSE = 1e-3  # what is detectable is found to a tenth of this, and never below the truth
PERFECT = "a perfect attack, of a threshold that is known: it attains the corner of the claim's trade-off curve"
KNOTS = 1 << 12  # numbers of errors of which everything is computed where there are four times as many
QUANTILES = 64  # of each count, for an expectation over both


class Plan(NamedTuple):
    """The trials needed to check a claim with a perfect attack, both worlds together; every epsilon in nats.

    Attributes:
      epsilon, delta, confidence: the claim, and the confidence of its refutation.
      true_epsilon: the loss to detect.
      least: the smallest fixed number of trials with which any violation could be shown.
      fixed: a fixed number of trials with which ``true_epsilon`` is called a violation with probability 0.8.
      sequential_median, sequential_most: trials after which half, and 80 percent, of the audits that may stop at any
        time have called it one.
      trials: for which the next three hold.
      honest_lower: the expected lower bound of a mechanism that has spent exactly its claim.
      ceiling: the largest lower bound possible.
      detectable: the smallest loss that is called a violation with probability 0.8.
      rate: trials a second, or None where it is not known.
      assumes: the attack, in words.
    """

    epsilon: float
    delta: float
    confidence: float
    true_epsilon: float
    least: int
    fixed: int
    sequential_median: float
    sequential_most: float
    trials: int
    honest_lower: float
    ceiling: float
    detectable: float
    rate: float | None
    assumes: str = PERFECT

    def seconds(self, trials: float) -> float | None:
        """Returns how long so many trials take at the plan's rate."""
        return None if self.rate is None else trials / self.rate


def plan(
    epsilon: float,
    *,
    delta: float = 0.0,
    confidence: float = 0.95,
    true_epsilon: float | None = None,
    trials: int | None = None,
    rate: float | None = None,
) -> Plan:
    """Computes how many trials a claim needs, with a number fixed in advance and with early stopping.

    The attack is assumed to be perfect and its threshold fixed; trials set aside to choose one are additional.

    Args:
      epsilon, delta: the claim.
      confidence: of calling a violation.
      true_epsilon: the loss to detect; twice the claim by default.
      trials: of both worlds together, for the bounds to expect; by default as many as a fixed number needs.
      rate: trials a second (:func:`dpaudit._engine.game.trials_per_second` measures it).

    Raises:
      InputError: a value out of range; a true_epsilon that the claim allows, or so close to it that no number of
        trials below 2^31 shows the difference.
    """
    _validate.positive(epsilon=epsilon)
    _validate.probability(delta=delta)
    _validate.open_unit(confidence=confidence)
    true = 2 * epsilon if true_epsilon is None else float(_validate.positive(true_epsilon=true_epsilon))
    if true <= epsilon:
        raise _validate.expected("true_epsilon", f"more than the claimed {epsilon:g}", true)
    if rate is not None:
        _validate.positive(rate=rate)
    settings = {"delta": delta, "confidence": confidence}
    least = _smallest(lambda n: ceiling(n, n, **settings) > epsilon, 1)
    if least is None:
        raise _validate.expected("epsilon", "a claim that 2^31 trials can refute", epsilon)
    fixed = needed(true, epsilon, **settings, least=least)
    stops = stopping(true, epsilon, **settings, longest=4 * fixed)
    n = fixed if trials is None else _validate.at_least(2, trials=trials) // 2
    return Plan(
        epsilon=float(epsilon),
        delta=float(delta),
        confidence=float(confidence),
        true_epsilon=float(true),
        least=2 * least,
        fixed=2 * fixed,
        sequential_median=2 * float(np.quantile(stops, 0.5, method="higher")),
        sequential_most=2 * float(np.quantile(stops, POWER, method="higher")),
        trials=2 * n,
        honest_lower=expected_lower(epsilon, n, n, **settings),
        ceiling=ceiling(n, n, **settings),
        detectable=detectable(epsilon, n, n, **settings),
        rate=rate,
    )


def needed(epsilon: float, claimed: float, *, delta: float, confidence: float, least: int = 1) -> int:
    """Finds the number of trials of each world, fixed in advance, with which :func:`power` reaches 0.8.

    Power is a saw-tooth in the number of trials: the smallest such number within the last tenth before the one that
    bisection finds, in steps of a two-hundredth.

    Args:
      epsilon: the true loss in nats.
      claimed: the promised loss in nats.
      delta, confidence: those of the bound.
      least: a number known to be needed.

    Raises:
      InputError: more than 2^31 would be needed.
    """

    def enough(n: int) -> bool:
        return power(epsilon, claimed, n, n, delta=delta, confidence=confidence) >= POWER

    found = _smallest(enough, least)
    if found is None:
        raise _validate.expected("true_epsilon", f"one that 2^31 trials can tell from {claimed:g}", epsilon)
    window = range(max(least, found - found // 10), found, max(1, found // 200))
    return next((n for n in window if enough(n)), found)


def stopping(epsilon: float, claimed: float, *, delta: float, confidence: float, longest: int) -> np.ndarray:
    """Simulates, from one fixed seed, when audits with a perfect attack and early stopping call a violation.

    Only the bets on the sum of both error rates are followed, and these are looked at after every pair up to 100 and
    then whenever there is 1 percent more: true audits stop a little earlier.

    Args:
      epsilon: the true loss in nats.
      claimed: the promised loss in nats.
      delta, confidence: those of the audit.
      longest: pairs after which an audit gives up.

    Returns:
      Pairs of trials played, [4000]; infinite for an audit that gave up.
    """
    looks = np.unique(np.minimum(np.ceil(1.01 ** np.arange(np.log(longest) / np.log(1.01) + 1)), longest)).astype(int)
    most = betting.most_errors(looks, claimed, delta=delta, confidence=confidence, expected_gap=claimed)
    fresh = 2 * np.diff(looks, prepend=0)
    draws = np.random.default_rng(0).binomial(fresh, _corner(epsilon, delta), (SIMULATED, len(looks)))
    certain = np.cumsum(draws, axis=1) <= most
    return np.where(certain.any(1), looks[np.argmax(certain, axis=1)], np.inf)


def expected_lower(epsilon: float, negatives: int, positives: int, *, delta: float, confidence: float) -> float:
    """Computes the expected lower bound of a mechanism that attains ``epsilon``, under the perfect attack.

    The mean over 64 equally likely values of each of the two counts.
    """
    binom = scipy.stats.binom
    shares = (np.arange(QUANTILES) + 0.5) / QUANTILES
    rate = _corner(epsilon, delta)
    false_positives, false_negatives = binom.ppf(shares, negatives, rate), binom.ppf(shares, positives, rate)
    counts = false_positives[:, None], false_negatives[None, :]
    lower, _ = epsilon_bounds(*counts, negatives, positives, delta=delta, confidence=confidence)
    return float(lower.mean())


def _smallest(enough: Callable[[int], bool], low: int) -> int | None:
    """Finds the smallest n >= ``low`` with ``enough(n)``, which must stay true from there on; None beyond
    ``LARGEST``."""
    high = low
    while not enough(high):
        low, high = high + 1, 2 * high
        if high > LARGEST:
            return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return high


def ceiling(negatives: int, positives: int, *, delta: float, confidence: float) -> float:
    """Returns the largest lower bound that this many trials could certify: that of a test without a single error.

    Args:
      negatives, positives: counted trials of world 0 and of world 1.
      delta, confidence: those of the bound.

    Returns:
      epsilon in nats. An audited lower bound near it says more about the number of trials than about the mechanism.
    """
    lower, _ = epsilon_bounds(0, 0, negatives, positives, delta=delta, confidence=confidence)
    return float(lower)


def power(epsilon: float, claimed: float, negatives: int, positives: int, *, delta: float, confidence: float) -> float:
    """Computes the probability that the lower bound exceeds ``claimed`` when a perfect attack attains the true
    epsilon.

    The attack is taken to be perfect: FPR = FNR = (1 - delta)/(1 + e^epsilon), the corner of the (epsilon, delta)
    trade-off curve. Exact but for numbers of errors that are as good as impossible: for each number of false
    positives, the probability of so few false negatives that both Clopper-Pearson bounds certify a violation.

    Args:
      epsilon: the true loss in nats.
      claimed: the promised loss in nats.
      negatives, positives: counted trials of world 0 and of world 1.
      delta, confidence: those of the bound.
    """
    rate = _corner(epsilon, delta)

    def allowed(fpr: np.ndarray) -> np.ndarray:
        return np.maximum((1 - delta - fpr) * np.exp(-claimed), 1 - delta - fpr * np.exp(min(claimed, 700.0)))

    return power_against(allowed, rate, rate, negatives, positives, confidence=confidence)


def power_against(
    allowed: Callable[[np.ndarray], np.ndarray],
    fpr: float,
    fnr: float,
    negatives: int,
    positives: int,
    *,
    confidence: float,
) -> float:
    """Computes the probability that a test's Clopper-Pearson bounds refute a promised trade-off curve.

    Args:
      allowed: the curve, the lowest FNR promised at each FPR.
      fpr, fnr: the test's true rates.
      negatives, positives: counted trials of world 0 and of world 1.
      confidence: of the bound.
    """
    probabilities, high = _upper_bounds(negatives, fpr, confidence)
    alike = (negatives, fpr) == (positives, fnr)
    others, high_fnr = (probabilities, high) if alike else _upper_bounds(positives, fnr, confidence)
    below = np.concatenate([[0.0], np.cumsum(others)])  # of so few false negatives
    return float(np.sum(probabilities * below[np.searchsorted(high_fnr, allowed(high))]))


def _upper_bounds(trials: int, rate: float, confidence: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns (probabilities, upper bounds on the rate) of the numbers of errors that can occur, but for 1e-12, in
    order. Both are smooth: of many numbers, those between ``KNOTS`` are interpolated, to 1e-12."""
    spread = 8 * np.sqrt(trials * rate * (1 - rate)) + 32  # beyond it, less than 1e-12
    first, last = max(0, int(trials * rate - spread)), min(trials, int(trials * rate + spread))
    counts = np.arange(first, last + 1)
    knots = counts if len(counts) <= 4 * KNOTS else np.unique(np.linspace(first, last, KNOTS).astype(int))
    upper = upper_bound(knots, trials, alpha=(1 - confidence) / 2)
    within = np.minimum(knots, trials - 1)
    tail = np.where(knots < trials, betaincc(within + 1, trials - within, rate), 1.0)
    if len(knots) < len(counts):
        upper, tail = (scipy.interpolate.CubicSpline(knots, values)(counts) for values in (upper, tail))
    return np.diff(tail, prepend=0.0), upper


def detectable(claimed: float, negatives: int, positives: int, *, delta: float, confidence: float) -> float:
    """Finds the smallest true epsilon that would be called a violation with probability 0.8, by a perfect attack.

    Args:
      claimed: the promised loss in nats.
      negatives, positives: counted trials of world 0 and of world 1.
      delta, confidence: those of the bound.

    Returns:
      epsilon in nats; infinite where no loss at all could be told from the claim with these trials.
    """

    def seen(epsilon: float) -> float:
        return power(epsilon, claimed, negatives, positives, delta=delta, confidence=confidence)

    return smallest_seen(seen, claimed)


def detectable_by_betting(claimed: float, pairs: int, *, delta: float, confidence: float) -> float:
    """Finds the :func:`detectable` epsilon of an audit that stops as soon as a violation is certain.

    Only the bets on the sum of both error rates are counted, and only at the last trial: the power is at least 0.8.

    Args:
      claimed: the promised loss in nats.
      pairs: the most trials of each world.
      delta, confidence: those of the audit.
    """
    settings = {"delta": delta, "confidence": confidence, "expected_gap": claimed}
    most = betting.most_errors(np.array([pairs]), claimed, **settings)

    def seen(epsilon: float) -> float:
        return float(scipy.stats.binom.cdf(most[0], 2 * pairs, _corner(epsilon, delta)))

    return smallest_seen(seen, claimed)


def _corner(epsilon: float, delta: float) -> float:
    """Returns the error rate, of either kind, of the perfect attack: the corner of the (epsilon, delta) trade-off
    curve."""
    return (1 - delta) * float(expit(-epsilon))


def smallest_seen(seen: Callable[[float], float], claimed: float) -> float:
    """Finds the smallest epsilon above ``claimed`` at which ``seen``, an increasing probability, reaches 0.8."""
    seen = functools.cache(seen)  # the root search evaluates the ends of the bracket again
    low, step = claimed, CLOSE
    if seen(low) >= POWER:  # where confidence is little
        return low
    while seen(low + step) < POWER:
        low, step = low + step, 2 * step
        if step > 64:
            return float("inf")
    ends = np.array([low]), np.array([low + step])
    found = increasing_root(lambda epsilon: np.array([seen(epsilon[0]) - POWER]), *ends, tolerance=CLOSE / 20)
    return float(found[0]) + CLOSE / 10
