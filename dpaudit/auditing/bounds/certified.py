"""Bounds what an attack achieves in other terms than epsilon: advantage, accuracy, TPR at a small FPR, posterior.

Each quantity is a function of one rule's two error rates that falls in both, so Clopper-Pearson bounds on the rates,
at alpha/2 each, bound it from both sides. The lower bounds hold for the best attack on the mechanism as well; the
upper ones are about this rule only.

The rule that shows the largest epsilon is rarely the most accurate one. An audit therefore chooses a threshold for
each quantity on the trials set aside (:func:`thresholds`) and counts them all on the others.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dpaudit import _validate
from dpaudit.auditing.bounds.band import Tradeoff
from dpaudit.auditing.bounds.estimate import clopper_pearson, error_table

FPRS = (0.01, 0.001)  # at which the TPR is reported
PRIOR = 0.5  # of the posterior that is reported; Certificates.posterior_at converts it

Quantity = Callable[[np.ndarray, np.ndarray], np.ndarray]
RateBounds = Callable[..., tuple[np.ndarray, np.ndarray]]


class Certified(NamedTuple):
    """A quantity at the observed rates, with bounds that each hold with probability >= confidence."""

    value: float
    lower: float
    upper: float


class Certificates(NamedTuple):
    """What an audit certifies besides epsilon. Each lower bound holds for the mechanism, each upper one for its rule.

    Attributes:
      advantage: TPR - FPR.
      accuracy: the share of right guesses where both worlds are equally likely.
      tpr_at_fpr_1_percent, tpr_at_fpr_1_permille: the TPR at an FPR of 0.01 and of 0.001.
      posterior: the probability of world 1 after the answer "world 1", for an attacker with prior 1/2.
    """

    advantage: Certified
    accuracy: Certified
    tpr_at_fpr_1_percent: Certified
    tpr_at_fpr_1_permille: Certified
    posterior: Certified

    def posterior_at(self, prior: float) -> Certified:
        """Converts the posterior to another prior p: p r/(1 - p + p r), r = TPR/FPR.

        Args:
          prior: p in (0, 1).

        Raises:
          InputError: a prior out of range.
        """
        p = _validate.open_unit(prior=prior)
        return Certified(*(p * q / (p * q + (1 - p) * (1 - q)) for q in self.posterior))


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
    return _bounded(_advantage, *counts, confidence=confidence)


def accuracy(
    false_positives: Any, false_negatives: Any, negatives: Any, positives: Any, *, confidence: float
) -> Certified:
    """Bounds the share of right guesses where both worlds are equally likely, 1 - (FPR + FNR)/2.

    Args and Raises: as for :func:`advantage`.
    """
    counts = (false_positives, false_negatives, negatives, positives)
    return _bounded(_accuracy, *counts, confidence=confidence)


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
    return _bounded(_tpr_at(f), false_positives, false_negatives, negatives, positives, confidence=confidence)


def posterior(
    prior: float, false_positives: Any, false_negatives: Any, negatives: Any, positives: Any, *, confidence: float
) -> Certified:
    """Bounds the posterior probability of world 1 after the rule has guessed it: p TPR/(p TPR + (1 - p) FPR).

    Args:
      prior: p, the probability before, in (0, 1).
      The other arguments, Raises: as for :func:`advantage`.

    Source: Wood et al. 2018 and Desfontaines 2018, the Bayesian reading of (epsilon, 0): at most
    p e^epsilon/(1 - p + p e^epsilon).
    """
    p = _validate.open_unit(prior=prior)
    return _bounded(_posterior(p), false_positives, false_negatives, negatives, positives, confidence=confidence)


def of_counts(
    tables: Any, *, confidence: float, both_events: bool = False, bounds: RateBounds = clopper_pearson
) -> Certificates:
    """Bounds every quantity, each by a rule of its own.

    Args:
      tables: [5, 4], for each field of :class:`Certificates` false positives, false negatives, negatives and positives
        of a rule that was fixed before they were counted; or [4], of one rule for all.
      confidence: of each bound.
      both_events: look at the opposite guesses as well, each with half of the error.
      bounds: of one error rate, ``bounds(errors, trials, alpha=) -> (low, high)``.

    Raises:
      InputError: a value out of range.
    """
    rows = np.broadcast_to(np.asarray(tables, np.float64), (len(QUANTITIES), 4))
    if both_events:
        opposite = np.concatenate([rows[:, 2:] - rows[:, :2], rows[:, 2:]], axis=1)
        each = {"confidence": (1 + confidence) / 2, "bounds": bounds}
        one, other = of_counts(rows, **each), of_counts(opposite, **each)
        return Certificates(*(Certified(*map(max, a, b)) for a, b in zip(one, other, strict=True)))
    found = (_bounded(of, *row, confidence=confidence, by=bounds) for of, row in zip(QUANTITIES, rows, strict=True))
    return Certificates(*found)


def of_band(curve: Tradeoff) -> Certificates:
    """Bounds every quantity by the best threshold of a simultaneous band, which holds for all of them together."""
    ends = ((curve.fpr, curve.fnr), (curve.fpr_high, curve.fnr_high), (curve.fpr_low, curve.fnr_low))
    return Certificates(*(Certified(*(float(of(*rates).max()) for rates in ends)) for of in QUANTITIES))


def thresholds(fpr: np.ndarray, fnr: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Chooses, for each quantity, the threshold that shows the most.

    Args:
      fpr, fnr: [t], upper bounds on the rates at each threshold, on trials set aside.
      values: the thresholds, [t].

    Returns:
      [5], in the order of :class:`Certificates`.
    """
    return np.array([values[int(np.argmax(of(fpr, fnr)))] for of in QUANTITIES])


def _advantage(fpr: np.ndarray, fnr: np.ndarray) -> np.ndarray:
    return np.maximum(1 - fpr - fnr, 0.0)


def _accuracy(fpr: np.ndarray, fnr: np.ndarray) -> np.ndarray:
    return 1 - (fpr + fnr) / 2


def _tpr_at(f: float) -> Quantity:
    def mixed(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            below, above = (1 - b) * f / a, 1 - b * (1 - f) / (1 - a)
        return np.maximum(np.where(f <= a, below, above), f)  # guessing alone attains f

    return mixed


def _posterior(p: float) -> Quantity:
    def believed(fpr: np.ndarray, fnr: np.ndarray) -> np.ndarray:
        told = p * (1 - fnr)
        total = told + (1 - p) * fpr
        return np.where(
            total > 0, told / np.where(total > 0, total, 1.0), p
        )  # a rule that never guesses world 1 reveals nothing

    return believed


QUANTITIES: Sequence[Quantity] = (_advantage, _accuracy, *map(_tpr_at, FPRS), _posterior(PRIOR))


def _bounded(of: Quantity, *counts: Any, confidence: float, by: RateBounds = clopper_pearson) -> Certified:
    alpha = (1 - _validate.open_unit(confidence=confidence)) / 2
    table = error_table(*counts)
    fpr_low, fpr_high = by(table.false_positives, table.negatives, alpha=alpha)
    fnr_low, fnr_high = by(table.false_negatives, table.positives, alpha=alpha)
    observed = of(table.false_positives / table.negatives, table.false_negatives / table.positives)
    return Certified(*map(float, (observed, of(fpr_high, fnr_high), of(fpr_low, fnr_low))))
