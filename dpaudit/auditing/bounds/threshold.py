"""Chooses a threshold by what the error rates at many thresholds show. NumPy float64 throughout.

The best of a thousand thresholds far out in a tail is best by chance. Rates are therefore compared at a stricter level
than bounds are reported at. If scores hardly ever repeat, neighbouring thresholds show nearly the same: bounds are
then averaged over those nearby, which reduces the influence of chance and allows a milder level.
"""

import numpy as np
from scipy.special import ndtri

from dpaudit.auditing.bounds.estimate import epsilon_from_rates, upper_bound

STRICT = 5e-4  # error at which thresholds are compared one by one
MILD = 1e-2  # and where each one is averaged with those nearby
NEARBY = 0.2  # how far thresholds count as near, in standard normal quantiles of a score's rank
FEW = 64  # counts up to this one are bounded exactly


def best(
    above0: np.ndarray, above1: np.ndarray, n: int, *, delta: float, confidence: float, averaged: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Chooses among the rules "world 1 where score > t", and "where not", for several sets of scores at once.

    Args:
      above0, above1: how many scores of each world are above each threshold, [..., t], thresholds rising.
      n: scores of each world.
      delta, confidence: as the final bound will use them.
      averaged: whether thresholds show what their neighbours show, as where scores hardly ever repeat.

    Returns:
      (the number of the threshold, whether world 1 is above it), [...] each. Where nothing is certain, those of the
      most accurate rule.
    """
    wrong = np.stack([above0, n - above0], -2), np.stack([n - above1, above1], -2)  # [..., 2, t]
    strict = _shown(*wrong, n, min(1 - confidence, STRICT), delta)
    flat = strict.reshape(*strict.shape[:-2], -1)
    chosen, certain = flat.argmax(-1), flat.max(-1)
    if averaged:
        mild = _shown(*wrong, n, min(1 - confidence, MILD), delta)
        below = (2 * n - above0 - above1).reshape(-1, above0.shape[-1]).mean(0)  # of several sets, on average
        smooth = _averaged(ndtri((below + 0.5) / (2 * n + 1)), mild).reshape(flat.shape)
        middle, highest = smooth.argmax(-1), smooth.max(-1)
        shows = np.take_along_axis(mild.reshape(flat.shape), middle[..., None], -1)[..., 0]
        take = (highest > 0) & (shows >= certain)  # else a narrow peak shows more, even at the stricter level
        chosen, certain = np.where(take, middle, chosen), np.where(take, highest, certain)
    errors = (wrong[0] + wrong[1]).reshape(flat.shape)
    chosen = np.where(certain > 0, chosen, errors.argmin(-1))
    return chosen % above0.shape[-1], chosen < above0.shape[-1]


def roughly(count: np.ndarray, n: int, alpha: float) -> np.ndarray:
    """Approximates Clopper-Pearson's upper bound in a hundredth of the time, by Wilson's except for small counts."""
    few = np.arange(min(n, FEW) + 1)
    exact = upper_bound(few, n, alpha=alpha)
    pad = float(ndtri(alpha)) ** 2 / n
    rate = np.minimum(count + 0.5, n) / n
    wilson = np.minimum((rate + pad / 2 + np.sqrt(pad * (rate * (1 - rate) + pad / 4))) / (1 + pad), 1.0)
    return np.where(count < len(few), exact[np.minimum(count, len(few) - 1)], wilson)


def _shown(wrong0: np.ndarray, wrong1: np.ndarray, n: int, error: float, delta: float) -> np.ndarray:
    """Returns the epsilon that so many errors show at a level, half of it for each world."""
    return epsilon_from_rates(roughly(wrong0, n, error / 2), roughly(wrong1, n, error / 2), delta)


def _averaged(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Averages functions of rising x [t], y [..., t], over what is within NEARBY of each x, by the trapezoidal rule;
    beyond the first and the last x they count as 0."""
    areas = np.cumsum(np.diff(x) * (y[..., 1:] + y[..., :-1]) / 2, axis=-1)
    areas = np.concatenate([np.zeros((*areas.shape[:-1], 1)), areas], axis=-1)
    places = (np.interp(x + way, x, np.arange(len(x))) for way in (NEARBY, -NEARBY))
    upper, lower = (_between(areas, place) for place in places)
    return (upper - lower) / (2 * NEARBY)


def _between(values: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Interpolates values [..., t] at real indices [k]."""
    first = np.minimum(places.astype(int), values.shape[-1] - 1)
    after = np.minimum(first + 1, values.shape[-1] - 1)
    return values[..., first] + (places - first) * (values[..., after] - values[..., first])
