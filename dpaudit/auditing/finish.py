"""Draws the result of an audit from what was counted."""

import dataclasses
from typing import Any

import numpy as np

from dpaudit.auditing.attacks.choose import CHOOSING_SHARE
from dpaudit.auditing.attacks.portfolio import Family
from dpaudit.auditing.bounds import normality, sequential
from dpaudit.auditing.conclude import from_band, from_counts, one_answer
from dpaudit.auditing.count import Account
from dpaudit.auditing.estimators import Estimator
from dpaudit.auditing.foresight import Expected, with_foresight, with_reading
from dpaudit.auditing.part_seen import unseen
from dpaudit.auditing.result import AuditResult


def finished(
    account: Account,
    watch: sequential.Watch,
    name: str,
    family: Family | None,
    *,
    threshold: float | None,
    trials: tuple[int, int],
    estimator: Estimator,
    promise: dict[str, Any],
    reading: str | None,
    stops: bool = False,
    expected: Expected | None = None,
) -> AuditResult:
    """Draws the result from what was counted.

    Args:
      account, watch: after the last trial.
      name: of the attack; of a family, the chosen one is named.
      family: of which one was chosen, or None.
      threshold: fixed in advance, or None.
      trials: of both worlds, if the audit is not stopped.
      estimator: of the bounds.
      promise: claim, delta and confidence.
      reading: as for :func:`audit`.
      stops: whether the audit may stop before all trials are played.
      expected: what was seen of an alternative; None without one.
    """
    rule, method, attacks, aside = account.rule, name, (), int(account.chosen)
    keep_scores, pairs = estimator.simultaneous is not None, min(trials) - aside
    if family is not None:
        attacks = family.tried(account.seen, account.order)
        method = f"{attacks[0].name}, chosen from {len(attacks)} attacks"
    part = "first quarter of the trials"
    if trials[0] != trials[1]:
        part = f"first {aside} trials of each world"
    elif stops or aside < trials[0] // CHOOSING_SHARE:
        part = f"first {2 * aside} trials"
    if aside and not keep_scores:
        method += f", {'side and bet' if threshold is not None else 'threshold'} from the {part}"
    if keep_scores:
        scores = [np.where(np.isnan(kept), np.inf, kept) for kept in account.kept]
        scores = scores if rule.above else [-own for own in scores]
        account = account._replace(
            normal=normality.looks_normal(np.stack([own[:pairs] for own in scores]), peaked=watch.delta == 0)
        )
        result = from_band(scores, method=method, estimator=estimator, trials=sum(trials), **promise)
        if not rule.above:  # world 1 where -score > t: not score > the number below -t
            assert result.threshold is not None
            result = dataclasses.replace(result, threshold=float(np.nextafter(-result.threshold, -np.inf)))
    elif estimator.anytime:
        settings = {"most": pairs, "aside": aside, "threshold": rule.threshold, "beside": account.wrong}
        result = sequential.conclude(watch, method=method, **settings)
    else:
        result = from_counts(
            *account.errors,
            method=method + _remark(account),
            trials=sum(trials),
            threshold=rule.threshold,
            both_events=watch.both_events,
            perfect=family is None,
            estimator=estimator,
            beside=account.wrong,
            **promise,
        )
    side = result.side if rule.above else "not above"
    reason = _blind(account, of_rule=not keep_scores) or result.reason
    result = dataclasses.replace(result, side=side, reason=reason, attacks=attacks, normal=bool(account.normal))
    bounds = sequential.rate_bounds(watch) if estimator.anytime else estimator.rate
    result = with_reading(result, reading, account.wrong, bounds)
    claim, named = result.claim, family is None and not keep_scores
    if watch.stopped and not watch.violation:  # by a rule that stops faulty and sound mechanisms alike
        pairs = watch.pairs
    if claim is None or (expected is None and named):
        return unseen(result)
    return with_foresight(result, claim, aside=aside, pairs=pairs, estimator=estimator, watch=watch, expected=expected)


def _blind(account: Account, *, of_rule: bool) -> str | None:
    """Says why the attack shows nothing, or None if it shows something. Without ``of_rule``, scores that vary are
    enough."""
    if not of_rule and ((account.low != account.high).any() or account.low[0] != account.low[1]):
        return None
    same = one_answer(*account.errors)
    if same and (account.low == account.high).all() and account.low[0] == account.low[1]:
        return "all scores are equal: this attack saw nothing"
    return same


def _remark(account: Account) -> str:
    """Returns a remark on scores that never vary within a world but differ between the worlds."""
    if (account.low != account.high).any() or account.low[0] == account.low[1]:
        return ""
    return ", the same score in all trials of a world: if the mechanism is deterministic, its epsilon is infinite"
