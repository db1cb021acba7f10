"""Records a Python function's noise on one input, replays it on another, and compares the values that it hides."""

import copy
import inspect
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import jax
import numpy as np

from dpaudit import _validate
from dpaudit.auditing.audit import audit
from dpaudit.auditing.bounds import gdp
from dpaudit.auditing.host import on_host
from dpaudit.auditing.lint.inspect import Finding
from dpaudit.auditing.result import AuditResult
from dpaudit.audits.recording.adapters import Adapter
from dpaudit.audits.recording.compare import compare
from dpaudit.audits.recording.outputs import Output
from dpaudit.audits.recording.pair import Comparison, Noise, Run
from dpaudit.audits.recording.result import Recording
from dpaudit.audits.recording.runs import (
    constant_draws,
    different,
    most_draws,
    moved,
    reveals_noise,
    shown,
    told_apart,
)
from dpaudit.audits.recording.sources import Sources
from dpaudit.audits.recording.trace import Endless, Trace
from dpaudit.mechanisms.claim import Claim

RUNS = 3
REPEATS = 20  # of both inputs, before an output that no noise hides is a proof
UNRECORDED = ("opendp", "jax", "tensorflow", "numba", "cupy", "cryptography", "Crypto", "randomgen", "time", "uuid")
BY_AUDIT = {"data_dependent_law"}  # findings that the claim may allow
WITH_DELTA = {"control_flow", "data_dependent_shape"}  # those that a claim with a delta may allow


