"""Draws the result of an audit from the counts of one rule, or from all scores by a simultaneous band."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dpaudit import _validate
from dpaudit.auditing import estimators
from dpaudit.auditing.bounds import band, certified, curve, plan
from dpaudit.auditing.bounds.certified import Certificates
from dpaudit.auditing.bounds.estimate import epsilon_from_rates
from dpaudit.auditing.estimators import Counted, Estimator
from dpaudit.auditing.part_seen import unseen
from dpaudit.auditing.result import UNSTATED, AuditResult, Band, checked_delta
from dpaudit.mechanisms.claim import Claim

MOST = 1 << 40  # trials of a world; the memory of plan.power rises with the root of their number
BAND_POINTS = 64  # of a band that a result keeps
SURE = 1 - 1e-6  # confidence at which guesses that are wrong too often are called reversed
BACKWARDS = "the opposite guesses would have been right: the attack's scores have the wrong sign"


def from_counts(
    false_positives: int,
    false_negatives: int,
    negatives: int,
    positives: int,
    *,
    claim: Claim | None = None,
    method: str = "a rule fixed in advance",
    delta: float | None = None,
    confidence: float = 0.95,
    trials: int | None = None,
    threshold: float | None = None,
    both_events: bool = False,
    perfect: bool = True,
    estimator: Estimator | None = None,
    beside: np.ndarray | None = None,
) -> AuditResult:
    """Returns the result of a test whose rule was fixed before these trials.

    Args:
      false_positives, false_negatives: errors among the counted trials: guesses of world 1 in world 0, and of world 0
        in world 1.
      negatives, positives: counted trials of world 0 and of world 1, >= 1, as many as there are.
      claim: the promise, or None.
      method: how the guess was made; the bound's name is added.
      delta: of every epsilon; defaults to the claim's, else 0. One below the claim's is refused: what holds at a
        smaller delta would not contradict the claim.
      confidence: of each bound, in (0, 1).
      trials: all trials, including those set aside; None if there are none.
      threshold: of the rule, if its scores are compared with one.
      both_events: test the opposite guesses as well, each at half of the error, because the rule does not determine
        which side of the threshold means world 1.
      perfect: compute ``detectable``, as of a perfect attack; False leaves it to the caller.
      estimator: one that reads four counts; None for Clopper-Pearson.
      beside: [5 or more, 2], false positives and false negatives of the rules that :func:`certified.thresholds` chose,
        and of others for the band; None to certify everything by the single rule.

    Raises:
      InputError: a value out of range; an estimator that needs more than counts, or that carries no verdict where
        there is a claim.
    """
    estimator = estimators.clopper_pearson if estimator is None else estimator
    for name, count in (("negatives", negatives), ("positives", positives)):
        if _validate.at_least(1, **{name: count}) > MOST:
            raise _validate.expected(name, f"at most {MOST:,} trials", count)
    for name, count, most in (
        ("false_positives", false_positives, negatives),
        ("false_negatives", false_negatives, positives),
    ):
        if not isinstance(count, (int, np.integer)) or not 0 <= count <= most:
            raise _validate.no_number(name, f"a count in 0..{most}", count)
    delta, confidence = checked_delta(delta, claim), float(_validate.open_unit(confidence=confidence))
    suitable(estimator, claim, delta)
    if estimator.needs_scores or estimator.anytime or estimator.one_training:
        raise _validate.expected("estimator", "one that reads the counts of one rule", estimator.name)
    settings = {"delta": delta, "confidence": confidence}
    counts = (int(false_positives), int(false_negatives), int(negatives), int(positives))
    fpr, fnr = counts[0] / counts[2], counts[1] / counts[3]
    lower, upper = estimator.both(Counted(*counts, outcomes=np.zeros(4)), **settings, both_events=both_events)
    tested = settings | {"confidence": (1 + confidence) / 2 if both_events else confidence}  # of each event
    ceiling, _ = estimator.bounds(Counted(0, 0, negatives, positives, np.zeros(4)), **tested)
    detectable, p_value, broken = None, None, False
    if claim is not None and claim.is_curve:
        p_value = _p_value(claim, *counts, both_events=both_events)
        broken = p_value <= 1 - confidence
    elif claim is not None and perfect:
        broken = lower > claim.epsilon
        detectable = plan.detectable(claim.epsilon, negatives, positives, **tested)
    rules, measured = [counts] if beside is None else tables(beside, negatives, positives), None
    if beside is not None:
        measured = measured_band(rules, confidence=confidence, bounds=estimator.rate)
    found = AuditResult(
        epsilon_hat=shown(fpr, fnr, delta, both_events=both_events),
        epsilon_lower=lower,
        epsilon_upper=upper,
        accuracy=1 - (fpr + fnr) / 2,
        fpr=fpr,
        fnr=fnr,
        negatives=counts[2],
        positives=counts[3],
        trials=counts[2] + counts[3] if trials is None else trials,
        delta=delta,
        confidence=confidence,
        method=f"{method}; {estimator.name}",
        neighbouring=UNSTATED if claim is None else claim.neighbouring,
        ceiling=ceiling,
        detectable=detectable,
        claim=claim,
        threshold=threshold,
        side="either" if both_events else "above",
        reason=too_few(negatives + positives, ceiling, claim, confidence=tested["confidence"])
        or one_answer(*counts)
        or (None if both_events or lower > 0 else _backwards(*counts, delta))
        or (None if broken else too_weak(claim, detectable, min(negatives, positives), tested["confidence"])),
        p_value=p_value,
        certified=certified.of_counts(
            rules[: len(Certificates._fields)] if len(rules) > 1 else rules[0],
            confidence=confidence,
            both_events=both_events,
            bounds=estimator.rate,
        ),
        band=measured,
    )
    return unseen(found) if perfect else found


def from_band(
    scores: Sequence[np.ndarray],
    *,
    claim: Claim | None,
    method: str,
    estimator: Estimator,
    delta: float | None = None,
    confidence: float = 0.95,
    trials: int | None = None,
) -> AuditResult:
    """Returns the result of an audit that reads every score by a simultaneous band; larger means world 1.

    The rates, the accuracy and the threshold are those of the threshold with the largest lower bound. It was chosen on
    these same trials, but its bounds are still valid, because they hold for all thresholds together.

    Args:
      scores: one row per world, [n0] and [n1].
      claim, method, delta, confidence, trials: as for :func:`from_counts`.
      estimator: a band.

    Raises:
      InputError: a value out of range; a claim that is a curve.
    """
    assert estimator.simultaneous is not None
    delta = checked_delta(delta, claim)
    if claim is not None and claim.is_curve:
        raise _validate.expected("estimator", f"None or {estimators.clopper_pearson.name} for a curve", estimator.name)
    n0, n1 = map(len, scores)
    settings: dict[str, Any] = {"delta": delta, "confidence": float(_validate.open_unit(confidence=confidence))}
    rates = band.tradeoff(scores, confidence=confidence, band=estimator.simultaneous)
    lower = epsilon_from_rates(rates.fpr_high, rates.fnr_high, delta)
    most_accurate = np.argmin(rates.fpr + rates.fnr)
    best = int(np.argmax(lower) if lower.max() > 0 else most_accurate)
    fpr, fnr = float(rates.fpr[best]), float(rates.fnr[best])
    perfect = Counted(0, 0, n0, n1, np.zeros(4), (np.zeros(n0), np.ones(n1)))
    ceiling, _ = estimator.bounds(perfect, **settings)
    thin = np.unique(np.linspace(0, len(lower) - 1, BAND_POINTS).astype(int))
    reason = None
    if lower.max() <= 0:
        turned = band.tradeoff([-np.asarray(row) for row in scores], confidence=SURE, band=estimator.simultaneous)
        reason = BACKWARDS if epsilon_from_rates(turned.fpr_high, turned.fnr_high, delta).max() > 0 else None
    return AuditResult(
        epsilon_hat=shown(fpr, fnr, delta, both_events=False),
        epsilon_lower=float(lower[best]),
        epsilon_upper=float(epsilon_from_rates(rates.fpr_low, rates.fnr_low, delta).max()),
        accuracy=1 - (fpr + fnr) / 2,
        fpr=fpr,
        fnr=fnr,
        negatives=n0,
        positives=n1,
        trials=n0 + n1 if trials is None else trials,
        method=f"{method}; {estimator.name}",
        neighbouring=UNSTATED if claim is None else claim.neighbouring,
        ceiling=ceiling,
        detectable=None,
        claim=claim,
        threshold=float(rates.thresholds[best]),
        reason=too_few(n0 + n1, ceiling, claim, confidence=confidence) or reason,
        certified=certified.of_band(rates),
        band=Band(*(tuple(float(rate) for rate in rate[thin]) for rate in rates[1:])),
        **settings,
    )


def suitable(estimator: Estimator, claim: Claim | None, delta: float) -> None:
    """Refuses an estimator that cannot support a verdict if there is a claim to judge, or has no bound at this delta.

    Raises:
      InputError: one with a caveat; the one of Gaussian noise at delta 0; something else.
    """
    if not isinstance(estimator, Estimator):
        wanted = "an Estimator, such as dpaudit.estimators.equal_level, or None"
        raise _validate.expected("estimator", wanted, estimator)
    if claim is not None and estimator.caveat:
        wanted = "one that a verdict on the claim may rest on"
        raise _validate.expected("estimator", wanted, f"{estimator.name} ({estimator.caveat})")
    if estimator is estimators.gaussian and delta == 0:
        wanted = "another one where delta is 0, at which no Gaussian noise has a finite epsilon"
        raise _validate.expected("estimator", wanted, estimator.name)


def tables(beside: np.ndarray, negatives: int, positives: int) -> list[tuple[int, int, int, int]]:
    """Returns the four counts of every rule."""
    return [(int(fp), int(fn), negatives, positives) for fp, fn in beside]


def measured_band(rules: list[tuple[int, int, int, int]], *, confidence: float, bounds: certified.RateBounds) -> Band:
    """Bounds the rates of several rules, each at its share of the error, so that all bounds of a kind hold
    together."""
    fp, fn, n0, n1 = np.unique(np.array(rules, np.float64), axis=0).T
    alpha = (1 - confidence) / (2 * len(rules))  # equal counts are drawn once, but each has its share of the error
    (fpr_low, fpr_high), (fnr_low, fnr_high) = bounds(fp, n0, alpha=alpha), bounds(fn, n1, alpha=alpha)
    rates = (fp / n0, fn / n1, fpr_low, fpr_high, fnr_low, fnr_high)
    return Band(*(tuple(float(rate) for rate in one) for one in rates))


def _p_value(claim: Claim, *counts: int, both_events: bool) -> float:
    """Returns the p-value of the rule, or the smaller one of it and its opposite, doubled."""
    p = float(curve.p_value(claim, *counts))
    if not both_events:
        return p
    false_positives, false_negatives, negatives, positives = counts
    opposite = negatives - false_positives, positives - false_negatives, negatives, positives
    return min(1.0, 2 * min(p, float(curve.p_value(claim, *opposite))))


def shown(fpr: float, fnr: float, delta: float, *, both_events: bool) -> float:
    """Returns the epsilon at these rates, or the larger one of the rule and its opposite where both events count."""
    rates = np.array([[fpr, fnr], [1 - fpr, 1 - fnr]] if both_events else [[fpr, fnr]])
    return float(epsilon_from_rates(rates[:, 0], rates[:, 1], delta).max())


def one_answer(false_positives: int, false_negatives: int, negatives: int, positives: int) -> str | None:
    """Says that a rule saw nothing, if it gave the same answer in all trials of both worlds."""
    if (false_positives, false_negatives) not in ((0, positives), (negatives, 0)):
        return None
    return "the rule gave the same answer in all trials: this attack saw nothing"


def _backwards(false_positives: int, false_negatives: int, negatives: int, positives: int, delta: float) -> str | None:
    """Says that the opposite guesses would have been right, if chance does not explain it."""
    opposite = Counted(negatives - false_positives, positives - false_negatives, negatives, positives, np.zeros(4))
    return BACKWARDS if estimators.clopper_pearson.bounds(opposite, delta=delta, confidence=SURE)[0] > 0 else None


def too_few(
    counted: int, ceiling: float, claim: Claim | None, *, confidence: float, perfect: float | None = None
) -> str | None:
    """Says why this number of trials could not have shown a violation of the claim; None if it could.

    Args:
      counted: trials of both worlds.
      ceiling: epsilon that they certify at most.
      claim, confidence: those of the bound.
      perfect: the p-value against a curve of guesses without an error; None for that of :func:`curve.p_value`.
    """
    if claim is not None and claim.is_curve:
        p = curve.p_value(claim, 0, 0, counted // 2, counted // 2) if perfect is None else perfect
        if p <= 1 - confidence:
            return None
        return f"even {counted:,} guesses without an error would not have shown a violation of this curve"
    if claim is None or ceiling > claim.epsilon:
        return None
    return f"even a perfect attack could not have shown a violation: {counted:,} counted trials certify an ε of " + (
        f"{ceiling:.2f} at most"
    )


def too_weak(
    claim: Claim | None,
    detectable: float | None,
    pairs: int,
    confidence: float,
    against: curve.Against | None = None,
) -> str | None:
    """Says that not even a perfect attack would have shown twice the claim; None if it would, or if that is left open.

    Args:
      claim: the promise, or None.
      detectable: by a perfect attack; None where it was not computed, as of a curve.
      pairs: counted trials of each world.
      confidence: of the bound.
      against: the test of a curve, as for :func:`curve.finds_twice`.
    """
    weak = "with this many trials, even a perfect attack finds a loss of twice the claim with probability below 0.8"
    if claim is not None and claim.is_curve:
        found = curve.finds_twice(claim, pairs, confidence=confidence, against=against)
        return None if found else f"{weak}: what two records lose together where one keeps the curve"
    if claim is None or detectable is None or detectable <= 2 * claim.epsilon:
        return None
    return f"{weak}: that takes an ε of {detectable:.3g}"
