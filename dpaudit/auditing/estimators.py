"""Provides the bounds that an audit can use, as values: ``audit(..., estimator=estimators.equal_level)``.

An estimator turns the counted trials of an audit into bounds on epsilon. Most need the counts of one rule whose
threshold was chosen on trials set aside; a band needs every score and no trials set aside, since it holds for all
thresholds together. Some give bounds that cannot support a verdict; their ``caveat`` says why.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dpaudit import _validate
from dpaudit.auditing.bounds import band, betting, credible, gdp
from dpaudit.auditing.bounds import one_run as one_training
from dpaudit.auditing.bounds.estimate import checked_scores, epsilon_bounds, epsilon_from_rates
from dpaudit.auditing.bounds.estimate import clopper_pearson as clopper_pearson_rate
from dpaudit.auditing.bounds.estimate import errors as errors_at

__all__ = [
    "Counted",
    "Estimator",
    "betting_bounds",
    "clopper_pearson",
    "counted",
    "dkw",
    "equal_level",
    "gaussian",
    "jeffreys",
    "joint_beta",
    "one_run",
]

GUESSES = (4, 20)  # of one training: a quarter, or a twentieth, of the canaries is guessed on either side


class Counted(NamedTuple):
    """The counted trials of an audit.

    Attributes:
      false_positives: guesses of world 1 among ``negatives`` trials of world 0.
      false_negatives: guesses of world 0 among ``positives`` trials of world 1.
      negatives, positives: trials of world 0 and of world 1.
      outcomes: [4], counts of the outcomes of pairs, as :func:`betting.outcomes` numbers them.
      scores: one row per world, [n0] and [n1]; None where only counts left the devices. Of one training, [m].
      included: of one training, which of its m canaries were included, [m] booleans; else None.
    """

    false_positives: int
    false_negatives: int
    negatives: int
    positives: int
    outcomes: np.ndarray
    scores: np.ndarray | tuple[np.ndarray, np.ndarray] | None = None
    included: np.ndarray | None = None

    @property
    def opposite(self) -> "Counted":
        """Returns the counts of the opposite guesses."""
        false = self.negatives - self.false_positives, self.positives - self.false_negatives
        return Counted(*false, self.negatives, self.positives, self.outcomes[::-1])


class Estimator(NamedTuple):
    """A way to bound epsilon from counted trials.

    Attributes:
      name: for tables.
      bounds: ``bounds(counted, delta=, confidence=) -> (lower, upper)`` in nats. Each holds with probability
        >= confidence, in the sense that ``caveat`` restricts.
      needs_scores: whether it reads every score; otherwise the counts of one rule.
      needs_split: whether the rule must be chosen on trials that are not counted.
      anytime: whether its bounds hold at all times together, as ``audit(..., until=)`` requires.
      caveat: why it cannot support a verdict; empty if it can.
      rate: ``rate(errors, trials, alpha=) -> (low, high)``, its bounds on one error rate.
      simultaneous: the band that holds for all thresholds together, if it is one.
      one_training: whether the scores are of canaries in one training, not of independent trials.
    """

    name: str
    bounds: Callable[..., tuple[float, float]]
    needs_scores: bool = False
    needs_split: bool = True
    anytime: bool = False
    caveat: str = ""
    rate: Callable[..., tuple[np.ndarray, np.ndarray]] = clopper_pearson_rate
    simultaneous: band.Band | None = None
    one_training: bool = False

    def both(
        self, counted: Counted, *, delta: float, confidence: float, both_events: bool = False
    ) -> tuple[float, float]:
        """Returns the bounds, or the larger ones of the rule and of its opposite, each with half of the error."""
        if not both_events:
            return self.bounds(counted, delta=delta, confidence=confidence)
        each: dict[str, Any] = {"delta": delta, "confidence": (1 + confidence) / 2}
        one, other = self.bounds(counted, **each), self.bounds(counted.opposite, **each)
        return max(one[0], other[0]), max(one[1], other[1])


def counted(scores: np.ndarray, threshold: float, *, keep_scores: bool = True) -> Counted:
    """Counts the errors of the rule "world 1 where score > threshold".

    Args:
      scores: [2, n], one row per world.
      threshold: the rule's number.
      keep_scores: whether the scores are kept, for estimators that read them.

    Raises:
      InputError: scores that are empty or not numbers.
    """
    scores = checked_scores(scores)
    n = scores.shape[1]
    outcomes = betting.outcomes(*(scores > threshold))[-1]
    return Counted(*errors_at(scores, threshold), n, n, outcomes, scores if keep_scores else None)


def _in_range(bounds: Callable[..., tuple[float, float]]) -> Callable[..., tuple[float, float]]:
    """Decorates the bounds of an estimator, so that a delta or a confidence out of range is refused."""

    @functools.wraps(bounds)
    def of(counted: Counted, *, delta: float, confidence: float) -> tuple[float, float]:
        _validate.probability(delta=delta)
        return bounds(counted, delta=delta, confidence=_validate.open_unit(confidence=confidence))

    return of


def _of_counts(bounds: Callable[..., tuple[np.ndarray, np.ndarray]]) -> Callable[..., tuple[float, float]]:
    """Makes an estimator of a function of four counts."""

    @_in_range
    def of(counted: Counted, *, delta: float, confidence: float) -> tuple[float, float]:
        lower, upper = bounds(*counted[:4], delta=delta, confidence=confidence)
        return float(lower), float(upper)

    return of


@_in_range
def _bet(counted: Counted, *, delta: float, confidence: float) -> tuple[float, float]:
    pairs = int(counted.outcomes.sum())
    lower = betting.epsilon_lower(counted.outcomes, delta=delta, confidence=confidence)
    alpha = (1 - confidence) / 2  # one half for each rate
    fpr, _ = betting.rate_bounds(counted.false_positives, pairs, alpha=alpha)
    fnr, _ = betting.rate_bounds(counted.false_negatives, pairs, alpha=alpha)
    return float(lower), float(epsilon_from_rates(fpr, fnr, delta))


def _of_band(make: band.Band) -> Callable[..., tuple[float, float]]:
    """Makes an estimator of a simultaneous band: the largest bounds over all thresholds."""

    @_in_range
    def of(counted: Counted, *, delta: float, confidence: float) -> tuple[float, float]:
        if counted.scores is None:
            raise _validate.expected("estimator", "one that reads counts, as the scores were not kept", "a band")
        curve = band.tradeoff(counted.scores, confidence=confidence, band=make)
        lower = epsilon_from_rates(curve.fpr_high, curve.fnr_high, delta)
        upper = epsilon_from_rates(curve.fpr_low, curve.fnr_low, delta)
        return float(lower.max()), float(upper.max())

    return of


clopper_pearson = Estimator("Clopper-Pearson", _of_counts(epsilon_bounds))
"""Exact binomial bounds on both error rates: :func:`estimate.epsilon_bounds`. The default."""

betting_bounds = Estimator("betting", _bet, anytime=True, rate=betting.rate_bounds)
"""Bets against each epsilon (:mod:`betting`): a little wider, and valid at all times together."""

equal_level = Estimator(
    "equal-level band", _of_band(band.equal_level), needs_scores=True, needs_split=False, simultaneous=band.equal_level
)
"""A band that errs equally often at every rank: no trials are set aside. Its lower bound is that of the best
threshold, its upper bound that of every threshold of this score: infinite unless delta > 0 or scores are few."""

dkw = Estimator("DKW band", _of_band(band.dkw), needs_scores=True, needs_split=False, simultaneous=band.dkw)
"""The band of constant width, which is wide where rates are small."""

gaussian = Estimator(
    "Gaussian DP", _of_counts(gdp.epsilon_bounds), caveat="it assumes that the trade-off curve is Gaussian"
)
"""The mu of the rule's two error rates, read as an epsilon: tight for Gaussian noise, and wrong for other noise."""

