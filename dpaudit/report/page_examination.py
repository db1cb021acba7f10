"""Renders the page of one examination: the verdict in one sentence, what was tried, the curve, and the numbers."""

import json
from html import escape
from typing import Any

from dpaudit.auditing.result import AuditResult
from dpaudit.report import markup, words
from dpaudit.report.figures import audit_figure
from dpaudit.report.table import result_lines
from dpaudit.report.tradeoff_figure import tradeoff_figure

TITLES = {
    "violation": "The promise is broken",
    "fault": "The program has a fault",
    "consistent": "Nothing that was tried breaks the promise",
    "underpowered": "Too little was played to know",
}
ON_THE_CURVE = (
    "Every rule that guesses which input was used has two error rates. The promise keeps them above the dashed line. "
    "Blue: what the chosen rule attains, mixed with guessing, between the bounds on its rates. The promise is broken "
    "where blue, in its whole width, is in the shaded area."
)
ON_THE_NUMBER = (
    "Dot: ε measured, with its bounds. Dashed: promised. Shaded: violations that could not be told from the promise. "
    "Dotted: the ceiling, the most that this many trials could certify."
)


def render(row: dict[str, Any]) -> str:
    """Renders the body of the page, for a row of ``dpaudit examine``."""
    result = AuditResult.from_json(json.dumps(row))
    steps = [(f"{step['seconds']:.1f} s", f"{step['name']}: {step['found']}") for step in row["steps"]]
    more = [
        (f"{one['trials']:,} trials", f"would have shown a loss of {words.said(one['detectable'])} four times in five")
        for one in row["with_more"]
    ]
    numbers = [*result_lines(result), ("seed", str(row["seed"])), ("time", f"{row['seconds']:.1f} seconds")]
    return "\n".join(
        [
            f"<h1>{escape(TITLES[row['verdict']])}</h1>",
            f'<div class="box">{markup.paragraph(row["sentence"])}</div>',
            f"<h2>What was tried on {escape(str(row['target']))}</h2>",
            markup.definitions(steps),
            "<h2>What an attacker can do</h2>",
            markup.figure(tradeoff_figure(row["curve"]), "curve", ON_THE_CURVE),
            markup.figure(audit_figure(row), "audit", ON_THE_NUMBER),
            *(["<h2>What more trials would have shown</h2>", markup.definitions(more)] if more else []),
            "<h2>Every number</h2>",
            markup.definitions([*numbers, ("versions", str(row["versions"]))]),
        ]
    )
