"""Algorithm 1 and Eq. (3) of paper 000 written out once more from its text, for integrals over small spheres.

Nothing here is shared with the package. The mean over :func:`sphere_points` of a function of the release times
:func:`density` is its expectation, by equal-weight quadrature: a midpoint rule on the circle, a Fibonacci lattice on
the sphere.
"""

import math

import numpy as np


def sphere_points(dimension: int, count: int) -> np.ndarray:
    """[count, dimension], evenly spread; dimension 2 or 3."""
    i = np.arange(count) + 0.5
    if dimension == 2:
        angle = 2 * np.pi * i / count
        return np.stack([np.cos(angle), np.sin(angle)], axis=1)
    assert dimension == 3
    height, angle = 1 - 2 * i / count, 2 * np.pi * i / ((1 + math.sqrt(5)) / 2)
    width = np.sqrt(1 - height**2)
    return np.stack([width * np.cos(angle), width * np.sin(angle), height], axis=1)


def density(w: np.ndarray, gradient: np.ndarray, *, epsilon: float, clip_norm: float) -> np.ndarray:
    """Density of the release at the points w [n, d], relative to the uniform law: each line of Algorithm 1 in turn."""
    length = math.sqrt(sum(float(entry) ** 2 for entry in gradient))
    if length == 0:
        return np.ones(len(w))  # no direction to take sides with
    x = gradient * min(1.0, clip_norm / length)  # line 1
    shortened = math.sqrt(float(x @ x))
    kept = 0.5 + shortened / (2 * clip_norm)  # line 2
    truthful = math.exp(epsilon) / (1 + math.exp(epsilon))  # line 3
    total = np.zeros(len(w))
    for z, probability in ((x, kept), (-x, 1 - kept)):
        # v = w and v = -w both end as w where <z, w> > 0 and the sign is kept, or <z, w> < 0 and it is not
        total += probability * (truthful * 2 * (w @ z > 0) + (1 - truthful) * 2 * (w @ z < 0))
    return total


def cosines(w: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    length = math.sqrt(float(gradient @ gradient))
    return w @ gradient / length if length > 0 else np.zeros(len(w))


def guesses_second(w: np.ndarray, g0: np.ndarray, g1: np.ndarray) -> np.ndarray:
    """Eq. (3): g0 unless cos(w, g1) is larger by more than rounding."""
    return cosines(w, g1) - cosines(w, g0) > 1e-9
