"""Records every message that crosses the wire between two parties."""

import hashlib
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np

from dpaudit.secure.channel import HEADER, Channel, Wire
from dpaudit.secure.protocol import in_process

First = TypeVar("First")
Second = TypeVar("Second")


class Message(NamedTuple):
    """A message as it was sent."""

    kind: str
    header: bytes
    payload: bytes


class Transcript(NamedTuple):
    """What each party sent, in order; threads mix the two directions."""

    first: list[Message]
    second: list[Message]

    def lengths(self) -> list[tuple[str, int]]:
        """Lists kind and length of payload of each message, the first party's before the second's."""
        return [(message.kind, len(message.payload)) for message in self.first + self.second]

    def hash(self) -> str:
        """Hashes everything that crossed the wire, headers included."""
        sides = [b"".join(message.header + message.payload for message in side) for side in self]
        return hashlib.sha256(b"".join(len(side).to_bytes(8, "big") + side for side in sides)).hexdigest()

    def leaks(self, delta: np.ndarray, known: np.ndarray) -> bool:
        """Tells whether delta, or its XOR with a ``known`` label [n, 16] or any part of the transcript, was sent."""
        spoken = [message.payload for message in self.first + self.second]
        said_blocks = {payload[i : i + 16] for payload in spoken for i in range(len(payload) - 15)}
        number = int.from_bytes(delta.tobytes(), "big")
        seen = said_blocks | {label.tobytes() for label in known} | {bytes(16)}
        return any((int.from_bytes(block, "big") ^ number).to_bytes(16, "big") in seen for block in said_blocks)


def record(first: Callable[[Channel], First], second: Callable[[Channel], Second]) -> tuple[First, Second, Transcript]:
    """Runs both parties; returns their results and what they said."""
    said = Transcript([], [])
    wires = [Recorder(wire, heard) for wire, heard in zip(in_process.wires(), said, strict=True)]
    results = in_process.together((Channel(wires[0]), Channel(wires[1])), first, second)
    return *results, said


class Recorder:
    """A wire that records what is written to it."""

    def __init__(self, wire: Wire, written: list[Message]) -> None:
        self._wire, self._written = wire, written
        self.read_into, self.close = wire.read_into, wire.close

    def write(self, header: bytes, payload: memoryview, seconds: float) -> None:
        kind = HEADER.unpack(header)[0].rstrip(b"\0").decode("ascii")
        self._written.append(Message(kind, header, bytes(payload)))
        self._wire.write(header, payload, seconds)
