"""Carries out ``dpaudit audit`` on scores in a file, on counts, and on the output of an external program."""

import contextlib
import csv
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from dpaudit import _validate
from dpaudit.cli.audit import Audit, claimed
from dpaudit.cli.command import STATUS, failures_in_one_line, prepare, report

if TYPE_CHECKING:
    from dpaudit.auditing.result import AuditResult

WANTED = "columns world,score or score,included, or one column of scores for each world"
COLUMNS = ("world", "score", "included", "scores0", "scores1")
TRUTHS = {"false": False, "true": True}


def run(options: Audit, kind: str) -> int:
    """Reads the data, audits it and prints the result; returns the exit status.

    Args:
      options: of the command.
      kind: one of ``audit.SOURCES`` other than "target".

    Raises:
      InputError: unusable options or data.
    """
    from dpaudit.audits.ldp_client import versions
    from dpaudit.report.page import write_audit_page
    from dpaudit.report.table import result_table

    out = prepare(options.common)
    began = time.perf_counter()
    result, target = {"scores": _of_scores, "counts": _of_counts, "command": _of_command}[kind](options, out)
    row: dict[str, Any] = {"target": target} | result.to_row()
    row |= {"seed": options.common.seed, "seconds": time.perf_counter() - began, "versions": versions()}
    report(options.common, [row], result_table(result), partial(write_audit_page, row))
    return STATUS[result.verdict]


def _of_scores(options: Audit, out: Path | None) -> "tuple[AuditResult, str]":
    import dpaudit

    file = Path(str(options.scores))
    found = read_scores(file)
    more: dict[str, Any] = {"delta": options.delta, "confidence": options.confidence}
    if "included" in found:
        if options.threshold is not None:
            raise _validate.expected("--threshold", "none for the scores of one training", options.threshold)
        claim = claimed(options, usual="add_remove")
        return dpaudit.one_run(found["scores"], found["included"], claim=claim, **more), file.name
    rows = found["scores0"], found["scores1"]
    more |= {"threshold": options.threshold, "claim": claimed(options)}
    return dpaudit.from_scores(*rows, method=f"scores of {file.name}", **more), file.name


def _of_counts(options: Audit, out: Path | None) -> "tuple[AuditResult, str]":
    import dpaudit

    assert options.counts is not None
    more: dict[str, Any] = {"delta": options.delta, "confidence": options.confidence}
    result = dpaudit.from_counts(*options.counts, claim=claimed(options), **more)
    return result, "counts " + " ".join(map(str, options.counts))


def _of_command(options: Audit, out: Path | None) -> "tuple[AuditResult, str]":
    import dpaudit
    from dpaudit.auditing.given import LEAST
    from dpaudit.auditing.result import checked_delta

    command, claim = str(options.command), claimed(options)
    each = _validate.at_least(2 * LEAST, trials=options.trials) // 2
    checked_delta(options.delta, claim)
    _validate.open_unit(confidence=options.confidence)
    seconds = _validate.positive(time_limit=options.time_limit)
    worlds = [
        releases(command, world, each, seconds=seconds, kept=out and out / f"releases{world}.jsonl")
        for world in (0, 1)
    ]
    with failures_in_one_line("--command", "releases that can be audited"):
        result = dpaudit.from_samples(*worlds, claim=claim, delta=options.delta, confidence=options.confidence)
    return result, command


def read_scores(file: Path) -> dict[str, Any]:
    """Reads scores of both worlds, ``scores0`` and ``scores1``, or of one training, ``scores`` and ``included``.

    A CSV file has either a header with the columns world and score, or score and included, or scores0 and scores1; or
    one column for each world, with a header of other names or none, neither of 0 and 1 alone; or no header and the
    columns world and score, where only the first consists of 0 and 1. No row has more cells than the first. An NPZ
    file holds arrays of these names.

    Raises:
      InputError: a file that is missing, or holds something else.
    """
    try:
        if file.suffix == ".npz":
            return _of_npz(file)
        if file.suffix == ".csv":
            with open(file, newline="", encoding="utf-8-sig") as stream:
                return _of_rows(file.name, [(i, row) for i, row in enumerate(csv.reader(stream), 1) if any(row)])
    except OSError as error:
        raise _validate.expected(file.name, "a file of scores", error.strerror or str(error)) from None
    except _validate.InputError:
        raise
    except Exception as error:  # not UTF-8, or one of the many ways in which an archive can be damaged
        raise _validate.expected(file.name, "a file of scores", _validate.one_line(str(error))) from None
    raise _validate.expected("--scores", "a file named *.csv or *.npz", file)


