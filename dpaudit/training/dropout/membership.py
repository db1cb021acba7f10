"""Was the target in the training set? What many trained networks say, from statistics of their predictions of it.

Half of the networks were trained on D, half on D' = D with the target. Of each there is one row of statistics of its
T predictions of the target's true class, and the attacker guesses by thresholds on them (Algorithms 1 and 2). Paper
003 takes the thresholds under which the estimate of Eq. (7) is largest on the very networks that it then speaks of.
:func:`estimates` does the same, and is **no lower bound of anything**: on networks that differ in nothing it is far
above zero, the more so the more thresholds there are to choose. :func:`audit` therefore puts a bound beside it, whose
thresholds were chosen on networks that it does not count; so does :func:`audit_likelihood_ratio`, for an attacker who
knows how the statistics are distributed in both worlds.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.special import logit
from scipy.stats import multivariate_normal
from sklearn.covariance import ledoit_wolf

from dpaudit import _validate
from dpaudit.auditing.bounds import plan
from dpaudit.auditing.bounds.estimate import epsilon_bounds, epsilon_from_rates
from dpaudit.auditing.result import AuditResult, checked_delta, from_counts
from dpaudit.mechanisms.claim import Claim
from dpaudit.training.dropout import threshold_search
from dpaudit.training.dropout.threshold_search import KINDS, Found, Rule, errors

MEAN, STD, MINIMUM, MAXIMUM = range(4)  # the columns of what statistics and gaussian_features return
HALF = 0.5  # what a count of zero is taken for
FINEST = 2.0**-24  # the float32 step below 1: no probability is nearer to 0 or to 1, no deviation smaller
CAUTION = 100  # rules compete for the largest bound at so small a share of the error probability: less luck wins
ROUNDING = 1e-6  # by which a mean of float32 probabilities may exceed 1
RIDGE = 1e-6  # on covariances, in pooled variances

Subsets = Iterable[Sequence[int]]


class Risk(NamedTuple):
    """What thresholds show: the paper's number, its bias, and the bound; every epsilon in nats.

    Attributes:
      estimate: the best thresholds for Eq. (7) on all networks; its value is the paper's estimate.
      in_sample: the same estimate on the half that is set aside for choosing.
      out_of_sample: Eq. (7) for those thresholds on the other half.
      rule: chosen on the half set aside for the largest lower bound there.
      honest: that rule on the other half; its own threshold is 0 where the rule has several.
    """

    estimate: Found
    in_sample: float
    out_of_sample: float
    rule: Rule
    honest: AuditResult

    @property
    def bias(self) -> float:
        """How much the estimate owes to the choice of thresholds, on half of the networks."""
        return self.in_sample - self.out_of_sample


def statistics(mean: Any, std: Any, minimum: Any, maximum: Any) -> np.ndarray:
    """The four statistics of Algorithm 2, each larger for members: mean, 1/std, minimum and maximum.

    Where std is 0 its reciprocal is inf, the largest value that there is: the samples agree. With T = 1 they do so in
    every network, so that this statistic tells nothing.

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
    """The same four on scales on which they are nearer to normal: logits of the probabilities, minus log std.

    Args:
      mean, std, minimum, maximum: as for :func:`statistics`; taken for at least 2^-24 away from 0 and from 1.

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
    """Algorithm 1's statistic: minus the loss, so that "loss < tau" is "statistic > -tau".

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
    """The paper's estimate: Eq. (7) under the thresholds that make it largest, for each subset and each rule.

    epsilon_hat = max( ln((1 - delta - FPR)/FNR), ln((1 - delta - FNR)/FPR), 0 ). **Biased upward**: see :func:`audit`.

    Args:
      statistics: [n, k], larger for members.
      member: [n] booleans, trained on D'.
      delta: in [0, 1).
      subsets: of the k statistics; all k together by default.
      kinds: "and" (type 1 of Algorithm 2), "or" (type 2).
      zero_count: what an error count of 0 is taken for, in (0, 1]; the paper does not say. With None it stays 0, and
        the estimate is infinite as soon as one network of one world lies beyond all of the other.

    Returns:
      (subset, kind) -> :class:`Found`, whose value is epsilon_hat in nats.

    Raises:
      InputError: a value out of range; what :func:`threshold_search.search` refuses.

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
    """The paper's estimate beside an honest bound, for the best of the subsets and rules that are asked for.

    A random half of each world's networks is set aside; subset, rule and thresholds are chosen there, for the largest
    Clopper-Pearson lower bound on epsilon by both directions of Eq. (7) at a hundredth of the error probability, or
    for the accuracy where no bound is above zero. The bound is computed on the other half. The estimate is made on all
    networks, and its bias is shown by the same split.

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
      InputError: a value out of range; so few networks that no attack could be shown to work.
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
    """The honest bound of an attacker who compares likelihoods: ln N(x; in) - ln N(x; out) > threshold.

    Both normal laws, with full covariances shrunk by Ledoit and Wolf, and the threshold are fitted to the half of the
    networks that is set aside, and counted on the other. With one statistic this is the per-target attack of the
    source; the jointly normal fit of several is its extension to what a Bayesian network gives away.

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
    """The score of :func:`audit_likelihood_ratio`: points [m, k] -> [m], normal laws fitted to networks [n, k]."""
    center, spread = features.mean(axis=0), features.std(axis=0)
    spread = np.where(spread > 0, spread, 1.0)
    scaled = (features - center) / spread
    inside, outside = _log_density(scaled[member]), _log_density(scaled[~member])
    return lambda points: inside((points - center) / spread) - outside((points - center) / spread)


def halves(key: jax.Array, member: np.ndarray) -> np.ndarray:
    """[n] booleans: a random half of each world's networks, rounded down.

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
    return list(arrays.values())


