"""Carries out ``dpaudit audit`` on scores in a file, on counts, and on what an external program writes."""

import csv
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpaudit import _validate
from dpaudit.cli import external
from dpaudit.cli.command import STATUS, failures_in_one_line, prepare, report

if TYPE_CHECKING:
    from dpaudit.auditing.result import AuditResult
    from dpaudit.cli.audit import Audit
    from dpaudit.mechanisms.claim import Claim

SOURCES = ("target", "scores", "counts", "command")
PLAYED_HERE = ("distinguisher", "until_violation", "checkpoint", "resume")  # options for a mechanism of JAX
WANTED = "columns world,score or score,included, or one column of scores for each world"
TRUTHS = {"0": False, "1": True, "false": False, "true": True}


def source(options: "Audit") -> str:
    """Returns which of the sources is audited.

    Raises:
      InputError: none or several, or an option that has no effect on it.
    """
    named = [name for name in SOURCES if getattr(options, name) is not None]
    if len(named) != 1:
        wanted = "FILE:NAME of a mechanism, or one of --scores, --counts and --command"
        raise _validate.expected("target", wanted, " and ".join(named) or "none")
    if named[0] != "target":
        for name in PLAYED_HERE:
            if getattr(options, name) != type(options).__dataclass_fields__[name].default:
                option = f"--{name.replace('_', '-')}"
                raise _validate.expected(option, f"none with --{named[0]}", getattr(options, name))
    if options.threshold is not None and named[0] != "scores":
        raise _validate.expected("--threshold", "none without --scores", options.threshold)
    return named[0]


def claimed(options: "Audit", usual: str = "replace") -> "Claim | None":
    """Returns the claim of the command line, or None.

    Args:
      options: of the command.
      usual: the relation if none is named.
    """
    from dpaudit.mechanisms.claim import Claim

    if options.epsilon is None:
        if options.neighbouring is not None:
            raise _validate.expected("--epsilon", "the claim that --neighbouring speaks of", "none")
        return None
    return Claim(options.epsilon, options.delta or 0.0, options.neighbouring or usual)


