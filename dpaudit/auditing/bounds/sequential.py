"""Audits that may stop at any time: a state, its update with the next trials, and the rules by which to stop.

    watch = sequential.start(claim, confidence=0.999)
    watch = sequential.update(watch, guesses0, guesses1)     # as often as one likes, with as many trials as one likes
    watch.violation, watch.epsilon_lower, watch.epsilon_upper

All statements hold at every time at once, so looking after each trial and stopping because of what was seen is
allowed. What a sequence of trials leads to does not depend on how it was cut into updates.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dpaudit import _validate
from dpaudit.auditing.bounds import betting, plan
from dpaudit.auditing.bounds.estimate import epsilon_from_rates
from dpaudit.auditing.result import UNSTATED, AuditResult, checked_delta, shown, too_few
from dpaudit.mechanisms.claim import Claim

LOOK_EVERY = 64  # pairs between two looks at the width of the bounds
GAP_WITHOUT_CLAIM = 1.0

Until = Callable[["Watch", np.ndarray], np.ndarray]


class Watch(NamedTuple):
    """What is known after some trials; every epsilon in nats.

    Attributes:
      claim: the promise, or None.
      delta: of every epsilon here.
      confidence: of each bound, for all times together.
      until: ``until(watch, counts [n, 4]) -> [n]``, true where to stop, for the counts after each pair.
      counts: of the outcomes of pairs so far, [4], as :func:`betting.outcomes` numbers them.
      stopped: the rule was met; later trials are not looked at.
      both_events: the guesses and their opposites are two tests, each with half of the error.
    """

    claim: Claim | None
    delta: float
    confidence: float
    until: Until
    counts: np.ndarray
    stopped: bool = False
    both_events: bool = False

    @property
    def pairs(self) -> int:
        """Trials of each world."""
        return int(self.counts.sum())

    @property
    def violation(self) -> bool:
        """The claim is refuted: of honest mechanisms, at most a share 1 - confidence is ever accused."""
        return self.claim is not None and bool(_refuted(self, self.counts))

    @property
    def epsilon_lower(self) -> float:
        """With probability >= confidence, never above the mechanism's epsilon."""
        lower = float(_lower(self, self.counts))
        if self.claim is not None and self.violation:  # the root is known up to rounding only
            lower = max(lower, float(np.nextafter(self.claim.epsilon, np.inf)))
        return lower

    @property
    def epsilon_upper(self) -> float:
        """With probability >= confidence, never below what this test attains; other tests may attain more."""
        return float(_upper(self, self.counts))


def start(
    claim: Claim | None,
    delta: float | None = None,
    confidence: float = 0.95,
    *,
    until: Until | None = None,
    both_events: bool = False,
) -> Watch:
    """The state before the first trial.

    Args:
      claim: the promise, or None to measure without one.
      delta: of every epsilon; defaults to the claim's, else 0.
      confidence: of each bound, for all times together.
      until: when to stop: :func:`violation`, :func:`width` or a function of one's own; None goes on for ever.
      both_events: test the opposite guesses as well; where the side was not chosen on other trials.

    Raises:
      InputError: a value out of range; a rule that needs a claim without one.
    """
    _validate.open_unit(confidence=confidence)
    if until is _violation and claim is None:
        raise _validate.expected("claim", "the promise that until=violation() is to refute", claim)
    counts = np.zeros(4, np.int64)
    return Watch(
        claim, checked_delta(delta, claim), float(confidence), until or _never, counts, both_events=both_events
    )


def update(watch: Watch, guesses0: Any, guesses1: Any) -> Watch:
    """The state after more trials; those after the one at which the rule is met are not looked at.

    Args:
      watch: from :func:`start` or :func:`update`.
      guesses0, guesses1: [n], true where the guess was world 1: n trials of world 0 and as many of world 1, by a rule
        that was fixed before they were played.

    Raises:
      InputError: not as many guesses of one world as of the other.
    """
    guesses0, guesses1 = np.asarray(guesses0, bool), np.asarray(guesses1, bool)
    if guesses0.ndim != 1 or guesses0.shape != guesses1.shape:
        wanted = f"as many guesses as in world 0, {list(guesses0.shape)}, in one row"
        raise _validate.expected("guesses1", wanted, f"shape {list(guesses1.shape)}")
    if watch.stopped or not len(guesses0):
        return watch
    counts = watch.counts + betting.outcomes(guesses0, guesses1)
    stop = np.asarray(watch.until(watch, counts), bool)
    last = int(np.argmax(stop)) if stop.any() else len(counts) - 1
    return watch._replace(counts=counts[last], stopped=bool(stop[last]))


