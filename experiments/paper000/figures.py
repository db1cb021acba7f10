"""Draws the propositions, and the sweep of pre-training and L."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from dpaudit.auditing.bounds.estimate import epsilon_from_rates
from dpaudit.audits import oracle
from experiments.paper000.published import TABLE_1

Rows = Sequence[dict[str, Any]]
COLOURS = {"benign": "#0072B2", "label_flip": "#D55E00", "gradient_flip": "#009E73"}


def game() -> Figure:
    """Fig. 1(a): the client crafts two gradients, randomises one of them and guesses which it was."""
    boxes = (
        ("Crafting", "two gradients g0, g1 by one\nof five levels of access;\na coin picks one of them"),
        ("Randomizer", "LDP-SGD with the promised ε\nmakes a release of it"),
        ("Distinguishing", "guess the gradient to which\nthe release is closer in angle,\nEq. (3)"),
        ("Empirical ε", "of the wrong guesses in each\nworld over all trials, Eq. (2)"),
    )
    figure = Figure(figsize=(9.5, 1.7), layout="constrained")
    axes = figure.subplots()
    for place, (title, text) in enumerate(boxes):
        axes.annotate(title, (place, 0.95), ha="center", va="center", fontsize=11, weight="bold")
        frame = {"boxstyle": "round,pad=0.5", "facecolor": "#eef4f9", "edgecolor": "#8a8a8a"}
        axes.annotate(text, (place, 0.42), ha="center", va="center", fontsize=9, bbox=frame)
        if place:
            arrow = {"arrowstyle": "->", "color": "#222222"}
            axes.annotate("", (place - 0.42, 0.42), xytext=(place - 0.58, 0.42), arrowprops=arrow)
    axes.set_xlim(-0.6, len(boxes) - 0.4)
    axes.set_ylim(0, 1.1)
    axes.set_axis_off()
    return figure


def randomizer() -> Figure:
    """Fig. 2: a gradient's half of the circle, from which a release is drawn with probability Q, and three pairs."""
    from matplotlib.patches import Wedge

    epsilon = 4.0
    pairs = (("right angle, norm L", 90, 1.0), ("right angle, norm L/2", 90, 0.5), ("worst pair", 180, 1.0))
    figure = Figure(figsize=(9.5, 3.4), layout="constrained")
    for axes, (title, degrees, norm) in zip(figure.subplots(1, 3), pairs, strict=True):
        pair = oracle.Pair(*(np.asarray(value) for value in (norm, norm, np.radians(degrees))))
        far = float(oracle.far_sides(pair, epsilon=epsilon, clip_norm=1.0)[0])
        fpr, fnr = oracle.cosine_rates(pair, epsilon=epsilon, clip_norm=1.0)
        middle = 90 + degrees / 2
        for start, share in ((middle - 90, 1 - far), (middle + 90, far)):
            axes.add_patch(Wedge((0, 0), 1, start, start + 180, color=COLOURS["gradient_flip"], alpha=share**2, lw=0))
            turn = np.radians(start + 130)  # beside the arrow
            axes.annotate(f"{100 * share:.1f}%", (0.65 * np.cos(turn), 0.65 * np.sin(turn)), ha="center", va="center")
        for name, side in (("g0", 1), ("g1", -1)):
            turn = np.radians(90 + side * degrees / 2)
            end = norm * np.cos(turn), norm * np.sin(turn)
            axes.annotate("", end, xytext=(0, 0), arrowprops={"arrowstyle": "->", "color": "#222222", "lw": 2})
            axes.annotate(name, (1.15 * np.cos(turn), 1.15 * np.sin(turn)), ha="center", va="center")
        axes.plot(np.cos(np.linspace(0, 2 * np.pi)), np.sin(np.linspace(0, 2 * np.pi)), color="#8a8a8a", linewidth=1)
        axes.set_title(f"{title}: {100 * (1 - (fpr + fnr) / 2):.1f}% right", fontsize=10)
        axes.set_aspect("equal")
        axes.set_xlim(-1.35, 1.35)
        axes.set_axis_off()
    return figure


