"""What the binomial noise spends when a record moves one coordinate alone: exact, not :mod:`noise_accounting`'s bound.

The hockey-stick divergence of the noise from itself, moved by v units, is ::

    delta(epsilon) = sum over z of max(0, p(z) - e^epsilon p(z - v))

Between neighbouring corners of p(z) and of p(z - v) both are straight lines, and so is their difference: its positive
part there is an arithmetic series. So the sum takes a few hundred terms, however many values the noise has.

What a vector of L2 norm v spends is at least this: the same length spread over more coordinates may cost more.
"""

import math
from typing import Any

import numpy as np
from scipy import optimize

from dpaudit import check
from dpaudit.secure.noise import Binomial, probabilities

LARGEST = 500.0  # nats; beyond it an epsilon counts as infinite


def divergence(noise: Binomial, *, shift: int, epsilon: float) -> float:
    """delta(epsilon): the least delta that a shift of one coordinate needs. p is symmetric, so either way is the same.

    Args:
      noise: its law.
      shift: v >= 1, units.
      epsilon: nats, in [0, 500].

    Returns:
      A probability, float64.

    Raises:
      InputError: a value out of range.

    Source: Barthe and Olmedo 2013 for the divergence; the summation is derived in this module's text.
    """
    shift = check.at_least(1, shift=shift)
    if not 0 <= epsilon <= LARGEST:
        raise check.expected("epsilon", f"a number from 0 to {LARGEST:g}", epsilon)
    corners = (2 * np.arange(-1, noise.coins + 2) - noise.coins) * noise.step // 2
    nodes = np.union1d(corners, corners + shift)
    heights = probabilities(noise, nodes) - math.exp(epsilon) * probabilities(noise, nodes - shift)
    start, length = heights[:-1], np.diff(nodes)
    slope = np.diff(heights) / length
    crossing = np.divide(-start, slope, out=np.zeros_like(slope), where=slope != 0)
    crossing = np.clip(crossing, -1.0, length)
    first = np.where(slope > 0, np.maximum(np.ceil(crossing), 0), 0)
    last = np.where(slope < 0, np.floor(crossing) + 1, np.where(slope + np.maximum(start, 0) > 0, length, 0))
    terms = np.clip(np.minimum(last, length) - first, 0, None)
    return float(np.sum(terms * (start + slope * (2 * first + terms - 1) / 2)))


def least_epsilon(noise: Binomial, *, shift: int, delta: float) -> float:
    """The least epsilon of a shift of one coordinate, at a delta.

    Args:
      noise: its law.
      shift: v >= 1, units.
      delta: in (0, 1).

    Returns:
      epsilon in nats; infinite where values that only one side can have are likelier than delta.

    Raises:
      InputError: a value out of range.
    """
    check.open_unit(delta=delta)

    def excess(epsilon: float) -> float:
        return divergence(noise, shift=shift, epsilon=epsilon) - delta

    if excess(LARGEST) > 0:
        return math.inf
    if excess(0.0) <= 0:
        return 0.0
    root: Any = optimize.brentq(excess, 0.0, LARGEST, xtol=1e-10)
    return float(root)
