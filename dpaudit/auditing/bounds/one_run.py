"""Bounds epsilon from one training run with many canaries, each included independently with probability 1/2.

The guesser sees the run's output only: a score for each canary, larger means "was included". It guesses "in" for the
``guesses_in`` largest scores, "out" for the ``guesses_out`` smallest, and abstains on the rest; how many of the
guesses are right bounds epsilon. **The numbers of guesses are part of the test**: if they are chosen after looking at
which canaries were included, the confidence is false. :func:`audit` therefore takes them as a plan made beforehand; of
several plans each is tested at its share of the error probability (Bonferroni). A plan may also be chosen on canaries
that are set aside and not counted.

An epsilon here is for adding or removing one canary.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import betainc, betaincinv, expit, gammaln, logit, ndtr, ndtri, xlog1py, xlogy
from scipy.stats import binom

from dpaudit import _validate
from dpaudit.auditing.bounds.estimate import counts_within
from dpaudit.auditing.bounds.gdp import epsilon_from_mu
from dpaudit.auditing.bounds.roots import increasing_root

OFTEN = 0.8  # the power that is asked for


class Plan(NamedTuple):
    """The number of guesses to make, fixed before it is known which canaries were included."""

    guesses_in: int  # for the largest scores
    guesses_out: int = 0  # for the smallest scores


class OneRun(NamedTuple):
    """The result of one run: ``correct`` of the plan's guesses among ``canaries``, and the bound."""

    epsilon_lower: float
    plan: Plan
    correct: int
    canaries: int


def p_value(correct: Any, guesses: Any, canaries: Any, epsilon: Any, *, delta: float) -> np.ndarray:
    """Computes the largest probability of this many right guesses under any (epsilon, delta)-DP mechanism.

    With W ~ Binomial(r, 1/(1 + e^-epsilon)):
    Pr[correct >= v] <= Pr[W >= v] + 2 m delta max_{i = 1..v} Pr[v - i <= W < v]/i.

    Args:
      correct: v, right guesses, any shape.
      guesses: r, guesses made; a number fixed in advance.
      canaries: m, each included independently with probability 1/2, those abstained on counted as well.
      epsilon: in nats, >= 0.
      delta: in [0, 1).

    Returns:
      Probabilities, float64, at most 1.

    Raises:
      InputError: more right guesses than guesses, or more guesses than canaries; delta out of range.

    Source: Steinke, Nasr and Jagielski 2023, Theorem 5.2.
    """
    _validate.probability(delta=delta)
    v, r, m = _checked(correct, guesses, canaries)
    v, r, m, epsilon = np.broadcast_arrays(v, r, m, np.asarray(epsilon, np.float64))
    return _p_value(v, r, m, epsilon, delta, _lower_counts(v, r))


def epsilon_lower(correct: Any, guesses: Any, canaries: Any, *, delta: float, confidence: float) -> np.ndarray:
    """Returns the largest epsilon that the right guesses refute: with probability >= confidence the true one is above
    it.

    Args:
      correct, guesses, canaries: as for :func:`p_value`.
      delta: in [0, 1).
      confidence: in (0, 1).

    Returns:
      epsilon in nats, float64, never below 0.

    Raises:
      InputError: a value out of range.

    Source: Steinke, Nasr and Jagielski 2023, Theorem 5.2.
    """
    _validate.probability(delta=delta)
    alpha = 1 - _validate.open_unit(confidence=confidence)

    def bound(v: np.ndarray, r: np.ndarray, m: np.ndarray) -> np.ndarray:
        some = np.maximum(v, 1)
        highest = np.where(v > 0, np.maximum(logit(betaincinv(some, r - some + 1, alpha)), 0), 0.0)  # delta = 0
        below = _lower_counts(v, r)
        zero = np.zeros_like(highest)
        return increasing_root(lambda e: _p_value(v, r, m, e, delta, below) - alpha, zero, highest)

    return _each_once(bound, *_checked(correct, guesses, canaries))


def mu_lower(correct: Any, guesses: Any, canaries: Any, *, confidence: float) -> np.ndarray:
    """Returns the largest mu that the right guesses refute, for mu-GDP mechanisms.

    Were Pr[correct >= c] = alpha, then the shares r of right and h of wrong guesses on that event would satisfy
    h >= Phi(Phi^-1(r) - mu); stepping c down to 0 accumulates both, and a total above guesses/canaries is impossible.
    The bound is tightest for few sure guesses among many canaries: at mu = 1 about 0.79 for 1,000 guesses among
    100,000 canaries, but 0.34 when all are guessed, however many there are.

    Args:
      correct, guesses, canaries: as for :func:`p_value`.
      confidence: in (0, 1).

    Returns:
      mu in standard deviations, float64, never below 0: with probability >= confidence no mu-GDP promise up to it is
      kept.

    Raises:
      InputError: a value out of range.

    Source: Mahloujifar, Melis and Chaudhuri 2024, Auditing f-Differential Privacy in One Run.
    """
    alpha = 1 - _validate.open_unit(confidence=confidence)

    def bound(v: np.ndarray, r: np.ndarray, m: np.ndarray) -> np.ndarray:
        highest = np.ones_like(v)
        while np.any(too_low := _excess(v, r, m, highest, alpha) > 0):
            highest = np.where(too_low, 2 * highest, highest)
        return increasing_root(
            lambda mu: -_excess(v, r, m, mu, alpha), np.zeros_like(highest), highest, tolerance=1e-7
        )

    return _each_once(bound, *_checked(correct, guesses, canaries))


