"""AuditResult: what an audit found, beside what was promised."""

import dataclasses
import json
import math
from typing import Any, NamedTuple

import numpy as np

from dpaudit import _validate
from dpaudit.auditing import estimators
from dpaudit.auditing.bounds import band, certified, curve, plan
from dpaudit.auditing.bounds.certified import Certificates, Certified
from dpaudit.auditing.bounds.estimate import epsilon_from_rates
from dpaudit.auditing.estimators import Counted, Estimator
from dpaudit.mechanisms.claim import Claim

BAND_POINTS = 64  # of a band that a result keeps
INFINITIES = {"inf": math.inf, "-inf": -math.inf}
UNSTATED = "the two given inputs (no relation claimed)"
SIDES = ("above", "not above", "either")


CERTIFIED = "certified_"  # before the names of Certificates in a row
ENDS = ("", "_lower", "_upper")  # of the fields of Certified in a row


class Band(NamedTuple):
    """Error rates of several thresholds of the score that decided, [t] each; all upper bounds hold together, and all
    lower ones."""

    fpr: tuple[float, ...]
    fnr: tuple[float, ...]
    fpr_low: tuple[float, ...]
    fpr_high: tuple[float, ...]
    fnr_low: tuple[float, ...]
    fnr_high: tuple[float, ...]


class Tried(NamedTuple):
    """An attack of a family, as the trials set aside saw it: what was chosen by, never a bound.

    Attributes:
      name: what it looks at.
      bound: epsilon that its best rule showed at the level at which rules are compared, in nats.
      accuracy: of that rule; None for one that only the pilot, the first of them, was looked at for.
    """

    name: str
    bound: float
    accuracy: float | None


