"""Audits a mechanism on one pair of inputs, in one call."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from dpaudit import _validate
from dpaudit._engine import programs, sharding
from dpaudit._engine.checkpoint import Checkpoint, of_pilot
from dpaudit._engine.checkpoint import checkpoint as checkpoint_of
from dpaudit._engine.game import Game, both_worlds, game, trial_key
from dpaudit.auditing import count, estimators
from dpaudit.auditing.attacks import checked, distinguish
from dpaudit.auditing.attacks.choose import CHOOSING_SHARE, pairs_aside
from dpaudit.auditing.attacks.portfolio import PILOT_LEAST, Portfolio, pilot_pairs, portfolio
from dpaudit.auditing.bounds import sequential
from dpaudit.auditing.conclude import suitable
from dpaudit.auditing.estimators import Estimator
from dpaudit.auditing.finish import finished
from dpaudit.auditing.foresight import checked_reading, mechanism_like, play_alternative
from dpaudit.auditing.host import prepare
from dpaudit.auditing.host.mechanism import HostMechanism
from dpaudit.auditing.lint import probe
from dpaudit.auditing.result import AuditResult, checked_delta
from dpaudit.mechanisms.claim import Claim, Mechanism

# Small rates take many trials to estimate, but an obvious fault should be found early. So with early stopping, if the
# claim has a delta or is a curve, the rule is first chosen after a few pairs, or after twice the portfolio's pilot:
FIRST_CHOICE, EARLY_PILOT = 64, 128
AGAIN = 4  # and again after each fourfold increase


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
    """Measures how well the releases of two inputs can be told apart.

    Arguments, result and errors are those of :func:`dpaudit.audit`, which takes protocols as well.
    """
    half = _validate.at_least(2, trials=trials) // 2
    _validate.open_unit(confidence=confidence)
    key = _validate.key(key=key)
    if not isinstance(mechanism, Mechanism):
        if not callable(mechanism):
            raise _validate.expected("mechanism", "a Mechanism or a function of (key, x)", mechanism)
        mechanism = Mechanism(mechanism)
    claim = mechanism.claim if claim is None else claim
    kinds: dict[str, tuple[Any, type]] = {"claim": (claim, Claim), "mesh": (mesh, Mesh)}
    for name, (value, kind) in (kinds | {"distinguisher": (distinguisher, distinguish.Distinguisher)}).items():
        if not isinstance(value, kind | None):
            raise _validate.expected(name, f"a {kind.__name__} or None", value)
    if progress is not None and not callable(progress):
        raise _validate.expected("progress", "a function or None", progress)
    delta = checked_delta(delta, claim)
    on_host = isinstance(mechanism.apply, HostMechanism)
    if not on_host:
        x0, x1 = sharding.unplaced((x0, x1))
        _validate.finite(x0=x0)
        _validate.finite(x1=x1)
        probe.examine(mechanism, x0, x1)
    if prepare.same(x0, x1) if on_host else _same(x0, x1):
        raise _validate.expected(
            "x1", "an input other than x0 (nothing tells a pair of equal inputs apart)", "the same"
        )
    if not on_host and _same(*jax.tree.map(jnp.asarray, (x0, x1))):
        wanted = "an input other than x0 in the types of JAX, of 32 bits unless jax_enable_x64 is set"
        raise _validate.expected("x1", wanted, "one that differs in digits that these do not hold")
    listed = isinstance(attacks, Sequence) and not isinstance(attacks, distinguish.Distinguisher)
    if not listed or not all(isinstance(attack, distinguish.Distinguisher) for attack in attacks):
        raise _validate.expected("attacks", "a sequence of Distinguishers", attacks)
    if attacks and distinguisher is not None:
        raise _validate.expected("attacks", "none where a distinguisher is named", [attack.name for attack in attacks])
    estimator = fitting(estimator, claim, delta, until)
    checked_reading(reading, delta)
    worse = None if alternative is None else mechanism_like(alternative, mechanism, x0, on_host=on_host)
    if worse is not None and claim is None:
        raise _validate.expected("alternative", "None where no claim could be violated", alternative)
    aside = pairs_aside(half, claim, named=distinguisher is not None, stops=until is not None, on_host=on_host)
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
        other_key = None if worse is None else jax.random.fold_in(play_key, 1 << 31)  # trials have smaller numbers
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
                if worse is not None and other_key is not None:
                    trial = both_worlds(other_key, lambda key, world: worse.apply(key, (x0, x1)[world]), score)
                    other = game(trial, half, batch=batch, mesh=mesh)
            else:
                settings = {"delta": delta, "confidence": confidence, "batch": batch, "mesh": mesh}
                settings["checkpoint"] = None if checkpoint is None else of_pilot(checkpoint)
                family = portfolio(fit_key, play_key, *pair, attacks, half, aside=first, pilot=pilot, **settings)
                whole = family.game
                if worse is not None and other_key is not None:
                    other = family.like(worse.apply, other_key)
            kept = partial(_kept, checkpoint, whole)
        name = "" if distinguisher is None else distinguisher.name
        if threshold is not None:  # of a curve, its side and a bet
            cuts = _cuts(aside, FIRST_CHOICE) if until is not None and _is_curve(claim) else ()
        else:
            cuts = _cuts(aside, (2 * pilot or FIRST_CHOICE) if in_stages else aside)
        how = {"kept": kept, "progress": progress, "reading": reading}
        result = _carry_out(whole, name, family, threshold, half, cuts, until, estimator, promise, other=other, **how)
        return dataclasses.replace(result, reproducible=reproducible, low_bits=low_bits)


def _kept(checkpoint: str | os.PathLike[str] | None, whole: Game, matters: dict[str, Any]) -> Checkpoint | None:
    return checkpoint_of(checkpoint, whole.one, whole.traced, whole.trials, matters, mesh=whole.mesh)


def fitting(
    estimator: Estimator | None, claim: Claim | None, delta: float, until: sequential.Until | None = None
) -> Estimator:
    """Returns the estimator, after checking that it fits this audit.

    Raises:
      InputError: one that does not fit.
    """
    if until is not None and (not callable(until) or until in (sequential.violation, sequential.width)):
        raise _validate.expected("until", "a rule such as sequential.violation(), or None", until)
    if estimator is None:
        return estimators.clopper_pearson if until is None else estimators.betting_bounds
    suitable(estimator, claim, delta)
    if estimator.one_training:
        wanted = "one for independent trials (dpaudit.one_run reads the scores of one training)"
        raise _validate.expected("estimator", wanted, estimator.name)
    if until is not None and not estimator.anytime:
        wanted = f"one that holds at any time, such as {estimators.betting_bounds.name}, with until"
        raise _validate.expected("estimator", wanted, estimator.name)
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


@programs.quickly
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
