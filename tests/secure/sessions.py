"""Runs two servers that open blocks of shares, and records everything that they drew and said."""

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from dpaudit.secure.channel import Channel
from dpaudit.secure.crypto.randomness import Source, Stream
from dpaudit.secure.protocol.two_server_sum import Evaluator, Garbled, Garbler, Opening, Received
from tests.secure.transcript import Transcript, record

FIRST, SECOND = b"the first server", b"the other server"

Prepared = TypeVar("Prepared")


class Recorded:
    """A source that records what it gave."""

    def __init__(self, source: Source) -> None:
        self._source, self.drawn = source, []

    def __call__(self, count: int) -> bytes:
        self.drawn.append(self._source(count))
        return self.drawn[-1]


class Side(NamedTuple, Generic[Prepared]):
    """One server and one block; ``drawn`` is what its ``prepare`` took from its source, call by call."""

    prepared: Prepared
    opened: np.ndarray
    drawn: list[bytes]

    def bits(self, opening: Opening) -> np.ndarray:
        """Returns a server's part of the noise's bits, uint8 [mixed, n]."""
        shape = opening.mixed, len(self.opened)
        return np.unpackbits(np.frombuffer(self.drawn[0], np.uint8), count=int(np.prod(shape))).reshape(shape)


class Session(NamedTuple):
    """What both servers did, block by block, and what they said."""

    delta: np.ndarray
    first: list[Side[Garbled]]
    second: list[Side[Received]]
    said: Transcript

    def payloads(self, kind: str) -> list[bytes]:
        """Returns the payloads of all messages of a kind."""
        return [message.payload for message in self.said.first + self.said.second if message.kind == kind]

    def zeros(self, opening: Opening, block: int) -> np.ndarray:
        """Returns the mixed bits' labels of the transfers for a choice of zero, [mixed, n, 16]."""
        side = self.second[block]
        return side.prepared.labels ^ side.bits(opening)[..., None] * self.delta


def play(
    opening: Opening,
    blocks: Sequence[tuple[np.ndarray, np.ndarray]],
    *,
    depth: int = 1,
    sources: tuple[Source, Source] | None = None,
    meant: Opening | None = None,
) -> Session:
    """Opens blocks of (first, second) shares one after the other; ``meant`` is the opening that H2 assumes."""
    sources = sources or (Stream(FIRST).draw, Stream(SECOND).draw)
    one, two = (Recorded(source) for source in sources)

    def first(channel: Channel) -> list[Side[Garbled]]:
        server, sides = Garbler(channel, depth=depth, source=one), []
        for share, _ in blocks:
            start = len(one.drawn)
            prepared = server.prepare(opening, len(share))
            sides.append(Side(prepared, server.open(opening, prepared, share), one.drawn[start:]))
        return sides

    def second(channel: Channel) -> list[Side[Received]]:
        understood = meant or opening
        server, sides = Evaluator(channel, depth=depth, source=two), []
        for _, share in blocks:
            start = len(two.drawn)
            prepared = server.prepare(understood, len(share), share)
            sides.append(Side(prepared, server.open(understood, prepared, share), two.drawn[start:]))
        return sides

    firsts, seconds, said = record(first, second)
    return Session(firsts[0].prepared.delta, firsts, seconds, said)


def shares(seed: int, count: int, ring_bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws two vectors that are uniform in the ring, with both of its ends among their values."""
    half = 1 << (ring_bits - 1)
    drawn = np.random.default_rng(seed).integers(-half, half, (2, count))
    drawn[0, 0], drawn[1, -1] = -half, half - 1
    return drawn[0], drawn[1]


def given(source: Source, size: int, content: bytes) -> Source:
    """Makes a source that has one answer for ``size`` bytes, and its own for any other number."""
    return lambda count: content if count == size else source(count)
