"""Two parties in one process: a wire made of memory, and the two played against each other in threads.

For tests and for sweeps over many settings; the parties are the very functions that talk between processes.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from dpaudit.secure.protocol.channel import Channel, Wire

# Bytes on their way from one thread to another, with a bound on how many: one direction of a wire.

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


First = TypeVar("First")
Second = TypeVar("Second")

_HELD_BYTES = 1 << 26  # a writer this far ahead of its reader waits


class _MemoryWire:
    def __init__(self, incoming: Pipe, outgoing: Pipe) -> None:
        self._incoming, self._outgoing = incoming, outgoing

    def write(self, header: bytes, payload: memoryview, seconds: float) -> None:
        self._outgoing.write([header, memoryview(bytes(payload))], seconds)

    def read_into(self, out: memoryview, seconds: float) -> None:
        self._incoming.read_into(out, seconds)

    def close(self) -> None:
        self._incoming.close()
        self._outgoing.close()


def wires() -> tuple[Wire, Wire]:
    """Both ends of a wire in memory; a writer 64 MiB ahead of its reader waits for it."""
    there, back = Pipe(_HELD_BYTES), Pipe(_HELD_BYTES)
    return _MemoryWire(back, there), _MemoryWire(there, back)


def channels(seconds: float = 60.0) -> tuple[Channel, Channel]:
    """Both ends of a channel in memory; ``seconds`` is the deadline of each."""
    one, other = wires()
    return Channel(one, seconds), Channel(other, seconds)


def together(
    ends: tuple[Channel, Channel], first: Callable[[Channel], First], second: Callable[[Channel], Second]
) -> tuple[First, Second]:
    """Both parties' results, played against each other: the first in this thread, the second in one of its own.

    Args:
      ends: one channel each, closed as soon as its party is done.
      first, second: the parties.

    Raises:
      Whatever the party that failed first raised; the other one sees its peer close.
    """
    results: dict[int, Any] = {}
    failures: list[BaseException] = []

    def play(side: int, party: Callable[[Channel], Any]) -> None:
        try:
            results[side] = party(ends[side])
        except BaseException as failure:
            failures.append(failure)
        finally:
            ends[side].close()

    thread = threading.Thread(target=play, args=(1, second), daemon=True)
    thread.start()
    play(0, first)
    thread.join()
    if failures:
        raise failures[0]
    return results[0], results[1]
