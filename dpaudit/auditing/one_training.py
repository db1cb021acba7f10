"""Audits one training with many canaries, each included by a coin of its own, from one score for each."""

import math
from typing import Any

import numpy as np

from dpaudit import _validate
from dpaudit.auditing import estimators, read
from dpaudit.auditing.bounds import one_run as guesses
from dpaudit.auditing.result import UNSTATED, AuditResult, checked_delta
from dpaudit.mechanisms.claim import Claim

SURE = 0.999  # confidence from which scores that tell the opposite are taken to be turned


def one_run(
    scores: Any, included: Any, *, claim: Claim | None = None, delta: float | None = None, confidence: float = 0.95
) -> AuditResult:
    """Bounds the epsilon of one training from below, by how well its canaries' scores tell which were included.

    Args:
      scores: [m], one for each canary, from the training's output alone; larger means "was included".
      included: [m] booleans, from independent coins with probability 1/2.
      claim: the promise, of adding or removing one record; None to measure without one.
      delta: of epsilon; defaults to the claim's, else 0.
      confidence: of the bound.

    Returns:
      An :class:`AuditResult`. Its trials are the canaries, its rates and accuracy those of guessing the half with the
      larger scores; epsilon_upper is infinite, as one training bounds nothing from above, and nothing else is
      certified.

    Raises:
      InputError: scores that are not numbers, coins that are not fair, a claim that is a curve or speaks of replacing,
        a value out of range.

    Source: Steinke, Nasr and Jagielski 2023, Theorem 5.2.
    """
    delta = checked_delta(delta, claim)
    if claim is not None and (claim.is_curve or claim.neighbouring != "add_remove"):
        raise _validate.expected("claim", "an epsilon and delta of adding or removing a record", claim)
    scores, included = read.row(scores=scores), np.asarray(included)
    if len(scores) < 4 or included.shape != scores.shape or included.dtype != bool:
        wanted = f"booleans, one for each of at least 4 scores, here {len(scores)}"
        raise _validate.expected("included", wanted, f"{included.dtype} {list(included.shape)}")
    settings = {"delta": delta, "confidence": _validate.open_unit(confidence=confidence)}
    counted = estimators.of_one_training(scores, included)
    lower, upper = estimators.one_run.bounds(counted, **settings)
    m = len(scores)
    plans = [guesses.Plan(max(1, m // share), max(1, m // share)) for share in estimators.GUESSES]
    ceiling = guesses.ceiling(m, plans, **settings)
    fpr, fnr = counted.false_positives / counted.negatives, counted.false_negatives / counted.positives
    shares = [int(guesses.count_correct(scores, included, plan)) / sum(plan) for plan in plans]
    most = max(shares)
    reason = None
    if claim is not None and ceiling <= claim.epsilon:
        reason = f"even if every guess were right, {m:,} canaries would certify an ε of {ceiling:.2f} at most"
    elif scores.min() == scores.max():
        reason = "all scores are equal: this attack saw nothing"
    elif lower <= 0:
        turned = estimators.of_one_training(-scores, included)
        if estimators.one_run.bounds(turned, delta=delta, confidence=SURE)[0] > 0:
            reason = "the scores are larger for canaries that were left out: change their sign"
    return AuditResult(
        epsilon_hat=math.inf if most == 1 else max(0.0, math.log(most / (1 - most))) if most > 0 else 0.0,
        epsilon_lower=lower,
        epsilon_upper=upper,
        accuracy=1 - (fpr + fnr) / 2,
        fpr=fpr,
        fnr=fnr,
        negatives=counted.negatives,
        positives=counted.positives,
        trials=m,
        method=f"scores of one training; {estimators.one_run.name}",
        neighbouring=UNSTATED if claim is None else claim.neighbouring,
        ceiling=ceiling,
        detectable=None,
        claim=claim,
        threshold=float(np.median(scores)),
        reason=reason,
        **settings,
    )
