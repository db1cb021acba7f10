"""Computes what an audit would have detected, among mechanisms that lose more or for a user's alternative.

The alternative is attacked in the same way as the audited mechanism, on separate trials: half of them choose a rule as
the audit would, the others estimate its error rates. The two rates give the power, which is the probability that the
audit calls the alternative a violation, and the detectable loss among mechanisms extrapolated from it
(:mod:`alternative`).
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import numpy as np

from dpaudit import _validate
from dpaudit._engine.game import Game, of_trials
from dpaudit.auditing import shown
from dpaudit.auditing.attacks import choose
from dpaudit.auditing.bounds import alternative, curve, gdp, normality, plan, sequential
from dpaudit.auditing.bounds.alternative import Alternative, Refuted
from dpaudit.auditing.bounds.certified import RateBounds
from dpaudit.auditing.bounds.estimate import epsilon_from_rates, errors
from dpaudit.auditing.estimators import Estimator
from dpaudit.auditing.part_seen import UNKNOWN, little_seen, most_part, sees_a_part, sees_hardly_anything, unseen
from dpaudit.auditing.result import AuditResult, Band
from dpaudit.mechanisms.claim import Claim, Mechanism

PLAYED = 10_000  # pairs of an alternative, at most: a rate of 0.01 is then known to a tenth
FEW = 10_000  # pairs set aside, up to which the threshold depends on chance
TWICE = 2.01  # times the claim from which on a detectable loss counts as more than twice the claim
READINGS = ("gaussian",)
MOST_TRIALS = 1 << 31


class Expected(NamedTuple):
    """Error rates that were seen of one rule, [1] each, and how far apart the scores are in standard deviations, if
    they are normal."""

    fpr: np.ndarray
    fnr: np.ndarray
    apart: float | None


def mechanism_like(given: Any, mechanism: Mechanism, x0: Any, *, on_host: bool) -> Mechanism:
    """Returns the alternative as a mechanism, after checking that its releases have the same form.

    Args:
      given: a Mechanism or a function of (key, x).
      mechanism, x0: the audited mechanism and input, whose releases have the form that is asked for.
      on_host: whether functions on the host are played, whose releases are compared when they are.

    Raises:
      InputError: something else, one that raises, releases of another shape or type.
    """
    if not isinstance(given, Mechanism):
        if not callable(given):
            raise _validate.expected("alternative", "a Mechanism or a function of (key, x)", given)
        given = Mechanism(given)
    if on_host:
        return given
    wanted = jax.eval_shape(lambda key: mechanism.apply(key, x0), of_trials())
    try:
        found = jax.eval_shape(lambda key: given.apply(key, x0), of_trials())
    except (Exception, SystemExit) as error:
        cause = " ".join(f"{type(error).__name__}: {error}".split())[:120]
        raise _validate.expected("alternative", "a mechanism that takes the same inputs", cause) from None
    if _like(wanted) != _like(found):
        raise _validate.expected("alternative", f"releases like the mechanism's, {_like(wanted)}", _like(found))
    return given


def _like(shapes: Any) -> str:
    leaves, structure = jax.tree.flatten(jax.tree.map(lambda leaf: f"{leaf.dtype} {list(leaf.shape)}", shapes))
    return leaves[0] if structure == jax.tree.structure(0) else str(jax.tree.unflatten(structure, leaves))


def play_alternative(
    game: Game, pairs: int, column: int, *, threshold: float | None, watch: sequential.Watch
) -> Expected:
    """Plays an alternative and counts the errors of the rule that the audit would choose.

    Args:
      game: the alternative's game, with the audit's attack.
      pairs: pairs of the audit, set aside or counted; no more are played.
      column: the number of the deciding score.
      threshold: fixed in advance, or None.
      watch: for claim, delta and confidence.
    """
    played = game.head(min(pairs, PLAYED)).astype(np.float64)
    scores = np.moveaxis(played.reshape(len(played), 2, -1)[..., column], 1, 0)
    if threshold is None:
        half = scores.shape[1] // 2
        settings: dict[str, Any] = {"delta": watch.delta, "confidence": watch.confidence, "claim": watch.claim}
        rule, rest = choose.look(scores[:, :half], **settings).rule, scores[:, half:]
    else:
        above = (scores > threshold).mean(1)
        rule, rest = choose.Rule(threshold, bool(above[1] >= above[0])), scores
    fpr, fnr = (np.array([count / rest.shape[1]]) for count in errors(rest, *rule))
    return Expected(fpr, fnr, None if threshold is not None else normality.normal_apart(scores))


def with_foresight(
    result: AuditResult,
    claim: Claim,
    *,
    aside: int,
    pairs: int,
    estimator: Estimator,
    watch: sequential.Watch,
    expected: Expected | None,
) -> AuditResult:
    """Adds ``detectable``, the ``power`` against an alternative, and the reason for an underpowered audit to a result.

    Args:
      result, claim: as the trials have it.
      aside, pairs: pairs on which the rule was chosen, and pairs that the audit would count if it were not stopped.
      estimator: of the bounds.
      watch: of the audit.
      expected: what was seen of the alternative; None without one.
    """
    settings: dict[str, Any] = {"delta": result.delta, "confidence": result.confidence}
    if watch.both_events:  # each at half of the error
        settings["confidence"] = (1 + result.confidence) / 2
    refuted = _refuted(estimator, watch, claim, result, pairs)
    power = None
    if expected is not None:
        if expected.apart is not None and aside > 0 and not claim.is_curve:
            # the rates of rare events, which a small delta asks for, follow from the scores and are not counted
            fixed = alternative.normal(aside, mu=expected.apart, **settings)
        else:
            fixed = Alternative(lambda _: (expected.fpr, expected.fnr), "the alternative")
        refuting = refuted
        if watch.bets.size and claim.is_curve:
            refuting = sequential.against_curve(watch, float(expected.fpr[0]), float(expected.fnr[0]), pairs)
        power = alternative.power(fixed, 0.0, claim.epsilon, pairs, pairs, **settings, refuted=refuting)
    if claim.is_curve:
        return missed(dataclasses.replace(result, power=power)) if expected is not None else unseen(result)
    rates = None
    if expected is not None:
        rates = float(expected.fpr[0]), float(expected.fnr[0]), min(pairs, PLAYED) / 2
    worse = worse_than(result, aside if estimator.simultaneous is None else pairs, rates)
    detectable = alternative.detectable(worse, claim.epsilon, pairs, pairs, **settings, refuted=refuted)
    reason = result.reason
    if (
        expected is None
        and reason is None
        and result.epsilon_lower <= claim.epsilon
        and detectable > TWICE * claim.epsilon
    ):
        reason = (
            f"with this many trials, a loss of twice the claim is found with probability below 0.8 by {worse.name}: "
            f"that takes an ε of {shown.beside(detectable, 2 * claim.epsilon)}"
        )
        if worse.name == alternative.GAUSSIAN:
            reason += f"; {_takes(claim, result, aside + pairs)}"
        elif worse.name in (alternative.PART, alternative.SPREAD) and sees_hardly_anything(result):
            reason = f"{little_seen(result)}; {reason}; {UNKNOWN}"
    return missed(dataclasses.replace(result, detectable=detectable, reason=reason, power=power))


def missed(result: AuditResult) -> AuditResult:
    """Adds the reason for an underpowered audit where it would hardly have found the alternative."""
    if result.power is None or result.power >= plan.POWER or result.reason or result.verdict == "violation":
        return result
    told = f"the given alternative would have been called a violation with probability {result.power:.2g} only"
    return dataclasses.replace(result, reason=f"{told}, below {plan.POWER:g}")


def worse_than(result: AuditResult, aside: int, rates: tuple[float, float, float] | None = None) -> Alternative:
    """Returns mechanisms that lose more than the audited one, by which ``detectable`` is computed.

    Args:
      result: of an audit.
      aside: pairs on which a rule is chosen.
      rates: FPR, FNR and the trials of each, of a rule that is extrapolated if nothing is known of the noise; None
        for the result's own.
    """
    known = noise_like(result, aside) if aside <= FEW or result.normal or sees_a_part(result) else None
    fpr, fnr, trials = rates or (result.fpr, result.fnr, result.negatives)
    worse = known or alternative.event(fpr, fnr, delta=result.delta, trials=trials)
    if rates is not None or worse.name == alternative.SPREAD or not sees_hardly_anything(result):
        return worse
    return alternative.in_part(worse, most_part(result))


def noise_like(result: AuditResult, aside: int) -> Alternative | None:
    """Returns the mechanisms that have less of the noise which the scores show, Gaussian or Laplace; None for others.

    Normal scores at a delta of 0 do not show a finite epsilon. Where the rule attains less than half of the claim they
    are the sum of many small losses (:func:`alternative.spread`), of which the mechanism is taken to lose the claim.
    At a larger delta, an attack that attains less than half of the claim misses rare events, as of Gaussian noise,
    unless its score has few values or is that of Laplace noise.

    Args:
      result: of an audit.
      aside: pairs on which a rule is chosen.
    """
    settings: dict[str, Any] = {"delta": result.delta, "confidence": result.confidence}
    if aside == 0:
        return None
    if result.normal and result.delta > 0:
        return alternative.gaussian(aside, **settings)
    seen, claim, part = result.band, result.claim, sees_a_part(result)
    if result.normal and part:
        return spread_like(result, aside)
    shows = claim is not None and result.epsilon_lower >= claim.epsilon / 2  # fewer fit many laws
    if seen is not None and shows:
        bounds = {"fpr": (seen.fpr_low, seen.fpr_high), "fnr": (seen.fnr_low, seen.fnr_high)}
        if alternative.looks_laplace(**bounds, shown=result.epsilon_hat, delta=result.delta):
            return alternative.laplace(aside, **settings)
    if seen is not None and part and result.delta > 0 and len(np.unique(seen.fpr)) >= alternative.DISTINCT:
        return alternative.gaussian(aside, **settings)
    return None


def _most_accurate(band: Band) -> int:
    return int(np.argmin(np.add(band.fpr, band.fnr)))


def spread_like(result: AuditResult, aside: int) -> Alternative:
    """Returns the mechanisms that lose more than the claim, of which the attack sees as small a part as here."""
    assert result.claim is not None
    rates = result.fpr, result.fnr
    if result.band is not None:
        best = _most_accurate(result.band)
        rates = result.band.fpr[best], result.band.fnr[best]
    mu = max(float(gdp.mu_from_rates(*rates)), 1e-9)
    settings: dict[str, Any] = {"delta": result.delta, "confidence": result.confidence}
    return alternative.spread(aside, mu=mu, epsilon=result.claim.epsilon, **settings)


def _takes(claim: Claim, result: AuditResult, pairs: int) -> str:
    """Says how many trials it takes to show twice the claim, if noise is Gaussian and the claim one (epsilon,
    delta)."""
    least, trials = 2 * pairs, 4 * pairs
    while trials <= MOST_TRIALS and _finds(claim, result, trials) < plan.POWER:
        least, trials = trials, 2 * trials
    while trials <= MOST_TRIALS and trials > 1.1 * least:
        middle = int(np.sqrt(least * trials))
        least, trials = (middle, trials) if _finds(claim, result, middle) < plan.POWER else (least, middle)
    trials = int(-(-trials // 10 ** (len(str(trials)) - 2)) * 10 ** (len(str(trials)) - 2))  # two digits
    enough = f"about {trials:,} trials would" if trials <= MOST_TRIALS else "no feasible number of trials would"
    return (
        f"with δ = {claim.delta:g} alone {enough} show a fault of Gaussian noise; the curve that was accounted for "
        "(dpaudit.Claim.gaussian, .renyi, .pld) shows it far sooner"
    )


def _finds(claim: Claim, result: AuditResult, trials: int) -> float:
    """Returns the probability that so many trials show Gaussian noise that loses twice the claim."""
    settings: dict[str, Any] = {"delta": result.delta, "confidence": result.confidence}
    aside = choose.pairs_aside(trials // 2, claim, named=False, stops=False)
    counted = trials // 2 - aside
    worse = alternative.gaussian(aside, **settings)
    return alternative.power(worse, 2 * claim.epsilon, claim.epsilon, counted, counted, **settings)


def _refuted(
    estimator: Estimator, watch: sequential.Watch, claim: Claim, result: AuditResult, pairs: int
) -> Refuted | None:
    """Returns a test of whether counts refute the claim; None for Clopper-Pearson, whose power is known exactly."""
    if claim.is_curve:
        alpha = (1 - result.confidence) / (2 if watch.both_events else 1)
        return lambda fp, fn: curve.p_value(claim, fp, fn, pairs, pairs) <= alpha
    if estimator.anytime:
        return lambda fp, fn: sequential.refuted_at(watch, fp, fn, pairs)
    if estimator.simultaneous is None:
        return None
    high = estimator.simultaneous(pairs, alpha=(1 - result.confidence) / 2)
    return lambda fp, fn: epsilon_from_rates(high[fp], high[fn], result.delta) > claim.epsilon


def with_reading(
    result: AuditResult, reading: str | None, wrong: np.ndarray | None, bounds: RateBounds
) -> AuditResult:
    """Adds what epsilon would be if the trade-off curve were Gaussian; no verdict rests on it.

    Args:
      result: of the audit.
      reading: "gaussian", or None for none.
      wrong: errors of other rules beside, [b, 2], the one of the largest advantage first; None for the rule's own, or
        for the most accurate one of a band, whose bounds hold for all its rules together.
      bounds: of one error rate.
    """
    if reading is None:
        return result
    if wrong is None and result.band is not None:
        band, best = result.band, _most_accurate(result.band)
        ends = (band.fpr, band.fnr), (band.fpr_high, band.fnr_high), (band.fpr_low, band.fnr_low)
        rates = [(fpr[best], fnr[best]) for fpr, fnr in ends]
    else:
        played = np.array([result.negatives, result.positives])
        counts = np.array([result.fpr, result.fnr]) * played if wrong is None else wrong[0]
        (low0, high0), (low1, high1) = (
            bounds(np.round(count), n, alpha=(1 - result.confidence) / 2)
            for count, n in zip(counts, played, strict=True)
        )
        rates = (counts / played, (high0, high1), (low0, low1))
    middle, lower, upper = (float(gdp.epsilon_from_mu(gdp.mu_from_rates(*pair), result.delta)) for pair in rates)
    return dataclasses.replace(result, reading=reading, reading_hat=middle, reading_lower=lower, reading_upper=upper)


def checked_reading(reading: str | None, delta: float) -> None:
    """Refuses a reading that is not known, or that has no finite epsilon.

    Raises:
      InputError: one of these.
    """
    if reading is None:
        return
    _validate.one_of(READINGS, reading=reading)
    if delta == 0:
        raise _validate.expected(
            "reading", "None where delta is 0, at which no Gaussian noise has a finite epsilon", reading
        )
