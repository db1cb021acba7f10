"""Printing a result: no encoding, closed stream or reader that has left costs it, or the status that tells it."""

import io
import os
import sys
from contextlib import suppress
from typing import NoReturn

import pytest
from rich.table import Table

from dpaudit import InputError
from dpaudit._engine import hosts
from dpaudit.cli import command

ROW = {"epsilon": 1.5}


def table() -> Table:
    found = Table()
    found.add_row("ε = 1.5")
    return found


def status(as_json: bool) -> int:
    """That of a command which prints its result and found a violation."""
    with pytest.raises(SystemExit) as ended:
        command.perform("dpaudit", lambda: command.show(ROW, table(), as_json) or 1, measures=False, judges=True)
    return int(ended.value.code or 0)


def test_an_encoding_without_epsilon_shows_its_number(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "ascii"))
    assert status(False) == 1
    assert rb"\u03b5 = 1.5" in written.getvalue()


@pytest.mark.parametrize("as_json", [False, True])
def test_closed_streams_and_readers_that_have_left_do_not_change_the_status(monkeypatch, as_json):
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as unread:
        monkeypatch.setattr(sys, "stdout", unread)
        assert status(as_json) == 1
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    assert status(as_json) == 1
    for opened in (sys.stdout, sys.stderr):
        opened.close()


@pytest.mark.parametrize("error", [InputError("x: expected y, got z"), KeyError("x"), KeyboardInterrupt()])
def test_a_failure_that_nobody_reads_of_has_its_status(monkeypatch, error):
    """Python's own for a line that cannot be printed, 1, would mean a violation."""

    def fails() -> int:
        raise error

    def leaves(status: int) -> NoReturn:
        raise SystemExit(status)

    monkeypatch.setattr(os, "_exit", leaves)
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w", buffering=1) as unread:
        monkeypatch.setattr(sys, "stderr", unread)
        with pytest.raises(SystemExit) as ended:
            command.perform("dpaudit", fails, measures=False, judges=True)
    assert ended.value.code == (130 if isinstance(error, KeyboardInterrupt) else 2)


def test_an_interruption_whose_output_nobody_reads_has_its_status(monkeypatch):
    def leaves(status: int) -> NoReturn:
        raise SystemExit(status)

    monkeypatch.setattr(os, "_exit", leaves)
    reading, writing = os.pipe()
    os.close(reading)
    unread = open(writing, "w")  # noqa: SIM115 - it cannot be closed as usual
    monkeypatch.setattr(sys, "stdout", unread)
    print("half a result")
    with pytest.raises(SystemExit, match="130"):
        hosts.leave(130)
    with suppress(BrokenPipeError):
        unread.close()
