"""Turns records of runs into comparison rows, margins of claims, curves and histograms."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from dpaudit.auditing.result import json_number
from dpaudit.federated import accounting, clip_size, rounds
from experiments.common import Rows
from experiments.paper002.published import (
    ACCURACY,
    CLIENTS,
    CLIENTS_PER_ROUND,
    COMPARISONS,
    DELTA,
    EPSILON,
    QUANTILE_EPSILON,
    ROUNDS,
    Comparison,
)

Records = Sequence[dict[str, Any]]
CURVES = ("accuracy", "loss", "clip_norm", "norm")
MEDIAN_BINS = np.r_[0, np.searchsorted(rounds.EDGES, clip_size.EDGES[1:-1]) + 1]  # where each begins in a histogram


def compare(rows: Rows, labels: dict[str, Any], own: Records, scale: str) -> None:
    """Adds one setting, over its trials: the mean, and mean ± standard deviation where there are several."""
    values = {name: np.array([_values(record, name) for record in own]) for name in CURVES}
    found = {
        "accuracy_percent": 100 * values["accuracy"][:, -1],
        "loss": values["loss"][:, -1],
        "clip_norm": values["clip_norm"][:, -1],
        "seconds_per_round": np.array([record["seconds_per_round"] for record in own]),
    }
    for quantity, each in found.items():
        paper = stated(labels) if quantity == "accuracy_percent" else None
        row = rows.add(quantity, labels, *over_trials(each), scale=scale, paper_value=paper, seconds=seconds(own))
        row["device"] = own[0]["device"]
    lost = [record["diverged"] for record in own if record["diverged"] is not None]
    if lost:
        rows.add("diverged_round", labels | {"trials": len(lost)}, min(lost), (min(lost), max(lost)), scale=scale)


def over_trials(each: np.ndarray) -> tuple[float, tuple[float | None, float | None]]:
    """Returns the mean of trials, and mean ± standard deviation where there are several."""
    mean = float(each.mean())
    if len(each) == 1 or not math.isfinite(mean):
        return mean, (None, None)
    deviation = float(each.std(ddof=1))
    return mean, (mean - deviation, mean + deviation)


def stated(labels: dict[str, Any]) -> float | None:
    """Returns the accuracy that the paper states for a setting, in percent."""
    as_in_the_paper = labels["dataset"] == "mnist" and labels["rounds"] == ROUNDS
    return ACCURACY.get(labels["name"], (None,))[0] if as_in_the_paper else None


def seconds(own: Records) -> float:
    """Returns how long runs took: rounds times the median time of one."""
    return sum(record["seconds_per_round"] * record["rounds"] for record in own)


def judge(rows: Rows, labels: dict[str, Any], records: Records, scale: Callable[[int], str]) -> None:
    """Adds every claim's margin in each trial: that of its closest pair of settings, with the smallest and the
    largest.

    ``scale(trials)`` tells of so many trials: those that both settings of the closest pair were run in.
    """
    for number, claim in enumerate(COMPARISONS):
        pair, apart, compared = margin(claim, records)
        if compared:
            own = labels | {"claim": number, "closest": list(pair), "pairs": compared}
            ends = (min(apart), max(apart))
            row = rows.add("claim_margin", own, float(np.mean(apart)), ends, scale=scale(len(apart)))
            row["apart"] = list(map(json_number, apart))


def margin(claim: Comparison, records: Records) -> tuple[tuple[str, str], list[float], int]:
    """Returns the closest of a claim's pairs of settings, how far it is apart in each trial, and how many pairs were
    run. Where some pairs were run in several trials it is one of those: trials differ by more than pairs may."""
    found = {(record["name"], record["trial"]): _at(record, claim) for record in records}
    trials = sorted({trial for _, trial in found})
    if claim.quantity == "clip_norm":  # a fixed C is what its name says, run or not
        fixed = [name for name in (*claim.larger, *claim.smaller) if name.startswith("clip")]
        found |= {(name, trial): float(name.removeprefix("clip")) for name in fixed for trial in trials}
    apart: dict[tuple[str, str], list[float]] = {}
    for pair in ((large, small) for large in claim.larger for small in claim.smaller):
        both = [[found.get((name, trial)) for name in pair] for trial in trials]
        values = [(large, small) for large, small in both if large is not None and small is not None]
        if values:
            apart[pair] = [0.0 if large == small else large - small for large, small in values]
    several = [pair for pair, values in apart.items() if len(values) > 1]
    closest = min(several or apart, key=lambda pair: np.mean(apart[pair]), default=("", ""))
    return closest, apart.get(closest, []), len(apart)


def curves(labels: dict[str, Any], own: Records) -> dict[str, Any]:
    """Means over the trials, at every look; None where a trial has no finite value."""
    middle = {name: np.mean([_values(record, name) for record in own], axis=0) for name in CURVES}
    shown = {
        name: [float(f"{value:.4g}") if math.isfinite(value) else None for value in values]
        for name, values in middle.items()
    }
    return labels | {"trials": len(own), "round": own[0]["round"]} | shown


def histograms(labels: dict[str, Any], record: dict[str, Any]) -> list[dict[str, Any]]:
    """Fig. 9, a row for each update: the shares of norms in the median rule's bins before and after noise."""
    if not record["released"]:
        return []
    return [
        labels | {"round": end, "raw": np.add.reduceat(shares, MEDIAN_BINS).round(4).tolist(), "noisy": noisy}
        for end, shares, noisy in zip(record["tenths"], record["histogram"], record["released"], strict=True)
    ]


