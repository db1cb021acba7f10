"""Computes one row of a client's audit: exact and measured values of the cosine rule and of the optimal test."""

from typing import Any

import numpy as np

from dpaudit.auditing.bounds.estimate import epsilon_from_rates
from dpaudit.auditing.conclude import from_counts
from dpaudit.audits import engines
from dpaudit.audits.oracle import OptimalTest, Pair
from dpaudit.audits.randomizers import Randomizer
from dpaudit.mechanisms.claim import Claim

Columns = dict[str, Any]


def columns(
    randomizer: Randomizer, codes: np.ndarray | None, planes: Pair, *, confidence: float, **setting: Any
) -> Columns:
    """Computes the columns that depend on epsilon, measured values beside exact ones.

    Args:
      randomizer: that made the releases.
      codes: [2, repeats, n] of :mod:`dpaudit.audits.engines`; None where no trial was run.
      planes: the pairs of the trials.
      confidence: of each bound.
      **setting: epsilon, clip_norm, dimension.
    """
    best = randomizer.optimal(planes, **setting)
    exact = _exact(randomizer, planes, best, setting)
    found = _closed_form(exact)
    if codes is not None:
        found = _measured(randomizer, codes, best, setting["epsilon"], confidence)
    counted = 0 if codes is None else codes[0].size
    row = exact | found | randomizer.columns(planes, counted, confidence, **setting)
    if row["verdict"] == "consistent" and float(row["detectable"]) > 2 * setting["epsilon"]:  # "inf" is text
        row["verdict"] = "underpowered"
    return row


def _exact(randomizer: Randomizer, planes: Pair, best: OptimalTest, setting: dict[str, Any]) -> Columns:
    fpr, fnr = (float(np.mean(rate)) for rate in randomizer.cosine(planes, **setting))
    return {
        "fpr": fpr,
        "fnr": fnr,
        "accuracy_exact": 1 - (fpr + fnr) / 2,
        "epsilon_exact": float(epsilon_from_rates(fpr, fnr, randomizer.delta)),
        "epsilon_optimal": best.epsilon,
    }


def _closed_form(exact: Columns) -> Columns:
    """Returns the row of the engine `exact`, which runs no trials and cannot find a fault in an implementation."""
    epsilon, optimal = exact["epsilon_exact"], exact["epsilon_optimal"]
    return {
        "accuracy": exact["accuracy_exact"],
        "accuracy_std": 0.0,
        "epsilon_hat": epsilon,
        "epsilon_hat_std": 0.0,
        "epsilon_lower": epsilon,
        "epsilon_upper": epsilon,
        "epsilon_optimal_lower": optimal,
        "epsilon_optimal_upper": optimal,
        "trials": 0,
        "repeats": 0,
        "method": "closed form",
        "ceiling": None,
        "detectable": None,
        "verdict": "computed",
    }


def _measured(
    randomizer: Randomizer, codes: np.ndarray, best: OptimalTest, epsilon: float, confidence: float
) -> Columns:
    """Computes the measured columns from the codes [2, repeats, n] of one epsilon."""
    _, repeats, n = codes.shape
    guesses = (codes & engines.GUESS).astype(bool).sum(axis=2)
    fpr, fnr = guesses[0] / n, 1 - guesses[1] / n
    pooled = from_counts(
        int(guesses[0].sum()), int(repeats * n - guesses[1].sum()), repeats * n, repeats * n,
        claim=Claim(epsilon, randomizer.delta), method="cosine", confidence=confidence,
    )  # fmt: skip
    hats = epsilon_from_rates(fpr, fnr, randomizer.delta)
    entered = _entered(codes, best.pattern).sum(axis=(1, 2))
    blind = guesses.sum() in (0, guesses.size * n) and entered.sum() in (0, guesses.size * n)
    likely, unlikely = (entered[1], entered[0]) if best.pattern == 0 else (entered[0], entered[1])
    total = repeats * n
    low, high = randomizer.bounds(unlikely, total - likely, total, total, confidence=confidence)
    several = repeats > 1 and np.isfinite(hats).all()
    row = pooled.to_row()
    kept = ("fpr", "fnr", "accuracy", "epsilon_lower", "epsilon_upper", "method", "ceiling", "detectable", "verdict")
    if low > epsilon:  # the bounds hold jointly, so either test may find the violation
        row["verdict"] = "violation"
    elif blind and row["verdict"] != "violation":  # both tests gave one answer in all trials, as for equal gradients
        row["verdict"] = "underpowered"
    elif (
        row["verdict"] == "underpowered" and randomizer.bounds(0, 0, total, total, confidence=confidence)[0] > epsilon
    ):
        row["verdict"] = "consistent"  # the optimal test could have found one
    return {name: row[name] for name in kept} | {
        "accuracy_std": float(np.std(1 - (fpr + fnr) / 2, ddof=1)) if repeats > 1 else None,
        "epsilon_hat": float(np.mean(hats)),
        "epsilon_hat_std": float(np.std(hats, ddof=1)) if several else None,
        "epsilon_optimal_lower": float(low),
        "epsilon_optimal_upper": float(high),
    }


def _entered(codes: np.ndarray, pattern: int) -> np.ndarray:
    """Returns which trials fell into the optimal test's region (:func:`dpaudit.audits.oracle.optimal_test`)."""
    wanted = engines.SIDE1 if pattern == 0 else engines.SIDE0
    return (codes & (engines.SIDE0 | engines.SIDE1)) == wanted
