"""Computes the error rates of LDP-SGD in closed form, to which those of the game converge.

A release is a uniform unit vector up to its sign, so a pair of gradients matters only through its plane: through each
gradient's probability Q of a release on its own side (:func:`dpaudit.mechanisms.ldp_sgd.far_side_probability`) and the
angle theta between them. NumPy float64 on the host; every function takes many pairs at once.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpaudit import _validate
from dpaudit.mechanisms.clipping import norm_and_direction
from dpaudit.mechanisms.ldp_sgd import far_side_probability


class Pair(NamedTuple):
    """Everything about pairs of gradients that LDP-SGD can reveal; any shape, the same for all three.

    Attributes:
      norm0, norm1: L2 norms before clipping.
      angle: between the two, in [0, pi]. A zero vector counts as opposite to the other one (any direction would do,
        because its release is uniform); two zero vectors count as parallel, so that every trial is a tie.
    """

    norm0: np.ndarray
    norm1: np.ndarray
    angle: np.ndarray


def pair(g0: Any, g1: Any) -> Pair:
    """Computes the plane of a pair.

    The angle is 2 atan2(|u0 - u1|, |u0 + u1|) of the unit vectors, accurate at both ends of [0, pi].

    Args:
      g0, g1: gradients, [..., d].

    Raises:
      InputError: shapes that differ; a gradient that is not finite.
    """
    g0, g1 = (np.asarray(g, np.float64) for g in (g0, g1))
    if g0.shape != g1.shape or g0.ndim < 1 or g0.shape[-1] < 1:
        raise _validate.expected("g1", f"the shape of g0, {list(g0.shape)}", f"shape {list(g1.shape)}")
    _validate.finite(g0=g0)
    _validate.finite(g1=g1)
    norm0, norm1 = (np.linalg.norm(g, axis=-1) for g in (g0, g1))
    unit0, unit1 = (g / np.where(n > 0, n, 1)[..., None] for g, n in ((g0, norm0), (g1, norm1)))
    angle = 2 * np.arctan2(np.linalg.norm(unit0 - unit1, axis=-1), np.linalg.norm(unit0 + unit1, axis=-1))
    return Pair(norm0, norm1, settle_angle(norm0, norm1, angle))


def settle_angle(norm0: np.ndarray, norm1: np.ndarray, angle: np.ndarray) -> np.ndarray:
    """Applies the convention for zero vectors (see :class:`Pair`), and treats angles up to 1e-6 as parallel."""
    angle = np.where(angle <= 1e-6, 0.0, np.minimum(angle, np.pi))
    return np.where(norm0 == 0, np.where(norm1 == 0, 0.0, np.pi), np.where(norm1 == 0, np.pi, angle))


def far_sides(pair: Pair, *, epsilon: float, clip_norm: float) -> tuple[np.ndarray, np.ndarray]:
    """Computes (1 - Q0, 1 - Q1), each world's probability of a release on the far side of its gradient.

    Raises:
      InputError: epsilon or clip_norm not positive.
    """
    epsilon = _validate.positive(epsilon=epsilon)
    clip_norm = _validate.positive(clip_norm=clip_norm)
    far0, far1 = (far_side_probability(norm, epsilon=epsilon, clip_norm=clip_norm) for norm in pair[:2])
    return far0, far1


def ldp_sgd_cosine(g0: Any, g1: Any, *, epsilon: float, clip_norm: float) -> tuple[float, float]:
    """Computes the exact (FPR, FNR) of the cosine rule, Eq. (3) of paper 000, on LDP-SGD.

    P(right | g_i) = Q_i (pi + theta)/(2 pi) + (1 - Q_i)(pi - theta)/(2 pi): the half-space of the guess covers theta/2
    more than a quarter turn on either side of g_i. At theta = 0 every trial is a tie, which goes to g0.

    Args:
      g0, g1: gradients, [d].
      epsilon: privacy loss in nats.
      clip_norm: L.

    Raises:
      InputError: epsilon or clip_norm not positive; otherwise as for :func:`pair`.
    """
    fpr, fnr = cosine_rates(pair(g0, g1), epsilon=epsilon, clip_norm=clip_norm)
    return float(fpr), float(fnr)


def cosine_rates(pair: Pair, *, epsilon: float, clip_norm: float) -> tuple[np.ndarray, np.ndarray]:
    """Computes :func:`ldp_sgd_cosine` for many pairs.

    Raises:
      InputError: epsilon or clip_norm not positive.
    """
    share = pair.angle / np.pi
    fpr, fnr = (far * share + (1 - share) / 2 for far in far_sides(pair, epsilon=epsilon, clip_norm=clip_norm))
    tie = pair.angle == 0
    return np.where(tie, 0.0, fpr), np.where(tie, 1.0, fnr)


def wedges(pair: Pair, *, epsilon: float, clip_norm: float) -> np.ndarray:
    """Computes the probabilities of the four sign patterns of (<z, g1>, <z, g0>) in both worlds.

    All that a release reveals about the pair are the two signs. Under the uniform law they differ with probability
    theta/pi; world i multiplies a pattern's probability by 2 Q_i if its own sign is plus, else by 2 (1 - Q_i).

    Returns:
      [..., 4, 2]: patterns (+-, ++, --, -+), of which the first is relatively likeliest in world 1 and the last in
      world 0; worlds (0, 1).

    Raises:
      InputError: epsilon or clip_norm not positive.
    """
    far0, far1 = far_sides(pair, epsilon=epsilon, clip_norm=clip_norm)
    differ = pair.angle / (2 * np.pi)
    agree = 0.5 - differ
    size = np.stack([differ, agree, agree, differ], axis=-1)
    side0 = 2 * np.stack([far0, 1 - far0, far0, 1 - far0], axis=-1)
    side1 = 2 * np.stack([1 - far1, 1 - far1, far1, far1], axis=-1)
    return np.stack([size * side0, size * side1], axis=-1)


def ldp_sgd_tradeoff(g0: Any, g1: Any, *, epsilon: float, clip_norm: float) -> tuple[np.ndarray, np.ndarray]:
    """Computes the optimal trade-off curve of LDP-SGD for a pair: no test has a smaller FNR at the same FPR.

    The four sign patterns of :func:`wedges` enter the region "guess g1" in order of falling likelihood ratio
    (Neyman-Pearson); the curve is straight between vertices (randomised tests).

    Args:
      g0, g1: gradients, [d].
      epsilon: privacy loss in nats.
      clip_norm: L.

    Returns:
      (fpr, fnr): vertices from (0, 1) to (1, 0), patterns of probability zero left out.

    Raises:
      InputError: epsilon or clip_norm not positive; otherwise as for :func:`pair`.
    """
    world0, world1 = wedges(pair(g0, g1), epsilon=epsilon, clip_norm=clip_norm).T
    possible = world0 > 0  # where world0 is 0, so is world1: both are positive multiples of the pattern's size
    world0, world1 = world0[possible], world1[possible]
    order = np.argsort(-world1 / world0, kind="stable")
    fpr = np.concatenate([[0.0], np.cumsum(world0[order])])
    fnr = 1 - np.concatenate([[0.0], np.cumsum(world1[order])])
    fpr[-1], fnr[-1] = 1.0, 0.0
    return fpr, fnr


class OptimalTest(NamedTuple):
    """The rejection region of the likelihood-ratio test with the largest ratio of probabilities.

    Attributes:
      pattern: 0 for {<z, g1> > 0 > <z, g0>}, 3 for {<z, g0> > 0 > <z, g1>}.
      rate0, rate1: the region's probability in world 0 and in world 1.
      epsilon: |ln(rate1/rate0)|, the privacy loss that the region shows; 0 if no release ever lies in it.
    """

    pattern: int
    rate0: float
    rate1: float
    epsilon: float


def optimal_test(pair: Pair, *, epsilon: float, clip_norm: float) -> OptimalTest:
    """Returns the better of the two regions in which the signs differ, for one pair or for a fresh pair in every
    trial.

    For a single pair of gradients that are not parallel, no event has a larger ratio of probabilities, and with norms
    >= L the ratio is e^epsilon exactly. With many pairs, each trial uses the region of its own pair.

    Args:
      pair: one pair or many.
      epsilon: privacy loss in nats.
      clip_norm: L.

    Raises:
      InputError: epsilon or clip_norm not positive.
    """
    return best_pattern(wedges(pair, epsilon=epsilon, clip_norm=clip_norm))


def best_pattern(wedges: np.ndarray) -> OptimalTest:
    """Returns the pattern, 0 or 3, with the larger ratio of its probabilities, averaged over pairs.

    Args:
      wedges: [..., 4, 2], of :func:`wedges`.
    """
    rates = wedges.reshape(-1, 4, 2).mean(axis=0)
    found = []
    for pattern in (0, 3):
        rate0, rate1 = rates[pattern]
        loss = abs(float(np.log(rate1 / rate0))) if rate0 > 0 else 0.0
        found.append(OptimalTest(pattern, float(rate0), float(rate1), loss))
    return max(found, key=lambda test: test.epsilon)


def geometry(g0: jax.Array, g1: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Computes the plane of one pair inside a jitted program, so that the gradients need not leave the device.

    Args:
      g0, g1: gradients, [d].

    Returns:
      (norm0, norm1, angle), scalars, to which the host still has to apply :func:`settle_angle`.
    """
    (norm0, unit0), (norm1, unit1) = norm_and_direction(g0), norm_and_direction(g1)
    angle = 2 * jnp.arctan2(norm_and_direction(unit0 - unit1)[0], norm_and_direction(unit0 + unit1)[0])
    return norm0, norm1, angle
