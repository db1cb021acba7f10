"""What the protocol speaks through: messages whose kind, number and length are known before a byte of them is kept.

A message is a header of 32 bytes (its kind, its number in this direction, the length of its payload) and the payload.
The receiver says which kind and length it waits for; a header that differs ends the channel before memory is taken for
the payload. A peer that keeps to the protocol never causes that: it is there for faults, and for programs that do not
fit together. A channel neither encrypts nor authenticates: that is its wire's task.
"""

import struct
import threading
import time
from collections import deque
from typing import NamedTuple, NoReturn, Protocol

import numpy as np

from dpaudit import _validate

Payload = bytes | bytearray | memoryview | np.ndarray

HEADER = struct.Struct("<16sQQ")  # kind, sequence number, length of the payload
_KIND_BYTES = 16


class ChannelError(RuntimeError):
    """A message did not come through as it should; the step that it belonged to has failed, on this side for good."""


class Wire(Protocol):
    """Carries bytes to one peer and back, in order: what a transport offers to a :class:`Channel`.

    Both transfers return within ``seconds`` or raise ``TimeoutError``, and raise ``ConnectionError``, with a reason if
    there is one, once either side has closed; what the peer wrote before it closed can still be read. One thread may
    write while another reads.
    """

    def write(self, header: bytes, payload: memoryview, seconds: float) -> None:
        """Sends both, one after the other; the payload's memory is the caller's again when this returns."""
        ...

    def read_into(self, out: memoryview, seconds: float) -> None:
        """Fills ``out`` with the next bytes."""
        ...

    def close(self) -> None:
        """Ends both directions, also for a thread that waits in one of them; may be called again."""
        ...


class Traffic(NamedTuple):
    """What went over a channel: messages, and bytes of payload (each message's header comes on top)."""

    messages: int = 0
    payload_bytes: int = 0

    def plus(self, payload_bytes: int) -> "Traffic":
        """With one more message."""
        return Traffic(self.messages + 1, self.payload_bytes + payload_bytes)


class Channel:
    """One party's end: numbered messages to and from one peer, all within a deadline.

    After any fault the channel is closed: the peer notices, and whatever is tried next fails with the first reason.

    Args:
      wire: the transport; its bytes are this channel's alone.
      seconds: the time for all messages, until :meth:`deadline` allows for more.

    Attributes:
      sent, received: :class:`Traffic` by kind.
    """

    def __init__(self, wire: Wire, seconds: float = 60.0):
        self.sent: dict[str, Traffic] = {}
        self.received: dict[str, Traffic] = {}
        self._wire = wire
        self._closed = ""  # why nothing more goes through
        self._next_sent = 0
        self._next_received = 0
        self.deadline(seconds)

    def deadline(self, seconds: float) -> None:
        """Whatever follows, all of it together, must be through within ``seconds`` from now."""
        self._until = time.monotonic() + _validate.positive(seconds=seconds)

    def send(self, kind: str, payload: Payload) -> None:
        """Sends one message.

        Args:
          kind: 1 to 16 ASCII characters.
          payload: C-contiguous bytes; the caller may overwrite them afterwards.

        Raises:
          InputError: a kind that has no place in the header.
          ChannelError: closed, or not through by the deadline.
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
        """The payload of the next message, which must be of this kind and this length.

        Args:
          kind: as the peer sends it.
          length: bytes.

        Returns:
          uint8 [length], the caller's own.

        Raises:
          InputError: a kind that has no place in the header.
          ChannelError: another kind, number or length; closed, or not through by the deadline.
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
        """Ends the channel because of what a message said.

        Raises:
          ChannelError: with this reason, always.
        """
        self._closed = self._closed or f"the channel failed earlier ({reason})"
        self._wire.close()
        raise ChannelError(reason)

    def close(self) -> None:
        """Ends the channel on both sides; what was sent before can still be received."""
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


def _encoded(kind: str) -> bytes:
    name = kind.encode("ascii", "replace")
    if not 0 < len(name) <= _KIND_BYTES or not kind.isascii():
        raise _validate.expected("kind", f"1 to {_KIND_BYTES} ASCII characters", kind)
    return name


Part = bytes | memoryview


class Pipe:
    """One direction. What was written before :meth:`close` can still be read.

    Args:
      held_bytes: a writer whose bytes the reader is this far behind with waits; at most one write more is held.
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
        """Whether nothing more can be written."""
        return self._closed

    def write(self, parts: list[Part], seconds: float) -> None:
        """Puts parts, whose memory nobody changes any more, at the end; TimeoutError, ConnectionError once closed."""
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
        """The next part as it was written, or its first ``most`` bytes; for no seconds waits as long as it takes."""
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
        """Ends the direction, also for threads that wait in it; may be called again. The first reason is told."""
        with self._changed:
            self._reason = self._reason if self._closed else reason
            self._closed = True
            self._changed.notify_all()