jeffreys = Estimator(
    "Jeffreys",
    _of_counts(credible.jeffreys_epsilon),
    caveat="credible bounds are statements of belief",
    rate=credible.jeffreys,
)
"""Posterior quantiles of both rates under the Jeffreys prior."""

joint_beta = Estimator(
    "joint beta",
    _of_counts(credible.joint_beta),
    caveat="credible bounds are statements of belief",
    rate=credible.jeffreys,
)
"""Posterior quantiles of epsilon itself under the Jeffreys prior on both rates."""


def of_one_training(scores: np.ndarray, included: np.ndarray) -> Counted:
    """Puts the canaries of one training in the form that :data:`one_run` reads.

    Args:
      scores: [m], from the training's output alone; larger means "was included".
      included: [m] booleans, independent fair coins.
    """
    scores, included = np.asarray(scores, np.float64), np.asarray(included)
    guessed = scores > np.median(scores)
    false = int(np.sum(guessed & ~included)), int(np.sum(~guessed & included))
    return Counted(*false, int(np.sum(~included)), int(np.sum(included)), np.zeros(4), scores, included)


@_in_range
def _one_run(counted: Counted, *, delta: float, confidence: float) -> tuple[float, float]:
    """Guesses a quarter of the canaries in and a quarter out, or a twentieth each, each plan at half of the error."""
    if counted.scores is None or counted.included is None:
        raise _validate.expected("estimator", "one for independent trials, as there are no canaries", "one run")
    m = len(counted.scores)
    plans = [one_training.Plan(max(1, m // share), max(1, m // share)) for share in GUESSES]
    found = one_training.audit(counted.scores, counted.included, plans, delta=delta, confidence=confidence)
    return found.epsilon_lower, float("inf")


one_run = Estimator("one run", _one_run, needs_scores=True, needs_split=False, one_training=True)
"""The scores of one training's canaries (:mod:`one_run`); a lower bound only, for adding or removing one record."""
