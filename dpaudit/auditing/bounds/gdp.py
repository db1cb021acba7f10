"""Computes the mu of Gaussian differential privacy from counts, and its epsilon. NumPy float64 throughout.

A test's own mu needs no assumption: a mechanism that is mu-GDP keeps every test at or below mu. Turning it into an
epsilon at some delta does: **it assumes that the mechanism's trade-off function is Gaussian**, so that one test's
point on the curve fixes the whole of it. For LDP-SGD, Laplace or randomised response it is not, and the epsilon may be
far above the truth; use :func:`estimate.epsilon_bounds` there.
"""

from typing import Any

import numpy as np
from scipy.special import log_ndtr, ndtri

from dpaudit import _validate
from dpaudit.auditing.bounds.estimate import clopper_pearson, error_table
from dpaudit.auditing.bounds.roots import increasing_root

LEAST_MU = 1e-12  # where a search for mu begins: nothing is lost at any delta that a float64 tells from 0


def mu_from_rates(fpr: Any, fnr: Any) -> np.ndarray:
    """Returns mu = Phi^-1(1 - FPR) - Phi^-1(FNR): two unit normals this far apart have a test with these error rates.

    Args:
      fpr, fnr: rates in [0, 1], any broadcastable shape.

    Returns:
      mu in standard deviations, float64, never below 0 (a test worse than guessing shows nothing); infinite where a
      rate is 0 and the other below 1.

    Source: Dong, Roth and Su 2022, Gaussian Differential Privacy, Eq. (6).
    """
    fpr, fnr = np.broadcast_arrays(np.asarray(fpr, np.float64), np.asarray(fnr, np.float64))
    useless = fpr + fnr >= 1  # also where both terms are infinite
    with np.errstate(invalid="ignore"):
        return np.where(useless, 0.0, -ndtri(fpr) - ndtri(fnr))


def mu_bounds(
    false_positives: Any, false_negatives: Any, negatives: Any, positives: Any, *, confidence: float
) -> tuple[np.ndarray, np.ndarray]:
    """Returns lower and upper confidence bounds on the mu of this test, from Clopper-Pearson bounds on the rates.

    alpha = 1 - confidence is shared equally by the two rates; each of the two bounds holds with probability
    >= confidence. The lower one bounds the mu of every mu-GDP promise that the mechanism could keep, whatever its
    trade-off function; the upper one is about this test only.

    Args:
      false_positives: guesses of world 1 among ``negatives`` trials of world 0.
      false_negatives: guesses of world 0 among ``positives`` trials of world 1.
      negatives, positives: trials of world 0 and of world 1.
      confidence: in (0, 1).

    Returns:
      (lower, upper) in standard deviations, never below 0; the upper bound is infinite where a count is zero.

    Raises:
      InputError: a value out of range.

    Source: Nasr et al. 2023, Tight Auditing of Differentially Private Machine Learning.
    """
    alpha = (1 - _validate.open_unit(confidence=confidence)) / 2
    false_positives, false_negatives, n0, n1 = error_table(false_positives, false_negatives, negatives, positives)
    fpr_low, fpr_high = clopper_pearson(false_positives, n0, alpha=alpha)
    fnr_low, fnr_high = clopper_pearson(false_negatives, n1, alpha=alpha)
    return mu_from_rates(fpr_high, fnr_high), mu_from_rates(fpr_low, fnr_low)


def epsilon_bounds(
    false_positives: Any, false_negatives: Any, negatives: Any, positives: Any, *, delta: float, confidence: float
) -> tuple[np.ndarray, np.ndarray]:
    """Converts :func:`mu_bounds` to bounds on epsilon at ``delta``, **assuming a Gaussian trade-off function**.

    Args:
      false_positives, false_negatives, negatives, positives: as for :func:`mu_bounds`.
      delta: in [0, 1).
      confidence: in (0, 1), of each bound.

    Returns:
      (lower, upper) in nats, never below 0; with delta = 0 infinite where mu > 0.

    Raises:
      InputError: a value out of range.
    """
    lower, upper = mu_bounds(false_positives, false_negatives, negatives, positives, confidence=confidence)
    return epsilon_from_mu(lower, delta), epsilon_from_mu(upper, delta)


def epsilon_from_mu(mu: Any, delta: float) -> np.ndarray:
    """Returns the smallest epsilon with (epsilon, delta)-DP for a mechanism with this mu and a Gaussian trade-off
    function.

    Inverts delta = Phi(-epsilon/mu + mu/2) - e^epsilon Phi(-epsilon/mu - mu/2).

    Args:
      mu: >= 0 in standard deviations, any shape; infinite is allowed.
      delta: in [0, 1).

    Returns:
      epsilon in nats, float64: 0 where mu = 0, infinite where delta = 0 and mu > 0.

    Raises:
      InputError: delta out of range, or mu below 0 or not a number.

    Source: Dong, Roth and Su 2022, Corollary 2.13; Balle and Wang 2018, Theorem 8.
    """
    _validate.probability(delta=delta)
    mu = np.asarray(mu, np.float64)
    if not np.all(mu >= 0):
        raise _validate.expected("mu", "numbers >= 0", mu[~(mu >= 0)].flat[0])
    if delta == 0:
        return np.where(mu > 0, np.inf, 0.0)
    inside = np.where((mu > 0) & np.isfinite(mu), mu, 1.0)
    highest = np.maximum(
        inside**2 / 2 - inside * ndtri(delta), 0.0
    )  # where the first term alone has come down to delta

    epsilon = increasing_root(lambda epsilon: _log_missing(inside, epsilon, delta), np.zeros_like(inside), highest)
    return np.select([mu == 0, np.isinf(mu)], [0.0, np.inf], epsilon)


def mu_from_epsilon(epsilon: Any, delta: float) -> np.ndarray:
    """Returns the mu of the Gaussian trade-off curve that is (epsilon, delta)-DP for no smaller epsilon.

    Args:
      epsilon: in nats, >= 0, any shape.
      delta: in (0, 1).

    Raises:
      InputError: delta out of range.

    Source: as for :func:`epsilon_from_mu`, solved for mu.
    """
    _validate.open_unit(delta=delta)
    epsilon = np.asarray(epsilon, np.float64)
    high = np.sqrt(2 * epsilon) + 2 * ndtri((1 + delta) / 2)  # there the curve's delta at epsilon is larger
    return increasing_root(lambda mu: -_log_missing(mu, epsilon, delta), np.full_like(epsilon, LEAST_MU), high)


def _log_missing(mu: np.ndarray, epsilon: np.ndarray, delta: float) -> np.ndarray:
    """Computes ln delta - ln(Phi(-epsilon/mu + mu/2) - e^epsilon Phi(-epsilon/mu - mu/2)), which increases in epsilon
    and decreases in mu."""
    first = log_ndtr(mu / 2 - epsilon / mu)
    second = epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    with np.errstate(divide="ignore"):
        return np.log(delta) - first - np.log(-np.expm1(np.minimum(second - first, 0.0)))
