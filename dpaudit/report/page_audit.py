"""Renders the pages about one audit, one examination and one audited training: the verdict in plain words, then every
number."""

import json
import math
from html import escape
from typing import Any

from dpaudit.auditing.result import AuditResult
from dpaudit.report import markup, words
from dpaudit.report.figures import audit_figure
from dpaudit.report.table import result_lines, training_lines
from dpaudit.report.tradeoff_figure import tradeoff_figure

VERDICTS = {
    "violation": (
        "The promise is broken",
        "The two worlds can be told apart more often than the promise allows. The bound fails to hold in at most "
        "{risk:g} % of such audits, so chance is an unlikely explanation; fresh trials will show it again.",
    ),
    "consistent": (
        "No violation was found",
        "This attack did not exceed the promise. That is not a proof of privacy: other inputs or a better attack may "
        "show more. {seen}",
    ),
    "underpowered": ("This audit could not have shown a violation", "Reason: {reason}. {next}"),
    "measured": (
        "Measured, without a promise",
        "No promise was given to compare with: the numbers below are what this attack attained.",
    ),
}

TOO_FEW = "even ", "with this many "  # how reasons begin that more trials or canaries take away
MORE_TRIALS = "The command dpaudit plan computes how many trials are needed."
MORE = "It takes more of them, not another attack."
ANOTHER_ATTACK = "Another attack, or other inputs, may show more."


def render(row: dict[str, Any]) -> str:
    """Renders the body of the page from a row of :meth:`dpaudit.AuditResult.to_row` with its target."""
    result = AuditResult.from_json(json.dumps(row))
    title, explained = VERDICTS[result.verdict]
    how = "By this attack" if result.attacks else "With a perfect attack"
    least = words.beside(result.detectable, row["claim_epsilon"])
    seen = f"{how}, a true ε of {least} or more would have been called a violation with "
    explained = explained.format(
        risk=round(100 * (1 - result.confidence), 6),
        seen="" if result.detectable is None else f"{seen}probability 0.8.",
        reason=result.reason,
        next=_advice(result),
    )
    return "\n".join(
        [
            f"<h1>{escape(title)}</h1>",
            f'<div class="box">{markup.paragraph(explained)}</div>',
            markup.figure(audit_figure(row), "audit", _caption(row)),
            f"<h2>{escape(str(row['target']))}</h2>",
            markup.definitions(_every_number(result, row)),
        ]
    )


def _every_number(result: AuditResult, row: dict[str, Any]) -> list[tuple[str, str]]:
    run = [("seed", str(row["seed"])), ("time", f"{row['seconds']:.1f} seconds"), ("versions", str(row["versions"]))]
    return [*_unsaid(result_lines(result), row), *run]


def _unsaid(lines: list[tuple[str, str]], row: dict[str, Any]) -> list[tuple[str, str]]:
    """Leaves out the reason for an underpowered audit, which the page's first sentences give."""
    return [line for line in lines if row["verdict"] != "underpowered" or line[0] != "reason"]


def _advice(result: AuditResult) -> str:
    """Says what would help an audit that could not have shown a violation: more trials where they were too few, which
    are planned for an epsilon and not for a curve, else another attack."""
    reason = str(result.reason)
    if not reason.startswith(TOO_FEW):
        return ANOTHER_ATTACK
    return MORE_TRIALS if result.claim and not result.claim.is_curve and "trials" in reason else MORE


def _caption(row: dict[str, Any]) -> str:
    """Names the marks that :func:`audit_figure` draws for this row."""
    marks = ["Dot: ε measured, with its bounds."]
    if math.isinf(words.number(row["epsilon_hat"])):
        marks = ["Dot at the right edge: ε measured, which is infinite, with its lower bound."]
    if math.isfinite(words.number(row["claim_epsilon"])):
        marks.append("Dashed: promised.")
        if row["detectable"] is not None:
            marks.append("Shaded: violations that could not be told from the promise.")
    return " ".join([*marks, "Dotted: the ceiling, the most that this many trials could certify."])


