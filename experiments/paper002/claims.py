"""Judges the paper's claims by the result rows, with a paired model over trials."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize, stats

from experiments.pages import Claim, Row, Rows, Verdict, from_interval, number, only, select
from experiments.paper002 import published
from experiments.paper002.published import ACCURACY, ADAPTIVE, BUDGETS, COMPARISONS

SCALE = ("dataset", "rounds", "clients_per_round", "simulated")
AS_PRINTED = ("mnist", 10_000, 1_000, 1_000)  # the paper's rounds and clients
FEW = ("mnist", 10_000, 1_000, 20)  # its rounds, with a few clients in place of all
KEEPS = 2  # the noise that keeps the promise, over C
LEAST = 2  # degrees of freedom of a standard deviation, below which nothing is decided
UNLIKE = 0.05  # level of the test that refutes a standard deviation which margins would share
MOST_TRIALS = 1_000  # that anybody is told to make


class Margin(NamedTuple):
    """What trials say of one claim at one scale under one noise."""

    claim: int
    middle: float
    deviation: float  # of a trial's margin, as those of this claim alone have it
    trials: int
    repeated: int  # how many of the claim's pairs of settings were run in more than one trial
    row: Row

    @property
    def settings(self) -> set[str]:
        """The two that are closest, which the margin is between."""
        return set(self.row["setting"]["closest"])


class Judged(NamedTuple):
    """A margin with its interval, and whether it is positive: None is open."""

    margin: Margin
    error: float
    holds: bool | None
    pool: Sequence[Margin]  # what the standard deviation from trial to trial is of; empty where that is too little

    def __str__(self) -> str:
        error = "" if math.isinf(self.error) else f" ± {self.error:.2g}"
        return f"{self.margin.middle:+.3g}{error}"


def scale_of(setting: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(setting.get(name) for name in SCALE)


def named(scale: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip(SCALE, scale, strict=True))


def trials_of(row: Row) -> int:
    """Returns how many trials an accuracy is the mean of."""
    return int(row["scale"].rsplit(", ", 1)[1].split()[0])


def spread(row: Row) -> str:
    """Returns the mean of a row's trials ± their standard deviation, where there are several."""
    return number(row["ours"]) + ("" if row["ours_low"] is None else f" ± {row['ours'] - row['ours_low']:.2f}")


def printed(name: str) -> str:
    """Returns the accuracy of a setting as the paper prints it, or a dash where it prints none."""
    return "{:.2f} ± {:.2f}".format(*ACCURACY[name]) if name in ACCURACY else "–"


def scales(rows: Rows) -> list[tuple[Any, ...]]:
    """Returns the scales that were run: the paper's data first, and the most rounds and clients first."""
    found = {scale_of(row["setting"]) for row in select(rows, "accuracy_percent")}
    return sorted(found, key=lambda scale: (scale[0] != AS_PRINTED[0], scale[0], *(-each for each in scale[1:])))


def margins(rows: Rows, scale: tuple[Any, ...], sensitivity: int) -> list[Margin]:
    """Returns the margins of every claim that was run at a scale."""
    found = select(rows, "claim_margin", **named(scale), sensitivity=sensitivity)
    return [_margin(row, rows) for row in found]


def _margin(row: Row, rows: Rows) -> Margin:
    """From a row's margins of each trial; earlier rows have Student's 95% interval over them instead."""
    at, middle = row["setting"], float(row["ours"])
    ran = _trials(at, rows)
    own = COMPARISONS[at["claim"]]
    fixed = {name: math.inf for name in own.smaller if own.quantity == "clip_norm"}
    every = ran | fixed  # a fixed C is what its name says, run or not
    repeated = sum(min(every.get(a, 0), every.get(b, 0)) > 1 for a in own.larger for b in own.smaller)
    deviation, trials = math.nan, 1
    if "apart" in row:
        apart = np.array(row["apart"], float)
        trials = len(apart)
        if trials > 1 and np.isfinite(apart).all():
            deviation = float(apart.std(ddof=1))
    elif row["ours_low"] is not None:
        trials = min(ran[name] for name in at["closest"])
        deviation = (middle - row["ours_low"]) * math.sqrt(trials) / float(stats.t.ppf(0.975, trials - 1))
    return Margin(at["claim"], middle, deviation, trials, repeated, row)


