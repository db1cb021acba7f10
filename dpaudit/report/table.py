"""Shows results on the screen: tables of a client's audit, a single audit, an examination, a training and a plan."""

import json
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from dpaudit import _validate
from dpaudit.auditing.bounds.certified import Certificates
from dpaudit.auditing.bounds.plan import PERFECT, Plan
from dpaudit.auditing.part_seen import most_attained, sees_a_part
from dpaudit.auditing.result import AuditResult, Tried
from dpaudit.mechanisms.claim import Claim
from dpaudit.report import words
from dpaudit.report.randomizer_words import kind_of

COLOURS = {"violation": "bold red", "fault": "bold red", "consistent": "green", "underpowered": "yellow"}
SEEN = "would have been called a violation with probability 0.8"
DETECTABLE = f"{SEEN}, given a perfect attack"
NEIGHBOURS = {
    "replace": "replace: one record takes any other value (of a local mechanism: any two inputs)",
    "add_remove": "add_remove: one record is present or absent",
}
RULES = {
    "above": "world 1 where the score is above {}",
    "not above": "world 1 where the score is not above {}",
    "either": "the score above {}, or not above it: both were tried, each with half of the error probability",
}
NOT_REPRODUCIBLE = "it draws randomness outside its generator: bounds hold, but the trials cannot be reproduced"
PART_SEEN = (
    "at most {share:.0%} of the promise: the mechanism loses less than it may, or this attack sees only a part of its "
    "loss. What is detectable assumes the first; an alternative with a known loss tells which"
)
POWER = "(the probability of calling the alternative a violation)"
CERTIFIED = (  # name, digits of the percentage, meaning
    ("advantage", 1, "TPR - FPR"),
    ("accuracy", 1, "right guesses of the rule that makes the most of them"),
    ("TPR at 0.01", 2, "at FPR 0.01"),
    ("TPR at 0.001", 2, "at FPR 0.001"),
    ("posterior", 1, "posterior probability of world 1 after it was guessed, from a prior of 50 %"),
)
SHOWN = 6  # attacks listed, of all that were tried
FIRST, LAST = "access", "\nverdict"
NUMBERS = (
    "ε\nclaim",
    "right %\n(exact)",
    "cosine ε̂\n± std",
    "pooled\nbounds",
    "\nexact",
    "optimal\nexact",
    "test ε\nlower",
)


def audit_table(rows: Sequence[dict[str, Any]], planned: int | None = None) -> Table:
    """Makes a table, 100 columns wide, of rows of :func:`dpaudit.audits.ldp_client.audit_craft`.

    Args:
      rows: of one or several settings.
      planned: how many rows the whole run makes; the caption of fewer says that it was interrupted.

    Raises:
      InputError: no rows.
    """
    if not rows:
        raise _validate.expected("rows", "at least one result row", "none")
    rows = words.ordered(rows)
    table = Table(
        title=_title(rows), caption=_caption(rows, planned), box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False
    )
    table.caption_justify = "left"
    table.caption_style = table.title_style = ""
    table.add_column(FIRST, max_width=14)
    for header in NUMBERS:
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column(LAST, no_wrap=True)
    for source in words.distinct(rows, words.source):
        table.add_row(Text(source, "bold"))
        own = [row for row in rows if words.source(row) == source]
        for craft in words.distinct(own, "craft"):
            group = [row for row in own if row["craft"] == craft]
            names = [words.craft_name(craft), *[""] * (len(group) - 1)]
            for name, row in zip(names, group, strict=True):
                table.add_row(name, *_cells(row), end_section=row is group[-1])
    return table


def _cells(row: dict[str, Any]) -> list[str | Text]:
    return [
        f"{row['epsilon']:g}",
        f"{100 * row['accuracy']:.1f} ({100 * row['accuracy_exact']:.1f})",
        words.with_spread(row["epsilon_hat"], row["epsilon_hat_std"]),
        words.interval(row["epsilon_lower"], row["epsilon_upper"]),
        words.said(row["epsilon_exact"]),
        words.said(row["epsilon_optimal"]),
        words.said(row["epsilon_optimal_lower"]),
        _verdict(row["verdict"]),
    ]


