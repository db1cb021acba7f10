"""Computes the error rates of Gaussian clients in closed form: clip to L, add N(0, sigma^2 I).

Two updates c0, c1 after clipping matter only through their plane (:class:`dpaudit.audits.oracle.Pair`): the cosine
rule reads the release along the difference of their directions, the likelihood ratio along c1 - c0. NumPy float64 on
the host; every function takes many pairs at once.
"""

import numpy as np
from scipy.special import ndtr

from dpaudit import _validate
from dpaudit.auditing.bounds.gdp import epsilon_from_mu, mu_from_epsilon, mu_from_rates
from dpaudit.audits.oracle import OptimalTest, Pair
from dpaudit.mechanisms import gaussian


def clipped(pair: Pair, clip_norm: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns the norms after clipping, min(norm, L).

    Raises:
      InputError: clip_norm not positive.
    """
    clip_norm = _validate.positive(clip_norm=clip_norm)
    return np.minimum(pair.norm0, clip_norm), np.minimum(pair.norm1, clip_norm)


def distance(pair: Pair, clip_norm: float) -> np.ndarray:
    """Computes |c1 - c0| as sqrt((|c0| - |c1|)^2 + 4 |c0| |c1| sin^2(theta/2)), which does not cancel.

    Raises:
      InputError: clip_norm not positive.
    """
    norm0, norm1 = clipped(pair, clip_norm)
    return np.sqrt((norm0 - norm1) ** 2 + 4 * norm0 * norm1 * np.sin(pair.angle / 2) ** 2)


def cosine_rates(pair: Pair, *, epsilon: float, delta: float, clip_norm: float) -> tuple[np.ndarray, np.ndarray]:
    """Computes (FPR, FNR) of the cosine rule, Eq. (3) of paper 000.

    With u0, u1 the directions, the rule guesses g1 where <z, u1 - u0> > 0. The mean of this number in world i lies
    |c_i| sin(theta/2) standard deviations times sigma on the right side, so a guess is wrong with probability
    Phi(-|c_i| sin(theta/2) / sigma). At theta = 0 every trial is a tie, which goes to g0.

    Args:
      pair: one pair or many.
      epsilon, delta: the promise, from which sigma follows.
      clip_norm: L.

    Raises:
      InputError: a value out of range.
    """
    sigma = gaussian.noise_std(epsilon=epsilon, delta=delta, clip_norm=clip_norm)
    across = np.sin(pair.angle / 2) / sigma
    fpr, fnr = (ndtr(-norm * across) for norm in clipped(pair, clip_norm))
    tie = pair.angle == 0
    return np.where(tie, 0.0, fpr), np.where(tie, 1.0, fnr)


def likelihood_rates(
    pair: Pair, *, epsilon: float, delta: float, clip_norm: float, true_epsilon: float | None = None
) -> tuple[float, float]:
    """Computes the probabilities, in world 0 and in world 1, that a release is likelier under g1: the means over pairs
    of Phi(-D/(2 sigma)) and Phi(D/(2 sigma)) with D = |c1 - c0|; 0 where D = 0, as neither is likelier.

    Args:
      pair, epsilon, delta, clip_norm: as for :func:`cosine_rates`.
      true_epsilon: spent at delta by a client whose sigma alone is wrong; None for the promise.

    Raises:
      InputError: a value out of range.
    """
    sigma = gaussian.noise_std(epsilon=epsilon, delta=delta, clip_norm=clip_norm)
    if true_epsilon is not None:
        promised, true = mu_from_epsilon(np.array([epsilon, true_epsilon]), delta)
        sigma *= promised / true
    apart = distance(pair, clip_norm)
    rates = (np.where(apart > 0, ndtr(sign * apart / (2 * sigma)), 0.0) for sign in (-1, 1))
    rate0, rate1 = (float(np.mean(rate)) for rate in rates)
    return rate0, rate1


def optimal_test(pair: Pair, *, epsilon: float, delta: float, clip_norm: float) -> OptimalTest:
    """Returns the likelihood-ratio test {z likelier under g1}, and the epsilon at delta of its mu.

    No test of one pair lies below the trade-off curve of N(0, 1) against N(mu, 1), mu = D/sigma, and this one lies on
    it; its epsilon at delta is exact. With many pairs, each trial uses the test of its own pair, and mu is that of the
    mean rates.

    Raises:
      InputError: a value out of range.

    Source: Dong, Roth and Su 2022, Corollary 2.13; Balle and Wang 2018, Theorem 8.
    """
    rate0, rate1 = likelihood_rates(pair, epsilon=epsilon, delta=delta, clip_norm=clip_norm)
    return OptimalTest(0, rate0, rate1, float(epsilon_from_mu(mu_from_rates(rate0, 1 - rate1), delta)))
