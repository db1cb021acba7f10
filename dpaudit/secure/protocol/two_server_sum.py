"""Opens the sum of two servers' shares, with noise that neither knows, through a garbled circuit or directly.

*With a circuit.* H1 garbles (:class:`Garbler`) and H2 evaluates (:class:`Evaluator`). A circuit's inputs are H1's
share, then bits that are each the exclusive or of one bit from either server: those of the noise (:func:`noisy`),
which stay fair and unknown as long as one server keeps its own bits secret, or H2's share (:func:`plain`, nothing but
the sum). H2's bits are choices of correlated transfers, whose labels are the circuit's own; H1's are folded into the
labels for zero and cost nothing.

What depends on no share can be computed in advance (:meth:`Garbler.prepare`, :meth:`Evaluator.prepare`) and serves for
one opening; a few labels per coordinate remain to be sent. A step of any size is processed in blocks
(:meth:`Opening.blocks`), so that a server holds the tables of one block only.

H2 alone reads the outputs. With noise it subtracts its own share and the noise's offset from what it reads, in the
clear, which reveals to it no more than the noisy sum does. It sends the result to H1.

*Without a circuit* (:func:`reveal_first`, :func:`reveal_second`). H1 sends H2 its share, H2 subtracts its own and
sends back the result. The shares must be of a sum that already holds noise which neither server knows
(:mod:`dpaudit.secure.protocol.transfer_noise`), or each server's own noise, or none: H1's share follows from the
result and H2's share, so it tells H2 nothing beyond the result. Never reveal two sums with the same noise: their
difference has none.

Guaranteed in both, while the two follow the protocol and do not collude: each learns the opened values and, about the
other's share and bits, only what follows from them. Nothing is guaranteed against a server that departs from the
protocol.

Source: paper 001, Algorithm 2, lines 2, 4 and 5.
"""

import hashlib
from collections.abc import Iterator
from typing import NamedTuple, Self

import numpy as np

from dpaudit import _validate
from dpaudit.secure.channel import Channel
from dpaudit.secure.circuits import circuit, garbling
from dpaudit.secure.circuits.circuit import Circuit, reconstruction
from dpaudit.secure.circuits.garbling import BLOCK, WORD, GateKeys
from dpaudit.secure.crypto import correlated_transfers, shares
from dpaudit.secure.crypto.randomness import Source, system, unshown
from dpaudit.secure.noise import binomial, lookup
from dpaudit.secure.noise.binomial import Binomial
from dpaudit.secure.noise.lookup import Table

# Without a circuit.

KEPT = np.dtype("<i4")  # numbers of a ring of up to 32 bits, as sent and stored
PAYLOAD_BYTES = {"share": KEPT.itemsize, "opened": KEPT.itemsize}  # per coordinate, by message


def reveal_first(channel: Channel, share: np.ndarray, *, ring_bits: int) -> np.ndarray:
    """Opens a sum at H1, together with the peer's :func:`reveal_second`.

    Args:
      channel: to the peer.
      share: int64 [d] in the ring, H1's share of the sum, noise included.
      ring_bits: N + 1, 2 to 32.

    Returns:
      int64 [d]: the difference of the two shares in the ring.

    Raises:
      InputError: the share is not int64 numbers of the ring.
      ChannelError: a message did not arrive, or has values outside the ring.
    """
    channel.send("share", checked_share(share, len(share), ring_bits).astype(KEPT))
    return receive_values(channel, "opened", len(share), ring_bits)


def reveal_second(channel: Channel, share: np.ndarray, *, ring_bits: int) -> np.ndarray:
    """Opens a sum at H2: the same values. Arguments and errors: as for the peer's."""
    checked_share(share, len(share), ring_bits)
    opened = shares.join(receive_values(channel, "share", len(share), ring_bits), share, ring_bits=ring_bits)
    channel.send("opened", opened.astype(KEPT))
    return opened


def receive_values(channel: Channel, kind: str, count: int, ring_bits: int) -> np.ndarray:
    """Receives ``count`` numbers of the ring, int64; ChannelError where one is outside it."""
    values = channel.receive(kind, KEPT.itemsize * count).view(KEPT).astype(np.int64)
    half = 1 << (ring_bits - 1)
    if not _inside(values, half):
        channel.refuse(f"receiving {kind!r}: values outside [{-half}, {half})")
    return values