def violation() -> Until:
    """Stop as soon as it is certain that the claim is violated."""
    return _violation


def width(target: float) -> Until:
    """Stop as soon as epsilon_upper - epsilon_lower <= ``target`` nats, looked at every 64 pairs.

    Raises:
      InputError: a target that is not > 0.
    """
    return partial(_width, target=_validate.positive(width=target))


def _never(watch: Watch, counts: np.ndarray) -> np.ndarray:
    return np.zeros(len(counts), bool)


def _violation(watch: Watch, counts: np.ndarray) -> np.ndarray:
    return _refuted(watch, counts)


def _width(watch: Watch, counts: np.ndarray, *, target: float) -> np.ndarray:
    looked = counts.sum(-1) % LOOK_EVERY == 0
    stop = np.zeros(len(counts), bool)
    stop[looked] = _upper(watch, counts[looked]) - _lower(watch, counts[looked]) <= target
    return stop


def _refuted(watch: Watch, counts: np.ndarray) -> np.ndarray:
    assert watch.claim is not None
    claimed = watch.claim.epsilon
    how: dict[str, Any] = {"delta": watch.delta, "both_events": watch.both_events}
    return betting.log_wealth(counts, claimed, expected_gap=claimed, **how) >= -np.log1p(-watch.confidence)


def _lower(watch: Watch, counts: np.ndarray) -> np.ndarray:
    gap = GAP_WITHOUT_CLAIM if watch.claim is None else watch.claim.epsilon
    how: dict[str, Any] = {"delta": watch.delta, "confidence": watch.confidence, "both_events": watch.both_events}
    return betting.epsilon_lower(counts, expected_gap=gap, **how)


def _upper(watch: Watch, counts: np.ndarray) -> np.ndarray:
    false_positives, false_negatives, pairs = betting.error_counts(counts)
    alpha = (1 - watch.confidence) / 2  # one half for each rate
    fpr = betting.rate_bounds(false_positives, pairs, alpha=alpha)
    fnr = betting.rate_bounds(false_negatives, pairs, alpha=alpha)
    upper = epsilon_from_rates(fpr[0], fnr[0], watch.delta)
    return np.maximum(upper, epsilon_from_rates(1 - fpr[1], 1 - fnr[1], watch.delta)) if watch.both_events else upper


def conclude(watch: Watch, *, method: str, most: int, aside: int = 0, threshold: float = 0.0) -> AuditResult:
    """The result of an audit at the time at which it stopped.

    Args:
      watch: the state, after at least one pair.
      method: how the guess was made; the bound's name is added.
      most: pairs after which the audit would have stopped in any case (without those set aside).
      aside: pairs on which the threshold was chosen.
      threshold: of the rule.

    Returns:
      An :class:`AuditResult` whose ``trials`` are those up to the stop. ``ceiling`` speaks of the trials counted,
      ``detectable`` of the whole audit.
    """
    _validate.at_least(1, pairs=watch.pairs)
    false_positives, false_negatives, pairs = map(int, betting.error_counts(watch.counts))
    fpr, fnr = false_positives / pairs, false_negatives / pairs
    without_error = np.where(np.arange(4) == betting.RIGHT, pairs, 0)
    claim = watch.claim
    settings: dict[str, Any] = {"delta": watch.delta, "confidence": watch.confidence}
    tested = settings | {"confidence": (1 + watch.confidence) / 2 if watch.both_events else watch.confidence}
    ceiling = float(_lower(watch, without_error))
    return AuditResult(
        epsilon_hat=shown(fpr, fnr, watch.delta, both_events=watch.both_events),
        epsilon_lower=watch.epsilon_lower,
        epsilon_upper=watch.epsilon_upper,
        accuracy=1 - (fpr + fnr) / 2,
        fpr=fpr,
        fnr=fnr,
        negatives=pairs,
        positives=pairs,
        trials=2 * (aside + pairs),
        method=f"{method}; betting, valid at any time" + (", stopped early" if watch.stopped and pairs < most else ""),
        neighbouring=UNSTATED if claim is None else claim.neighbouring,
        ceiling=ceiling,
        detectable=None if claim is None else plan.detectable_by_betting(claim.epsilon, most, **tested),
        claim=claim,
        threshold=threshold,
        side="either" if watch.both_events else "above",
        reason=too_few(2 * pairs, ceiling, claim, confidence=watch.confidence),
        **settings,
    )