@dataclasses.dataclass(frozen=True)
class AuditResult:
    """The outcome of one audit; every epsilon in nats.

    Attributes:
      epsilon_hat: the point estimate at the observed rates, Eq. (2) of paper 000 (with delta, Eq. (7) of paper 003).
      epsilon_lower: with probability >= confidence, the mechanism's epsilon is at least this.
      epsilon_upper: with probability >= confidence, this test attains at most this; other tests may attain more.
      accuracy: share of right guesses when both worlds are equally likely, 1 - (fpr + fnr)/2.
      fpr, fnr: observed error rates: guessing world 1 in world 0, and world 0 in world 1.
      negatives, positives: counted trials of world 0 and of world 1 (those set aside for choosing are not counted).
      trials: all trials played, both worlds together.
      delta: the delta of every epsilon here.
      confidence: of each bound.
      method: how the guess was made and how the bound was computed.
      neighbouring: the relation and unit that the numbers speak of.
      ceiling: the largest epsilon_lower that this many counted trials could ever certify.
      detectable: the smallest true epsilon that would have been called a violation with probability 0.8: where a
        family of attacks was played, by the chosen one on mechanisms that lose more than this one
        (:mod:`dpaudit.auditing.bounds.alternative`); where one was named, were it perfect. None without a claim
        and for a curve.
      claim: the promise, or None.
      threshold: the rule was "world 1 where score > threshold".
      side: "above"; "not above" where the rule was "world 1 where not score > threshold"; "either" for a rule fixed
        in advance, of which both events were looked at, the score above the threshold and not above it, each with half
        of the error: the rates and the accuracy are those of the rule, the epsilons the larger ones.
      reason: why the trials could have shown no violation, in words; None where they could.
      p_value: of "the promise is kept", where it is a curve (:func:`curve.p_value`); else None.
      attacks: all that were tried, as the trials set aside saw them; the first one was chosen. Empty where one was
        named.
      certified: advantage, accuracy, TPR at a small FPR and posterior, with bounds.
      band: the trade-off curve that was measured; None where only the counts of one rule are known.
      normal: the scores set aside pass for normal in both worlds.
      power: the probability that this audit would have called the alternative that was named a violation, by the rates
        seen of it; None without one.
      reading: "gaussian" where the next three say what epsilon would be, were the trade-off curve Gaussian; no verdict
        rests on them.
      reading_hat, reading_lower, reading_upper: that epsilon and its bounds, in nats.
    """

    epsilon_hat: float
    epsilon_lower: float
    epsilon_upper: float
    accuracy: float
    fpr: float
    fnr: float
    negatives: int
    positives: int
    trials: int
    delta: float
    confidence: float
    method: str
    neighbouring: str
    ceiling: float
    detectable: float | None
    claim: Claim | None
    threshold: float
    side: str = "above"
    reason: str | None = None
    p_value: float | None = None
    attacks: tuple[Tried, ...] = ()
    certified: Certificates | None = None
    band: Band | None = None
    normal: bool = False
    power: float | None = None
    reading: str | None = None
    reading_hat: float | None = None
    reading_lower: float | None = None
    reading_upper: float | None = None

    @property
    def verdict(self) -> str:
        """One word: violation, underpowered (none could have been shown: see ``reason``), consistent, or measured (no
        claim)."""
        if self.claim is None:
            return "measured"
        if self.p_value is not None:  # a curve
            if self.p_value <= 1 - self.confidence:
                return "violation"
            return "underpowered" if self.reason else "consistent"
        if self.epsilon_lower > self.claim.epsilon:
            return "violation"
        return "underpowered" if self.reason or self.ceiling <= self.claim.epsilon else "consistent"

    def to_row(self) -> dict[str, Any]:
        """A flat dictionary of JSON values: the fields, the claim's own, and the verdict; infinity is "inf". Attacks
        that were tried are a list of dictionaries, a band is a dictionary of lists."""
        row = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del row["claim"], row["attacks"], row["certified"], row["band"]
        for name, one in ({} if self.certified is None else self.certified._asdict()).items():
            row |= {f"{CERTIFIED}{name}{end}": value for end, value in zip(ENDS, one, strict=True)}
        if self.band is not None:
            row["band"] = {name: list(rates) for name, rates in self.band._asdict().items()}
        if self.attacks:
            row["attacks"] = [one._asdict() for one in self.attacks]
        epsilon, delta, _ = self.claim or (None, None, None)
        row |= {"claim_epsilon": epsilon, "claim_delta": delta, "verdict": self.verdict}
        if self.claim is not None and self.claim.is_curve:
            row["claim_terms"] = self.claim.terms
        return {name: json_number(value) for name, value in row.items()}

    def to_json(self) -> str:
        """The row as JSON text; :meth:`from_json` gives the same result back."""
        return json.dumps(self.to_row())

    @classmethod
    def from_json(cls, text: str) -> "AuditResult":
        """Reads what :meth:`to_json` wrote.

        Raises:
          InputError: the text is not JSON or a field is missing.
        """
        try:
            row = json.loads(text)
            apart = ("claim", "attacks", "certified", "band")
            fields = [field for field in dataclasses.fields(cls) if field.name not in apart]
            names = [field.name for field in fields if field.name in row or field.default is dataclasses.MISSING]
            values: dict[str, Any] = {name: INFINITIES.get(row[name], row[name]) for name in names}
            values["attacks"] = tuple(Tried(**one) for one in row.get("attacks", ()))
            if "band" in row:
                values["band"] = Band(**{name: tuple(rates) for name, rates in row["band"].items()})
            if f"{CERTIFIED}{Certificates._fields[0]}" in row:
                of = ([row[f"{CERTIFIED}{name}{end}"] for end in ENDS] for name in Certificates._fields)
                values["certified"] = Certificates(*(Certified(*one) for one in of))
            epsilon, delta, terms = row["claim_epsilon"], row["claim_delta"], row.get("claim_terms")
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise _validate.expected(
                "text", "the JSON of an AuditResult", f"{type(error).__name__}: {error}"
            ) from None
        if terms is not None:
            return cls(**values, claim=Claim.from_terms(terms, values["neighbouring"]))
        return cls(**values, claim=None if epsilon is None else Claim(epsilon, delta, values["neighbouring"]))


def json_number(value: Any) -> Any:
    """Strict JSON knows no infinity: it is written as the text "inf" or "-inf"."""
    return str(float(value)) if isinstance(value, float) and math.isinf(value) else value


