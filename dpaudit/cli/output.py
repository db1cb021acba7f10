"""Keeps standard output for a command's results, and sends whatever else is printed to standard error."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from contextvars import ContextVar
from typing import Any, NamedTuple

STDOUT, STDERR = 1, 2  # of the process


class _Kept(NamedTuple):
    stream: Any
    file: int | None  # a duplicate of STDOUT; None for the standard output of a notebook or a test, which is no file


_kept: ContextVar[_Kept | None] = ContextVar("_kept", default=None)


@contextmanager
def kept_for_results() -> Iterator[None]:
    """Sends to standard error what audited files, their libraries and the processes that they start print, so that the
    results, printed within :func:`results`, can be parsed."""
    ours = (_number(sys.stdout), _number(sys.stderr)) == (STDOUT, STDERR)
    kept = _Kept(sys.stdout, os.dup(STDOUT) if ours else None)
    token = _kept.set(kept)
    try:
        _turn(kept, STDERR)
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _kept.reset(token)
        if kept.file is not None:
            _turn(kept, kept.file)
            os.close(kept.file)


@contextmanager
def results() -> Iterator[None]:
    """Prints to the standard output that was kept."""
    kept = _kept.get()
    if kept is None:
        yield
        return
    _turn(kept, kept.file)
    try:
        with redirect_stdout(kept.stream):
            yield
    finally:
        if kept.file is not None:
            os.dup2(STDOUT, kept.file, inheritable=False)  # which is nothing where nobody reads it any more
        _turn(kept, STDERR)


def _turn(kept: _Kept, file: int | None) -> None:
    """Makes standard output, as C and other processes know it, lead to this file."""
    if kept.file is not None and file is not None:
        for stream in (kept.stream, sys.stdout):
            with suppress(OSError, ValueError):
                stream.flush()
        os.dup2(file, STDOUT)


def _number(stream: Any) -> int | None:
    try:
        return stream.fileno()
    except (AttributeError, OSError, ValueError):
        return None
