"""Finds the roots of many increasing functions at once, each inside its own bracket."""

from collections.abc import Callable
from typing import Any

import numpy as np

RELATIVE = 4 * np.finfo(float).eps  # the smallest relative tolerance that SciPy accepts
LARGEST = 1e100  # in place of infinity, which Algorithm 748 refuses


def increasing_root(
    function: Callable[[np.ndarray], np.ndarray],
    low: np.ndarray,
    high: np.ndarray,
    *,
    tolerance: float = 1e-10,
) -> np.ndarray:
    """Returns x in [low, high] with function(x) = 0: low where it is positive throughout, high where it is negative.

    Args:
      function: elementwise and increasing; called with arrays of the common shape.
      low, high: ends of the brackets, finite; shapes that broadcast together.
      tolerance: largest distance from the root, beside rounding.

    Returns:
      The roots, in that shape.

    Source: Chandrupatla 1997, Advances in Engineering Software 28; for a single function, Alefeld, Potra and Shi 1995,
    Algorithm 748, which takes a third of the time. Both are SciPy's.
    """
    low, high = np.broadcast_arrays(np.asarray(low, np.float64), np.asarray(high, np.float64))
    if not low.size:
        return low
    if low.size == 1:
        return np.full(low.shape, _single(function, low.shape, low.item(), high.item(), tolerance))
    from scipy.optimize.elementwise import find_root  # scipy.optimize takes long to import

    points = low.copy()

    def at(x: np.ndarray, place: np.ndarray) -> np.ndarray:
        """Evaluates the functions that SciPy still asks for, and those whose roots are found where they were last."""
        points.flat[place] = x
        return np.asarray(function(points)).flat[place]

    places = np.arange(low.size).reshape(low.shape)
    tolerances = {"xatol": tolerance, "xrtol": 4e-16, "fatol": 0.0, "frtol": 0.0}
    found: Any = find_root(at, (low, high), args=(places,), tolerances=tolerances)
    one_sign = found.status == -1
    return np.where(one_sign, np.where(found.f_bracket[0] >= 0, low, high), found.x)


def _single(
    function: Callable[[np.ndarray], np.ndarray], shape: tuple[int, ...], low: float, high: float, tolerance: float
) -> float:
    from scipy.optimize import toms748

    def at(x: float) -> float:
        return min(max(np.asarray(function(np.full(shape, x))).item(), -LARGEST), LARGEST)

    if at(low) >= 0:
        return low
    if at(high) <= 0:
        return high
    found: Any = toms748(at, low, high, xtol=tolerance, rtol=RELATIVE)
    return found
