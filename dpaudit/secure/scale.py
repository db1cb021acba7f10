"""How many units a clip norm is: as many as leave the sum *and its noise* room in the ring.

One unit is C/Q: a clipped gradient becomes whole numbers of L2 norm at most Q (:mod:`quantize`), so a coordinate of
the sum over m examples is at most m Q, and with the noise Z the release stays in the ring as long as ::

    m Q + |Z| <= 2^N - 1

The paper's scale, (2^N - 1)/(m C), leaves the noise no room: at m = 30 its standard deviation is a quarter of the
ring's half at epsilon 0.5, and 12.6 times it at 0.01. The uncorrected protocol of Chase et al. takes no scale at all:
sums of +m C and -m C are then one value.

A release that leaves the ring comes back modulo 2^(N+1): a coordinate is spoilt, but nothing more is said about
anyone, since the ring's value is a function of the sum with its noise.
"""

import math
from typing import NamedTuple

from dpaudit import check
from dpaudit.secure import shares
from dpaudit.secure.noise import Binomial, binomial

MISSED = 2.0**-64  # probability that a coordinate's Gaussian noise needs more room than the ring gives it
MOST_LEVELS = 1 << 24  # up to here float64 keeps a clipped gradient's norm exactly enough (quantize.py)


class Scale(NamedTuple):
    """The fixed point of one training, the same for all owners and both servers.

    Attributes:
      clip_norm: C, L2, per example.
      levels: Q, units in one clip norm, and the largest integer norm of an example.
      ring_bits: N + 1; shares are modulo 2^(N+1).
    """

    clip_norm: float
    levels: int
    ring_bits: int

    @property
    def unit(self) -> float:
        """C/Q, what a difference of 1 means."""
        return self.clip_norm / self.levels

    def room(self, examples: int) -> int:
        """The largest noise with which no sum over this many examples leaves the ring, units."""
        return (1 << (self.ring_bits - 1)) - 1 - examples * self.levels


def largest(
    *, examples: int, clip_norm: float, noise_multiplier: float = 0.0, reach: float = 0.0, ring_bits: int = 25
) -> Scale:
    """The finest scale at which m examples and noise of ``reach`` standard deviations fit: (m + reach z) Q < 2^N.

    Args:
      examples: m, of all owners together, one step.
      clip_norm: C, L2, per example.
      noise_multiplier: z, standard deviation of all noise together over the clip norm; 0 for none.
      reach: in standard deviations; :func:`subgaussian_reach` for the discrete Gaussian.
      ring_bits: N + 1, 2 to 32.

    Returns:
      A :class:`Scale`, of at most 2^24 levels.

    Raises:
      InputError: a value out of range; a ring too small for a single level.
    """
    examples = check.at_least(1, examples=examples)
    check.positive(clip_norm=clip_norm)
    check.non_negative(noise_multiplier=noise_multiplier)
    check.non_negative(reach=reach)
    needed = examples + reach * noise_multiplier
    ring_bits = shares.checked_ring(ring_bits)
    levels = min(MOST_LEVELS, int(((1 << (ring_bits - 1)) - 1) / needed))
    if levels < 1:
        raise check.expected("ring_bits", f"a ring with room for {needed:g} clip norms", ring_bits)
    return Scale(float(clip_norm), levels, ring_bits)


def subgaussian_reach(probability: float) -> float:
    """t with P(|Z| > t sigma) <= 2 exp(-t^2 / 2) = ``probability``: Gaussian noise, discrete or not, or a sum of it.

    Source: Canonne, Kamath and Steinke 2020: the discrete Gaussian is sub-Gaussian with its parameter sigma.
    """
    return math.sqrt(2 * math.log(2 / check.open_unit(probability=probability)))


def for_gaussian(*, noise_multiplier: float, examples: int, clip_norm: float, ring_bits: int = 25) -> Scale:
    """The finest scale that Gaussian noise, discrete or from a table, leaves the ring of with probability 2^-64.

    Arguments and errors: as for :func:`with_binomial`; of a coordinate.
    """
    return largest(
        examples=examples,
        clip_norm=clip_norm,
        noise_multiplier=check.positive(noise_multiplier=noise_multiplier),
        reach=subgaussian_reach(MISSED),
        ring_bits=ring_bits,
    )


def with_binomial(
    *, noise_multiplier: float, examples: int, clip_norm: float, coins: int = 127, ring_bits: int = 25
) -> tuple[Scale, Binomial]:
    """The finest scale, and binomial noise in it of at least the wanted standard deviation, that never leave the ring.

    The step is a power of two, so the scale follows the noise: with the widest step that fits, Q is the largest
    integer with std >= z Q, and the noise multiplier that results, std / Q, is z to one part in Q. All of the noise's
    support fits, so the probability of leaving the ring is 0.

    Args:
      noise_multiplier: z, wanted standard deviation of the noise over the clip norm.
      examples: m, of all owners together, one step.
      clip_norm: C, L2, per example.
      coins: n = 2^k - 1 of the binomial.
      ring_bits: N + 1, 2 to 32.

    Returns:
      (scale, noise).

    Raises:
      InputError: a value out of range; a ring with no room.
    """
    check.positive(noise_multiplier=noise_multiplier)
    finest = largest(examples=examples, clip_norm=clip_norm, ring_bits=ring_bits)
    for step_bits in range(ring_bits, 0, -1):
        noise = binomial(coins=coins, step_bits=step_bits)
        scale = finest._replace(levels=int(noise.std / noise_multiplier))
        if 1 <= scale.levels <= MOST_LEVELS and noise.reach <= scale.room(examples):
            return scale, noise
    wanted = f"a ring with room for {examples} examples and noise of {noise_multiplier:g} clip norms"
    raise check.expected("ring_bits", wanted, ring_bits)
