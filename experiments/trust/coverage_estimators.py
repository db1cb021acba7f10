"""Applies the estimators under study: scores of many complete audits in, one lower bound for each out."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dpaudit import Claim
from dpaudit.auditing.attacks.choose import choose_rule
from dpaudit.auditing.audit import CHOOSING_SHARE
from dpaudit.auditing.bounds import band, betting, credible, gdp, one_run, sequential
from dpaudit.auditing.bounds.estimate import clopper_pearson, epsilon_bounds, epsilon_from_rates
from experiments.trust.coverage_known import Known

GAUSSIAN_DELTA = 1e-5  # of estimators that know no delta of 0


class Bounds(NamedTuple):
    """What audits have certified, and by which rules."""

    lower: np.ndarray  # [audits], epsilon in nats
    threshold: np.ndarray | None = None  # [audits], of each bound's rule; None where it speaks of no single rule
    above: Any = True  # [audits], whether the rule guesses world 1 above it


Estimator = Callable[[np.ndarray, Known, float], Bounds]  # scores [2, audits, half], known, confidence


def error_counts(scores: np.ndarray, threshold: Any) -> tuple[np.ndarray, np.ndarray]:
    """(false positives, false negatives) of each audit, [audits]."""
    over = scores > np.reshape(np.asarray(threshold, scores.dtype), (-1, 1))
    return over[0].sum(axis=-1), (~over[1]).sum(axis=-1)


def of_counts(bounds: Callable[..., Any]) -> Estimator:
    """Returns a bound on the counts of the known rule, which was fixed in advance."""

    def estimator(scores: np.ndarray, known: Known, confidence: float) -> Bounds:
        half = scores.shape[-1]
        counts, place = np.unique(error_counts(scores, known.threshold), axis=1, return_inverse=True)
        lower, _ = bounds(*counts, half, half, delta=known.delta, confidence=confidence)
        return Bounds(lower[place], np.full(scores.shape[1], known.threshold))

    return estimator


fixed = of_counts(epsilon_bounds)
jeffreys = of_counts(credible.jeffreys_epsilon)
joint_beta = of_counts(credible.joint_beta)


def split(scores: np.ndarray, known: Known, confidence: float) -> Bounds:
    """As :func:`dpaudit.audit` does it: threshold and side from the first quarter, the bound from the rest."""
    aside = scores.shape[-1] // CHOOSING_SHARE
    settings: dict[str, Any] = {"delta": known.delta, "confidence": confidence}
    rules = [choose_rule(own[:, :aside], **settings) for own in np.moveaxis(scores, 1, 0)]
    chosen, above = np.array([rule.threshold for rule in rules]), np.array([rule.above for rule in rules])
    counted = scores.shape[-1] - aside
    wrong = (np.where(above, count, counted - count) for count in error_counts(scores[..., aside:], chosen))
    lower, _ = epsilon_bounds(next(wrong), next(wrong), counted, counted, **settings)
    return Bounds(lower, chosen, above)


def best_of(make: band.Band) -> Estimator:
    """Returns the largest bound over all thresholds on the same scores, at the upper ends of a band."""

    def estimator(scores: np.ndarray, known: Known, confidence: float) -> Bounds:
        settings = {"delta": known.delta, "confidence": confidence, "band": make}
        lower, threshold = np.transpose([band.epsilon_lower(own, **settings) for own in np.moveaxis(scores, 1, 0)])
        return Bounds(lower, threshold)

    return estimator


def at_any_time(scores: np.ndarray, known: Known, confidence: float) -> Bounds:
    """Returns the sequential audit, looked at after every pair and stopped when it calls a violation of the true
    epsilon."""
    claim = Claim(max(known.epsilon, 1e-9), known.delta)  # a claim of 0 there is none
    watch = sequential.start(claim, confidence=confidence, until=sequential.violation())
    ends = [sequential.update(watch, *(own > known.threshold)) for own in np.moveaxis(scores, 1, 0)]
    counts = np.stack([end.counts for end in ends])
    settings: dict[str, Any] = {"delta": known.delta, "confidence": confidence, "expected_gap": claim.epsilon}
    lower = betting.epsilon_lower(counts, **settings)
    stopped = np.array([end.stopped for end in ends])
    above = np.maximum(lower, np.nextafter(claim.epsilon, np.inf))  # at a stop the root is known up to rounding only
    return Bounds(np.where(stopped, above, lower))


def gaussian(scores: np.ndarray, known: Known, confidence: float) -> Bounds:
    """Returns the mu of the rule in the middle as an epsilon, assuming a Gaussian trade-off function."""
    half, delta = scores.shape[-1], max(known.delta, GAUSSIAN_DELTA)
    lower, _ = gdp.epsilon_bounds(*error_counts(scores, 0.0), half, half, delta=delta, confidence=confidence)
    return Bounds(lower)


@functools.lru_cache
def _as_if_fixed(trials: int, *, alpha: float) -> np.ndarray:
    """No band at all: Clopper-Pearson at level alpha, for whichever threshold turns out best."""
    return clopper_pearson(np.arange(trials + 1), trials, alpha=alpha)[1]


def naive_maximum(scores: np.ndarray, known: Known, confidence: float) -> Bounds:
    """Wrong: the largest Clopper-Pearson bound over all thresholds and both directions, as if that one were fixed."""
    one_way, other_way = (best_of(_as_if_fixed)(side, known, confidence).lower for side in (scores, -scores))
    return Bounds(np.maximum(one_way, other_way))


def peeking(scores: np.ndarray, known: Known, confidence: float) -> Bounds:
    """Wrong: the largest Clopper-Pearson bound of all times, as if its time had been fixed."""
    wrong = np.cumsum(np.stack([scores[0] > known.threshold, scores[1] <= known.threshold]), axis=-1)
    played = np.broadcast_to(np.arange(1, scores.shape[-1] + 1), wrong.shape)
    tables, place = np.unique(np.stack([*wrong, played[0]]).reshape(3, -1), axis=1, return_inverse=True)
    lower, _ = epsilon_bounds(*tables[[0, 1, 2, 2]], delta=known.delta, confidence=confidence)
    return Bounds(lower[place].reshape(wrong.shape[1:]).max(axis=-1))


def point_estimate(scores: np.ndarray, known: Known, confidence: float) -> Bounds:
    """Wrong: Eq. (2) at the observed rates is no bound."""
    del confidence
    fpr, fnr = (errors / scores.shape[-1] for errors in error_counts(scores, known.threshold))
    return Bounds(epsilon_from_rates(fpr, fnr, known.delta))


class Run(NamedTuple):
    """Canaries of many one-run audits: ``scores`` and ``included``, [audits, canaries]."""

    scores: np.ndarray
    included: np.ndarray


def one_run_of(rng: np.random.Generator, scores: np.ndarray) -> Run:
    """One score of each canary: fair coins say which world it was in. Ties are broken at random."""
    included = rng.random(scores.shape[1:]) < 0.5
    return Run(np.where(included, scores[1], scores[0]) + 1e-3 * rng.random(included.shape), included)


def guesses(bound: Callable[..., np.ndarray], shares: tuple[float, ...]) -> Callable[[Run, Known, float], Bounds]:
    """One-run bounds: the best of plans that guess these shares of the canaries "in", and as many "out"."""

    def estimator(run: Run, known: Known, confidence: float) -> Bounds:
        canaries = run.scores.shape[-1]
        delta = max(known.delta, GAUSSIAN_DELTA) if bound is one_run.epsilon_lower_gaussian else known.delta
        each = {"delta": delta, "confidence": 1 - (1 - confidence) / len(shares)}
        plans = [one_run.Plan(round(share * canaries), round(share * canaries)) for share in shares]
        found = [bound(one_run.count_correct(*run, plan), sum(plan), canaries, **each) for plan in plans]
        return Bounds(np.max(found, axis=0))

    return estimator
