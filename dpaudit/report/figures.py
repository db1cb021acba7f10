"""Draws the papers' plots: theoretical against empirical epsilon, and right guesses out of 100.

Matplotlib is used without pyplot and imported only when a figure is drawn.
"""

import atexit
import functools
import html
import io
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpaudit import _validate
from dpaudit.report import words
from dpaudit.report.words import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = dict[str, Any]
Rows = Sequence[Row]

# Okabe and Ito's colours and two of Tol's, which colour-blind readers can tell apart; shapes differ too, for print in
# grey. A page shows all eight settings of a client's audit in one figure.
SERIES = (
    ("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"), ("#CC79A7", "v"),
    ("#E69F00", "P"), ("#56B4E9", "X"), ("#882255", "<"), ("#999933", ">"),
)  # fmt: skip
INK, FAINT = "#222222", "#8a8a8a"
LABEL = 9.5  # more than the width of "at most 100" above the axis of right guesses
OPTIMAL: dict[str, Any] = {
    "marker": "D",
    "markersize": 8,
    "markerfacecolor": "none",
    "markeredgecolor": INK,
    "linestyle": "none",
}
PUBLISHED: dict[str, Any] = {"marker": "*", "markersize": 13, "color": INK, "linestyle": "none", "zorder": 4}
PAPER = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "text.parse_math": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "dpaudit",
}


