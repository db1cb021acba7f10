"""Runs audits that may stop at any time: a state, its update with the next trials, and rules that say when to stop.

    watch = sequential.start(claim, confidence=0.999)
    watch = sequential.update(watch, guesses0, guesses1)     # any number of times, with any number of trials
    watch.violation, watch.epsilon_lower, watch.epsilon_upper

All statements hold at all times together, so looking after each trial and stopping because of what was seen is
allowed. What a sequence of trials leads to does not depend on how it was cut into updates.

An audit that chooses its rule may choose it again when it has seen more (:func:`next_stage`): the capital is split
equally among the stages beforehand, what a stage has won is kept, and the mean over the stages is the wealth. An
obvious fault therefore needs few trials, and a subtle one is tested by a rule that was chosen on many.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dpaudit import _validate
from dpaudit.auditing.bounds import betting, certified, curve, plan
from dpaudit.auditing.bounds.estimate import epsilon_from_rates
from dpaudit.auditing.bounds.roots import increasing_root
from dpaudit.auditing.conclude import measured_band, shown, tables, too_few, too_weak
from dpaudit.auditing.result import UNSTATED, AuditResult, checked_delta
from dpaudit.mechanisms.claim import Claim

LOOK_EVERY = 64  # pairs between two looks at the width of the bounds
GAP_WITHOUT_CLAIM = 1.0
TOLD = 10_000  # trials by which a bet knows the rates it is for
NO_COUNTS = np.zeros((0, 4))

Until = Callable[["Watch", np.ndarray], np.ndarray]


class Watch(NamedTuple):
    """The state of an audit after some trials; every epsilon in nats.

    Attributes:
      claim: the promise, or None.
      delta: of every epsilon here.
      confidence: of each bound, for all times together.
      until: ``until(watch, counts [n, 4]) -> [n]``, true where to stop, for the counts after each pair.
      counts: of the outcomes of this stage's pairs so far, [4], as :func:`betting.outcomes` numbers them.
      stopped: the rule was met; later trials are not looked at.
      both_events: the guesses and their opposites are two tests, each with half of the error.
      stages: how many there will be at most, this one included.
      earlier: the counts of those that have ended, [k, 4].
      bets: of those and of this one, on what the trials set aside have shown of both rates, [k + 1, 4]
        (:func:`betting.bet_on_line`); empty where none were set aside or nothing is promised.
    """

    claim: Claim | None
    delta: float
    confidence: float
    until: Until
    counts: np.ndarray
    stopped: bool = False
    both_events: bool = False
    stages: int = 1
    earlier: np.ndarray = NO_COUNTS
    bets: np.ndarray = NO_COUNTS

    @property
    def pairs(self) -> int:
        """Returns the number of trials of each world in this stage."""
        return int(self.counts.sum())

    @property
    def violation(self) -> bool:
        """Tells whether the claim is refuted; of honest mechanisms, at most a share 1 - confidence is ever accused."""
        return self.claim is not None and bool(_refuted(self, self.counts))

    @property
    def epsilon_lower(self) -> float:
        """Bounds the mechanism's epsilon from below, with probability >= confidence at all times together."""
        lower, claim = float(_lower(self, self.counts)), self.claim
        if claim is None or claim.is_curve:
            return lower
        # the root is known up to rounding only:
        above = float(np.nextafter(claim.epsilon, np.inf))
        return max(lower, above) if self.violation else min(lower, claim.epsilon)

    @property
    def epsilon_upper(self) -> float:
        """Bounds what this test attains from above, with probability >= confidence; other tests may attain more."""
        return float(_upper(self, self.counts))