def _of_npz(file: Path) -> dict[str, Any]:
    with open(file, "rb") as stream, np.lib.npyio.NpzFile(stream, allow_pickle=False) as held:
        for names in (("scores0", "scores1"), ("scores", "included")):
            if set(names) <= set(held.files):
                return {name: held[name] for name in names}
        found = ", ".join(held.files) or "no arrays"
        raise _validate.expected(file.name, "scores0 and scores1, or scores and included", found)


def _of_rows(name: str, rows: list[tuple[int, list[str]]]) -> dict[str, Any]:
    """Reads the numbered rows of a CSV file."""
    if not rows:
        raise _validate.expected(name, WANTED, "an empty file")
    header = [cell.strip().lower() for cell in rows[0][1]]
    numbers = [_is_number(cell) for cell in header if cell]
    has_header = not any(numbers)
    for line, row in rows:
        if any(cell.strip() for cell in row[len(header) :]):  # such as a decimal comma, whose digits would be lost
            wanted = f"at most {len(header)} cells, as in the first row"
            raise _validate.expected(f"{name}, line {line}", wanted, ",".join(row))
    if twice := [cell for cell in COLUMNS if header.count(cell) > 1]:
        raise _validate.expected(name, f"one column {twice[0]}", header.count(twice[0]))
    if has_header:
        rows = rows[1:]
    elif not all(numbers):
        raise _validate.expected(f"{name}, line {rows[0][0]}", "numbers, or a header without any", ",".join(header))
    if has_header and {"world", "score"} <= set(header):
        return _by_world(name, rows, header.index("world"), header.index("score"))
    if has_header and {"score", "included"} <= set(header):
        columns = header.index("score"), header.index("included")
        included = [_bit(_cell(row, columns[1])) for _, row in rows]
        if None in included:
            line, row = rows[included.index(None)]
            raise _validate.expected(f"{name}, line {line}", "included of 0 or 1", _cell(row, columns[1]))
        return {"scores": _numbers(name, rows, columns[0]), "included": np.array(included, bool)}
    places = [0, 1]
    if has_header and {"scores0", "scores1"} <= set(header):
        places = [header.index("scores0"), header.index("scores1")]
    elif len(header) != 2:
        raise _validate.expected(name, WANTED, ",".join(header) if has_header else f"{len(header)} columns")
    else:
        columns = [[cell for _, row in rows if (cell := _cell(row, i))] for i in (0, 1)]
        bits = [bool(cells) and None not in map(_bit, cells) for cells in columns]
        if bits == [True, False] and not has_header:
            return _by_world(name, rows, 0, 1)
        if any(bits):
            wanted = "a header, world,score or scores0,scores1, because a column holds only 0 and 1"
            raise _validate.expected(name, wanted, ",".join(header) if has_header else "none")
    return {f"scores{i}": _numbers(name, _without_end(rows, place), place) for i, place in enumerate(places)}


def _by_world(name: str, rows: list[tuple[int, list[str]]], world: int, score: int) -> dict[str, Any]:
    of: list[list[Any]] = [[], []]
    for line, row in rows:
        number = _bit(_cell(row, world))
        if number is None:
            raise _validate.expected(f"{name}, line {line}", "world 0 or 1", _cell(row, world))
        of[number].append((line, row))
    for i in (0, 1):
        if not of[i]:
            raise _validate.expected(name, "scores of both worlds", f"none of world {i}")
    return {f"scores{i}": _numbers(name, of[i], score) for i in (0, 1)}


def _without_end(rows: list[tuple[int, list[str]]], column: int) -> list[tuple[int, list[str]]]:
    """Drops the empty cells at the end of a column that is shorter than the other."""
    last = max((i for i, (_, row) in enumerate(rows) if _cell(row, column)), default=-1)
    return rows[: last + 1]


def _numbers(name: str, rows: list[tuple[int, list[str]]], column: int) -> np.ndarray:
    cells = [_cell(row, column) for _, row in rows]
    try:
        return np.array([float(cell) for cell in cells])
    except ValueError:
        line, cell = next((line, cell) for (line, _), cell in zip(rows, cells, strict=True) if not _is_number(cell))
        raise _validate.expected(f"{name}, line {line}", "a number", cell or "nothing") from None


def _cell(row: list[str], column: int) -> str:
    return row[column].strip() if column < len(row) else ""


def _bit(cell: str) -> bool | None:
    """Reads 0 or 1, however it is written, or false or true; None for anything else."""
    if _is_number(cell):
        return bool(float(cell)) if float(cell) in (0, 1) else None
    return TRUTHS.get(cell.lower())


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


SHOWN = 120  # characters of a failing program's standard error that a message quotes


