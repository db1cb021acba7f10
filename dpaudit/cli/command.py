"""What the commands that measure have in common: options, checkpoints, failures in one line, rows, statuses."""

import dataclasses
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
from rich.console import Console
from rich.table import Table

from dpaudit import _validate
from dpaudit._engine import hosts
from dpaudit._engine.hosts import sigterm_interrupts
from dpaudit.report.rows import prepare_out, write_rows

if TYPE_CHECKING:
    from rich.progress import Progress


# Progress on a terminal: how far, how fast, and how long to go.


@contextmanager
def bars_on_terminal() -> Iterator["Progress | None"]:
    """Bars on standard error where that is the first process's terminal; None, and silence, elsewhere."""
    if not (sys.stderr.isatty() and hosts.first()):
        yield None
        return
    from rich import progress
    from rich.console import Console
    from rich.text import Text

    class Rate(progress.ProgressColumn):
        """Steps a second, those that an earlier run has made left out."""

        def render(self, task: progress.Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:,.0f}/s", style="progress.data.speed")

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.TaskProgressColumn(),
        Rate(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        yield bars


# Compiled programs are kept from one start of a command to the next.


def keep_compiled() -> None:
    """Turns on JAX's persistent compilation cache, in this user's cache folder.

    ``JAX_COMPILATION_CACHE_DIR`` and ``JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS`` win. Without them every program is
    kept: the small ones are many, and together they take seconds. JAX knows each by its text, its options, its version
    and the kind of processor. Where nothing can be written, nothing is kept.
    """
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        folder = _cache_home() / "dpaudit"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            return
        if not os.access(folder, os.W_OK):
            return
        jax.config.update("jax_compilation_cache_dir", str(folder))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def _cache_home() -> Path:
    """Where this platform keeps a user's caches."""
    if named := os.environ.get("XDG_CACHE_HOME"):
        return Path(named)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    return Path.home() / ".cache"


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
    except _validate.InputError as error:
        _say(f"{program}: {error}")
        if hosts.several():
            hosts.leave(2)
        status = 2
    except KeyboardInterrupt as interruption:
        _say(f"{program}: interrupted{interruption}{to_go_on()}")
        hosts.leave(hosts.status(interruption))
    if status:
        sys.exit(status)


@contextmanager
def _warned_in_one_line(program: str) -> Iterator[None]:
    """Says what the package warns of as it says what it refuses, without a place in the code."""
    with warnings.catch_warnings():
        shown = warnings.showwarning

        def show(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, _validate.InputWarning):
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
            raise _validate.expected("--resume", f"a {kind} to go on from, named by --checkpoint", "none")
        return None
    kept = Path(checkpoint)

    def look() -> None:
        if kept.exists() and not resume:
            raise _validate.expected("--checkpoint", f"a new {kind}, or --resume to go on from it", kept)
        if resume and not kept.exists():
            print(f"dpaudit: {kept.name}: no checkpoint yet, starting afresh", file=sys.stderr)

    hosts.once(look)
    return kept


@contextmanager
def failures_in_one_line(name: str, wanted: str) -> Iterator[None]:
    """Every failure is ``<name>: expected <wanted>, got ...``."""
    try:
        yield
    except _validate.InputError:
        raise
    except Exception as error:  # a traceback's status, 1, would read as a violation
        cause = _validate.one_line(f"{type(error).__name__}: {error}")
        raise _validate.InputError(f"{name}: expected {wanted}, got {cause}") from None
