"""Makes shares of noise that neither server knows from oblivious transfer alone, without a garbled circuit.

The noise of :mod:`dpaudit.secure.noise.binomial` is a sum of weighted bits minus a constant. Each bit is the exclusive
or of a from H1 and b from H2, which is a sum except for one product::

    Z = sum_i 2^e_i (a_i + b_i - 2 a_i b_i) - c

Each server adds up what it knows, and one correlated transfer makes shares of a product: H1 ends with labels q and
q xor delta, H2 with the one that its choice b selects. With the hashes p0, p1 of the two (the hash of
:mod:`dpaudit.secure.circuits.garbling`), H1 sends ::

    p0 - p1 - a,   which H2 adds to its own hash if b = 1

so that H2 holds p0 - a b, and H1 subtracts p0: modulo 2^(N - e), which is all that a weight of 2^(e + 1) needs in a
ring of 2^(N + 1), and the number of bits that are sent. The two shares of Z are uniform except for their difference;
each server adds its own to its share of the sum as if the noise were one more owner, and the two open that
(:func:`two_server_sum.reveal_first` and its peer).

Guaranteed, while the two follow the protocol and do not collude: H1 learns nothing about H2's bits, while the
transfers hold; H2 learns nothing about H1's, as each number that it is sent is hidden by the hash of a label that it
lacks, under an AES key that no other bit or chunk of coordinates uses. So each knows about Z only what the opened sum
reveals. Use a share for one sum only: the difference of two sums with the same noise has none. Nothing is guaranteed
against a server that departs from the protocol; it can shift its own share at will.

Sources: shares of a product by one transfer, Gilboa 1999, "Two party RSA key generation"; from correlated ones,
Asharov, Lindell, Schneider and Zohner 2013, "More efficient oblivious transfer".
"""

from collections.abc import Iterator
from typing import NamedTuple, Self

import numpy as np

from dpaudit import _validate
from dpaudit.secure.channel import Channel
from dpaudit.secure.circuits.garbling import BLOCK, GateKeys, hashes
from dpaudit.secure.crypto import correlated_transfers, shares
from dpaudit.secure.crypto.randomness import Source, system
from dpaudit.secure.noise.binomial import Binomial
from dpaudit.secure.protocol.two_server_sum import (
    PAYLOAD_BYTES,
    Opening,
    checked_count,
    checked_share,
    chunks,
    fair_bits,
    reveal_first,
    reveal_second,
)

_TOGETHER = 1 << 15  # products that are computed at once; their labels take half a MiB
_NUMBER = np.dtype("<u4")  # numbers modulo a power of two that is at most the ring's


class Share(NamedTuple):
    """A server's part of prepared noise; it is used once.

    Attributes:
      values: int64 [n], in the ring.
    """

    values: np.ndarray

    @classmethod
    def blank(cls, opening: Opening, count: int) -> Self:
        """Allocates a block whose array is yet to be filled."""
        del opening
        return cls(np.empty(count, np.int64))

    def parts(self) -> list[np.ndarray]:
        """Lists its arrays."""
        return list(self)


def by_transfers(noise: Binomial, *, ring_bits: int) -> Opening:
    """Builds the opening of x1 - x2 + Z modulo 2^ring_bits by :class:`First` and :class:`Second`.

    Raises:
      InputError: the noise does not fit into the ring.
    """
    _validate.at_least((2 * noise.reach).bit_length(), ring_bits=shares.checked_ring(ring_bits))
    return Opening(None, ring_bits, noise)


def payload_bytes(opening: Opening, *, depth: int) -> dict[str, float]:
    """Returns the bytes per coordinate, by message; ``depth`` is that of the correlated transfers."""
    noise, widths = _law(opening)
    return {"cot.corrections": noise.bits * BLOCK / depth, "products": int(widths.sum()) / 8} | PAYLOAD_BYTES


