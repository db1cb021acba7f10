"""Splits integers into two additive shares modulo 2^(N+1), each of which alone reveals nothing.

``ring_bits`` is N + 1. An owner splits its vector, sends one share to each server, and discards them; a server adds
the shares of all owners; the difference of the two servers' sums is the sum of the owners' vectors, as long as that
sum is in [-2^N, 2^N). Outside this range the result is modulo 2^(N+1); :mod:`dpaudit.secure.protocol.fixed_point`
chooses a scale that keeps the sum inside.

Each share by itself is uniform, whatever the value, so a server that does not collude with the other learns nothing
from it, not even together with all other owners. Nothing here protects against a server that departs from the
protocol.

Source: paper 001, section 4.2, Algorithm 1 (lines 7-9) and Algorithm 2 (lines 1, 3 and 5).
"""

from collections.abc import Iterable

import numpy as np

from dpaudit import _validate
from dpaudit.secure.crypto import randomness


def smod(values: np.ndarray, half: int) -> np.ndarray:
    """Reduces integers into [-C, C): x smod C = ((x + C) mod 2 C) - C, with C = ``half`` >= 1."""
    return (values + half) % (2 * half) - half


def split(
    values: np.ndarray, *, ring_bits: int, source: randomness.Source = randomness.system
) -> tuple[np.ndarray, np.ndarray]:
    """Splits integers into two shares: (x + r) smod 2^N and r, with r uniform in [-2^N, 2^N).

    Args:
      values: integers x in [-2^N, 2^N), any shape.
      ring_bits: N + 1, 2 to 32.
      source: where secret bytes come from, 8 for each value.

    Returns:
      (first, second), int64, for H1 and for H2.

    Raises:
      InputError: a value is out of range or not an integer.
    """
    half = _half(ring_bits)
    values = np.asarray(values)
    if values.dtype.kind not in "iu":
        raise _validate.expected("values", "integers", str(values.dtype))
    outside = (values < -half) | (values >= half)
    if outside.any():
        raise _validate.expected("values", f"integers in [{-half}, {half})", int(values[outside].flat[0]))
    second = smod(np.frombuffer(source(8 * values.size), np.int64).reshape(values.shape), half)
    return smod(values.astype(np.int64) + second, half), second


def add(shares: Iterable[np.ndarray], *, ring_bits: int) -> np.ndarray:
    """Adds the owners' shares smod 2^N: a server's share of the sum.

    Args:
      shares: one int64 array per owner, all of one shape; at least one.
      ring_bits: N + 1, 2 to 32.

    Returns:
      int64, of that shape.

    Raises:
      InputError: there are no shares, or their shapes differ.
    """
    half = _half(ring_bits)
    total = None
    for share in shares:
        if total is not None and share.shape != total.shape:
            raise _validate.expected("shares", f"arrays of shape {list(total.shape)}", f"shape {list(share.shape)}")
        total = smod(share if total is None else total + share, half)
    if total is None:
        raise _validate.expected("shares", "those of at least one owner", "none")
    return total


def join(first: np.ndarray, second: np.ndarray, *, ring_bits: int) -> np.ndarray:
    """Joins two shares into the value that they hide: (first - second) smod 2^N, int64.

    Raises:
      InputError: ring_bits out of range.
    """
    return smod(first - second, _half(ring_bits))


def checked_ring(ring_bits: int) -> int:
    """Returns N + 1 if it is a whole number from 2 to 32; raises InputError otherwise."""
    ring_bits = _validate.at_least(2, ring_bits=ring_bits)
    if ring_bits > 32:
        raise _validate.expected("ring_bits", "a whole number from 2 to 32", ring_bits)
    return ring_bits


def _half(ring_bits: int) -> int:
    return 1 << (checked_ring(ring_bits) - 1)