def epsilon_lower_gaussian(
    correct: Any, guesses: Any, canaries: Any, *, delta: float, confidence: float
) -> np.ndarray:
    """Converts :func:`mu_lower` to an epsilon at ``delta``, **assuming that the trade-off function is Gaussian**.

    Args:
      correct, guesses, canaries: as for :func:`p_value`.
      delta: in [0, 1).
      confidence: in (0, 1).

    Returns:
      epsilon in nats, float64, never below 0.

    Raises:
      InputError: a value out of range.
    """
    return epsilon_from_mu(mu_lower(correct, guesses, canaries, confidence=confidence), delta)


def audit(
    scores: Any,
    included: Any,
    plans: Sequence[Plan],
    *,
    delta: float,
    confidence: float,
    bound: Callable[..., np.ndarray] = epsilon_lower,
) -> OneRun:
    """Bounds epsilon by the best of several plans.

    Every plan is tested at 1 - (1 - confidence)/len(plans), so the best one's bound holds at ``confidence``.
    Scores that tie across a plan's edge are counted against the guesser, so that no order of the canaries can tell
    which were included; where scores are coarse, break ties at random beforehand.

    Args:
      scores: [m], from the run's output alone; larger means "was included".
      included: [m] booleans: independent fair coins.
      plans: numbers of guesses, fixed before ``included`` was looked at.
      delta: in [0, 1).
      confidence: in (0, 1).
      bound: :func:`epsilon_lower` or :func:`epsilon_lower_gaussian`.

    Returns:
      A :class:`OneRun`.

    Raises:
      InputError: shapes that differ, scores that are not numbers, coins that are not fair, a plan of no guesses or of
        more than there are canaries.
    """
    _validate.open_unit(confidence=confidence)
    scores, included = np.asarray(scores, np.float64), np.asarray(included)
    if scores.ndim != 1 or np.isnan(scores).any():
        raise _validate.expected(
            "scores", "numbers of shape [m]", f"shape {list(scores.shape)} with {np.isnan(scores).sum()} NaN"
        )
    if included.shape != scores.shape or included.dtype != bool:
        raise _validate.expected(
            "included", f"booleans of shape {list(scores.shape)}", f"{included.dtype} {list(included.shape)}"
        )
    if abs(int(included.sum()) - len(included) / 2) > 3 * np.sqrt(len(included)):  # six standard deviations
        raise _validate.expected(
            "included", "independent coins with probability 1/2", f"{int(included.sum())} of {len(included)} canaries"
        )
    _refuse_none(plans)
    each = 1 - (1 - confidence) / len(plans)
    found = []
    for plan in plans:
        correct = int(count_correct(scores, included, plan))
        epsilon = bound(correct, sum(plan), len(scores), delta=delta, confidence=each)
        found.append(OneRun(float(epsilon), plan, correct, len(scores)))
    return max(found, key=lambda run: run.epsilon_lower)


def ceiling(canaries: int, plans: Sequence[Plan], *, delta: float, confidence: float) -> float:
    """Returns the largest bound that :func:`audit` can give: the one for which every guess of every plan is right.

    Args:
      canaries: m >= 1.
      plans, delta, confidence: as for :func:`audit`.

    Returns:
      epsilon in nats.

    Raises:
      InputError: a value out of range, as for :func:`audit`.
    """
    _refuse_none(plans)
    for plan in plans:
        _refuse_guesses(plan, canaries)
    guesses = np.array([sum(plan) for plan in plans])
    each = 1 - (1 - _validate.open_unit(confidence=confidence)) / len(plans)
    return float(np.max(epsilon_lower(guesses, guesses, canaries, delta=delta, confidence=each)))


