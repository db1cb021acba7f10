"""Finds faults that trials may miss, by reading a mechanism's program and replaying its randomness.

Releases of both worlds under the same keys reveal large shifts, shared noise, and values that are not finite.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpaudit import _validate
from dpaudit._engine import programs
from dpaudit.auditing.lint import trace
from dpaudit.mechanisms.claim import Claim, Mechanism

ORDERS = (1, 2, math.inf)
SUSPECTS, PLACES, SALTS = 4, 3, 2  # keys tried per pair of lines, its uses per line, other keys tried in its place
KEYS = 32  # a binary release of two clients agrees by chance on all of them with probability 2^-32
SHIFT_KEYS = 8  # under some keys a sampled record is left out


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
    """Searches a mechanism's program for faults of its randomness and of its sensitivity.

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
    release, keys, shift = programs.shared(apply), jax.random.split(key, KEYS), None
    if any(_not_finite(release, keys, x) for x in (x0, x1)):
        found.append(Finding("non_finite", "A release holds NaN or infinity although its input is finite."))
    if _shares_noise(release, keys, x0, x1, per_client):
        found.append(
            Finding("shared_noise", "Clients with equal inputs get the same random release, under every key.")
        )
    if sensitivity is not None:
        factors = (0.0, 1.0, *stretches)
        pairs = list(itertools.combinations(factors, 2))
        if claim is None or claim.neighbouring != "replace":  # the record that is absent in x0 stays absent
            pairs = [pair for pair in pairs if pair[0] == 0]
        largest = _largest_shift(release, keys, pairs, x0, x1, norm_order)
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
            "low_precision", f"Noise is {dtype} before it is added: few distinct values and short tails.", where
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
            if not any(map(use.repeats, live)) and _matters(program, key, x, run, use):
                live.append(use)
            if len(live) > 1 and any(use.kind == "draw" for use in live):
                tried[lines] = SUSPECTS
                yield _reuse(*sorted(live, key=lambda use: use.kind)[:2])
                break


def _few_of_each_line(uses: list[trace.Use]) -> list[trace.Use]:
    seen: Counter[tuple[str, str, str]] = Counter()
    kept = []
    for use in uses:
        seen[use.where, use.kind, use.loop] += 1
        if seen[use.where, use.kind, use.loop] <= PLACES:
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


def _exceeded(shift: "_Shift", sensitivity: float, norm_order: float) -> Finding:
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
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {error}"
        raise _validate.expected("mechanism", "a function of (key, x) that JAX can trace", reason) from error


def _shapes(x: Any) -> Any:
    return jax.tree.map(lambda leaf: (np.shape(leaf), str(jax.numpy.result_type(leaf))), x)


class _Shift(NamedTuple):
    """A distance between two releases under one key: of x0 + s (x1 - x0) for two factors s."""

    size: float
    rounding: float
    factors: tuple[float, float]


def _not_finite(release: Callable[..., Any], keys: jax.Array, x: Any) -> bool:
    """Tells whether some release of x holds NaN or infinity."""
    leaves = [leaf for key in keys[:SHIFT_KEYS] for leaf in jax.tree.leaves(release(key, x))]
    return any(not np.isfinite(_wide(leaf)).all() for leaf in leaves if _is_real(leaf))


def _largest_shift(
    release: Callable[..., Any], keys: jax.Array, pairs: Sequence[tuple[float, float]], x0: Any, x1: Any, order: float
) -> _Shift:
    """Finds the largest |release(x0 + s (x1 - x0)) - release(x0 + t (x1 - x0))|, less its rounding, over ``pairs`` (s,
    t).

    For additive noise this is what the record changes before the noise. Only what differs between x0 and x1 moves, so
    that the two stay neighbours. A shift that is not finite counts as infinite.
    """
    inputs = {factor: _stretched(x0, x1, factor) for pair in pairs for factor in pair}
    found = []
    for key in keys[:SHIFT_KEYS]:
        flat = {factor: _flat(release(key, x)) for factor, x in inputs.items()}
        found += [_shift(flat[pair[0]], flat[pair[1]], pair, order) for pair in pairs]
    return max(found, key=lambda shift: shift.size - shift.rounding if math.isfinite(shift.size) else math.inf)


