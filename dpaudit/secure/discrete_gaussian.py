"""The discrete Gaussian, sampled exactly: what each server adds by itself in the baseline that needs no circuit.

P(Z = z) is proportional to exp(-z^2 / (2 sigma^2)) on the whole numbers. One server knows its own noise, so that of
the other must suffice alone: the sum carries both, of variance 2 sigma^2, the sqrt(2) in noise that a circuit saves.
Under integer shifts of L2 norm Delta its Renyi divergence of order alpha is at most that of the continuous Gaussian,
alpha Delta^2 / (2 sigma^2).

Only whole numbers are computed with, so no probability is rounded. How long a sample takes depends on its value:
whoever can time a server to microseconds learns something of its noise.

Source: Canonne, Kamath and Steinke 2020, The Discrete Gaussian for Differential Privacy, Algorithms 1 to 3.
"""

import numpy as np

from dpaudit import check
from dpaudit.secure import randomness

MOST_SIGMA = 1 << 24  # the largest product below, 2 sigma^2 times the rounds of a coin, stays far from 2^64


def sample(sigma: int, count: int, source: randomness.Source = randomness.system) -> np.ndarray:
    """Independent samples.

    A discrete Laplace value Y of scale sigma is kept with probability exp(-(|Y| - sigma)^2 / (2 sigma^2)).

    Args:
      sigma: a whole number of units, 1 to 2^24.
      count: how many, >= 1.
      source: of secret bytes.

    Returns:
      int64 [count], units.

    Raises:
      InputError: a value out of range.
    """
    sigma, count = check.at_least(1, sigma=sigma), check.at_least(1, count=count)
    if sigma > MOST_SIGMA:
        raise check.expected("sigma", f"a whole number from 1 to {MOST_SIGMA}", sigma)
    kept, missing = [], count
    while missing > 0:
        proposed = _laplace(sigma, 2 * missing + 16, source)
        far = np.abs(np.abs(proposed) - sigma).astype(np.uint64)
        accepted = proposed[_exponential_coin(far * far, np.uint64(2 * sigma * sigma), source)]
        kept.append(accepted)
        missing -= len(accepted)
    return np.concatenate(kept)[:count]


def _laplace(scale: int, tries: int, source: randomness.Source) -> np.ndarray:
    """At most ``tries`` samples of P(Y = y) proportional to exp(-|y| / scale): Algorithm 2."""
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
    """True with probability exp(-a / b), for each a >= 0: Algorithm 1, one exp(-1) at a time while a > b."""
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
    """True with probability exp(-a / b), for each a <= b: coins a/(b k), k = 1, 2, ..., of which an odd one fails."""
    failed_at = np.zeros(len(numerators), np.uint64)
    going, k = np.arange(len(numerators)), np.uint64(1)
    while going.size:
        heads = _below(np.full(going.size, denominator * k), source) < numerators[going]
        failed_at[going[~heads]] = k
        going, k = going[heads], k + np.uint64(1)
    return failed_at % np.uint64(2) == 1


def _below(bounds: np.ndarray, source: randomness.Source) -> np.ndarray:
    """A uniform integer in [0, bound) for each bound: 64 bits, drawn again if among the first 2^64 mod bound."""
    drawn = np.empty(len(bounds), np.uint64)
    going = np.arange(len(bounds))
    while going.size:
        words, bound = np.frombuffer(source(8 * going.size), np.uint64), bounds[going]
        fair = words >= -bound % bound
        drawn[going[fair]] = words[fair] % bound[fair]
        going = going[~fair]
    return drawn
