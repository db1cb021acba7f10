"""Holds what commands share: options, progress bars, checkpoints, one-line errors, reports and exit statuses."""

import dataclasses
import io
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import tyro
from rich.console import Console
from rich.table import Table

from dpaudit import _validate
from dpaudit._engine import hosts
from dpaudit._engine.hosts import sigterm_interrupts
from dpaudit.auditing.result import json_number
from dpaudit.cli.output import results
from dpaudit.report.figures import in_style
from dpaudit.report.rows import prepare_out, replace_text, write_rows

if TYPE_CHECKING:
    from rich.progress import Progress


@contextmanager
def bars_on_terminal() -> Iterator["Progress | None"]:
    """Shows progress bars if this is the first process and its standard error is a terminal; otherwise yields None."""
    if not (sys.stderr.isatty() and hosts.first()):
        yield None
        return
    from rich import progress
    from rich.console import Console
    from rich.text import Text

    class Rate(progress.ProgressColumn):
        """Shows the steps per second of this run."""

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


def keep_compiled() -> None:
    """Turns on JAX's persistent compilation cache, in this user's cache folder, so that the next start is quicker.

    ``JAX_COMPILATION_CACHE_DIR`` and ``JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS`` take precedence. Without them
    every program is cached, because many small ones together take seconds. JAX identifies a program by its text, its
    options, JAX's version and the kind of processor. If the folder cannot be written, nothing is cached.
    """
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        try:
            folder = _cache_home() / "dpaudit"
            folder.mkdir(parents=True, exist_ok=True)
        except (OSError, RuntimeError):  # the second where the user has no home at all
            return
        if not os.access(folder, os.W_OK):
            return
        jax.config.update("jax_compilation_cache_dir", str(folder))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def _cache_home() -> Path:
    """Returns the folder of this platform for a user's caches."""
    if named := os.environ.get("XDG_CACHE_HOME"):
        return Path(named)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    return Path.home() / ".cache"


# 2 stands for unusable input.
STATUS = {"consistent": 0, "measured": 0, "computed": 0, "violation": 1, "fault": 1, "underpowered": 3}
OUT = "out.txt"  # in the folder of a checkpoint, names the directory that its run has begun to fill
TRACEBACK = "DPAUDIT_TRACEBACK"  # environment variable


def worst(verdicts: Iterable[str]) -> int:
    """Returns the status of the worst of several verdicts: a violation is worse than too few trials."""
    found = {STATUS[verdict] for verdict in verdicts}
    return next((status for status in (1, 3) if status in found), 0)


@dataclasses.dataclass(frozen=True)
class Common:
    """Options of every command that measures something."""

    seed: int = 0
    """Seed of all randomness."""
    out: str | None = None
    """Directory for results.json and report.html; by default nothing is written."""
    force: bool = False
    """Write into a directory even if it is not empty."""
    json: bool = False
    """Print the rows as a JSON list instead of a table."""


def perform(
    program: str,
    run: Callable[[], int | None],
    how_to_resume: Callable[[], str] = str,
    *,
    measures: bool = True,
    judges: bool = False,
    options: Any = None,
) -> None:
    """Runs a command and reports unusable input in one line. An interrupted process exits with status 130, or 143
    after SIGTERM.

    Args:
      program: the command's name, which begins each line.
      run: runs the command and returns its status.
      how_to_resume: returns what the message about an interruption says about resuming.
      measures: whether the command may run long, on all devices of all processes that were started together: compiled
        programs are then cached, and SIGTERM counts as an interruption.
      judges: whether the status tells a verdict. Any other exception is then one line as well, with the status of
        unusable input: Python's own, 1, would mean a violation, and that of SystemExit may be 0. The environment
        variable ``DPAUDIT_TRACEBACK`` adds the traceback.
      options: of the command line, so that what is said of an argument names the option that gave it.

    Raises:
      SystemExit: the status is not 0: that of ``run``, or 2 for unusable input.
    """
    ready_to_print()
    try:
        if measures:
            with (
                _warned_in_one_line(program, options),
                sigterm_interrupts(lambda: f"{program}: interrupted{how_to_resume()}"),
            ):
                hosts.join_hosts()
                keep_compiled()
                status = run()
        else:
            with _warned_in_one_line(program, options):
                status = run()
    except KeyboardInterrupt as interruption:
        _say(f"{program}: interrupted{interruption}{how_to_resume()}")
        hosts.leave(hosts.status(interruption))
    except BaseException as error:
        if not judges and not isinstance(error, _validate.InputError):
            raise
        _tell(program, error, options)
        if hosts.several():
            hosts.leave(2)
        status = 2
    if status:
        sys.exit(status)


