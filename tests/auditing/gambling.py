"""Simulates audits as the bets see them: outcomes of pairs at error rates on the edge of a claim, or anywhere."""

import math

import numpy as np

from dpaudit.auditing.bounds import betting

LOOKS = np.unique(np.ceil(1.08 ** np.arange(150)).astype(int))  # every pair at first, then 8 percent more, to 95,000
PATHS = 2000
ALPHA = 0.05


def corner(epsilon: float, delta: float = 0.0) -> tuple[float, float]:
    """Both error rates of the perfect attack."""
    rate = (1 - delta) / (1 + math.exp(epsilon))
    return rate, rate


def side(epsilon: float, delta: float, fpr: float) -> tuple[float, float]:
    """A point on the straight part of the trade-off curve with few false positives."""
    return fpr, 1 - delta - math.exp(epsilon) * fpr


def law(fpr: float, fnr: float) -> np.ndarray:
    """Probabilities of the four outcomes of a pair."""
    return np.array([(1 - fpr) * fnr, fpr * fnr, (1 - fpr) * (1 - fnr), fpr * (1 - fnr)])


def paths(fpr: float, fnr: float, *, looks=LOOKS, count=PATHS, seed=0) -> np.ndarray:
    """[count, looks, 4]: counts of outcomes of simulated audits."""
    draws = np.random.default_rng(seed).multinomial(np.diff(looks, prepend=0), law(fpr, fnr), (count, len(looks)))
    return np.cumsum(draws, axis=1)


def accused(counts: np.ndarray, claimed: float, delta: float) -> float:
    """The share of audits in which the wealth ever reaches 1/alpha."""
    wealth = betting.log_wealth(counts, claimed, delta=delta, expected_gap=claimed)
    return float((wealth >= math.log(1 / ALPHA)).any(1).mean())
