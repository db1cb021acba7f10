"""What a number of trials can and cannot show, before any is played."""

import numpy as np
from scipy.stats import binom

from dpaudit.auditing.estimate import clopper_pearson, epsilon_bounds

POWER = 0.8  # the probability at which a violation counts as detectable


def ceiling(negatives: int, positives: int, *, delta: float, confidence: float) -> float:
    """The largest lower bound that this many trials could certify: that of a test without a single error.

    Args:
      negatives, positives: counted trials of world 0 and of world 1.
      delta, confidence: those of the bound.

    Returns:
      epsilon in nats. An audited lower bound near it is a statement about the number of trials, not about privacy.
    """
    lower, _ = epsilon_bounds(0, 0, negatives, positives, delta=delta, confidence=confidence)
    return float(lower)


def power(epsilon: float, claimed: float, negatives: int, positives: int, *, delta: float, confidence: float) -> float:
    """The probability that the lower bound exceeds ``claimed`` when the true epsilon is attained by the attack.

    The attack is taken to be perfect: FPR = FNR = (1 - delta)/(1 + e^epsilon), the corner of the (epsilon, delta)
    trade-off curve. Exact: for each number of false positives, the largest number of false negatives that still
    certifies a violation is found through the duality of Clopper-Pearson bounds and binomial tails.

    Args:
      epsilon: the true loss in nats.
      claimed: the promised loss in nats.
      negatives, positives: counted trials of world 0 and of world 1.
      delta, confidence: those of the bound.
    """
    alpha = (1 - confidence) / 2
    rate = (1 - delta) / (1 + np.exp(epsilon))
    few, many = binom.ppf([1e-12, 1 - 1e-12], negatives, rate)
    counts = np.arange(few, many + 1)
    _, fpr = clopper_pearson(counts, negatives, alpha=alpha)
    allowed = np.maximum((1 - delta - fpr) * np.exp(-claimed), 1 - delta - fpr * np.exp(claimed))  # FNR bound below it
    most = np.where(allowed > 0, binom.ppf(alpha, positives, np.clip(allowed, 0, 1)) - 1, -1)
    return float(np.sum(binom.pmf(counts, negatives, rate) * binom.cdf(most, positives, rate)))


def detectable(claimed: float, negatives: int, positives: int, *, delta: float, confidence: float) -> float:
    """The smallest true epsilon that would be called a violation with probability 0.8, were the attack perfect.

    Args:
      claimed: the promised loss in nats.
      negatives, positives: counted trials of world 0 and of world 1.
      delta, confidence: those of the bound.

    Returns:
      epsilon in nats; infinite where no loss at all could be told from the claim with these trials.
    """

    def seen(epsilon: float) -> float:
        return power(epsilon, claimed, negatives, positives, delta=delta, confidence=confidence)

    low, high = claimed, claimed + 60.0
    if seen(high) < POWER:
        return float("inf")
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (low, middle) if seen(middle) >= POWER else (middle, high)
    return high
