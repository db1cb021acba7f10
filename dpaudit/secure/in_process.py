"""Two parties in one process: a wire made of memory, and the two played against each other in threads.

For tests and for sweeps over many settings; the parties are the very functions that talk between processes.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from dpaudit.secure.channel import Channel, Wire

First = TypeVar("First")
Second = TypeVar("Second")

_HELD_BYTES = 1 << 26  # a writer this far ahead of its reader waits


class _Pipe:
    """One direction. Holds at most a message more than ``_HELD_BYTES``."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._parts: deque[memoryview] = deque()
        self._held = 0
        self._closed = False

    def write(self, parts: tuple[bytes, bytes], seconds: float) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._closed or self._held < _HELD_BYTES, seconds):
                raise TimeoutError
            if self._closed:
                raise ConnectionError
            self._parts.extend(memoryview(part) for part in parts if part)
            self._held += sum(map(len, parts))
            self._changed.notify_all()

    def read_into(self, out: memoryview, seconds: float) -> None:
        until = time.monotonic() + seconds
        with self._changed:
            while out:
                if not self._changed.wait_for(lambda: self._closed or self._parts, until - time.monotonic()):
                    raise TimeoutError
                if not self._parts:
                    raise ConnectionError
                part = self._parts.popleft()
                taken = min(len(part), len(out))
                out[:taken] = part[:taken]
                if taken < len(part):
                    self._parts.appendleft(part[taken:])
                out = out[taken:]
                self._held -= taken
                self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class _MemoryWire:
    def __init__(self, incoming: _Pipe, outgoing: _Pipe) -> None:
        self._incoming, self._outgoing = incoming, outgoing

    def write(self, header: bytes, payload: memoryview, seconds: float) -> None:
        self._outgoing.write((header, bytes(payload)), seconds)

    def read_into(self, out: memoryview, seconds: float) -> None:
        self._incoming.read_into(out, seconds)

    def close(self) -> None:
        self._incoming.close()
        self._outgoing.close()


def wires() -> tuple[Wire, Wire]:
    """Both ends of a wire in memory; a writer 64 MiB ahead of its reader waits for it."""
    there, back = _Pipe(), _Pipe()
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
