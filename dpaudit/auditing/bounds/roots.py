"""Finds the roots of many increasing functions at once, each inside its own bracket."""

from collections.abc import Callable
from typing import Any

import numpy as np


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

    Source: Chandrupatla 1997, Advances in Engineering Software 28, by SciPy.
    """
    from scipy.optimize.elementwise import find_root  # scipy.optimize takes long to import

    low, high = np.broadcast_arrays(np.asarray(low, np.float64), np.asarray(high, np.float64))
    if not low.size:
        return low
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