def _trials(setting: dict[str, Any], rows: Rows) -> dict[str, int]:
    """Returns how many trials every setting was run in; without privacy, under no noise."""
    return {
        row["setting"]["name"]: trials_of(row)
        for row in select(rows, "accuracy_percent", **named(scale_of(setting)))
        if row["setting"]["sensitivity"] in (None, setting["sensitivity"])
    }


def judge(found: Sequence[Margin]) -> list[Judged]:
    """Gives every margin an interval by a paired model: trials differ as much for all margins of one quantity.

    The standard deviation from trial to trial is shared by the margins of one quantity at one share of the rounds, or,
    where those leave fewer than ``LEAST`` degrees of freedom, by all of the quantity. Where the trials refute that
    (:func:`alike`), a margin has its own, as the margins of rules that are not the paper's always do. With fewer than
    ``LEAST`` degrees nothing is decided. A single trial decides nothing: no claim holds before all of its pairs of
    settings were run in two. An interval below 0 allows for the pairs that the closest was picked from (:func:`_of`).
    """
    return [_judged(margin, found) for margin in found]


def _judged(margin: Margin, found: Sequence[Margin]) -> Judged:
    pool = _pool(margin, found)
    if margin.trials < 2 or not pool:
        return Judged(margin, math.inf, None, pool)
    error = _half_width(pool, margin.trials, _of(margin))
    holds = from_interval(margin.middle - error, margin.middle + error)
    _, meant = pairs(margin)
    return Judged(margin, error, None if holds and margin.repeated < meant else holds, pool)


def pairs(margin: Margin) -> tuple[int, int]:
    """Returns how many of a claim's pairs of settings were run, and how many there are; it holds if it does for all,
    and fails if it does for one."""
    claim = COMPARISONS[margin.claim]
    meant = len(claim.larger) * len(claim.smaller)
    return margin.row["setting"].get("pairs", meant), meant


def _pool(margin: Margin, found: Sequence[Margin]) -> list[Margin]:
    """Returns the margins that share one's standard deviation; none where they have too few degrees of freedom."""
    own = COMPARISONS[margin.claim]
    told = [m for m in found if m.trials > 1 and math.isfinite(m.deviation)]
    of = [m for m in told if COMPARISONS[m.claim].quantity == own.quantity and not added(m)]
    at_once = [m for m in of if COMPARISONS[m.claim].at == own.at]
    shared = next((pool for pool in (at_once, of) if _freedom(pool) >= LEAST), [])
    pool = [m for m in told if m.claim == margin.claim] if added(margin) or not alike(shared) else shared
    return pool if _freedom(pool) >= LEAST else []


def added(margin: Margin) -> bool:
    """Tells whether a margin is of rules that are not the paper's."""
    return bool(set(COMPARISONS[margin.claim].larger) & set(BUDGETS))


def alike(pool: Sequence[Margin]) -> bool:
    """Tells whether margins may share a standard deviation, by the test of Bartlett ("Properties of sufficiency and
    statistical tests", 1937), as if they were independent: with nᵢ degrees of freedom each, n in all, k margins and
    the pooled variance s², (n ln s² - Σᵢ nᵢ ln sᵢ²) / (1 + (Σᵢ 1/nᵢ - 1/n) / (3(k - 1))) is about χ² with k - 1.
    """
    if len(pool) < 2 or _deviation(pool) == 0:
        return True
    free = np.array([m.trials - 1 for m in pool], float)
    variances = np.array([m.deviation for m in pool]) ** 2 / _deviation(pool) ** 2
    told = -(free * np.log(np.maximum(variances, np.finfo(float).tiny))).sum()
    scale = 1 + ((1 / free).sum() - 1 / free.sum()) / (3 * (len(pool) - 1))
    return bool(stats.chi2.sf(told / scale, len(pool) - 1) > UNLIKE)


def _freedom(pool: Sequence[Margin]) -> float:
    """Returns the degrees of freedom of a variance that margins share.

    They match its mean and variance (Satterthwaite, "An approximate distribution of estimates of variance
    components", 1946): (Σᵢ nᵢ)² / Σᵢⱼ ρᵢⱼ² nᵢⱼ, where n is one less than the number of trials, of one margin or of
    both. In the paired model margins between s settings in common have a correlation of ρ = ± s / 2, here at any
    rounds. Without any in common this is Σᵢ nᵢ.
    """
    squared = sum(
        (len(one.settings & other.settings) / 2) ** 2 * (min(one.trials, other.trials) - 1)
        for one in pool
        for other in pool
    )
    return sum(m.trials - 1 for m in pool) ** 2 / squared if pool else 0.0