def _give_matplotlib_a_folder() -> None:
    """Names a temporary folder for Matplotlib if its own cannot be written, of which it would warn in two lines."""
    if "MPLCONFIGDIR" in os.environ or "matplotlib" in sys.modules:
        return
    try:
        if sys.platform.startswith(("linux", "freebsd")):
            kinds = ("XDG_CONFIG_HOME", ".config"), ("XDG_CACHE_HOME", ".cache")
            folders = [Path(os.environ.get(name) or Path.home() / usual, "matplotlib") for name, usual in kinds]
        else:
            folders = [Path.home() / ".matplotlib"]
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK):
                raise PermissionError(folder)
    except (OSError, RuntimeError):  # the second where the user has no home at all
        os.environ["MPLCONFIGDIR"] = folder = tempfile.mkdtemp(prefix="dpaudit-matplotlib-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)


def in_style() -> AbstractContextManager[None]:
    """Returns the context in which figures are drawn and saved.

    Raises:
      InputError: Matplotlib is not installed.
    """
    _give_matplotlib_a_folder()
    with _validate.extra("report"):
        import matplotlib

    return matplotlib.rc_context(STYLE)


def styled(draw: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a drawing function so that it draws in the style of all figures."""

    @functools.wraps(draw)
    def styled(*args: Any, **named: Any) -> Any:
        with in_style():
            return draw(*args, **named)

    return styled


def canvas(width: float, height: float) -> "Figure":
    """Returns an empty figure of a size in inches.

    Raises:
      InputError: Matplotlib is not installed.
    """
    with _validate.extra("report"):
        from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


@styled
def summary_figure(rows: Rows) -> "Figure":
    """Draws Fig. 1(b) of paper 000: what every setting attains on one data set beside the promise, one panel per
    epsilon.

    Raises:
      InputError: no rows, or rows of several data sets.
    """
    rows = _one_source(rows)
    crafts, losses = words.distinct(rows, "craft"), words.epsilons(rows)
    columns = min(len(losses), 4)
    lines = -(-len(losses) // columns)
    figure = canvas(max(1.2 + 1.35 * columns, 4.6), 0.8 + (0.6 + 0.3 * len(crafts)) * lines)
    panels = figure.subplots(lines, columns, sharey=True, squeeze=False).ravel()
    for axes in panels[len(losses) :]:
        axes.set_axis_off()
    for axes, epsilon in zip(panels, losses, strict=False):
        own = [row for row in rows if row["epsilon"] == epsilon]
        right = 1.2 * _top(own)
        axes.axvline(epsilon, color=INK, linewidth=1, linestyle="--", label="promised")
        for row in own:
            place, middle = crafts.index(row["craft"]), min(number(row["epsilon_hat"]), right)
            low, high = _bounds(row, right)
            axes.hlines(place, 0, middle, color=SERIES[0][0], linewidth=6, alpha=0.25)
            axes.errorbar(
                middle, place, xerr=[[low], [high]], color=SERIES[0][0], capsize=5, marker="o",
                markersize=4, markerfacecolor=SERIES[0][0] if row["trials"] else "white", label=row["craft"],
            )  # fmt: skip
            axes.plot(number(row["epsilon_optimal"]), place, **OPTIMAL)
        axes.set_title(f"promised ε = {epsilon:g}", fontsize=10)
        axes.set_xlim(0, right)
        axes.set_xticks([0, epsilon / 2, epsilon], ["0", f"{epsilon / 2:g}", f"{epsilon:g}"])
    panels[0].set_yticks(range(len(crafts)), [words.craft_name(craft) for craft in crafts])
    panels[0].set_ylim(len(crafts) - 0.5, -0.5)
    _key(figure, "cosine rule", "optimal test, exact", "promised")
    return figure


@styled
def setting_figure(rows: Rows, craft: str, published: Sequence[tuple[float, float]] | None = None) -> "Figure":
    """Draws Figs. 3 to 7 of paper 000: promised against attained epsilon in one setting, a line for each data set.

    Dots with pooled bounds are measured, hollow circles on a line are exact, diamonds are the optimal test's.

    Args:
      rows: of any settings and data sets.
      craft: the setting to draw.
      published: (promised, empirical) epsilons from a publication, drawn as stars.

    Raises:
      InputError: no row of this setting.
    """
    rows = [row for row in words.ordered(rows) if row["craft"] == craft]
    if not rows:
        raise _validate.expected("craft", "a setting that occurs in the rows", craft)
    figure = canvas(6, 4)
    axes: Axes = figure.subplots()
    end, top = max(words.epsilons(rows)), 1.1 * _top(rows)
    axes.plot([0, end], [0, end], color=INK, linewidth=1, linestyle="--", zorder=3, label="promised")
    ends = [("promised", end, INK)]
    for place, source in enumerate(words.distinct(rows, words.source)):
        colour, marker = SERIES[place % len(SERIES)]
        own = [row for row in rows if words.source(row) == source]
        x = [row["epsilon"] for row in own]
        exact = [number(row["epsilon_exact"]) for row in own]
        axes.plot(x, exact, color=colour, linewidth=1, marker=marker, markersize=9, markerfacecolor="white",
                  label=f"{source}: exact")  # fmt: skip
        played = [row for row in own if row["trials"]]
        if played:
            y = [min(number(row["epsilon_hat"]), top) for row in played]
            bounds = np.transpose([_bounds(row, top) for row in played])
            axes.errorbar(
                [row["epsilon"] for row in played], y, yerr=bounds, color=colour, linestyle="none", marker=marker,
                markersize=4, capsize=4, label=f"{source}: measured",
            )  # fmt: skip
        best = [number(row["epsilon_optimal"]) for row in own]
        axes.plot(x, best, label=f"{source}: optimal test", **OPTIMAL)
        ends.append((source, exact[-1], colour))
    heights = _apart([height for _, height, _ in ends], top / 16)
    for (text, _, colour), height in zip(ends, heights, strict=True):
        axes.annotate(text, (1, height), xycoords=("axes fraction", "data"), color=colour, va="center",
                      xytext=(4, 0), textcoords="offset points")  # fmt: skip
    if published:
        axes.plot(*zip(*published, strict=True), label="published", **PUBLISHED)
    axes.set_xlim(0, 1.06 * end)
    axes.set_xticks(words.epsilons(rows), [f"{epsilon:g}" for epsilon in words.epsilons(rows)])
    axes.set_ylim(0, top)
    axes.set_xlabel("theoretical ε (promised)")
    axes.set_ylabel("empirical ε")
    axes.set_title(words.craft_name(craft).capitalize(), loc="left", fontsize=11)
    _key(figure, "measured by the cosine rule", "exact", "optimal test", *["published"] * bool(published))
    return figure


@styled
def guess_figure(rows: Rows) -> "Figure":
    """Draws how many of 100 guesses are right for each level of access, between a coin toss and the worst case.

    Raises:
      InputError: no rows, or rows of several data sets.
    """
    with _validate.extra("report"):
        from matplotlib import colormaps

    rows = _one_source(rows)
    crafts, losses = words.distinct(rows, "craft"), words.epsilons(rows)
    figure = canvas(6, 1.3 + 0.45 * len(crafts))
    axes: Axes = figure.subplots()
    ramp = colormaps["viridis"](np.linspace(0.72, 0.05, len(losses)))
    marks = [("coin toss\n50", 50.0, FAINT)]
    delta = words.delta_of(rows)
    lines = [50.0, *(100 * words.worst_case(epsilon, delta) for epsilon in losses)]
    axes.axvline(50, color=FAINT, linewidth=1)
    for epsilon, colour in zip(losses, ramp, strict=True):
        worst = 100 * words.worst_case(epsilon, delta)
        marks.append((f"ε = {epsilon:g}\nat most {words.of_100(worst / 100)}", worst, colour))
        axes.axvline(worst, color=colour, linewidth=1, linestyle="--", zorder=1)
        for row in (row for row in rows if row["epsilon"] == epsilon):
            share, place = 100 * row["accuracy"], crafts.index(row["craft"])
            axes.plot(share, place, marker="o", markersize=8, color=colour, zorder=3,
                      markerfacecolor=colour if row["trials"] else "white",
                      label=f"{row['craft']} {epsilon:g}")  # fmt: skip
            if len(losses) <= 5:
                dots = [100 * other["accuracy"] for other in rows if other["craft"] == row["craft"]]
                offset, across, up = _clear(share, lines, dots)
                axes.annotate(str(words.of_100(share / 100)), (share, place), offset, textcoords="offset points",
                              ha=across, va=up, color=colour, fontsize=9)  # fmt: skip
    for (text, _, colour), x in zip(marks, _apart([x for _, x, _ in marks], LABEL), strict=True):
        axes.annotate(text, (x, 1), (0, 4), xycoords=("data", "axes fraction"), textcoords="offset points",
                      ha="center", va="bottom", color=colour, fontsize=9)  # fmt: skip
    axes.set_yticks(range(len(crafts)), [words.craft_name(craft) for craft in crafts])
    axes.set_ylim(len(crafts) - 0.5, -0.7)
    axes.set_xlim(min(48, *(100 * row["accuracy"] - 1 for row in rows)), 101)
    axes.set_xlabel("right guesses out of 100")
    return figure


@styled
def audit_figure(row: Row) -> "Figure":
    """Draws one audit on one axis: measured with its bounds, promised, detectable and ceiling.

    Args:
      row: of :meth:`dpaudit.AuditResult.to_row`.
    """
    figure = canvas(6.4, 1.5)
    axes = figure.subplots()
    marks = [number(row[name]) for name in ("claim_epsilon", "epsilon_hat", "epsilon_lower", "detectable", "ceiling")]
    right = 1.1 * max([mark for mark in marks if np.isfinite(mark)] + [0.1])
    promised, middle = number(row["claim_epsilon"]), min(number(row["epsilon_hat"]), right)
    if np.isfinite(promised):
        axes.axvspan(promised, min(number(row["detectable"]), right), color=FAINT, alpha=0.2, linewidth=0)
        axes.axvline(promised, color=INK, linewidth=1, linestyle="--")
    axes.axvline(number(row["ceiling"]), color=FAINT, linewidth=1, linestyle=":")
    low, high = _bounds(row, right)
    axes.errorbar(middle, 0, xerr=[[low], [high]], color=SERIES[0][0], capsize=5, marker="o", markersize=5)
    axes.set_xlim(0, right)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("ε (nats)")
    return figure


def to_svg(figure: "Figure", name: str, alt: str) -> str:
    """Returns the figure as an ``<svg>`` element without external references; equal figures give equal text.

    Args:
      figure: of this module.
      name: letters, digits and dashes; a prefix that keeps the identifiers of several figures on one page distinct.
      alt: alternative text.
    """
    stream = io.StringIO()
    with in_style():
        figure.savefig(stream, format="svg", metadata={"Date": None})
    text = stream.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r' xmlns(:xlink)?="[^"]*"', "", text)  # HTML knows both
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", text)
    return text.replace("<svg", f'<svg role="img" aria-label="{html.escape(alt)}"', 1).strip()


def save_png(figure: "Figure", path: str | os.PathLike[str]) -> None:
    """Saves the figure as a PNG at 150 dots per inch; equal figures give equal bytes."""
    with in_style():
        figure.savefig(path, format="png", dpi=150, metadata={"Software": None})


def _one_source(rows: Rows) -> list[dict[str, Any]]:
    sources = words.distinct(rows, words.source)
    if len(sources) != 1:
        raise _validate.expected("rows", "those of one data set", ", ".join(sources) or "none")
    return words.ordered(rows)


def _top(rows: Rows) -> float:
    """Returns the largest finite number that a figure of these rows shows."""
    fields = ("epsilon", "epsilon_hat", "epsilon_exact", "epsilon_optimal", "epsilon_upper")
    values = [number(row[field]) for row in rows for field in fields]
    return max(value for value in values if np.isfinite(value))


def _bounds(row: dict[str, Any], top: float) -> tuple[float, float]:
    """Returns how far the pooled bounds lie below and above the dot, cut off at ``top``, where the axis ends."""
    middle = min(number(row["epsilon_hat"]), top)
    low, high = number(row["epsilon_lower"]), min(number(row["epsilon_upper"]), 2 * top)
    return max(middle - low, 0.0), max(high - middle, 0.0)


def _apart(places: list[float], gap: float) -> list[float]:
    """Moves the places upwards as little as necessary, so that no two are closer than ``gap``."""
    moved, last = dict.fromkeys(range(len(places)), 0.0), -np.inf
    for index in sorted(moved, key=lambda index: places[index]):
        last = moved[index] = max(places[index], last + gap)
    return list(moved.values())


def _clear(share: float, lines: Sequence[float], dots: Sequence[float]) -> tuple[tuple[int, int], str, str]:
    """Finds a place where a dot's label of two digits overlaps neither a line nor another dot: (offset, ha, va).

    Tries above the dot, then beside it. A label is less than 3 wide on the axis of right guesses out of 100.
    """
    sides = {-1: ((-7, 0), "right", "center"), 1: ((7, 0), "left", "center")}
    spans = {((0, 6), "center", "bottom"): (share - 1.6, share + 1.6)}
    spans |= {sides[-1]: (share - 3.8, share - 0.7), sides[1]: (share + 0.7, share + 3.8)}

    def met(place: Any) -> int:
        low, high = spans[place]
        others = [dot for dot in dots if dot != share] if place in sides.values() else []
        return (
            sum(low < line < high for line in lines)
            + sum(low - 0.7 < dot < high + 0.7 for dot in others)
            + (high > 101)
        )

    return min(spans, key=met)


def _key(figure: "Figure", *texts: str) -> None:
    """Draws the legend in one line above the axes."""
    with _validate.extra("report"):
        from matplotlib.lines import Line2D

    marks = {
        "cosine": {"marker": "o", "color": SERIES[0][0]},
        "measured": {"marker": "o", "color": INK, "markersize": 4},
        "exact": {"marker": "o", "color": INK, "markerfacecolor": "white", "markersize": 9},
        "optimal": OPTIMAL,
        "published": PUBLISHED,
        "promised": {"color": INK, "linestyle": "--", "linewidth": 1},
    }
    handles = [Line2D([], [], **marks[re.split(r"\W", text)[0]], label=text) for text in texts]
    figure.legend(handles=handles, loc="outside upper right", ncols=len(texts), frameon=False, fontsize=9)
