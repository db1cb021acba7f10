"""What the parts of experiments/README.md are made of."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

Rows = Sequence[dict[str, Any]]


def table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table; every column but the first is aligned right."""
    rule = ["---"] + ["---:"] * (len(header) - 1)
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, rule, *lines)) + "\n"


def select(rows: Rows, quantity: str, **setting: Any) -> list[dict[str, Any]]:
    """The rows of a quantity whose setting agrees."""
    agree = (row for row in rows if row["quantity"] == quantity)
    return [row for row in agree if all(row["setting"].get(name) == value for name, value in setting.items())]


def ranged(row: dict[str, Any], digits: int = 2) -> str:
    """ours [low, high]."""
    low, high = (number(row[name], digits) for name in ("ours_low", "ours_high"))
    return f"{number(row['ours'], digits)} [{low}, {high}]"


def times_of(rows: Rows, quantity: str, **setting: Any) -> str:
    """A ratio; 1 where a side would be compared with itself."""
    found = select(rows, quantity, **setting)
    return ranged(found[0]) if found else "1"


def number(value: Any, digits: int = 2) -> str:
    """A row's number: the text "inf" is infinity, None is missing."""
    if value is None:
        return "–"
    return "∞" if value == "inf" else f"{value:.{digits}f}"


def digits(value: Any) -> str:
    """Three of them, and all before the point."""
    if value == "inf":
        return "∞"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def benchmark(title: str, said: str) -> Callable[[Rows], Iterable[str]]:
    """A part that is one table: every row with its setting, what was run and where."""

    def section(rows: Rows) -> Iterable[str]:
        yield f"## {title}\n"
        yield f"{said}\n"
        lines = [
            [
                row["quantity"],
                ", ".join(f"{name} {value}" for name, value in row["setting"].items()),
                ranged(row) if row["ours_low"] is not None else number(row["ours"]),
                row["scale"],
                row["device"],
            ]
            for row in rows
        ]
        yield table(["figure", "setting", "value", "scale", "device"], lines)

    return section
