"""AuditResult: what an audit found, beside what was promised."""

import dataclasses
import json
import math
from typing import Any, NamedTuple

import numpy as np

from dpaudit import _validate
from dpaudit.auditing.bounds import curve, plan
from dpaudit.auditing.bounds.estimate import epsilon_bounds, epsilon_from_rates
from dpaudit.mechanisms.claim import Claim

INFINITIES = {"inf": math.inf, "-inf": -math.inf}
UNSTATED = "the two given inputs (no relation claimed)"
SIDES = ("above", "not above", "either")


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
        (:mod:`dpaudit.auditing.bounds.alternative`); where one was named, were it perfect. None without a claim and for a
        curve.
      claim: the promise, or None.
      threshold: the rule was "world 1 where score > threshold".
      side: "above"; "not above" where the rule was "world 1 where not score > threshold"; "either" for a rule fixed
        in advance, of which both events were looked at, the score above the threshold and not above it, each with half
        of the error: the rates and the accuracy are those of the rule, the epsilons the larger ones.
      reason: why the trials could have shown no violation, in words; None where they could.
      p_value: of "the promise is kept", where it is a curve (:func:`curve.p_value`); else None.
      attacks: all that were tried, as the trials set aside saw them; the first one was chosen. Empty where one was
        named.
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
        that were tried are a list of dictionaries."""
        row = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del row["claim"], row["attacks"]
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
            names = [field.name for field in dataclasses.fields(cls) if field.name not in ("claim", "attacks")]
            values: dict[str, Any] = {name: INFINITIES.get(row[name], row[name]) for name in names}
            values["attacks"] = tuple(Tried(**one) for one in row.get("attacks", ()))
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

    Raises:
      InputError: a value out of range.
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
    fpr, fnr = false_positives / negatives, false_negatives / positives
    settings = {"delta": delta, "confidence": confidence}
    counts = (false_positives, false_negatives, negatives, positives)
    lower, upper = epsilon_bounds(*counts, **settings, both_events=both_events)
    tested = settings | {"confidence": (1 + confidence) / 2 if both_events else confidence}  # of each event
    ceiling = plan.ceiling(negatives, positives, **tested)
    detectable = p_value = None
    if claim is not None and claim.is_curve:
        p_value = _p_value(claim, *counts, both_events=both_events)
    elif claim is not None and perfect:
        detectable = plan.detectable(claim.epsilon, negatives, positives, **tested)
    return AuditResult(
        epsilon_hat=shown(fpr, fnr, delta, both_events=both_events),
        epsilon_lower=float(lower),
        epsilon_upper=float(upper),
        accuracy=1 - (fpr + fnr) / 2,
        fpr=fpr,
        fnr=fnr,
        negatives=negatives,
        positives=positives,
        trials=negatives + positives if trials is None else trials,
        delta=delta,
        confidence=confidence,
        method=f"{method}; Clopper-Pearson",
        neighbouring=UNSTATED if claim is None else claim.neighbouring,
        ceiling=ceiling,
        detectable=detectable,
        claim=claim,
        threshold=threshold,
        side="either" if both_events else "above",
        reason=too_few(negatives + positives, ceiling, claim, confidence=tested["confidence"]),
        p_value=p_value,
    )


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
