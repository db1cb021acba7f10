"""Carries out ``dpaudit audit`` and ``dpaudit examine`` on a user's own mechanism; a build can act on their exit
status."""

import dataclasses
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from dpaudit import _validate
from dpaudit._engine import hosts
from dpaudit.auditing.attacks import distinguish
from dpaudit.auditing.attacks.distinguish import Distinguisher
from dpaudit.auditing.bounds import sequential
from dpaudit.cli.command import (
    STATUS,
    Common,
    bars_on_terminal,
    checkpoint_path,
    failures_in_one_line,
    key_of,
    prepare,
    report,
)

if TYPE_CHECKING:
    from rich.progress import Progress

    from dpaudit.auditing.domain import Case
    from dpaudit.auditing.examine import Examination
    from dpaudit.mechanisms.claim import Claim

SOURCES = ("target", "scores", "counts", "command")
PLAYED_HERE = ("distinguisher", "until_violation", "checkpoint", "resume")  # for mechanisms only
WITHOUT_EFFECT = {  # options that are refused beside a source
    "target": ("time_limit",),
    "scores": (*PLAYED_HERE, "trials", "time_limit"),
    "counts": (*PLAYED_HERE, "trials", "time_limit"),
    "command": PLAYED_HERE,
}

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
    """Audit a mechanism of your own, or scores, counts or releases that you have; the status is 0 (consistent or
    measured), 1 (violation), 2 (error) or 3 (underpowered: it could not have shown one)."""

    target: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="FILE:NAME")] = None
    """FILE:NAME. In the Python file, NAME is a dpaudit.Case(mechanism, x0, x1, claim); or it is a function of (key, x)
    or a dpaudit.Mechanism, with the inputs in the file's variables x0 and x1 and the promise, if any, in claim."""
    scores: str | None = None
    """Instead of FILE:NAME, a file FILE.csv or FILE.npz with the scores of both worlds, or of one training."""
    counts: tuple[int, int, int, int] | None = None
    """Instead of FILE:NAME, the counts of a test fixed in advance: false positives, false negatives, trials of world 0
    and of world 1."""
    command: str | None = None
    """Instead of FILE:NAME, a program that writes {n} independent releases of world {world}, 0 or 1, as lines of JSON,
    such as 'python play.py {world} {n}'. It is run without a shell; with --out, its lines are kept there."""
    epsilon: float | None = None
    """Claimed privacy loss, in nats; by default that of FILE:NAME."""
    neighbouring: str | None = None
    """Neighbouring relation of the claim --epsilon: replace or add_remove; by default that of FILE:NAME's own claim,
    else replace, for scores of one training add_remove."""
    threshold: float | None = None
    """Threshold of the rule "world 1 where score > threshold", if it was fixed before the scores were seen."""
    time_limit: float = 600.0
    """Seconds that --command may take for each world."""
    trials: int = 10_000
    """Number of games, half of them in each world; with --until-violation the largest number."""
    confidence: float = 0.95
    """Confidence of each bound."""
    delta: float | None = None
    """Delta at which every epsilon is computed, and that of the claim --epsilon; by default the delta of FILE:NAME's
    own claim, else 0."""
    distinguisher: str = "default"
    """Attack: cosine, projection, likelihood_ratio, lowest_bits or learned; by default one of a family of attacks,
    chosen on trials set aside."""
    until_violation: bool = False
    """Stop as soon as a violation is certain."""
    checkpoint: str | None = None
    """File that stores the counts, so that an interrupted audit can be resumed; removed once the audit is finished. An
    existing one is refused without --resume."""
    resume: bool = False
    """Resume from the checkpoint of the same audit, on this or another machine; start afresh if there is none."""
    common: Annotated[Common, tyro.conf.arg(name="")]


def source(options: Audit) -> str:
    """Returns which of the sources the options ask to audit.

    Raises:
      InputError: none or several, or an option that has no effect on it.
    """
    named = [name for name in SOURCES if getattr(options, name) is not None]
    if len(named) != 1:
        wanted = "FILE:NAME of a mechanism, or one of --scores, --counts and --command"
        raise _validate.expected("target", wanted, " and ".join(named) or "none")
    for name in WITHOUT_EFFECT[named[0]]:
        if getattr(options, name) != type(options).__dataclass_fields__[name].default:
            option, beside = f"--{name.replace('_', '-')}", "FILE:NAME" if named[0] == "target" else f"--{named[0]}"
            raise _validate.expected(option, f"none with {beside}", getattr(options, name))
    if options.threshold is not None and named[0] != "scores":
        raise _validate.expected("--threshold", "none without --scores", options.threshold)
    return named[0]


def claimed(options: Audit, own: "Claim | None" = None, usual: str = "replace") -> "Claim | None":
    """Returns the claim to audit, or None.

    Args:
      options: of the command.
      own: the claim of FILE:NAME, if it has one.
      usual: the neighbouring relation if neither names one.

    Raises:
      InputError: --neighbouring without --epsilon, and as for :func:`restated`.
    """
    if options.epsilon is None:
        if options.neighbouring is not None:
            raise _validate.expected("--epsilon", "the claim that --neighbouring qualifies", "none")
        return own
    return restated(own, options.epsilon, options.delta, options.neighbouring, usual)


