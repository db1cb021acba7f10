"""Finds faults that trials cannot see, by reading a mechanism's program and replaying its randomness."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from dpaudit import _validate
from dpaudit.auditing.lint import releases, trace
from dpaudit.mechanisms.claim import Claim, Mechanism

ORDERS = (1, 2, math.inf)
SUSPECTS, PLACES, SALTS = (
    4,
    3,
    2,
)  # keys tried per pair of lines, uses of one key per line, other keys tried in its place


class Finding(NamedTuple):
    """One fault.

    Attributes:
      kind: ``"key_reuse"``, ``"low_precision"``, ``"shared_noise"``, ``"sensitivity"``, ``"ignores_key"`` or
        ``"non_finite"``.
      sentence: what is wrong.
      where: ``file:line`` in the mechanism, or empty where no single line is to blame.
    """

    kind: str
    sentence: str
    where: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.sentence}" + (f" ({self.where})" if self.where else "")


class Inspection(NamedTuple):
    """What an inspection found.

    Attributes:
      findings: the faults; empty where none were found.
      shift: the largest distance between releases of both worlds under one key, or None where no sensitivity is
        declared.
    """

    findings: tuple[Finding, ...]
    shift: float | None = None

    @property
    def kinds(self) -> frozenset[str]:
        """Returns the kinds of all findings."""
        return frozenset(finding.kind for finding in self.findings)

    def __str__(self) -> str:
        return "\n".join(map(str, self.findings)) or "nothing found"


def inspect(
    mechanism: Mechanism | Callable[[jax.Array, Any], Any],
    x0: Any,
    x1: Any,
    *,
    key: jax.Array | None = None,
    claim: Claim | None = None,
    sensitivity: float | None = None,
    norm_order: float = 2,
    stretches: Sequence[float] = (-1.0, 1e3, -1e3),
    per_client: bool | None = None,
) -> Inspection:
    """Looks inside a mechanism for faults of its randomness and of its sensitivity.

    The mechanism is traced once and evaluated equation by equation in both worlds with the same key. It finds

    * ``key_reuse``: two draws, or a draw and a split, consume keys of the same value, and the release depends on
      both: it changes with another key in place of either. ``fold_in`` consumes nothing; two branches of a ``where``
      may use the same key;
    * ``low_precision``: random numbers that are narrower than float32 before data is added to them;
    * ``shared_noise``: clients (rows of the leading axis) with equal inputs always get equal random releases;
    * ``sensitivity``: |release(x0 + s (x1 - x0)) - release(x0)| under one key exceeds ``sensitivity`` for s = 1 or one
      of ``stretches``; where the claim says "replace", any two of these inputs are compared. For additive noise the
      difference is free of noise;
    * ``ignores_key``: no release depends on the key; ``non_finite``: a release holds NaN or infinity.

    It does not see which keys are consumed inside ``shard_map`` (whose rows are still compared), reuse on a path that
    neither world takes, or reuse in a discrete release that another key happens not to change. Deliberate reuse, such
    as masks that cancel, is reported too. Loops that draw run one iteration at a time, some thousand equations a
    second.

    Args:
      mechanism: a :class:`Mechanism`, or any jittable ``fn(key, x) -> release``.
      x0, x1: two neighbouring inputs of equal shapes.
      key: a jax.random key, consumed. Any will do, since nothing is estimated: None takes ``jax.random.key(0)``.
      claim: the promise, for its neighbouring relation; defaults to the mechanism's own.
      sensitivity: the most that neighbours may differ before noise, in the norm of order ``norm_order`` over all
        floating leaves of the release together. None: not checked. Meant for additive noise.
      norm_order: 1, 2 or infinity.
      stretches: factors for the difference x1 - x0, so that a clip that is missing shows; empty where the mechanism
        relies on the range of its inputs.
      per_client: whether the leading axis is one of clients, each with a release of its own. None: compared where an
        input has rank 2 or more and each row of the release is seen to depend on its own row of the input alone.

    Returns:
      An :class:`Inspection`; the absence of findings proves nothing.

    Raises:
      InputError: a value out of range, inputs of different shapes, a mechanism that JAX cannot trace.
    """
    function = mechanism.apply if isinstance(mechanism, Mechanism) else mechanism
    if not callable(function):
        raise _validate.expected("mechanism", "a Mechanism or a function of (key, x)", mechanism)
    claim = mechanism.claim if claim is None and isinstance(mechanism, Mechanism) else claim
    if not isinstance(claim, Claim | None):
        raise _validate.expected("claim", "a Claim or None", claim)
    key = jax.random.key(0) if key is None else _validate.key(key=key)
    if sensitivity is not None:
        _validate.positive(sensitivity=sensitivity)
    if norm_order not in ORDERS:
        raise _validate.expected("norm_order", "1, 2 or infinity", norm_order)
    _validate.finite(stretches=list(stretches))
    if _shapes(_validate.finite(x0=x0)) != _shapes(_validate.finite(x1=x1)):
        raise _validate.expected("x1", f"the shapes and types of x0, {_shapes(x0)}", _shapes(x1))

    def apply(key: jax.Array, x: Any) -> Any:
        return jax.tree.map(trace.key_words, function(key, x))

    program = _traced(apply, key, x0)
    found = [finding for x in (x0, x1) for finding in _of_trace(program, key, x)]
    release, keys, shift = jax.jit(apply), jax.random.split(key, releases.KEYS), None
    if any(releases.not_finite(release, keys, x) for x in (x0, x1)):
        found.append(Finding("non_finite", "A release holds NaN or infinity though its input is finite."))
    if releases.shares_noise(release, keys, x0, x1, per_client):
        found.append(
            Finding("shared_noise", "Clients with equal inputs get the same random release, under every key.")
        )
    if sensitivity is not None:
        factors = (0.0, 1.0, *stretches)
        pairs = list(itertools.combinations(factors, 2))
        if claim is None or claim.neighbouring != "replace":  # the record that is absent in x0 stays absent
            pairs = [pair for pair in pairs if pair[0] == 0]
        largest = releases.largest_shift(release, keys, pairs, x0, x1, norm_order)
        shift = largest.size
        if not shift <= sensitivity * (1 + 1e-4) + largest.rounding:
            found.append(_exceeded(largest, sensitivity, norm_order))
    return Inspection(tuple(dict.fromkeys(found)), shift)


def _of_trace(program: Any, key: jax.Array, x: Any) -> Iterator[Finding]:
    run = trace.run(program, key, x)
    if all(label < trace.KEY for label in run.labels):
        yield Finding(
            "ignores_key", "The release does not depend on the key: it is not random, and epsilon is infinite."
        )
    for dtype, where in run.tape.coarse:
        yield Finding(
            "low_precision", f"Noise is {dtype} before it is added: its tails end where few bits end.", where
        )
    yield from _reused(program, key, x, run)


def _reused(program: Any, key: jax.Array, x: Any, run: trace.Run) -> Iterator[Finding]:
    """Finds keys that are consumed more than once, at least once by a draw, where two of the uses affect the
    release."""
    by_key: dict[bytes, list[trace.Use]] = {}
    for use in run.tape.uses:
        by_key.setdefault(use.key, []).append(use)
    tried: dict[frozenset[str], int] = {}
    for uses in by_key.values():
        lines = frozenset(use.where for use in uses)
        if len(uses) < 2 or all(use.kind == "split" for use in uses) or tried.get(lines, 0) >= SUSPECTS:
            continue
        tried[lines] = tried.get(lines, 0) + 1
        live = []
        for use in _few_of_each_line(uses):
            repeated = use.again and any(other.where == use.where for other in live)
            if not repeated and _matters(program, key, x, run, use):
                live.append(use)
            if len(live) > 1 and any(use.kind == "draw" for use in live):
                tried[lines] = SUSPECTS
                yield _reuse(*sorted(live, key=lambda use: use.kind)[:2])
                break


def _few_of_each_line(uses: list[trace.Use]) -> list[trace.Use]:
    seen: dict[tuple[str, str], int] = {}
    kept = []
    for use in uses:
        seen[use.where, use.kind] = seen.get((use.where, use.kind), 0) + 1
        if seen[use.where, use.kind] <= PLACES:
            kept.append(use)
    return kept


def _matters(program: Any, key: jax.Array, x: Any, run: trace.Run, use: trace.Use) -> bool:
    """Tells whether another key for this use alone changes the release."""
    swaps = [trace.Swap(use.place, use.row, salt) for salt in range(1, 1 + SALTS)]
    return any(not _equal(trace.run(program, key, x, swap).leaves, run.leaves) for swap in swaps)


def _equal(left: Sequence[Any], right: Sequence[Any]) -> bool:
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in zip(left, right, strict=True))


def _reuse(first: trace.Use, second: trace.Use) -> Finding:
    how = "drawn from twice" if second.kind == "draw" else "drawn from and split"
    also = f", the other time at {second.where}" if second.where != first.where else ""
    return Finding("key_reuse", f"A key of one value is {how}{also}: the draws are not independent.", first.where)


def _exceeded(shift: releases.Shift, sensitivity: float, norm_order: float) -> Finding:
    names = {0.0: "x0", 1.0: "x1"}
    inputs = " and ".join(names.get(s, f"x0 {'-' if s < 0 else '+'} {abs(s):g} (x1 - x0)") for s in shift.factors)
    return Finding(
        "sensitivity",
        f"Under the same randomness the releases of {inputs} are {shift.size:.6g} apart in the norm of order "
        f"{norm_order:g}: more than the declared sensitivity {sensitivity:g}.",
    )


def _traced(apply: Callable[..., Any], key: jax.Array, x: Any) -> Any:
    try:
        return jax.make_jaxpr(apply)(key, x)
    except _validate.InputError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise _validate.expected("mechanism", "a function of (key, x) that JAX can trace", reason) from error


def _shapes(x: Any) -> Any:
    return jax.tree.map(lambda leaf: (np.shape(leaf), str(jax.numpy.result_type(leaf))), x)
