"""Exchanges numbered messages between two parties, each of a kind and length that the receiver states in advance.

A message is a header of 32 bytes (its kind, its number in this direction, the length of its payload) and the payload.
The receiver states which kind and length it waits for; a different header ends the channel before memory is allocated
for the payload. A peer that follows the protocol never causes that: the check is for faults and for incompatible
programs. A channel neither encrypts nor authenticates; its wire does.
"""

import struct
import threading
import time
from collections import deque
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np

from dpaudit import _validate

Payload = bytes | bytearray | memoryview | np.ndarray

LONGEST = threading.TIMEOUT_MAX / 2  # seconds, so that the system can also wait for two limits together
HEADER = struct.Struct("<16sQQ")  # kind, sequence number, length of the payload
_KIND_BYTES = 16


class ChannelError(RuntimeError):
    """A message did not arrive as it should; on this side its step has failed and cannot be resumed."""


class Wire(Protocol):
    """Carries bytes to one peer and back, in order; the interface of a transport.

    Both transfers return within ``seconds`` or raise ``TimeoutError``. They raise ``ConnectionError``, with a reason
    if there is one, once either side has closed; what the peer wrote before it closed can still be read. One thread
    may write while another reads.
    """

    def write(self, header: bytes, payload: memoryview, seconds: float) -> None:
        """Sends the header, then the payload, whose memory the caller may reuse when this returns."""
        ...

    def read_into(self, out: memoryview, seconds: float) -> None:
        """Fills ``out`` with the next bytes."""
        ...

    def close(self) -> None:
        """Ends both directions, waking threads that wait in them; may be called again."""
        ...


class Traffic(NamedTuple):
    """Counts of messages and of their payload bytes (headers not included)."""

    messages: int = 0
    payload_bytes: int = 0

    def plus(self, payload_bytes: int) -> "Traffic":
        """Adds one message."""
        return Traffic(self.messages + 1, self.payload_bytes + payload_bytes)


class Channel:
    """Sends and receives numbered messages to and from one peer, all within a deadline.

    After any fault the channel is closed: the peer notices, and every later call fails with the first reason.

    Args:
      wire: the transport, used by this channel only.
      seconds: the time for all messages, until :meth:`deadline` sets a new one.

    Attributes:
      sent, received: :class:`Traffic` by kind.
    """

    def __init__(self, wire: Wire, seconds: float = 60.0):
        self.sent: dict[str, Traffic] = {}
        self.received: dict[str, Traffic] = {}
        self._wire = wire
        self._closed = ""  # why nothing more can be sent or received
        self._next_sent = 0
        self._next_received = 0
        self.deadline(seconds)

    def deadline(self, seconds: float) -> None:
        """Sets the deadline of everything that follows, all together, to ``seconds`` from now."""
        self._until = time.monotonic() + _validate.positive(seconds=seconds)

    def send(self, kind: str, payload: Payload) -> None:
        """Sends one message.

        Args:
          kind: 1 to 16 ASCII characters.
          payload: C-contiguous bytes, which the caller may overwrite afterwards.

        Raises:
          InputError: the kind does not fit into the header.
          ChannelError: the channel is closed, or the deadline has passed.
        """
        data = payload.data if isinstance(payload, np.ndarray) else memoryview(payload)
        data = data.cast("B") if data.nbytes else memoryview(b"")  # an empty view of several axes cannot be cast
        name = _encoded(kind)
        doing = f"sending {kind!r}, message {self._next_sent}"
        try:
            self._wire.write(HEADER.pack(name, self._next_sent, len(data)), data, self._left(doing))
        except OSError as fault:
            self._fail(doing, fault)
        self._next_sent += 1
        self.sent[kind] = self.sent.get(kind, Traffic()).plus(len(data))

    def receive(self, kind: str, length: int) -> np.ndarray:
        """Receives the payload of the next message, which must be of this kind and length.

        Args:
          kind: as the peer sends it.
          length: bytes.

        Returns:
          uint8 [length], not shared.

        Raises:
          InputError: the kind does not fit into the header.
          ChannelError: the message has another kind, number or length; the channel is closed, or the deadline has
            passed.
        """
        name = _encoded(kind)
        doing = f"receiving {kind!r}, message {self._next_received}"
        header = bytearray(HEADER.size)
        self._read(memoryview(header), doing)
        came_name, came_number, came_length = HEADER.unpack(header)
        if came_name != name.ljust(_KIND_BYTES, b"\0"):
            came_kind = came_name.partition(b"\0")[0].decode("ascii", "replace")
            self.refuse(f"{doing}: a message of kind {came_kind!r} came")
        if came_number != self._next_received:
            self.refuse(f"{doing}: message {came_number} came")
        if came_length != length:
            self.refuse(f"{doing}: expected {length} bytes, {came_length} were announced")
        payload = np.empty(length, np.uint8)
        self._read(payload.data, doing)
        self._next_received += 1
        self.received[kind] = self.received.get(kind, Traffic()).plus(length)
        return payload

    def refuse(self, reason: str) -> NoReturn:
        """Closes the channel because of the content of a message.

        Raises:
          ChannelError: with this reason, always.
        """
        self._closed = self._closed or f"the channel failed earlier ({reason})"
        self._wire.close()
        raise ChannelError(reason)

    def close(self) -> None:
        """Closes the channel on both sides; what was sent before can still be received."""
        self._closed = self._closed or "this side has closed the channel"
        self._wire.close()

    def _read(self, out: memoryview, doing: str) -> None:
        try:
            self._wire.read_into(out, self._left(doing))
        except OSError as fault:
            self._fail(doing, fault)

    def _left(self, doing: str) -> float:
        if self._closed:
            raise ChannelError(f"{doing}: {self._closed}")
        left = self._until - time.monotonic()
        if left <= 0:
            self._fail(doing, TimeoutError())
        return left

    def _fail(self, doing: str, fault: OSError) -> NoReturn:
        late = isinstance(fault, TimeoutError)
        told = f" ({fault})" if str(fault) else ""
        self.refuse(f"{doing}: {'the deadline has passed' if late else 'the peer has closed the channel'}{told}")


