"""Calibrates and accounts for Gaussian noise, and samples the discrete Gaussian exactly.

A step releases the sum of clipped gradients, of a batch whose size is public, plus noise of standard deviation
``noise_multiplier`` clip norms. The paper does not state its neighbouring relation. Replacing one record moves the sum
by up to 2 clip norms; adding or removing one (it then counts as zero, the batch size stays) by 1. No amplification by
sampling is used: these numbers hold for a record that is in the batch.

The noise between the two servers is a binomial of whole numbers, not a Gaussian;
:mod:`dpaudit.secure.noise.accounting` computes what it spends.

The discrete Gaussian, P(Z = z) proportional to exp(-z^2 / (2 sigma^2)) on the whole numbers, is what each server adds
by itself in the baseline without a circuit. One server knows its own noise, so that of the other must suffice alone:
the sum carries both, of variance 2 sigma^2, a factor of sqrt(2) in noise that a circuit saves. Under integer shifts of
L2 norm Delta its Renyi divergence of order alpha is at most that of the continuous Gaussian, alpha Delta^2 / (2
sigma^2). The sampler computes with whole numbers only, so no probability is rounded. Its running time depends on the
sampled value: anyone who can time a server to microseconds learns something about its noise. OpenDP's sampler is exact
as well, but slower (``experiments/paper001/COST.md``), so it is not used.

Source of the sampler: Canonne, Kamath and Steinke 2020, The Discrete Gaussian for Differential Privacy, Algorithms 1
to 3.
"""

import math

import dp_accounting
import numpy as np

from dpaudit import _validate
from dpaudit.mechanisms.claim import Claim
from dpaudit.secure.crypto import randomness

SENSITIVITY = {"replace": 2, "add_remove": 1}  # L2, in clip norms


def classical(*, epsilon: float, delta: float) -> float:
    """Computes the paper's noise multiplier, sqrt(2 ln(1.25 / delta)) / epsilon, for any neighbouring relation.

    It is a theorem only for sensitivity 1 and epsilon < 1; :func:`epsilon` tells what it spends otherwise.

    Args:
      epsilon: wanted privacy loss of one step, nats.
      delta: in (0, 1).

    Returns:
      Standard deviation of the noise over the clip norm.

    Raises:
      InputError: a value is out of range.

    Source: paper 001, section 5.2.3; Dwork and Roth 2014, Theorem A.1.
    """
    return math.sqrt(2 * math.log(1.25 / _validate.open_unit(delta=delta))) / _validate.positive(epsilon=epsilon)


def analytic(*, epsilon: float, delta: float, neighbouring: str) -> float:
    """Computes the least noise multiplier of Gaussian noise with which one step is (epsilon, delta)-DP.

    Args:
      epsilon: privacy loss of one step, nats.
      delta: in (0, 1).
      neighbouring: "replace" or "add_remove".

    Returns:
      Standard deviation of the noise over the clip norm.

    Raises:
      InputError: a value is out of range.

    Source: Balle and Wang 2018, Theorem 8, solved by dp-accounting.
    """
    epsilon = _validate.positive(epsilon=epsilon)
    delta = _validate.open_unit(delta=delta)
    return _sensitivity(neighbouring) * dp_accounting.get_sigma_gaussian(epsilon, delta)


def epsilon(noise_multiplier: float, *, delta: float, neighbouring: str, steps: int = 1) -> float:
    """Computes exactly the epsilon that ``steps`` steps with Gaussian noise spend on a record that is in every batch.

    T steps are one Gaussian release of sensitivity s sqrt(T), s = 2 or 1 clip norms.

    Args:
      noise_multiplier: standard deviation of each step's noise over the clip norm.
      delta: in (0, 1), of all steps together.
      neighbouring: "replace" or "add_remove".
      steps: T >= 1.

    Returns:
      epsilon in nats.

    Raises:
      InputError: a value is out of range.

    Source: Balle and Wang 2018, Theorem 8; Dong, Roth and Su 2022, Corollary 3.3, for the composition.
    """
    noise_multiplier = _validate.positive(noise_multiplier=noise_multiplier)
    delta = _validate.open_unit(delta=delta)
    moved = _sensitivity(neighbouring) * math.sqrt(_validate.at_least(1, steps=steps))
    return float(dp_accounting.get_epsilon_gaussian(noise_multiplier / moved, delta))


