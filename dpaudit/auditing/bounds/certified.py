"""Bounds what an attack achieves in other terms than epsilon: advantage, accuracy, TPR at a small FPR, posterior.

Each quantity is a function of one rule's two error rates that falls in both, so Clopper-Pearson bounds on the rates,
at alpha/2 each, bound it from both sides. The lower bounds hold for the best attack on the mechanism as well; the
upper ones speak of this rule alone.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dpaudit import _validate
from dpaudit.auditing.bounds.estimate import clopper_pearson, error_table


class Certified(NamedTuple):
    """A quantity at the observed rates, with bounds that each hold with probability >= confidence."""

    value: float
    lower: float
    upper: float


def advantage(
    false_positives: Any, false_negatives: Any, negatives: Any, positives: Any, *, confidence: float
) -> Certified:
    """Bounds the membership advantage TPR - FPR = 1 - FPR - FNR of a rule, never below 0.

    Args:
      false_positives: guesses of world 1 among ``negatives`` trials of world 0.
      false_negatives: guesses of world 0 among ``positives`` trials of world 1.
      negatives, positives: trials of world 0 and of world 1.
      confidence: of each bound, in (0, 1).

    Raises:
      InputError: a value out of range.

    Source: Yeom et al. 2018, Privacy Risk in Machine Learning, Definition 4.
    """
    counts = (false_positives, false_negatives, negatives, positives)
    return _bounded(lambda fpr, fnr: np.maximum(1 - fpr - fnr, 0.0), *counts, confidence=confidence)


def accuracy(
    false_positives: Any, false_negatives: Any, negatives: Any, positives: Any, *, confidence: float
) -> Certified:
    """Bounds the share of right guesses where both worlds are equally likely, 1 - (FPR + FNR)/2.

    Args and Raises: as for :func:`advantage`.
    """
    counts = (false_positives, false_negatives, negatives, positives)
    return _bounded(lambda fpr, fnr: 1 - (fpr + fnr) / 2, *counts, confidence=confidence)


def tpr_at(
    fpr: float, false_positives: Any, false_negatives: Any, negatives: Any, positives: Any, *, confidence: float
) -> Certified:
    """Bounds the TPR that the rule attains at this FPR, mixed with a rule that ignores the release.

    A rule with error rates (a, b) and one that always or never guesses world 1 mix to every point of the lines from
    (0, 0) over (a, 1 - b) to (1, 1): the TPR at f is (1 - b) f/a for f <= a and 1 - b (1 - f)/(1 - a) beyond.

    Args:
      fpr: f, in (0, 1).
      The other arguments, Raises: as for :func:`advantage`.

    Source: Carlini et al. 2022, Membership Inference Attacks From First Principles, for the quantity.
    """
    f = _validate.open_unit(fpr=fpr)

    def mixed(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            below, above = (1 - b) * f / a, 1 - b * (1 - f) / (1 - a)
        return np.maximum(np.where(f <= a, below, above), f)  # guessing alone attains f

    return _bounded(mixed, false_positives, false_negatives, negatives, positives, confidence=confidence)


def posterior(
    prior: float, false_positives: Any, false_negatives: Any, negatives: Any, positives: Any, *, confidence: float
) -> Certified:
    """Bounds what an attacker believes of world 1 after the rule has said so: p TPR/(p TPR + (1 - p) FPR).

    Args:
      prior: p, what the attacker believed before, in (0, 1).
      The other arguments, Raises: as for :func:`advantage`.

    Source: Wood et al. 2018 and Desfontaines 2018, the Bayesian reading of (epsilon, 0): at most
    p e^epsilon/(1 - p + p e^epsilon).
    """
    p = _validate.open_unit(prior=prior)

    def believed(fpr: np.ndarray, fnr: np.ndarray) -> np.ndarray:
        told = p * (1 - fnr)
        total = told + (1 - p) * fpr
        return np.where(
            total > 0, told / np.where(total > 0, total, 1.0), p
        )  # a rule that never says so tells nothing

    return _bounded(believed, false_positives, false_negatives, negatives, positives, confidence=confidence)


def _bounded(of: Callable[..., np.ndarray], *counts: Any, confidence: float) -> Certified:
    alpha = (1 - _validate.open_unit(confidence=confidence)) / 2
    table = error_table(*counts)
    fpr_low, fpr_high = clopper_pearson(table.false_positives, table.negatives, alpha=alpha)
    fnr_low, fnr_high = clopper_pearson(table.false_negatives, table.positives, alpha=alpha)
    observed = of(table.false_positives / table.negatives, table.false_negatives / table.positives)
    return Certified(*map(float, (observed, of(fpr_high, fnr_high), of(fpr_low, fnr_low))))
