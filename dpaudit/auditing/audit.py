"""Audits a mechanism on one pair of inputs, in one call."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from dpaudit import _validate
from dpaudit._engine.checkpoint import Checkpoint, of_pilot
from dpaudit._engine.checkpoint import checkpoint as checkpoint_of
from dpaudit._engine.game import Game, both_worlds, game, trial_key
from dpaudit.auditing import count, estimators
from dpaudit.auditing.attacks import checked, distinguish
from dpaudit.auditing.attacks.portfolio import PILOT_LEAST, Portfolio, pilot_pairs, portfolio
from dpaudit.auditing.bounds import sequential
from dpaudit.auditing.conclude import carries_verdict
from dpaudit.auditing.estimators import Estimator
from dpaudit.auditing.finish import CHOOSING_SHARE, finished
from dpaudit.auditing.foresight import checked_reading, mechanism_like, play_alternative
from dpaudit.auditing.host import prepare
from dpaudit.auditing.host.mechanism import HostMechanism
from dpaudit.auditing.lint import probe
from dpaudit.auditing.result import AuditResult, checked_delta
from dpaudit.mechanisms.claim import Claim, Mechanism

CHOOSING_LEAST, CHOOSING_ERRORS = 500, 10  # with early stopping: pairs, and expected errors at the claim
# Small rates take many trials to estimate, but an obvious fault should be found early. So with early stopping, if the
# claim has a delta or is a curve, the rule is first chosen after a few pairs, or after twice the portfolio's pilot:
FIRST_CHOICE, EARLY_PILOT = 64, 128
AGAIN = 4  # and again after each fourfold increase
CURVE_PAIRS = 4_000  # set aside at most with early stopping against a curve, which determines no rate to estimate


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
    estimator: Estimator | None = None,
    alternative: Mechanism | Callable[[jax.Array, Any], Any] | None = None,
    reading: str | None = None,
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
      trials: K of Algorithm 3: the total, half of it in each world (an odd one is not played).
      claim: the promise; defaults to the mechanism's own.
      distinguisher: a single attack to use. None runs a family of attacks on the same releases and chooses one on the
        trials set aside (see :mod:`dpaudit.auditing.attacks.portfolio`), at no cost in confidence. With fewer than
        256 trials: the likelihood ratio if the mechanism has a density, else the projection on x1 - x0.
      attacks: your own attacks, in addition to the family; not with a distinguisher.
      delta: of every epsilon; defaults to the claim's, else 0.
      confidence: of each bound.
      until: when to stop before all ``trials`` are played: ``sequential.violation()``, ``sequential.width(0.2)`` or a
        rule of your own. All bounds then hold at all times together. None runs all trials.
      estimator: how the bounds are computed (:mod:`dpaudit.estimators`): Clopper-Pearson by default, betting with
        ``until``. A band sets no trials aside if a distinguisher is named, takes larger scores to mean x1, and works
        neither with ``until`` nor with a curve. Estimators with a caveat are for audits without a claim.
      alternative: a worse mechanism, for example the same one with 0.8 of the noise: ``power`` is then the probability
        that this audit would have called it a violation, and ``detectable`` is extrapolated from it. It is attacked
        in the same way on separate trials, which are not counted; needs a claim.
      reading: "gaussian" adds to the result the epsilon that follows if the trade-off curve is Gaussian, from the most
        accurate rule; no verdict rests on it. For Gaussian noise, trials can hardly test a claim of one (epsilon,
        delta) with a tiny delta; prefer a claim that is the accountant's curve.
      batch: trials of each world sent to each device at a time, rounded up to whole blocks. The result depends
        neither on it nor on the mesh or an interruption.
      mesh: a device mesh, possibly of several processes (``jax.distributed``), over which the trials are split: each
        process makes the same call and gets the same result. None for one device.
      checkpoint: a file that stores the counts after each call to the devices, from which the same audit resumes, on
        any devices. A file of another audit is refused, except that your own rule for ``until`` is compared only by
        its name. Of several processes, the first one writes the file. With a family of attacks, ``FILE.pilot`` beside
        it stores the releases that they were fitted on.
      progress: called with the number of trials played so far, of both worlds, first with those of the checkpoint.

    Returns:
      An :class:`AuditResult`. If the threshold is chosen, a quarter of the trials is used for that and not counted.
      With ``until``, no more are used than it takes to estimate error rates as small as the claim's, and the threshold
      is chosen again as trials accumulate (:func:`dpaudit.auditing.bounds.sequential.next_stage`).

    Raises:
      InputError: a value out of range, an estimator or an alternative that does not fit, a release that is not a
        number, a checkpoint that is damaged or belongs to another audit, and what :func:`probe.examine` refuses: a
        mechanism that raises, cannot be traced, ignores its key or gives x0 and x1 releases of different shape.

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
    on_host = isinstance(mechanism.apply, HostMechanism)
    if not on_host:
        _validate.finite(x0=x0)
        _validate.finite(x1=x1)
        probe.examine(mechanism, x0, x1)
    if prepare.same(x0, x1) if on_host else _same(x0, x1):
        raise _validate.expected(
            "x1", "an input other than x0 (nothing tells a pair of equal inputs apart)", "the same"
        )
    for attack in attacks:
        if not isinstance(attack, distinguish.Distinguisher):
            raise _validate.expected("attacks", "Distinguishers", attack)
    if attacks and distinguisher is not None:
        raise _validate.expected("attacks", "none where a distinguisher is named", [attack.name for attack in attacks])
    estimator = fitting(estimator, claim, until)
    checked_reading(reading, delta)
    worse = None if alternative is None else mechanism_like(alternative, mechanism, x0, on_host=on_host)
    if worse is not None and claim is None:
        raise _validate.expected("alternative", "None where no claim could be violated", alternative)
    aside = min(half // CHOOSING_SHARE, prepare.ASIDE_MOST) if on_host else half // CHOOSING_SHARE
    if until is not None and _is_curve(claim):
        aside = min(aside, CURVE_PAIRS)
    elif until is not None and claim is not None:
        rarest = min(np.exp(-claim.epsilon), np.sqrt(claim.delta) or 1.0)
        least = CHOOSING_LEAST + CHOOSING_ERRORS / rarest
        aside = int(min(aside, least if distinguisher is not None else 2 * least))
    in_stages = until is not None and claim is not None and (claim.is_curve or claim.delta > 0)
    first = min(aside, 2 * EARLY_PILOT) if in_stages else aside
    pilot = pilot_pairs(mechanism, x0, first) if distinguisher is None and not on_host else 0
    if distinguisher is None and pilot < PILOT_LEAST and not attacks and not on_host:
        distinguisher = distinguish.projection if mechanism.log_prob is None else distinguish.likelihood_ratio
    if distinguisher is not None and distinguisher.threshold is None and half < CHOOSING_SHARE:
        raise _validate.expected("trials", f"at least {2 * CHOOSING_SHARE} where a threshold is chosen", trials)
    with probe.failures_named(mechanism), contextlib.ExitStack() as stack:
        if until is not None and batch is None and not on_host:
            batch = 1
        promise = {"claim": claim, "delta": delta, "confidence": float(confidence)}
        fit_key, play_key = _keys(key)
        other_key = jax.random.fold_in(play_key, 1 << 31)  # trials have smaller numbers
        pair, threshold, reproducible, low_bits = (mechanism, x0, x1), None, True, None
        if distinguisher is not None:
            threshold = distinguisher.threshold
            if estimator.simultaneous is not None:
                aside = 0
        if on_host:
            terms = prepare.Terms(half, first, until is not None, delta, float(confidence), batch, checkpoint)
            how = {"distinguisher": distinguisher, "attacks": attacks, "worse": worse, "terms": terms}
            whole, family, other, pilot, reproducible, low_bits, kept = stack.enter_context(
                prepare.prepared(*pair, fit_key, play_key, other_key, **how)
            )
        else:
            family, other = None, None
            if distinguisher is not None:
                score = checked.fitted("distinguisher", distinguisher, fit_key, *pair)
                one = both_worlds(play_key, lambda key, world: mechanism.apply(key, (x0, x1)[world]), score)
                whole = game(one, half, batch=batch, mesh=mesh)
                if worse is not None:
                    trial = both_worlds(other_key, lambda key, world: worse.apply(key, (x0, x1)[world]), score)
                    other = game(trial, half, batch=batch, mesh=mesh)
            else:
                settings = {"delta": delta, "confidence": confidence, "batch": batch, "mesh": mesh}
                settings["checkpoint"] = None if checkpoint is None else of_pilot(checkpoint)
                family = portfolio(fit_key, play_key, *pair, attacks, half, aside=first, pilot=pilot, **settings)
                whole = family.game
                if worse is not None:
                    other = family.like(worse.apply, other_key)
            kept = partial(_kept, checkpoint, whole)
        name = "" if distinguisher is None else distinguisher.name
        if threshold is not None:  # of a curve, its side and a bet
            cuts = (min(aside, FIRST_CHOICE),) if until is not None and _is_curve(claim) and aside else ()
        else:
            cuts = _cuts(aside, (2 * pilot or FIRST_CHOICE) if in_stages else aside)
        how = {"kept": kept, "progress": progress, "reading": reading}
        result = _carry_out(whole, name, family, threshold, half, cuts, until, estimator, promise, other=other, **how)
        return dataclasses.replace(result, reproducible=reproducible, low_bits=low_bits)


def _kept(checkpoint: str | os.PathLike[str] | None, whole: Game, matters: dict[str, Any]) -> Checkpoint | None:
    return checkpoint_of(checkpoint, whole.one, whole.traced, whole.trials, matters, mesh=whole.mesh)


def fitting(estimator: Estimator | None, claim: Claim | None, until: sequential.Until | None = None) -> Estimator:
    """Returns the estimator, after checking that it fits this audit.

    Raises:
      InputError: one that does not fit.
    """
    if until is not None and not callable(until):
        raise _validate.expected("until", "a rule such as sequential.violation(), or None", until)
    if estimator is None:
        return estimators.clopper_pearson if until is None else estimators.betting_bounds
    if not isinstance(estimator, Estimator):
        raise _validate.expected(
            "estimator", "an Estimator, such as dpaudit.estimators.equal_level, or None", estimator
        )
    if estimator.one_training:
        wanted = "one for independent trials (dpaudit.one_run reads the scores of one training)"
        raise _validate.expected("estimator", wanted, estimator.name)
    if until is not None and not estimator.anytime:
        wanted = f"one that holds at any time, such as {estimators.betting_bounds.name}, with until"
        raise _validate.expected("estimator", wanted, estimator.name)
    carries_verdict(estimator, claim)
    if _is_curve(claim) and until is None and estimator is not estimators.clopper_pearson:
        wanted = f"{estimators.clopper_pearson.name} where the claim is a curve and every trial is played"
        raise _validate.expected("estimator", wanted, estimator.name)
    return estimator


def _cuts(aside: int, first: int) -> tuple[int, ...]:
    """Returns the numbers of pairs after which the rule is chosen anew, each time on all pairs so far."""
    cuts = []
    while 0 < 2 * first <= aside:
        cuts.append(first)
        first *= AGAIN
    return (*cuts, aside) if aside else ()


def _carry_out(
    whole: Any,
    name: str,
    family: Portfolio | None,
    threshold: float | None,
    half: int,
    cuts: tuple[int, ...],
    until: sequential.Until | None,
    estimator: Estimator,
    promise: dict[str, Any],
    *,
    other: Any,
    reading: str | None,
    kept: Callable[[dict[str, Any]], Checkpoint | None],
    progress: Callable[[int], None] | None,
) -> AuditResult:
    """Runs and concludes the audit of a game, with the named attack or a family, and ``half`` of the trials in each
    world; ``promise`` holds claim, delta and confidence, ``other`` is a game of the alternative, ``kept`` makes the
    checkpoint."""
    both_events, keep_scores = threshold is not None and not cuts, estimator.simultaneous is not None
    stages = 1 if until is None else max(1, len(cuts))
    watch = sequential.start(**promise, until=until, both_events=both_events, stages=stages)
    matters = {"threshold": threshold, "cuts": cuts, "scores": keep_scores}
    if family is not None:
        matters["family"] = family.attacks.digest
    terms = {"claim": promise["claim"].terms} if _is_curve(promise["claim"]) else {}
    if until is not None:
        matters |= {"until": until, **promise, **terms}
    elif threshold is None:
        matters |= promise | terms
    account, watch = count.count(
        whole,
        watch,
        threshold=threshold,
        cuts=cuts,
        at_every_pair=until is not None,
        keep_scores=keep_scores,
        family=family,
        checkpoint=kept(matters),
        progress=progress,
    )
    expected = None
    if other is not None:
        expected = play_alternative(other, half, int(account.order[0]), watch=watch, threshold=threshold)
    return finished(
        account,
        watch,
        name,
        None if family is None else family.attacks,
        threshold=threshold,
        trials=(half, half),
        stops=until is not None,
        estimator=estimator,
        promise=promise,
        reading=reading,
        expected=expected,
    )


def _is_curve(claim: Claim | None) -> bool:
    return claim is not None and claim.is_curve


@jax.jit
def _keys(key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Splits the key into (the key of the fit, the key of the trials)."""
    fit_key, play_key = jax.random.split(key)
    return fit_key, trial_key(play_key)


def _same(x0: Any, x1: Any) -> bool:
    """Tells whether two inputs hold the same numbers, whatever their types."""
    (one, structure), (other, its) = map(jax.tree.flatten, (x0, x1))
    return structure == its and all(map(_equal, one, other))


def _equal(one: Any, other: Any) -> bool:
    """Tells whether two arrays hold the same numbers; 0 and -0 differ."""
    one, other = np.asarray(one), np.asarray(other)
    return np.array_equal(one, other) and np.array_equal(np.signbit(one * 1.0), np.signbit(other * 1.0))