def run(options: "Audit", kind: str) -> int:
    """Reads, audits and prints; returns the exit status.

    Args:
      options: of the command.
      kind: one of ``SOURCES`` other than "target".

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


def _of_scores(options: "Audit", out: Path | None) -> "tuple[AuditResult, str]":
    import dpaudit

    file = Path(str(options.scores))
    found = read_scores(file)
    more: dict[str, Any] = {"delta": options.delta, "confidence": options.confidence}
    if "included" in found:
        if options.threshold is not None:
            raise _validate.expected("--threshold", "none for the scores of one training", options.threshold)
        claim = claimed(options, "add_remove")
        return dpaudit.one_run(found["scores"], found["included"], claim=claim, **more), file.name
    rows = found["scores0"], found["scores1"]
    more |= {"threshold": options.threshold, "claim": claimed(options)}
    return dpaudit.from_scores(*rows, method=f"scores of {file.name}", **more), file.name


def _of_counts(options: "Audit", out: Path | None) -> "tuple[AuditResult, str]":
    import dpaudit

    assert options.counts is not None
    more: dict[str, Any] = {"delta": options.delta, "confidence": options.confidence}
    result = dpaudit.from_counts(*options.counts, claim=claimed(options), **more)
    return result, "counts " + " ".join(map(str, options.counts))


def _of_command(options: "Audit", out: Path | None) -> "tuple[AuditResult, str]":
    import dpaudit

    command, claim = str(options.command), claimed(options)
    each = _validate.at_least(2, trials=options.trials) // 2
    seconds = _validate.positive(time_limit=options.time_limit)
    worlds = [
        external.releases(command, world, each, seconds=seconds, kept=out and out / f"releases{world}.jsonl")
        for world in (0, 1)
    ]
    with failures_in_one_line("--command", "releases that can be audited"):
        result = dpaudit.from_samples(*worlds, claim=claim, delta=options.delta, confidence=options.confidence)
    return result, command


def read_scores(file: Path) -> dict[str, Any]:
    """Reads scores of both worlds, ``scores0`` and ``scores1``, or of one training, ``scores`` and ``included``.

    A CSV file has a header with the columns world and score, or score and included; or one column for each world, with
    a header of other names or without; or, without a header, the columns world and score, where the first holds 0 and
    1 alone and the second does not. An NPZ file holds arrays of these names.

    Raises:
      InputError: a file that is not there, or holds something else.
    """
    try:
        if file.suffix == ".npz":
            return _of_npz(file)
        if file.suffix == ".csv":
            with open(file, newline="", encoding="utf-8-sig") as stream:
                return _of_rows(file.name, [(i, row) for i, row in enumerate(csv.reader(stream), 1) if any(row)])
    except OSError as error:
        raise _validate.expected(file.name, "a file of scores", error.strerror) from None
    except (ValueError, csv.Error) as error:  # bytes that are no text, an archive that is none
        if isinstance(error, _validate.InputError):
            raise
        raise _validate.expected(file.name, "a file of scores", _validate.one_line(str(error))) from None
    raise _validate.expected("--scores", "a file named *.csv or *.npz", file)


def _of_npz(file: Path) -> dict[str, Any]:
    with np.load(file, allow_pickle=False) as held:
        for names in (("scores0", "scores1"), ("scores", "included")):
            if set(names) <= set(held.files):
                return {name: held[name] for name in names}
        raise _validate.expected(file.name, "scores0 and scores1, or scores and included", ", ".join(held.files))


def _of_rows(name: str, rows: list[tuple[int, list[str]]]) -> dict[str, Any]:
    """Reads the numbered rows of a CSV file."""
    if not rows:
        raise _validate.expected(name, WANTED, "an empty file")
    header = [cell.strip().lower() for cell in rows[0][1]]
    has_header = not all(map(_is_number, filter(None, header)))
    rows = rows[1:] if has_header else rows
    if has_header and {"world", "score"} <= set(header):
        return _by_world(name, rows, header.index("world"), header.index("score"))
    if has_header and {"score", "included"} <= set(header):
        columns = header.index("score"), header.index("included")
        included = [TRUTHS.get(_cell(row, columns[1]).lower()) for _, row in rows]
        if None in included:
            line, row = rows[included.index(None)]
            raise _validate.expected(f"{name}, line {line}", "included of 0 or 1", _cell(row, columns[1]))
        return {"scores": _numbers(name, rows, columns[0]), "included": np.array(included, bool)}
    if len(header) != 2:
        raise _validate.expected(name, WANTED, ",".join(header) if has_header else f"{len(header)} columns")
    if not has_header:
        worlds, binary = ({_cell(row, i) for _, row in rows} <= {"0", "1"} for i in (0, 1))
        if worlds and binary:
            wanted = "a header, world,score or scores0,scores1, as both columns hold 0 and 1 alone"
            raise _validate.expected(name, wanted, "none")
        if worlds:
            return _by_world(name, rows, 0, 1)
    return {f"scores{i}": _numbers(name, _without_end(rows, i), i) for i in (0, 1)}


def _by_world(name: str, rows: list[tuple[int, list[str]]], world: int, score: int) -> dict[str, Any]:
    of: list[list[Any]] = [[], []]
    for line, row in rows:
        if _cell(row, world) not in ("0", "1"):
            raise _validate.expected(f"{name}, line {line}", "world 0 or 1", _cell(row, world))
        of[int(_cell(row, world))].append((line, row))
    for i in (0, 1):
        if not of[i]:
            raise _validate.expected(name, "scores of both worlds", f"none of world {i}")
    return {f"scores{i}": _numbers(name, of[i], score) for i in (0, 1)}


def _without_end(rows: list[tuple[int, list[str]]], column: int) -> list[tuple[int, list[str]]]:
    """Leaves out the empty cells at the end of a column that is shorter than the other."""
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


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
