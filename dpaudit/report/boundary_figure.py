"""Draws one round of a protocol: who sent what to whom, and what crossed the trust boundary."""

import functools
from typing import TYPE_CHECKING, Any

import dp_accounting
import jax
import numpy as np
from dp_accounting import DpEvent

from dpaudit.personalization.boundary import messages
from dpaudit.personalization.boundary.messages import Terms
from dpaudit.personalization.boundary.transcript import Transcript
from dpaudit.report import words
from dpaudit.report.figures import FAINT, INK, PAPER, SERIES, canvas, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LANES = ("devices,\none a user", "trusted\ndistributor", "trusted\naggregator", "server, developer,\neverybody else")
SEEN = (
    "sees its own record\nand its slice",
    "sees the model and\nwho asks for what",
    "sees messages, their\nsum and its noise",
    "see the model, releases,\nlengths of encrypted messages",
)
DEVICE, DISTRIBUTOR, AGGREGATOR, SERVER = 0.0, 1.0, 2.0, 4.3
BOUNDARY = 2.55
INSIDE, OUTSIDE = SERIES[2][0], SERIES[1][0]


@styled
def round_figure(terms: Terms, transcript: Transcript, *, delta: float) -> "Figure":
    """Draws what the parties of a round send each other: names, shapes and bytes, and the event of each release.

    Args:
      terms: of the protocol, from :func:`dpaudit.personalization.boundary.messages.terms`.
      transcript: of one run, whose epsilon is written below the figure.
      delta: at which that epsilon is computed.

    Returns:
      A figure for :func:`dpaudit.report.figures.save_png`.

    Raises:
      InputError: delta out of range.
    """
    arrows: list[tuple[float, float, str, str]] = [(SERVER, DISTRIBUTOR, f"model\n{_size(terms.model)}", INK)]
    if terms.message is None:
        arrows.append((DEVICE, AGGREGATOR, "contributions, of which only the sum is kept", INSIDE))
    else:
        if jax.tree.leaves(terms.request):
            arrows.append((DEVICE, DISTRIBUTOR, f"request\n{_size(terms.request)}", INSIDE))
        arrows.append((DISTRIBUTOR, DEVICE, f"slice\n{_size(terms.slice)}", INSIDE))
        arrows.append((DEVICE, AGGREGATOR, f"message\n{_size(terms.message)}", INSIDE))
    for release in terms.releases:
        told = f"{release.process.name}\n{_size(release.value)}\n{_words(release.process.event(1))}"
        arrows.append((AGGREGATOR, SERVER, told, OUTSIDE))

    figure = canvas(8.6, 1.9 + 0.58 * len(arrows))
    axes = figure.subplots()
    bottom = len(arrows) + 1.5
    axes.axvspan(-0.55, BOUNDARY, color=INSIDE, alpha=0.08, linewidth=0)
    axes.axvline(BOUNDARY, color=INK, linewidth=1.5, linestyle="--")
    axes.text(BOUNDARY, 0.45, " trust boundary", va="center", fontsize=9)
    for place, lane, seen in zip((DEVICE, DISTRIBUTOR, AGGREGATOR, SERVER), LANES, SEEN, strict=True):
        axes.vlines(place, 0.25, bottom - 0.9, color=FAINT, linewidth=1)
        axes.text(place, 0.1, lane, ha="center", va="bottom", fontsize=10, fontweight="bold")
        axes.text(place, bottom - 0.8, seen, ha="center", va="top", fontsize=8.5, style="italic")
    for row, arrow in enumerate(arrows):
        _arrow(axes, row + 1, *arrow)
    _note(axes, AGGREGATOR + 0.45, len(arrows) - len(terms.releases) + 0.5, f"sum of all: {_size(terms.total)}")
    axes.set_xlim(-0.55, 4.5)
    axes.set_ylim(bottom + 0.05, -0.85)
    axes.set_axis_off()
    axes.set_title(_cost(transcript, delta), loc="left", fontsize=10, y=-0.04, va="top")
    return figure


def _arrow(axes: "Axes", row: int, start: float, end: float, text: str, colour: str) -> None:
    width = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.6, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", (end, row), (start, row), arrowprops=width)
    crossing = {start, end} >= {SERVER}
    middle = (SERVER + BOUNDARY) / 2 if crossing else (start + end) / 2
    axes.text(middle, row, text, ha="center", va="center", fontsize=8, color=colour, bbox=PAPER, linespacing=1.15)


def _note(axes: "Axes", place: float, row: float, text: str) -> None:
    axes.text(place, row, text, ha="right", va="center", fontsize=8, bbox=PAPER)


def _size(tree: Any) -> str:
    """Describes a pytree by its shapes and bytes."""
    shapes = [f"{np.dtype(leaf.dtype).name} {list(leaf.shape)}" for leaf in jax.tree.leaves(tree)]
    told = ", ".join(shapes) if len(shapes) <= 2 else f"{len(shapes)} arrays"
    return f"{told}, {messages.length(tree):,} B"


@functools.singledispatch
def _words(event: DpEvent) -> str:
    return str(event)


@_words.register
def _(event: dp_accounting.GaussianDpEvent) -> str:
    return f"Gaussian noise, multiplier {event.noise_multiplier:.3g}"


@_words.register
def _(event: dp_accounting.PoissonSampledDpEvent) -> str:
    return f"of a secret sample, rate {event.sampling_probability:.3g}:\n{_words(event.event)}"


@_words.register
def _(event: dp_accounting.SelfComposedDpEvent) -> str:
    return _words(event.event) if event.count == 1 else f"{event.count} times {_words(event.event)}"


def _cost(transcript: Transcript, delta: float) -> str:
    released = sum(np.shape(release.number)[-1] for part in transcript.parts for release in part)
    epsilon = transcript.epsilon(delta)
    return f"{released} releases crossed; one user added or removed: ε = {words.at_most(epsilon)} at δ = {delta:g}"
