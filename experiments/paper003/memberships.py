"""Judges thousands of membership decisions, of networks that each had a coin for every target.

What an attacker has of a target is a statistic, larger for members, less the mean of the same statistic over all other
networks and the shadow models: how easy the target is. Networks and kinds of targets differ in location and scale, so
that a score is where it stands among the targets of its kind in its network. All of that is a function of what the
networks publish, and of no coin, so that a guess about one target bounds epsilon for all (Steinke et al. 2023).
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logit
from scipy.stats import beta, norm, rankdata

from dpaudit.auditing.bounds import one_run
from dpaudit.auditing.bounds.one_run import OneRun, Plan
from dpaudit.training.dropout import publishing
from dpaudit.training.dropout.membership import FINEST

Told = dict[str, np.ndarray]  # statistic -> [networks, targets]

FPR = 0.001  # at which the true positive rate is told


class Published(NamedTuple):
    """What networks say about the targets, and who was in their data."""

    own: Told  # [n, m] each
    others: Told  # of the shadow models, [s, m] each
    member: np.ndarray  # [n, m] booleans
    kinds: np.ndarray  # [m]


class Guessed(NamedTuple):
    """A rate over decisions, with its approximate interval."""

    value: float
    low: float
    high: float


def together(published: Published, columns: Sequence[str], unit: float | None = None) -> np.ndarray:
    """Returns one score [n, m] of several statistics: the mean of each one's normal score."""
    return np.mean([_normal(published, name, unit) for name in columns], axis=0)


def _normal(published: Published, name: str, unit: float | None) -> np.ndarray:
    """Where a target stands among those of its kind in its network, as a normal value."""
    apart = less_the_others(published, name, unit)
    found = np.empty_like(apart)
    for kind in np.unique(published.kinds):
        own = published.kinds == kind
        found[:, own] = norm.ppf((rankdata(apart[:, own], axis=1) - 0.5) / own.sum())
    return found


def less_the_others(published: Published, name: str, unit: float | None = None) -> np.ndarray:
    """A statistic less the mean over all other networks and the shadow models, [n, m]."""
    own, others = (feature(told[name], name, unit) for told in (published.own, published.others))
    total, count = own.sum(axis=0) + others.sum(axis=0), len(own) + len(others) - 1
    return own - (total - own) / count


def feature(values: np.ndarray, name: str, unit: float | None) -> np.ndarray:
    """The logit of a probability, or minus the log of a deviation; of what is rounded where there is a unit."""
    values = values if unit is None else np.asarray(publishing.quantise(values, unit), np.float64)
    if name == "std":
        return -np.log(np.maximum(values, FINEST))
    return logit(np.clip(values, FINEST, 1 - FINEST))


def right(score: np.ndarray, member: np.ndarray) -> np.ndarray:
    """Whether the guess "a member" for scores above 0 is right, one half for a score of 0: [n, m]."""
    return np.where(score == 0, 0.5, (score > 0) == member)


def advantage(score: np.ndarray, member: np.ndarray, confidence: float) -> Guessed:
    """1 - FPR - FNR of that guess, over all decisions."""
    return _mean(2 * right(score, member) - 1, confidence)


def difference(first: np.ndarray, second: np.ndarray, member: np.ndarray, confidence: float) -> Guessed:
    """By how much the second score's advantage is larger, over the same decisions."""
    return _mean(2 * (right(second, member) - right(first, member)), confidence)


def _mean(each: np.ndarray, confidence: float) -> Guessed:
    """A mean with a normal interval: coins are independent. One decision more of either sign counts in its width."""
    middle, n = float(each.mean()), each.size
    spread = math.sqrt((((each - middle) ** 2).sum() + 2) / n)
    error = float(norm.ppf(0.5 + confidence / 2)) * spread / math.sqrt(n)
    return Guessed(middle, middle - error, middle + error)


def bound(score: np.ndarray, member: np.ndarray, *, delta: float, confidence: float) -> tuple[OneRun, float]:
    """A lower bound on epsilon from all decisions, and the largest that it could be.

    The networks are independent and each (epsilon, delta)-DP in its own coins, so together they are so in every coin.
    """
    plans = plans_of(score.size)
    found = one_run.audit(score.ravel(), member.ravel(), plans, delta=delta, confidence=confidence)
    return found, one_run.ceiling(score.size, plans, delta=delta, confidence=confidence)


def plans_of(decisions: int) -> list[Plan]:
    """Returns numbers of guesses that are fixed before any coin is seen."""
    return [Plan(count, count) for count in (decisions // 40, decisions // 10, decisions // 4)]


def true_positives(score: np.ndarray, member: np.ndarray, confidence: float) -> Guessed:
    """The true positive rate where the false one is ``FPR`` in the sample, with its Clopper-Pearson interval.

    The threshold is chosen on the same decisions, as is usual for this rate; it is no bound on epsilon.
    """
    out, into = np.sort(score[~member])[::-1], score[member]
    caught, n, alpha = int((into > out[int(FPR * len(out))]).sum()), len(into), 1 - confidence
    low = float(beta.ppf(alpha / 2, caught, n - caught + 1)) if caught else 0.0
    high = float(beta.ppf(1 - alpha / 2, caught + 1, n - caught)) if caught < n else 1.0
    return Guessed(caught / n, low, high)


def published(networks: Sequence[dict[str, Any]], shadows: Sequence[dict[str, Any]], kinds: np.ndarray) -> Published:
    """Reads what networks and shadow models say from their records."""
    own = {name: np.array([row["targets"][name] for row in networks]) for name in networks[0]["targets"]}
    others = {name: np.array([told[name] for told in shadows]) for name in shadows[0]}
    member = np.array([[coin == "1" for coin in row["member"]] for row in networks])
    return Published(own, {name: others.get(name, others["mean"]) for name in own}, member, kinds)
