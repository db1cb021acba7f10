"""Defines AuditResult: the outcome of an audit, with the promise that it tested."""

import dataclasses
import json
import math
from typing import Any, NamedTuple

from dpaudit import _validate
from dpaudit.auditing.bounds.certified import Certificates, Certified
from dpaudit.mechanisms.claim import Claim

INFINITIES = {"inf": math.inf, "-inf": -math.inf}
UNSTATED = "the two given inputs (no relation claimed)"
CERTIFIED = "certified_"  # before the names of Certificates in a row
ENDS = ("", "_lower", "_upper")  # of the fields of Certified in a row


class Band(NamedTuple):
    """Error rates of several thresholds of the deciding score, [t] each; all upper bounds hold together, and so do all
    lower ones."""

    fpr: tuple[float, ...]
    fnr: tuple[float, ...]
    fpr_low: tuple[float, ...]
    fpr_high: tuple[float, ...]
    fnr_low: tuple[float, ...]
    fnr_high: tuple[float, ...]


class Tried(NamedTuple):
    """An attack of the family, with its epsilon on the trials set aside, which is not a bound.

    Attributes:
      name: of what it reads.
      bound: epsilon of its best rule at the level at which rules are compared, in nats.
      accuracy: of that rule; None for an attack that was only screened on the pilot, the first of these trials.
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
      neighbouring: the relation and unit that the numbers refer to.
      ceiling: the largest epsilon_lower that this many counted trials can certify.
      detectable: the smallest true epsilon that would have been called a violation with probability 0.8: for a family
        of attacks, by the chosen attack on mechanisms that lose more than this one
        (:mod:`dpaudit.auditing.bounds.alternative`); for a named attack, by a perfect one. None without a claim and
        for a curve.
      claim: the promise, or None.
      threshold: of the rule "world 1 where score > threshold"; None where only the counts of a rule are known.
      side: "above"; "not above" if the rule was "world 1 where not score > threshold"; "either" for a rule fixed in
        advance, for which both events were tested, the score above the threshold and not above it, each at half of the
        error: the rates and the accuracy are those of the rule, the epsilons the larger ones.
      reason: why the trials could not have shown a violation; None if they could.
      p_value: of the hypothesis that the promise is kept, if it is a curve (:func:`curve.p_value`); else None.
      attacks: all that were tried, with their results on the trials set aside; the first one was chosen. Empty if the
        attack was named.
      certified: advantage, accuracy, TPR at a small FPR and posterior, with bounds.
      band: the measured trade-off curve; None if only the counts of one rule are known.
      normal: whether the scores of a world pass for normal ones, on the trials set aside or, of a band, on all.
      power: the probability that this audit would have called the given alternative a violation, by the error rates
        measured on it; None without one.
      reading: "gaussian" if the next three hold the epsilon that follows if the trade-off curve is Gaussian; no
        verdict rests on them.
      reading_hat, reading_lower, reading_upper: that epsilon and its bounds, in nats.
      reproducible: the same key plays the same trials again. False of a function on the host that was seen to draw
        from elsewhere: another run, and one that goes on from a checkpoint, then plays other trials. The bounds hold
        all the same.
      low_bits: with probability >= confidence, epsilon is at least this by the last digits of floats alone, which
        nearly every mechanism that adds floats leaks. No other number here, and no verdict, rests on them unless
        :data:`distinguish.lowest_bits` is among the attacks. None where they were not looked at: in JAX, where an
        attack was named alone, and where releases hold no floats.
      canary: the user of a protocol whom a search found, as lists and numbers; None where the canary was given.
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
    threshold: float | None
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
    reproducible: bool = True
    low_bits: float | None = None
    canary: Any = None

    @property
    def verdict(self) -> str:
        """Returns one word: violation, underpowered (none could have been shown: see ``reason``), consistent, or
        measured (no claim)."""
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
        """Returns a flat dictionary of JSON values: the fields, the claim's own, and the verdict; infinity is "inf".
        Attacks that were tried are a list of dictionaries, a band is a dictionary of lists."""
        row = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del row["claim"], row["attacks"], row["certified"], row["band"]
        for name, one in ({} if self.certified is None else self.certified._asdict()).items():
            row |= {f"{CERTIFIED}{name}{end}": value for end, value in zip(ENDS, one, strict=True)}
        if self.band is not None:
            row["band"] = {name: list(rates) for name, rates in self.band._asdict().items()}
        if self.canary is None:
            del row["canary"]
        if self.attacks:
            row["attacks"] = [one._asdict() for one in self.attacks]
        epsilon, delta, _ = self.claim or (None, None, None)
        row |= {"claim_epsilon": epsilon, "claim_delta": delta, "verdict": self.verdict}
        if self.claim is not None and self.claim.is_curve:
            row["claim_terms"] = self.claim.terms
        return {name: json_number(value) for name, value in row.items()}

    def to_json(self) -> str:
        """Returns the row as JSON text; :meth:`from_json` gives the same result back."""
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
            values: dict[str, Any] = {name: INFINITIES.get(row[name], row[name]) for name in names if name != "canary"}
            values["canary"] = row.get("canary")
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
    """Writes infinity, which strict JSON lacks, as the text "inf" or "-inf", also in lists and dictionaries; other
    values stay."""
    if isinstance(value, dict):
        return {name: json_number(one) for name, one in value.items()}
    if isinstance(value, list):
        return [json_number(one) for one in value]
    return str(float(value)) if isinstance(value, float) and math.isinf(value) else value


def checked_delta(delta: float | None, claim: Claim | None) -> float:
    """Returns the given delta, else the claim's, else 0; refuses one below the claim's, and what is no claim."""
    if not isinstance(claim, Claim | None):
        raise _validate.expected("claim", "a Claim or None", claim)
    promised = 0.0 if claim is None else claim.delta
    if delta is None:
        return promised
    _validate.probability(delta=delta)
    if delta < promised:
        raise _validate.expected("delta", f"at least the claim's own {promised:g}", delta)
    return float(delta)
