"""Printing a result: no encoding, closed stream or reader that has left costs it, or the status that tells it."""

import io
import os
import sys

import pytest
from rich.table import Table

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
