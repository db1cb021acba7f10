"""Tests that a signal ends a server at any moment of its main thread."""

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from dpaudit.cli.secure import _stops_at_signals

SIGNALS = signal.SIGINT, signal.SIGTERM


@pytest.fixture
def handlers() -> Iterator[None]:
    """Puts the handlers of before back."""
    before = [signal.getsignal(number) for number in SIGNALS]
    yield
    for number, handler in zip(SIGNALS, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_that_comes_while_the_main_thread_holds_a_lock_is_not_lost(number: signal.Signals) -> None:
    """As within ``Event.wait``, whose lock ``Event.set`` needs: a handler that takes it itself never returns."""
    lock, got, ended = threading.Lock(), [], threading.Event()

    def stop() -> None:
        got.append(lock.acquire(timeout=1.0))
        ended.set()

    _stops_at_signals(stop)
    with lock:
        os.kill(os.getpid(), number)
    assert ended.wait(30.0)
    assert got == [True]
