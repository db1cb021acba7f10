"""Checks between the two servers that an owner's integers have at most a given L2 norm, and reveals that bit alone.

The servers hold shares x1, x2 of each coordinate x = x1 - x2 in [-2^N, 2^N), modulo 2^(N + 1). Squares of such
numbers wrap in the ring, so they are first lifted to the integers. With u1 = x1 and u2 = x2 - 2^N, reduced into
[0, 2^(N + 1)), and w = 1 if u1 < u2, else 0::

    x = u1 - u2 + 2^(N + 1) w - 2^N

A garbled comparison gives the servers bits w1, w2 with w = w1 xor w2 = w1 + w2 - 2 w1 w2, and a correlated transfer
shares of the product w1 w2, so that x = A + B modulo 2^64, A known to H1 alone and B to H2. Transfers, one for each
bit of B, make shares of A B, and with them each server has its part of ::

    S = sum_i x_i^2 = sum_i (A_i^2 + B_i^2 + 2 A_i B_i)

A second garbled circuit adds up the two parts and compares S with the bound; its bit is opened to both servers.

*Exact for any shares.* Every pair of ring elements is the sharing of one x in [-2^N, 2^N), the very number that enters
the opened sum, whatever the owner meant by it. S <= d 4^N is below 2^(K - 1) with K = 2 N + bits(d) + 1, at most 64,
where ``bits`` is the length of d in binary (:func:`checked_size`); the circuit compares K bits. So S never wraps, and
an owner that is free to choose both shares passes if and only if its integers' norm is at most the bound.

*What a server learns.* While the two follow the protocol and do not collude, a server can simulate all that it sees
from its own shares and one bit for each owner: labels of wires whose other label it lacks, choices hidden by
transfers, bits w1 or w2 and shares A or B that are uniform, since the other server's part is. An owner that clips each
example, and adds up no more of them than the terms allow, always passes: its bit depends on no record, so that it
spends no privacy. Nothing is guaranteed against a server that departs from the protocol; it can make the check pass.

Sources: shares of a product by transfers, Gilboa 1999, "Two party RSA key generation"; the lift of a share by its wrap
is the usual one, for instance Rathee et al. 2020, "CrypTFlow2", section 4.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache

import numpy as np

from dpaudit import _validate
from dpaudit.secure.channel import Channel
from dpaudit.secure.circuits import garbling
from dpaudit.secure.circuits.circuit import ONE, Builder, Circuit, add
from dpaudit.secure.circuits.garbling import BLOCK, WORD, Encrypt, GateKeys
from dpaudit.secure.crypto import correlated_transfers
from dpaudit.secure.crypto.randomness import Source, system
from dpaudit.secure.protocol.two_server_sum import chunks

LARGEST = 8 * garbling.CHUNK // 4  # coordinates that are checked together; two chunks


def checked_size(*, dimension: int, ring_bits: int) -> int:
    """Returns K, the bits in which a sum of squares and its bound are compared; InputError beyond 64."""
    bits = 2 * (ring_bits - 1) + dimension.bit_length() + 1
    if bits > 64:
        most = (1 << max(0, 65 - 2 * ring_bits)) - 1
        wanted = f"none with more than {most} coordinates in a ring of {ring_bits} bits, whose squares are not added"
        raise _validate.expected("owner_examples", wanted, f"one with {dimension}")
    return bits


def payload_bytes(*, dimension: int, ring_bits: int, depth: int) -> dict[str, float]:
    """Returns the bytes of an owner's check, by message, before transfers are rounded up; ``depth`` is theirs."""
    bits = checked_size(dimension=dimension, ring_bits=ring_bits)
    inputs, products = ring_bits * dimension + bits, (1 + bits - 1) * dimension
    tables = less(ring_bits).ands * dimension + negative(bits).ands
    return {
        "norm.labels": BLOCK * inputs,
        "norm.tables": 2 * BLOCK * tables,
        "norm.products": WORD.itemsize * products,
        "cot.corrections": BLOCK * (inputs + products) / depth,
    }


@cache
def less(bits: int) -> Circuit:
    """Builds u1 < u2 of two unsigned numbers, lowest bit first, from ``bits`` AND gates."""
    builder = Builder(2 * bits)
    first, second = builder.inputs[:bits], builder.inputs[bits:]
    carry = add(builder, first, [builder.negation(wire) for wire in second], ONE)[-1]
    return builder.build([builder.negation(carry)])


