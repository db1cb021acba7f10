"""Rows by hand, with the fields that an audit of a client gives and numbers that are easy to recognise."""

from typing import Any


def row(**changes: Any) -> dict[str, Any]:
    """A row of the benign setting at epsilon 4: right 73.6 times out of 100 where 98.2 are allowed."""
    return {
        "dataset": "digits",
        "craft": "benign",
        "pretraining_steps": 100,
        "dimension": 1898,
        "seed": 7,
        "versions": "dpaudit 0.1.0, jax 0.10.2",
        "device": "cpu",
        "engine": "full",
        "pair": "fresh",
        "clip_norm": 1.0,
        "trials": 10_000,
        "repeats": 10,
        "confidence": 0.95,
        "delta": 0.0,
        "neighbouring": "replace",
        "seconds": 1.5,
        "epsilon": 4.0,
        "fpr": 0.2653,
        "fnr": 0.2626,
        "accuracy": 0.73605,
        "accuracy_std": 0.005,
        "accuracy_exact": 0.7366,
        "epsilon_hat": 1.04,
        "epsilon_hat_std": 0.03,
        "epsilon_lower": 1.01,
        "epsilon_upper": 1.05,
        "epsilon_exact": 1.028,
        "epsilon_optimal": 4.0,
        "epsilon_optimal_lower": 3.93,
        "epsilon_optimal_upper": 4.14,
        "method": "cosine; Clopper-Pearson",
        "ceiling": 9.51,
        "detectable": 4.07,
        "verdict": "consistent",
    } | changes


def computed(**changes: Any) -> dict[str, Any]:
    """A row of the exact engine: no trial, no ceiling."""
    return row(engine="exact", trials=0, repeats=0, ceiling=None, detectable=None, verdict="computed") | changes


def grid() -> list[dict[str, Any]]:
    """Two data sets, a weak and a strong setting, two promises; deliberately out of order."""
    rows = []
    for dataset in ("digits", "cifar10 (JPEG)"):
        for epsilon, weak, strong, detectable in ((4.0, 0.73605, 0.98184, 4.07), (1.0, 0.61304, 0.73202, 1.02)):
            shared = {"dataset": dataset, "epsilon": epsilon, "epsilon_optimal": epsilon, "detectable": detectable}
            shared |= {"epsilon_optimal_lower": 0.97 * epsilon, "epsilon_optimal_upper": 1.03 * epsilon}
            attained = {"epsilon_hat": 1.01 * epsilon, "epsilon_exact": epsilon, "accuracy_exact": strong}
            bounds = {"epsilon_lower": 0.98 * epsilon, "epsilon_upper": 1.03 * epsilon}
            rows.append(row(craft="dummy", accuracy=strong, **shared, **attained, **bounds))
            quarter = {"epsilon_hat": epsilon / 4, "epsilon_lower": epsilon / 5, "epsilon_upper": epsilon / 3}
            rows.append(row(accuracy=weak, accuracy_exact=weak, epsilon_exact=0.26 * epsilon, **quarter, **shared))
    return rows


def gaussian(**changes: Any) -> dict[str, Any]:
    """A row of a Gaussian client at epsilon 4 and delta 1e-7, whose noise allows 65 right guesses out of 100."""
    known = {"mechanism": "gaussian", "delta": 1e-7, "noise_std": 0.519, "mu": 0.77, "accuracy_most": 0.6499}
    known |= {"optimal_fpr": 0.3897, "optimal_tpr": 0.6103, "epsilon_optimal": 2.66, "epsilon_optimal_lower": 2.5}
    rates = {"fpr": 0.395, "fnr": 0.395, "accuracy": 0.605, "accuracy_exact": 0.605, "epsilon_exact": 0.43}
    return row(**(known | rates | {"detectable": 4.6} | changes))


def privunit(**changes: Any) -> dict[str, Any]:
    """A row of PrivUnit at epsilon 4."""
    known = {"mechanism": "privunit", "optimal_fpr": 0.0134, "optimal_tpr": 0.7316, "accuracy_most": 0.888}
    return row(**(known | {"accuracy": 0.853, "accuracy_exact": 0.85, "detectable": 4.3} | changes))
