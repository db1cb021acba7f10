"""What the commands that measure have in common: options, checkpoints, failures in one line, rows, statuses."""

import dataclasses
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from dpaudit import check
from dpaudit.auditing.probe import one_line
from dpaudit.report.rows import prepare_out, write_rows

STATUS = {"consistent": 0, "measured": 0, "violation": 1, "underpowered": 3}  # 2 is unusable input


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


def prepare(common: Common) -> Path | None:
    """The directory to write to, found fit before any work; None for nowhere."""
    return None if common.out is None else prepare_out(common.out, common.force)


def report(common: Common, rows: Sequence[dict[str, Any]], table: Table, write_page: Callable[[Path], None]) -> None:
    """Writes results.json and the page where they are asked for, and prints the rows or their table."""
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
    if kept.exists() and not resume:
        raise check.expected("--checkpoint", f"a new {kind}, or --resume to go on from it", kept)
    if resume and not kept.exists():
        print(f"dpaudit: {kept.name}: no checkpoint yet, starting afresh", file=sys.stderr)
    return kept


@contextmanager
def failures_in_one_line(name: str, wanted: str, kept: Path | None) -> Iterator[None]:
    """An interruption names what was kept; every other failure is ``<name>: expected <wanted>, got ...``."""
    try:
        yield
    except check.InputError:
        raise
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"; --resume goes on from {kept.name}" if kept and kept.exists() else "") from None
    except Exception as error:  # a traceback's status, 1, would read as a violation
        cause = one_line(f"{type(error).__name__}: {error}")
        raise check.InputError(f"{name}: expected {wanted}, got {cause}") from None