def from_counts(
    false_positives: int,
    false_negatives: int,
    negatives: int,
    positives: int,
    *,
    claim: Claim | None,
    method: str,
    delta: float | None = None,
    confidence: float = 0.95,
    trials: int | None = None,
    threshold: float = 0.0,
    both_events: bool = False,
    perfect: bool = True,
    estimator: Estimator = estimators.clopper_pearson,
    beside: np.ndarray | None = None,
) -> AuditResult:
    """The result of a test whose rule was fixed before these trials.

    Args:
      false_positives, false_negatives: errors among the counted trials.
      negatives, positives: counted trials of world 0 and of world 1, >= 1.
      claim: the promise, or None.
      method: how the guess was made; the bound's name is added.
      delta: of every epsilon; defaults to the claim's, else 0. One below the claim's is refused: what holds at a
        smaller delta would not contradict the claim.
      confidence: of each bound, in (0, 1).
      trials: all trials played where some were set aside.
      threshold: of the rule.
      both_events: look at the opposite guesses as well, each with half of the error: where the rule says nothing of
        which side of the threshold tells of world 1.
      perfect: compute ``detectable``, as of a perfect attack; False leaves it to the caller.
      estimator: one that reads four counts.
      beside: [5 or more, 2], false positives and false negatives of the rules that :func:`certified.thresholds` chose,
        and of others for the band; None to certify everything by the one rule.

    Raises:
      InputError: a value out of range; an estimator that needs more than counts, or that carries no verdict where
        there is a claim.
    """
    _validate.at_least(1, negatives=negatives)
    _validate.at_least(1, positives=positives)
    for name, count, most in (
        ("false_positives", false_positives, negatives),
        ("false_negatives", false_negatives, positives),
    ):
        if not 0 <= count <= most:
            raise _validate.expected(name, f"a count in 0..{most}", count)
    delta = checked_delta(delta, claim)
    _validate.open_unit(confidence=confidence)
    carries_verdict(estimator, claim)
    if estimator.needs_scores or estimator.anytime or estimator.one_training:
        raise _validate.expected("estimator", "one that reads the counts of one rule", estimator.name)
    fpr, fnr = false_positives / negatives, false_negatives / positives
    settings = {"delta": delta, "confidence": confidence}
    counts = (false_positives, false_negatives, negatives, positives)
    lower, upper = estimator.both(Counted(*counts, outcomes=np.zeros(4)), **settings, both_events=both_events)
    tested = settings | {"confidence": (1 + confidence) / 2 if both_events else confidence}  # of each event
    ceiling, _ = estimator.bounds(Counted(0, 0, negatives, positives, np.zeros(4)), **tested)
    detectable = p_value = None
    if claim is not None and claim.is_curve:
        p_value = _p_value(claim, *counts, both_events=both_events)
    elif claim is not None and perfect:
        detectable = plan.detectable(claim.epsilon, negatives, positives, **tested)
    rules, measured = [counts] if beside is None else tables(beside, negatives, positives), None
    if beside is not None:
        measured = measured_band(rules, confidence=confidence, bounds=estimator.rate)
    return AuditResult(
        epsilon_hat=shown(fpr, fnr, delta, both_events=both_events),
        epsilon_lower=lower,
        epsilon_upper=upper,
        accuracy=1 - (fpr + fnr) / 2,
        fpr=fpr,
        fnr=fnr,
        negatives=negatives,
        positives=positives,
        trials=negatives + positives if trials is None else trials,
        delta=delta,
        confidence=confidence,
        method=f"{method}; {estimator.name}",
        neighbouring=UNSTATED if claim is None else claim.neighbouring,
        ceiling=ceiling,
        detectable=detectable,
        claim=claim,
        threshold=threshold,
        side="either" if both_events else "above",
        reason=too_few(negatives + positives, ceiling, claim, confidence=tested["confidence"]),
        p_value=p_value,
        certified=certified.of_counts(
            rules[: len(Certificates._fields)] if len(rules) > 1 else rules[0],
            confidence=confidence,
            both_events=both_events,
            bounds=estimator.rate,
        ),
        band=measured,
    )


def from_band(
    scores: np.ndarray,
    *,
    claim: Claim | None,
    method: str,
    estimator: Estimator,
    delta: float | None = None,
    confidence: float = 0.95,
    trials: int | None = None,
) -> AuditResult:
    """The result of an audit that reads every score by a simultaneous band; larger means world 1.

    The rates, the accuracy and the threshold are those of the threshold whose lower bound is largest; its rates were
    chosen by these same trials, its bounds were not: they hold for all thresholds together.

    Args:
      scores: [2, n], one row per world.
      claim, method, delta, confidence, trials: as for :func:`from_counts`.
      estimator: a band.

    Raises:
      InputError: a value out of range; a claim that is a curve.
    """
    assert estimator.simultaneous is not None
    delta = checked_delta(delta, claim)
    if claim is not None and claim.is_curve:
        raise _validate.expected("estimator", f"None or {estimators.clopper_pearson.name} for a curve", estimator.name)
    n, settings = scores.shape[1], {"delta": delta, "confidence": _validate.open_unit(confidence=confidence)}
    rates = band.tradeoff(scores, confidence=confidence, band=estimator.simultaneous)
    lower = epsilon_from_rates(rates.fpr_high, rates.fnr_high, delta)
    most_accurate = np.argmin(rates.fpr + rates.fnr)
    best = int(np.argmax(lower) if lower.max() > 0 else most_accurate)
    fpr, fnr = float(rates.fpr[best]), float(rates.fnr[best])
    perfect = np.repeat([[0.0], [1.0]], n, axis=1)
    ceiling, _ = estimator.bounds(estimators.counted(perfect, 0.5), **settings)
    thin = np.unique(np.linspace(0, len(lower) - 1, BAND_POINTS).astype(int))
    return AuditResult(
        epsilon_hat=shown(fpr, fnr, delta, both_events=False),
        epsilon_lower=float(lower[best]),
        epsilon_upper=float(epsilon_from_rates(rates.fpr_low, rates.fnr_low, delta).max()),
        accuracy=1 - (fpr + fnr) / 2,
        fpr=fpr,
        fnr=fnr,
        negatives=n,
        positives=n,
        trials=2 * n if trials is None else trials,
        method=f"{method}; {estimator.name}",
        neighbouring=UNSTATED if claim is None else claim.neighbouring,
        ceiling=ceiling,
        detectable=None,
        claim=claim,
        threshold=float(rates.thresholds[best]),
        reason=too_few(2 * n, ceiling, claim, confidence=confidence),
        certified=certified.of_band(rates),
        band=Band(*(tuple(float(rate) for rate in rate[thin]) for rate in rates[1:])),
        **settings,
    )


