"""SIGTERM, by which a scheduler takes a machine back, as an interruption: what is finished is saved, status 143."""

import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from dpaudit import hosts

INTERRUPTED, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM  # statuses, as shells count
SECONDS = 20  # for what is under way; of several processes, one may wait in vain for another's part
SECONDS_OF_SEVERAL = 5


class Terminated(KeyboardInterrupt):
    """Raised in the main thread by SIGTERM."""


def status(interruption: KeyboardInterrupt) -> int:
    """With which an interrupted process ends."""
    return TERMINATED if isinstance(interruption, Terminated) else INTERRUPTED


@contextmanager
def sigterm_interrupts(last_words: Callable[[], str]) -> Iterator[None]:
    """SIGTERM raises :class:`Terminated` in the main thread, once.

    A main thread that computes hears of no signal until the device answers: for a long compilation, or for ever where
    another process was interrupted before it had sent its part. A second thread waits for so long as a scheduler does
    and then ends the process, with the same status. Files are written as a whole or not at all, so nothing is torn.

    Args:
      last_words: the line to print in that case.
    """

    def interrupt(*_: Any) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    def watch() -> None:
        while number := reading.recv(1):
            if number[0] == signal.SIGTERM:
                break
        else:
            return
        reading.settimeout(SECONDS_OF_SEVERAL if hosts.several() else SECONDS)
        try:
            while reading.recv(1):
                pass  # other signals
        except TimeoutError:
            leaving.set()
            if hosts.first():
                print(last_words(), file=sys.stderr, flush=True)
            hosts.leave(TERMINATED)

    leaving = threading.Event()
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    wakeup = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    handler = signal.signal(signal.SIGTERM, interrupt)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    except Exception:
        if signal.getsignal(signal.SIGTERM) is signal.SIG_IGN:  # raised in a callback, and told by JAX in its own way
            raise Terminated from None
        raise
    finally:
        if leaving.is_set():
            watcher.join()  # it ends the process
        signal.signal(signal.SIGTERM, handler or signal.SIG_DFL)
        signal.set_wakeup_fd(wakeup)
        writing.close()
