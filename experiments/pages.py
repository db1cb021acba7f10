"""Builds pages from result rows: a small template language, tables, and the verdicts on a paper's claims.

A template is Markdown with three marks. The values come from functions of the rows, in the module ``page`` beside it:

    [[table_1]]                                          the text that page.table_1(rows) returns
    [[verdicts]]                                         the table of verdicts on page.CLAIMS
    [[ceiling: At most {most:.2f} of {trials:,} trials.]]     a sentence that must be true

The last calls ``page.ceiling(rows)``, which returns a :class:`Fact`: whether the sentence holds, and its numbers. A
sentence that does not hold ends the build, and so does a number that is typed into a template by hand.
"""

import importlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from dpaudit.report.rows import read_rows

Row = dict[str, Any]
Rows = Sequence[Row]

HERE = Path(__file__).parent
FOLDERS = ("paper000", "paper001", "paper002", "paper003", "paper004", "trust", "libraries", "bench")

MARK = re.compile(r"\[\[(\w+)(?::\s+(.*?))?\]\]", re.DOTALL)
FIELD = re.compile(r"\{\w+(?::[^}]*)?\}")
NAMES = re.compile(  # numbers that name something: places in a paper, code, links, and names with digits in them
    r"```.*?```|`[^`]*`|\]\([^)]*\)|<[^>]*>"
    r"|(?:Tables?|Figs?\.|Sections?|Algorithms?|Eqs?\.|Propositions?|Findings?|RQ)"
    r"\s?\(?\d[\d.,()]*(?: (?:and|to) \d[\d.()]*)?"
    r"|\b[A-Za-zΑ-ω]+[-_]?\d[\w-]*|\b2C\b",
    re.DOTALL,
)


def rows_of(folder: str) -> list[Row]:
    """Returns all rows that a folder's page is made of."""
    found = HERE / folder / "results"
    return [
        row for pattern in page_of(folder).FILES for file in sorted(found.glob(pattern)) for row in read_rows(file)
    ]


def page_of(folder: str) -> ModuleType:
    """Returns the module that has the functions of a folder's template."""
    return importlib.import_module(f"experiments.{folder}.page")


class Untrue(Exception):
    """A page says something that its rows do not."""


class Fact(NamedTuple):
    """A sentence's predicate and numbers."""

    holds: bool
    values: Mapping[str, Any]


def fact(holds: object, /, **values: Any) -> Fact:
    return Fact(bool(holds), values)


def filled(template: str, page: ModuleType, rows: Rows, name: str = "template") -> str:
    """Returns the template with every mark replaced.

    Raises:
      Untrue: a sentence that does not hold, or a number that no function gave.
    """
    refuse_typed_numbers(template, name)

    def replacement(mark: re.Match[str]) -> str:
        made: Any = verdicts(page.CLAIMS, rows) if mark[1] == "verdicts" else getattr(page, mark[1])(rows)
        if mark[2] is None:
            return str(made)
        sentence = mark[2].format_map(made.values)
        if not made.holds:
            raise Untrue(f"{name}: {mark[1]} no longer holds: {' '.join(sentence.split())}")
        return sentence

    return MARK.sub(replacement, template)


def refuse_typed_numbers(template: str, name: str) -> None:
    """Raises Untrue where prose has a number that is neither a field nor part of a name."""
    prose = MARK.sub(lambda mark: FIELD.sub("", mark[2] or ""), template)
    for line in NAMES.sub("", prose).splitlines():
        if found := re.search(r"\d[\d.,]*", line):
            raise Untrue(f"{name}: expected numbers from rows, got {found[0]!r} typed by hand in: {line.strip()}")


class Verdict(NamedTuple):
    """What rows say of a claim."""

    holds: bool | None  # None where they leave it open
    ours: str  # our number, with its range
    scale: str  # what was run

    @property
    def word(self) -> str:
        return {True: "holds", False: "fails", None: "open"}[self.holds]


class Claim(NamedTuple):
    """One claim of a paper."""

    says: str  # in words
    paper: str  # the number that it prints, if any
    judge: Callable[[Rows], Verdict]  # from rows to a verdict
    command: str  # what makes the rows, as in ``python -m experiments.COMMAND``


def verdicts(claims: Iterable[Claim], rows: Rows) -> str:
    """Returns the table that opens a page: a line for each claim."""
    lines = []
    for claim in claims:
        found = claim.judge(rows)
        cells = [claim.paper or "–", found.ours, f"**{found.word}**", f"`{claim.command}`", found.scale]
        lines.append([claim.says, *cells])
    return table(["claim", "paper", "ours [range]", "verdict", "command", "scale"], lines, left=True)


RANGE = {2: 1.13, 3: 1.69, 5: 2.33, 10: 3.08}  # of so many normal values, in standard deviations
FREEDOM = {2: 1.0, 3: 2.0, 5: 3.8, 10: 7.7}  # degrees of a deviation from that range (Patnaik, Biometrika 1950)