@cache
def negative(bits: int) -> Circuit:
    """Builds the sign of a + b modulo 2^bits, in two's complement, from ``bits - 1`` AND gates."""
    builder = Builder(2 * bits)
    return builder.build([add(builder, builder.inputs[:bits], builder.inputs[bits:])[-2]])


class First:
    """Checks as H1. Its constructor and the peer's talk to each other.

    Args:
      channel: to the peer's :class:`Second`.
      depth: of the correlated transfers: 1, 2 or 4, the same as the peer's.
      source: where the secrets come from.
    """

    def __init__(self, channel: Channel, *, depth: int = 1, source: Source = system):
        delta = garbling.fresh_delta(source)
        self._channel, self._source, self._delta = channel, source, delta
        self._transfers = correlated_transfers.Sender(channel, delta, depth=depth, source=source)

    def longer(self, shares: Sequence[np.ndarray], *, bound: int, ring_bits: int, seconds: float) -> np.ndarray:
        """Tells which owners' integers are longer than a bound, together with the peer's ``longer``.

        Args:
          shares: this server's share of each owner's integers, int [d] in the ring; at least one.
          bound: the square of the largest norm that passes, in units; below 4^N.
          ring_bits: N + 1.
          seconds: time limit for each :data:`LARGEST` coordinates.

        Returns:
          bool [owners].

        Raises:
          InputError: a sum of squares may exceed 64 bits.
          ChannelError: a message did not arrive.
        """
        bits = checked_size(dimension=len(shares[0]), ring_bits=ring_bits)
        half, squares = 1 << (ring_bits - 1), np.zeros(len(shares), WORD)
        for share, owner in _parts(shares):
            self._channel.deadline(seconds)
            lifted = (share & (2 * half - 1)).astype(WORD)
            wrap = self._garbled(less(ring_bits), _bits(lifted, ring_bits)).astype(WORD)
            lifted += (wrap << ring_bits) - WORD.type(half) - (self._times(wrap, 1) << (ring_bits + 1))
            np.add.at(squares, owner, lifted * lifted + 2 * self._times(lifted, bits - 1))
        self._channel.deadline(seconds)
        found = self._garbled(negative(bits), _bits(WORD.type(bound) - squares, bits))
        self._channel.send("norm.bits", np.packbits(found))
        return (found ^ _unpacked(self._channel, len(found))).astype(bool)

    def _garbled(self, circuit: Circuit, bits: np.ndarray) -> np.ndarray:
        """Computes a circuit on this side's bits [w, n] and the peer's; returns this side's part of its bit, [n]."""
        theirs = self._transfers.extend(bits.size).reshape(*bits.shape, BLOCK)
        zeros = np.frombuffer(self._source(bits.size * BLOCK), np.uint8).reshape(*bits.shape, BLOCK)
        keys = self._keys()
        self._channel.send("norm.labels", garbling.choose(zeros, bits, self._delta))
        inputs = (np.concatenate([zeros[:, part], theirs[:, part]]) for part in chunks(bits.shape[1]))
        own = []
        for garbled in garbling.garble(circuit, inputs, self._delta, keys):
            self._channel.send("norm.tables", garbled.tables)
            own.append(garbled.decoding[0])
        return np.concatenate(own)

    def _times(self, numbers: np.ndarray, width: int) -> np.ndarray:
        """Returns shares of the products, modulo 2^64, with the peer's numbers of ``width`` bits."""
        labels = self._transfers.extend(width * len(numbers)).reshape(width, -1, BLOCK)
        keys, share, delta = self._keys(), np.zeros(len(numbers), WORD), self._delta.view(WORD)
        for number, part in enumerate(chunks(len(numbers))):
            sent = np.empty((width, part.stop - part.start), WORD)
            for bit in range(width):
                zero, one = garbling.hashes(labels[bit, part].view(WORD).T, _only(keys(number, bit)), delta)
                sent[bit] = zero - one + (numbers[part] << bit)
                share[part] -= zero
            self._channel.send("norm.products", sent)
        return share

    def _keys(self) -> GateKeys:
        seed = self._source(BLOCK)
        self._channel.send("norm.seed", seed)
        return GateKeys(seed)


