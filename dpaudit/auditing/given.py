"""Audits scores or releases that were obtained elsewhere, by the rules of :func:`dpaudit.audit`.

Scores or releases of two worlds must be given in the order in which they were drawn, independently: the first
min(n0, n1) // 4 of each world are set aside to choose the rule and are not counted, all others are counted. If nothing
is chosen (a threshold fixed in advance, or a band, which holds for all thresholds together) all are counted.
:func:`one_run` audits one training with many canaries, each included by its own coin, from one score for each.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from dpaudit import _validate
from dpaudit.auditing import estimators, read
from dpaudit.auditing.attacks import scoring
from dpaudit.auditing.attacks.choose import CHOOSING_SHARE
from dpaudit.auditing.attacks.portfolio import PILOT_BYTES, PILOT_LEAST, PILOT_MOST, Family, family
from dpaudit.auditing.audit import fitting
from dpaudit.auditing.bounds import one_run as guesses
from dpaudit.auditing.bounds import sequential
from dpaudit.auditing.count import Account, fresh, looks
from dpaudit.auditing.estimators import Estimator
from dpaudit.auditing.finish import finished
from dpaudit.auditing.foresight import checked_reading
from dpaudit.auditing.one_training import underpowered
from dpaudit.auditing.ranks import rank
from dpaudit.auditing.result import UNSTATED, AuditResult, checked_delta
from dpaudit.mechanisms.claim import Claim

Worlds = tuple[np.ndarray, np.ndarray]
LEAST = 2 * PILOT_LEAST * CHOOSING_SHARE  # releases of a world


def from_scores(
    scores0: Any,
    scores1: Any,
    *,
    claim: Claim | None = None,
    threshold: float | None = None,
    delta: float | None = None,
    confidence: float = 0.95,
    estimator: Estimator | None = None,
    reading: str | None = None,
    method: str = "given scores",
) -> AuditResult:
    """Bounds epsilon from below by the scores that an attack gave to independent trials of both worlds.

        result = dpaudit.from_scores(scores0, scores1, claim=dpaudit.Claim(1.0))

    A bound at a threshold that was chosen on the counted scores would not hold. So the first min(n0, n1) // 4 scores
    of each world choose the threshold and its side, and the others are counted. The attack itself must not have been
    fitted on these trials.

    Args:
      scores0, scores1: [n0] and [n1], of trials in world 0 and in world 1, in the order in which they were drawn. They
        may differ in number, except for betting, which plays pairs.
      claim: the promise, or None.
      threshold: of the rule "world 1 where score > threshold", if it was fixed before these scores were seen: all are
        then counted, and both the rule and its opposite are tested. None chooses it.
      delta, confidence, estimator, reading: as for :func:`dpaudit.audit`. A band counts all scores, takes larger ones
        to mean world 1, and takes no threshold.
      method: how the scores were made, for tables.

    Returns:
      An :class:`AuditResult`.

    Raises:
      InputError: scores that are not finite or infinite numbers, too few, or sorted; a value out of range; an
        estimator that does not fit.
    """
    rows = read.row(scores0=scores0), read.row(scores1=scores1)
    if not any(np.isfinite(row).any() for row in rows):
        raise _validate.expected("scores0", "a finite number in either world", f"{len(rows[0])} infinite scores")
    terms = _terms(claim, delta, confidence, estimator, reading)
    aside = 0
    if threshold is not None:
        _validate.real(threshold=threshold)
        if terms["estimator"].simultaneous is not None:
            raise _validate.expected("threshold", "None with a band, which holds for all thresholds", threshold)
    elif terms["estimator"].simultaneous is None:
        aside = min(map(len, rows)) // CHOOSING_SHARE
        for name, row in zip(("scores0", "scores1"), rows, strict=True):
            if len(row) < CHOOSING_SHARE:
                raise _validate.expected(name, f"at least {CHOOSING_SHARE} where a threshold is chosen", len(row))
            read.refuse_sorted(name, row)
    early = np.stack([row[:aside, None] for row in rows])
    return _concluded(early, lambda _: (rows[0][aside:], rows[1][aside:]), threshold, method, None, **terms)


def from_samples(
    samples0: Any,
    samples1: Any,
    *,
    claim: Claim | None = None,
    delta: float | None = None,
    confidence: float = 0.95,
    estimator: Estimator | None = None,
    reading: str | None = None,
) -> AuditResult:
    """Bounds epsilon from below by releases of two inputs, played by anything, with the family of attacks.

    The first min(n0, n1) // 4 releases of each world fit the attacks and choose one with its rule
    (:mod:`dpaudit.auditing.attacks.portfolio`); the others are counted. Numbers are read in their own type, float64
    and 64-bit integers included; of other releases, what to read is learned on the first ones, too.

    Args:
      samples0, samples1: n0 and n1 independent releases of world 0 and of world 1 in the order in which they were
        drawn: arrays [n, ...] or dictionaries of them, lists of numbers or of arrays of one shape, or lists of
        anything else that Python can hold, such as strings, sets, dictionaries and rows of any length.
      claim, delta, confidence, estimator, reading: as for :func:`from_scores`.

    Returns:
      An :class:`AuditResult`; its ``attacks`` are all that were tried.

    Raises:
      InputError: releases that cannot be read, arrays of different shapes, too few or sorted ones; a value out of
        range; an estimator that does not fit.
    """
    terms = _terms(claim, delta, confidence, estimator, reading)
    given = {"samples0": samples0, "samples1": samples1}
    of_numbers = all(map(read.is_numbers, given.values())) and read.of_one_type(given)
    if of_numbers and isinstance(samples0, list) and isinstance(samples1, list):  # rows that differ in length alone
        of_numbers = np.shape(samples0[:1]) == np.shape(samples1[:1])
    counts, listed = read.counted(given, of_numbers=of_numbers)
    aside = min(counts) // CHOOSING_SHARE
    if aside // 2 < PILOT_LEAST:
        wanted = f"at least {LEAST} releases of each world, of which a quarter choose"
        raise _validate.expected("samples0" if counts[0] <= counts[1] else "samples1", wanted, min(counts))
    worlds, rename = (read.arrays(given), None) if of_numbers else read.encoded(listed, min(aside // 2, PILOT_MOST))
    size = scoring.size(scoring.layout([leaf[0] for leaf in worlds[0]]))
    pilot = min(aside // 2, PILOT_MOST, max(PILOT_LEAST, PILOT_BYTES // (8 * size)))
    if (len(worlds[0]) == 1 or not of_numbers) and worlds[0][0][0].size == 1:
        for name, (leaf, *_) in zip(("samples0", "samples1"), worlds, strict=True):
            read.refuse_sorted(name, leaf.reshape(-1))
    how: dict[str, Any] = {name: terms["promise"][name] for name in ("delta", "confidence")} | {"rename": rename}
    attacks = family([np.stack([a[:pilot], b[:pilot]]) for a, b in zip(*worlds, strict=True)], pilot=pilot, **how)
    everything = np.ones(scoring.OTHERS, bool)
    firsts = [[leaf[:aside] for leaf in leaves] for leaves in worlds]
    early = np.stack([scoring.of_releases(leaves, attacks.arrays, everything) for leaves in firsts])

    def rest(number: int) -> Worlds:
        wanted = attacks.needs(number)[: scoring.OTHERS]
        first, second = (
            scoring.of_releases([leaf[aside:] for leaf in leaves], attacks.arrays, wanted, number) for leaves in worlds
        )
        return first, second

    return _concluded(early, rest, None, "", attacks, **terms)


def _concluded(
    early: np.ndarray,
    rest: Callable[[int], Worlds],
    threshold: float | None,
    name: str,
    attacks: Family | None,
    *,
    promise: dict[str, Any],
    estimator: Estimator,
    reading: str | None,
) -> AuditResult:
    """Chooses on the scores set aside, [2, aside, scores], counts the rest, and draws the result.

    Args:
      rest: the counted values of the score of a number.
      threshold: fixed in advance, or None.
      name: of the attack, where there is no family.
      attacks: of which one is chosen, or None.
      promise: claim, delta and confidence.
      estimator, reading: of the bounds.
    """
    aside = early.shape[1]
    watch = sequential.start(**promise, both_events=threshold is not None)
    account = fresh(watch, early.shape[2], undecided=aside > 0, threshold=threshold)
    if aside:
        account, _ = looks(account._replace(early=early), watch=watch, family=attacks, threshold=threshold, bets=False)
    own = rest(int(account.order[0]))
    if estimator.anytime and len(own[0]) != len(own[1]):
        wanted = f"one that needs no pairs where the worlds have {len(own[0])} and {len(own[1])} counted trials"
        raise _validate.expected("estimator", wanted, estimator.name)
    account = _counted(account, own)
    if estimator.simultaneous is not None:
        account = account._replace(kept=own)
    trials = len(own[0]) + aside, len(own[1]) + aside
    watch = watch._replace(counts=account.counts)
    how: dict[str, Any] = {"estimator": estimator, "promise": promise, "reading": reading}
    return finished(account, watch, name, attacks, threshold=threshold, trials=trials, **how)


def _counted(account: Account, own: Worlds) -> Account:
    """Returns the account after the values of the score that decides, of both worlds."""
    rule, pairs = account.rule, min(map(len, own))
    guesses = [((row > rule.threshold) | np.isnan(row)) == rule.above for row in own]
    outcomes = guesses[0][:pairs] + 2 * guesses[1][:pairs]
    wrong, missed = int(guesses[0][pairs:].sum()), int((~guesses[1][pairs:]).sum())
    beyond = [[int(((row > bar) | np.isnan(row)).sum()) for row in own] for bar in account.bars]
    ranks = [rank(row) for row in own]
    return account._replace(
        done=pairs,
        counts=np.bincount(outcomes, minlength=4),
        unpaired=np.array([wrong, missed, *(len(row) - pairs for row in own)]),
        beside=np.array(beyond, np.int64).reshape(-1, 2),
        low=np.array([row.min() for row in ranks]),
        high=np.array([row.max() for row in ranks]),
    )


def _terms(
    claim: Claim | None, delta: float | None, confidence: float, estimator: Estimator | None, reading: str | None
) -> dict[str, Any]:
    """Checks the settings of the audit's conclusion, and returns them."""
    delta = checked_delta(delta, claim)
    checked_reading(reading, delta)
    promise = {"claim": claim, "delta": delta, "confidence": float(_validate.open_unit(confidence=confidence))}
    return {"promise": promise, "estimator": fitting(estimator, claim, delta), "reading": reading}