class First:
    """Makes H1's shares. Its constructor and the peer's talk to each other.

    Args:
      channel: to the peer's :class:`Second`.
      depth: of the correlated transfers: 1, 2 or 4, the same as the peer's.
      source: where the secrets come from.
    """

    def __init__(self, channel: Channel, *, depth: int = 1, source: Source = system):
        self._delta = np.frombuffer(source(BLOCK), np.uint8).copy()
        self._channel, self._source = channel, source
        self._transfers = correlated_transfers.Sender(channel, self._delta, depth=depth, source=source)

    def prepare(self, opening: Opening, count: int) -> Share:
        """Makes H1's share of new noise, together with the peer's ``prepare``.

        Args:
          opening: of :func:`by_transfers`.
          count: coordinates, at most :data:`two_server_sum.LARGEST`.

        Returns:
          H1's share, secret, for one sum; the noise is this share minus the peer's.

        Raises:
          InputError: the block is empty or too large.
          ChannelError: a message did not arrive.
        """
        noise, widths = _law(opening)
        labels = self._transfers.extend(noise.bits * checked_count(count)).reshape(noise.bits, count, BLOCK)
        own = fair_bits(self._source, labels.shape[:2])
        seed = self._source(BLOCK)
        self._channel.send("seed", seed)
        share, keys = np.empty(count, np.int64), GateKeys(seed)
        for number, part in enumerate(chunks(count)):
            planes, total = [], np.full(part.stop - part.start, -noise.reach).astype(_NUMBER)
            for bits in _groups(noise, len(total)):
                label, mine = labels[bits, part], own[bits, part].astype(_NUMBER)
                both = np.stack([label, label ^ self._delta], axis=1)
                hashed = hashes(both, keys.several(number, bits)).astype(_NUMBER)
                zero, one = hashed[:, 0], hashed[:, 1]
                planes.append(_planes(zero - one - mine, widths[bits]))
                total += _weighed(mine, zero, opening.ring_bits - 1 - widths[bits])
            self._channel.send("products", np.packbits(np.concatenate(planes)))
            share[part] = total
        return Share(shares.smod(share, 1 << (opening.ring_bits - 1)))

    def open(self, opening: Opening, noise: Share, share: np.ndarray) -> np.ndarray:
        """Opens a block with this noise from H1's share of the sum, together with the peer's ``open``.

        Args:
          opening, noise: as prepared; ``noise`` must never be used again.
          share: int64 [n], in the ring.

        Returns:
          The noisy sum, int64 [n].

        Raises:
          InputError: the share has another length.
          ChannelError: a message did not arrive.
        """
        return reveal_first(self._channel, _added(opening, noise, share), ring_bits=opening.ring_bits)


