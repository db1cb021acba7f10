"""``dpaudit audit FILE:NAME``: a user's own mechanism, with a status that a build can act on."""

import dataclasses
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from dpaudit import check, hosts
from dpaudit.auditing import distinguish, sequential
from dpaudit.auditing.distinguish import Distinguisher
from dpaudit.bars import bars_on_terminal
from dpaudit.command import STATUS, Common, checkpoint_path, failures_in_one_line, prepare, report

if TYPE_CHECKING:
    from rich.progress import Progress

DISTINGUISHERS: dict[str, Distinguisher | None] = {
    "default": None,
    "cosine": distinguish.cosine,
    "projection": distinguish.projection,
    "likelihood_ratio": distinguish.likelihood_ratio,
    "lowest_bits": distinguish.lowest_bits,
    "learned": distinguish.learned,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Audit:
    """Audit a mechanism of your own; the status is 0 (consistent or measured), 1 (violation), 2 (error) or 3
    (underpowered: too few trials to know)."""

    target: Annotated[str, tyro.conf.Positional]
    """FILE:NAME. In the Python file, NAME is a dpaudit.Case(mechanism, x0, x1, claim), or a function of (key, x) or a
    dpaudit.Mechanism whose pair the file calls x0 and x1, and whose promise, if any, claim."""
    trials: int = 10_000
    """Games in all, half of them in each world; the most, with --until-violation."""
    confidence: float = 0.95
    """Of each bound."""
    delta: float | None = None
    """Of every epsilon; the claim's by default."""
    distinguisher: str = "default"
    """The attack: cosine, projection, likelihood_ratio, lowest_bits or learned; by default a family of attacks, of
    which the trials set aside choose one."""
    until_violation: bool = False
    """Stop as soon as a violation is certain."""
    checkpoint: str | None = None
    """File that keeps what has been counted, for a run that is interrupted; removed once the audit is finished. One
    that is there already is refused without --resume."""
    resume: bool = False
    """Go on from the checkpoint of the same audit, on this or another machine; from the start if there is none."""
    common: Annotated[Common, tyro.conf.arg(name="")]


def run(options: Audit) -> int:
    """Loads, audits, prints; the exit status.

    Raises:
      InputError: unusable options, file or mechanism.
    """
    import jax

    from dpaudit.auditing.audit import audit
    from dpaudit.auditing.case import load
    from dpaudit.federated.client_audit import versions
    from dpaudit.report.page import write_audit_page
    from dpaudit.report.table import result_table

    check.one_of(DISTINGUISHERS, distinguisher=options.distinguisher)
    kept = checkpoint_path(options.checkpoint, options.resume, "file")
    case = load(options.target)
    prepare(options.common)
    began = time.perf_counter()
    with failures_in_one_line(options.target, "to be played to the end"), bars_on_terminal() as bars:
        result = audit(
            *case[:3],
            key=jax.random.key(options.common.seed),
            trials=options.trials,
            claim=case.claim,
            distinguisher=DISTINGUISHERS[options.distinguisher],
            delta=options.delta,
            confidence=options.confidence,
            until=sequential.violation() if options.until_violation else None,
            mesh=hosts.mesh("trials"),
            checkpoint=kept,
            progress=None if bars is None else _trials(bars, options),
        )
    row: dict[str, Any] = {"target": options.target} | result.to_row()
    row |= {"seed": options.common.seed, "seconds": time.perf_counter() - began, "versions": versions()}
    report(options.common, [row], result_table(result), partial(write_audit_page, row))
    if kept is not None and hosts.first():
        kept.unlink(missing_ok=True)
    return STATUS[result.verdict]


def _trials(bars: "Progress", options: Audit) -> Callable[[int], None]:
    task = bars.add_task("trials", total=options.trials // 2 * 2)
    return lambda done: bars.update(task, completed=done)
