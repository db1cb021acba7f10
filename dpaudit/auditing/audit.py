"""The audit in one call."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jax.tree_util import Partial

from dpaudit import _validate
from dpaudit._engine.checkpoint import checkpoint as checkpoint_of
from dpaudit._engine.game import both_worlds, game, trial_key
from dpaudit.auditing import count
from dpaudit.auditing.attacks import distinguish
from dpaudit.auditing.attacks.portfolio import PILOT_LEAST, Portfolio, pilot_pairs, portfolio
from dpaudit.auditing.bounds import alternative, betting, sequential
from dpaudit.auditing.lint import probe
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
    attacks: Sequence[distinguish.Distinguisher] = (),
    delta: float | None = None,
    confidence: float = 0.95,
    until: sequential.Until | None = None,
    batch: int | None = None,
    mesh: Mesh | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Callable[[int], None] | None = None,
) -> AuditResult:
    """Measures how well the releases of two inputs can be told apart, and bounds the mechanism's epsilon from below.

    Args:
      mechanism: a :class:`Mechanism`, or any jittable ``fn(key, x) -> release`` with arrays or pytrees on both sides;
        a function of NumPy is wrapped in :func:`dpaudit.on_host`.
      x0, x1: the two inputs; neighbours in the sense of the claim.
      key: a jax.random key, consumed.
      trials: K of Algorithm 3: in all, half of it in each world (an odd one out is not played).
      claim: the promise; defaults to the mechanism's own.
      distinguisher: an attack to play alone. None plays a family of them on the same releases, and the trials set
        aside choose one (see :mod:`dpaudit.auditing.attacks.portfolio`): no error is spent on the others. Of fewer than 256
        trials, the likelihood ratio where the mechanism has a density, else the projection on x1 - x0.
      attacks: of one's own, to play beside the family; not with a distinguisher.
      delta: of every epsilon; defaults to the claim's, else 0.
      confidence: of each bound.
      until: when to stop before all ``trials`` are played: ``sequential.violation()``, ``sequential.width(0.2)`` or a
        rule of one's own. All bounds then hold at every time at once. None plays all of them.
      batch: trials of each world sent to each device at a time, rounded up to whole blocks. Neither it nor the mesh
        nor an interruption makes a difference to the result.
      mesh: a device mesh over whose devices the trials are split, those of several processes too
        (``jax.distributed``): each of them makes the same call and gets the same result. None for one device.
      checkpoint: a file that keeps what has been counted after each call to the devices; the same audit goes on from
        it, on any devices. One that belongs to another audit is refused, except that a rule of one's own for
        ``until`` is known by its name alone. Of several processes, the first one keeps the file for all.
      progress: called with the number of trials played so far, of both worlds, first with those of the checkpoint.

    Returns:
      An :class:`AuditResult`. Where the threshold is chosen, a quarter of the trials is used for that and not counted;
      with ``until``, no more than it takes to know error rates as small as the claim's, its delta included.

    Raises:
      InputError: a value out of range, a release that is not a number, a checkpoint that is torn or belongs to another
        audit, and what :func:`probe.examine` refuses: a mechanism that raises, cannot be traced, ignores its key or
        gives x0 and x1 releases of different shape.

    Source: paper 000, Algorithm 3.
    """
    half = _validate.at_least(2, trials=trials) // 2
    _validate.open_unit(confidence=confidence)
    key = _validate.key(key=key)
    if not isinstance(mechanism, Mechanism):
        if not callable(mechanism):
            raise _validate.expected("mechanism", "a Mechanism or a function of (key, x)", mechanism)
        mechanism = Mechanism(mechanism)
    claim = mechanism.claim if claim is None else claim
    for name, value, kind in (("claim", claim, Claim), ("distinguisher", distinguisher, distinguish.Distinguisher)):
        if not isinstance(value, kind | None):
            raise _validate.expected(name, f"a {kind.__name__} or None", value)
    delta = checked_delta(delta, claim)
    _validate.finite(x0=x0)
    _validate.finite(x1=x1)
    probe.examine(mechanism, x0, x1)
    if _same(x0, x1):
        raise _validate.expected(
            "x1", "an input other than x0 (nothing tells a pair of equal inputs apart)", "the same"
        )
    for attack in attacks:
        if not isinstance(attack, distinguish.Distinguisher):
            raise _validate.expected("attacks", "Distinguishers", attack)
    if attacks and distinguisher is not None:
        raise _validate.expected("attacks", "none where a distinguisher is named", [attack.name for attack in attacks])
    if until is not None and claim is not None and claim.is_curve:
        wanted = "None where the claim is a curve (audit its epsilon at some delta: claim.at(delta))"
        raise _validate.expected("until", wanted, "a rule by which to stop")
    aside = half // CHOOSING_SHARE
    if until is not None and claim is not None:
        rarest = min(np.exp(-claim.epsilon), np.sqrt(claim.delta) or 1.0)
        least = CHOOSING_LEAST + CHOOSING_ERRORS / rarest
        aside = int(min(aside, least if distinguisher is not None else 2 * least))
    pilot = pilot_pairs(mechanism, x0, aside) if distinguisher is None else 0
    if distinguisher is None and pilot < PILOT_LEAST and not attacks:
        distinguisher = distinguish.projection if mechanism.log_prob is None else distinguish.likelihood_ratio
    if distinguisher is not None and distinguisher.threshold is None and half < CHOOSING_SHARE:
        raise _validate.expected("trials", f"at least {2 * CHOOSING_SHARE} where a threshold is chosen", trials)
    with probe.failures_named(mechanism):
        if until is not None and batch is None:
            batch = 1
        promise = {"claim": claim, "delta": delta, "confidence": float(confidence)}
        fit_key, play_key = _keys(key)
        pair, family, threshold = (mechanism, x0, x1), None, None
        if distinguisher is not None:
            score, threshold = distinguisher.fit(fit_key, *pair), distinguisher.threshold
            one = both_worlds(play_key, lambda key, world: mechanism.apply(key, (x0, x1)[world]), score)
        else:
            settings = {"delta": delta, "confidence": confidence, "batch": batch, "mesh": mesh}
            family = portfolio(fit_key, play_key, *pair, attacks, pilot=pilot, **settings)
            one = family.one
        name = "" if distinguisher is None else distinguisher.name
        how = {"batch": batch, "mesh": mesh, "checkpoint": checkpoint, "progress": progress}
        return _carry_out(one, name, family, threshold, half, aside, until, promise, **how)


def _carry_out(
    one: Partial,
    name: str,
    family: Portfolio | None,
    threshold: float | None,
    half: int,
    aside: int,
    until: sequential.Until | None,
    promise: dict[str, Any],
    *,
    batch: int | None,
    mesh: Mesh | None,
    checkpoint: str | os.PathLike[str] | None,
    progress: Callable[[int], None] | None,
) -> AuditResult:
    """Plays and concludes the audit of a trial ``one``, by the attack of this name or by a family, ``half`` of the
    trials in each world; ``promise`` is claim, delta and confidence."""
    aside = aside if threshold is None else 0
    watch = sequential.start(**promise, until=until, both_events=threshold is not None)
    whole = game(one, half, batch=batch, mesh=mesh)
    matters = {"threshold": threshold, "aside": aside}
    if until is not None:
        matters |= {"until": until, **promise}
    elif threshold is None:
        matters |= promise | {"claim": promise["claim"].terms if _is_curve(promise["claim"]) else None}
    file = checkpoint_of(checkpoint, whole.one, whole.traced, half, matters, mesh=mesh)
    account, watch = count.count(
        whole,
        watch,
        threshold=threshold,
        aside=aside,
        at_every_pair=until is not None,
        family=family,
        checkpoint=file,
        progress=progress,
    )
    rule, method, attacks = account.rule, name, ()
    if family is not None:
        attacks = family.tried(account.seen, account.order)
        method = f"{attacks[0].name}, chosen from {len(attacks)} attacks"
    if until is not None:
        method += f", threshold from the first {2 * aside} trials" if aside else ""
        settings = {"most": half - aside, "aside": aside, "threshold": rule.threshold}
        result = sequential.conclude(watch, method=method, **settings)
    else:
        method += ", threshold from the first quarter of the trials" if aside else ""
        false_positives, false_negatives, pairs = map(int, betting.error_counts(account.counts))
        result = from_counts(
            false_positives,
            false_negatives,
            pairs,
            pairs,
            method=method + _remark(account),
            trials=2 * half,
            threshold=rule.threshold,
            both_events=threshold is not None,
            **promise,
        )
    side = result.side if rule.above else "not above"
    result = dataclasses.replace(result, side=side, reason=_blind(account) or result.reason, attacks=attacks)
    if family is None or until is not None or result.claim is None or _is_curve(result.claim):
        return result
    return _with_detectable(result, result.claim, aside, normal=bool(account.normal))


def _with_detectable(result: AuditResult, claim: Claim, aside: int, *, normal: bool) -> AuditResult:
    """The result with what this attack would have seen of worse mechanisms, and why, if that is not even twice the
    claim."""
    settings = {"delta": result.delta, "confidence": result.confidence}
    if normal and result.delta > 0:
        worse = alternative.gaussian(aside, **settings)
    else:
        worse = alternative.event(result.fpr, result.fnr, delta=result.delta)
    counted = result.negatives, result.positives
    detectable = alternative.detectable(worse, claim.epsilon, *counted, **settings)
    reason = result.reason
    if reason is None and detectable > 2 * claim.epsilon:
        reason = (
            f"so many trials would not have shown a loss twice the claim four times in five, by {worse.name}: it "
            f"takes an ε of {detectable:.3g}"
        )
    return dataclasses.replace(result, detectable=detectable, reason=reason)


def _is_curve(claim: Claim | None) -> bool:
    return claim is not None and claim.is_curve


@jax.jit
def _keys(key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(the fit's key, the trials' key)."""
    fit_key, play_key = jax.random.split(key)
    return fit_key, trial_key(play_key)