class Second:
    """Checks as H2. Arguments: as for :class:`First`."""

    def __init__(self, channel: Channel, *, depth: int = 1, source: Source = system):
        self._channel = channel
        self._transfers = correlated_transfers.Receiver(channel, depth=depth, source=source)

    def longer(self, shares: Sequence[np.ndarray], *, bound: int, ring_bits: int, seconds: float) -> np.ndarray:
        """Tells which owners' integers are longer than a bound; arguments and errors as for the peer's."""
        del bound  # a constant of H1's part
        bits = checked_size(dimension=len(shares[0]), ring_bits=ring_bits)
        half, squares = 1 << (ring_bits - 1), np.zeros(len(shares), WORD)
        for share, owner in _parts(shares):
            self._channel.deadline(seconds)
            place = ((share - half) & (2 * half - 1)).astype(WORD)
            wrap = self._evaluated(less(ring_bits), _bits(place, ring_bits)).astype(WORD)
            lifted = (wrap << ring_bits) - place - (self._times(wrap, 1) << (ring_bits + 1))
            np.add.at(squares, owner, lifted * lifted + 2 * self._times(lifted, bits - 1))
        self._channel.deadline(seconds)
        found = self._evaluated(negative(bits), _bits(-squares, bits))
        self._channel.send("norm.bits", np.packbits(found))
        return (found ^ _unpacked(self._channel, len(found))).astype(bool)

    def _evaluated(self, circuit: Circuit, bits: np.ndarray) -> np.ndarray:
        labels = self._transfers.extend(bits.reshape(-1).astype(bool)).reshape(*bits.shape, BLOCK)
        keys = self._keys()
        theirs = self._channel.receive("norm.labels", labels.size).reshape(labels.shape)
        parts = list(chunks(bits.shape[1]))
        inputs = (np.concatenate([theirs[:, part], labels[:, part]]) for part in parts)
        tables = (self._table(circuit, part.stop - part.start) for part in parts)
        return np.concatenate([found[0] for found in garbling.evaluate(circuit, inputs, tables, keys)])

    def _table(self, circuit: Circuit, count: int) -> np.ndarray:
        size = circuit.ands, 2, 2, count
        return self._channel.receive("norm.tables", WORD.itemsize * int(np.prod(size))).view(WORD).reshape(size)

    def _times(self, numbers: np.ndarray, width: int) -> np.ndarray:
        choices = _bits(numbers, width)
        labels = self._transfers.extend(choices.reshape(-1).astype(bool)).reshape(width, -1, BLOCK)
        keys, share = self._keys(), np.zeros(len(numbers), WORD)
        for number, part in enumerate(chunks(len(numbers))):
            size = width, part.stop - part.start
            came = self._channel.receive("norm.products", WORD.itemsize * int(np.prod(size))).view(WORD).reshape(size)
            for bit in range(width):
                (hashed,) = garbling.hashes(labels[bit, part].view(WORD).T, _only(keys(number, bit)))
                share[part] += hashed + choices[bit, part] * came[bit]
        return share

    def _keys(self) -> GateKeys:
        return GateKeys(self._channel.receive("norm.seed", BLOCK).tobytes())


def _only(encrypt: Encrypt) -> Callable[[int], Encrypt]:
    """Gives out the key of the only chunk."""
    return lambda chunk: encrypt


def _parts(shares: Sequence[np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Cuts the owners' coordinates, one owner after the other, into parts of at most :data:`LARGEST`.

    Yields:
      int64 [n], and the number of the owner of each.
    """
    dimension = len(shares[0])
    for start in range(0, len(shares) * dimension, LARGEST):
        stop = min(start + LARGEST, len(shares) * dimension)
        first = start // dimension
        joined = np.concatenate(shares[first : -(-stop // dimension)]).astype(np.int64)
        yield joined[start - first * dimension : stop - first * dimension], np.arange(start, stop) // dimension


def _bits(numbers: np.ndarray, width: int) -> np.ndarray:
    """Splits numbers into their lowest bits, the lowest first: uint64 [n] -> uint8 [width, n]."""
    return (numbers >> np.arange(width, dtype=WORD)[:, None] & WORD.type(1)).astype(np.uint8)


def _unpacked(channel: Channel, count: int) -> np.ndarray:
    """Receives the peer's parts of ``count`` bits."""
    return np.unpackbits(channel.receive("norm.bits", -(-count // 8)), count=count)