def _or_all(subsets: Subsets | None, statistics: np.ndarray) -> Subsets:
    return [range(statistics.shape[1])] if subsets is None else subsets


def _largest(found: dict[tuple[tuple[int, ...], str], Found]) -> Found:
    """Of the rules that are worth most, the first."""
    if not found:
        raise _validate.expected("subsets and kinds", "at least one of each", "none")
    return max(found.values(), key=lambda best: best.value)


def _tables(member: np.ndarray) -> tuple[np.ndarray, np.ndarray, int, int]:
    """All false positives [n0 + 1, 1] and false negatives [1, n1 + 1] that there can be, n0 and n1."""
    positives = int(member.sum())
    negatives = len(member) - positives
    return np.arange(negatives + 1.0)[:, None], np.arange(positives + 1.0)[None, :], negatives, positives


def _eq7(member: np.ndarray, delta: float, zero_count: float | None) -> np.ndarray:
    """The paper's estimate for every pair of counts."""
    _validate.probability(delta=delta)
    if zero_count is not None and _validate.positive(zero_count=zero_count) > 1:
        raise _validate.expected("zero_count", "a number in (0, 1] or None", zero_count)
    least = zero_count or 0.0
    false_positives, false_negatives, n0, n1 = _tables(member)
    return epsilon_from_rates(np.maximum(false_positives, least) / n0, np.maximum(false_negatives, least) / n1, delta)


def _certain(member: np.ndarray, delta: float, confidence: float) -> np.ndarray:
    """What to choose by: the cautious lower bound for every pair of counts; where it is 0, minus both error rates."""
    false_positives, false_negatives, n0, n1 = _tables(member)
    cautious = 1 - (1 - confidence) / CAUTION
    lower, _ = epsilon_bounds(false_positives, false_negatives, n0, n1, delta=delta, confidence=cautious)
    return np.where(lower > 0, lower, -(false_positives / n0 + false_negatives / n1))


def _aside(key: jax.Array, member: np.ndarray, delta: float, confidence: float) -> np.ndarray:
    """The networks set aside for choosing, [n] booleans; enough others must be left to count."""
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
    """The audit of a rule that was fixed before these models were seen."""
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
    """ln of the normal density fitted to points [n, k]: [m, k] -> [m]."""
    covariance, _ = ledoit_wolf(points)
    covariance = covariance + RIDGE * np.eye(points.shape[1])
    law: Any = multivariate_normal(points.mean(axis=0), covariance)
    return lambda others: law.logpdf(others).reshape(len(others))
