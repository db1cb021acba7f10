"""Judges the paper's claims at its own scale, by networks that each had a coin for 1,000 targets."""

import math
from collections.abc import Callable

from experiments.pages import Claim, Row, Rows, Verdict, from_interval, number, only, ranged, select
from experiments.paper003.claims import SAME, Tally, tally, verdict
from experiments.paper003.published import LOSS, STATED, UNIT
from experiments.paper003.questions import DETERMINISTIC

COMMAND = "paper003.full_scale --work DIR"
NEAR = 0.02  # of accuracy
ERRORS = 1.96  # standard errors
MORE, LESS, EQUAL = 1, -1, 0


def differences(rows: Rows, question: int, which: Callable[[Row], bool] = lambda at: True) -> list[Row]:
    return [row for row in select(rows, "full_difference", question=question) if which(row["setting"])]


def counted(found: list[Row], second: int) -> Tally:
    return tally(verdict(row["ours_low"], row["ours_high"], second, SAME["advantage"]) for row in found)


def compared(rows: Rows, question: int, second: int, which: Callable[[Row], bool] = lambda at: True) -> Verdict:
    """Judges differences of advantages by their simultaneous intervals: holds if all support it, fails if all
    contradict it."""
    found = differences(rows, question, which)
    counts = counted(found, second)
    agree = not counts.open and (counts.holds == 0) != (counts.opposite == 0)
    ends = min(row["ours_low"] for row in found), max(row["ours_high"] for row in found)
    told = f"{counts.holds} / {counts.opposite} / {counts.open} for / against / open; differences of advantages in "
    return Verdict(counts.holds > 0 if agree else None, f"{told}[{number(ends[0])}, {number(ends[1])}]", ran(found[0]))


def as_much(rows: Rows) -> Verdict:
    """Judges whether the mean of two samples or more leaks as much as that of all. It holds only where samples leak more
    than what is called the same: attacks that see nothing agree as well."""
    found = compared(rows, 2, EQUAL, lambda at: at["samples"] > 1)
    every = [row for row in select(rows, "full_advantage", kind="all") if row["setting"]["seen"] != DETERMINISTIC]
    most = max(every, key=lambda row: row["ours_low"])
    seen = most["ours_low"] > SAME["advantage"]
    told = f"the most that samples show over all targets is {ranged(most)}{'' if seen else ', too little to tell'}"
    return found._replace(holds=found.holds if seen or not found.holds else None, ours=f"{found.ours}; {told}")


def ran(row: Row) -> str:
    return row["scale"]


def accuracy(rows: Rows, name: str) -> Row:
    """Returns the row of an accuracy, whose interval covers which records are judged and how networks differ."""
    return only(rows, "full_accuracy", published=name)


def accuracies(rows: Rows) -> Verdict:
    """Tells whether all accuracies that the paper states come out within two points."""
    found = {name: accuracy(rows, name) for name in STATED}
    off = {name: row["ours"] - row["paper_value"] for name, row in found.items()}
    reach = {name: (row["ours_high"] - row["ours_low"]) / 2 for name, row in found.items()}
    inside = all(abs(off[name]) + reach[name] <= NEAR for name in off)
    outside = any(abs(off[name]) - reach[name] > NEAR for name in off)
    told = f"{100 * min(off.values()):+.1f} to {100 * max(off.values()):+.1f} points"
    return Verdict(decided(rows, True if inside else False if outside else None), told, ran(found[DETERMINISTIC]))


def decided(rows: Rows, holds: bool | None) -> bool | None:
    """A single network decides nothing about accuracy: how much networks differ is not known."""
    return holds if len(select(rows, "full_network")) > 1 else None


def lost(rows: Rows) -> tuple[float, float, Row]:
    """Returns the accuracy that rounding costs, half of its interval, and the row of what was rounded."""
    whole, rounded = (only(rows, "full_accuracy", published=name) for name in ("mean of all", f"rounded to {UNIT}"))
    apart = whole["ours"] - rounded["ours"]
    return apart, ERRORS * math.sqrt(max(abs(apart), 1 / rounded["records"]) / rounded["records"]), rounded


def keeps_accuracy(rows: Rows) -> Verdict:
    apart, error, rounded = lost(rows)
    undecided = only(rows, "full_accuracy", published=f"rounded to {UNIT}, no label")["ours"]
    told = f"{100 * apart:.1f} ± {100 * error:.1f} points, {100 * undecided:.1f}% get no label"
    return Verdict(decided(rows, from_interval(LOSS - apart - error, LOSS - apart + error)), told, ran(rounded))


def bounded(rows: Rows) -> Verdict:
    """Tells whether some output shows any privacy loss with confidence."""
    found = sorted(select(rows, "full_bound"), key=lambda row: row["setting"]["seen"])
    best = max(found, key=lambda row: row["ours"])
    told = f"at least {number(best['ours'])} ({best['setting']['seen']}), of at most {number(best['ceiling'])}"
    return Verdict(True if best["ours"] > 0 else None, told, ran(best))


# fmt: off
FULL_CLAIMS = (
    Claim("Accuracies of one prediction and of the mean of samples, at the paper's scale, within two points", ".48; .42 to .48", accuracies, COMMAND),
    Claim("RQ1 at the paper's scale: samples leak more than one prediction", "", lambda rows: compared(rows, 1, MORE), COMMAND),
    Claim(f"RQ2 at the paper's scale: the mean of two samples or more leaks as much as that of all (advantages within {SAME['advantage']:g})", "", as_much, COMMAND),
    Claim(f"RQ3 at the paper's scale: rounding to {UNIT} costs less than a point of accuracy", "< 1 point", keeps_accuracy, COMMAND),
)
MORE_FULL = (
    Claim("RQ2 at the paper's scale: one sample leaks less than the mean of all", "", lambda rows: compared(rows, 2, LESS, lambda at: at["samples"] == 1), COMMAND),
    Claim(f"RQ3 at the paper's scale: rounding to {UNIT} lowers the risk", "", lambda rows: compared(rows, 3, LESS, lambda at: at["unit"] == UNIT), COMMAND),
    Claim("RQ3 at the paper's scale: rounding lowers it, whatever the unit", "", lambda rows: compared(rows, 3, LESS), COMMAND),
    Claim("Some output shows a privacy loss at the paper's scale, with confidence", "", bounded, COMMAND),
)
# fmt: on
