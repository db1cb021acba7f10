"""Carries out ``dpaudit examine FILE:NAME``: all that can be tried on a mechanism of one's own in some seconds."""

import dataclasses
import time
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from dpaudit import check
from dpaudit.bars import bars_on_terminal
from dpaudit.command import STATUS, Common, failures_in_one_line, prepare, report

if TYPE_CHECKING:
    from dpaudit.auditing.examine import Examination


@dataclasses.dataclass(frozen=True, kw_only=True)
class Examine:
    """Try everything on a mechanism of your own: purity, its program, sensitivity, worst pair, all attacks; the status
    is 0 (consistent), 1 (violation or fault), 2 (error) or 3 (underpowered)."""

    target: Annotated[str, tyro.conf.Positional]
    """FILE:NAME. In the Python file, NAME is a dpaudit.Case, or a function of (key, x) or a dpaudit.Mechanism whose
    promise the file calls claim and whose neighbours domain (a dpaudit.Domain) or x0 and x1 (one pair)."""
    seconds: float = 30.0
    """About how long to go on."""
    confidence: float = 0.95
    """Of all bounds together."""
    sensitivity: float | None = None
    """The most that releases of neighbours may differ under one key, where the mechanism adds noise."""
    common: Annotated[Common, tyro.conf.arg(name="")]


def run(options: Examine) -> int:
    """Loads, examines, prints; the exit status.

    Raises:
      InputError: unusable options, file or mechanism.
    """
    import jax

    from dpaudit.auditing.case import load_with_neighbours
    from dpaudit.auditing.examine import examine
    from dpaudit.federated.client_audit import versions
    from dpaudit.report.page import write_examination_page
    from dpaudit.report.table import examination_table

    case, neighbours = load_with_neighbours(options.target)
    if options.seconds <= 0:
        raise check.expected("--seconds", "a number above 0", options.seconds)
    prepare(options.common)
    began = time.perf_counter()
    with failures_in_one_line(options.target, "to be examined to the end"), bars_on_terminal() as bars:
        task = None if bars is None else bars.add_task("examine", total=options.seconds)

        def progress(step: str, passed: float) -> None:
            if bars is not None and task is not None:
                bars.update(task, completed=min(passed, options.seconds), description=step)

        found = examine(
            case.mechanism,
            neighbours,
            case.claim,
            key=jax.random.key(options.common.seed),
            seconds=options.seconds,
            confidence=options.confidence,
            sensitivity=options.sensitivity,
            progress=progress,
        )
    row = _row(options, found) | {"seconds": time.perf_counter() - began, "versions": versions()}
    report(options.common, [row], examination_table(row), partial(write_examination_page, row))
    return STATUS[found.verdict]


def _row(options: Examine, found: "Examination") -> dict[str, Any]:
    """The decisive audit as a row, with the verdict of the whole and all that was tried."""
    row: dict[str, Any] = {"target": options.target, **found.result.to_row()}
    row |= {"audit_verdict": row["verdict"], "verdict": found.verdict, "sentence": found.sentence}
    row["steps"] = [step._asdict() for step in found.steps]
    row["findings"] = [str(finding) for finding in found.findings]
    return row | {"seed": options.common.seed, "curve": found.curve(), "with_more": found.with_more()}
