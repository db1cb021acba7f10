"""Says why guesses about the canaries of one training could not have shown more than a promised epsilon."""

from collections.abc import Sequence

import numpy as np
from scipy.special import betaincinv, logit

from dpaudit.auditing.bounds import one_run
from dpaudit.auditing.bounds.one_run import Plan
from dpaudit.auditing.part_seen import SLIGHT, UNKNOWN

SURE = 0.999  # confidence at which canaries' scores are called reversed
NOT_TOLD = f"the canaries that were included were not told from the others; {UNKNOWN}"


def underpowered(
    scores: np.ndarray,
    included: np.ndarray,
    plans: Sequence[Plan],
    *,
    lower: float,
    epsilon: float | None,
    delta: float,
    confidence: float,
) -> str | None:
    """Returns the reason for which an audit of one training is underpowered; None if it is not, or shows a violation.

    Args:
      scores: [m], from the training's output alone; larger means "was included".
      included: [m] booleans, independent fair coins.
      plans: numbers of guesses, as for :func:`bounds.one_run.audit`.
      lower: the bound that they gave.
      epsilon: the promise; None without one.
      delta, confidence: of the bound.
    """
    m, settings = len(scores), {"delta": delta, "confidence": confidence}
    if epsilon is not None:
        if lower > epsilon:
            return None
        most = one_run.ceiling(m, plans, **settings)
        if most <= epsilon:
            return f"even if every guess were right, {m:,} canaries would certify an ε of {most:.2f} at most"
    if np.min(scores) == np.max(scores):
        return "all scores are equal: this attack saw nothing"
    if lower <= 0 and one_run.audit(-scores, included, plans, delta=delta, confidence=SURE).epsilon_lower > 0:
        return "the scores are larger for canaries that were left out: change their sign"
    if epsilon is None:
        return None
    if not one_run.finds_twice(epsilon, m, plans, **settings):
        return (
            "with this many canaries, even a perfect attack finds a loss of twice the claim with probability below 0.8"
        )
    few = lower <= SLIGHT * epsilon and 2 * most_attained(scores, included, plans, confidence=confidence) < epsilon
    return NOT_TOLD if few else None


def most_attained(scores: np.ndarray, included: np.ndarray, plans: Sequence[Plan], *, confidence: float) -> float:
    """Returns an upper bound on the epsilon that an attack attains by the plan of the most guesses: the log odds of a
    right guess. It says nothing of what the training loses."""
    plan = max(plans, key=sum)
    right, guesses = int(one_run.count_correct(scores, included, plan)), sum(plan)
    if right == guesses:
        return float("inf")
    return max(0.0, float(logit(betaincinv(right + 1, guesses - right, confidence))))
