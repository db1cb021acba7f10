"""Audits membership of a target in the training set, by many trained networks' predictions of it.

Half of the networks were trained on D, half on D' = D with the target. Each contributes one row of statistics of its T
predictions of the target's true class, and the attacker guesses by thresholds on them (Algorithms 1 and 2). Paper 003
chooses the thresholds with the largest estimate of Eq. (7) on the same networks that it reports. :func:`estimates`
does the same, and is **no lower bound of anything**: on networks that do not differ it is far above zero, the more so
the more thresholds there are to choose from. :func:`audit` therefore puts a bound beside it, with thresholds chosen on
networks that it does not count; so does :func:`audit_likelihood_ratio`, for an attacker who knows how the statistics
are distributed in both worlds.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.special import logit
from scipy.stats import multivariate_normal

from dpaudit import _validate
from dpaudit.auditing.bounds import plan
from dpaudit.auditing.bounds.estimate import epsilon_bounds, epsilon_from_rates
from dpaudit.auditing.conclude import from_counts
from dpaudit.auditing.result import AuditResult, checked_delta
from dpaudit.mechanisms.claim import Claim
from dpaudit.training.dropout import threshold_search
from dpaudit.training.dropout.threshold_search import KINDS, Found, Rule, errors

with _validate.extra("data"):
    from sklearn.covariance import ledoit_wolf

MEAN, STD, MINIMUM, MAXIMUM = range(4)  # the columns of statistics and of gaussian_features
HALF = 0.5  # replaces an error count of zero
FINEST = 2.0**-24  # the float32 step below 1: no probability is nearer to 0 or to 1, no deviation smaller
CAUTION = 100  # rules are chosen at this fraction of the error probability, so that luck decides less
ROUNDING = 1e-6  # by which a mean of float32 probabilities may exceed 1
RIDGE = 1e-6  # on covariances, in pooled variances

Subsets = Iterable[Sequence[int]]


class Risk(NamedTuple):
    """The paper's estimate, its bias, and the bound; every epsilon in nats.

    Attributes:
      estimate: the best thresholds for Eq. (7) on all networks; its value is the paper's estimate.
      in_sample: the same estimate on the half that is set aside for choosing.
      out_of_sample: Eq. (7) for those thresholds on the other half.
      rule: chosen on the half set aside for the largest lower bound there.
      honest: the audit of that rule on the other half; its threshold is 0 where the rule has several.
    """

    estimate: Found
    in_sample: float
    out_of_sample: float
    rule: Rule
    honest: AuditResult

    @property
    def bias(self) -> float:
        """Returns how much of the estimate is due to the choice of thresholds, on half of the networks."""
        return self.in_sample - self.out_of_sample


def statistics(mean: Any, std: Any, minimum: Any, maximum: Any) -> np.ndarray:
    """Returns the four statistics of Algorithm 2, each larger for members: mean, 1/std, minimum and maximum.

    Where std is 0, because all samples agree, its reciprocal is inf. With T = 1 that is so for every network, and the
    statistic carries no information.

    Args:
      mean, minimum, maximum: [n] probabilities of the target's true class.
      std: [n], >= 0.

    Returns:
      [n, 4], float64, columns ``MEAN``, ``STD``, ``MINIMUM``, ``MAXIMUM``.

    Raises:
      InputError: shapes that differ, a value out of range.

    Source: paper 003, Section 3.3.
    """
    mean, std, minimum, maximum = _predictions(mean, std, minimum, maximum)
    return np.stack([mean, np.divide(1.0, std, out=np.full_like(std, np.inf), where=std > 0), minimum, maximum], 1)


def gaussian_features(mean: Any, std: Any, minimum: Any, maximum: Any) -> np.ndarray:
    """Returns the same four on scales on which they are nearer to normal: logits of the probabilities, minus log std.

    Args:
      mean, std, minimum, maximum: as for :func:`statistics`; clipped to at least 2^-24 away from 0 and from 1.

    Returns:
      [n, 4], float64, finite.

    Raises:
      InputError: as for :func:`statistics`.

    Source: Carlini et al. 2022, Membership Inference Attacks From First Principles, Section IV-C (logit scaling).
    """
    mean, std, minimum, maximum = _predictions(mean, std, minimum, maximum)
    mean, minimum, maximum = (logit(np.clip(p, FINEST, 1 - FINEST)) for p in (mean, minimum, maximum))
    return np.stack([mean, -np.log(np.maximum(std, FINEST)), minimum, maximum], axis=1)


def of_loss(loss: Any) -> np.ndarray:
    """Returns Algorithm 1's statistic: minus the loss, so that "loss < tau" is "statistic > -tau".

    Args:
      loss: [n] in nats, finite.

    Returns:
      [n, 1], float64.

    Raises:
      InputError: not [n], or not finite.

    Source: paper 003, Algorithm 1.
    """
    return -_validate.finite(loss=_validate.vector(loss=np.asarray(loss, np.float64)))[:, None]


def estimates(
    statistics: Any,
    member: Any,
    *,
    delta: float,
    subsets: Subsets | None = None,
    kinds: Iterable[str] = KINDS,
    zero_count: float | None = HALF,
) -> dict[tuple[tuple[int, ...], str], Found]:
    """Computes the paper's estimate: the largest Eq. (7) over all thresholds, for each subset and each rule.

    epsilon_hat = max( ln((1 - delta - FPR)/FNR), ln((1 - delta - FNR)/FPR), 0 ). **Biased upward**: see :func:`audit`.

    Args:
      statistics: [n, k], larger for members.
      member: [n] booleans, trained on D'.
      delta: in [0, 1).
      subsets: of the k statistics; all k together by default.
      kinds: "and" (type 1 of Algorithm 2), "or" (type 2).
      zero_count: replaces an error count of 0, in (0, 1]; the paper does not state it. With None it stays 0, and the
        estimate is infinite as soon as one network of one world lies beyond all of the other.

    Returns:
      (subset, kind) -> :class:`Found`, whose value is epsilon_hat in nats.

    Raises:
      InputError: a value out of range; input that :func:`threshold_search.search` refuses.

    Source: paper 003, Sections 2.4 and 3.3.
    """
    statistics, member = threshold_search.checked(statistics, member)
    values = _eq7(member, delta, zero_count)
    return threshold_search.search(statistics, member, values, subsets=_or_all(subsets, statistics), kinds=kinds)


def audit(
    key: jax.Array,
    statistics: Any,
    member: Any,
    *,
    subsets: Subsets | None = None,
    kinds: Iterable[str] = KINDS,
    claim: Claim | None = None,
    delta: float | None = None,
    confidence: float = 0.95,
    zero_count: float | None = HALF,
) -> Risk:
    """Computes the paper's estimate and a valid lower bound, for the best of the given subsets and rules.

    A random half of each world's networks is set aside. Subset, rule and thresholds are chosen there, for the largest
    Clopper-Pearson lower bound on epsilon by both directions of Eq. (7) at a hundredth of the error probability, or
    for the accuracy where no bound is above zero. The bound is computed on the other half. The estimate uses all
    networks, and the same split shows its bias.

    Args:
      key: JAX random key, consumed; decides the halves.
      statistics, member, zero_count: as for :func:`estimates`.
      subsets, kinds: to choose from.
      claim: the promise, or None.
      delta: of every epsilon; defaults to the claim's, else 0.
      confidence: of the bound.

    Returns:
      :class:`Risk`.

    Raises:
      InputError: a value out of range; too few networks for any attack to show a bound above 0.
    """
    statistics, member = threshold_search.checked(statistics, member)
    delta = checked_delta(delta, claim)
    options = {"subsets": list(_or_all(subsets, statistics)), "kinds": list(kinds)}
    aside = _aside(key, member, delta, confidence)
    first, second = (statistics[aside], member[aside]), (statistics[~aside], member[~aside])

    estimate = _largest(estimates(statistics, member, delta=delta, zero_count=zero_count, **options))
    biased = _largest(estimates(*first, delta=delta, zero_count=zero_count, **options))
    again = _eq7(second[1], delta, zero_count)[errors(biased.rule, *second)]
    rule = _largest(threshold_search.search(*first, _certain(first[1], delta, confidence), **options)).rule
    honest = _counted(rule, *second, len(member), f"thresholds ({rule.kind})", claim, delta, confidence)
    return Risk(estimate, biased.value, float(again), rule, honest)


def audit_likelihood_ratio(
    key: jax.Array,
    features: Any,
    member: Any,
    *,
    claim: Claim | None = None,
    delta: float | None = None,
    confidence: float = 0.95,
) -> AuditResult:
    """Bounds epsilon by an attacker who compares likelihoods: ln N(x; in) - ln N(x; out) > threshold.

    Both normal laws, with full covariances shrunk by Ledoit and Wolf, and the threshold are fitted to the half of the
    networks that is set aside, and errors are counted on the other half. With one statistic this is the per-target
    attack of the source; the jointly normal fit extends it to several statistics.

    Args:
      key: JAX random key, consumed; the same key sets the same networks aside as in :func:`audit`.
      features: [n, k], finite, such as from :func:`gaussian_features`.
      member: [n] booleans, trained on D'.
      claim, delta, confidence: as for :func:`audit`.

    Returns:
      The audit of the counted half.

    Raises:
      InputError: as for :func:`audit`; features that are not finite.

    Source: Carlini et al. 2022, Membership Inference Attacks From First Principles, Algorithm 1.
    """
    features, member = threshold_search.checked(_validate.finite(features=features), member, name="features")
    delta = checked_delta(delta, claim)
    aside = _aside(key, member, delta, confidence)
    score = likelihood_ratio(features[aside], member[aside])(features)[:, None]
    values = _certain(member[aside], delta, confidence)
    rule = _largest(threshold_search.search(score[aside], member[aside], values, subsets=[(0,)], kinds=["and"])).rule
    return _counted(rule, score[~aside], member[~aside], len(member), "likelihood ratio", claim, delta, confidence)


def likelihood_ratio(features: np.ndarray, member: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Fits the score of :func:`audit_likelihood_ratio` to networks [n, k]; it maps points [m, k] -> [m]."""
    center, spread = features.mean(axis=0), features.std(axis=0)
    spread = np.where(spread > 0, spread, 1.0)
    scaled = (features - center) / spread
    inside, outside = _log_density(scaled[member]), _log_density(scaled[~member])
    return lambda points: inside((points - center) / spread) - outside((points - center) / spread)