def _verdict(verdict: str) -> Text:
    return Text(verdict, COLOURS.get(verdict, ""))


def _title(rows: Sequence[dict[str, Any]]) -> Text:
    kind, delta, steps = kind_of(rows), words.delta_of(rows), words.listed(rows, "pretraining_steps")
    setting = [f"L = {words.listed(rows, 'clip_norm', '{:g}'.format)}"] * kind.clips
    setting += [f"δ = {delta:g}"] * (delta > 0) + [f"{steps} steps of pre-training"] * bool(steps)
    return Text(f"{kind.name} examined by its client ({', '.join(setting)})")


def _caption(rows: Sequence[dict[str, Any]], planned: int | None) -> Text:
    lines = [unfinished] if (unfinished := words.unfinished(rows, planned)) else []
    lines += [f"Engine {name}: {words.ENGINES.get(name, name)}." for name in words.distinct(rows, "engine")]
    played = [row for row in rows if row["trials"]]
    if played:
        lines += [
            f"{words.effort(played)}.",
            f"Confidence: {words.assurance(played)}.",
            f"Ceiling: this many trials could certify ε = {words.listed(played, 'ceiling', words.said)} at most.",
            _detectable(played),
        ]
    lines.append(f"Neighbours: {words.words_of(rows, 'neighbouring', words.RELATIONS)}. ε in nats.")
    return Text("\n".join(lines))


def _detectable(played: Sequence[dict[str, Any]]) -> str:
    if fault := kind_of(played).fault:
        shown = words.detectable(played, min)
        return f"Detectable: a true ε of {shown}, {fault}, {SEEN} by the optimal test of the best setting."
    return f"Detectable: a true ε of {words.detectable(played)} {DETECTABLE}."


def result_table(result: AuditResult) -> Table:
    """Makes a table of one audit, one line per number."""
    return _lines_table(result.verdict, result_lines(result))


def examination_table(row: dict[str, Any]) -> Table:
    """Makes a table of one examination: its verdict in a sentence, what was tried, and the decisive audit.

    Args:
      row: of ``dpaudit examine``.
    """
    audited = AuditResult.from_json(json.dumps(row))
    tried = [(f"{step['seconds']:.1f} s", f"{step['name']}: {step['found']}") for step in row["steps"]]
    return _lines_table(row["verdict"], [("in words", row["sentence"]), *tried, *result_lines(audited)])


def training_table(row: dict[str, Any]) -> Table:
    """Makes a table of one audited training, one line per number."""
    return _lines_table(row["verdict"], training_lines(row))