def start(
    claim: Claim | None,
    delta: float | None = None,
    confidence: float = 0.95,
    *,
    until: Until | None = None,
    both_events: bool = False,
    stages: int = 1,
) -> Watch:
    """Returns the state before the first trial.

    Args:
      claim: the promise, or None to measure without one.
      delta: of every epsilon; defaults to the claim's, else 0.
      confidence: of each bound, for all times together.
      until: when to stop: :func:`violation`, :func:`width` or your own function; None never stops.
      both_events: test the opposite guesses as well, if the side was not chosen on other trials.
      stages: the largest number of times that the rule will be chosen.

    Raises:
      InputError: a value out of range; a rule that needs a claim without one.
    """
    _validate.open_unit(confidence=confidence)
    if until is _violation and claim is None:
        raise _validate.expected("claim", "the promise that until=violation() is to refute", claim)
    counts = np.zeros(4, np.int64)
    delta, until = checked_delta(delta, claim), until or _never
    return Watch(claim, delta, float(confidence), until, counts, both_events=both_events, stages=stages)


def next_stage(watch: Watch, guesses: Any = None) -> Watch:
    """Returns the state before the first trial of a rule that was chosen on the trials so far.

    Args:
      watch: the state; a stage that has not seen a pair yet is replaced.
      guesses: [2, n], the rule's guesses on the trials by which it was chosen; needed where there is a promise.
    """
    ended = watch.earlier
    if watch.pairs:
        ended = np.concatenate([ended, watch.counts[None]])
    bets = watch.bets
    if watch.claim is not None:
        bet = _bet(watch, watch.claim, np.asarray(guesses, bool))
        bets = np.concatenate([bets[: len(ended)], bet[None]])
    return watch._replace(counts=np.zeros(4, np.int64), earlier=ended, bets=bets)


def _bet(watch: Watch, claim: Claim, guesses: np.ndarray) -> np.ndarray:
    """Chooses the bet against the promise, from the rates seen so far."""
    n = guesses.shape[1]
    false_positives, false_negatives = int(guesses[0].sum()), int((~guesses[1]).sum())
    line = curve.tangent(claim, false_positives, false_negatives, n, n)
    rates = (false_positives + 0.5) / (n + 1), (false_negatives + 0.5) / (n + 1)
    return betting.bet_on_line(line.epsilon, line.delta if claim.is_curve else watch.delta, *rates)


def update(watch: Watch, guesses0: Any, guesses1: Any) -> Watch:
    """Returns the state after more trials; those after the one at which the rule is met are not looked at.

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
    stop = np.broadcast_to(np.asarray(watch.until(watch, counts), bool), len(counts))
    last = int(np.argmax(stop)) if stop.any() else len(counts) - 1
    return watch._replace(counts=counts[last], stopped=bool(stop[last]))


def violation() -> Until:
    """Stops as soon as it is certain that the claim is violated."""
    return _violation


def width(target: float) -> Until:
    """Stops as soon as epsilon_upper - epsilon_lower <= ``target`` nats, looked at every 64 pairs.

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
    return log_evidence(watch, counts) >= -np.log1p(-watch.confidence)


def log_evidence(watch: Watch, counts: np.ndarray) -> np.ndarray:
    """Returns ln of the wealth against the claim, with these counts of the present stage, [..., 4].

    Against one (epsilon, delta), half of the capital is on bets for all rates (:func:`betting.log_wealth`) and half on
    the rates seen on the trials set aside, where there are such; against a curve, all of it is on these.
    """
    claim = watch.claim
    assert claim is not None
    if not claim.is_curve:
        return _wealth_against(watch, counts, np.asarray(claim.epsilon))
    every = [*watch.earlier, counts]
    guessed = [betting.log_wealth_on_line(own, bet) for own, bet in zip(every, watch.bets, strict=False)]
    return _of_stages(watch, guessed or [np.zeros(np.shape(counts)[:-1])])


def _wealth_against(watch: Watch, counts: np.ndarray, epsilon: np.ndarray) -> np.ndarray:
    """Returns ln of the wealth against a loss of at most ``epsilon``, in which it decreases.

    The bets on rates that were seen are fair against the claim and against less. Against more they are not, and their
    half of the capital counts as lost: so one wealth decides both about the claim and about each bound.
    """
    claim = None if watch.claim is None or watch.claim.is_curve else watch.claim
    gap = GAP_WITHOUT_CLAIM if claim is None else claim.epsilon
    how: dict[str, Any] = {"delta": watch.delta, "expected_gap": gap, "both_events": watch.both_events}
    every = [*watch.earlier, counts]
    wealth = [betting.log_wealth(own, epsilon, **how) for own in every]
    if claim is not None and len(watch.bets):
        guessed = (betting.log_wealth_on_line(own, bet) for own, bet in zip(every, watch.bets, strict=True))
        valid = (np.where(epsilon <= claim.epsilon, own, -np.inf) for own in guessed)
        wealth = [np.logaddexp(*both) - np.log(2) for both in zip(wealth, valid, strict=True)]
    return _of_stages(watch, wealth)


