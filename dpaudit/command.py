"""What the commands that measure have in common: options, checkpoints, failures in one line, rows, statuses."""

import dataclasses
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from dpaudit import check, hosts, preemption
from dpaudit.auditing.probe import one_line
from dpaudit.compilation_cache import keep_compiled
from dpaudit.preemption import sigterm_interrupts
from dpaudit.report.rows import prepare_out, write_rows

STATUS = {"consistent": 0, "measured": 0, "violation": 1, "fault": 1, "underpowered": 3}  # 2 is unusable input


@dataclasses.dataclass(frozen=True)
class Common:
    """Options of every command that measures."""

    seed: int = 0
    """All randomness follows from it."""
    out: str | None = None
    """Directory for results.json and report.html; without it, nothing is written."""
    force: bool = False
    """Write into a directory that is not empty."""
    json: bool = False
    """Print the rows as JSON, in a list, instead of a table."""


def perform(
    program: str, run: Callable[[], int | None], to_go_on: Callable[[], str] = str, *, measures: bool = True
) -> None:
    """Runs a command to its end, or to one line that says why not. An interrupted process ends here, with status 130,
    or 143 by SIGTERM.

    Args:
      program: its name, with which the line begins.
      run: returns the status.
      to_go_on: what an interruption says of how the work is taken up again.
      measures: it takes a while, on all devices of all processes that were started together: programs are kept for
        the next start, and SIGTERM is an interruption.

    Raises:
      SystemExit: a status other than 0: that of ``run``, or 2 for unusable input.
    """
    try:
        if measures:
            with _warned_in_one_line(program), sigterm_interrupts(lambda: f"{program}: interrupted{to_go_on()}"):
                hosts.join()
                keep_compiled()
                status = run()
        else:
            with _warned_in_one_line(program):
                status = run()
    except check.InputError as error:
        _say(f"{program}: {error}")
        if hosts.several():
            hosts.leave(2)
        status = 2
    except KeyboardInterrupt as interruption:
        _say(f"{program}: interrupted{interruption}{to_go_on()}")
        hosts.leave(preemption.status(interruption))
    if status:
        sys.exit(status)


@contextmanager
def _warned_in_one_line(program: str) -> Iterator[None]:
    """Says what the package warns of as it says what it refuses, without a place in the code."""
    with warnings.catch_warnings():
        shown = warnings.showwarning

        def show(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, check.InputWarning):
                _say(f"{program}: {message}")
            else:
                shown(message, category, *where, **more)

        warnings.showwarning = show
        yield


def _say(line: str) -> None:
    if hosts.first():
        print(line, file=sys.stderr)


def to_go_on(options: Any) -> str:
    """How an interrupted command is taken up again, if it can be."""
    kept = getattr(options, "checkpoint", None)
    return f"; --resume goes on from {Path(kept).name}" if kept and Path(kept).exists() else ""


def prepare(common: Common) -> Path | None:
    """The directory to write to, found fit before any work; None for nowhere."""
    if common.out is None:
        return None
    out = Path(common.out)
    hosts.once(lambda: str(prepare_out(out, common.force)))
    return out


def report(common: Common, rows: Sequence[dict[str, Any]], table: Table, write_page: Callable[[Path], None]) -> None:
    """Writes results.json and the page where they are asked for, and prints the rows or their table."""
    if not hosts.first():
        return
    if common.out is not None:
        page = Path(common.out) / "report.html"
        write_rows(rows, page.with_name("results.json"))
        write_page(page)
        print(f"Report: {page}", file=sys.stderr)
    show(rows, table, common.json)


def show(value: Any, table: Table, as_json: bool) -> None:
    """Prints the value as JSON, or the table: as wide as the terminal, 100 columns elsewhere."""
    if as_json:
        print(json.dumps(value, allow_nan=False))
    else:
        Console(width=None if sys.stdout.isatty() else 100).print(table)


def checkpoint_path(checkpoint: str | None, resume: bool, kind: str) -> Path | None:
    """Where to keep the state, after a look at what is there; None for nowhere.

    Args:
      checkpoint, resume: the options.
      kind: "file" or "folder".
    """
    if checkpoint is None:
        if resume:
            raise check.expected("--resume", f"a {kind} to go on from, named by --checkpoint", "none")
        return None
    kept = Path(checkpoint)

    def look() -> None:
        if kept.exists() and not resume:
            raise check.expected("--checkpoint", f"a new {kind}, or --resume to go on from it", kept)
        if resume and not kept.exists():
            print(f"dpaudit: {kept.name}: no checkpoint yet, starting afresh", file=sys.stderr)

    hosts.once(look)
    return kept


@contextmanager
def failures_in_one_line(name: str, wanted: str) -> Iterator[None]:
    """Every failure is ``<name>: expected <wanted>, got ...``."""
    try:
        yield
    except check.InputError:
        raise
    except Exception as error:  # a traceback's status, 1, would read as a violation
        cause = one_line(f"{type(error).__name__}: {error}")
        raise check.InputError(f"{name}: expected {wanted}, got {cause}") from None