def _deviation(pool: Sequence[Margin]) -> float:
    """Returns the standard deviation from trial to trial that margins share."""
    return math.sqrt(sum((m.trials - 1) * m.deviation**2 for m in pool) / sum(m.trials - 1 for m in pool))


def _half_width(pool: Sequence[Margin], trials: int, of: int = 1) -> float:
    """Half of Student's 95% interval for the mean of so many trials, which is true of ``of`` such means at once."""
    return float(stats.t.ppf(1 - 0.025 / of, _freedom(pool))) * _deviation(pool) / math.sqrt(trials)


def _of(margin: Margin) -> int:
    """Returns how many pairs a margin was picked from, where that favours the verdict. A claim fails if one pair does,
    so that the lowest of several falls below 0 by chance more often than one (Bonferroni); it holds if all do."""
    return pairs(margin)[0] if margin.middle < 0 else 1


def by_itself(margin: Margin) -> str:
    """Returns a margin with Student's 95% interval over its own trials alone."""
    if margin.trials < 2 or not math.isfinite(margin.deviation):
        return f"{margin.middle:+.3g}"
    error = _half_width([margin], margin.trials, _of(margin))
    return f"{margin.middle:+.3g} ± {error:.2g}"


def what_would_change(judged: Judged) -> str:
    """Tells what another verdict would take: of a decided claim, one more trial; of an open one, more like these."""
    margin, n = judged.margin, judged.margin.trials
    others = [m for m in judged.pool if m.claim != margin.claim]
    if judged.holds is None:
        run, meant = pairs(margin)
        if run < meant:
            return "runs of the settings that are missing"
        if not judged.pool:
            return f"{LEAST + 1} trials in all, or more"
        if n > 1 and margin.repeated < meant and margin.middle > judged.error:
            return "second trials of the settings that have one"
        for trials in range(max(2, n), MOST_TRIALS + 1):
            more = margin._replace(trials=trials, deviation=_deviation(judged.pool))
            if _half_width([*others, more], trials, _of(margin)) < abs(margin.middle):
                return f"{trials} trials in all, if the mean and this spread stay"
        return f"more than {MOST_TRIALS:,} trials, if the mean and this spread stay"
    sign = 1 if judged.holds else -1

    def bound(off: float) -> float:
        """The end next to zero of the interval with one trial more, so far from the mean towards zero."""
        variance = ((n - 1) * margin.deviation**2 + n / (n + 1) * off**2) / n
        more = margin._replace(trials=n + 1, deviation=math.sqrt(variance))
        shared = [*others, more]
        pool = shared if alike(shared) else [more]
        return abs(margin.middle) - off / (n + 1) - _half_width(pool, n + 1, _of(margin))

    steps = np.linspace(0, (n + 1) * abs(margin.middle), 200)  # the end jumps where the spreads become too unlike
    first = next(i for i, step in enumerate(steps) if bound(step) <= 0)
    off: Any = optimize.brentq(bound, steps[first - 1], steps[first]) if first else 0.0
    return f"one more trial of {margin.middle - sign * off:+.3g} or {'less' if judged.holds else 'more'}: open again"


def of_paper(claim: published.Comparison) -> str:
    """Returns the same margin in the paper's own tables, where they have it."""
    if claim.quantity != "accuracy" or claim.at != 1 or not {*claim.larger, *claim.smaller} <= ACCURACY.keys():
        return ""
    return f"{min(ACCURACY[a][0] - ACCURACY[b][0] for a in claim.larger for b in claim.smaller):+.2f}"


def by_runs(number_of: int, rows: Rows) -> Verdict:
    """Returns a comparison between settings, with the noise that keeps the promise, as :func:`deciding` has it."""
    best = deciding(number_of, rows)
    if best is None:
        return Verdict(None, "not run", "all clients")
    return Verdict(best.holds, f"{best} ({' against '.join(best.margin.row['setting']['closest'])})", ran(best.margin))


def deciding(number_of: int, rows: Rows) -> Judged | None:
    """Returns what a comparison is judged by: runs of all clients.

    Where these decide nothing, runs with a few clients in place of all may, but for rules that adapt to what clients
    report: 20 reports say less than 1,000.
    """
    adapts = {*COMPARISONS[number_of].larger, *COMPARISONS[number_of].smaller} & set(ADAPTIVE)
    scales = (AS_PRINTED,) if adapts else (AS_PRINTED, FEW)
    found = [each for scale in scales for each in judge(margins(rows, scale, KEEPS)) if each.margin.claim == number_of]
    return next((each for each in found if each.holds is not None), found[0] if found else None)