def record(
    fn: Callable[..., Any],
    x0: Any,
    x1: Any,
    *,
    claim: Claim | None = None,
    adapters: Sequence[Adapter] = (),
    trials: int = 4_000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Recording:
    """Runs a function on x0 with its noise recorded, replays the noise on x1, and compares the values that it hides.

        found = dpaudit.record(fn, x0, x1, claim=dpaudit.Claim(1.0))
        print(found)

    It records NumPy's generators, new and legacy, the module ``random``, ``secrets`` and ``os.urandom``, SciPy's
    ``rvs``, torch if it is imported, and the sources that ``adapters`` name. Noise is followed through sums, products
    with numbers, reshaping and comparisons. Wherever noise was added to data, the replay continues with the value that
    x0 released. Everything computed from released values alone is then the same in both runs, and any other difference
    is hidden by no noise. The differences are compared with the scales of the noise, and composed by dp-accounting.

    It finds

    * ``sensitivity``, ``budget``: one noise, or all of them together, is too small for the difference that it hides;
    * ``missing_noise``: numbers that differ and get no noise; ``noise_reuse``: one draw that hides several values,
      also because a generator was reseeded or reset to the same state; ``constant_seed``: the same noise in every run;
    * ``data_dependent_scale``, ``data_dependent_shape``, ``data_dependent_law``, ``control_flow``: the draws depend on
      the data other than through released values;
    * ``data_dependent_output``: the keys, the shape or a value of the output depends on the data whatever the noise;
    * ``rounded_noise``: noise on a grid is added to a value that is not on that grid.

    The result is exact for these two inputs and the noise of a few runs, and says nothing about other inputs.
    Replaying cannot judge random choices, subsampling, noise of an unknown distribution, nonlinear functions of noisy
    values, noise that the output shows beside the value that it hides, and noisy values whose place depends on the
    data: for these the function is audited on the two inputs (:func:`dpaudit.audit`).

    Args:
      fn: ``fn(x)``, or ``fn(rng, x)`` with a ``numpy.random.Generator``, by the number of its arguments. It draws in
        one thread and may return anything: numbers, arrays, dictionaries, objects.
      x0, x1: two neighbouring inputs, copied for every run.
      claim: the promise.
      adapters: further sources of noise, those of libraries (:class:`Adapter`).
      trials: of the audit of what replaying cannot judge; 0 for no audit.
      confidence: of that audit.
      seed: of the noise; the result is a function of it.

    Returns:
      A :class:`Recording`.

    Raises:
      InputError: not a function; one that raises or exits, draws in several threads, or draws from a source that is
        not recorded.
    """
    if not callable(fn):
        raise _validate.expected("fn", "a function of x or of (rng, x)", fn)
    if not isinstance(claim, Claim | None):
        raise _validate.expected("claim", "a Claim or None", claim)
    for adapter in adapters:
        if not isinstance(adapter, Adapter):
            raise _validate.expected("adapters", "Adapters", adapter)
    trials, seed = _validate.at_least(0, trials=trials), _validate.at_least(0, seed=seed)
    _validate.open_unit(confidence=confidence)
    played = _Runner(fn, adapters)
    firsts = [played.run(x0, "x0", Trace(_seeds(seed, run))) for run in range(RUNS)]
    _check_sources(fn, firsts[0], played.run(x0, "x0", Trace(_seeds(seed, RUNS), firsts[0].trace)), "x0")
    seconds = [played.run(x1, "x1", Trace(_seeds(seed, run), first.trace)) for run, first in enumerate(firsts)]
    far, constant = played.far(x0, _seeds(seed, 0), firsts[0]), constant_draws(firsts)
    pairs = [
        compare(one, two, constant, shown(one, two, far, [other for other in firsts if other is not one]), claim)
        for one, two in zip(firsts, seconds, strict=True)
    ]
    faults, left = _gathered(pairs, firsts, seconds)
    drawn = any(run.trace.draws for run in (*firsts, *seconds))
    if any(fault.kind == "data_dependent_output" for fault, _ in faults):
        for x, name, run in ((x0, "x0", firsts[0]), (x1, "x1", seconds[0])):
            for _ in range(REPEATS):
                _check_sources(fn, run, played.run(x, name, Trace(_seeds(seed, 0), firsts[0].trace)), name)
        # without any draw, what is random may come from a source that is not recorded
        faults = [(fault, proves and (drawn or fault.kind != "data_dependent_output")) for fault, proves in faults]
    if not left and not any(proves for _, proves in faults):
        left += _revealed(played, x1, firsts, seconds, pairs, seed)
    coins = any(pair.coins for pair in pairs)
    if claim is not None and not coins and all(pair.returned.exceeds(claim) for pair in pairs):
        faults.append((_too_small(pairs[0], claim), True))
    elif claim is not None and any(pair.whole.exceeds(claim) for pair in pairs) and not left:
        left.append("internal releases spend more than the claim allows, but not all of them are returned")
    proved = any(proves for _, proves in faults)
    result = None
    if trials and not proved and (left or faults):
        result, refused = _audited(played, x0, x1, claim, trials, confidence, seed)
        left += refused
    delta = 0.0 if claim is None or claim.is_curve else claim.delta
    differ = any(pair.whole.pure or any(noise.difference for noise in pair.noises) for pair in pairs)
    known = not left and not any(fault.kind == "data_dependent_scale" for fault, _ in faults)
    if known and not faults and not differ:
        left.append("no value differs between the inputs, so there was nothing for the noise to hide")
    by_audit = BY_AUDIT | (set() if claim is None or claim.fnr(0.0) == 1 else WITH_DELTA)
    by_audit |= set() if drawn else {"data_dependent_output"}
    verdict = _verdict(claim, faults, left, result, by_audit)
    return Recording(
        verdict,
        _sentence(verdict, faults, left, result),
        tuple(fault for fault, _ in faults),
        pairs[0].noises,
        tuple(_allowed(noise, claim) for noise in pairs[0].noises),
        max(pair.whole.epsilon(delta) for pair in pairs) if known else None,
        min(pair.returned.epsilon(delta) for pair in pairs),
        delta,
        tuple(left),
        RUNS,
        claim,
        result,
    )


class _Runner:
    """Runs the function with its sources replaced."""

    def __init__(self, fn: Callable[..., Any], adapters: Sequence[Adapter]) -> None:
        self.fn = fn
        self.sources = Sources(inspect.unwrap(fn), adapters)
        self.takes_rng = _arguments(fn) == 2

    def call(self, x: Any, trace: Trace) -> Any:
        x = copy.deepcopy(x)
        with self.sources.recorded(trace) as rng:
            made = self.fn(rng, x) if self.takes_rng else self.fn(x)
            return Output(made)

    def run(self, x: Any, name: str, trace: Trace) -> Run:
        try:
            output = self.call(x, trace)
        except _validate.InputError:
            raise
        except (Exception, SystemExit) as error:
            wanted = f"an output for {name}" + (", as for x0" if name == "x1" else "")
            said = f"{type(error).__name__}: {_validate.one_line(str(error))}"
            raise _validate.InputError(f"fn: expected {wanted}, got {said}") from error
        if trace.threads - {threading.get_ident()}:
            raise _validate.expected("fn", "draws only in the calling thread", f"{len(trace.threads)} threads")
        return Run(trace, output)

    def far(self, x0: Any, seed: int, first: Run) -> list[Run]:
        """Runs twice with extreme noise, in opposite directions; returns nothing if the function refuses such noise,
        or redraws until it gets other noise."""
        try:
            return [self.run(x0, "x0", Trace(seed, far=far, most=most_draws(first))) for far in (1.0, -1.0)]
        except (Endless, _validate.InputError):
            return []


def _arguments(fn: Callable[..., Any]) -> int:
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return 1
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [one for one in parameters if one.kind in positional and one.default is inspect.Parameter.empty]
    if len(needed) not in (1, 2):
        raise _validate.expected("fn", "a function of x or of (rng, x)", f"a function of {len(needed)} arguments")
    return len(needed)


def _seeds(seed: int, run: int) -> int:
    return int(np.random.SeedSequence([seed, run]).generate_state(1, np.uint64)[0])


def _check_sources(fn: Callable[..., Any], run: Run, again: Run, name: str) -> None:
    """Refuses a function with unrecorded randomness: its recorded noise, replayed again, must give the same output."""
    differ, parted = different(run.output, again.output), again.trace.diverged
    parted = None if parted == run.trace.diverged else parted
    if not differ and run.output.structure == again.output.structure and parted is None:
        return
    what = f"{differ[0]} differs" if differ else parted.said if parted is not None else "its output differs"
    roots = {_root(one) for one in getattr(inspect.unwrap(fn), "__globals__", {}).values()}
    suspects = [name for name in UNRECORDED if name in roots and name in sys.modules]
    of = f" (perhaps of {', '.join(suspects)})" if suspects else ""
    raise _validate.InputError(
        f"fn: expected randomness only from recorded sources, got another one{of}: {what} with its noise replayed on "
        f"{name}; name it in adapters"
    )


def _root(value: Any) -> str:
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return name.split(".")[0] if isinstance(name, str) else ""


def _gathered(
    pairs: list[Comparison], firsts: list[Run], seconds: list[Run]
) -> tuple[list[tuple[Finding, bool]], list[str]]:
    """Gathers the faults of all pairs of runs, each once, and the reasons why replaying is not conclusive."""
    faults: dict[tuple[str, str], tuple[Finding, bool]] = {}
    for pair in pairs:
        for finding, proves in pair.faults:
            known = faults.get((finding.kind, finding.where))
            faults[finding.kind, finding.where] = (finding, proves or (known is not None and known[1]))
    left = list(dict.fromkeys(one for pair in pairs for one in pair.left))
    found = told_apart([one.output for one in firsts], [two.output for two in seconds])
    coins = any(pair.coins for pair in pairs)
    if found is not None:
        path, what = found
        same = "is the same for x0 whatever the noise, and different for x1"
        sentence = f"{path}{'' if what == 'value' else ': its structure'} {same}"
        if not coins:
            faults["data_dependent_output", path] = (Finding("data_dependent_output", sentence), True)
        else:
            left.append(f"{path} differs between the inputs")
    elif not any(pair.left for pair in pairs):
        for path, exchanged in [one for pair in zip(firsts, seconds, strict=True) for one in moved(*pair)]:
            if exchanged:
                left.append(f"which noisy value is returned at {path} depends on the data")
                break
            sentence = f"{path} differs between the inputs although all released values are the same"
            faults["data_dependent_output", path] = (Finding("data_dependent_output", sentence), False)
            break
    return list(faults.values()), left


def _revealed(
    played: _Runner, x1: Any, firsts: list[Run], seconds: list[Run], pairs: list[Comparison], seed: int
) -> list[str]:
    """Returns why the values that noise hides are not all that the output shows of it, or nothing."""
    for run, (first, second, pair) in enumerate(zip(firsts, seconds, pairs, strict=True)):
        directions = (1.0, -1.0) if run == 0 else (1.0,)  # two opposite ones change every sign once
        seeds = {_seeds(seed, RUNS + 1 + 2 * run + at): direction for at, direction in enumerate(directions)}
        if reveals_noise(lambda trace: played.run(x1, "x1", trace), first, second, pair.hiding, seeds):
            return ["the output depends on noise other than through the values that it hides"]
    return []


def _too_small(pair: Comparison, claim: Claim) -> Finding:
    """Says which noise is too small, or that all of them together are."""
    for noise in pair.noises:
        allowed = _allowed(noise, claim)
        if noise.seen and allowed is not None and noise.difference > allowed * (1 + 1e-6):
            sentence = (
                f"{noise.law} noise of scale {noise.scale:.6g} hides a difference of {noise.difference:.6g} "
                f"(L{noise.norm:g}), where the whole claim allows {allowed:.6g}"
            )
            return Finding("sensitivity", sentence, noise.where)
    delta = 0.0 if claim.is_curve else claim.delta
    spent = [noise for noise in pair.noises if noise.difference]
    who = "one noise spends" if len(spent) == 1 else f"{len(spent)} noises together spend"
    sentence = f"{who} epsilon {pair.returned.epsilon(delta):.6g} at delta {delta:g}, more than the claim"
    return Finding("budget", sentence, spent[-1].where if spent else "")


def _allowed(noise: Noise, claim: Claim | None) -> float | None:
    """Returns the difference that this noise could hide if it alone spent the whole claim."""
    if claim is None or noise.law not in ("laplace", "gaussian"):
        return None
    if noise.law == "laplace":
        return None if claim.is_curve else noise.scale * claim.epsilon
    if claim.is_curve:
        return noise.scale * claim.terms["mu"] if "mu" in claim.terms else None
    return noise.scale * float(gdp.mu_from_epsilon(claim.epsilon, claim.delta)) if claim.delta else 0.0


def _audited(
    played: _Runner, x0: Any, x1: Any, claim: Claim | None, trials: int, confidence: float, seed: int
) -> tuple[AuditResult | None, list[str]]:
    """Audits the function on the two inputs; returns the reason if its output is not an array of numbers."""

    def trial(rng: np.random.Generator, world: Any) -> Any:
        trace = Trace(int(rng.integers(2**63)))
        trace.follows = False
        return played.call(x1 if world else x0, trace).values

    try:
        settings: dict[str, Any] = {"trials": trials, "claim": claim, "confidence": confidence}
        return audit(on_host(trial), np.float32(0), np.float32(1), key=jax.random.key(seed), **settings), []
    except _validate.InputError as error:
        return None, [f"the audit refused the function: {_validate.one_line(str(error), 120)}"]


def _verdict(
    claim: Claim | None,
    faults: list[tuple[Finding, bool]],
    left: list[str],
    result: AuditResult | None,
    by_audit: set[str],
) -> str:
    if claim is None:
        return "fault" if faults else "measured"
    if any(proves for _, proves in faults) or (result is not None and result.verdict == "violation"):
        return "violation"
    if any(result is None or fault.kind not in by_audit for fault, _ in faults):
        return "fault"
    if left or faults:
        return "underpowered" if result is None else result.verdict
    return "consistent"


def _sentence(verdict: str, faults: list[tuple[Finding, bool]], left: list[str], result: AuditResult | None) -> str:
    pair = "on these two inputs"
    if verdict == "violation" and (result is None or result.verdict != "violation"):
        shown = next(fault for fault, proves in faults if proves)
        return f"{pair}, replaying the noise of {RUNS} runs shows more than the claim allows: {shown.sentence}"
    if result is not None:
        open_ = "; ".join(left) or "; ".join(fault.sentence for fault, _ in faults)
        bound = f"epsilon is at least {result.epsilon_lower:.3g} with confidence {result.confidence:g}"
        return f"replaying is not conclusive ({open_}); by {result.trials:,} trials {pair} {bound}"
    if verdict == "consistent":
        return f"{pair} and the noise of {RUNS} runs, all releases keep the claim; other inputs were not tried"
    if verdict == "fault":
        return f"{pair}, {faults[0][0].sentence}; its privacy loss is not known without an audit"
    if verdict == "underpowered":
        return f"replaying is not conclusive, and no audit was run: {'; '.join(left)}"
    return f"{pair}, by the noise of {RUNS} runs" + (
        f"; replaying is not conclusive: {'; '.join(left)}" if left else ""
    )
