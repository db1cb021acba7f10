"""Tells normal scores from others, on trials that are set aside. NumPy float64.

What a larger loss of the same mechanism would show depends on its noise (:mod:`alternative`). It should not depend on
how finely a release is rounded, nor on how many scores were looked at: a strict test of normality rejects any rounded
noise, given enough of it.
"""

import numpy as np
from scipy.special import ndtr

# Of sqrt(n) times the Kolmogorov distance, mean and deviation estimated; 5% of normal scores exceed 0.895.
NORMAL = 1.3
TIED = 0.7  # the same where most scores are tied: five equally likely values are 0.06 away
NEAR = 0.015  # Kolmogorov distance of what is called normal with any number of scores: a sum of ten Laplace numbers is
ATOM = 0.45  # share of normal scores that one value takes: noise rounded to its deviation has 0.38
ALIKE_WIDTH = 0.1  # difference of the logarithms of deviations that count as equal


def looks_normal(scores: np.ndarray, *, peaked: bool = False) -> bool:
    """Tells whether the scores of at least one world pass for normal noise.

    Their Kolmogorov distance to the normal law of their mean and deviation is at most ``NEAR``, or what chance makes
    of it where scores are few. Tied scores count half, so that rounded noise and sums of bits pass. A score that takes
    one value nearly half of the time does not, nor, unless ``peaked``, do scores that fit Laplace's law better. One
    world is enough, because records that are sampled change the law of the other.

    Args:
      scores: [2, n], trials set aside.
      peaked: whether few scores that Laplace's law fits better may pass, as where only a sum of small losses is told
        from a single one.

    One set of normal scores in a hundred thousand or so fails.

    Source: Lilliefors 1967, for the statistic.
    """
    scores = np.asarray(scores, np.float64)
    if scores.shape[1] < 2 or not np.isfinite(scores).all() or (scores.std(axis=1) == 0).any():
        return False
    from_median = np.abs(scores - np.median(scores, axis=1, keepdims=True)).mean(axis=1)
    peak = np.log(scores.std(axis=1) / from_median).mean()  # where both laws' likelihoods are as large: ln(2e/pi)/2
    return bool(peaked or peak <= 0.5 * np.log(2 * np.e / np.pi)) and any(_is_normal(own) for own in scores)


def _is_normal(own: np.ndarray) -> bool:
    n = len(own)
    values, counts = np.unique(own, return_counts=True)
    middle = (np.cumsum(counts) - counts / 2) / n
    distance = np.abs(middle - ndtr((values - own.mean()) / own.std(ddof=1))).max()
    by_chance = (NORMAL if len(values) > n / 4 else TIED) / np.sqrt(n)
    return bool(counts.max() <= ATOM * n and distance <= max(NEAR, by_chance))


def normal_apart(scores: np.ndarray) -> float | None:
    """Returns how many standard deviations lie between the worlds' scores, [2, n], where both are normal and as wide;
    else None."""
    if not looks_normal(scores) or not all(_is_normal(own) for own in scores):
        return None
    widths = scores.std(axis=1, ddof=1)
    if abs(np.log(widths[1] / widths[0])) > ALIKE_WIDTH:
        return None
    return float(abs(np.subtract(*scores.mean(axis=1))) / np.sqrt((widths**2).mean()))
