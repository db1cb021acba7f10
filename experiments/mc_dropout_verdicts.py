"""What paper 003 claims, what it prints, and the rules by which result rows say which of its answers hold."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from experiments.markdown import select
from experiments.mc_dropout_rows import DETERMINISTIC, NULLS

Rows = Sequence[dict[str, Any]]
Row = dict[str, Any]

LARGEST = 2.5  # estimate of all, Section 5
RATIOS = {"mean std": 2.6, "min max mean std": 3.0}  # estimate over that of one prediction, data set 1
ACCURACY = {1: 0.42, 2: 0.44, 5: 0.46, 10: 0.47, 50: 0.48}  # by samples, research question 2
PLAIN_ACCURACY = 0.48  # without dropout
UNIT = 0.01  # of rounding, research question 3
ROUNDED = (2.0, 1.3)  # estimates on data set 1, as it is and in multiples of the unit
LOSS = 0.01  # of accuracy by that, at most

ERRORS = 2  # standard errors that an estimate may be off by luck
SAME = {"estimate": 0.5, "advantage": 0.1}  # two risks that differ by less are called the same
MORE, LESS, EQUAL = 1, -1, 0


class Claim(NamedTuple):
    """One of the paper's, as a comparison of a second output's risk with a first's."""

    question: str
    text: str
    part: int
    which: Callable[[Row], bool]  # of the settings that are compared in this part
    second: int  # MORE, LESS or EQUAL


CLAIMS = (
    Claim("RQ1", "samples leak more than one prediction", 1, lambda setting: True, MORE),
    Claim("RQ2", "one sample leaks less than all", 2, lambda setting: setting["samples"] == 1, LESS),
    Claim("RQ2", "two samples or more leak as much as all", 2, lambda setting: setting["samples"] > 1, EQUAL),
    Claim("RQ3", f"rounding to {UNIT} lowers the risk", 3, lambda setting: setting["unit"] == UNIT, LESS),
    Claim("RQ3", "rounding lowers it, whatever the unit", 3, lambda setting: True, LESS),
)


class Tally(NamedTuple):
    """How many of several comparisons speak for a claim, against it, or leave it open."""

    holds: int
    opposite: int
    open: int

    def __str__(self) -> str:
        if self.opposite == 0:
            word = "open" if self.holds == 0 else "holds" if self.open == 0 else "holds in part"
        elif self.holds == 0:
            word = "the opposite holds" + (" in part" if self.open else "")
        else:
            word = "both occur"
        return f"{word} ({self.holds} / {self.opposite} / {self.open})"


def tally(verdicts: Iterable[bool | None]) -> Tally:
    """Of comparisons that hold (True), whose opposite holds (False), or which are open (None)."""
    found = list(verdicts)
    return Tally(found.count(True), found.count(False), found.count(None))


def verdict(low: float, high: float, second: int, same: float) -> bool | None:
    """What an interval for "second - first" says of the claim that the second is more, less or equal.

    Equal holds where the whole interval is within ``same`` of 0, and its opposite where it does not reach 0 otherwise.
    """
    if second == EQUAL:
        return True if -same <= low <= high <= same else False if low > 0 or high < 0 else None
    low, high = sorted((second * low, second * high))
    return True if low > 0 else False if high < 0 else None


def by_advantage(claim: Claim, rows: Rows, attack: str) -> Tally:
    """The honest comparison: simultaneous intervals for the difference of membership advantages."""
    found = compared(claim, rows, attack)
    return tally(verdict(row["low"], row["high"], claim.second, SAME["advantage"]) for row in found)


def by_estimate(claim: Claim, rows: Rows, *, above_null: bool) -> Tally:
    """The paper's comparison: estimates over their repeats, as they are or less their nulls."""
    (trained,) = select(rows, "trained")
    found = []
    for row in compared(claim, rows):
        first, second = (estimate(one, trained["repeats"], above_null) for one in pair(row["setting"], rows))
        apart, error = second[0] - first[0], ERRORS * math.hypot(first[1], second[1])
        found.append(verdict(apart - error, apart + error, claim.second, SAME["estimate"]))
    return tally(found)


def above_null_alone(rows: Rows) -> Tally:
    """Of Fig. 5's estimates: those above their nulls."""
    (trained,) = select(rows, "trained")
    found = [estimate(row, trained["repeats"], True) for row in select(rows, "epsilon", part=1)]
    return tally(verdict(value - ERRORS * error, value + ERRORS * error, MORE, 0) for value, error in found)


def compared(claim: Claim, rows: Rows, attack: str = "thresholds") -> list[Row]:
    """The comparisons that a claim is about."""
    found = select(rows, "advantage", part=claim.part, attack=attack)
    return [row for row in found if claim.which(row["setting"])]


def pair(setting: Row, rows: Rows) -> tuple[Row, Row]:
    """The estimates of the two outputs that a comparison is of."""
    same = {name: setting[name] for name in ("target", "seen")}
    first = {
        1: {"part": 1} | same | {"seen": DETERMINISTIC},
        2: {"part": 2} | same | {"samples": setting["to"]},
        3: {"part": 1} | same,
    }[setting["part"]]
    own = {name: value for name, value in setting.items() if name not in ("to", "attack")}
    ((before,), (after,)) = (select(rows, "epsilon", **one) for one in (first, own))
    return before, after


def estimate(row: Row, repeats: int, above_null: bool = False) -> tuple[float, float]:
    """An estimate, or its excess over its null, and the standard error; that of a single repeat is infinite.

    The null is a mean of at least ``NULLS`` estimates, whose deviation is taken for that of the repeats.
    """
    error = math.inf if row["deviation"] is None else row["deviation"] / math.sqrt(repeats)
    if not above_null:
        return row["ours"], error
    nulls = repeats * -(-NULLS // repeats)
    return row["ours"] - row["null"], error * math.sqrt(1 + repeats / nulls)
