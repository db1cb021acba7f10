"""The part of experiments/README.md that tells how the time grows: one table, and a figure of bench_scaling's rows."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from experiments.bench_scaling import SCALES
from experiments.common import FIGURES
from experiments.markdown import ranged, select, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rows = Sequence[dict[str, Any]]
COLUMNS = 3
WORDS = {  # the axis, and what a curve is of
    "trials": ("pairs of gradients, 16 trials each", "`full` LDP-SGD trials, d = 26,010"),
    "dimension": ("dimension d", "8,192 `full` LDP-SGD trials"),
    "clients": ("clients of a round", "a federated round, CNN28"),
    "networks": ("networks", "CNN8 networks trained together, 20 steps"),
    "devices, trials": ("emulated devices", "8,192 `full` trials, d = 26,010, shared out"),
    "devices, a round": ("emulated devices", "a round of 1,000 clients, CNN28, shared out"),
}


def section(rows: Rows) -> Iterable[str]:
    """Markdown blocks, in reading order; the figure is drawn on the way."""
    yield "## How the time grows\n"
    yield (
        "Command: `python -m experiments.bench_scaling`, then `make results`. The exponent is the slope of log seconds against log "
        "size: median [range] over rounds in which all sizes were timed in turn, over all sizes and between the two largest. "
        "At small sizes what a call costs by itself shows. **Emulated devices share the cores of one CPU**: the last two "
        "curves show what more devices cost, not what they gain; on devices of their own the exponent would be near -1.\n"
    )
    names = [name for name in SCALES if select(rows, f"{name}: seconds")]
    lines = []
    for name in names:
        seconds = select(rows, f"{name}: seconds")
        slopes = [ranged(select(rows, f"{name}: exponent", sizes=part)[0]) for part in ("all", "end")]
        ends = (f"{row['setting']['size']:,}: {row['ours']:.3g} s" for row in (seconds[0], seconds[-1]))
        lines.append([f"{WORDS[name][1]}, against {WORDS[name][0]}", *ends, *slopes])
    yield table(["", "smallest", "largest", "exponent", "at the end"], lines)
    scaling_figure(rows, names).savefig(FIGURES / "scaling.png", dpi=110)
    yield "![How the time grows](figures/scaling.png)\n"


def scaling_figure(rows: Rows, names: Sequence[str]) -> "Figure":
    """A panel for each curve, both axes logarithmic, medians and ranges; beside them the line of exponent 1."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    down = -(-len(names) // COLUMNS)
    figure = Figure(figsize=(3.6 * COLUMNS, 2.9 * down), layout="constrained")
    panels = figure.subplots(down, COLUMNS, squeeze=False).ravel()
    for axes, name in zip(panels, names, strict=False):
        found = select(rows, f"{name}: seconds")
        sizes, middle = [row["setting"]["size"] for row in found], [row["ours"] for row in found]
        ends = [[row["ours"] - row["ours_low"] for row in found], [row["ours_high"] - row["ours"] for row in found]]
        slope = -1 if name.startswith("devices") else 1
        straight = [middle[-1] * (size / sizes[-1]) ** slope for size in sizes]
        if slope < 0:
            straight = [middle[0] / size for size in sizes]
        axes.errorbar(sizes, middle, ends, color="#0072B2", marker="o", linewidth=1.2, capsize=2, label="measured")
        axes.plot(sizes, straight, color="#888888", linestyle="--", linewidth=1, label=f"exponent {slope}")
        axes.set(xscale="log", yscale="log", xlabel=WORDS[name][0], ylabel="seconds")
        axes.set_title(WORDS[name][1].replace("`", ""), fontsize=8)
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_minor_formatter(NullFormatter())
        axes.legend(fontsize=7)
    for axes in panels[len(names) :]:
        axes.set_visible(False)
    return figure