def claim(noise_multiplier: float, *, neighbouring: str, steps: int = 1) -> Claim:
    """States what ``steps`` steps with Gaussian noise promise, at every delta: mu = s sqrt(T)/noise_multiplier.

    Args:
      noise_multiplier, neighbouring, steps: as for :func:`epsilon`.

    Raises:
      InputError: a value is out of range.

    Source: Dong, Roth and Su 2022, Corollary 3.3.
    """
    noise_multiplier = _validate.positive(noise_multiplier=noise_multiplier)
    shift = _sensitivity(neighbouring) * math.sqrt(_validate.at_least(1, steps=steps))
    return Claim.gaussian(shift / noise_multiplier, neighbouring=neighbouring)


def _sensitivity(neighbouring: str) -> int:
    return SENSITIVITY[_validate.one_of(SENSITIVITY, neighbouring=neighbouring)]


# The discrete Gaussian.

MOST_SIGMA = 1 << 24  # keeps the largest product, 2 sigma^2 times the rounds of a coin, far below 2^64


def sample(sigma: int, count: int, source: randomness.Source = randomness.system) -> np.ndarray:
    """Samples the discrete Gaussian.

    A discrete Laplace value Y of scale sigma is kept with probability exp(-(|Y| - sigma)^2 / (2 sigma^2)).

    Args:
      sigma: a whole number of units, 1 to 2^24.
      count: how many, >= 1.
      source: where secret bytes come from.

    Returns:
      int64 [count], units.

    Raises:
      InputError: a value is out of range.
    """
    sigma, count = _validate.at_least(1, sigma=sigma), _validate.at_least(1, count=count)
    if sigma > MOST_SIGMA:
        raise _validate.expected("sigma", f"a whole number from 1 to {MOST_SIGMA}", sigma)
    kept, missing = [], count
    while missing > 0:
        proposed = _laplace(sigma, 2 * missing + 16, source)
        far = np.abs(np.abs(proposed) - sigma).astype(np.uint64)
        accepted = proposed[_exponential_coin(far * far, np.uint64(2 * sigma * sigma), source)]
        kept.append(accepted)
        missing -= len(accepted)
    return np.concatenate(kept)[:count]


def _laplace(scale: int, tries: int, source: randomness.Source) -> np.ndarray:
    """Draws at most ``tries`` samples of P(Y = y) proportional to exp(-|y| / scale): Algorithm 2."""
    rest = _below(np.full(tries, scale, np.uint64), source)
    rest = rest[_exponential_coin(rest, np.uint64(scale), source)]
    whole = np.zeros(len(rest), np.int64)
    going = np.arange(len(rest))
    while going.size:  # a geometric number of coins that show exp(-1)
        going = going[_exponential_coin(np.ones(going.size, np.uint64), np.uint64(1), source)]
        whole[going] += 1
    size = rest.astype(np.int64) + scale * whole
    negative = _below(np.full(len(size), 2, np.uint64), source) == 1
    return np.where(negative, -size, size)[~(negative & (size == 0))]


def _exponential_coin(numerators: np.ndarray, denominator: np.uint64, source: randomness.Source) -> np.ndarray:
    """Draws True with probability exp(-a / b), for each a >= 0: Algorithm 1, one exp(-1) at a time while a > b."""
    shows = np.ones(len(numerators), bool)
    left = numerators.copy()
    going = np.arange(len(left))
    while going.size:
        part = np.minimum(left[going], denominator)
        shows[going] = _small_exponential_coin(part, denominator, source)
        left[going] -= part
        going = going[shows[going] & (left[going] > 0)]
    return shows


def _small_exponential_coin(numerators: np.ndarray, denominator: np.uint64, source: randomness.Source) -> np.ndarray:
    """Draws True with probability exp(-a / b), for each a <= b, from coins a/(b k), k = 1, 2, ..., until one fails."""
    failed_at = np.zeros(len(numerators), np.uint64)
    going, k = np.arange(len(numerators)), np.uint64(1)
    while going.size:
        heads = _below(np.full(going.size, denominator * k), source) < numerators[going]
        failed_at[going[~heads]] = k
        going, k = going[heads], k + np.uint64(1)
    return failed_at % np.uint64(2) == 1


def _below(bounds: np.ndarray, source: randomness.Source) -> np.ndarray:
    """Draws a uniform integer in [0, bound) for each bound: 64 bits, again if among the first 2^64 mod bound."""
    drawn = np.empty(len(bounds), np.uint64)
    going = np.arange(len(bounds))
    while going.size:
        words, bound = np.frombuffer(source(8 * going.size), np.uint64), bounds[going]
        fair = words >= -bound % bound
        drawn[going[fair]] = words[fair] % bound[fair]
        going = going[~fair]
    return drawn