def checked_share(share: np.ndarray, count: int, ring_bits: int) -> np.ndarray:
    """Returns a share if it is ``count`` numbers of the ring; otherwise InputError, which repeats none of them."""
    half = 1 << (shares.checked_ring(ring_bits) - 1)
    found = f"{share.dtype} {list(share.shape)}"
    if found != f"int64 [{count}]" or not _inside(share, half):
        wanted = f"int64 [{count}] in [{-half}, {half})"
        raise _validate.expected("share", wanted, found)
    return share


def _inside(values: np.ndarray, half: int) -> bool:
    return bool(((values >= -half) & (values < half)).all())


# With a circuit.

LARGEST = 8 * garbling.CHUNK  # coordinates in a block
_TABLES = 1 << 28  # bytes of the tables of a block


class Opening(NamedTuple):
    """The computation on a coordinate's shares.

    Attributes:
      circuit: its inputs are ``ring_bits`` of H1's share and then ``mixed`` bits; its outputs ``ring_bits``. None
        where the noise is made of transfers alone (:mod:`dpaudit.secure.protocol.transfer_noise`).
      ring_bits: N + 1.
      noise: the law of the noise, or the values of a table; None for none, where the mixed bits are H2's share.
    """

    circuit: Circuit | None
    ring_bits: int
    noise: Binomial | Table | None

    @property
    def gates(self) -> Circuit:
        """The circuit; InputError where there is none."""
        if self.circuit is None:
            raise _validate.expected("opening", "one by a circuit", "one by transfers")
        return self.circuit

    @property
    def mixed(self) -> int:
        """The number of input bits to which both servers contribute."""
        return self.gates.inputs - self.ring_bits

    def digest(self) -> bytes:
        """Computes 32 bytes by which two parties check that they compute the same."""
        if self.circuit is not None:
            return circuit.digest(self.circuit)
        return hashlib.sha256(f"dpaudit transfers 1, {self.ring_bits} bits, {self.noise}".encode()).digest()

    def blocks(self, dimension: int) -> Iterator[slice]:
        """Cuts the coordinates 0 .. d - 1 into blocks of at most :data:`LARGEST`, whose tables fit into memory."""
        ands = 0 if self.circuit is None else self.circuit.ands
        most = max(1, min(LARGEST, _TABLES // (2 * BLOCK * ands or 1)))
        for start in range(0, _validate.at_least(1, dimension=dimension), most):
            yield slice(start, min(start + most, dimension))

    def payload_bytes(self, depth: int) -> dict[str, float]:
        """Returns the bytes per coordinate, by message; ``depth`` is that of the correlated transfers."""
        tables, labels = 2 * BLOCK * self.gates.ands, BLOCK * self.ring_bits
        return {"tables": tables, "labels": labels, "decoding": self.ring_bits / 8, "opened": KEPT.itemsize} | {
            "cot.corrections": self.mixed * BLOCK / depth
        }


def noisy(noise: Binomial, *, ring_bits: int) -> Opening:
    """Builds the opening of x1 - x2 + Z modulo 2^ring_bits, for shares x1, x2 and the noise Z."""
    return Opening(binomial.noisy_sum(noise, bits=shares.checked_ring(ring_bits)), ring_bits, noise)


def by_table(table: Table, *, ring_bits: int) -> Opening:
    """Builds the paper's opening of x1 - x2 + N_seed, with seeds of both servers: a reproduction, **not private**."""
    return Opening(lookup.noisy_sum(table.values, bits=shares.checked_ring(ring_bits)), ring_bits, table)


def plain(*, ring_bits: int) -> Opening:
    """Builds the opening of x1 - x2 modulo 2^ring_bits: the baseline without noise ("MPC only")."""
    return Opening(reconstruction(bits=shares.checked_ring(ring_bits)), ring_bits, None)


class Garbled(NamedTuple):
    """H1's part of a prepared block; it is opened once.

    Attributes:
      zeros: labels for zero of H1's share, uint8 [ring_bits, n, 16].
      delta: uint8 [16].
      decoding: uint8 [ring_bits, n].
    """

    zeros: np.ndarray
    delta: np.ndarray
    decoding: np.ndarray
    __repr__ = unshown

    @classmethod
    def blank(cls, opening: Opening, count: int) -> Self:
        """Allocates a block whose arrays are yet to be filled."""
        bits = opening.ring_bits
        return cls(*(np.empty(shape, np.uint8) for shape in ((bits, count, BLOCK), (BLOCK,), (bits, count))))

    def parts(self) -> list[np.ndarray]:
        """Lists its arrays, always in the same order."""
        return list(self)


class Received(NamedTuple):
    """H2's part of a prepared block; it is opened once.

    Attributes:
      seed: the seed of the gates' keys, uint8 [16].
      labels: of the mixed bits, uint8 [mixed, n, 16].
      tables: of each gate, uint64 [ANDs, 2, 2, m] for chunks of m coordinates, one after the other.
    """

    seed: np.ndarray
    labels: np.ndarray
    tables: list[np.ndarray]
    __repr__ = unshown

    @classmethod
    def blank(cls, opening: Opening, count: int) -> Self:
        """Allocates a block whose arrays are yet to be filled."""
        seed, labels = np.empty(BLOCK, np.uint8), np.empty((opening.mixed, count, BLOCK), np.uint8)
        sizes = [part.stop - part.start for part in chunks(count)]
        return cls(seed, labels, [np.empty((opening.gates.ands, 2, 2, size), WORD) for size in sizes])

    def parts(self) -> list[np.ndarray]:
        """Lists its arrays, always in the same order."""
        return [self.seed, self.labels, *self.tables]


class Garbler:
    """Garbles as H1. Its constructor and the peer's talk to each other.

    Args:
      channel: to the peer's :class:`Evaluator`.
      depth: of the correlated transfers: 1, 2 or 4, the same as the peer's.
      source: where the secrets come from.
    """

    def __init__(self, channel: Channel, *, depth: int = 1, source: Source = system):
        delta = garbling.fresh_delta(source)
        self._channel, self._depth, self._source, self._delta = channel, depth, source, delta
        self._transfers = correlated_transfers.Sender(channel, delta, depth=depth, source=source)

    def anew(self) -> Self:
        """Makes another with a delta of its own, together with the peer's ``anew``.

        A stored block contains delta, with which H2 can read H1's share in whatever else was garbled with it.
        """
        return type(self)(self._channel, depth=self._depth, source=self._source)

    def prepare(self, opening: Opening, count: int) -> Garbled:
        """Garbles a block of ``count`` coordinates, together with the peer's ``prepare``.

        Raises:
          InputError: the block is empty, or larger than :data:`LARGEST`.
          ChannelError: a message did not arrive.
        """
        checked_count(count)
        labels = self._transfers.extend(opening.mixed * count).reshape(opening.mixed, count, BLOCK)
        own = fair_bits(self._source, labels.shape[:2]) if opening.noise else np.zeros(labels.shape[:2], np.uint8)
        zeros = np.frombuffer(self._source(opening.ring_bits * count * BLOCK), np.uint8)
        zeros = zeros.reshape(opening.ring_bits, count, BLOCK)
        seed = self._source(BLOCK)
        self._channel.send("seed", seed)
        inputs = (
            np.concatenate([zeros[:, part], garbling.choose(labels[:, part], own[:, part], self._delta)])
            for part in chunks(count)
        )
        decoding = []
        for garbled in garbling.garble(opening.gates, inputs, self._delta, GateKeys(seed)):
            self._channel.send("tables", garbled.tables)
            decoding.append(garbled.decoding)
        return Garbled(zeros, self._delta, np.concatenate(decoding, axis=1))

    def open(self, opening: Opening, garbled: Garbled, share: np.ndarray) -> np.ndarray:
        """Opens a block from H1's share, together with the peer's ``open``; returns the values, int64 [n].

        Args:
          opening, garbled: as prepared; ``garbled`` must never be opened again.
          share: int64 [n], in the ring.

        Raises:
          InputError: the share has another length.
          ChannelError: a message did not arrive.
        """
        bits = _of(share, opening.ring_bits, garbled.zeros.shape[1])
        self._channel.send("labels", garbling.choose(garbled.zeros, bits, garbled.delta))
        self._channel.send("decoding", np.packbits(garbled.decoding))
        return receive_values(self._channel, "opened", len(share), opening.ring_bits)


class Evaluator:
    """Evaluates as H2. Arguments: as for :class:`Garbler`."""

    def __init__(self, channel: Channel, *, depth: int = 1, source: Source = system):
        self._channel, self._depth, self._source = channel, depth, source
        self._transfers = correlated_transfers.Receiver(channel, depth=depth, source=source)

    def anew(self) -> Self:
        """Makes another that the peer's ``anew`` belongs to."""
        return type(self)(self._channel, depth=self._depth, source=self._source)

    def prepare(self, opening: Opening, count: int, share: np.ndarray | None = None) -> Received:
        """Receives a garbled block of ``count`` coordinates; without noise, for H2's ``share`` of them.

        Errors: as for the peer's.
        """
        shape = opening.mixed, checked_count(count)
        if opening.noise:
            own = fair_bits(self._source, shape)
        elif share is None:
            raise _validate.expected("share", "H2's share, whose bits are chosen before garbling", "none")
        else:
            own = _of(share, opening.ring_bits, count)
        labels = self._transfers.extend(own.reshape(-1).astype(bool)).reshape(*shape, BLOCK)
        seed = self._channel.receive("seed", BLOCK)
        tables = []
        for part in chunks(count):
            size = opening.gates.ands, 2, 2, part.stop - part.start
            tables.append(self._channel.receive("tables", 8 * int(np.prod(size))).view(np.uint64).reshape(size))
        return Received(seed, labels, tables)

    def open(self, opening: Opening, received: Received, share: np.ndarray) -> np.ndarray:
        """Opens a block from H2's share; returns the peer's values. Arguments and errors: as for the peer's."""
        bits, count = opening.ring_bits, received.labels.shape[1]
        checked_share(share, count, bits)
        own = share + opening.noise.offset if opening.noise else np.zeros(count, np.int64)
        labels = self._channel.receive("labels", bits * count * BLOCK).reshape(bits, count, BLOCK)
        packed = self._channel.receive("decoding", -(-bits * count // 8))
        decoding = np.unpackbits(packed, count=bits * count).reshape(bits, count)
        inputs = (np.concatenate([labels[:, part], received.labels[:, part]]) for part in chunks(count))
        keys = GateKeys(received.seed.tobytes())
        found = list(garbling.evaluate(opening.gates, inputs, received.tables, keys))
        read = np.concatenate(found, axis=1) ^ decoding
        values = (1 << np.arange(bits)) @ read.astype(np.int64)
        opened = shares.smod(values - own, 1 << (bits - 1))
        self._channel.send("opened", opened.astype(KEPT))
        return opened


def chunks(count: int) -> Iterator[slice]:
    """Cuts the coordinates of a block into chunks of at most :data:`garbling.CHUNK`."""
    for start in range(0, count, garbling.CHUNK):
        yield slice(start, min(start + garbling.CHUNK, count))


def fair_bits(source: Source, shape: tuple[int, ...]) -> np.ndarray:
    """Draws fair bits, uint8 of 0 and 1."""
    count = int(np.prod(shape))
    return np.unpackbits(np.frombuffer(source(-(-count // 8)), np.uint8), count=count).reshape(shape)


def _of(share: np.ndarray, bits: int, count: int) -> np.ndarray:
    """Splits a share into bits, lowest first: uint8 [bits, n]."""
    return (checked_share(share, count, bits) >> np.arange(bits)[:, None] & 1).astype(np.uint8)


def checked_count(count: int) -> int:
    """Returns a count of coordinates if a block can have that size; InputError otherwise."""
    if _validate.at_least(1, count=count) > LARGEST:
        raise _validate.expected("count", f"at most {LARGEST} coordinates a block", count)
    return count
