"""Chooses a score, a side and a threshold on trials that are set aside. NumPy float64 throughout.

The bound that was maximised in choosing must not be reported: compute the reported bound on other trials.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dpaudit.auditing.bounds import certified, curve, threshold
from dpaudit.auditing.bounds.estimate import epsilon_from_rates, errors, upper_bound
from dpaudit.mechanisms.claim import Claim

CHOOSING_SHARE = 4  # one trial in four is set aside to choose a rule
CHOOSING_LEAST, CHOOSING_ERRORS = 500, 10  # with early stopping: pairs, and expected errors at the claim
ASIDE_MOST, ON_HOST = (
    1 << 19,
    1 << 17,
)  # pairs set aside; more help to choose rare events, and take memory
CURVE_PAIRS = 4_000  # set aside at most with early stopping against a curve, which determines no rate to estimate
CANDIDATES = 1000  # thresholds of a score that are tried, at most
CLOSE = 0.01  # relative difference of bounds that counts as a tie
GRID = 15  # thresholds by which the whole curve is drawn
STRICT = threshold.STRICT
WORTH = 3.0  # standard errors above a claim from which on its p-values are computed
SURE = np.log(2000)  # evidence of the best of all thresholds from which on it is not by chance


class Rule(NamedTuple):
    """Guess world 1 where score > threshold, or, with ``above`` False, where not; NaN is larger than any number."""

    threshold: float
    above: bool = True


class Seen(NamedTuple):
    """What one score showed on the trials set aside.

    Attributes:
      rule: the best one for it.
      bound: the epsilon that its rates show at the strict level, in nats; 0 where nothing is certain.
      accuracy: of the rule.
      evidence: against a promise, -ln p; 0 where it shows nothing: then the bound decides. Infinite where the bound
        is above the epsilon of a promise that is no curve.
      apart: standard errors between both worlds' rates of the event (:func:`apart`), which decide where no bound does.
    """

    rule: Rule
    bound: float
    accuracy: float
    evidence: float = 0.0
    apart: float = 0.0


def pairs_aside(half: int, claim: Claim | None, *, named: bool, stops: bool, on_host: bool = False) -> int:
    """Returns how many pairs an audit sets aside to choose its rule.

    Args:
      half: pairs that may be played.
      claim: of the audit.
      named: whether one attack is named, whose scores are few.
      stops: whether the audit may stop before all trials are played.
      on_host: whether functions on the host are played.
    """
    aside = half // CHOOSING_SHARE
    if on_host or not named:
        aside = min(aside, ON_HOST if on_host else ASIDE_MOST)
    if stops and claim is not None and claim.is_curve:
        return min(aside, CURVE_PAIRS)
    if stops and claim is not None:
        rarest = min(np.exp(-claim.epsilon), np.sqrt(claim.delta) or 1.0)
        least = CHOOSING_LEAST + CHOOSING_ERRORS / rarest
        return int(min(aside, least if named else 2 * least))
    return aside


def choose_rule(scores: np.ndarray, *, delta: float, confidence: float) -> Rule:
    """Chooses the rule whose lower bound is largest on these scores.

    Args:
      scores: [2, n], one row per world; the split set aside for choosing.
      delta, confidence: as the final bound will use them.
    """
    return look(scores, delta=delta, confidence=confidence).rule


def look(scores: np.ndarray, *, delta: float, confidence: float, claim: Claim | None = None) -> Seen:
    """Finds the best rule for a score, and what it shows.

    Args:
      scores, delta, confidence: as for :func:`choose_rule`.
      claim: if it is a curve, the rule that refutes it most strongly is chosen, not the one with the largest bound;
        so it is where (epsilon, delta) are refuted without a bound above epsilon, as by a rare event that has no
        counterpart in the other world.
    """
    scores = np.asarray(scores, np.float64)
    if claim is not None and claim.is_curve:
        return _look_at_curve(scores, claim, delta=delta, confidence=confidence)
    n = scores.shape[1]
    ordered = np.sort(scores, axis=1)  # NaN last
    values, distinct = _candidates(ordered)
    above0, above1 = (n - np.searchsorted(world, values, side="right") for world in ordered)
    settings = {"delta": delta, "confidence": confidence}

    def best_of(*, averaged: bool) -> tuple[Rule, tuple[float, float, float]]:
        at, above = threshold.best(above0, above1, n, **settings, averaged=averaged)
        wrong = (above0[at], n - above1[at]) if above else (n - above0[at], above1[at])
        return Rule(float(values[at]), bool(above)), _shown(*wrong, n, **settings)

    rule, (bound, accuracy, gap) = best_of(averaged=False)
    if distinct >= n:  # of 2 n: few repeat; attacks are compared by the same bound as if many did
        rule, (_, accuracy, gap) = best_of(averaged=True)
    if claim is not None and bound > claim.epsilon:
        return Seen(rule, bound, accuracy, np.inf, gap)
    if claim is not None and _excess(above0, above1, n, claim) > WORTH:
        refuting = _look_at_curve(scores, claim, **settings)
        if refuting.evidence > SURE:
            return refuting._replace(bound=max(bound, refuting.bound))
    return Seen(rule, bound, accuracy, apart=gap)


def _excess(above0: np.ndarray, above1: np.ndarray, n: int, claim: Claim) -> float:
    """Returns by how many standard errors, at most, an event is likelier than the claim allows."""
    with np.errstate(over="ignore"):
        most = np.exp(min(claim.epsilon, 300.0))
        events = ((above1, above0), (n - above0, n - above1), (above0, above1), (n - above1, n - above0))
        return max(
            float(((own - most * other - n * claim.delta) / np.sqrt(own + most**2 * (other + 1))).max())
            for own, other in events
        )


def _look_at_curve(scores: np.ndarray, claim: Claim, *, delta: float, confidence: float) -> Seen:
    n, numbers = scores.shape[1], np.where(np.isnan(scores), np.inf, scores)
    above, p = curve.choose_threshold(claim, numbers)
    below, other = curve.choose_threshold(claim, -numbers)  # world 1 where -score > t: not score > the number below -t
    rules = Rule(above), Rule(float(np.nextafter(-below, -np.inf)), False)
    wrong = [errors(scores, *rule) for rule in rules]
    shows = min(p, other) <= curve.NOTHING
    first = p <= other if shows else sum(wrong[0]) <= sum(wrong[1])
    rule, (false_positives, false_negatives) = (rules[0], wrong[0]) if first else (rules[1], wrong[1])
    bound, accuracy, gap = _shown(false_positives, false_negatives, n, delta=delta, confidence=confidence)
    return Seen(rule, bound, accuracy, -float(np.log(min(p, other))) if shows else 0.0, gap)


def apart(wrong0: Any, wrong1: Any, n: int) -> Any:
    """Returns by how many standard errors the rates of a rule's event differ between the worlds.

    If no bound shows anything yet, a rare event that occurs in one world only is stronger evidence than a rule that is
    slightly more accurate.

    Args:
      wrong0, wrong1: errors in either world, any shape.
      n: trials of each.
    """
    share = (wrong0 + n - wrong1) / (2 * n)  # of both worlds' trials that are in the event
    return (n - wrong0 - wrong1) / np.sqrt(np.maximum(2 * n * share * (1 - share), 1e-9))


def _shown(wrong0: int, wrong1: int, n: int, *, delta: float, confidence: float) -> tuple[float, float, float]:
    """Returns (the bound at the level at which attacks are compared, the accuracy, standard errors) of a rule."""
    alpha = min(1 - confidence, STRICT) / 2
    fpr, fnr = (upper_bound(count, n, alpha=alpha) for count in (wrong0, wrong1))
    bound = float(epsilon_from_rates(fpr, fnr, delta))
    return bound, float(1 - (wrong0 + wrong1) / (2 * n)), float(apart(wrong0, wrong1, n))


def beside(scores: np.ndarray, rule: Rule, *, confidence: float) -> np.ndarray:
    """Chooses further thresholds to count: those that show most of other quantities, and some of the whole range.

    Args:
      scores: [2, n], of the score that decides; the split set aside for choosing.
      rule: the rule, whose side is used.
      confidence: of the bounds.

    Returns:
      [5 + GRID]: of :func:`certified.thresholds`, then quantiles of all scores.
    """
    n, ordered = scores.shape[1], np.sort(np.asarray(scores, np.float64), axis=1)
    values, _ = _candidates(ordered)
    above0, above1 = (n - np.searchsorted(world, values, side="right") for world in ordered)
    wrong = (above0, n - above1) if rule.above else (n - above0, above1)
    fpr, fnr = (threshold.roughly(count, n, (1 - confidence) / 2) for count in wrong)
    places = np.linspace(0, 2 * n - 1, GRID + 2)[1:-1].astype(int)
    grid = np.sort(np.nan_to_num(ordered, nan=np.inf, posinf=np.inf, neginf=-np.inf), axis=None)[places]
    return np.concatenate([certified.thresholds(fpr, fnr, values), grid])


def screen(scores: np.ndarray, *, delta: float, confidence: float) -> np.ndarray:
    """Approximates the bound that the best rule for each score shows, in a fraction of the time.

    Args:
      scores: [2, n, m], one row per world.
      delta, confidence: as for :func:`choose_rule`.

    Returns:
      [m] in nats; if nothing is certain, less than 0 and increasing with :func:`apart`.
    """
    n = scores.shape[1]
    pooled = scores.reshape(2 * n, -1)
    order = np.argsort(pooled, axis=0, kind="stable")  # NaN last
    ordered = np.take_along_axis(pooled, order, 0)
    from1 = order >= n
    false_negatives = np.cumsum(from1, 0)
    false_positives = n - np.arange(1, 2 * n + 1)[:, None] + false_negatives
    tied = (ordered[1:] == ordered[:-1]) | np.isnan(ordered[:-1])
    tied = np.concatenate([tied, np.ones((1, pooled.shape[1]), bool)])
    upper = threshold.roughly(np.arange(n + 1), n, min(1 - confidence, STRICT) / 2)
    shown = [
        epsilon_from_rates(upper[wrong0], upper[wrong1], delta)
        for wrong0, wrong1 in ((false_positives, false_negatives), (n - false_positives, n - false_negatives))
    ]
    found = np.where(tied, 0, np.maximum(*shown)).max(0)
    gap = np.where(tied, 0, np.abs(apart(false_positives, false_negatives, n))).max(0)
    return np.where(found > 0, found, gap / (1 + gap) - 2)


def best(seen: Sequence[Seen]) -> list[int]:
    """Orders the scores by what their rules show, the best first.

    The earliest score within ``CLOSE`` of the best one comes first, since simple scores are listed first.
    """
    order = sorted(range(len(seen)), key=lambda i: (-seen[i].evidence, -seen[i].bound, -seen[i].apart, i))
    shown = [one.evidence if 0 < seen[order[0]].evidence < np.inf else one.bound for one in seen]
    enough = (1 - CLOSE) * shown[order[0]]
    first = min(i for i in order if shown[i] >= enough) if enough > 0 else order[0]
    return [first, *(i for i in order if i != first)]


def _candidates(ordered: np.ndarray) -> tuple[np.ndarray, int]:
    """Returns (the thresholds to try, how many scores differ): all values, or all extreme ones and some of the others.
    Infinity takes the place of the largest number, so that a rule can single out NaN."""
    values = np.unique(ordered)
    if np.isnan(values[-1]):
        values = np.append(values[:-2], np.inf)
    distinct = len(values)
    if distinct > CANDIDATES:
        ends = np.unique(np.geomspace(1, distinct // 2, CANDIDATES // 2).astype(int)) - 1
        values = values[np.unique(np.concatenate([ends, distinct - 1 - ends]))]
    return values, distinct
