"""Words and formats the contents of rows, so that tables, figures and pages agree on names, numbers and order."""

import math
from collections.abc import Callable, Iterable, Sequence
from decimal import ROUND_CEILING, Decimal
from typing import Any

from dpaudit.auditing.shown import beside as shown_beside
from dpaudit.audits.ldp_client import CRAFTS

Row = dict[str, Any]

SHORT = {"zero_against_large": "zero vs large"}  # for names that are too long for tables
ENGINES = {
    "full": "the randomizer as shipped, run on whole gradients",
    "plane": "simulated from the randomizer's mathematics in the plane of both gradients; shipped code is not run",
    "kernel": "the trials of full by a program of their own, which never writes a release; shipped code is not run",
    "exact": "computed in closed form; no trial is run and no code is tested",
}
RELATIONS = {
    "replace": "replace: any two gradients of one client",
    "add_remove": "add_remove: one record present or absent",
}
PAIRS = {"fresh": "a fresh pair of gradients in every trial", "fixed": "one pair of gradients for all trials"}


def number(value: Any) -> float:
    """Returns a row's number: the text "inf" is infinity, None is NaN."""
    return math.nan if value is None else float(value)


def said(value: Any, digits: int | None = None) -> str:
    """Formats a row's number for readers: ``0.24``, ``12.3`` from ten on, ``∞``, and ``–`` for a missing one."""
    shown = number(value)
    if math.isnan(shown):
        return "–"
    if math.isinf(shown):
        return "∞"
    return f"{shown:.{(2 if shown < 9.995 else 1) if digits is None else digits}f}"


def at_most(value: Any) -> str:
    """Formats a row's number as :func:`said` does, but never below it, as a promise is not: ``0.25`` for 0.2401."""
    shown = number(value)
    if not math.isfinite(shown):
        return said(shown)
    return str(Decimal(repr(shown)).quantize(Decimal("0.01" if shown <= 9.99 else "0.1"), ROUND_CEILING))


def beside(value: Any, promised: Any) -> str:
    """Formats a row's number as :func:`said` does, but on its own side of the promise: ``1.003`` where 1 was
    promised."""
    shown = number(value)
    if promised is None or not math.isfinite(shown):
        return said(value)
    return shown_beside(shown, number(promised), ".2f" if shown < 9.995 else ".1f")


def interval(low: Any, high: Any) -> str:
    """Formats an interval: ``[0.22, 0.26]``."""
    return f"[{said(low)}, {said(high)}]"


def with_spread(mean: Any, std: Any, digits: int | None = None) -> str:
    """Formats a mean with its spread, if it has one: ``0.24 ± 0.02``."""
    return said(mean, digits) if math.isnan(number(std)) else f"{said(mean, digits)} ± {said(std, digits)}"


def of_100(share: float) -> int:
    """Rounds a probability to a whole number out of 100, halves up."""
    return math.floor(100 * share + 0.5)


def often(probability: float) -> str:
    """Formats a probability as so many times out of 100, without an exponent: ``49``, ``0.017``."""
    times = 100 * probability
    if times < 1e-4:
        return "less than 0.0001"
    return f"{times:.0f}" if times >= 9.95 else f"{times:.2g}"


def likelier(ratio: float, form: str) -> str:
    """Formats how many times likelier something is, below 100 as ``form`` says: ``54.6``, ``2,981``."""
    if ratio >= 1e6:
        return "more than a million"
    return f"{ratio:,.0f}" if ratio >= 100 else format(ratio, form)


def worst_case(epsilon: float, delta: float = 0.0) -> float:
    """Returns the largest probability of a right guess that a promise allows, (e^epsilon + delta)/(1 + e^epsilon)."""
    return (1 + delta * math.exp(-epsilon)) / (1 + math.exp(-epsilon))


def delta_of(rows: Iterable[Row]) -> float:
    """Returns the delta of the promises of one page."""
    return next((row["delta"] for row in rows), 0.0)


def promise(epsilon: float, delta: float = 0.0) -> str:
    """Names a promise: ``ε = 4``, or ``ε = 4, δ = 1e-07``."""
    return f"ε = {epsilon:g}" + (f", δ = {delta:g}" if delta else "")