def standard_error(row: Row, trials: int) -> float:
    """Returns the standard error of a mean over trials, from their range; infinite for a single trial."""
    if trials not in RANGE:
        return float("inf")
    return (row["ours_high"] - row["ours_low"]) / RANGE[trials] / trials**0.5


def apart(one: Row, other: Row, trials: int) -> tuple[float, float]:
    """Returns by how much one mean exceeds another, and half of Student's 95% interval for that, as if trials were not
    paired (Welch, Biometrika 1947); infinite for a single trial."""
    errors = [standard_error(row, trials) for row in (one, other)]
    both = math.hypot(*errors)
    if both in (0, math.inf):
        return one["ours"] - other["ours"], both
    freedom = FREEDOM[trials] * both**4 / sum(error**4 for error in errors)
    return one["ours"] - other["ours"], float(stats.t.ppf(0.975, freedom)) * both


def from_interval(low: float, high: float) -> bool | None:
    """Tells whether a difference is positive: None where its interval includes zero."""
    return True if low > 0 else False if high < 0 else None


def table(header: str | Sequence[str], lines: Iterable[Sequence[Any]], *, left: bool = False) -> str:
    """A Markdown table, whose header may be one text; columns but the first are aligned right, unless all are text."""
    header = header.split(" | ") if isinstance(header, str) else header
    rule = ["---"] * len(header) if left else ["---"] + ["---:"] * (len(header) - 1)
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in (header, rule, *lines))


def select(rows: Rows, quantity: str, **setting: Any) -> list[Row]:
    """Returns the rows of a quantity whose setting agrees."""
    found = (row for row in rows if row.get("quantity") == quantity)
    return [row for row in found if all(row["setting"].get(name) == value for name, value in setting.items())]


def only(rows: Rows, quantity: str, **setting: Any) -> Row:
    """Returns the one row that agrees."""
    (row,) = select(rows, quantity, **setting)
    return row


def grouped(rows: Rows, by: str, *same: str) -> list[dict[Any, Row]]:
    """Returns the rows that agree in the settings ``same``, each group by the value of another setting."""
    groups: dict[tuple[Any, ...], dict[Any, Row]] = {}
    for row in rows:
        at = row["setting"]
        group = groups.setdefault(tuple(at.get(name) for name in same), {})
        if group.setdefault(at[by], row) is not row:
            raise ValueError(f"expected one row of {by} = {at[by]!r} among those that agree in {same}, got two: {at}")
    return list(groups.values())


def values(rows: Rows, name: str) -> list[Any]:
    """Returns the different values of a field of the setting, in order of appearance."""
    return list(dict.fromkeys(row["setting"][name] for row in rows if name in row["setting"]))


def each_scale(rows: Rows) -> str:
    """Tells what was run for rows, where not all are of the same scale."""
    return "; ".join(dict.fromkeys(row["scale"] for row in rows))


def number(value: Any, digits: int = 2) -> str:
    """Returns a row's number: the text "inf" is infinity, None is missing."""
    if value is None:
        return "–"
    return "∞" if value in ("inf", np.inf) else f"{value:.{digits}f}"


def short(value: Any) -> str:
    """Three digits, and all before the point."""
    if value in ("inf", np.inf):
        return "∞"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def ranged(row: Row, digits: int = 2) -> str:
    """ours [low, high]; ours alone where there is no range."""
    if row["ours_low"] is None:
        return number(row["ours"], digits)
    return f"{number(row['ours'], digits)} {interval(row, digits)}"


def interval(row: Row, digits: int = 2) -> str:
    return f"[{number(row['ours_low'], digits)}, {number(row['ours_high'], digits)}]"


def broken(row: Row, allowed: float, digits: int = 2) -> str:
    """[lower, upper] of an epsilon, bold where the lower bound is above what is allowed."""
    text = interval(row, digits)
    return f"**{text}**" if float(row["ours_low"]) > allowed else text


def image(title: str, file: str) -> str:
    return f"![{title}](results/{file})"


SHORT_NAMES = {
    "paper 000": "LDP client audit",
    "paper 001": "SPGC",
    "paper 002": "clip size",
    "paper 003": "MC-dropout risk",
    "paper 004": "personalization",
}


def named(text: str) -> str:
    """Returns a row's text with papers by their short names."""
    for number_of, name in SHORT_NAMES.items():
        text = text.replace(number_of, name)
    return text


def mean(rows: Rows, name: str = "ours") -> float:
    return float(np.mean([row[name] for row in rows]))


def save(figure: Any, file: Path) -> None:
    from dpaudit.report.figures import save_png

    file.parent.mkdir(exist_ok=True)
    save_png(figure, file)
