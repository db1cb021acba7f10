"""The page of one audit: the verdict in plain words, one picture, and every number with what it speaks of."""

import json
from html import escape
from typing import Any

from dpaudit.auditing.result import AuditResult
from dpaudit.report import markup, words
from dpaudit.report.figures import audit_figure
from dpaudit.report.table import result_lines

VERDICTS = {
    "violation": (
        "The promise is broken",
        "The releases of the two inputs are told apart more often than the promise allows. The bound fails to hold in "
        "at most {risk:g} % of all such audits, so chance is no likely explanation; another seed will show it again.",
    ),
    "consistent": (
        "No violation was found",
        "This attack on this pair of inputs did not exceed the promise. That is no proof of privacy: another pair or "
        "a better attack may show more. {seen}",
    ),
    "underpowered": ("This could have shown nothing", "No violation could have been seen: {reason}. {next}"),
    "measured": (
        "Measured, without a promise",
        "No promise was given to compare with: the numbers below say what this attack attained on this pair.",
    ),
}

MORE_TRIALS = "The command dpaudit plan tells how many trials the question needs."
ANOTHER_ATTACK = "Another attack, or another pair of inputs, may see more."


def render(row: dict[str, Any]) -> str:
    """The body of the page, for a row of :meth:`dpaudit.AuditResult.to_row` with its target."""
    result = AuditResult.from_json(json.dumps(row))
    title, explained = VERDICTS[result.verdict]
    how = "By this attack" if result.attacks else "With a perfect attack"
    seen = f"{how}, a true ε of {words.said(result.detectable)} or more would have been called a violation with "
    explained = explained.format(
        risk=round(100 * (1 - result.confidence), 6),
        seen="" if result.detectable is None else f"{seen}probability 0.8.",
        reason=result.reason,
        next=MORE_TRIALS if result.claim and "trials" in str(result.reason) else ANOTHER_ATTACK,
    )
    caption = (
        "Dot: ε measured, with its bounds. Dashed: promised. Shaded: violations that could not be told from the "
        "promise. Dotted: the ceiling, the most that this many trials could certify."
    )
    numbers = [*result_lines(result), ("seed", str(row["seed"])), ("time", f"{row['seconds']:.1f} seconds")]
    return "\n".join(
        [
            f"<h1>{escape(title)}</h1>",
            f'<div class="box">{markup.paragraph(explained)}</div>',
            markup.figure(audit_figure(row), "audit", caption),
            f"<h2>{escape(str(row['target']))}</h2>",
            markup.definitions([*numbers, ("versions", str(row["versions"]))]),
        ]
    )