def checked_seconds(**named: Any) -> float:
    """Returns a time limit: a number of seconds > 0 that the system can wait; InputError for another."""
    ((name, value),) = named.items()
    if _validate.positive(**named) > LONGEST:
        raise _validate.expected(name, f"at most {LONGEST:.0f} seconds", value)
    return value


def _encoded(kind: str) -> bytes:
    name = kind.encode("ascii", "replace")
    if not 0 < len(name) <= _KIND_BYTES or not kind.isascii():
        raise _validate.expected("kind", f"1 to {_KIND_BYTES} ASCII characters", kind)
    return name


Part = bytes | memoryview


class Pipe:
    """A bounded queue of bytes from one thread to another. What was written before :meth:`close` can still be read.

    Args:
      held_bytes: a writer waits while this many bytes are unread; at most one more write is held.
    """

    def __init__(self, held_bytes: int) -> None:
        self._held_bytes = held_bytes
        self._changed = threading.Condition()
        self._parts: deque[Part] = deque()
        self._held = 0
        self._closed = False
        self._reason = ""

    @property
    def closed(self) -> bool:
        """Whether the pipe is closed for writing."""
        return self._closed

    def write(self, parts: list[Part], seconds: float) -> None:
        """Appends parts, which nobody may change afterwards; TimeoutError, ConnectionError once closed."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._closed or self._held < self._held_bytes, seconds):
                raise TimeoutError
            if self._closed:
                raise ConnectionError(self._reason)
            self._parts.extend(part for part in parts if part)
            self._held += sum(map(len, parts))
            self._changed.notify_all()

    def read_into(self, out: memoryview, seconds: float) -> None:
        """Fills ``out`` with the next bytes; TimeoutError, ConnectionError once closed and empty."""
        until = time.monotonic() + seconds
        while out:
            part = self.take(until - time.monotonic(), len(out))
            out[: len(part)] = part
            out = out[len(part) :]

    def take(self, seconds: float | None, most: int | None = None) -> Part:
        """Takes the next part as it was written, or its first ``most`` bytes; no limit of time if seconds is None."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._closed or self._parts, seconds):
                raise TimeoutError
            if not self._parts:
                raise ConnectionError(self._reason)
            part = self._parts.popleft()
            if most is not None and len(part) > most:
                self._parts.appendleft(part[most:])
                part = part[:most]
            self._held -= len(part)
            self._changed.notify_all()
            return part

    def close(self, reason: str = "") -> None:
        """Closes the pipe and wakes waiting threads; may be called again. Errors name the first reason."""
        with self._changed:
            self._reason = self._reason if self._closed else reason
            self._closed = True
            self._changed.notify_all()