def _shift(left: np.ndarray, right: np.ndarray, pair: tuple[float, float], order: float) -> _Shift:
    size = float(np.linalg.norm(right - left, order)) if left.size else 0.0
    largest = max(np.abs(left).max(initial=0), np.abs(right).max(initial=0))
    rounding = 8 * float(np.finfo(np.float32).eps) * float(largest) * math.sqrt(left.size)
    return _Shift(math.inf if math.isnan(size) else size, rounding, pair)


def _shares_noise(release: Callable[..., Any], keys: jax.Array, x0: Any, x1: Any, per_client: bool | None) -> bool:
    """Tells whether clients with equal inputs get equal releases under every key, though the releases depend on the
    key.

    With ``per_client`` None, only where every client's release is seen to depend on that client's input alone.
    """
    clients = _clients(x0, least_rank=1 if per_client else 2)
    if clients is None or per_client is False:
        return False
    same = jax.tree.map(lambda leaf: jnp.broadcast_to(jnp.asarray(leaf)[:1], jnp.shape(leaf)), x0)
    for rows in _released_rows(release, keys, same, clients):
        groups: dict[bytes, list[int]] = {}
        for client in range(clients):
            groups.setdefault(rows[:, client].tobytes(), []).append(client)
        shared = [group for group in groups.values() if len(group) > 1]
        random = any((rows[1:, group[0]] != rows[:1, group[0]]).any() for group in shared)
        if random and (per_client or _is_local(release, keys, same, (x0, x1), clients)):
            return True
    return False


def _is_local(release: Callable[..., Any], keys: jax.Array, same: Any, worlds: Sequence[Any], clients: int) -> bool:
    """Tells whether another input of client 0 changes the release of client 0 and of no other."""
    for world in worlds:
        for client in range(clients):
            changed = jax.tree.map(lambda s, w, c=client: jnp.asarray(s).at[0].set(jnp.asarray(w)[c]), same, world)
            if all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(changed), jax.tree.leaves(same), strict=True)):
                continue
            before, after = (list(_released_rows(release, keys, x, clients)) for x in (same, changed))
            moved = [(a != b).any(axis=(0, *range(2, a.ndim))) for a, b in zip(before, after, strict=True)]
            return all(not m[1:].any() for m in moved) and any(m[0] for m in moved)
    return False


def _released_rows(release: Callable[..., Any], keys: jax.Array, x: Any, clients: int) -> Iterator[np.ndarray]:
    """Yields each leaf of the release that has a row per client, [keys, clients, ...]."""
    releases = [jax.tree.leaves(release(key, x)) for key in keys]
    for leaves in zip(*releases, strict=True):
        if np.ndim(leaves[0]) and np.shape(leaves[0])[0] == clients:
            yield np.stack([np.asarray(leaf) for leaf in leaves])


def _clients(x: Any, least_rank: int) -> int | None:
    """Returns the length of the leading axis that all inputs share, if it can be one of clients."""
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(x)]
    leading = {shape[:1] for shape in shapes}
    if len(leading) != 1 or max(map(len, shapes)) < least_rank or leading == {()}:
        return None
    (clients,) = leading.pop()
    return clients if clients >= 2 else None


def _stretched(x0: Any, x1: Any, factor: float) -> Any:
    """Returns x0 + factor (x1 - x0); a leaf that is not floating takes its value in x1."""

    def move(a: Any, b: Any) -> Any:
        if not jnp.issubdtype(jnp.result_type(b), jnp.inexact):
            return b
        return jnp.asarray(a + factor * (jnp.asarray(b) - a), jnp.result_type(b))

    return (x0, x1)[int(factor)] if factor in (0, 1) else jax.tree.map(move, x0, x1)


def _flat(release: Any) -> np.ndarray:
    leaves = [_wide(leaf).ravel() for leaf in jax.tree.leaves(release) if _is_real(leaf)]
    return np.concatenate(leaves) if leaves else np.zeros(0)


def _is_real(leaf: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(leaf), jnp.floating)


def _wide(leaf: Any) -> np.ndarray:
    return np.asarray(leaf).astype(np.float64)
