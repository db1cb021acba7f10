"""Examines a mechanism by all checks (program, sensitivity, worst pair, attacks) and gives one verdict."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpaudit import _validate
from dpaudit._engine import programs
from dpaudit._engine.game import trials_per_second
from dpaudit.auditing.attacks.choose import pairs_aside
from dpaudit.auditing.audit import audit
from dpaudit.auditing.bounds import alternative
from dpaudit.auditing.bounds.estimate import clopper_pearson
from dpaudit.auditing.domain import Domain, Pair
from dpaudit.auditing.domain import checked as checked_domain
from dpaudit.auditing.foresight import worse_than
from dpaudit.auditing.lint import probe
from dpaudit.auditing.lint.inspect import ORDERS, Finding, inspect
from dpaudit.auditing.result import AuditResult
from dpaudit.auditing.search import search
from dpaudit.auditing.shown import beside
from dpaudit.mechanisms.claim import Claim, Mechanism

TRIALS = (10_000, 30_000, 100_000, 300_000, 1_000_000)  # of an audit
STARTS, STEPS, LOOK_TRIALS = 16, 8, 1_000  # of the search
SEARCH_SECONDS = 6.0  # with less than that left, the time would go into compilation
RATE_SECONDS = 0.2
CANDIDATES = 256  # pairs drawn from the domain, of which the widest is audited first
FIRST_SHARE = 0.25  # of the error, for the widest pair; the rest is for the worst one
ROUNDING = 2.0**-22  # relative rounding of a difference of two float32 numbers
LEAST_SECONDS = 1.0


class Step(NamedTuple):
    """One step of an examination.

    Attributes:
      name: what was done.
      found: what it found, in a sentence.
      seconds: how long it took.
    """

    name: str
    found: str
    seconds: float


class Examination(NamedTuple):
    """What an examination found.

    Attributes:
      verdict: "violation" if an audit proved a loss above the claim; "fault" if the program or its sensitivity has a
        fault although no audit showed more than the claim; otherwise that of the last audit: "underpowered" or
        "consistent".
      sentence: the verdict in one sentence.
      steps: everything that was tried, in order, with what it found.
      findings: faults of the program.
      results: of the audits, each at its share of the error; all their bounds hold together at ``confidence``.
      pairs: on which they were played.
      confidence: of all bounds together.
    """

    verdict: str
    sentence: str
    steps: tuple[Step, ...]
    findings: tuple[Finding, ...]
    results: tuple[AuditResult, ...]
    pairs: tuple[Pair, ...]
    confidence: float

    @property
    def result(self) -> AuditResult:
        """Returns the audit on which the verdict rests: one that proved a violation if there is any, else one with the
        verdict of the last. Of several it is that with the largest lower bound, then that with the most trials."""
        return _decisive(self.results)

    @property
    def pair(self) -> Pair:
        """Returns the pair of that audit."""
        return self.pairs[self.results.index(self.result)]

    def curve(self) -> dict[str, list[float]]:
        """Returns the promised trade-off curve, the decisive rule between its bounds (mixed with guessing at both
        ends), and the measured band of the deciding score: rates of its thresholds, whose bounds hold together."""
        result, fpr = self.result, np.linspace(0.0, 1.0, 201)
        assert result.claim is not None
        alpha = (1 - result.confidence) / 2
        rates = {
            "fpr": clopper_pearson(round(result.fpr * result.negatives), result.negatives, alpha=alpha),
            "fnr": clopper_pearson(round(result.fnr * result.positives), result.positives, alpha=alpha),
        }
        found = {"claimed_fpr": fpr.tolist(), "claimed_fnr": np.asarray(result.claim.fnr(fpr)).tolist()}
        for end, name in enumerate(("low", "high")):
            found[f"fpr_{name}"] = [0.0, float(rates["fpr"][end]), 1.0]
            found[f"fnr_{name}"] = [1.0, float(rates["fnr"][end]), 0.0]
        if result.band is not None:
            found |= {f"band_{name}": list(one) for name, one in result.band._asdict().items()}
        return found

    def with_more(self) -> list[dict[str, float]]:
        """Predicts what the decisive attack would detect with ten and a hundred times the trials; empty for a
        curve."""
        result = self.result
        if result.claim is None or result.claim.is_curve:
            return []
        settings: dict[str, Any] = {"delta": result.delta, "confidence": result.confidence}
        found = []
        for trials in (10 * result.trials, 100 * result.trials):
            aside = pairs_aside(trials // 2, result.claim, named=False, stops=False)
            pairs = trials // 2 - aside
            detectable = alternative.detectable(
                worse_than(result, aside), result.claim.epsilon, pairs, pairs, **settings
            )
            found.append({"trials": trials, "detectable": detectable})
        return found


def examine(
    mechanism: Mechanism | Callable[[jax.Array, Any], Any],
    domain: Domain | Pair,
    claim: Claim | None = None,
    *,
    key: jax.Array,
    seconds: float = 30.0,
    confidence: float = 0.95,
    sensitivity: float | None = None,
    norm_order: float = 2,
    progress: Callable[[str, float], None] | None = None,
) -> Examination:
    """Runs all checks on a mechanism within a budget of seconds, and gives one verdict.

    In this order it checks that the mechanism is a pure function of its key; reads its program for faults
    (:func:`dpaudit.inspect`); compares its sensitivity with the declared one, by brute force over pairs of the domain
    under one key; audits the widest of many random pairs with the portfolio of attacks; searches for the pair that can
    be told apart best (:func:`dpaudit.search`); and audits that pair with as many trials as time allows. The first
    proof of a violation ends it.

    Each audit has a share of 1 - ``confidence``, so all bounds hold together. How many trials fit depends on the
    machine; everything else is a function of the key.

    Args:
      mechanism: as for :func:`dpaudit.audit`.
      domain: which pairs are neighbours (:mod:`dpaudit.domain`), or a single pair (x0, x1).
      claim: the promise; defaults to the mechanism's own.
      key: a jax.random key, consumed.
      seconds: about how long the examination may take, >= 1; a step that has begun is finished.
      confidence: of all bounds together.
      sensitivity: the most that releases of neighbours may differ under one key, for mechanisms that add noise. None:
        not checked.
      norm_order: of that difference: 1, 2 or infinity.
      progress: called with the name of each step before it begins and the seconds that have passed.

    Returns:
      An :class:`Examination`.

    Raises:
      InputError: no claim, a value out of range, a budget too small for any attack, and whatever
        :func:`dpaudit.audit` refuses.
    """
    key = _validate.key(key=key)
    if not isinstance(mechanism, Mechanism):
        if not callable(mechanism):
            raise _validate.expected("mechanism", "a Mechanism or a function of (key, x)", mechanism)
        mechanism = Mechanism(mechanism)
    claim = mechanism.claim if claim is None else claim
    if not isinstance(claim, Claim):
        raise _validate.expected("claim", "a Claim, of the mechanism or of its own, to examine it by", claim)
    _validate.open_unit(confidence=confidence)
    if not seconds >= LEAST_SECONDS:
        raise _validate.expected("seconds", f"at least {LEAST_SECONDS:g}, as no attack is played in less", seconds)
    if sensitivity is not None:
        _validate.positive(sensitivity=sensitivity)
    if norm_order not in ORDERS:
        raise _validate.expected("norm_order", "1, 2 or infinity", norm_order)
    diary = _Diary(seconds, progress)
    settings = {"confidence": confidence, "sensitivity": sensitivity, "norm_order": norm_order}
    return _carry_out(diary, mechanism, domain, claim, key, **settings)


class _Diary:
    """Keeps what was done, how long it took, and how much time is left."""

    def __init__(self, seconds: float, progress: Callable[[str, float], None] | None):
        self._began, self._budget, self._progress = time.perf_counter(), seconds, progress
        self.steps: list[Step] = []

    def passed(self) -> float:
        return time.perf_counter() - self._began

    def left(self) -> float:
        return self._budget - self.passed()

    def do(self, name: str, action: Callable[[], Any], say: Callable[[Any], str]) -> Any:
        """Carries out one step and notes its result in the words of ``say``."""
        if self._progress is not None:
            self._progress(name, self.passed())
        before = self.passed()
        done = action()
        self.steps.append(Step(name, say(done), self.passed() - before))
        return done


class _Attacks:
    """Audits of one mechanism, each with its share of the error."""

    def __init__(self, diary: _Diary, mechanism: Mechanism, claim: Claim, confidence: float):
        self._diary, self._mechanism, self._claim, self._confidence = diary, mechanism, claim, confidence
        self.results: list[AuditResult] = []
        self.pairs: list[Pair] = []

    def play(self, name: str, pair: Pair, key: jax.Array, *, trials: int, share: float) -> bool:
        """Audits a pair, and returns whether its loss is proved to exceed the claim."""
        settings = {"trials": trials, "claim": self._claim, "confidence": 1 - share * (1 - self._confidence)}
        result = self._diary.do(
            f"attack {name} in {trials:,} trials",
            lambda: audit(self._mechanism, *pair, key=key, **settings),
            lambda result: f"{result.method}: epsilon is at least {_lower(result, self._claim)}; {result.verdict}.",
        )
        self.results.append(result)
        self.pairs.append(pair)
        return result.verdict == "violation"

    def fitting(self, pair: Pair, key: jax.Array) -> int:
        """Returns how many trials fit into half of the time that is left: 1 or 3 times a power of ten."""

        def release(key: jax.Array, world: int) -> Any:
            return self._mechanism.apply(key, pair[world])

        rate = trials_per_second(key, release, _first_number, seconds=RATE_SECONDS)
        room = rate * self._diary.left() / 2
        return max([trials for trials in TRIALS if trials <= room], default=TRIALS[0])


def _carry_out(
    diary: _Diary,
    mechanism: Mechanism,
    domain: Domain | Pair,
    claim: Claim,
    key: jax.Array,
    *,
    confidence: float,
    sensitivity: float | None,
    norm_order: float,
) -> Examination:
    """Carries out the examination of inputs that were checked."""
    draw_key, look_key, rate_key, first_key, search_key, last_key = jax.random.split(key, 6)
    drawn = _drawn(domain, draw_key)
    pair, attacks = _widest(drawn), _Attacks(diary, mechanism, claim, confidence)
    diary.do(
        "check whether it is a pure function of its key",
        lambda: probe.examine(mechanism, *pair),
        lambda _: "It is, as far as tracing and running it twice can show.",
    )
    findings = diary.do("read the program", lambda: _read(mechanism, pair, claim, look_key), _listed)
    if sensitivity is not None:
        findings += diary.do(
            f"compare releases of {len(jax.tree.leaves(drawn)[0])} pairs under one key",
            lambda: _too_far(mechanism, drawn, look_key, sensitivity, norm_order),
            lambda found: _listed(found) if found else f"None are more than {sensitivity:g} apart.",
        )
    if isinstance(domain, Domain):
        proved = attacks.play("the widest pair", pair, first_key, trials=TRIALS[0], share=FIRST_SHARE)
        if not proved and diary.left() >= SEARCH_SECONDS:
            settings: dict[str, Any] = {
                "starts": STARTS,
                "steps": STEPS,
                "look_trials": LOOK_TRIALS,
                "trials": TRIALS[0],
            }
            found = diary.do(
                "search for the worst pair",
                lambda: search(mechanism, domain, key=search_key, claim=claim, **settings),
                lambda found: f"{found.trials:,} trials led to a pair that seems to show {found.history.max():.3g}.",
            )
            pair = (found.x0, found.x1)
        share = 1 - FIRST_SHARE
    else:
        proved, share = False, 1.0
    if not proved:
        trials = attacks.fitting(pair, rate_key)
        attacks.play("the worst pair", pair, last_key, trials=trials, share=share)
    verdict, sentence = _judged(attacks.results, findings, claim)
    found = tuple(findings), tuple(attacks.results), tuple(attacks.pairs)
    return Examination(verdict, sentence, tuple(diary.steps), *found, confidence)


def _drawn(domain: Domain | Pair, key: jax.Array) -> Pair:
    """Draws pairs of the domain, leaves [n, ...]."""
    if isinstance(domain, Domain):
        draw = programs.shared(jax.vmap(checked_domain(domain=domain).draw))
        return draw(jax.random.split(key, CANDIDATES))
    if isinstance(domain, tuple) and len(domain) == 2:
        x0, x1 = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], domain)
        return x0, x1
    raise _validate.expected("domain", "a Domain, such as dpaudit.domain.ball(10, 1.0), or a pair (x0, x1)", domain)


def _widest(drawn: Pair) -> Pair:
    """Finds the pair whose inputs are farthest apart."""
    x0, x1 = (jax.tree.leaves(side) for side in drawn)
    apart = sum(np.abs(np.asarray(b, np.float64) - a).reshape(len(a), -1).sum(1) for a, b in zip(x0, x1, strict=True))
    widest = int(np.argmax(apart))
    return jax.tree.map(lambda leaf: leaf[widest], drawn[0]), jax.tree.map(lambda leaf: leaf[widest], drawn[1])


def _read(mechanism: Mechanism, pair: Pair, claim: Claim, key: jax.Array) -> list[Finding]:
    """Returns the faults of the program; none for a function on the host, which cannot be read."""
    try:
        return list(inspect(mechanism, *pair, key=key, claim=claim).findings)
    except _validate.InputError:  # inputs of two shapes, a call to Python
        return []


def _too_far(
    mechanism: Mechanism, drawn: Pair, key: jax.Array, sensitivity: float, norm_order: float
) -> list[Finding]:
    """Returns a finding if releases of some neighbours under one key are farther apart than is declared."""

    def shift(pair: Pair) -> jax.Array:
        one, other = (
            jnp.concatenate([jnp.ravel(leaf).astype(jnp.float32) for leaf in jax.tree.leaves(mechanism.apply(key, x))])
            for x in pair
        )
        scale = jnp.maximum(jnp.abs(one), jnp.abs(other)).max()  # of the rounding of what is compared
        return jnp.stack([jnp.linalg.norm(one - other, norm_order), one.size * scale])

    shifts = np.asarray(programs.shared(lambda pairs: jax.lax.map(shift, pairs, batch_size=16))(drawn), np.float64)
    excess = shifts[:, 0] - sensitivity - ROUNDING * shifts[:, 1]
    worst = int(np.argmax(excess))
    if not excess[worst] > 0:
        return []
    sentence = (
        f"Under the same randomness the releases of two neighbours of the domain are {shifts[worst, 0]:.6g} apart in "
        f"the norm of order {norm_order:g}: more than the declared sensitivity {sensitivity:g}."
    )
    return [Finding("sensitivity", sentence)]


def _listed(findings: list[Finding]) -> str:
    return " ".join(map(str, findings)) or "Nothing was found."


def _decisive(results: Sequence[AuditResult]) -> AuditResult:
    """Returns the audit on which the verdict rests."""
    verdicts = [result.verdict for result in results]
    verdict = "violation" if "violation" in verdicts else verdicts[-1]
    return max(
        (result for result in results if result.verdict == verdict),
        key=lambda result: (result.epsilon_lower, result.trials),
    )


def _lower(result: AuditResult, claim: Claim) -> str:
    return beside(result.epsilon_lower, None if claim.is_curve else claim.epsilon)


def _judged(results: list[AuditResult], findings: list[Finding], claim: Claim) -> tuple[str, str]:
    """Returns (verdict, sentence)."""
    best = _decisive(results)
    lower, promised = _lower(best, claim), f"{claim.epsilon:g}"
    if claim.is_curve:
        lower, promised = f"{lower} at delta {best.delta:.3g}", repr(claim)
    if best.verdict == "violation":
        return "violation", f"The promise of {promised} is broken: the loss is at least {lower}."
    if findings:
        return (
            "fault",
            f"The program has a fault, although no attack showed more than the promised {promised}: {findings[0]}",
        )
    if best.verdict == "underpowered":
        sentence = f"It is not known whether {promised} is kept: {best.reason}. The loss is at least {lower}."
        return best.verdict, sentence
    return best.verdict, f"No attack that was tried breaks the promise of {promised}; the loss is at least {lower}."


def _first_number(release: Any) -> jax.Array:
    leaf = next(leaf for leaf in map(jnp.asarray, jax.tree.leaves(release)) if leaf.size)
    return jnp.ravel(leaf)[0].astype(jnp.float32)
