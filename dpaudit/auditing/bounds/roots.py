"""Roots of many increasing functions at once, each inside its own bracket."""

from collections.abc import Callable

import numpy as np


def increasing_root(
    function: Callable[[np.ndarray], np.ndarray],
    low: np.ndarray,
    high: np.ndarray,
    *,
    tolerance: float = 1e-10,
) -> np.ndarray:
    """x in [low, high] with function(x) = 0; ``low`` where it is positive throughout, ``high`` where it is negative.

    Inverse quadratic interpolation where three points allow it, bisection elsewhere: about ten calls for a smooth
    function, and the bracket never fails.

    Args:
      function: elementwise and increasing; called with arrays of the shape of ``low``.
      low, high: ends of the brackets, finite, any one shape.
      tolerance: largest distance from the root, beside rounding.

    Returns:
      The roots, in the shape of ``low``.

    Source: Chandrupatla 1997, Advances in Engineering Software 28.
    """
    at_low, at_high = function(low), function(high)
    newest, other = np.where(at_low >= 0, low, high), np.where(at_high <= 0, high, low)
    at_newest, at_other = np.where(at_low >= 0, at_low, at_high), np.where(at_high <= 0, at_high, at_low)
    share = np.full(np.shape(low), 0.5)
    while True:
        width = np.abs(other - newest)
        least = tolerance + 4e-16 * np.abs(newest)
        if np.all((width <= 2 * least) | (at_newest == 0)):
            return np.where(np.abs(at_newest) <= np.abs(at_other), newest, other)
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.clip(share, least / width, 1 - least / width)
        point = newest + np.where(width > 2 * least, share, 0.5) * (other - newest)
        at_point = function(point)
        same_side = (at_point > 0) == (at_newest > 0)
        oldest, at_oldest = np.where(same_side, newest, other), np.where(same_side, at_newest, at_other)
        other, at_other = np.where(same_side, other, newest), np.where(same_side, at_other, at_newest)
        newest, at_newest = point, at_point
        share = _share(newest, other, oldest, at_newest, at_other, at_oldest)


def _share(
    a: np.ndarray, b: np.ndarray, c: np.ndarray, at_a: np.ndarray, at_b: np.ndarray, at_c: np.ndarray
) -> np.ndarray:
    """How far from a towards b to go next: by inverse quadratic interpolation where that is safe, else halfway."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        place, height = (a - b) / (c - b), (at_a - at_b) / (at_c - at_b)
        safe = (height**2 < place) & ((1 - height) ** 2 < 1 - place)
        interpolated = at_a / (at_b - at_a) * at_c / (at_b - at_c)
        interpolated += (c - a) / (b - a) * at_a / (at_c - at_a) * at_b / (at_c - at_b)
    return np.where(safe & np.isfinite(interpolated), interpolated, 0.5)
