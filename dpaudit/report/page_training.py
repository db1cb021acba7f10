"""The page of one audited training: the verdict in plain words, and every number with what it speaks of."""

from html import escape
from typing import Any

from dpaudit.report import markup, words
from dpaudit.report.table import training_lines

VERDICTS = {
    "violation": (
        "The accounting is broken",
        "The noisy sums tell more canaries apart than an ε of {accounted} allows: something between the gradients and "
        "the noise is not what the accounting takes it for. Chance explains this in at most {risk:g} % of all audits.",
    ),
    "consistent": (
        "No violation was found",
        "The training spent an ε of {accounted} by its accounting, and its canaries show at least {lower}. That is no "
        "proof of privacy: what lies between is unknown, for {canaries:,} canaries in one run show a part of ε only.",
    ),
    "underpowered": (
        "Too few canaries to know",
        "Even if every guess had been right, {canaries:,} canaries would have certified an ε of {ceiling} at most, no "
        "more than the {accounted} that were accounted. More canaries show more.",
    ),
}


def render(row: dict[str, Any]) -> str:
    """The body of the page, for a row of :func:`dpaudit.training.audited.train_audited`."""
    title, explained = VERDICTS[row["verdict"]]
    explained = explained.format(
        accounted=words.said(row["epsilon_accounted"]),
        lower=words.said(row["epsilon_lower"]),
        ceiling=words.said(row["ceiling"]),
        canaries=row["canaries"],
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
            markup.definitions([*training_lines(row), *more]),
        ]
    )
