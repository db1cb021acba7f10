"""Defines the noise of a step: a binomial of coins that neither server knows, smoothed by two uniforms.

With n = 2^k - 1 fair coins, a step of 2^s units and U, U' uniform in [0, 2^s), one coordinate's noise is ::

    Z = 2^s (coins that show 1) + U + U' - c,   c = 2^s n/2 + 2^s - 1

a whole number, symmetric about 0 and never beyond c, of variance 4^s (n/4 + 1/6) - 1/6. The scaled binomial alone
would reveal the sum modulo its step. The two uniforms add a triangle, which makes the probabilities of Z those of the
binomial at the multiples of the step, divided by the step, with straight lines in between.

Every bit is the exclusive or of one bit from each server, so it is fair and unknown to either as long as the other's
is; using a bit twice breaks that. :func:`noisy_sum` (in a circuit) and :func:`from_bits` compute the same integers
from the same bits.
"""

import math
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

import numpy as np

from dpaudit import _validate
from dpaudit.secure.circuits.circuit import ZERO, Builder, Circuit, add, popcount
from dpaudit.secure.crypto import randomness


class Binomial(NamedTuple):
    """The law of one coordinate's noise; made by :func:`binomial`.

    Attributes:
      coins: n = 2^k - 1.
      step_bits: s, the binary logarithm of the step.
    """

    coins: int
    step_bits: int

    @property
    def step(self) -> int:
        """The step, 2^s units."""
        return 1 << self.step_bits

    @property
    def bits(self) -> int:
        """The number of fair bits of one coordinate: n coins and two uniforms of s bits."""
        return self.coins + 2 * self.step_bits

    @property
    def reach(self) -> int:
        """The largest absolute value, c, in units."""
        return (self.coins + 2) * self.step // 2 - 1

    @property
    def offset(self) -> int:
        """The difference between the circuit's noise and Z: c."""
        return self.reach

    @property
    def std(self) -> float:
        """The standard deviation in units."""
        return math.sqrt(self.step**2 * (self.coins / 4 + 1 / 6) - 1 / 6)


def binomial(*, coins: int = 127, step_bits: int) -> Binomial:
    """Makes a :class:`Binomial` from checked arguments.

    Args:
      coins: n = 2^k - 1, at most 1,023. More coins are closer to a Gaussian and need a larger circuit.
      step_bits: s >= 1.

    Raises:
      InputError: a value is out of range.
    """
    coins = _validate.at_least(1, coins=coins)
    if coins & (coins + 1) or coins > 1023:
        raise _validate.expected("coins", "2^k - 1, at most 1023", coins)
    return Binomial(coins, _validate.at_least(1, step_bits=step_bits))


def from_bits(noise: Binomial, bits: np.ndarray) -> np.ndarray:
    """Computes Z from given bits, as the circuit does.

    Args:
      noise: the law.
      bits: [d, n + 2 s] of 0 and 1: the coins, then U and U', lowest bit first.

    Returns:
      int64 [d], units.

    Raises:
      InputError: the bits have another shape.
    """
    if bits.ndim != 2 or bits.shape[1] != noise.bits:
        raise _validate.expected("bits", f"shape [d, {noise.bits}]", f"shape {list(bits.shape)}")
    heads = bits[:, : noise.coins].sum(axis=1, dtype=np.int64)
    uniforms = bits[:, noise.coins :] @ np.tile(1 << np.arange(noise.step_bits), 2)
    return noise.step * heads + uniforms - noise.reach


@lru_cache(maxsize=8)
def noisy_sum(noise: Binomial, *, bits: int) -> Circuit:
    """Builds the circuit of ``share + Z + c`` modulo 2^bits, with the noise Z and its reach c.

    The low bits are the sum of the uniforms, whose carry is added to the count of the coins. The constant c is public,
    and the evaluator has a share x2 of its own: it subtracts both from what it reads, in the clear. This reveals no
    more to it than the noisy sum, from which it could compute what it read.

    Args:
      noise: the law, of n coins and two uniforms of s bits.
      bits: bits of the ring.

    Returns:
      A circuit of n + s + bits - 1 AND gates. Its inputs are the share and then the noise's bits, in the order of
      :func:`from_bits`; its outputs are ``bits`` bits, the lowest first.

    Raises:
      InputError: the noise itself does not fit into the ring.

    Source: paper 001, Algorithm 2 line 5, with a binomial in place of its table of normal values.
    """
    _validate.at_least((2 * noise.reach).bit_length(), bits=bits)
    builder = Builder(bits + noise.bits)
    wires = iter(builder.inputs)
    sizes = bits, noise.coins, noise.step_bits, noise.step_bits
    share, coins, first, second = (list(islice(wires, size)) for size in sizes)
    smooth = add(builder, first, second)
    count = popcount(builder, coins)
    added = [*smooth[:-1], *add(builder, count, [ZERO] * len(count), smooth[-1])]
    return builder.build(add(builder, share, [*added, *[ZERO] * bits][:bits])[:-1])


def sample(noise: Binomial, count: int, source: randomness.Source = randomness.system) -> np.ndarray:
    """Samples Z in the clear, for simulations: int64 [count], units, from ``noise.bits`` bits of the source each."""
    needed = count * noise.bits
    bits = np.unpackbits(np.frombuffer(source(-(-needed // 8)), np.uint8), count=needed)
    return from_bits(noise, bits.reshape(count, noise.bits))


@lru_cache(maxsize=8)
def coin_probabilities(coins: int) -> np.ndarray:
    """Returns P(j of n fair coins show 1) for j = 0..n, float64 [n + 1], each correctly rounded; read-only."""
    exact = np.array([math.comb(coins, j) / 2**coins for j in range(coins + 1)])
    exact.flags.writeable = False
    return exact


def probabilities(noise: Binomial, values: np.ndarray) -> np.ndarray:
    """Computes P(Z = z), float64, for whole numbers z of any shape; 0 beyond the reach."""
    corner = (np.arange(-1, noise.coins + 2) - noise.coins / 2) * noise.step  # where the straight lines meet
    heights = np.concatenate([[0.0], coin_probabilities(noise.coins), [0.0]]) / noise.step
    return np.interp(values, corner, heights)


def tail(noise: Binomial, reach: int) -> float:
    """Computes P(|Z| > t), exactly where t is at a corner (an odd multiple of half a step), else at the corner below.

    Args:
      noise: the law.
      reach: t >= 0, units.

    Returns:
      A probability; 0 at and beyond the largest absolute value.

    Raises:
      InputError: t is below 0.
    """
    reach = _validate.at_least(0, reach=reach)
    corner = (2 * reach + noise.coins * noise.step) // (2 * noise.step)
    if reach >= noise.reach:
        return 0.0
    if 2 * reach < noise.step:
        return 1.0
    beyond = coin_probabilities(noise.coins)[corner:]  # less than half of the triangle at the corner itself counts
    return 2 * (math.fsum(beyond[1:]) + float(beyond[0]) * (noise.step - 1) / (2 * noise.step))
