"""Draws the figures from the rows; and the targets, drawn by the experiment itself."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dpaudit.report.figures import FAINT, INK, SERIES, save_png
from dpaudit.training.neighbouring import Neighbours
from experiments.pages import select
from experiments.paper003.questions import DETERMINISTIC, TOGETHER

Rows = Sequence[dict[str, Any]]
Mark = tuple[float, str, dict[str, Any]]  # a value, its text and its look

BLUE, RED, GREEN = (colour for colour, _ in SERIES[:3])
LOOKS = dict(  # colour and marker
    zip((DETERMINISTIC, *TOGETHER), ((INK, "o"), (BLUE, "s"), (RED, "v"), (GREEN, "P")), strict=True)
)
ALL_FOUR = "min max mean std"
NOT_MEMBER, MEMBER = BLUE, SERIES[4][0]
NULL: dict[str, Any] = {"linestyle": "none", "marker": "_", "markersize": 11, "markeredgewidth": 1.6}
HONEST: dict[str, Any] = {"linestyle": "none", "marker": "^", "markersize": 4.5}
RATIO: dict[str, Any] = {"linestyle": "none", "marker": "D", "markersize": 5, "markerfacecolor": "none"}
DOTTED: dict[str, Any] = {"linestyle": ":", "linewidth": 1}
LINEAR = 0.5  # nats: up to here the overview's axis is linear
CLOSE = 0.15  # on that axis, as wide as a digit


def targets(pairs: Sequence[Neighbours], name: str, file: Path) -> None:
    """Fig. 4: the record that D' has more, of the four data sets; pixels are clipped to [0, 1] to be shown."""
    figure = _canvas(2.0 * len(pairs), 2.5)
    for axes, pair in zip(figure.subplots(1, len(pairs)), pairs, strict=True):
        picture = np.clip(pair.image, 0, 1)
        axes.imshow(picture[..., 0] if picture.shape[-1] == 1 else picture, cmap="gray", vmin=0, vmax=1)
        axes.set_title(f"data set {pair.number}, class {pair.label}", fontsize=9)
        axes.set_axis_off()
    figure.suptitle(f"{name}: what D' has more than D", fontsize=10)
    file.parent.mkdir(parents=True, exist_ok=True)
    save_png(figure, file)