def restated(
    own: "Claim | None", epsilon: float, delta: float | None, neighbouring: str | None = None, usual: str = "replace"
) -> "Claim":
    """Returns the claim --epsilon, with the delta and the relation of a file's own claim unless options name others.

    Raises:
      InputError: a value out of range; no delta where the file's own claim is a curve, which has none.
    """
    from dpaudit.mechanisms.claim import Claim

    if own is None:
        return Claim(epsilon, delta or 0.0, neighbouring or usual)
    if own.is_curve and delta is None:
        raise _validate.expected("--delta", "that of the claim --epsilon, as the file's own claim is a curve", "none")
    return Claim(epsilon, own.delta if delta is None else delta, neighbouring or own.neighbouring)


def own_claim(case: "Case") -> "Claim | None":
    """Returns the claim that a file makes of its mechanism, or None.

    Raises:
      InputError: something else.
    """
    from dpaudit.mechanisms.claim import Claim, Mechanism

    own = case.mechanism.claim if case.claim is None and isinstance(case.mechanism, Mechanism) else case.claim
    if not isinstance(own, Claim | None):
        raise _validate.expected("claim", "a Claim or None", own)
    return own


def run(options: Audit) -> int:
    """Loads the mechanism, audits it and prints the result; returns the exit status.

    Raises:
      InputError: unusable options, file or mechanism.
    """
    from dpaudit._engine.checkpoint import of_pilot
    from dpaudit.auditing.audit import audit
    from dpaudit.auditing.domain import load
    from dpaudit.audits.ldp_client import versions
    from dpaudit.report.page import write_audit_page
    from dpaudit.report.table import result_table

    target = str(options.target)
    _validate.one_of(DISTINGUISHERS, distinguisher=options.distinguisher)
    kept = checkpoint_path(options.checkpoint, options.resume, "file")
    key = key_of(options.common.seed)
    case = load(target)
    claim = claimed(options, own_claim(case))
    prepare(options.common)
    began = time.perf_counter()
    with failures_in_one_line(target, "a mechanism that runs in every trial"), bars_on_terminal() as bars:
        result = audit(
            *case[:3],
            key=key,
            trials=options.trials,
            claim=claim,
            distinguisher=DISTINGUISHERS[options.distinguisher],
            delta=options.delta,
            confidence=options.confidence,
            until=sequential.violation() if options.until_violation else None,
            mesh=hosts.mesh("trials"),
            checkpoint=kept,
            progress=None if bars is None else _trials(bars, options),
        )
    row: dict[str, Any] = {"target": target} | result.to_row()
    row |= {"seed": options.common.seed, "seconds": time.perf_counter() - began, "versions": versions()}
    report(options.common, [row], result_table(result), partial(write_audit_page, row))
    if kept is not None and hosts.first():
        for file in (kept, of_pilot(kept)):
            file.unlink(missing_ok=True)
    return STATUS[result.verdict]


def _trials(bars: "Progress", options: Audit) -> Callable[[int], None]:
    task = bars.add_task("trials", total=options.trials // 2 * 2)
    return lambda done: bars.update(task, completed=done)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Examine:
    """Run all checks on a mechanism of your own: purity, its program, sensitivity, the worst pair of inputs, all
    attacks; the status is 0 (consistent), 1 (violation or fault), 2 (error) or 3 (underpowered)."""

    target: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE:NAME")]
    """FILE:NAME. In the Python file, NAME is a dpaudit.Case; or it is a function of (key, x) or a dpaudit.Mechanism,
    with the promise in the file's variable claim and the neighbours in domain (a dpaudit.Domain) or x0 and x1 (one
    pair)."""
    seconds: float = 30.0
    """About how long the examination may take."""
    confidence: float = 0.95
    """Confidence of all bounds together."""
    sensitivity: float | None = None
    """Sensitivity of a mechanism that adds noise: the most that releases of neighbours may differ under one key."""
    common: Annotated[Common, tyro.conf.arg(name="")]


def examine(options: Examine) -> int:
    """Loads the mechanism, examines it and prints the result; returns the exit status.

    Raises:
      InputError: unusable options, file or mechanism.
    """
    from dpaudit.auditing.domain import load_with_neighbours
    from dpaudit.auditing.examine import examine
    from dpaudit.audits.ldp_client import versions
    from dpaudit.report.page import write_examination_page
    from dpaudit.report.table import examination_table

    key = key_of(options.common.seed)
    case, neighbours = load_with_neighbours(options.target)
    if options.seconds <= 0:
        raise _validate.expected("--seconds", "a number above 0", options.seconds)
    prepare(options.common)
    began = time.perf_counter()
    with failures_in_one_line(options.target, "a mechanism that can be examined"), bars_on_terminal() as bars:
        task = None if bars is None else bars.add_task("examine", total=options.seconds)

        def progress(step: str, passed: float) -> None:
            if bars is not None and task is not None:
                bars.update(task, completed=min(passed, options.seconds), description=step)

        found = examine(
            case.mechanism,
            neighbours,
            case.claim,
            key=key,
            seconds=options.seconds,
            confidence=options.confidence,
            sensitivity=options.sensitivity,
            progress=progress,
        )
    row = _row(options, found) | {"seconds": time.perf_counter() - began, "versions": versions()}
    report(options.common, [row], examination_table(row), partial(write_examination_page, row))
    return STATUS[found.verdict]


def _row(options: Examine, found: "Examination") -> dict[str, Any]:
    """Returns the decisive audit as a row, with the verdict of the whole and everything that was tried."""
    row: dict[str, Any] = {"target": options.target, **found.result.to_row()}
    row |= {"audit_verdict": row["verdict"], "verdict": found.verdict, "sentence": found.sentence}
    row["steps"] = [step._asdict() for step in found.steps]
    row["findings"] = [str(finding) for finding in found.findings]
    return row | {"seed": options.common.seed, "curve": found.curve(), "with_more": found.with_more()}
