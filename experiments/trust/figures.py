"""Draws the coverage study: how often each estimator is wrong, and how close it comes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import binom

from experiments.trust.coverage import CONTROL, LEVEL, PROMISED

Rows = Sequence[dict[str, Any]]
COLOURS = ("#56B4E9", "#0072B2", "#222222")
WRONG, FAINT = "#D55E00", "#8a8a8a"


def coverage(rows: Rows) -> Figure:
    """Left: false-violation rate of each pair and size, with what noise allows. Right: lower bound over the truth."""
    rates, shares = (
        [row for row in rows if row["quantity"] == quantity and row["setting"]["confidence"] == 0.95]
        for quantity in ("false_violation_rate", "tightness")
    )
    parts = {part: [row for row in rates if row["setting"]["part"] == part] for part in (PROMISED, CONTROL)}
    order = [(part, name) for part in parts for name in dict.fromkeys(r["setting"]["estimator"] for r in parts[part])]
    sizes = sorted({row["setting"]["trials"] for row in parts[PROMISED]})
    figure = Figure(figsize=(10, 0.36 * len(order) + 1.6), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    level = LEVEL / sum(
        row["quantity"] == "false_violation_rate" and row["setting"]["part"] == PROMISED for row in rows
    )
    left.axvline(0.05, color=FAINT, linestyle="--", linewidth=1)
    left.text(0.052, -0.7, "nominal 5%", fontsize=8, color=FAINT)
    for place, (part, name) in enumerate(order):
        for size, colour in zip(sizes, COLOURS, strict=False):
            height = place + 0.22 * (sizes.index(size) - (len(sizes) - 1) / 2)
            style: dict[str, Any] = {"color": colour if part == PROMISED else WRONG, "linestyle": "none"}
            found = [row for row in parts[part] if _is(row, estimator=name, trials=size)]
            own = [row["ours"] for row in found]
            if found:
                audits = min(int(row["scale"].split()[0].replace(",", "")) for row in found)
                allowed = binom.isf(level, audits, 0.05) / audits
                left.barh(height, allowed, height=0.22, color="#009E73", alpha=0.15, linewidth=0)
            left.plot(own, np.full(len(own), height), marker="o", markersize=4, alpha=0.75, clip_on=False, **style)
            own = [row["ours"] for row in shares if _is(row, part=part, estimator=name, trials=size)]
            if own and part == PROMISED:
                right.plot([min(own), max(own)], [height, height], color=colour, linewidth=2.5, solid_capstyle="butt")
                right.plot(np.median(own), height, marker="o", markersize=5, **style)
    for size, colour in zip(sizes, COLOURS, strict=False):
        right.plot([], [], color=colour, marker="o", markersize=5, label=f"{size:,} trials")
    left.set_xscale("symlog", linthresh=0.1)
    left.set_xlim(0, 1)
    left.set_xticks([0, 0.025, 0.05, 0.1, 0.3, 1], ["0", "2.5%", "5%", "10%", "30%", "100%"])
    left.set_xticks([], minor=True)
    left.set_yticks(range(len(order)), [name for _, name in order], fontsize=9)
    for label, (part, _) in zip(left.get_yticklabels(), order, strict=True):
        label.set_color(WRONG if part == CONTROL else "#222222")
    left.set_ylim(len(order) - 0.4, -1.1)
    left.set_xlabel("false violations, one dot a pair\n(shade: what noise allows; orange: known to be wrong)")
    right.axvline(1, color=FAINT, linestyle="--", linewidth=1)
    right.set_xlim(0, 1.05)
    right.set_xticks([0.25, 0.5, 0.75, 1])
    right.set_xlabel("lower bound / true ε\n(dot: median pair; bar: all pairs)")
    right.legend(fontsize=8, loc="lower left")
    return figure


def _is(row: dict[str, Any], **setting: Any) -> bool:
    return all(row["setting"][name] == value for name, value in setting.items())