def one_run(
    scores: Any, included: Any, *, claim: Claim | None = None, delta: float | None = None, confidence: float = 0.95
) -> AuditResult:
    """Bounds the epsilon of one training from below, by how well its canaries' scores reveal which were included.

    Args:
      scores: [m], one for each canary, from the training's output alone; larger means "was included".
      included: [m] booleans, from independent coins with probability 1/2.
      claim: the promise, of adding or removing one record; None to measure without one.
      delta: of epsilon; defaults to the claim's, else 0.
      confidence: of the bound.

    Returns:
      An :class:`AuditResult`. Its trials are the canaries, its rates and accuracy those of guessing the half with the
      larger scores; epsilon_upper is infinite, because one training gives no upper bound, and nothing else is
      certified. It is underpowered where the included canaries are not told from the others
      (:mod:`dpaudit.auditing.one_training`).

    Raises:
      InputError: scores that are not numbers, coins that are not fair, a claim that is a curve or about replacing,
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
    settings: dict[str, Any] = {"delta": delta, "confidence": float(_validate.open_unit(confidence=confidence))}
    counted = estimators.of_one_training(scores, included)
    lower, upper = estimators.one_run.bounds(counted, **settings)
    m = len(scores)
    plans = [guesses.Plan(max(1, m // share), max(1, m // share)) for share in estimators.GUESSES]
    ceiling = guesses.ceiling(m, plans, **settings)
    fpr, fnr = counted.false_positives / counted.negatives, counted.false_negatives / counted.positives
    shares = [int(guesses.count_correct(scores, included, plan)) / sum(plan) for plan in plans]
    most = max(shares)
    promised = None if claim is None else claim.epsilon
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
        reason=underpowered(scores, included, plans, lower=lower, epsilon=promised, **settings),
        **settings,
    )