def risks(rows: Rows) -> Figure:
    """Fig. 5: estimates with their deviation, their null, and the bounds, for each data set."""
    found = select(rows, "epsilon", part=1)
    figure = _canvas(9.5, 4.6)
    axes = figure.subplots()
    numbers = _targets(found)
    for place, number in enumerate(numbers):
        for i, (seen, (colour, marker)) in enumerate(LOOKS.items()):
            (row,) = select(found, "epsilon", target=number, seen=seen)
            x = place + 0.2 * (i - 1.5)
            axes.errorbar(x, row["ours"], yerr=row["deviation"], color=colour, marker=marker, capsize=3, markersize=6)
            axes.plot(x, row["null"], color=colour, **NULL)
            axes.plot(x - 0.035, row["honest"], color=colour, **HONEST)
            axes.plot(x + 0.035, row["likelihood_ratio"], color=colour, **RATIO)
    axes.set_xticks(range(len(numbers)), [f"data set {number}" for number in numbers])
    axes.set_ylabel("ε (nats)")
    axes.set_ylim(bottom=-0.08)
    axes.set_title(f"promised: ε = {_promise(rows)}, far above this axis", fontsize=9, loc="right")
    seen = [_mark(name, color=colour, marker=marker) for name, (colour, marker) in LOOKS.items()]
    figure.legend(handles=seen + _kinds(), loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure


def samples(rows: Rows) -> Figure:
    """Fig. 6: the estimate, its null and the honest bound against the number of samples."""
    figure = _canvas(9.5, 6.2)
    _panels(figure, select(rows, "epsilon", part=2), "samples", "samples T", list(TOGETHER))
    return figure


def distributions(rows: Rows) -> Figure:
    """Fig. 7: the mean of few and of all samples, over networks trained on D and on D'."""
    found = select(rows, "histogram")
    numbers = _targets(found)
    counts = sorted({row["setting"]["samples"] for row in found})
    figure = _canvas(max(2.6 * len(numbers), 5.0), 4.6)
    panels = figure.subplots(len(counts), len(numbers), squeeze=False)
    for line, count in zip(panels, counts, strict=True):
        for axes, number in zip(line, numbers, strict=True):
            for member, colour, name in ((False, NOT_MEMBER, "D"), (True, MEMBER, "D'")):
                (row,) = select(found, "histogram", target=number, samples=count, member=member)
                shares = np.array(row["counts"]) / np.sum(row["counts"])
                edges = np.linspace(0, row["end"], len(shares) + 1)
                axes.stairs(shares, edges, color=colour, fill=True, alpha=0.25)
                axes.stairs(shares, edges, color=colour, linewidth=1.4, label=name)
            (risk,) = select(rows, "epsilon", part=2, target=number, seen="mean", samples=count)
            said = f"estimate {risk['ours']:.2f}, null {risk['null']:.2f}, honest ≥ {risk['honest']:.2f}"
            axes.set_title(f"data set {number}, T = {count:,}\n{said}", fontsize=7)
        line[0].set_ylabel("share of the networks")
    for axes in panels[-1]:
        axes.set_xlabel("mean for the true class")
    figure.legend(
        *panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False, fontsize=9
    )
    return figure


def rounding(rows: Rows) -> Figure:
    """Fig. 8: against the unit, accuracy and share without a label; estimate, null and bounds of every data set."""
    figure = _canvas(9.5, 5.6)
    sides: Any = figure.subfigures(1, 2, width_ratios=(1, 1.7))
    left, right = sides
    useful = [row for row in select(rows, "utility", published="mean std") if "unit" in row["setting"]]
    (plain,) = select(rows, "utility", published="mean std", temperature=1.0)
    units = [row["setting"]["unit"] for row in useful]
    axes = left.subplots()
    axes.axhline(plain["ours"], color=INK, linewidth=1, linestyle=":", label="accuracy, not rounded")
    axes.plot(units, [row["ours"] for row in useful], color=INK, marker="o", label="accuracy")
    axes.plot(units, [row["undecided"] for row in useful], color=SERIES[1][0], marker="s", label="without a label")
    _log(axes, units)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("unit of rounding")
    axes.set_ylabel("share of the records")
    left.suptitle("(a) utility", fontsize=10)
    left.legend(loc="outside lower center", frameon=False, fontsize=8)
    found = [row for row in select(rows, "epsilon", part=3, seen="mean std") if "unit" in row["setting"]]
    _panels(right, found, "unit", "unit of rounding", ["mean std"])
    right.suptitle("(b) risk", fontsize=10)
    return figure


def overview(scales: dict[str, Rows]) -> Figure:
    """For each scale: what was promised, what a white-box canary shows, what the outputs show."""
    figure = _canvas(9.5, 1.0 + 2.9 * len(scales))
    panels = figure.subplots(len(scales), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (name, rows) in zip(panels, scales.items(), strict=True):
        lines = _overview_lines(rows)
        for place, (_, marks) in enumerate(lines):
            for value, _, look in marks:
                axes.plot(value, place, linestyle="none", clip_on=False, **look)
            for near in _close(marks):
                where, text = np.mean([value for value, _, _ in near]), ", ".join(sorted(text for _, text, _ in near))
                axes.annotate(text, (where, place), (0, 6), textcoords="offset points", ha="center", fontsize=7)
        axes.set_yticks(range(len(lines)), [text for text, _ in lines], fontsize=9)
        axes.set_ylim(len(lines) - 0.5, -0.8)
        axes.grid(axis="x", color=FAINT, alpha=0.25)
        axes.set_title(name, fontsize=10, loc="left")
        axes.set_xscale("symlog", linthresh=LINEAR, linscale=0.6)
        ticks = (0, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30)
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_xticks([], minor=True)
        axes.set_xlim(-0.13, ticks[-1])
    panels[-1].set_xlabel(f"ε (nats); logarithmic from {LINEAR:g} on")
    return figure


def _close(marks: Sequence[Mark]) -> list[list[Mark]]:
    """Marks with a text, those together whose texts would overlap."""
    groups: list[list[Mark]] = []
    for mark in sorted((mark for mark in marks if mark[1]), key=lambda mark: mark[0]):
        if groups and np.arcsinh(mark[0] / LINEAR) - np.arcsinh(groups[-1][-1][0] / LINEAR) < CLOSE:
            groups[-1].append(mark)
        else:
            groups.append([mark])
    return groups


def _overview_lines(rows: Rows) -> list[tuple[str, list[Mark]]]:
    """From top to bottom: a name, and marks with their texts."""
    promised = {"marker": "|", "color": INK, "markersize": 14, "markeredgewidth": 2}
    most = {"marker": "|", "color": FAINT, "markersize": 10}
    lower = {"marker": "^", "markersize": 7}
    spent = [(row["ours"], "", promised) for row in select(rows, "accounted")]
    lines = [(f"promised: {_promise(rows)}", spent)]
    for row in select(rows, "white_box"):
        marks = [(row["ours"], "", lower | {"color": GREEN})]
        marks += [(row["ceiling"], "most possible", most)] if "ceiling" in row else []
        lines.append((f"white box, {row['setting']['by']}", marks))
    found = {seen: select(rows, "epsilon", part=1, seen=seen) for seen in (ALL_FOUR, DETERMINISTIC)}
    estimates = [
        (row[value], text, look)
        for row in found[ALL_FOUR]
        for value, text, look in (
            ("null", "", {"marker": "x", "color": FAINT}),
            ("ours", str(row["setting"]["target"]), {"marker": "o", "color": RED}),
        )
    ]
    lines.append(("all four statistics, estimate (×: its null)", estimates))
    for seen, name in ((ALL_FOUR, "all four statistics"), (DETERMINISTIC, "one prediction")):
        for value, attack in (("honest", "thresholds"), ("likelihood_ratio", "likelihoods")):
            marks = [(row[value], str(row["setting"]["target"]), lower | {"color": BLUE}) for row in found[seen]]
            lines.append((f"{name}, honest: {attack}", marks))
    for row in select(rows, "one_run", seen="mean"):
        marks = [(row["ours"], "", lower | {"color": BLUE}), (row["ceiling"], "most possible", most)]
        lines.append((f"mean, one network's {row['targets']:,} targets", marks))
    return lines


def _panels(figure: Any, found: Rows, against: str, label: str, shown: Sequence[str]) -> None:
    """Two by two, a panel for each data set: estimates, nulls and honest bounds against a setting."""
    numbers = _targets(found)
    panels = figure.subplots(-(-len(numbers) // 2), min(2, len(numbers)), sharex=True, sharey=True, squeeze=False)
    for axes, number in zip(panels.flat, numbers, strict=False):
        for seen in shown:
            colour, marker = LOOKS[seen]
            own = select(found, "epsilon", target=number, seen=seen)
            x = [row["setting"][against] for row in own]
            axes.plot(x, [row["ours"] for row in own], color=colour, marker=marker, markersize=5, linewidth=1.4)
            axes.plot(x, [row["null"] for row in own], color=colour, linestyle="--", linewidth=1)
            axes.plot(x, [row["honest"] for row in own], color=colour, **(HONEST | DOTTED))
            axes.plot(x, [row["likelihood_ratio"] for row in own], color=colour, **(RATIO | DOTTED))
        _log(axes, x)
        axes.set_title(f"data set {number}", fontsize=9)
    panels[0, 0].set_ylim(bottom=-0.08)
    for axes in panels[-1]:
        axes.set_xlabel(label)
    for line in panels:
        line[0].set_ylabel("ε (nats)")
    seen = [_mark(name, color=LOOKS[name][0], marker=LOOKS[name][1], linestyle="-") for name in shown]
    null = _mark("null", color=FAINT, linestyle="--")
    figure.legend(handles=[*seen, null, *_kinds()[1:]], loc="outside lower center", ncols=3, frameon=False, fontsize=8)


def _kinds() -> list[Any]:
    """Legend entries of the marks beside the estimates."""
    return [
        _mark("null: networks that differ in nothing", color=FAINT, **NULL),
        _mark("honest bound, thresholds", color=FAINT, **HONEST),
        _mark("honest bound, likelihood ratio", color=FAINT, **RATIO),
    ]


def _mark(text: str, **look: Any) -> Any:
    chosen: dict[str, Any] = {"linestyle": "none"} | look
    return Line2D([], [], label=text, **chosen)


def _promise(rows: Rows) -> str:
    return ", ".join(f"{row['ours']:.1f} ({row['setting']['accounting']})" for row in select(rows, "accounted"))


def _log(axes: Axes, values: Sequence[float]) -> None:
    """Makes a logarithmic axis with a tick for every power of ten."""
    axes.set_xscale("log")
    low, high = (round(float(np.log10(end))) for end in (min(values), max(values)))
    ticks = [10.0**power for power in range(low, high + 1)]
    axes.set_xticks(ticks, [f"{tick:,g}" for tick in ticks])


def _targets(rows: Rows) -> list[int]:
    return sorted({row["setting"]["target"] for row in rows})


def _canvas(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), layout="constrained")