def carries_verdict(estimator: Estimator, claim: Claim | None) -> None:
    """Refuses an estimator on which no verdict may rest where there is a claim to judge.

    Raises:
      InputError: one with a caveat, or none for a curve.
    """
    if claim is not None and estimator.caveat:
        wanted = "one that a verdict on the claim may rest on"
        raise _validate.expected("estimator", wanted, f"{estimator.name} ({estimator.caveat})")


def tables(beside: np.ndarray, negatives: int, positives: int) -> list[tuple[int, int, int, int]]:
    """The four counts of every rule."""
    return [(int(fp), int(fn), negatives, positives) for fp, fn in beside]


def measured_band(rules: list[tuple[int, int, int, int]], *, confidence: float, bounds: certified.RateBounds) -> Band:
    """The rates of several rules, each bounded at its share of the error, so that all bounds of a kind hold
    together."""
    fp, fn, n0, n1 = np.unique(np.array(rules, np.float64), axis=0).T
    alpha = (1 - confidence) / (2 * len(rules))  # equal counts are drawn once, but were not known to be equal
    (fpr_low, fpr_high), (fnr_low, fnr_high) = bounds(fp, n0, alpha=alpha), bounds(fn, n1, alpha=alpha)
    rates = (fp / n0, fn / n1, fpr_low, fpr_high, fnr_low, fnr_high)
    return Band(*(tuple(float(rate) for rate in one) for one in rates))


def _p_value(claim: Claim, *counts: int, both_events: bool) -> float:
    """Of the rule, or of the better of it and its opposite, each with half of the error."""
    p = float(curve.p_value(claim, *counts))
    if not both_events:
        return p
    false_positives, false_negatives, negatives, positives = counts
    opposite = negatives - false_positives, positives - false_negatives, negatives, positives
    return min(1.0, 2 * min(p, float(curve.p_value(claim, *opposite))))


def shown(fpr: float, fnr: float, delta: float, *, both_events: bool) -> float:
    """The epsilon at these rates, of the opposite guesses too where both events are looked at."""
    rates = np.array([[fpr, fnr], [1 - fpr, 1 - fnr]] if both_events else [[fpr, fnr]])
    return float(epsilon_from_rates(rates[:, 0], rates[:, 1], delta).max())


def too_few(counted: int, ceiling: float, claim: Claim | None, *, confidence: float) -> str | None:
    """Why no violation of the claim could have been shown by so many trials; None where one could."""
    if claim is not None and claim.is_curve:
        if curve.p_value(claim, 0, 0, counted // 2, counted // 2) <= 1 - confidence:
            return None
        return f"even {counted:,} guesses without an error would not have shown a violation of this curve"
    if claim is None or ceiling > claim.epsilon:
        return None
    return f"even a perfect attack could not have shown a violation: {counted:,} counted trials certify an ε of " + (
        f"{ceiling:.2f} at most"
    )


def checked_delta(delta: float | None, claim: Claim | None) -> float:
    """The delta to use: the given one, else the claim's, else 0; never below the claim's."""
    promised = 0.0 if claim is None else claim.delta
    if delta is None:
        return promised
    _validate.probability(delta=delta)
    if delta < promised:
        raise _validate.expected("delta", f"at least the claim's own {promised:g}", delta)
    return float(delta)
