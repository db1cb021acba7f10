"""Draws trade-off curves: the error rates that a promise allows, and those that attacks attained."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import ndtr, ndtri

from dpaudit.report.figures import FAINT, INK, OPTIMAL, SERIES, canvas, styled
from dpaudit.report.words import craft_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BROKEN = "#D55E00"
GRID = np.linspace(0.0, 1.0, 1001)


@styled
def tradeoff_figure(curve: dict[str, Any]) -> "Figure":
    """Draws the claimed curve, the measured band, the part of it that breaks the promise, and the decisive rule.

    Args:
      curve: of :meth:`dpaudit.Examination.curve`: ``claimed_fpr`` and ``claimed_fnr`` of the promise; ``fpr_low``,
        ``fpr_high``, ``fnr_low`` and ``fnr_high`` of the decisive rule, between those of always and never guessing;
        and, where it was measured, the same four of several thresholds with the prefix ``band_``.
    """
    figure = canvas(5.0, 4.6)
    axes = figure.subplots()
    claimed = np.interp(GRID, curve["claimed_fpr"], curve["claimed_fnr"])
    low, high = edges(curve)
    axes.fill_between(GRID, 0, claimed, color=BROKEN, alpha=0.12, linewidth=0)
    axes.fill_between(GRID, low, high, color=SERIES[0][0], alpha=0.4, linewidth=0, label="measured")
    axes.fill_between(
        GRID, high, claimed, where=high < claimed, color=BROKEN, alpha=0.6, linewidth=0, label="violation"
    )
    axes.plot(GRID, claimed, color=INK, linestyle="--", linewidth=1, label="promised")
    axes.plot([0, 1], [1, 0], color=FAINT, linewidth=0.8, label="guessing")
    ends = [(curve[f"{rate}_low"][1], curve[f"{rate}_high"][1]) for rate in ("fpr", "fnr")]
    (left, right), (below, above) = ends
    x, y = (left + right) / 2, (below + above) / 2
    axes.errorbar(
        x, y, [[y - below], [above - y]], [[x - left], [right - x]], color=INK, capsize=2, label="deciding rule"
    )
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes.set_xlabel("false positive rate")
    axes.set_ylabel("false negative rate")
    axes.legend(loc="upper right", frameon=False, fontsize=9)
    return figure


def edges(curve: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Computes the band's lower and upper edge at every FPR of ``GRID``.

    A score's FNR falls as the FPR of its threshold rises. So the lower edge at an FPR is the largest lower bound on
    the FNR among thresholds whose FPR is certainly larger. The upper edge is the lower convex hull of the upper ends,
    since an attacker may choose between rules at random.
    """
    name = "band_" if "band_fpr_low" in curve else ""
    x0, x1, y0, y1 = (
        np.asarray(curve[f"{name}{rate}_{end}"], float) for rate in ("fpr", "fnr") for end in ("low", "high")
    )
    at_least = np.where(x0[None, :] >= GRID[:, None], y0[None, :], 0.0).max(1)
    corners = sorted({(0.0, 1.0), (1.0, 0.0), *zip(x1.tolist(), y1.tolist(), strict=True)})
    hull: list[tuple[float, float]] = []
    for x, y in corners:
        while hull and hull[-1][0] == x:  # keep the lowest of the points that share an FPR
            if hull[-1][1] <= y:
                break
            hull.pop()
        if hull and hull[-1][0] == x:
            continue
        while len(hull) > 1 and _above(hull[-2], hull[-1], (x, y)):
            hull.pop()
        hull.append((x, y))
    at_most = np.interp(GRID, *np.transpose(hull))
    return np.minimum(at_least, at_most), at_most


def _above(first: tuple[float, float], second: tuple[float, float], third: tuple[float, float]) -> bool:
    """Returns whether the second point lies on or above the line from the first to the third."""
    across = (second[0] - first[0]) * (third[1] - first[1]) - (second[1] - first[1]) * (third[0] - first[0])
    return across <= 0


@styled
def attained_figure(settings: Sequence[tuple[dict[str, Any], tuple[float, float]]]) -> "Figure":
    """Draws what observers of a client's messages attain under one promise, beside what the promise rules out.

    Args:
      settings: (row, (own, other)) for rows of one epsilon, with the probabilities of a telling message when its own
        candidate was sent and when the other one was; NaN where no message is telling.
    """
    epsilon, delta = settings[0][0]["epsilon"], settings[0][0]["delta"]
    figure = canvas(5.0, 4.8)
    axes = figure.subplots()
    most = 1 - delta
    corner = most / (1 + math.exp(epsilon))
    axes.fill_between([0, corner, most], 0, [most, corner, 0], color=BROKEN, alpha=0.15, linewidth=0)
    axes.plot([0, corner, most], [most, corner, 0], color=INK, linestyle="--", linewidth=1, label="promised", zorder=3)
    axes.plot([0, 1], [1, 0], color=FAINT, linewidth=0.8, label="a coin toss")
    if "mu" in settings[0][0]:
        allowed = ndtr(-ndtri(GRID) - settings[0][0]["mu"])
        axes.plot(GRID, allowed, color=INK, linestyle=":", linewidth=1, label="allowed by the noise")
    for place, (row, (own, other)) in enumerate(settings):
        colour, marker = SERIES[place % len(SERIES)]
        cosine, told = (row["fpr"], row["fnr"]), (other, 1 - own)
        points = [(0.0, 1.0), *([told] if not math.isnan(own) else []), cosine, (1.0, 0.0)]
        axes.plot(*zip(*_attainable(points), strict=True), color=colour, linewidth=1, label=craft_name(row["craft"]))
        axes.plot(*cosine, color=colour, marker=marker, markersize=6, linestyle="none")
        if not math.isnan(own):
            marked: dict[str, Any] = OPTIMAL | {"markeredgecolor": colour}
            axes.plot(*told, **marked)
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), box_aspect=1)
    axes.set_xlabel("says this candidate, the other was sent")
    axes.set_ylabel("misses this candidate")
    axes.legend(loc="upper right", frameon=False, fontsize=9)
    return figure


def _attainable(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Computes the lower convex hull of (FPR, FNR) points: what an observer attains by choosing between rules at
    random."""
    hull: list[tuple[float, float]] = []
    for x, y in sorted(points):
        while len(hull) > 1 and (hull[-1][0] - hull[-2][0]) * (y - hull[-2][1]) <= (hull[-1][1] - hull[-2][1]) * (
            x - hull[-2][0]
        ):
            hull.pop()
        hull.append((x, y))
    return hull