def refuted_at(
    watch: Watch, false_positives: Any, false_negatives: Any, pairs: int, *, bet: np.ndarray | None = None
) -> np.ndarray:
    """Tells whether a claim is refuted after so many pairs of the present stage, if errors in the two worlds of a pair
    are independent.

    Args:
      watch: for its claim, confidence and number of stages.
      false_positives, false_negatives: counts, any broadcastable shape.
      pairs: trials of each world.
      bet: on both rates, for a curve.
    """
    x, y = np.broadcast_arrays(np.asarray(false_positives, np.float64), np.asarray(false_negatives, np.float64))
    wrong = x * y / pairs
    counts = np.stack([y - wrong, wrong, pairs - x - y + wrong, x - wrong], axis=-1)
    fresh = watch._replace(earlier=NO_COUNTS, bets=NO_COUNTS if bet is None else bet[None])
    return _refuted(fresh, counts)


def against_curve(watch: Watch, fpr: float, fnr: float, pairs: int) -> Callable[[Any, Any], np.ndarray]:
    """Returns a test of whether counts of so many pairs refute the watch's curve, by the bet for these true rates."""
    assert watch.claim is not None
    wrong, missed = round(fpr * TOLD), round(fnr * TOLD)
    line = curve.tangent(watch.claim, wrong, missed, TOLD, TOLD)
    bet = betting.bet_on_line(line.epsilon, line.delta, (wrong + 0.5) / (TOLD + 1), (missed + 0.5) / (TOLD + 1))
    return lambda fp, fn: refuted_at(watch, fp, fn, pairs, bet=bet)


def _of_stages(watch: Watch, wealth: list[np.ndarray]) -> np.ndarray:
    """Returns ln of the mean wealth over all stages; a stage that has not begun has its initial wealth."""
    if watch.stages == 1:
        return wealth[0]
    waiting = watch.stages - len(wealth)
    parts = [*np.broadcast_arrays(*wealth), *[np.zeros(np.shape(wealth[-1]))] * waiting]
    return np.logaddexp.reduce(parts, axis=0) - np.log(watch.stages)


def _lower(watch: Watch, counts: np.ndarray) -> np.ndarray:
    def short(epsilon: np.ndarray) -> np.ndarray:
        return -np.log1p(-watch.confidence) - _wealth_against(watch, counts, epsilon)

    low = np.zeros(np.shape(counts)[:-1])
    return increasing_root(short, low, low + betting.LARGEST)


def _upper(watch: Watch, counts: np.ndarray) -> np.ndarray:
    false_positives, false_negatives, pairs = betting.error_counts(counts)
    alpha = (1 - watch.confidence) / 2 / watch.stages  # one half for each rate, equal parts for the stages
    fpr = betting.rate_bounds(false_positives, pairs, alpha=alpha)
    fnr = betting.rate_bounds(false_negatives, pairs, alpha=alpha)
    upper = epsilon_from_rates(fpr[0], fnr[0], watch.delta)
    return np.maximum(upper, epsilon_from_rates(1 - fpr[1], 1 - fnr[1], watch.delta)) if watch.both_events else upper