def ran(margin: Margin) -> str:
    at = margin.row["setting"]
    who = "all" if at["simulated"] == at["clients_per_round"] else f"{at['simulated']} clients for"
    trials = f"{margin.trials} trial{'s' * (margin.trials > 1)}"
    told = f"{at['rounds']:,} rounds, {who} {at['clients_per_round']:,}{' clients' * (who == 'all')}, {trials}"
    run, meant = pairs(margin)
    if run < meant:
        return f"{told}, {run} of {meant} pairs of settings"
    once = meant - margin.repeated
    return f"{told}, but 1 for {once} of {meant} pairs of settings" if margin.trials > 1 and once else told


def message(sensitivity: int, rows: Rows) -> Verdict:
    row = only(rows, "message_epsilon", sensitivity=sensitivity)
    return Verdict(row["ours"] <= row["paper_value"] + 1e-6, number(row["ours"]), "closed form")


def statistic(rows: Rows) -> Verdict:
    row = only(rows, "spent_epsilon", rule="quantile", accounting="Poisson, Renyi")
    return Verdict(row["ours"] <= row["paper_value"], number(row["ours"], 4), "closed form, bits centred at one half")


def tables(rows: Rows) -> Verdict:
    """Tells whether the accuracies of Tables 1 and 2 come out within a point, with the noise that keeps the promise: of
    all clients, or of a few in place of them until all settings were run with all.

    It holds where every interval lies within a point of the paper's accuracy, and fails where one lies beyond it.
    """
    whole, few = (off_by(scale, rows) for scale in (AS_PRINTED, FEW))
    complete = len(whole) == len(ACCURACY)
    judged = whole if complete else [*few, *whole]
    inside, beyond = (
        all(abs(off) + error < 1 for off, error in judged),
        any(abs(off) - error > 1 for off, error in judged),
    )
    shown, who = (whole, "all clients") if complete else (few, f"{FEW[-1]} clients for {FEW[-2]:,}")
    off, errors = zip(*shown, strict=True)
    told = (
        f"{np.mean(off):+.2f} on average, {min(off):+.2f} to {max(off):+.2f} points, each ± {max(errors):.2f} or less"
    )
    scale = f"{len(off)} settings, {who}"
    if whole and not complete:
        scale += f"; {len(whole)} with all clients are off by {min(whole)[0]:+.2f} to {max(whole)[0]:+.2f}"
    return Verdict(True if inside else False if beyond else None, told, scale)


def off_by(scale: tuple[Any, ...], rows: Rows) -> list[tuple[float, float]]:
    """By how much accuracies of Tables 1 and 2 differ from the paper's at one scale, with half of Student's 95% interval:
    infinite for a single trial. All settings share a standard deviation from trial to trial."""
    found = select(rows, "accuracy_percent", sensitivity=KEEPS, **named(scale))
    found = [row for row in found if row["paper_value"] is not None]
    several = [(trials_of(row) - 1, row["ours"] - row["ours_low"]) for row in found if row["ours_low"] is not None]
    freedom = sum(free for free, _ in several)
    shared = math.sqrt(sum(free * deviation**2 for free, deviation in several) / max(freedom, 1))
    reach = float(stats.t.ppf(0.975, max(freedom, 1))) * shared
    return [
        (row["ours"] - row["paper_value"], math.inf if row["ours_low"] is None else reach / math.sqrt(trials_of(row)))
        for row in found
    ]


COMMAND = "clip_size --work DIR"
# fmt: off
CLAIMS = (
    Claim("A message is ε-LDP, with the noise of Section 3.1.2 (2C)", "ε = 8", lambda rows: message(2, rows), COMMAND),
    Claim("A message is ε-LDP, with the noise that Algorithm 3 prints (C)", "ε = 8", lambda rows: message(1, rows), COMMAND),
    Claim("The quantile rule's total ε", "0.006", statistic, COMMAND),
    Claim("Tables 1 and 2: accuracy in ten settings, within a point", "89.65 to 94.04%", tables, COMMAND),
    *(
        Claim(f"{published.place(c)}: {c.text}", of_paper(c), lambda rows, i=i: by_runs(i, rows), COMMAND)
        for i, c in published.in_order() if not published.of_ours(c)
    ),
)
# fmt: on
