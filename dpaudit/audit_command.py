"""``dpaudit audit FILE:NAME``: a user's own mechanism, with a status that a build can act on."""

import dataclasses
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from dpaudit import check
from dpaudit.auditing import distinguish, sequential
from dpaudit.auditing.distinguish import Distinguisher
from dpaudit.bars import bars_on_terminal

if TYPE_CHECKING:
    from rich.progress import Progress

DISTINGUISHERS: dict[str, Distinguisher | None] = {
    "default": None,
    "cosine": distinguish.cosine,
    "projection": distinguish.projection,
    "likelihood_ratio": distinguish.likelihood_ratio,
    "learned": distinguish.learned,
}
STATUS = {"consistent": 0, "measured": 0, "violation": 1, "underpowered": 3}  # 2 is unusable input


@dataclasses.dataclass(frozen=True)
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
    """The attack: cosine, projection, likelihood_ratio or learned; by default likelihood_ratio where the mechanism has
    a density, else projection."""
    until_violation: bool = False
    """Stop as soon as a violation is certain."""
    checkpoint: str | None = None
    """File that keeps what has been counted, for a run that is interrupted; removed once the audit is finished. One
    that is there already is refused without --resume."""
    resume: bool = False
    """Go on from the checkpoint of the same audit, on this or another machine; from the start if there is none."""
    seed: int = 0
    """All randomness follows from it."""
    out: str | None = None
    """Directory for results.json and report.html; without it, nothing is written."""
    force: bool = False
    """Write into a directory that is not empty."""
    json: bool = False
    """Print the row as JSON, in a list, instead of a table."""


def run(options: Audit) -> int:
    """Loads, audits, prints; the exit status.

    Raises:
      InputError: unusable options, file or mechanism.
    """
    import jax
    from rich.console import Console

    from dpaudit.auditing.audit import audit
    from dpaudit.auditing.case import load
    from dpaudit.auditing.probe import one_line
    from dpaudit.federated.client_audit import versions
    from dpaudit.report import rows as files
    from dpaudit.report.page import write_audit_page
    from dpaudit.report.table import result_table

    check.one_of(DISTINGUISHERS, distinguisher=options.distinguisher)
    kept = checkpoint_path(options.checkpoint, options.resume, "file")
    case = load(options.target)
    out = None if options.out is None else files.prepare_out(options.out, options.force)
    began = time.perf_counter()
    try:
        with bars_on_terminal() as bars:
            result = audit(
                *case[:3],
                key=jax.random.key(options.seed),
                trials=options.trials,
                claim=case.claim,
                distinguisher=DISTINGUISHERS[options.distinguisher],
                delta=options.delta,
                confidence=options.confidence,
                until=sequential.violation() if options.until_violation else None,
                mesh=jax.make_mesh((jax.device_count(),), ("trials",)) if jax.device_count() > 1 else None,
                checkpoint=kept,
                progress=None if bars is None else _trials(bars, options),
            )
    except check.InputError:
        raise
    except KeyboardInterrupt:
        found = kept if kept is not None and kept.exists() else None
        raise KeyboardInterrupt("" if found is None else f"; --resume goes on from {found.name}") from None
    except Exception as error:  # a traceback's status, 1, would read as a violation
        cause = one_line(f"{type(error).__name__}: {error}")
        raise check.InputError(f"{options.target}: expected to be played to the end, got {cause}") from None
    row: dict[str, Any] = {"target": options.target} | result.to_row()
    row |= {"seed": options.seed, "seconds": time.perf_counter() - began, "versions": versions()}
    if out is not None:
        files.write_rows([row], out / "results.json")
        write_audit_page(row, out / "report.html")
        print(f"Report: {out / 'report.html'}", file=sys.stderr)
    if options.json:
        print(json.dumps([row], allow_nan=False))
    else:
        Console(width=None if sys.stdout.isatty() else 100).print(result_table(result))
    if kept is not None:
        kept.unlink(missing_ok=True)
    return STATUS[result.verdict]


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


def _trials(bars: "Progress", options: Audit) -> Callable[[int], None]:
    task = bars.add_task("trials", total=options.trials // 2 * 2)
    return lambda done: bars.update(task, completed=done)
