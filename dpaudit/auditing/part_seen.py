"""Tells what part of the promised loss an attack is shown to see.

An attack that attains little of a promise leaves open whether the mechanism loses as little or the attack is blind to
what it loses.
"""

import dataclasses

import numpy as np

from dpaudit.auditing.bounds.estimate import epsilon_from_rates
from dpaudit.auditing.result import AuditResult, Band
from dpaudit.mechanisms.claim import Claim

HARDLY = 0.1  # of the claim, below which an attack sees next to nothing
SLIGHT = 0.01  # of what the claim allows, which counts as nothing
UNKNOWN = "the mechanism loses little, or its loss is not seen: the same attack on one with a known loss tells which"


def sees_a_part(result: AuditResult) -> bool:
    """Tells whether the attack attains less than half of the claimed epsilon, with the confidence of the result."""
    claim = result.claim
    return claim is not None and not claim.is_curve and 2 * most_attained(result) < claim.epsilon


def sees_hardly_anything(result: AuditResult) -> bool:
    """Tells whether the attack is not shown to see any loss, or attains less than a tenth of the claim: it may as well
    be blind to what the mechanism loses, such as a rare outcome among many."""
    claim = result.claim
    return claim is not None and (not tells_apart(result) or most_attained(result) < HARDLY * claim.epsilon)


def tells_apart(result: AuditResult) -> bool:
    """Tells whether some rule or its opposite is better than chance, with the confidence of the result, by more than a
    hundredth of the epsilon or of the advantage that the claim allows. At a delta it may show no epsilon."""
    claim = result.claim
    if claim is None:
        return result.epsilon_lower > 0
    slight = SLIGHT * _allowed(claim)
    if result.epsilon_lower > (0 if claim.is_curve else SLIGHT * claim.epsilon):
        return True
    if result.certified is not None and result.certified.advantage.lower > slight:
        return True
    if result.band is None:
        return False
    least, most = _errors(result.band)
    return bool((1 - most > slight).any() or (least - 1 > slight).any())


def most_part(result: AuditResult) -> float:
    """Returns the part of a claimed (epsilon, delta) that the attack may attain, in [0, 1]. Where it does not tell the
    worlds apart, also of the advantage that the claim allows: a rare event has wide bounds."""
    assert result.claim is not None
    part = min(1.0, most_attained(result) / result.claim.epsilon)
    return part if tells_apart(result) else min(part, _most_advantage(result) / _allowed(result.claim))


def _allowed(claim: Claim) -> float:
    """Returns the largest advantage, 1 - FPR - FNR, that a claim allows."""
    fpr = np.linspace(0.0, 1.0, 1_001)
    return float((1 - fpr - np.asarray(claim.fnr(fpr))).max())


def _errors(band: Band) -> tuple[np.ndarray, np.ndarray]:
    """Returns bounds of FPR + FNR of every threshold, [t] each."""
    return np.add(band.fpr_low, band.fnr_low), np.add(band.fpr_high, band.fnr_high)


def most_attained(result: AuditResult) -> float:
    """Returns the upper bound on what the attack attains; of a band, whose bound over all thresholds is infinite, that
    of the threshold with the largest lower bound."""
    if np.isfinite(result.epsilon_upper) or result.band is None:
        return result.epsilon_upper
    seen = result.band
    lower = epsilon_from_rates(np.array(seen.fpr_high), np.array(seen.fnr_high), result.delta)
    best = int(np.argmax(lower) if lower.max() > 0 else np.argmin(np.add(seen.fpr, seen.fnr)))
    return float(epsilon_from_rates(seen.fpr_low[best], seen.fnr_low[best], result.delta))


def unseen(result: AuditResult) -> AuditResult:
    """Adds the reason for an underpowered audit where no rule is shown to be right more often than chance, and none
    attains half of the claimed epsilon, or of the advantage, 1 - FPR - FNR, that a curve allows."""
    claim = result.claim
    if claim is None or result.verdict != "consistent" or tells_apart(result):
        return result
    little = 2 * _most_advantage(result) < _allowed(claim) if claim.is_curve else sees_a_part(result)
    return dataclasses.replace(result, reason=f"{little_seen(result)}; {UNKNOWN}") if little else result


def _most_advantage(result: AuditResult) -> float:
    """Returns an upper bound on the advantage, 1 - FPR - FNR, of all thresholds that were looked at and of their
    opposites."""
    if result.band is not None:
        least, most = _errors(result.band)
        return float(max((1 - least).max(), (most - 1).max()))
    return 1.0 if result.certified is None else result.certified.advantage.upper


def little_seen(result: AuditResult) -> str:
    """Says how little an attack saw."""
    if not tells_apart(result) or result.claim is None:
        return "the two inputs were not told apart"
    return f"the attack attains {most_attained(result) / result.claim.epsilon:.2g} of the claim at most"
