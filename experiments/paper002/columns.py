"""Names the scales and noises that were run: the columns of this paper's tables."""

from collections.abc import Sequence
from typing import Any

from experiments.pages import Rows, select
from experiments.paper002.claims import named, scales

NOISE = {1: "C", 2: "2C"}
Columns = Sequence[tuple[tuple[Any, ...], int]]


def of_all(scale: tuple[Any, ...]) -> bool:
    """Tells whether all clients of a round were computed."""
    _, _, meant, played = scale
    return meant == played


def columns(rows: Rows, *, whole: bool) -> Columns:
    """Returns the scales and noises that were run with all clients, or with a few in place of them, the paper's
    first."""
    found = [(scale, noise) for scale in scales(rows) for noise in NOISE if of_all(scale) == whole]
    return [
        (scale, noise) for scale, noise in found if select(rows, "accuracy_percent", sensitivity=noise, **named(scale))
    ]


def title(scale: tuple[Any, ...], noise: int) -> str:
    dataset, rounds, meant, played = scale
    return f"{dataset}, {rounds:,} rounds, {played:,} of {meant:,}, {NOISE[noise]}"
