"""Error of ratings and recall against epsilon, a line for each method."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from experiments.markdown import select

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rows = Sequence[dict[str, Any]]
COLOURS = ("#888888", "#0072B2", "#D55E00", "#009E73")
PANELS = {"rmse": "RMSE of held-out ratings", "recall@20": "recall@20"}


def utility_figure(rows: Rows) -> "Figure":
    """A panel for each measure; no privacy at the right end."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    for axes, (quantity, label) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        own = select(rows, quantity)
        names = list(dict.fromkeys(row["setting"]["method"] for row in own))
        ticks = [row["setting"]["epsilon"] for row in select(rows, quantity, method=names[0])]
        for name, colour in zip(names, COLOURS, strict=False):
            found = select(rows, quantity, method=name)
            middle = [row["ours"] for row in found]
            ends = [
                [row["ours"] - row["ours_low"] for row in found],
                [row["ours_high"] - row["ours"] for row in found],
            ]
            axes.errorbar(
                range(len(found)), middle, ends, color=colour, label=name, linewidth=1.2, capsize=2, marker="o"
            )
        axes.set_xticks(range(len(ticks)), ["none" if tick is None else f"{tick:g}" for tick in ticks])
        axes.set(xlabel="ε of all that was released, δ = 0.00001", ylabel=label)
        axes.legend(fontsize=7)
    return figure
