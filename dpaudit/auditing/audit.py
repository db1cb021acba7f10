"""The audit in one call."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from dpaudit import check
from dpaudit.auditing import distinguish, probe, sequential
from dpaudit.auditing.estimate import checked_scores, choose_threshold, errors
from dpaudit.auditing.game import play, play_on
from dpaudit.auditing.result import AuditResult, checked_delta, from_counts
from dpaudit.mechanisms.claim import Claim, Mechanism

CHOOSING_SHARE = 4  # one trial in four is set aside to choose a threshold
CHOOSING_LEAST, CHOOSING_ERRORS = 500, 10  # or, where stopping early, so many pairs and so many errors at the claim


def audit(
    mechanism: Mechanism | Callable[[jax.Array, Any], Any],
    x0: Any,
    x1: Any,
    *,
    key: jax.Array,
    trials: int = 10_000,
    claim: Claim | None = None,
    distinguisher: distinguish.Distinguisher | None = None,
    delta: float | None = None,
    confidence: float = 0.95,
    until: sequential.Until | None = None,
) -> AuditResult:
    """Measures how well the releases of two inputs can be told apart, and bounds the mechanism's epsilon from below.

    Args:
      mechanism: a :class:`Mechanism`, or any jittable ``fn(key, x) -> release`` with arrays or pytrees on both sides;
        a function of NumPy is wrapped in :func:`dpaudit.on_host`.
      x0, x1: the two inputs; neighbours in the sense of the claim.
      key: a jax.random key, consumed.
      trials: K of Algorithm 3: in all, half of it in each world (an odd one out is not played).
      claim: the promise; defaults to the mechanism's own.
      distinguisher: the attack; defaults to the likelihood ratio where the mechanism has a density, else to the
        projection on x1 - x0.
      delta: of every epsilon; defaults to the claim's, else 0.
      confidence: of each bound.
      until: when to stop before all ``trials`` are played: ``sequential.violation()``, ``sequential.width(0.2)`` or a
        rule of one's own. All bounds then hold at every time at once. None plays all of them.

    Returns:
      An :class:`AuditResult`. Where the threshold is chosen, a quarter of the trials is used for that and not counted;
      with ``until``, no more than it takes to know error rates as small as the claim's.

    Raises:
      InputError: a value out of range, a release that is not a number, and what :func:`probe.examine` refuses: a
        mechanism that raises, cannot be traced, ignores its key or gives x0 and x1 releases of different shape.

    Source: paper 000, Algorithm 3.
    """
    half = check.at_least(2, trials=trials) // 2
    check.open_unit(confidence=confidence)
    key = check.key(key=key)
    if not isinstance(mechanism, Mechanism):
        if not callable(mechanism):
            raise check.expected("mechanism", "a Mechanism or a function of (key, x)", mechanism)
        mechanism = Mechanism(mechanism)
    claim = mechanism.claim if claim is None else claim
    for name, value, kind in (("claim", claim, Claim), ("distinguisher", distinguisher, distinguish.Distinguisher)):
        if not isinstance(value, kind | None):
            raise check.expected(name, f"a {kind.__name__} or None", value)
    delta = checked_delta(delta, claim)
    check.finite(x0=x0)
    check.finite(x1=x1)
    probe.examine(mechanism, x0, x1)
    if distinguisher is None:
        distinguisher = distinguish.projection if mechanism.log_prob is None else distinguish.likelihood_ratio
    if distinguisher.threshold is None and half < CHOOSING_SHARE:
        raise check.expected("trials", f"at least {2 * CHOOSING_SHARE} where a threshold is chosen", trials)
    with probe.failures_named(mechanism):
        settings = {"claim": claim, "delta": delta, "confidence": confidence, "until": until}
        return _carry_out(key, mechanism, x0, x1, distinguisher, half, **settings)


def _carry_out(
    key: jax.Array,
    mechanism: Mechanism,
    x0: Any,
    x1: Any,
    distinguisher: distinguish.Distinguisher,
    half: int,
    *,
    claim: Claim | None,
    delta: float,
    confidence: float,
    until: sequential.Until | None,
) -> AuditResult:
    """The audit of input that was checked, ``half`` of the trials in each world."""
    fit_key, play_key = jax.random.split(key)
    score = distinguisher.fit(fit_key, mechanism, x0, x1)
    threshold, method = distinguisher.threshold, distinguisher.name
    aside = half // CHOOSING_SHARE if threshold is None else 0

    def release(key: jax.Array, world: int) -> Any:
        return mechanism.apply(key, (x0, x1)[world])

    if until is not None:
        watch = sequential.start(claim, delta, confidence, until=until)
        if claim is not None:
            aside = int(min(aside, CHOOSING_LEAST + CHOOSING_ERRORS * np.exp(claim.epsilon)))
        parts = play_on(play_key, release, score, half)
        watch, threshold = sequential.follow(parts, watch, threshold=threshold, aside=aside)
        if aside:
            method += f", threshold from the first {2 * aside} trials"
        return sequential.conclude(watch, method=method, most=half - aside, aside=aside, threshold=threshold)

    scores = checked_scores(play(play_key, release, score, half))
    remark = _remark(scores)
    if threshold is None:
        threshold = choose_threshold(scores[:, :aside], delta=delta, confidence=confidence)
        scores = scores[:, aside:]
        method += ", threshold from the first quarter of the trials"
    counted = scores.shape[1]
    return from_counts(
        *errors(scores, threshold),
        counted,
        counted,
        claim=claim,
        method=method + remark,
        delta=delta,
        confidence=confidence,
        trials=2 * half,
        threshold=threshold,
    )


def _remark(scores: np.ndarray) -> str:
    """What a reader must know of scores [2, n] that never vary within a world."""
    if (scores != scores[:, :1]).any():
        return ""
    if scores[0, 0] == scores[1, 0]:
        return ", all scores equal: this attack saw nothing"
    return ", the same score in all trials of a world: if the mechanism is deterministic, its epsilon is infinite"
