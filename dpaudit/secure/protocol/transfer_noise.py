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
lacks, under an AES key that is used for 4,096 transfers and no others. So each knows about Z only what the opened sum
reveals. Use a share for one sum only: the difference of two sums with the same noise has none. Nothing is guaranteed
against a server that departs from the protocol; it can shift its own share at will.

Sources: shares of a product by one transfer, Gilboa 1999, "Two party RSA key generation"; from correlated ones,
Asharov, Lindell, Schneider and Zohner 2013, "More efficient oblivious transfer".
"""

from collections import deque
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import NamedTuple, Self

import numpy as np

from dpaudit import _validate
from dpaudit.secure.channel import Channel
from dpaudit.secure.circuits.garbling import BLOCK, WORD, GateKeys, hashes
from dpaudit.secure.crypto import correlated_transfers, shares
from dpaudit.secure.crypto.randomness import Source, system, unshown
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

_AHEAD = 1  # groups of products for which H2 sends its choices before it waits for those of an earlier one
_NUMBER = np.dtype("<u4")  # numbers modulo a power of two that is at most the ring's


class Share(NamedTuple):
    """A server's part of prepared noise; it is used once.

    Attributes:
      values: int64 [n], in the ring.
    """

    values: np.ndarray
    __repr__ = unshown

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

    def anew(self) -> Self:
        """Returns itself: a share that is stored tells nothing of what other shares were made from."""
        return self

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
        own = fair_bits(self._source, (noise.bits, checked_count(count)))
        seed = self._source(BLOCK)
        self._channel.send("seed", seed)
        keys, delta = GateKeys(seed), self._delta.view(WORD)
        share = np.full(count, -noise.reach).astype(_NUMBER)
        for number, (bits, part) in enumerate(_groups(noise, count)):
            mine = own[bits, part].astype(_NUMBER)
            words = self._transfers.words(mine.size).reshape(2, -1)
            hashed = hashes(words, partial(keys, number), delta)[:, : mine.size].astype(_NUMBER)
            zero, one = hashed.reshape(2, *mine.shape)
            self._channel.send("products", _packed(zero - one - mine, widths[bits]))
            share[part] += _weighed(mine, zero, opening.ring_bits - 1 - widths[bits])
        return Share(shares.smod(share.astype(np.int64), 1 << (opening.ring_bits - 1)))

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

    def anew(self) -> Self:
        """Returns itself, as the peer's does."""
        return self

    def prepare(self, opening: Opening, count: int) -> Share:
        """Makes H2's share of new noise, together with the peer's ``prepare``, whose arguments it shares."""
        noise, widths = _law(opening)
        own = fair_bits(self._source, (noise.bits, checked_count(count)))
        chosen: deque[np.ndarray] = deque()
        choosing = (self._transfers.words(_in_order(own[bits, part])) for bits, part in _groups(noise, count))
        chosen.extend(islice(choosing, _AHEAD))
        keys = GateKeys(self._channel.receive("seed", BLOCK).tobytes())
        share = np.zeros(count, _NUMBER)
        for number, (bits, part) in enumerate(_groups(noise, count)):
            chosen.extend(islice(choosing, 1))
            mine, words = own[bits, part].astype(_NUMBER), chosen.popleft().reshape(2, -1)
            (hashed,) = hashes(words, partial(keys, number))[:, : mine.size].astype(_NUMBER)
            packed = self._channel.receive("products", _packed_bytes(widths[bits], mine.shape[1]))
            products = _unpacked(packed, widths[bits], mine.shape[1])
            products *= mine
            products += hashed.reshape(mine.shape)
            share[part] -= _weighed(mine, -products, opening.ring_bits - 1 - widths[bits])
        return Share(shares.smod(share.astype(np.int64), 1 << (opening.ring_bits - 1)))

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


def _groups(noise: Binomial, count: int) -> Iterator[tuple[slice, slice]]:
    """Cuts the noise's bits for ``count`` coordinates into groups (bits, coordinates), each made by one message."""
    for part in chunks(count):
        together = correlated_transfers.TOGETHER // (part.stop - part.start)
        for start in range(0, noise.bits, together):
            yield slice(start, min(start + together, noise.bits)), part


def _in_order(bits: np.ndarray) -> np.ndarray:
    """Lists a group's bits, uint8 [g, n], as choices of transfers whose words come in the order of the bits."""
    padded = np.zeros(-(-bits.size // correlated_transfers.BLOCK) * correlated_transfers.BLOCK, bool)
    padded[: bits.size] = bits.reshape(-1)
    return padded.reshape(correlated_transfers.BLOCK, -1).T.reshape(-1)


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


def _packed(numbers: np.ndarray, widths: np.ndarray) -> np.ndarray:
    """Packs the lowest bits of numbers, uint32 [g, n]: whole bytes first, then planes of further bits."""
    octets, (whole, rest) = _octets(numbers), np.divmod(widths, 8)
    top = octets[np.arange(len(widths)), :, whole]
    parts = [octets[whole > place, :, place].reshape(-1) for place in range(whole.max())]
    planes = [top[rest > bit] & np.uint8(1 << bit) for bit in range(rest.max())]
    if planes:
        parts.append(np.packbits(np.concatenate(planes)))
    return np.concatenate(parts)


def _unpacked(packed: np.ndarray, widths: np.ndarray, count: int) -> np.ndarray:
    """Restores numbers that :func:`_packed` packed: uint8 -> uint32 [g, n]."""
    whole, rest = np.divmod(widths, 8)
    numbers = np.zeros((len(widths), count), _NUMBER)
    octets, start = _octets(numbers), 0
    for place in range(whole.max()):
        rows = whole > place
        stop = start + int(rows.sum()) * count
        octets[rows, :, place] = packed[start:stop].reshape(-1, count)
        start = stop
    planes = np.unpackbits(packed[start:], count=int(rest.sum()) * count).reshape(-1, count)
    top, start = np.zeros(numbers.shape, np.uint8), 0
    for bit in range(rest.max()):
        rows = rest > bit
        top[rows] |= planes[start : start + int(rows.sum())] << np.uint8(bit)
        start += int(rows.sum())
    octets[np.arange(len(widths)), :, whole] = top
    return numbers


def _packed_bytes(widths: np.ndarray, count: int) -> int:
    """Counts the bytes of packed numbers."""
    whole, rest = (int(each.sum()) for each in np.divmod(widths, 8))
    return whole * count + -(-rest * count // 8)


def _octets(numbers: np.ndarray) -> np.ndarray:
    """Views uint32 [g, n] as bytes, the lowest first: uint8 [g, n, 4]."""
    return numbers.view(np.uint8).reshape(*numbers.shape, _NUMBER.itemsize)
