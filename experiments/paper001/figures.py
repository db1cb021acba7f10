"""Draws Fig. 1 in our numbers, and accuracy against the number of owners."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.pages import select
from experiments.paper001.tasks import EPSILONS, OWNERS

Rows = Sequence[dict[str, Any]]
COLOURS = dict(zip(EPSILONS, ("#0072B2", "#009E73", "#D55E00"), strict=True))
STYLES = {"SPGC": "-", "LDP": "--", "reduced noise": ":"}
NOISELESS = {"non-private": ("#222222", "-"), "MPC only": ("#888888", "--")}


def drawn(setting: dict[str, Any]) -> bool:
    """Tells whether the paper's Fig. 1 has such a curve: three owners, and the paper's rule where there is noise."""
    noisy = setting["scheme"] in ("SPGC", "LDP") and setting["rule"] == "classical"
    return setting["owners"] == OWNERS and (noisy or setting["scheme"] in NOISELESS)


def paper_figure(rows: Rows) -> Figure:
    """Accuracy by epoch, a panel for each data set: three owners, the paper's rule."""
    names = list(dict.fromkeys(row["setting"]["data"] for row in select(rows, "accuracy")))
    figure = Figure(figsize=(4.2 * len(names), 3.6), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for row in select(rows, "accuracy", data=name):
            if not drawn(row["setting"]):
                continue
            scheme, epsilon = row["setting"]["scheme"], row["setting"]["epsilon"]
            colour, style = NOISELESS[scheme] if scheme in NOISELESS else (COLOURS[epsilon], STYLES[scheme])
            label = scheme if scheme in NOISELESS else f"{scheme}, ε = {epsilon:g}"
            curve = row["curve"]
            axes.plot(np.arange(1, len(curve) + 1), curve, style, color=colour, label=label, linewidth=1.2)
        axes.set(title=name, xlabel="epoch", ylabel="test accuracy, %")
    figure.axes[-1].legend(fontsize=7)
    return figure


def owners_figure(rows: Rows) -> Figure:
    """Accuracy by the number of owners, of data sets that were shared out among more than the paper's."""
    more = (row["setting"]["data"] for row in select(rows, "accuracy") if row["setting"]["owners"] != OWNERS)
    names = list(dict.fromkeys(more))
    figure = Figure(figsize=(4.2 * len(names), 3.6), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for scheme, style in STYLES.items():
            for epsilon, colour in COLOURS.items():
                found = select(rows, "accuracy", data=name, scheme=scheme, epsilon=epsilon, rule="classical")
                found = sorted(found, key=lambda row: row["setting"]["owners"])
                ks = [row["setting"]["owners"] for row in found]
                label = f"{scheme}, ε = {epsilon:g}"
                axes.plot(ks, [row["ours"] for row in found], style, marker=".", color=colour, label=label)
        axes.set(title=name, xlabel="owners", ylabel="test accuracy, %", xscale="log")
    figure.axes[-1].legend(fontsize=7)
    return figure
