"""Computes the error rates of PrivUnit's clients exactly, by one integral over the angle between two gradients.

A release is uniform inside and outside the cap around its gradient's direction, so two gradients matter only through
the overlap of their caps. NumPy float64 on the host; every function takes many pairs at once.
"""

import math

import numpy as np
from scipy.special import expit

from dpaudit.audits.oracle import OptimalTest, Pair, best_pattern
from dpaudit.mechanisms.privunit import Cap, best_cap

NODES, WEIGHTS = np.polynomial.legendre.leggauss(200)


def one_cap_alone(angle: np.ndarray, cap: Cap, dimension: int) -> np.ndarray:
    """Computes the share of the sphere that lies in the cap around g1 and not in the cap around g0.

    Turning g1 away by d phi moves the edge of its cap through the other one. The uniform law's density in the plane of
    both, (d-2)/(2 pi) (1 - |x|^2)^((d-4)/2), integrates along this edge to::

        W(theta) = 1/(2 pi) * integral from 0 to theta of (1 - gamma^2 / cos^2(phi/2))^((d-2)/2) d phi

    up to phi = 2 arccos(gamma), where caps no longer meet and W is the whole cap. By Gauss and Legendre.

    Args:
      angle: theta, any shape.
      cap: of :func:`dpaudit.mechanisms.privunit.best_cap`.
      dimension: d >= 2.
    """
    end = np.minimum(np.asarray(angle, np.float64), 2 * math.acos(cap.gamma))[..., None]
    corner = np.minimum((cap.gamma / np.cos(end * (1 + NODES) / 4)) ** 2, 1.0)  # squared distance from the centre
    with np.errstate(divide="ignore"):
        inside = np.exp((dimension - 2) / 2 * np.log1p(-corner)) if dimension > 2 else np.ones_like(corner)
    return (end[..., 0] / 2 * (inside @ WEIGHTS)) / (2 * math.pi)


def cosine_rates(pair: Pair, *, epsilon: float, dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """Computes (FPR, FNR) of the cosine rule, Eq. (3) of paper 000.

    By symmetry half of the caps' overlap B = q - W lies closer to the other gradient, so a guess is wrong with
    probability a B/2 + b (1 - B)/2, where a and b are the densities inside and outside the own cap. A zero gradient's
    release is uniform, and half of it is guessed wrong. At theta = 0 every trial is a tie, which goes to g0.

    Args:
      pair: one pair or many.
      epsilon: the promise, from which the cap follows.
      dimension: d >= 2.
    """
    cap = best_cap(dimension, epsilon)
    overlap = cap.mass - one_cap_alone(pair.angle, cap, dimension)
    inside, outside = math.exp(cap.log_inside), math.exp(cap.log_outside)
    wrong = (inside * overlap + outside * (1 - overlap)) / 2
    fpr, fnr = (np.where(norm > 0, wrong, 0.5) for norm in pair[:2])
    tie = pair.angle == 0
    return np.where(tie, 0.0, fpr), np.where(tie, 1.0, fnr)


def wedges(pair: Pair, *, epsilon: float, dimension: int, true_epsilon: float | None = None) -> np.ndarray:
    """Computes the probabilities of the four patterns of (in the cap around g1, in the cap around g0), both worlds.

    A zero gradient counts as opposite to the other one and has a uniform release.

    Args:
      pair, epsilon, dimension: as for :func:`cosine_rates`.
      true_epsilon: spent by a client that draws from the right cap, but too often; None for the promise.

    Returns:
      [..., 4, 2]: patterns (+-, ++, --, -+) and worlds (0, 1), as :func:`dpaudit.audits.oracle.wedges`.
    """
    cap = best_cap(dimension, epsilon)
    more = 0.0 if true_epsilon is None else true_epsilon - epsilon
    hit = cap.log_inside + math.log(cap.mass) - math.log(cap.miss)  # the log odds of drawing from the cap
    inside, outside = expit(hit + more) / cap.mass, expit(-hit - more) / (1 - cap.mass)
    alone = one_cap_alone(pair.angle, cap, dimension)
    both, neither = cap.mass - alone, 1 - cap.mass - alone
    size = np.stack([alone, both, neither, alone], axis=-1)
    worlds = []
    for norm, law in (
        (pair.norm0, (outside, inside, outside, inside)),
        (pair.norm1, (inside, inside, outside, outside)),
    ):
        worlds.append(size * np.where(np.asarray(norm)[..., None] > 0, np.array(law), 1.0))
    return np.stack(worlds, axis=-1)


def optimal_test(pair: Pair, *, epsilon: float, dimension: int) -> OptimalTest:
    """Returns the better of {in g1's cap and not in g0's} and its mirror image, as for LDP-SGD.

    For a single pair that is not parallel, no event has a larger ratio of probabilities, and between two gradients
    that are not zero the ratio is e^epsilon exactly, whatever their norms and angle.
    """
    return best_pattern(wedges(pair, epsilon=epsilon, dimension=dimension))
