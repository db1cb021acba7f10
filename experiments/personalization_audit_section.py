"""The part of experiments/README.md that tells of the audit of paper 004."""

from collections.abc import Iterable, Sequence
from typing import Any

from experiments.markdown import number, ranged, select, table

Rows = Sequence[dict[str, Any]]


def section(rows: Rows) -> Iterable[str]:
    """Markdown blocks, in reading order."""
    one = rows[0]["setting"]
    yield "## Paper 004: what a transcript tells of one user\n"
    yield "Command: `python -m experiments.personalization_audit`, then `make results`.\n"
    yield (
        "Private alternating least squares, phase by phase, with three items, two users, and one more whom the adversary knows whole: one "
        "item, and a rating so large that their factor and what is left of their rating are as long as clipping lets them be. From "
        "the transcript alone the server's state before every round is replayed, and with it what the others' statistics were before "
        "noise; the score is the likelihood ratio of all releases together, before any projection. One user is added or removed; "
        f"δ = {one['delta']:g}.\n"
    )
    yield from _sound(select(rows, "mu"))
    yield from _faults(select(rows, "fault"))


def _sound(rows: Rows) -> Iterable[str]:
    apart = max(abs(row["ours"] / row["setting"]["accounted"] - 1) for row in rows)
    yield (
        f"**As it ships.** Audited μ, with the range of 1.96 standard errors, beside the accounted one: they are at most {apart:.1%} apart. "
        f"The bounds on ε hold with confidence {rows[0]['setting']['confidence']:.0%} each, if noise is Gaussian; they are from the counts of a "
        "guess whose threshold is fixed beforehand.\n"
    )
    lines = []
    for row in rows:
        setting = row["setting"]
        bounds = f"[{number(setting['epsilon_lower'])}, {number(setting['epsilon_upper'])}]"
        cells = [
            str(setting["rounds"]),
            number(setting["accounted"], 4),
            ranged(row, 4),
            number(setting["claimed"]),
            bounds,
        ]
        lines.append([setting["phase"], *cells, row["scale"]])
    yield table(["phase", "rounds", "accounted μ", "audited μ", "accounted ε", "audited ε", "run"], lines)


def _faults(rows: Rows) -> Iterable[str]:
    caught = sum(row["setting"]["verdict"] == "violation" for row in rows if row["setting"]["fault"] != "none")
    yield (
        f"**Broken.** One round with one thing wrong: {caught} of {len(rows) - 1} are caught beyond the ε that they claim. *Ratings not clipped* "
        "is the mistake of public code: noise calibrated for ratings of size 1, where what is left of them reaches 3, with equal shares "
        "of the noise for both statistics. *A count on the side*: how many devices took part, with as much noise as "
        "everything else, by a process that says it costs nothing. *A factor that leaks*: the sum of users' own factors is added to the "
        "first item's moment, unclipped. Bounds are by Clopper-Pearson and assume nothing of the noise; the events that cost most are "
        "rare, so a lower bound stays below the true ε.\n"
    )
    lines = []
    for row in rows:
        setting = row["setting"]
        text = f"[{number(row['ours_low'])}, {number(row['ours_high'])}]"
        text = f"**{text}**" if setting["verdict"] == "violation" else text
        cells = [f"{setting['claimed']:.2f}", text, number(setting["true"]), setting["verdict"], row["scale"]]
        lines.append([setting["fault"], *cells])
    yield table(["fault", "claimed ε", "audited ε", "true ε", "verdict", "run"], lines)