def craft_name(craft: str) -> str:
    """Names a setting in words: ``label flip`` for ``label_flip``."""
    return SHORT.get(craft, craft.replace("_", " "))


def source(row: Row) -> str:
    """Names the data set of a row."""
    return str(row.get("dataset") or "no data")


def distinct(rows: Iterable[Row], of: str | Callable[[Row], Any]) -> list[Any]:
    """Returns the different values of a field, or of a function of the row, in order of appearance, without None."""
    values = (row.get(of) if isinstance(of, str) else of(row) for row in rows)
    return [value for value in dict.fromkeys(values) if value is not None]


def listed(rows: Iterable[Row], field: str, say: Callable[[Any], str] = str) -> str:
    """Lists the different values of a field: ``0.5, 1, 2``."""
    return ", ".join(dict.fromkeys(say(value) for value in distinct(rows, field)))


def ordered(rows: Sequence[Row]) -> list[Row]:
    """Sorts rows by data set in the order given, from the weakest access to the strongest, then by epsilon."""
    sources = distinct(rows, source)
    crafts = [*CRAFTS, *distinct(rows, "craft")]
    return sorted(rows, key=lambda row: (sources.index(source(row)), crafts.index(row["craft"]), row["epsilon"]))


def epsilons(rows: Iterable[Row]) -> list[float]:
    """Returns the promised epsilons in rising order."""
    return sorted({row["epsilon"] for row in rows})


def effort(rows: Sequence[Row]) -> str:
    """Describes the trials: ``10 repeats of 10,000 trials, a fresh pair of gradients in every trial``."""
    repeats, pairs = listed(rows, "repeats"), words_of(rows, "pair", PAIRS)
    plural = "" if repeats == "1" else "s"
    return f"{repeats} repeat{plural} of {listed(rows, 'trials', '{:,}'.format)} trials, {pairs}"


def words_of(rows: Sequence[Row], field: str, meaning: dict[str, str]) -> str:
    """Lists the different values of a field, each replaced by its meaning if it has one."""
    return "; ".join(meaning.get(value, str(value)) for value in distinct(rows, field))


def confidence(rows: Sequence[Row]) -> str:
    """Formats the confidence of each bound: ``95%``."""
    return listed(rows, "confidence", lambda value: f"{100 * value:.4g}%")


def false_alarms(rows: Sequence[Row]) -> float:
    """Bounds the expected number of lower bounds that lie too high by chance.

    Each row has two, the cosine rule's and the optimal test's. Below 1, the number also bounds the probability that
    any of them lies too high (union bound)."""
    return 2 * sum(1 - row["confidence"] for row in rows)


def assurance(rows: Sequence[Row]) -> str:
    """Describes the joint confidence of all bounds: ``99.75% for each bound, 95% for all 20 lower bounds together``,
    or how many of them may fail."""
    alarms, bounds = false_alarms(rows), f"{2 * len(rows)} lower bounds"
    if alarms < 1:
        return f"{confidence(rows)} for each bound, {100 * (1 - alarms):.3g}% for all {bounds} together"
    return f"{confidence(rows)} for each bound; on average up to {alarms:.2g} of {bounds} may lie too high by chance"


def detectable(rows: Sequence[Row], of: Callable[[Iterable[float]], float] = max) -> str:
    """Formats the detectable epsilon of each promise: ``0.52 (claim 0.5), none (claim 4)``; ``of`` the settings, the
    one in which it is largest or smallest."""
    found = {
        epsilon: of(number(row["detectable"]) for row in rows if row["epsilon"] == epsilon)
        for epsilon in epsilons(rows)
    }
    return ", ".join(
        f"{'none' if math.isinf(least) else beside(least, epsilon)} (claim {epsilon:g})"
        for epsilon, least in found.items()
    )


def unfinished(rows: Sequence[Row], planned: int | None) -> str:
    """Says that a run ended before all of its planned tests; empty if it did not, or if their number is unknown."""
    if planned is None or len(rows) >= planned:
        return ""
    return f"{len(rows):,} of {planned:,} tests; the run was interrupted."
