"""Judges the paper's claims by the result rows."""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from experiments.pages import Claim, Row, Rows, Verdict, from_interval, grouped, number, only, select
from experiments.paper003.published import LARGEST, LOSS, RATIOS, UNIT
from experiments.paper003.questions import DETERMINISTIC, NULLS, TOGETHER

ERRORS = 2  # standard errors that an estimate may be off by luck
SAME = {"estimate": 0.5, "advantage": 0.1}  # two risks that differ by less are called the same
MORE, LESS, EQUAL = 1, -1, 0


class Comparison(NamedTuple):
    """One of the paper's claims, as a comparison of a second output's risk with a first's."""

    question: str
    text: str
    part: int
    which: Callable[[Row], bool]  # of the settings that are compared in this part
    second: int  # MORE, LESS or EQUAL


COMPARISONS = (
    Comparison("RQ1", "samples leak more than one prediction", 1, lambda setting: True, MORE),
    Comparison("RQ2", "one sample leaks less than all", 2, lambda setting: setting["samples"] == 1, LESS),
    Comparison("RQ2", "two samples or more leak as much as all", 2, lambda setting: setting["samples"] > 1, EQUAL),
    Comparison("RQ3", f"rounding to {UNIT} lowers the risk", 3, lambda setting: setting["unit"] == UNIT, LESS),
    Comparison("RQ3", "rounding lowers it, whatever the unit", 3, lambda setting: True, LESS),
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
    """Counts comparisons that hold (True), whose opposite holds (False), or which are open (None)."""
    found = list(verdicts)
    return Tally(found.count(True), found.count(False), found.count(None))


def verdict(low: float, high: float, second: int, same: float) -> bool | None:
    """Returns what an interval for "second - first" says of the claim that the second is more, less or equal.

    Equal holds where the whole interval is within ``same`` of 0, and its opposite where it does not reach 0 otherwise.
    """
    if second == EQUAL:
        return True if -same <= low <= high <= same else False if low > 0 or high < 0 else None
    return from_interval(*sorted((second * low, second * high)))


def by_advantage(claim: Comparison, rows: Rows, attack: str) -> Tally:
    """Returns the honest comparison: simultaneous intervals for the difference of membership advantages."""
    found = compared(claim, rows, attack)
    return tally(verdict(row["low"], row["high"], claim.second, SAME["advantage"]) for row in found)


def by_estimate(claim: Comparison, rows: Rows, *, above_null: bool) -> Tally:
    """Counts what the paper's comparison decides: of the estimates over their repeats, or of them less their nulls."""
    trained, found = only(rows, "trained"), []
    for row in compared(claim, rows):
        first, second = (estimate(one, trained["repeats"], above_null) for one in pair(row["setting"], rows))
        apart, error = second[0] - first[0], ERRORS * math.hypot(first[1], second[1])
        found.append(verdict(apart - error, apart + error, claim.second, SAME["estimate"]))
    return tally(found)


def above_null_alone(rows: Rows) -> Tally:
    """Counts Fig. 5's estimates that are above their nulls."""
    trained = only(rows, "trained")
    found = [estimate(row, trained["repeats"], True) for row in select(rows, "epsilon", part=1)]
    return tally(verdict(value - ERRORS * error, value + ERRORS * error, MORE, 0) for value, error in found)


def compared(claim: Comparison, rows: Rows, attack: str = "thresholds") -> list[Row]:
    """Returns the comparisons that a claim is about."""
    found = select(rows, "advantage", part=claim.part, attack=attack)
    return [row for row in found if claim.which(row["setting"])]


def pair(setting: Row, rows: Rows) -> tuple[Row, Row]:
    """Returns the estimates of the two outputs that a comparison is of."""
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
    """Returns an estimate, or its excess over its null, and the standard error; that of a single repeat is infinite.

    The null is a mean of at least ``NULLS`` estimates, whose deviation is taken for that of the repeats.
    """
    error = math.inf if row["deviation"] is None else row["deviation"] / math.sqrt(repeats)
    if not above_null:
        return row["ours"], error
    nulls = repeats * -(-NULLS // repeats)
    return row["ours"] - row["null"], error * math.sqrt(1 + repeats / nulls)


ENOUGH = 1_000  # networks of a data set, as many as the paper's


def scales(rows: Rows) -> dict[str, Rows]:
    """Returns the rows of each scale that was run, but for the quick one."""
    names = dict.fromkeys(row["setting"]["scale"] for row in select(rows, "trained"))
    return {name: [row for row in rows if row["setting"].get("scale") == name] for name in names if name != "quick"}


def large(rows: Rows) -> dict[str, Rows]:
    """Those that trained as many networks as the paper did."""
    found = scales(rows)
    sizes = {name: only(own, "trained") for name, own in found.items()}
    return {name: own for name, own in found.items() if sizes[name]["models"] * sizes[name]["repeats"] >= ENOUGH}


def ran(rows: Rows) -> str:
    return f"{', '.join(large(rows))}: {ENOUGH:,} networks a data set, small images"


def together(tallies: Iterable[Tally]) -> tuple[Tally, bool | None]:
    """Returns the sum of tallies, and what it says where all its comparisons agree."""
    found = Tally(*map(sum, zip(Tally(0, 0, 0), *tallies, strict=True)))
    agree = not found.open and (found.holds == 0) != (found.opposite == 0)
    return found, found.holds > 0 if agree else None


def by_comparisons(claim: Comparison, rows: Rows) -> Verdict:
    """Judges by simultaneous intervals for the difference of advantages, at all scales with enough networks
    together."""
    tallies = {name: by_advantage(claim, own, "thresholds") for name, own in large(rows).items()}
    told = "; ".join(f"{name} {found.holds} / {found.opposite} / {found.open}" for name, found in tallies.items())
    return Verdict(together(tallies.values())[1], f"{told} for / against / open", ran(rows))


def ratio(rows: Rows, seen: str, name: str = "ours") -> float:
    """Returns the estimate of an output over that of one prediction on data set 1, of which the paper prints it; or
    that of their nulls."""
    several, one = (only(rows, "epsilon", part=1, target=1, seen=of)[name] for of in (seen, DETERMINISTIC))
    return several / one


def _both(rows: Rows, name: str) -> str:
    return " and ".join(f"{ratio(rows, seen, name):.1f}" for seen in RATIOS)


def more_than_nothing(rows: Rows) -> Verdict:
    """Tells whether several statistics leak more by the paper's estimates less their nulls: those of networks that do
    not differ."""
    tallies = {name: by_estimate(COMPARISONS[0], own, above_null=True) for name, own in large(rows).items()}
    told = "; ".join(
        f"{name} {_both(own, 'ours')}, and {_both(own, 'null')} under the null" for name, own in large(rows).items()
    )
    found, holds = together(tallies.values())
    counts = f"{found.holds} / {found.opposite} / {found.open} for / against / open"
    return Verdict(holds, f"{told}; above the null, {counts}", ran(rows))


class Outputs(NamedTuple):
    """What the paper says of one way to tell of samples beside another, by its estimates on each data set."""

    text: str
    first: str
    second: str
    how: int  # MORE or LESS: the first than the second
    steadier: bool = False  # whether the first is also said to deviate less


OUTPUTS = (
    Outputs(
        "by the paper's own estimate, mean and standard deviation leak less than all four",
        "mean std",
        "min max mean std",
        LESS,
    ),
    Outputs(
        "by the same, they leak more than minimum and maximum, and deviate less", "mean std", "min max", MORE, True
    ),
)


def by_outputs(claim: Outputs, rows: Rows) -> Verdict:
    """Judges by estimates less their nulls, at all scales with enough networks together; tells of the estimates as they
    are."""
    tallies, smaller = {False: [], True: []}, []
    for own in large(rows).values():
        repeats, found = only(own, "trained")["repeats"], grouped(select(own, "epsilon", part=1), "seen", "target")
        for of in ([group[claim.first], group[claim.second]] for group in found):
            smaller.append(of[0]["deviation"] < of[1]["deviation"])
            for above_null, counted in tallies.items():
                first, second = (estimate(row, repeats, above_null) for row in of)
                apart, error = first[0] - second[0], ERRORS * math.hypot(first[1], second[1])
                counted.append(verdict(apart - error, apart + error, claim.how, 0))
    plain, above = (together([tally(counted)]) for counted in tallies.values())
    told = "; ".join(
        f"{found.holds} / {found.opposite} / {found.open} {name}"
        for (found, _), name in ((plain, "for / against / open as they are"), (above, "less their nulls"))
    )
    if not claim.steadier:
        return Verdict(above[1], told, ran(rows))
    told += f"; a smaller deviation in {sum(smaller)} of {len(smaller)} data sets"
    return Verdict(above[1] and all(smaller), told, ran(rows))


def largest(rows: Rows) -> Verdict:
    """Tells whether no estimate is far above the paper's largest.

    Where Eq. (7) is infinite in some repeat, an estimate depends on what a count of zero is replaced by, which the
    paper does not say: such an estimate does not contradict it.
    """
    most = LARGEST + SAME["estimate"]
    found = [row for own in large(rows).values() for row in select(own, "epsilon", part=1)]
    found = [row for row in found if row["setting"]["seen"] in (DETERMINISTIC, *TOGETHER)]
    above = [row for row in found if row["ours"] >= most]
    best = max(found, key=lambda row: row["ours"])
    told = f"{number(best['ours'])} ± {number(best['deviation'])}, and {number(best['null'])} under the null"
    told += f"; infinite by Eq. (7) in {100 * best['infinite']:.0f}% of repeats"
    return Verdict(not above or (None if all(row["infinite"] for row in above) else False), told, ran(rows))


def lost(rows: Rows) -> tuple[float, float]:
    """Accuracy, and the share of records without a label, that rounding costs at one scale."""
    before = only(rows, "utility", published="mean std", temperature=1.0)
    after = only(rows, "utility", published="mean std", unit=UNIT)
    return before["ours"] - after["ours"], after["undecided"]


def keeps_accuracy(rows: Rows) -> Verdict:
    found = {name: lost(own) for name, own in large(rows).items()}
    told = "; ".join(
        f"{name} {100 * cost:.1f} points, {100 * without:.1f}% get no label" for name, (cost, without) in found.items()
    )
    kept = [cost < LOSS for cost, _ in found.values()]
    return Verdict(True if all(kept) else False if not any(kept) else None, told, ran(rows))


COMMAND = "mc_dropout_risk --scale NAME --work DIR"
# fmt: off
CLAIMS = (
    *(Claim(f"{c.question}: {c.text}", "", lambda rows, c=c: by_comparisons(c, rows), COMMAND) for c in COMPARISONS),
    Claim("RQ1: by the paper's own estimate, several statistics leak more than one prediction", "2.6 and 3.0 times (data set 1: mean std; all four)", more_than_nothing, COMMAND),
    Claim(f"RQ3: rounding to {UNIT} costs less than a point of accuracy", "< 1 point", keeps_accuracy, COMMAND),
    *(Claim(f"RQ1: {c.text}", "", lambda rows, c=c: by_outputs(c, rows), COMMAND) for c in OUTPUTS),
    Claim(f"No estimate is far above {LARGEST:g} (by {SAME['estimate']:g} or more), though 25.63 is promised", f"about {LARGEST:g}", largest, COMMAND),
)
# fmt: on
