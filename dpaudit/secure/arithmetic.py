"""Integers in Boolean circuits, and the circuits that two servers run on their shares.

A number is a list of wires, the lowest bit first.
"""

from collections.abc import Sequence
from itertools import islice

from dpaudit import check
from dpaudit.secure.circuit import ONE, ZERO, Builder, Circuit
from dpaudit.secure.noise import Binomial


def add(builder: Builder, x: Sequence[int], y: Sequence[int], carry: int = ZERO) -> list[int]:
    """``x + y + carry`` of two N-bit numbers: N + 1 bits for N AND gates, N - 1 if the highest is not used.

    Every bit costs one AND gate: the carry c becomes ``((x ^ c) & (y ^ c)) ^ c``.

    Source: Kolesnikov, Sadeghi and Schneider 2009, "Improved garbled circuit building blocks", section 3.1.
    """
    total = []
    for a, b in zip(x, y, strict=True):
        a_differs, b_differs = builder.xor(a, carry), builder.xor(b, carry)
        total.append(builder.xor(a_differs, b))
        carry = builder.xor(builder.conjunction(a_differs, b_differs), carry)
    return [*total, carry]


def subtract(builder: Builder, x: Sequence[int], y: Sequence[int]) -> list[int]:
    """``x - y`` modulo 2^N, as x + (NOT y) + 1: N bits for N - 1 AND gates."""
    return add(builder, x, [builder.negation(wire) for wire in y], ONE)[:-1]


def popcount(builder: Builder, coins: Sequence[int]) -> list[int]:
    """How many of n = 2^k - 1 bits are one: k bits for n - k AND gates.

    Two halves are counted and added, with the coin left over as the carry: A(k) = 2 A(k - 1) + k - 1.
    """
    if len(coins) == 1:
        return list(coins)
    half = len(coins) // 2
    return add(builder, popcount(builder, coins[:half]), popcount(builder, coins[half:-1]), coins[-1])


def noisy_sum(noise: Binomial, *, bits: int) -> Circuit:
    """``share + Z + c`` modulo 2^bits, with the noise Z and its reach c: what two servers must compute in secret.

    The noise of :mod:`dpaudit.secure.noise` in gates: the uniforms' sum is the low bits, its carry is added to the
    count of the coins. The constant c is public, and the evaluator has a share x2 of its own: it takes both from what
    it reads, in the clear. This tells it no more than the noisy sum, from which it could compute what it read.

    Args:
      noise: n coins and two uniforms of s bits.
      bits: bits of the ring.

    Returns:
      A circuit of n + s + bits - 1 AND gates. Its inputs are the share and then the noise's bits, in the order of
      :func:`dpaudit.secure.noise.from_bits`; its outputs are ``bits`` bits, the lowest first.

    Raises:
      InputError: a ring that the noise itself does not fit into.

    Source: paper 001, Algorithm 2 line 5, with a binomial in place of its table of normal values.
    """
    check.at_least((2 * noise.reach).bit_length(), bits=bits)
    builder = Builder(bits + noise.bits)
    wires = iter(builder.inputs)
    sizes = bits, noise.coins, noise.step_bits, noise.step_bits
    share, coins, first, second = (list(islice(wires, size)) for size in sizes)
    smooth = add(builder, first, second)
    count = popcount(builder, coins)
    added = [*smooth[:-1], *add(builder, count, [ZERO] * len(count), smooth[-1])]
    return builder.build(add(builder, share, [*added, *[ZERO] * bits][:bits])[:-1])


def reconstruction(*, bits: int) -> Circuit:
    """The paper's reconstruction without noise, ``x1 - x2`` modulo 2^bits: ``bits - 1`` AND gates.

    Inputs: the two shares, lowest bit first; outputs: ``bits`` bits.
    """
    builder = Builder(2 * check.at_least(1, bits=bits))
    return builder.build(subtract(builder, builder.inputs[:bits], builder.inputs[bits:]))