def conclude(
    watch: Watch,
    *,
    method: str,
    most: int,
    aside: int = 0,
    threshold: float = 0.0,
    beside: np.ndarray | None = None,
) -> AuditResult:
    """Returns the result of an audit at the time at which it stopped.

    Args:
      watch: the state, after at least one pair.
      method: how the guess was made; the bound's name is added.
      most: pairs after which the audit would have stopped in any case (without those set aside).
      aside: pairs on which the threshold was chosen.
      threshold: of the rule.
      beside: as for :func:`conclude.from_counts`.

    Returns:
      An :class:`AuditResult` whose ``trials`` are those up to the stop. ``ceiling`` speaks of the trials counted,
      ``detectable`` of the whole audit, unless something else than a violation stopped it.

    Raises:
      InputError: a state of no pairs.
    """
    _validate.at_least(1, pairs=watch.pairs)
    false_positives, false_negatives, pairs = map(int, betting.error_counts(watch.counts))
    fpr, fnr = false_positives / pairs, false_negatives / pairs
    without_error = np.where(np.arange(4) == betting.RIGHT, pairs, 0)
    claim = watch.claim
    settings: dict[str, Any] = {"delta": watch.delta, "confidence": watch.confidence}
    tested = settings | {"confidence": (1 + watch.confidence) / 2 if watch.both_events else watch.confidence}
    ceiling = watch._replace(counts=without_error).epsilon_lower
    detectable = p_value = perfect = None
    counted = 2 * pairs
    if claim is not None and claim.is_curve:
        counted += 2 * int(watch.earlier.sum())
        p_value = min(1.0, float(np.exp(-log_evidence(watch, watch.counts))))
        if watch.violation:  # but for rounding, it is
            p_value = min(p_value, 1 - watch.confidence)
        perfect = float(np.exp(-_evidence_without_error(watch, aside)))
    elif claim is not None:
        whole = most if watch.violation or not watch.stopped else pairs
        detectable = plan.detectable_by_betting(claim.epsilon, whole, **tested)
    reason = None
    if not watch.violation:
        reason = too_few(counted, ceiling, claim, confidence=watch.confidence, perfect=perfect)
        by_bet = partial(against_curve, watch)
        reason = reason or too_weak(claim, detectable, counted // 2, tested["confidence"], by_bet)
    rules, measured = [(false_positives, false_negatives, pairs, pairs)], None
    by = rate_bounds(watch)
    if beside is not None:
        rules = tables(beside, pairs, pairs)
        measured = measured_band(rules, confidence=watch.confidence, bounds=by)
        rules = rules[: len(certified.QUANTITIES)]
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
        detectable=detectable,
        claim=claim,
        threshold=threshold,
        side="either" if watch.both_events else "above",
        reason=reason,
        p_value=p_value,
        certified=certified.of_counts(
            rules if len(rules) > 1 else rules[0],
            confidence=watch.confidence,
            both_events=watch.both_events,
            bounds=by,
        ),
        band=measured,
        **settings,
    )


def _evidence_without_error(watch: Watch, aside: int) -> float:
    """Returns the log evidence against a curve that an audit in the same stages would have had without an error in any
    trial, those by which its bets were chosen included; with the bets of the watch where none were set aside."""

    def right(pairs: int) -> np.ndarray:
        return np.where(np.arange(4) == betting.RIGHT, pairs, 0)

    seen = aside - int(watch.earlier.sum())  # pairs by which the first bet was chosen
    if seen <= 0:
        return float(log_evidence(watch, right(watch.pairs)))
    perfect = watch._replace(counts=right(0), earlier=NO_COUNTS, bets=NO_COUNTS)
    for pairs in map(int, [*watch.earlier.sum(-1), watch.pairs]):
        perfect = next_stage(perfect, np.repeat([[False], [True]], seen, axis=1))._replace(counts=right(pairs))
        seen += pairs
    return float(log_evidence(perfect, perfect.counts))


def rate_bounds(watch: Watch) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    """Returns bounds on one error rate, ``(errors, trials, alpha=) -> (low, high)``, for all times and stages."""
    return partial(_rate_bounds, stages=watch.stages)


def _rate_bounds(errors: Any, trials: Any, *, alpha: float, stages: int) -> tuple[np.ndarray, np.ndarray]:
    """Bounds on an error rate at all times together, whichever stage the audit stops in."""
    return betting.rate_bounds(errors, trials, alpha=alpha / stages)
