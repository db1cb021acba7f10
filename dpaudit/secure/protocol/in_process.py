"""Runs two parties in one process, in two threads that are connected by a wire in memory.

It is meant for tests and for sweeps over many settings; the parties are the same functions that run between processes.
"""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from dpaudit.secure.channel import Channel, Pipe, Wire

First = TypeVar("First")
Second = TypeVar("Second")

_HELD_BYTES = 1 << 26  # a writer waits while this many bytes are unread


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
    """Makes both ends of a wire in memory; a writer that is 64 MiB ahead waits for its reader."""
    there, back = Pipe(_HELD_BYTES), Pipe(_HELD_BYTES)
    return _MemoryWire(back, there), _MemoryWire(there, back)


def channels(seconds: float = 60.0) -> tuple[Channel, Channel]:
    """Makes both ends of a channel in memory; ``seconds`` is the deadline of each."""
    one, other = wires()
    return Channel(one, seconds), Channel(other, seconds)


def together(
    ends: tuple[Channel, Channel], first: Callable[[Channel], First], second: Callable[[Channel], Second]
) -> tuple[First, Second]:
    """Runs two parties, the first in this thread and the second in a new one, and returns both results.

    Args:
      ends: a channel for each party, closed as soon as the party is done.
      first, second: the parties.

    Raises:
      Whatever the party that failed first raised; the other one sees its peer close the channel.
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
