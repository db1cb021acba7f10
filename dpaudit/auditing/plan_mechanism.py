"""Plans how many trials the audit of one mechanism needs, from a pilot audit.

:mod:`plan` assumes an attack that attains the corner of (epsilon, delta), which few mechanisms allow. Here a small
audit runs first, and the rates of its best rule are extrapolated to mechanisms that lose more (:mod:`alternative`).
Where the pilot attains less than half of the claim, whether the mechanism loses less or the attack sees only a part of
its loss is not known: the plan is for the second, in which a mechanism that loses more shows the same part of it.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from dpaudit import _validate
from dpaudit.auditing.attacks.choose import CHOOSING_SHARE, pairs_aside
from dpaudit.auditing.attacks.distinguish import Distinguisher
from dpaudit.auditing.audit import audit
from dpaudit.auditing.bounds import alternative, plan, sequential
from dpaudit.auditing.bounds.alternative import Alternative
from dpaudit.auditing.bounds.betting import outcomes
from dpaudit.auditing.bounds.estimate import epsilon_bounds
from dpaudit.auditing.foresight import noise_like, spread_like
from dpaudit.auditing.part_seen import sees_a_part
from dpaudit.mechanisms.claim import Claim, Mechanism

PILOT = 10_000  # trials
SIMULATED = 400  # audits with early stopping that are simulated
STEP = 1.05  # ratio of the numbers of trials at two looks


def plan_mechanism(
    mechanism: Mechanism | Callable[[jax.Array, Any], Any],
    x0: Any,
    x1: Any,
    *,
    key: jax.Array,
    claim: Claim | None = None,
    confidence: float = 0.95,
    true_epsilon: float | None = None,
    trials: int | None = None,
    rate: float | None = None,
    distinguisher: Distinguisher | None = None,
    worse: Mechanism | Callable[[jax.Array, Any], Any] | None = None,
) -> plan.Plan:
    """Computes how many trials, including those set aside, show that a mechanism like this one loses ``true_epsilon``.

    Args:
      mechanism, x0, x1, key, claim, distinguisher: as for :func:`dpaudit.audit`.
      confidence: of calling a violation.
      true_epsilon: the loss that the audit shall detect; twice the claim by default.
      trials: of both worlds together, for which bounds are predicted; by default the fixed number that is needed.
      rate: trials a second.
      worse: a mechanism to extrapolate from instead of the audited one, for example the same with 0.8 of the noise.

    Raises:
      InputError: a value out of range, no claim or one that is a curve, a true_epsilon that the claim allows or that
        no number of trials below 2^31 shows, a pilot that saw nothing, and whatever :func:`dpaudit.audit` refuses.
    """
    claim = mechanism.claim if claim is None and isinstance(mechanism, Mechanism) else claim
    if claim is None or claim.is_curve:
        raise _validate.expected("claim", "an (epsilon, delta) to plan for (of a curve, claim.at(delta))", claim)
    _validate.open_unit(confidence=confidence)
    true = 2 * claim.epsilon if true_epsilon is None else float(_validate.positive(true_epsilon=true_epsilon))
    if true <= claim.epsilon:
        raise _validate.expected("true_epsilon", f"more than the claimed {claim.epsilon:g}", true)
    how: dict[str, Any] = {"claim": claim, "distinguisher": distinguisher}
    pilot = audit(mechanism if worse is None else worse, x0, x1, key=key, trials=PILOT, confidence=confidence, **how)
    if pilot.epsilon_hat <= 0 or not 0 < pilot.fpr + pilot.fnr < 2:
        raise _validate.expected("mechanism", "one for which a pilot of 10,000 trials shows a loss", pilot.method)
    settings: dict[str, Any] = {"delta": claim.delta, "confidence": confidence}
    part = sees_a_part(pilot)

    def family(pairs: int, aside: int | None = None) -> Alternative:
        aside = max(1, pairs // (CHOOSING_SHARE - 1) if aside is None else aside)
        if pilot.band is None:  # a threshold fixed in advance
            rule = alternative.event(pilot.fpr, pilot.fnr, delta=claim.delta, trials=pilot.negatives)
            share = pilot.epsilon_hat / claim.epsilon if part else 1.0
            return rule._replace(rates=lambda epsilon: rule.rates(share * epsilon))
        more = {"shown": pilot.epsilon_hat, "trials": pilot.negatives, **settings}
        other = partial(alternative.of_curve, pilot.band.fpr, pilot.band.fnr, **more)
        return noise_like(pilot, aside) or (spread_like(pilot, aside) if part else other(aside))

    def power(pairs: int) -> float:
        return alternative.power(family(pairs), true, claim.epsilon, pairs, pairs, **settings)

    plain = plan.plan(claim.epsilon, **settings, true_epsilon=true, trials=trials, rate=rate)
    fixed = _needed(power, plain.least // 2)
    if fixed is None:
        attained = f", of whose {claim.epsilon:g} a pilot attains {pilot.epsilon_hat:.2g} (worse= names another)"
        raise _validate.expected("true_epsilon", f"one that 2^31 trials can show of this mechanism{attained}", true)
    counted = fixed if trials is None else max(1, _validate.at_least(2, trials=trials) // 2 * 3 // 4)
    most = plan.LARGEST if trials is None else max(1, trials // 2)
    aside = pairs_aside(most, claim, named=distinguisher is not None, stops=True)
    stops = aside + _stops(family(fixed, aside).rates(true), claim, confidence, longest=min(8 * fixed + aside, most))
    return plain._replace(
        least=_with_aside(plain.least // 2),
        fixed=_with_aside(fixed),
        sequential_median=2 * float(np.quantile(stops, 0.5, method="higher")),
        sequential_most=2 * float(np.quantile(stops, plan.POWER, method="higher")),
        trials=_with_aside(counted),
        honest_lower=_expected_lower(family(counted).rates(claim.epsilon), counted, **settings),
        ceiling=plan.ceiling(counted, counted, **settings),
        detectable=alternative.detectable(family(counted), claim.epsilon, counted, counted, **settings),
        assumes=f"{pilot.method.split(',')[0]}, as a pilot of {PILOT:,} trials saw it ({family(counted).name})",
    )


def _with_aside(pairs: Any) -> Any:
    """Returns the trials of both worlds, those set aside included, for so many counted pairs."""
    trials = 2 * pairs * CHOOSING_SHARE / (CHOOSING_SHARE - 1)
    return int(np.ceil(trials)) if np.isfinite(trials) else trials


def _needed(power: Callable[[int], float], least: int) -> int | None:
    """Finds the smallest number of pairs with which power reaches 0.8, to one part in 200; None beyond 2^31."""
    low = high = max(1, least)
    while power(high) < plan.POWER:
        low, high = high, 2 * high
        if high > plan.LARGEST:
            return None
    while high - low > max(1, low // 200):
        middle = (low + high) // 2
        low, high = (low, middle) if power(middle) >= plan.POWER else (middle, high)
    return high


def _stops(rates: alternative.Rates, claim: Claim, confidence: float, *, longest: int) -> np.ndarray:
    """Simulates after how many pairs audits with early stopping call a violation, by rules with these error rates."""
    looks = np.unique(np.ceil(STEP ** np.arange(1, np.log(longest) / np.log(STEP) + 1)).astype(int))
    draws, watch = np.random.default_rng(0), sequential.start(claim, confidence=confidence)
    fpr, fnr = (draws.choice(rate, SIMULATED) for rate in rates)
    four = np.stack([(1 - fpr) * fnr, fpr * fnr, (1 - fpr) * (1 - fnr), fpr * (1 - fnr)], axis=1)  # as of outcomes()
    assert outcomes([True], [False])[0].tolist() == [0, 1, 0, 0]
    fresh = np.diff(looks, prepend=0)
    counts = np.cumsum(np.stack([draws.multinomial(n, four) for n in fresh], axis=1), axis=1)
    certain = sequential.log_evidence(watch, counts) >= -np.log1p(-confidence)
    return np.where(certain.any(1), looks[np.argmax(certain, axis=1)], np.inf)


def _expected_lower(rates: alternative.Rates, pairs: int, *, delta: float, confidence: float) -> float:
    draws = np.random.default_rng(0)
    fp, fn = (draws.binomial(pairs, rate, (1000, len(rate))) for rate in rates)
    lower, _ = epsilon_bounds(fp, fn, pairs, pairs, delta=delta, confidence=confidence)
    return float(lower.mean())
