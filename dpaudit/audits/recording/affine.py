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
    o1, c1, i1, o2, c2, i2 = np.broadcast_arrays(o1, c1, i1, o2, sign * c2, i2)
    none1, none2, same = i1 < 0, i2 < 0, i1 == i2
    coefficient = np.where(none1, c2, np.where(none2, c1, c1 + c2))
    ids = np.where(none1, i2, i1)
    clash = ~(none1 | none2 | same)
    if clash.any():
        coefficient, ids = coefficient.copy(), ids.copy()
        both = np.stack([i1[clash], i2[clash]])
        law, lattice = law_of(trace, both)
        scale = np.hypot(c1[clash], c2[clash]) if law == "gaussian" else np.ones(both.shape[1])
        law = law if law == "gaussian" else "unknown"
        ids[clash] = trace.block(both.shape[1], law, lattice=lattice, parents=roots(trace, both))
        coefficient[clash] = scale
    return o1 + sign * o2, coefficient, np.where(coefficient == 0, NO_NOISE, ids)


def law_of(trace: Trace, ids: np.ndarray) -> tuple[str, float]:
    """Returns the law that all of these numbers share, or "unknown", and their common spacing, or 0."""
    blocks = [trace.blocks[one] for one in np.unique(trace.law_of(ids)) if one >= 0]
    laws, lattices = {block.law for block in blocks}, {block.lattice for block in blocks}
    return (laws.pop() if len(laws) == 1 else "unknown", lattices.pop() if len(lattices) == 1 else 0.0)


def roots(trace: Trace, ids: np.ndarray) -> frozenset[int]:
    """Returns the draws that these numbers were computed from."""
    found: set[int] = set()
    for one in np.unique(ids[ids >= 0]):
        block = trace.blocks[int(trace.law_of(np.array([one]))[0])]
        found |= block.parents or {int(one)}
    return frozenset(found)


def total(trace: Trace, made: Parts, shape: tuple[int, ...], sums: Callable[[np.ndarray], Any]) -> Parts:
    """Sums a noisy array along axes."""
    offset, coefficient, ids = made
    law, lattice = law_of(trace, ids)
    variance = np.asarray(sums(coefficient**2))
    held = np.asarray(sums(ids >= 0)) > 0
    size = int(np.prod(shape))
    new = trace.block(size, law if law == "gaussian" else "unknown", lattice=lattice, parents=roots(trace, ids))
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
    new = trace.block(size, law, lattice=lattice, parents=parents)
    return np.zeros(shape), np.full(shape, scale), new.reshape(shape)