def finds_twice(epsilon: float, canaries: int, plans: Sequence[Plan], *, delta: float, confidence: float) -> bool:
    """Tells whether a perfect attack on a run with twice the loss would show more than epsilon with probability 0.8.

    Of such a run each guess is right with probability e^(2 epsilon)/(1 + e^(2 epsilon)), whatever the others are, as
    of randomised response: no mechanism with this loss lets more be right.

    Args:
      epsilon: the promise, in nats, >= 0.
      canaries, plans, delta, confidence: as for :func:`ceiling`.
    """
    guesses = np.array([sum(plan) for plan in plans])
    each = 1 - (1 - confidence) / len(plans)
    correct = binom.ppf(1 - OFTEN, guesses, expit(2 * epsilon)).astype(int)  # as many or more with probability 0.8
    return bool((epsilon_lower(correct, guesses, canaries, delta=delta, confidence=each) > epsilon).any())


def count_correct(scores: np.ndarray, included: np.ndarray, plan: Plan) -> np.ndarray:
    """Counts the right guesses of a plan, for many runs at once; of tied canaries the wrong ones are guessed first.

    Args:
      scores: [..., m], from each run's output alone; larger means "was included".
      included: [..., m] booleans.
      plan: numbers of guesses, fixed before ``included`` was looked at.

    Returns:
      Counts, [...].

    Raises:
      InputError: a plan of no guesses or of more than there are canaries.
    """
    _refuse_guesses(plan, scores.shape[-1])
    most = np.lexsort((included, -scores))[..., : plan.guesses_in]
    least = np.lexsort((~included, scores))[..., : plan.guesses_out]
    right_in = np.take_along_axis(included, most, axis=-1).sum(axis=-1)
    return right_in + (~np.take_along_axis(included, least, axis=-1)).sum(axis=-1)


def _checked(correct: Any, guesses: Any, canaries: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    guesses = counts_within(canaries, guesses=guesses)
    if np.any(guesses < 1):
        raise _validate.expected("guesses", "at least one", 0)
    correct = counts_within(guesses, correct=correct)
    correct, guesses, canaries = np.broadcast_arrays(correct, guesses, np.asarray(canaries, np.float64))
    return correct, guesses, canaries


def _each_once(bound: Callable[..., np.ndarray], *counts: np.ndarray) -> np.ndarray:
    """Computes ``bound`` once for every different table, as audits that share a plan differ in ``correct`` alone."""
    tables, place = np.unique(np.stack([count.ravel() for count in counts]), axis=1, return_inverse=True)
    return bound(*tables)[place].reshape(counts[0].shape)


def _lower_counts(v: np.ndarray, r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns (k, ln C(r, k)) for k = v - 1, v - 2, ... on a last axis; k below 0 has coefficient -inf."""
    k = v[..., np.newaxis] - np.arange(1, v.max(initial=0) + 1)
    n, inside = r[..., np.newaxis], np.maximum(k, 0)
    coefficient = gammaln(n + 1) - gammaln(inside + 1) - gammaln(n - inside + 1)
    return inside, np.where(k >= 0, coefficient, -np.inf)


def _p_value(
    v: np.ndarray,
    r: np.ndarray,
    m: np.ndarray,
    epsilon: np.ndarray,
    delta: float,
    below: tuple[np.ndarray, np.ndarray],
) -> np.ndarray:
    q = expit(epsilon)
    tail = np.where(v > 0, betainc(np.maximum(v, 1), r - np.maximum(v, 1) + 1, q), 1.0)
    k, coefficient = below
    if delta == 0 or k.shape[-1] == 0:
        return tail
    chance = np.exp(coefficient + xlogy(k, q[..., np.newaxis]) + xlog1py(r[..., np.newaxis] - k, -q[..., np.newaxis]))
    steepest = np.max(np.cumsum(chance, axis=-1) / np.arange(1, k.shape[-1] + 1), axis=-1)
    return np.minimum(tail + 2 * m * delta * steepest, 1.0)


def _excess(v: np.ndarray, guesses: np.ndarray, m: np.ndarray, mu: np.ndarray, alpha: float) -> np.ndarray:
    """Returns the accumulated share of guesses, right and wrong, less guesses/canaries: positive where mu is
    refuted."""
    right, wrong = alpha * v / m, alpha * (guesses - v) / m
    for i in range(int(v.max(initial=0)) - 1, -1, -1):
        least = np.where(i < v, np.maximum(wrong, ndtr(ndtri(right) - mu)), wrong)
        right = np.minimum(right + i / np.maximum(guesses - i, 1) * (least - wrong), 1.0)
        if i < v.min() and np.all(least == wrong):
            break  # neither can change any more
        wrong = least
    return right + wrong - guesses / m


def _refuse_none(plans: Sequence[Plan]) -> None:
    if not plans:
        raise _validate.expected("plans", "at least one Plan", plans)


def _refuse_guesses(plan: Plan, canaries: int) -> None:
    _validate.at_least(0, guesses_in=plan.guesses_in)
    _validate.at_least(0, guesses_out=plan.guesses_out)
    if not 1 <= sum(plan) <= canaries:
        raise _validate.expected("plans", f"1 to {canaries} guesses in all, the number of canaries", plan)