def worst_pair(rows: Rows) -> Figure:
    """Proposition 1: cosine accuracy, cosine epsilon and optimal epsilon over all angles and norms, and where the
    optimiser ended."""
    setting = next(row["setting"] for row in rows if row["quantity"] == "worst_pair_norm")
    epsilon, clip_norm = setting["epsilon"], setting["clip_norm"]
    ends = {row["quantity"]: row["ours"] for row in rows if row["quantity"].startswith("worst_pair")}
    degrees, norms = np.linspace(0, 180, 181), np.linspace(0.01, 1.5, 150)
    angle, norm = np.meshgrid(np.radians(degrees), norms)
    pair = oracle.Pair(norm, norm, angle)
    fpr, fnr = oracle.cosine_rates(pair, epsilon=epsilon, clip_norm=clip_norm)
    wedges = oracle.wedges(pair, epsilon=epsilon, clip_norm=clip_norm)[..., 0, :]
    with np.errstate(divide="ignore", invalid="ignore"):
        optimal = np.where(angle > 0, np.log(wedges[..., 1] / wedges[..., 0]), 0.0)
    panels = (
        ("right guesses, %", 100 * (1 - (fpr + fnr) / 2)),
        ("ε of the cosine rule", epsilon_from_rates(fpr, fnr)),
        ("ε of the optimal test", optimal),
    )
    figure = Figure(figsize=(9.5, 3.2), layout="constrained")
    for axes, (title, values) in zip(figure.subplots(1, 3, sharey=True), panels, strict=True):
        shown = axes.pcolormesh(degrees, norms, values, cmap="viridis", shading="nearest", rasterized=True)
        figure.colorbar(shown, ax=axes)
        axes.axhline(1, color="white", linewidth=1, linestyle="--")
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("angle between g0 and g1, degrees")
    first = figure.axes[0]
    first.set_ylabel("norms / L")
    marker: dict[str, Any] = {
        "marker": "*",
        "markersize": 14,
        "color": "#D55E00",
        "clip_on": False,
        "linestyle": "none",
    }
    first.plot(ends["worst_pair_angle_degrees"], ends["worst_pair_norm"], label="found by ascent", **marker)
    first.legend(loc="upper left", fontsize=8)
    return figure


def angles(rows: Rows) -> Figure:
    """Proposition 2: the angle between a record's gradients under two labels grows with training."""
    figure = Figure(figsize=(6.6, 3.6), layout="constrained")
    axes = figure.subplots()
    found = [row for row in rows if row["quantity"] == "angle_degrees"]
    for craft in dict.fromkeys(row["setting"]["craft"] for row in found):
        if craft == "gradient_flip":
            continue
        own = [row for row in found if row["setting"]["craft"] == craft]
        steps = [row["setting"]["steps"] for row in own]
        style: dict[str, Any] = {
            "color": COLOURS[craft.split(",")[0]],
            "linestyle": "--" if "," in craft else "-",
            "marker": "o",
        }
        axes.plot(steps, [row["ours"] for row in own], label=craft, markersize=4, **style)
        low, high = ([row[name] for row in own] for name in ("ours_low", "ours_high"))
        axes.fill_between(steps, low, high, color=style["color"], alpha=0.12, linewidth=0)
    axes.set_xscale("symlog", linthresh=10)
    axes.set_xticks([0, 10, 100, 1000], ["0", "10", "100", "1,000"])
    axes.set_ylim(0, 180)
    axes.set_yticks([0, 45, 90, 135, 180])
    axes.set_xlabel("pre-training, Adam steps")
    axes.set_ylabel("angle of the pair, degrees\n(median; shade: 10% to 90%)")
    axes.legend(fontsize=8, loc="lower right")
    return figure


def sweep(rows: Rows) -> Figure:
    """Accuracy at epsilon 4 against L, a line for each pre-training; the paper's value as a dashed line."""
    found = [row for row in rows if row["quantity"] == "sweep_accuracy_percent"]
    crafts = list(dict.fromkeys(row["setting"]["craft"] for row in found))
    steps = sorted({row["setting"]["steps"] for row in found})
    figure = Figure(figsize=(2.4 * len(crafts), 3.2), layout="constrained")
    ramp = colormaps["viridis"](np.linspace(0.85, 0.05, len(steps)))
    for axes, craft in zip(figure.subplots(1, len(crafts), sharey=True), crafts, strict=True):
        for colour, step in zip(ramp, steps, strict=True):
            own = [row for row in found if row["setting"]["craft"] == craft and row["setting"]["steps"] == step]
            axes.plot(
                [row["setting"]["clip_norm"] for row in own],
                [row["ours"] for row in own],
                color=colour,
                label=f"{step} steps",
            )
        axes.axhline(TABLE_1[craft.split(",")[0]][3], color="#222222", linestyle="--", linewidth=1, label="paper")
        axes.set_xscale("log")
        axes.set_xticks([0.001, 0.1, 10], ["0.001", "0.1", "10"])
        axes.set_xticks([], minor=True)
        axes.set_title(craft.replace(", ", ",\n"), fontsize=9)
        axes.set_xlabel("L")
    figure.axes[0].set_ylabel("right guesses at ε = 4, %")
    figure.legend(*figure.axes[-1].get_legend_handles_labels(), fontsize=8, loc="outside right center")
    return figure
