"""Draws the figures from the curves of the runs: columns side by side, a row of panels for each quantity."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from dpaudit.federated.clip_size import EDGES
from experiments.paper002.published import BUDGETS

Curves = Sequence[dict[str, Any]]
NAMES = {"accuracy": "test accuracy, %", "loss": "test loss", "clip_norm": "C", "norm": "mean norm before clipping"}
NOISE = {1: "noise of C", 2: "noise of 2C"}
FIXED = ("non-private", "clip0.01", "clip0.05", "clip0.1", "clip0.5", "clip1.0")
LOWERED = {
    "switched": ("clip0.01", "clip0.05", "0.05to0.01(20%)", "0.05to0.01(60%)"),
    "lowered from 0.01": ("clip0.01", "poly(0.01)0.5", "poly(0.01)1.0", "poly(0.01)2.0"),
    "lowered from 0.05": ("clip0.05", "0.05to0.01(20%)", "poly(0.05)0.5", "poly(0.05)1.0", "poly(0.05)2.0"),
}
ADAPTIVE = ("clip0.01", "clip0.05", "quantile(0.01)10%", "quantile(0.01)50%", "adaptive0.01", "adaptive0.05", *BUDGETS)
NORMS = ("non-private", "clip0.01", "clip0.05", "0.05to0.01(20%)")
SMALL = 1e-4  # a clip norm below which nothing is drawn: polynomials end at 0
PERFECT, ACCURACY_TICKS = 100.5, (20, 60, 80, 90, 94, 96, 98, 99)  # percent; the former is above all
FEW_DECADES = 4.5  # in which a logarithmic axis has ticks between the powers of ten
BLUE, RED, GREEN, PINK, ORANGE, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
INDIGO = "#332288"
COLOURS = {
    "non-private": "#222222",
    **dict(zip((f"clip{c}" for c in (0.01, 0.05, 0.1, 0.5, 1.0)), (BLUE, RED, GREEN, PINK, ORANGE), strict=True)),
    "0.05to0.01(20%)": INDIGO,
    "0.05to0.01(60%)": ORANGE,
    **{
        f"poly({c0}){power}": colour
        for c0 in (0.01, 0.05)
        for power, colour in ((0.5, ORANGE), (1.0, PINK), (2.0, SKY))
    },
    "quantile(0.01)10%": GREEN,
    "quantile(0.01)50%": SKY,
    "adaptive0.01": PINK,
    "adaptive0.05": ORANGE,
    **dict(zip(BUDGETS, ("#882255", "#AA4499", "#999933"), strict=True)),
}
# Rules of one kind share a pattern, so that no two lines look alike where all settings are drawn together.
PATTERNS: dict[str, Any] = {
    "non-private": "--",
    "0.05to0.01": (0, (6, 1)),
    "poly(0.01)": "-.",
    "poly(0.05)": (0, (3, 1)),
    "quantile": ":",
    "adaptive": (0, (4, 1, 1, 1, 1, 1)),
}


class Column(NamedTuple):
    """A title, and the curves under it."""

    title: str
    curves: Curves


def fixed(curves: Curves) -> Figure:
    """Figs. 1 and 2."""
    return _grid(_by_noise(curves, FIXED), ("accuracy", "loss"))


def schedules(curves: Curves) -> Figure:
    """Fig. 3, and beside it where the adaptive rules went."""
    noise = max(curve["sensitivity"] for curve in curves if curve["sensitivity"] is not None)
    columns = [Column(title, _chosen(curves, names, noise)) for title, names in LOWERED.items()]
    return _grid([*columns, Column("adaptive", _chosen(curves, ADAPTIVE, noise))], ("clip_norm",), log=True)


def lowered(curves: Curves, sensitivity: int) -> Figure:
    """Figs. 4 and 5, under one of the two noises."""
    return _grid(
        [Column(title, _chosen(curves, names, sensitivity)) for title, names in LOWERED.items()], ("accuracy", "loss")
    )


def adaptive(curves: Curves) -> Figure:
    """Figs. 7 and 8, with the rule that is not the paper's."""
    return _grid(_by_noise(curves, ADAPTIVE), ("accuracy", "loss"))


def norms(curves: Curves) -> Figure:
    """Fig. 10."""
    return _grid(_by_noise(curves, NORMS), ("norm",), log=True)