def releases(command: str, world: int, n: int, *, seconds: float, kept: Path | None = None) -> list[Any]:
    """Runs the program for one world, without a shell, and reads ``n`` releases.

    Args:
      command: the program and its arguments, in which {world} and {n} are replaced.
      world: 0 or 1.
      n: lines to read; a program that writes more is stopped.
      seconds: after which the program is killed.
      kept: a file to which the lines are written as they are read, and where they stay if the program fails; None for
        none.

    Returns:
      The value of each line: a number, a list, or any other JSON.

    Raises:
      InputError: a program that cannot be run, fails, takes too long, writes fewer lines or something other than JSON.
    """
    found: list[Any] = []
    with tempfile.TemporaryFile() as errors, contextlib.ExitStack() as stack:

        def failed(wanted: str, got: str) -> _validate.InputError:
            program.close()
            line = f"--command: expected {wanted} in world {world}, got {got}{_said(errors)}"
            return _validate.InputError(line if file is None else f"{line}; kept in {kept}: {file.lines:,}")

        program = stack.enter_context(contextlib.closing(_Program(_words(command, world, n), seconds, errors)))
        file = None if kept is None else stack.enter_context(contextlib.closing(_Kept(kept)))  # of a program that runs
        for line in program.stdout:
            if not line.strip():
                continue
            if len(found) == n:
                return found
            try:
                value = json.loads(line)
            except ValueError:
                text = _validate.one_line(line.decode("utf-8", "replace"), 60)
                raise failed("a release in JSON on every line", f"{text!r} in line {len(found) + 1}") from None
            found.append(value)
            if file is not None:
                file.add(line.strip() + b"\n")
        status = program.wait()
        if program.late:
            if len(found) == n:  # it has written all of them, and only did not end
                return found
            raise failed(f"{n:,} releases within {seconds:g} seconds", f"{len(found):,}")
        if status:
            raise failed(
                "a program that ends with status 0", f"status {status} after {len(found):,} of {n:,} releases"
            )
        if len(found) < n:
            raise failed(f"{n:,} lines", f"{len(found):,}")
    return found


class _Kept:
    """Writes lines to a file beside the old one, which the program may be reading; it is replaced at the end.

    Lines that find no room are not kept, with a warning: the audit does not need them.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._beside, self._full = path, path.with_name(path.name + ".partial"), False
        self._file, self.lines = open(self._beside, "wb", buffering=0), 0  # noqa: SIM115 - until it is closed

    def add(self, line: bytes) -> None:
        if self._full:
            return
        end = self._file.tell()
        try:
            while line:
                line = line[self._file.write(line) :]
            self.lines += 1
        except OSError as error:
            self._full = True
            with contextlib.suppress(OSError):
                self._file.truncate(end)
            room = f"--out: expected room for the lines of --command, got {error.strerror}"
            _validate.warn(f"{room}; kept in {self._path}: {self.lines:,}")

    def close(self) -> None:
        self._file.close()
        os.replace(self._beside, self._path)


class _Program:
    """A program in its own session, so that it can be killed together with all processes that it started."""

    def __init__(self, words: list[str], seconds: float, errors: IO[bytes]) -> None:
        self.late = False
        try:
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
            )
        except OSError as error:
            got = f"{error.strerror}: {words[0]}"
            raise _validate.expected("--command", "a program that can be run", got) from None
        assert self._process.stdout is not None
        self.stdout = self._process.stdout
        self._timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), self._end)
        self._timer.daemon = True
        self._timer.start()

    def _end(self) -> None:
        self.late = self._process.returncode is None
        self._kill()

    def _kill(self) -> None:
        """Kills the program and all that it started, whether or not it has ended itself, until `wait` was called."""
        if self._process.returncode is not None:  # the number of its group may be another's by now
            return
        if sys.platform == "win32":
            self._process.kill()
        else:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Waits until the program ends, which the time limit guarantees, and returns its status."""
        return self._process.wait()

    def close(self) -> None:
        """Stops the program."""
        self._timer.cancel()
        self._kill()
        self._process.wait()
        self.stdout.close()


def _words(command: str, world: int, n: int) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise _validate.expected("--command", "a program and its arguments", f"{error}: {command}") from None
    if "{world}" not in command:
        raise _validate.expected("--command", "a program with {world} among its arguments, and {n}", command)
    return [word.replace("{world}", str(world)).replace("{n}", str(n)) for word in words]


def _said(errors: IO[bytes]) -> str:
    """Returns the last part of a program's standard error, on one line."""
    errors.seek(0)
    text = " ".join(errors.read().decode("utf-8", "replace").split())
    if not text:
        return ""
    return f" (it says: {text if len(text) <= SHOWN else '...' + text[-SHOWN:]})"