def _same(x0: Any, x1: Any) -> bool:
    """Whether two inputs are one, number by number; of another type they are the same numbers still."""
    (one, structure), (other, its) = map(jax.tree.flatten, (x0, x1))
    return structure == its and all(map(_equal, one, other))


def _equal(one: Any, other: Any) -> bool:
    """Whether two arrays hold the same numbers; 0 and -0 are two."""
    one, other = np.asarray(one), np.asarray(other)
    return np.array_equal(one, other) and np.array_equal(np.signbit(one * 1.0), np.signbit(other * 1.0))


def _blind(account: count.Account) -> str | None:
    """Why an attack could show nothing, whatever the number of trials; None where it could."""
    if account.counts[betting.NONE] != account.counts.sum() and account.counts[betting.BOTH] != account.counts.sum():
        return None
    if (account.low == account.high).all() and account.low[0] == account.low[1]:
        return "all scores are equal: this attack saw nothing"
    return "the rule gave the same answer in all trials: this attack saw nothing"


def _remark(account: count.Account) -> str:
    """What a reader must know of scores that never vary within a world but differ between them."""
    if (account.low != account.high).any() or account.low[0] == account.low[1]:
        return ""
    return ", the same score in all trials of a world: if the mechanism is deterministic, its epsilon is infinite"