TITLES = {
    "violation": "The promise is broken",
    "fault": "The program has a fault",
    "consistent": "No attack that was tried breaks the promise",
    "underpowered": "This examination could not have shown a violation",
}
ON_THE_CURVE = (
    "Every rule that guesses which input was used has two error rates. The promise keeps them above the dashed line. "
    "Blue: the joint confidence band of the chosen attack's rates, over all its thresholds. "
    "Where its upper edge is below the dashed line, the promise is broken: the area between them is dark. Cross: the "
    "rule on which the verdict rests, with its own bounds, which are narrower."
)


def render_examination(row: dict[str, Any]) -> str:
    """Renders the body of the page from a row of ``dpaudit examine``."""
    result = AuditResult.from_json(json.dumps(row))
    steps = [(f"{step['seconds']:.1f} s", f"{step['name']}: {step['found']}") for step in row["steps"]]
    more = [(f"{one['trials']:,} trials", _would_show(one["detectable"], row)) for one in row["with_more"]]
    return "\n".join(
        [
            f"<h1>{escape(TITLES[row['verdict']])}</h1>",
            f'<div class="box">{markup.paragraph(row["sentence"])}</div>',
            f"<h2>What was tried on {escape(str(row['target']))}</h2>",
            markup.definitions(steps),
            "<h2>What an attacker can do</h2>",
            markup.figure(tradeoff_figure(row["curve"]), "curve", ON_THE_CURVE),
            markup.figure(audit_figure(row), "audit", _caption(row)),
            *(["<h2>What more trials would have shown</h2>", markup.definitions(more)] if more else []),
            "<h2>Every number</h2>",
            markup.definitions(_every_number(result, row)),
        ]
    )


def _would_show(detectable: Any, row: dict[str, Any]) -> str:
    if math.isinf(words.number(detectable)):
        return "would have shown no loss, however large, four times in five"
    return f"would have shown a loss of {words.beside(detectable, row['claim_epsilon'])} four times in five"


TRAINING_VERDICTS = {
    "violation": (
        "The accounting is broken",
        "The noisy sums reveal more canaries than an ε of {accounted} allows: something between the gradients and the "
        "noise is not as the accounting assumes. Chance produces this in at most {risk:g} % of audits.",
    ),
    "consistent": (
        "No violation was found",
        "The training spent an ε of {accounted} according to its accounting, and its canaries show at least {lower}. "
        "That is not a proof of privacy: the true value may lie anywhere between the two, because {canaries:,} "
        "canaries in one run reveal only a part of ε.",
    ),
    "underpowered": (
        "This audit could not have shown a violation",
        "The training spent an ε of {accounted} according to its accounting. Reason: {reason}. {next}",
    ),
}
MORE_CANARIES = "More canaries would show more."
KNOWN_LOSS = "A recipe with a known fault, such as half of the noise, tells which."


def render_training(row: dict[str, Any]) -> str:
    """Renders the body of the page from a row of :func:`dpaudit.audits.audited_training.train_audited`."""
    title, explained = TRAINING_VERDICTS[row["verdict"]]
    explained = explained.format(
        accounted=words.at_most(row["epsilon_accounted"]),
        lower=words.said(row["epsilon_lower"]),
        canaries=row["canaries"],
        reason=row["reason"],
        next=MORE_CANARIES if str(row["reason"]).startswith(TOO_FEW) else KNOWN_LOSS,
        risk=round(100 * (1 - row["confidence"]), 6),
    )
    more = [
        ("optimiser", f"{row['optimizer']}, learning rate {row['learning_rate']:g}"),
        ("seed", str(row["seed"])),
        ("time", f"{row['seconds']:.1f} seconds on {row['device']}"),
        ("versions", str(row["versions"])),
    ]
    return "\n".join(
        [
            f"<h1>{escape(title)}</h1>",
            f'<div class="box">{markup.paragraph(explained)}</div>',
            f"<h2>DP-SGD on {escape(row['dataset'])}</h2>",
            markup.definitions([*_unsaid(training_lines(row), row), *more]),
        ]
    )