def ready_to_print() -> None:
    """Makes standard output and error take any text, so that no result is lost at the end of a long run: a character
    that their encoding lacks, such as ε in ASCII, is written as its number, and a closed one discards the text."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - until the process ends
        elif isinstance(stream, io.TextIOWrapper):  # of the process, not of a notebook or a test
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def _warned_in_one_line(program: str, options: Any) -> Iterator[None]:
    """Prints each warning of the package once, as one line, like its errors, without the location in the code."""
    with warnings.catch_warnings():
        shown, said = warnings.showwarning, set[str]()

        def show(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, _validate.InputWarning):
                if str(message) not in said:  # as where several parts of a command look at one option
                    _say(f"{program}: {of_option(str(message), options)}")
                said.add(str(message))
            else:
                shown(message, category, *where, **more)

        warnings.showwarning = show
        yield


def _tell(program: str, error: BaseException, options: Any) -> None:
    """Prints why a command ended. What nobody expected may have happened in only one of several processes."""
    if isinstance(error, _validate.InputError):
        _say(f"{program}: {of_option(str(error), options)}")
        return
    if os.environ.get(TRACEBACK):
        traceback.print_exception(error)
    tell(f"{program}: stopped by {_named(error)} (set {TRACEBACK}=1 to see where)")


def of_option(message: str, options: Any) -> str:
    """Writes ``--clip-norm: expected ...`` for ``clip_norm: expected ...`` if that is the value of this option, and
    not one that an audited file gave."""
    name, _, rest = message.partition(": ")
    given = _given(options).get(name, ())
    named = f"--{name.replace('_', '-')}"
    return f"{named}: {rest}" if any(f", got {value}" in rest for value in given) else message


def _given(options: Any) -> dict[str, tuple[Any, ...]]:
    """Returns the values of options and of those that they hold, by name."""
    found: dict[str, tuple[Any, ...]] = {}
    for field in dataclasses.fields(options) if dataclasses.is_dataclass(options) else ():
        value = getattr(options, field.name)
        if dataclasses.is_dataclass(value):
            found |= _given(value)
        elif tyro.conf.Positional not in getattr(field.type, "__metadata__", ()):
            found[field.name] = value if isinstance(value, tuple) else (value,)
    return found


def _named(error: BaseException) -> str:
    return _validate.one_line(f"{type(error).__name__}: {error}")


def _say(line: str) -> None:
    if hosts.first():
        tell(line)


def tell(line: str) -> None:
    """Prints a line to standard error, if anybody reads it: the exit status must not be that of a failure to print."""
    with even_if_unread("stderr"):
        print(line, file=sys.stderr)


def how_to_resume(options: Any) -> str:
    """Describes how to resume an interrupted command, if it can be resumed."""
    kept = getattr(options, "checkpoint", None)
    return f"; --resume continues from {Path(kept).name}" if kept and Path(kept).exists() else ""


def key_of(seed: int) -> jax.Array:
    """Returns the key of the option --seed.

    Raises:
      InputError: a number of more than 64 bits.
    """
    if not -(1 << 63) <= seed < 1 << 63:
        raise _validate.expected("--seed", "a whole number of 64 bits", seed)
    return jax.random.key(seed)


def prepare(common: Common) -> Path | None:
    """Prepares the output directory before any work is done, and returns it; None if none was asked for.

    Raises:
      InputError: a directory that is in use, or no Matplotlib to draw the page's figures.
    """
    if common.out is None:
        return None
    in_style()
    out = Path(common.out)
    hosts.once(lambda: str(prepare_out(out, common.force)))
    return out


def note_out(kept: Path, out: Path) -> None:
    """Notes in the folder of a checkpoint that its run writes into this directory, before anything is in there."""
    replace_text(kept / OUT, _from_there(kept, out) + "\n")


def resumed(common: Common, kept: Path | None) -> Common:
    """Returns the options, with --force where --out holds what the run of this checkpoint has written."""
    if kept is None or common.out is None:
        return common
    wanted = _from_there(kept, Path(common.out))

    def own() -> bool:
        try:
            return (kept / OUT).read_text(encoding="utf-8", errors="replace") == wanted + "\n"
        except OSError:
            return False

    return dataclasses.replace(common, force=hosts.once(own) or common.force)


def _from_there(kept: Path, out: Path) -> str:
    """Returns the way from one directory to another, which stays the same where both are moved together."""
    return os.path.relpath(out.resolve(), kept.resolve())


def report(common: Common, rows: Sequence[dict[str, Any]], table: Table, write_page: Callable[[Path], None]) -> None:
    """Writes results.json and the page if asked for, and prints the rows or their table, even if nothing can be
    written.

    Raises:
      InputError: a page that another run has written into the directory since this one began.
    """
    if not hosts.first():
        return
    try:
        if common.out is not None:
            page = Path(common.out) / "report.html"
            if page.exists() and not common.force:
                raise _validate.expected("--out", "a directory for this run alone", f"the results of another: {page}")
            write_rows(rows, page.with_name("results.json"))
            write_page(page)
            tell(f"Report: {page}")
    finally:
        show(rows, table, common.json)


def show(value: Any, table: Table, as_json: bool) -> None:
    """Prints the value as JSON, or the table as wide as the terminal (100 columns if there is none)."""
    with even_if_unread():
        if as_json:
            print(json.dumps(json_number(value), allow_nan=False))
        else:
            Console(width=None if sys.stdout.isatty() else 100).print(table)


@contextmanager
def even_if_unread(name: str = "stdout") -> Iterator[None]:
    """Prints results to standard output, or lines to ``"stderr"``, and goes on where their reader ends early, as
    ``head`` does, so that the exit status tells the verdict."""
    with results() if name == "stdout" else nullcontext():
        try:
            yield
            getattr(sys, name).flush()
        except (BrokenPipeError, SystemExit):  # Rich turns the one into the other
            os.dup2(os.open(os.devnull, os.O_WRONLY), getattr(sys, name).fileno())


def checkpoint_path(checkpoint: str | None, resume: bool, kind: str) -> Path | None:
    """Checks the options of a checkpoint against what exists, and returns its path; None if there is none.

    Args:
      checkpoint, resume: the options --checkpoint and --resume.
      kind: "file" or "folder".
    """
    if checkpoint is None:
        if resume:
            raise _validate.expected("--resume", f"a {kind} to resume from, named by --checkpoint", "none")
        return None
    kept = Path(checkpoint)

    def look() -> None:
        if kind == "file" and kept.is_dir():
            raise _validate.expected("--checkpoint", "a file", f"the folder {kept}")
        existing = next((path for path in (kept, *kept.parents) if path.exists()), None)
        if kind == "folder" and existing is not None and not existing.is_dir():
            raise _validate.expected("--checkpoint", "a folder", f"the file {existing}")
        if kept.exists() and not resume:
            raise _validate.expected("--checkpoint", f"a new {kind}, or --resume to continue from it", kept)
        if resume and not kept.exists():
            tell(f"dpaudit: {kept.name}: no checkpoint yet, starting afresh")

    hosts.once(look)
    return kept


@contextmanager
def failures_in_one_line(name: str, wanted: str) -> Iterator[None]:
    """Turns every exception into an InputError ``<name>: expected <wanted>, got ...``."""
    try:
        yield
    except (_validate.InputError, KeyboardInterrupt):
        raise
    except BaseException as error:  # SystemExit too, whose status may be 0
        raise _validate.InputError(f"{name}: expected {wanted}, got {_named(error)}") from None