def halves(key: jax.Array, member: np.ndarray) -> np.ndarray:
    """Draws a random half of each world's networks, rounded down, as [n] booleans.

    Args:
      key: JAX random key, consumed.
      member: [n] booleans, trained on D'.

    Raises:
      InputError: not a key.
    """
    shuffled = np.asarray(jax.random.permutation(_validate.key(key=key), len(member)))
    half = np.zeros(len(member), bool)
    for world in (False, True):
        own = shuffled[member[shuffled] == world]
        half[own[: len(own) // 2]] = True
    return half


def _predictions(mean: Any, std: Any, minimum: Any, maximum: Any) -> list[np.ndarray]:
    given = {"mean": mean, "std": std, "minimum": minimum, "maximum": maximum}
    arrays = {name: np.asarray(value, np.float64) for name, value in given.items()}
    shape = _validate.vector(mean=arrays["mean"]).shape
    for name, array in arrays.items():
        if array.shape != shape:
            raise _validate.expected(name, f"shape {list(shape)} like mean", f"shape {list(array.shape)}")
        wrong = ~((array >= 0) & (array <= 1 + ROUNDING))  # a probability deviates by at most 1/2 from its mean
        if wrong.any():
            raise _validate.expected(name, "numbers in [0, 1]", float(array[wrong][0]))
    crossed = arrays["minimum"] > arrays["maximum"]
    if crossed.any():
        low, high = (float(arrays[name][crossed][0]) for name in ("minimum", "maximum"))
        raise _validate.expected("minimum", f"at most the maximum, {high:g}", f"{low:g}")
    return list(arrays.values())


def _or_all(subsets: Subsets | None, statistics: np.ndarray) -> Subsets:
    return [range(statistics.shape[1])] if subsets is None else subsets


def _largest(found: dict[tuple[tuple[int, ...], str], Found]) -> Found:
    """Returns the first of the rules with the largest value."""
    if not found:
        raise _validate.expected("subsets and kinds", "at least one of each", "none")
    return max(found.values(), key=lambda best: best.value)


def _tables(member: np.ndarray) -> tuple[np.ndarray, np.ndarray, int, int]:
    """Returns all possible false positives [n0 + 1, 1] and false negatives [1, n1 + 1], n0 and n1."""
    positives = int(member.sum())
    negatives = len(member) - positives
    return np.arange(negatives + 1.0)[:, None], np.arange(positives + 1.0)[None, :], negatives, positives


def _eq7(member: np.ndarray, delta: float, zero_count: float | None) -> np.ndarray:
    """Computes the paper's estimate for every pair of counts."""
    _validate.probability(delta=delta)
    if zero_count is not None and _validate.positive(zero_count=zero_count) > 1:
        raise _validate.expected("zero_count", "a number in (0, 1] or None", zero_count)
    least = zero_count or 0.0
    false_positives, false_negatives, n0, n1 = _tables(member)
    return epsilon_from_rates(np.maximum(false_positives, least) / n0, np.maximum(false_negatives, least) / n1, delta)


def _certain(member: np.ndarray, delta: float, confidence: float) -> np.ndarray:
    """Computes the value to choose by for each pair of counts: the cautious bound, or minus both error rates."""
    false_positives, false_negatives, n0, n1 = _tables(member)
    cautious = 1 - (1 - confidence) / CAUTION
    lower, _ = epsilon_bounds(false_positives, false_negatives, n0, n1, delta=delta, confidence=cautious)
    return np.where(lower > 0, lower, -(false_positives / n0 + false_negatives / n1))


def _aside(key: jax.Array, member: np.ndarray, delta: float, confidence: float) -> np.ndarray:
    """Returns the networks set aside for choosing, [n] booleans, and refuses to leave too few for counting."""
    _validate.open_unit(confidence=confidence)
    aside = halves(key, member)
    negatives, positives = int(np.sum(~member & ~aside)), int(np.sum(member & ~aside))
    if plan.ceiling(negatives, positives, delta=delta, confidence=confidence) == 0 or not _both(member[aside]):
        wanted = f"enough models for a bound above 0 at delta {delta:g} and confidence {confidence:g}"
        raise _validate.expected("member", wanted, f"{negatives} of D and {positives} of D' left to count")
    return aside


def _both(member: np.ndarray) -> bool:
    return bool(member.any() and not member.all())


def _counted(
    rule: Rule,
    statistics: np.ndarray,
    member: np.ndarray,
    trials: int,
    method: str,
    claim: Claim | None,
    delta: float,
    confidence: float,
) -> AuditResult:
    """Audits a rule that was fixed before these models were seen."""
    counts = *errors(rule, statistics, member), int(np.sum(~member)), int(np.sum(member))
    return from_counts(
        *counts,
        claim=claim,
        method=f"{method} chosen on other models",
        delta=delta,
        confidence=confidence,
        trials=trials,
        threshold=rule.thresholds[0] if len(rule.thresholds) == 1 else 0.0,
    )


def _log_density(points: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Fits a normal density to points [n, k] and returns its logarithm: [m, k] -> [m]."""
    covariance, _ = ledoit_wolf(points)
    covariance = covariance + RIDGE * np.eye(points.shape[1])
    law: Any = multivariate_normal(points.mean(axis=0), covariance)
    return lambda others: law.logpdf(others).reshape(len(others))