def histograms(rows: Curves) -> Figure:
    """Fig. 9: the shares of norms in the rule's bins at every update, before and after noise."""
    figure = Figure(figsize=(9.5, 1.9 * -(-len(rows) // 5)), layout="constrained")
    places = np.arange(len(EDGES) - 1)
    names = [*(f"≤ 2^{exponent:.0f}" for exponent in np.log2(EDGES[1:-1])), f"> 2^{np.log2(EDGES[-2]):.0f}"]
    for axes, row in zip(figure.subplots(-(-len(rows) // 5), 5, sharex=True, sharey=True).flat, rows, strict=False):
        axes.bar(places - 0.2, row["raw"], 0.4, color=BLUE, label="raw")
        axes.bar(places + 0.2, row["noisy"], 0.4, color=ORANGE, label="noisy")
        axes.axhline(0.5, color="#222222", linewidth=0.7, linestyle=":")
        axes.set_title(f"round {row['round']:,}", fontsize=9)
        axes.set_xticks(places, names, rotation=90, fontsize=8)
    figure.supylabel("share of the clients", fontsize=9)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), fontsize=8, loc="outside right upper")
    return figure


def whole(curves: Curves) -> Figure:
    """Runs with all clients, a column for each number of rounds."""
    return _grid(_by_rounds(curves), ("accuracy", "loss"))


def whole_clip_norms(curves: Curves) -> Figure:
    """Figs. 3 and 10's kind: C, and how long gradients were before clipping."""
    return _grid(_by_rounds(curves), ("clip_norm", "norm"), log=True)


def pattern(name: str) -> Any:
    """Returns the dashes of a setting's line."""
    return next((own for start, own in PATTERNS.items() if name.startswith(start)), "-")


def _by_rounds(curves: Curves) -> list[Column]:
    """A column for each number of rounds and each noise, the one that keeps the promise first."""
    at = {(curve["round"][-1], curve["sensitivity"]) for curve in curves if curve["sensitivity"] is not None}
    return [
        Column(
            f"{length:,} rounds, all clients, {NOISE[noise]}",
            [curve for curve in curves if curve["round"][-1] == length and curve["sensitivity"] in (None, noise)],
        )
        for length, noise in sorted(at, reverse=True)
    ]


def _grid(columns: Sequence[Column], quantities: Sequence[str], *, log: bool = False) -> Figure:
    columns = [column for column in columns if column.curves]
    figure = Figure(figsize=(max(6.0, 3.4 * len(columns)), 2.6 * len(quantities) + 0.9), layout="constrained")
    panels = figure.subplots(len(quantities), len(columns), sharex="col", sharey="row", squeeze=False)
    for line, quantity in zip(panels, quantities, strict=True):
        for axes, column in zip(line, columns, strict=True):
            for curve in column.curves:
                own = np.array([np.nan if value is None else value for value in curve[quantity]])
                own, name = own * (100 if quantity == "accuracy" else 1), curve["name"]
                drawn = {"color": COLOURS[name], "linestyle": pattern(name), "linewidth": 1.2}
                axes.plot(curve["round"], own, label=name, **drawn)
            if quantity == quantities[0]:
                axes.set_title(column.title, fontsize=10)
        line[0].set_ylabel(NAMES[quantity])
        if quantity == "accuracy":  # as far apart as errors are on a logarithmic axis: settings end close together
            line[0].set_yscale("function", functions=(lambda y: -np.log(PERFECT - y), lambda z: PERFECT - np.exp(-z)))
            line[0].set_yticks([tick for tick in ACCURACY_TICKS if tick <= line[0].get_ylim()[1]])
        if log or quantity == "loss":
            line[0].set_yscale("log")
            if quantity == "clip_norm":
                line[0].set_ylim(bottom=SMALL)
            low, high = np.log10(line[0].get_ylim())
            line[0].yaxis.set_major_locator(
                LogLocator(subs=(1, 2, 5) if high - low < FEW_DECADES else (1,), numticks=20)
            )
            line[0].yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            line[0].yaxis.set_minor_formatter(NullFormatter())
    for axes in panels[-1]:
        axes.set_xlabel("round")
        axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=2, frameon=False)
    return figure


def _by_noise(curves: Curves, names: Sequence[str]) -> list[Column]:
    noises = sorted({curve["sensitivity"] for curve in curves} - {None})
    return [Column(NOISE[sensitivity], _chosen(curves, names, sensitivity)) for sensitivity in noises]


def _chosen(curves: Curves, names: Sequence[str], sensitivity: int) -> Curves:
    """In the order of the names, without noise or with this one; those that were run."""
    of = {curve["name"]: curve for curve in curves if curve["sensitivity"] in (None, sensitivity)}
    return [of[name] for name in names if name in of]
