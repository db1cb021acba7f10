"""Bytes on their way from one thread to another, with a bound on how many: one direction of a wire."""

import threading
import time
from collections import deque

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
