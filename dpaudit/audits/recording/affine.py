"""Computes with noisy values, each an offset, a coefficient and the id of its noise, element by element."""

from collections.abc import Callable
from typing import Any

import numpy as np

from dpaudit.audits.recording.trace import NO_NOISE, Tag, Trace

ROUNDINGS = {"rint", "floor", "ceil", "trunc"}
Parts = tuple[np.ndarray, np.ndarray, np.ndarray]  # offset, coefficient, ids


def add(trace: Trace, first: Parts, second: Parts, sign: float = 1.0) -> Parts:
    """Adds two noisy values. The sum of two different noises is a new one: Gaussian if both are, else of an unknown
    distribution."""
    (o1, c1, i1), (o2, c2, i2) = first, second
    o1, c1, i1, o2, c2, i2 = (np.asarray(one) for one in (o1, c1, i1, o2, sign * c2, i2))
    if any(one.shape != o1.shape for one in (c1, i1, o2, c2, i2)):
        o1, c1, i1, o2, c2, i2 = np.broadcast_arrays(o1, c1, i1, o2, c2, i2)
    none1, none2, same = i1 < 0, i2 < 0, i1 == i2
    coefficient = np.where(none1, c2, np.where(none2, c1, c1 + c2))
    ids = np.where(none1, i2, i1)
    clash = ~(none1 | none2 | same)
    if clash.any():
        coefficient, ids = coefficient.copy(), ids.copy()
        both = np.stack([i1[clash], i2[clash]])
        law, lattice = law_of(trace, both)
        law = law if _independent(trace, *both) else "unknown"
        scale = np.hypot(c1[clash], c2[clash]) if law == "gaussian" else np.ones(both.shape[1])
        law = law if law == "gaussian" else "unknown"
        made: dict[str, Any] = {"lattice": lattice, "parents": roots(trace, both), "disjoint": disjoint(trace, both)}
        ids[clash] = trace.block(both.shape[1], law, **made)
        coefficient[clash] = scale
    return o1 + sign * o2, coefficient, np.where(coefficient == 0, NO_NOISE, ids)


def law_of(trace: Trace, ids: np.ndarray) -> tuple[str, float]:
    """Returns the law that all of these numbers share, or "unknown", and their common spacing, or 0."""
    blocks = [trace.blocks[one] for one in np.unique(trace.law_of(ids)) if one >= 0]
    laws, lattices = {block.law for block in blocks}, {block.lattice for block in blocks}
    return (laws.pop() if len(laws) == 1 else "unknown", lattices.pop() if len(lattices) == 1 else 0.0)


def roots(trace: Trace, ids: np.ndarray) -> frozenset[int]:
    """Returns the draws that these numbers were computed from."""
    ids = np.unique(ids[ids >= 0])
    numbers = trace.law_of(ids)
    found: set[int] = set()
    for one in np.unique(numbers):
        found |= trace.blocks[one].parents or set(ids[numbers == one].tolist())
    return frozenset(found)


def disjoint(trace: Trace, ids: np.ndarray) -> bool:
    """Tells whether no draw is part of two of these numbers."""
    ids = np.ravel(ids[ids >= 0])
    if np.unique(ids).size < ids.size:
        return False
    numbers = trace.law_of(ids)
    known: set[int] = set()
    for one in np.unique(numbers):
        block = trace.blocks[one]
        of = block.parents or set(ids[numbers == one].tolist())
        if known & of or not (block.disjoint or np.sum(numbers == one) == 1):
            return False
        known |= of
    return True


def _independent(trace: Trace, first: np.ndarray, second: np.ndarray) -> bool:
    """Tells whether no draw is part of both numbers of any pair of different ones."""
    numbers = np.stack([trace.law_of(first), trace.law_of(second)])
    for one, two in np.unique(numbers, axis=1).T:
        if one == two:
            if not trace.blocks[one].disjoint:
                return False
        else:
            at = (numbers[0] == one) & (numbers[1] == two)
            if roots(trace, first[at]) & roots(trace, second[at]):
                return False
    return True


def total(trace: Trace, made: Parts, shape: tuple[int, ...], sums: Callable[[np.ndarray], Any]) -> Parts:
    """Sums a noisy array along axes."""
    offset, coefficient, ids = made
    law, lattice = law_of(trace, ids)
    variance = np.asarray(sums(coefficient**2))
    held = np.asarray(sums(ids >= 0)) > 0
    apart = disjoint(trace, ids)
    law = law if law == "gaussian" and apart else "unknown"
    more: dict[str, Any] = {"lattice": lattice, "parents": roots(trace, ids), "disjoint": apart}
    new = trace.block(int(np.prod(shape)), law, **more)
    scale = np.sqrt(variance) if law == "gaussian" else held.astype(float)
    return np.asarray(sums(offset)), scale, np.where(held, new.reshape(shape), NO_NOISE)


def derived(trace: Trace, name: str, tags: list[Tag], shape: tuple[int, ...]) -> Parts:
    """Returns a nonlinear function of noise as new noise. After rounding, its old law still bounds the loss."""
    law, size = "unknown", int(np.prod(shape))
    scale, lattice = 1.0, 0.0
    if name in ROUNDINGS:
        scales = np.unique(np.abs(tags[0].coefficient[tags[0].ids >= 0]))
        lattice = 1.0
        if scales.size == 1:
            (law, _), scale = law_of(trace, tags[0].ids), float(scales[0])
            lattice = 1 / scale
    parents = frozenset().union(*(roots(trace, tag.ids) for tag in tags))
    apart = all(disjoint(trace, tag.ids) for tag in tags)
    new = trace.block(size, law, lattice=lattice, parents=parents, disjoint=apart)
    return np.zeros(shape), np.full(shape, scale), new.reshape(shape)
