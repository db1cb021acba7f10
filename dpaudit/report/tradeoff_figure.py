"""Draws a trade-off curve: the error rates that a promise allows, and those that an attack was seen to have."""

from typing import TYPE_CHECKING, Any

import numpy as np

from dpaudit.report.figures import FAINT, INK, SERIES, canvas, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BROKEN = "#D55E00"


@styled
def tradeoff_figure(curve: dict[str, Any]) -> "Figure":
    """Draws the claimed curve, what lies below it, and the measured band.

    Args:
      curve: lists ``claimed_fpr`` and ``claimed_fnr`` of the promise's curve; ``fpr_low``, ``fpr_high``, ``fnr_low``
        and ``fnr_high`` of the attack's rules, from the one that never says "world 1" to the one that always does.
    """
    figure = canvas(5.0, 4.6)
    axes = figure.subplots()
    fpr, fnr = (np.asarray(curve[f"claimed_{rate}"], float) for rate in ("fpr", "fnr"))
    axes.fill_between(fpr, 0, fnr, color=BROKEN, alpha=0.15, linewidth=0)
    axes.plot(fpr, fnr, color=INK, linestyle="--", linewidth=1)
    axes.plot([0, 1], [1, 0], color=FAINT, linewidth=0.8)
    low = [np.asarray(curve[f"{rate}_low"], float) for rate in ("fpr", "fnr")]
    high = [np.asarray(curve[f"{rate}_high"], float) for rate in ("fpr", "fnr")]
    outline = [np.concatenate([one, other[::-1]]) for one, other in zip(low, high, strict=True)]
    axes.fill(*outline, color=SERIES[0][0], alpha=0.45, linewidth=0.8)
    axes.annotate(
        "promised", (fpr[len(fpr) // 2], fnr[len(fnr) // 2]), (-6, -12), textcoords="offset points", ha="right"
    )
    axes.annotate("guessing", (0.5, 0.5), (6, 6), textcoords="offset points", color=FAINT)
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes.set_xlabel("false positive rate")
    axes.set_ylabel("false negative rate")
    return figure
