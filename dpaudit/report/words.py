"""How a row is said in words: names, numbers and the order of things, the same in table, figures and page."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dpaudit.federated.client_audit import CRAFTS

Row = dict[str, Any]

SHORT = {"zero_against_large": "zero vs large"}  # where a name with its underscores replaced would be too long
ENGINES = {
    "full": "the randomizer as shipped, run on whole gradients",
    "plane": "simulated from the randomizer's mathematics in the plane of the two gradients; the shipped code is not run",
    "exact": "computed in closed form; no trial is played and no code is tested",
}
RELATIONS = {
    "replace": "replace: any two gradients of one client",
    "add_remove": "add_remove: one record present or absent",
}
PAIRS = {"fresh": "a fresh pair of gradients in every trial", "fixed": "one pair of gradients for all trials"}


def number(value: Any) -> float:
    """A row's number: the text "inf" is infinity, None is NaN."""
    return math.nan if value is None else float(value)


def said(value: Any, digits: int = 2) -> str:
    """A row's number for people: ``0.24``, ``∞``, and ``–`` where there is none."""
    value = number(value)
    if math.isnan(value):
        return "–"
    return "∞" if math.isinf(value) else f"{value:.{digits}f}"


def interval(low: Any, high: Any) -> str:
    """``[0.22, 0.26]``."""
    return f"[{said(low)}, {said(high)}]"


def with_spread(mean: Any, std: Any) -> str:
    """``0.24 ± 0.02``, without the spread where there is none."""
    return said(mean) if math.isnan(number(std)) else f"{said(mean)} ± {said(std)}"


def of_100(share: float) -> int:
    """A probability as a whole number out of 100, halves rounded up."""
    return math.floor(100 * share + 0.5)


def worst_case(epsilon: float) -> float:
    """The largest probability of a right guess that the promise allows, e^epsilon/(1 + e^epsilon)."""
    return 1 / (1 + math.exp(-epsilon))


def craft_name(craft: str) -> str:
    """``label flip`` for ``label_flip``."""
    return SHORT.get(craft, craft.replace("_", " "))


def source(row: Row) -> str:
    """The data set of a row, as it is shown."""
    return str(row.get("dataset") or "no data")


def distinct(rows: Iterable[Row], of: str | Callable[[Row], Any]) -> list[Any]:
    """The different values of a field, or of a function of the row, in order of appearance; None is left out."""
    values = (row.get(of) if isinstance(of, str) else of(row) for row in rows)
    return [value for value in dict.fromkeys(values) if value is not None]


def listed(rows: Iterable[Row], field: str, digits: int | None = None) -> str:
    """The different values of a field, in words: ``0.5, 1, 2``."""
    values = distinct(rows, field)
    return ", ".join(dict.fromkeys(f"{v:,}" if digits is None and isinstance(v, int) else
                                   said(v, digits) if digits is not None else
                                   f"{v:g}" if isinstance(v, float) else str(v) for v in values))


def ordered(rows: Sequence[Row]) -> list[Row]:
    """By data set as they come, then from the weakest access to the strongest, then by epsilon."""
    sources = distinct(rows, source)
    crafts = [*CRAFTS, *distinct(rows, "craft")]
    return sorted(rows, key=lambda row: (sources.index(source(row)), crafts.index(row["craft"]), row["epsilon"]))


def epsilons(rows: Iterable[Row]) -> list[float]:
    """The promises, from the strictest on."""
    return sorted({row["epsilon"] for row in rows})