class Second:
    """Makes H2's shares. Arguments: as for :class:`First`."""

    def __init__(self, channel: Channel, *, depth: int = 1, source: Source = system):
        self._channel, self._source = channel, source
        self._transfers = correlated_transfers.Receiver(channel, depth=depth, source=source)

    def prepare(self, opening: Opening, count: int) -> Share:
        """Makes H2's share of new noise, together with the peer's ``prepare``, whose arguments it shares."""
        noise, widths = _law(opening)
        own = fair_bits(self._source, (noise.bits, checked_count(count)))
        labels = self._transfers.extend(own.reshape(-1).astype(bool)).reshape(*own.shape, BLOCK)
        share, keys = np.empty(count, np.int64), GateKeys(self._channel.receive("seed", BLOCK).tobytes())
        for number, part in enumerate(chunks(count)):
            n, total = part.stop - part.start, np.zeros(part.stop - part.start, _NUMBER)
            packed = self._channel.receive("products", -(-int(widths.sum()) * n // 8))
            planes = np.unpackbits(packed, count=int(widths.sum()) * n).reshape(-1, n)
            for bits in _groups(noise, n):
                mine, ahead = own[bits, part].astype(_NUMBER), widths[: bits.start].sum()
                products = _numbers(planes[ahead : ahead + widths[bits].sum()], widths[bits])
                hashed = hashes(labels[bits, None, part], keys.several(number, bits)).astype(_NUMBER)[:, 0]
                total -= _weighed(mine, -(hashed + mine * products), opening.ring_bits - 1 - widths[bits])
            share[part] = total
        return Share(shares.smod(share, 1 << (opening.ring_bits - 1)))

    def open(self, opening: Opening, noise: Share, share: np.ndarray) -> np.ndarray:
        """Opens a block with this noise from H2's share: the same values, by the same arguments."""
        return reveal_second(self._channel, _added(opening, noise, share), ring_bits=opening.ring_bits)


def _law(opening: Opening) -> tuple[Binomial, np.ndarray]:
    """Returns the noise, and N - e for each of its bits, int64 [bits], in the order of :func:`binomial.from_bits`.

    That is the number of bits of a share of its product.
    """
    noise = opening.noise
    if not isinstance(noise, Binomial):
        raise _validate.expected("opening", "one with binomial noise", noise)
    exponents = [noise.step_bits] * noise.coins + 2 * list(range(noise.step_bits))
    return noise, opening.ring_bits - 1 - np.array(exponents)


def _groups(noise: Binomial, count: int) -> Iterator[slice]:
    """Cuts the noise's bits for ``count`` coordinates into groups that are computed at once, coins first."""
    together = max(1, _TOGETHER // count)
    for first, last in ((0, noise.coins), (noise.coins, noise.bits)):
        for start in range(first, last, together):
            yield slice(start, min(start + together, last))


def _added(opening: Opening, noise: Share, share: np.ndarray) -> np.ndarray:
    """Adds a share of noise to one of the sum, in the ring."""
    checked_share(share, len(noise.values), opening.ring_bits)
    return shares.smod(share + noise.values, 1 << (opening.ring_bits - 1))


def _weighed(bits: np.ndarray, products: np.ndarray, exponents: np.ndarray) -> np.ndarray:
    """Computes sum_i 2^e_i (bit_i - 2 product_i) modulo 2^32: uint32 [g, n] -> [n].

    The ring's size divides that. Of a product only N - e_i bits matter, as the others are multiplied out of the ring.
    """
    parts = bits - 2 * products
    if (exponents == exponents[0]).all():
        return parts.sum(axis=0, dtype=_NUMBER) << _NUMBER.type(exponents[0])
    return (parts << exponents.astype(_NUMBER)[:, None]).sum(axis=0, dtype=_NUMBER)


def _places(widths: np.ndarray) -> np.ndarray:
    """Returns which of the planes that the widest of some numbers takes each of them has: bool [g, widest]."""
    return np.arange(widths.max()) < widths[:, None]


def _planes(numbers: np.ndarray, widths: np.ndarray) -> np.ndarray:
    """Splits numbers into their lowest bits, one number after the other: uint32 [g, n] -> bool [sum of widths, n]."""
    places = _places(widths)
    wide = np.empty((*places.shape, numbers.shape[1]), bool)
    for bit in range(places.shape[1]):
        np.not_equal(numbers & _NUMBER.type(1 << bit), 0, out=wide[:, bit])
    return wide.reshape(-1, numbers.shape[1]) if places.all() else wide[places]


def _numbers(planes: np.ndarray, widths: np.ndarray) -> np.ndarray:
    """Joins what :func:`_planes` split: uint8 [sum of widths, n] -> uint32 [g, n]."""
    places, n = _places(widths), planes.shape[1]
    wide = planes.reshape(*places.shape, n) if places.all() else np.zeros((*places.shape, n), np.uint8)
    if not places.all():
        wide[places] = planes
    numbers = np.zeros((len(widths), n), _NUMBER)
    for bit in reversed(range(places.shape[1])):
        numbers <<= 1
        numbers |= wide[:, bit]
    return numbers