def _lines_table(verdict: str, lines: Sequence[tuple[str, str]]) -> Table:
    table = Table(box=SIMPLE_HEAD, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_row("verdict", _verdict(verdict))
    for name, value in lines:
        table.add_row(name, Text(value))
    return table


def result_lines(result: AuditResult) -> list[tuple[str, str]]:
    """Lists the numbers of one audit with their names and meanings."""
    claim = result.claim
    promised = None if claim is None or claim.is_curve else claim.epsilon
    said = partial(words.beside, promised=promised)
    bound = f"with confidence {100 * result.confidence:g}%"
    seen = f"{SEEN}, by this attack" if result.attacks else DETECTABLE
    most = max(result.epsilon_lower, 0 if claim is None else claim.epsilon)
    detectable = "–" if result.detectable is None else f"{said(result.detectable)} or more {seen}"
    if words.number(result.detectable) == math.inf:
        detectable = f"no ε, however large, {seen}"
    return [
        *([] if result.reason is None else [("reason", result.reason)]),
        ("promised", _promised(claim)),
        *([] if result.p_value is None else [("p-value", f"{result.p_value:.2g} (of the promise being kept)")]),
        ("ε at least", f"{said(result.epsilon_lower)} ({bound}, of the mechanism)"),
        ("ε measured", f"{said(result.epsilon_hat)} at δ = {result.delta:g}"),
        ("ε at most", f"{said(result.epsilon_upper)} ({bound}, of this attack: another may attain more)"),
        *_part_seen(result),
        ("right guesses", f"{100 * result.accuracy:.1f} % (FPR {result.fpr:.4f}, FNR {result.fnr:.4f})"),
        ("trials", f"{result.trials:,}, of which {result.negatives + result.positives:,} counted"),
        ("ceiling", f"{said(result.ceiling)} (the most that this many trials could certify)"),
        ("detectable", detectable),
        *([] if result.power is None else [("power", f"{result.power:.2f} {POWER}")]),
        *([] if result.reading is None else [("if Gaussian", _reading(result, bound))]),
        *([] if result.certified is None else certified_lines(result.certified)),
        ("method", result.method),
        *([("last digits", _low_bits(result, bound))] if (result.low_bits or 0) > most else []),
        *([] if result.reproducible else [("not reproducible", NOT_REPRODUCIBLE)]),
        *([] if result.threshold is None else [("rule", RULES[result.side].format(f"{result.threshold:.6g}"))]),
        *([("attacks", tried(result.attacks))] if result.attacks else []),
        ("neighbours", NEIGHBOURS.get(result.neighbouring, result.neighbouring)),
    ]


def _part_seen(result: AuditResult) -> list[tuple[str, str]]:
    """Warns of an attack that attains less than half of the promise, of which the result is silent on why."""
    if result.claim is None or result.verdict != "consistent" or not sees_a_part(result):
        return []
    return [("part seen", PART_SEEN.format(share=most_attained(result) / result.claim.epsilon))]


def certified_lines(certified: Certificates) -> list[tuple[str, str]]:
    """Lists the measures that are certified besides epsilon, each at its observed rates and with its bounds."""
    return [
        (name, f"{100 * one.value:.{digits}f} % [{100 * one.lower:.{digits}f}, {100 * one.upper:.{digits}f}], {what}")
        for (name, digits, what), one in zip(CERTIFIED, certified, strict=True)
    ]


def _reading(result: AuditResult, bound: str) -> str:
    ends = words.interval(result.reading_lower, result.reading_upper)
    return f"ε of {words.said(result.reading_hat)} {ends} at δ = {result.delta:g} ({bound}; in no verdict)"


def _low_bits(result: AuditResult, bound: str) -> str:
    shown = words.said(result.low_bits)
    return f"ε at least {shown} by the last digits of floats ({bound}; in no verdict unless lowest_bits is asked for)"


def _promised(claim: Claim | None) -> str:
    if claim is None:
        return "nothing"
    return f"the curve {claim!r}" if claim.is_curve else f"ε = {claim.epsilon:g}, δ = {claim.delta:g}"


def tried(attacks: Sequence[Tried]) -> str:
    """Lists attacks with the epsilon of their best rules on the trials set aside: ``norm 1.31, mean 0.02``."""
    shown = ", ".join(f"{attack.name} {words.said(attack.bound)}" for attack in attacks[:SHOWN])
    more = f" and {len(attacks) - SHOWN} more" if len(attacks) > SHOWN else ""
    return f"{shown}{more} (on the trials set aside)"


def training_lines(row: dict[str, Any]) -> list[tuple[str, str]]:
    """Lists the numbers of one audited training, a row of :mod:`dpaudit.audits.audited_training`."""
    canaries, rate = row["canaries"], row["batch_size"] / (row["examples"] + row["canaries"])
    bound = f"with confidence {100 * row['confidence']:g}%"
    spent = f"{words.at_most(row['epsilon_accounted'])} at δ = {row['delta']:g}"
    records = f"{rate * row['examples']:.0f} of a batch's {row['batch_size']} rows"
    trained = f"{row['network']} on the {row['examples']:,} records of {row['dataset']}, {row['steps']:,} steps"
    return [
        *([] if row["reason"] is None else [("reason", row["reason"])]),
        ("accuracy", f"{100 * row['accuracy']:.1f} % of {row['tested']:,} test images"),
        ("ε accounted", f"{spent} (target {row['epsilon_target']:g}; records and canaries alike)"),
        ("ε at least", f"{words.said(row['epsilon_lower'])} ({bound}, of the training)"),
        (
            "right guesses",
            f"{row['correct']} of {row['guesses']} on {canaries:,} canaries, {row['included']:,} included",
        ),
        ("ceiling", f"{words.said(row['ceiling'])} (the most that this many canaries could certify)"),
        ("adversary", "sees the noisy sum of every step, in which each canary has its own coordinate"),
        ("price", f"{records} are records: canaries cost accuracy"),
        ("trained", f"{trained}, each row with probability {rate:.4f}"),
        ("noise", f"{row['noise_multiplier']:.3f} times the clip norm {row['clip_norm']:g}"),
        ("neighbours", NEIGHBOURS[row["neighbouring"]]),
    ]


_LIMITS = (
    "Few mechanisms allow one, and Gaussian noise does not: name yours, FILE:NAME, for a plan that is made for it. "
    "Choosing a threshold takes a third more trials when their number is fixed."
)
_ASIDE = "Trials set aside to choose a threshold are included: a quarter of a fixed number, fewer with early stopping."


def plan_table(plan: Plan, rate_of: str) -> Table:
    """Makes a table of how many trials each question takes and how long they last; its caption gives expected bounds.

    Args:
      plan: from :func:`dpaudit.auditing.bounds.plan.plan`.
      rate_of: the mechanism, in words, whose trials per second the plan assumes.
    """
    claim = f"({plan.epsilon:g}, {plan.delta:g})" if plan.delta else f"{plan.epsilon:g}"
    title = f"Trials to check a claim of ε = {claim} at confidence {plan.confidence:g}"
    table = Table(title=Text(title), caption=Text(_plan_caption(plan, rate_of)), box=SIMPLE_HEAD, show_edge=False)
    table.title_justify = table.caption_justify = "left"
    table.title_style = table.caption_style = ""
    table.add_column("question")
    table.add_column("trials", justify="right", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    questions = (
        ("could a violation be shown at all?", plan.least),
        (f"would ε = {plan.true_epsilon:g} be called a violation with probability 0.8?", plan.fixed),
        ("stopping as soon as it is certain: half of such audits have stopped by", plan.sequential_median),
        ("80 percent of them have stopped by", plan.sequential_most),
    )
    for question, trials in questions:
        table.add_row(question, f"{trials:,.0f}", duration(plan.seconds(trials)))
    return table


def _plan_caption(plan: Plan, rate_of: str) -> str:
    said = partial(words.beside, promised=plan.epsilon)
    lines = [
        f"With {plan.trials:,} trials, the expected lower bound of a mechanism that spends exactly its claim is "
        f"{said(plan.honest_lower)}; the largest possible bound is {said(plan.ceiling)}, and the smallest loss called "
        f"a violation with probability 0.8 is {said(plan.detectable)}.",
        f"The attack is assumed to be {plan.assumes}. {_LIMITS if plan.assumes == PERFECT else _ASIDE} "
        "Stopping times are simulated.",
    ]
    if plan.rate is not None:
        lines.append(f"Times are for {plan.rate:,.0f} trials a second: {rate_of}.")
    return "\n".join(lines)


def duration(seconds: float | None) -> str:
    """Formats seconds in words: "<1 s", "42 s", "3.5 min", "2.0 h", "5 days"; empty if unknown."""
    if seconds is None:
        return ""
    if math.isinf(seconds):
        return "never"
    if seconds < 1:
        return "<1 s"
    for size, unit, limit, digits in ((1, "s", 60, 0), (60, "min", 3600, 1), (3600, "h", 172_800, 1)):
        if seconds < limit:
            return f"{seconds / size:.{digits}f} {unit}"
    return f"{seconds / 86_400:,.0f} days"