def privacy(rows: Rows, multipliers: dict[int, float]) -> None:
    """Adds what is really promised, at the paper's scale: by messages, and by the statistics of the adaptive rules."""
    scale = f"closed form, {ROUNDS:,} rounds x {CLIENTS_PER_ROUND:,} of {CLIENTS:,} clients"
    for sensitivity, multiplier in multipliers.items():
        epsilon = accounting.gaussian(1, noise_multiplier=multiplier, delta=DELTA)
        labels = {"sensitivity": sensitivity, "noise_multiplier": round(multiplier, 4), "delta": DELTA}
        rows.add("message_epsilon", labels, epsilon, scale=scale, paper_value=EPSILON)
    message = partial(accounting.gaussian, noise_multiplier=multipliers[2])
    rules = {  # and how far a replaced report moves the statistic, over one added
        "any": (clip_size.fixed(1.0), 2.0),
        "quantile": (clip_size.adaptive_quantile(0.01, quantile=0.5), 2.0),
        "median": (clip_size.adaptive_median(0.01), math.sqrt(2)),
    }
    drawn = {"clients": CLIENTS, "clients_per_round": CLIENTS_PER_ROUND, "rounds": ROUNDS}
    for name, (rule, replacement) in rules.items():
        spent = accounting.table(message, rule.event, delta=DELTA, every=rule.every, replacement=replacement, **drawn)
        for row in spent:
            epsilon = row.pop("epsilon")
            if (row["release"] == "message") == (name == "any"):
                stated = QUANTILE_EPSILON if (name, row["accounting"]) == ("quantile", "Poisson, Renyi") else None
                rows.add("spent_epsilon", {"rule": name} | row, epsilon, scale=scale, paper_value=stated)


def _values(record: dict[str, Any], name: str) -> np.ndarray:
    """Returns a curve; infinite where learning has diverged."""
    return np.array([math.inf if value is None else value for value in record[name]])


def _at(record: dict[str, Any], claim: Comparison) -> float:
    """Returns the claim's quantity when its share of the rounds has passed; accuracies in percent."""
    ends = np.asarray(record["round"])
    value = float(_values(record, claim.quantity)[np.searchsorted(ends, claim.at * ends[-1])])
    return 100 * value if claim.quantity == "accuracy" else value
