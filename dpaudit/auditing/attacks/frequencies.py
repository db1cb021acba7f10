"""Fits the log likelihood ratio of each number as a step function, from how often either world gives which values.

Repeated values (a category, a clipped end, a zero) have a step of their own. NumPy fits the steps on a pilot; NumPy or
JAX evaluates them.
"""

from typing import Any, NamedTuple

import numpy as np

QUANTILES, ATOMS = 8, 5  # steps of each number: between values that are equally likely, and at repeated ones
STEPS = QUANTILES + 2 * ATOMS
SAMPLE, ATOM_LEAST, ATOM_SHARE = 8192, 8, 64  # a value counts as repeated if 8 of the releases, and one in 64, have it
LARGE, LARGEST = 2.0**100, 2.0**30
PATTERNS = 64  # whole releases that are repeated


class Tables(NamedTuple):
    """The steps of each of m numbers; f(u) = start + sum of heights where u > edge.

    Attributes:
      edges, heights: [m, STEPS]; edges that are not used are infinite.
      start: [m], below all edges.
      missing: [m], of NaN.
    """

    edges: Any
    heights: Any
    start: Any
    missing: Any

    def read(self, xp: Any, numbers: Any) -> Any:
        """Maps numbers [..., m] to their log likelihood ratios, world 1 to world 0, [..., m]."""
        if xp is np:
            return self._looked_up(numbers)
        found = xp.zeros(numbers.shape, np.float32) + self.start
        for step in range(STEPS):  # no array of all steps at once
            found = found + xp.where(numbers > self.edges[:, step], self.heights[:, step], np.float32(0))
        return xp.where(xp.isnan(numbers), self.missing, found)

    def _looked_up(self, numbers: np.ndarray) -> np.ndarray:
        """Does the same with NumPy, number by number, counting each number's steps in a byte."""
        columns = np.ascontiguousarray(numbers.reshape(-1, numbers.shape[-1]).T)
        values = np.cumsum(np.column_stack([self.start, self.heights]), axis=1, dtype=np.float32)
        found = np.empty_like(columns)
        for j, column in enumerate(columns):
            above, step = np.zeros(column.shape, np.uint8), np.empty(column.shape, bool)
            for edge in self.edges[j][self.edges[j] < np.inf]:
                np.greater(column, edge, out=step)
                above += step.view(np.uint8)
            found[j] = values[j][above]
        found = np.where(np.isnan(columns), self.missing[:, None], found)
        return np.ascontiguousarray(found.T).reshape(numbers.shape)


class Patterns(NamedTuple):
    """Whole releases that are repeated, by a hash of their numbers. Each number counts as a symbol: its value where
    that is repeated, else whether it is large or small.

    Attributes:
      atoms: [k, ATOMS], repeated values; NaN where there are fewer.
      middle: [k], of the others.
      weights: [k] odd numbers, of the hash.
      hashes, values: [PATTERNS], log likelihood ratios.
    """

    atoms: Any
    middle: Any
    weights: Any
    hashes: Any
    values: Any

    def read(self, xp: Any, numbers: Any) -> Any:
        """Maps numbers [..., k] to the log likelihood ratio of the whole release, [...]; 0 for one that was not
        common."""
        found = self.hash(xp, numbers)
        return xp.where(found[..., None] == self.hashes, self.values, np.float32(0)).sum(-1)

    def hash(self, xp: Any, numbers: Any) -> Any:
        """Hashes all numbers [..., k] to one word."""
        known = xp.isnan(numbers)
        for atom in range(ATOMS):
            known = known | (numbers == self.atoms[:, atom])
        size = xp.where(numbers > self.middle, np.float32(LARGE), np.float32(-LARGE))
        symbols = xp.where(known, xp.where(xp.isnan(numbers), np.float32(LARGE / 2), numbers), size)
        words = symbols.astype(np.float32).view(np.uint32)
        words = words ^ (words >> 15)
        return (words * self.weights).sum(-1, dtype=np.uint32)


class Repeats(NamedTuple):
    """All releases of the pilot by a hash of their numbers, for mechanisms whose releases repeat: noise of few seeds.

    Attributes:
      found: whether any occurred twice.
      scale: [k], the factors that turn numbers into integers.
      weights: [k] odd numbers, of the hash.
      hashes, values: [2 n], in order, and log likelihood ratios.
    """

    found: Any
    scale: Any
    weights: Any
    hashes: Any
    values: Any

    def read(self, xp: Any, numbers: Any) -> Any:
        """Maps numbers [..., k] to the log likelihood ratio of the whole release, [...]; 0 for one not in the
        pilot."""
        own = self.hash(xp, numbers)
        place = xp.minimum(xp.searchsorted(self.hashes, own), len(self.hashes) - 1)
        there = xp.take(self.hashes, place) == own
        return xp.where(there, xp.take(self.values, place), np.float32(0))

    def hash(self, xp: Any, numbers: Any) -> Any:
        """Hashes all numbers [..., k], rounded down to ``scale``, to one word."""
        whole = xp.clip(xp.floor(numbers * self.scale), -LARGEST, LARGEST)
        words = xp.where(xp.isnan(whole), np.float32(LARGEST), whole).astype(np.int32).view(np.uint32)
        return ((words ^ (words >> 15)) * self.weights).sum(-1, dtype=np.uint32)


def repeats(numbers: np.ndarray, finest: np.ndarray) -> Repeats:
    """Fits :class:`Repeats` to numbers [2, n, k]; digits below 2^finest, [k], are ignored."""
    scale = np.ldexp(np.float32(1), -np.maximum(finest, -120).astype(int)).astype(np.float32)
    n = numbers.shape[1]
    empty = Repeats(
        np.array(False),
        scale,
        _odd(numbers.shape[-1]),
        np.full(2 * n, 2**32 - 1, np.uint32),
        np.zeros(2 * n, np.float32),
    )
    words, place = np.unique(empty.hash(np, numbers), return_inverse=True)
    counts = np.stack([np.bincount(world, minlength=len(words)) for world in place.reshape(2, n)])
    hashes, values = empty.hashes.copy(), empty.values.copy()
    hashes[: len(words)], values[: len(words)] = words, np.log((counts[1] + 0.5) / (counts[0] + 0.5))
    return empty._replace(found=np.array(counts.max() > 1), hashes=hashes, values=values)


def _odd(count: int) -> np.ndarray:
    """Returns odd numbers to multiply by, always the same."""
    draws = np.random.default_rng(0).integers(0, 1 << 31, count, dtype=np.uint32)
    return draws * np.uint32(2) + np.uint32(1)


def tables(numbers: np.ndarray) -> tuple[Tables, np.ndarray]:
    """Fits the steps to numbers [2, n, m]; returns them with their ratios for these numbers, [2, n, m].

    Each ratio is shrunk by as much as chance explains.
    """
    _, n, m = numbers.shape
    pooled = numbers.reshape(2 * n, m)
    sample = np.sort(pooled[:: max(1, 2 * n // SAMPLE)], axis=0)
    edges = np.full((m, STEPS), np.inf, np.float32)
    heights, start, missing = np.zeros((m, STEPS), np.float32), np.zeros(m, np.float32), np.zeros(m, np.float32)
    found = np.zeros((2 * n, m), np.float32)
    for j in range(m):
        own = _edges(sample[:, j])
        place = np.searchsorted(own, pooled[:, j], side="left")
        place[np.isnan(pooled[:, j])] = len(own) + 1
        counts = np.stack([np.bincount(world, minlength=len(own) + 2) for world in place.reshape(2, n)])
        ratios = shrunk(counts)
        edges[j, : len(own)], heights[j, : len(own)] = own, np.diff(ratios[:-1])
        start[j], missing[j] = ratios[0], ratios[-1]
        found[:, j] = ratios[place]
    return Tables(edges, heights, start, missing), found.reshape(2, n, m)


def patterns(numbers: np.ndarray) -> Patterns:
    """Fits :class:`Patterns` to numbers [2, n, k]."""
    k = numbers.shape[-1]
    atoms, middle = np.full((k, ATOMS), np.nan, np.float32), np.zeros(k, np.float32)
    pooled = numbers.reshape(-1, k)
    for j, column in enumerate(np.sort(pooled[:: max(1, len(pooled) // SAMPLE)], axis=0).T):
        known = column[~np.isnan(column)]
        own = _atoms(known)
        others = known[~np.isin(known, own)]
        atoms[j, : len(own)] = own
        middle[j] = others[len(others) // 2] if len(others) else 0
    empty = Patterns(atoms, middle, _odd(k), np.zeros(PATTERNS, np.uint32), np.zeros(PATTERNS, np.float32))
    worlds = empty.hash(np, numbers)
    words, place, counts = np.unique(worlds, return_inverse=True, return_counts=True)
    common = np.argsort(-counts, kind="stable")[:PATTERNS]
    common = common[counts[common] >= ATOM_LEAST]
    by_world = np.stack([np.bincount(world, minlength=len(words)) for world in place.reshape(worlds.shape)])
    hashes, values = empty.hashes.copy(), empty.values.copy()
    hashes[: len(common)], values[: len(common)] = words[common], shrunk(by_world[:, common])
    hashes[len(common) :] = words[common[0]] if len(common) else 0  # of value 0
    return empty._replace(hashes=hashes, values=values)


def shrunk(counts: np.ndarray) -> np.ndarray:
    """Returns ln of the ratio of counts [2, ...], shrunk toward 0 where it is no larger than its standard error."""
    smooth = counts + 0.5
    ratio, variance = np.log(smooth[1] / smooth[0]), (1 / smooth).sum(0)
    return ratio * np.maximum(0, 1 - variance / np.maximum(ratio * ratio, 1e-12))


def _edges(ordered: np.ndarray) -> np.ndarray:
    """Places the steps of a number, given a sorted sample with NaN last: one edge just below and one at each repeated
    value, and quantiles of the others."""
    known = ordered[~np.isnan(ordered)]
    if not len(known):
        return known
    atoms = _atoms(known)
    others = known[~np.isin(known, atoms)]
    inner = others[(np.arange(1, QUANTILES + 1) * len(others)) // (QUANTILES + 1)] if len(others) else others
    below = np.nextafter(atoms, np.float32(-np.inf))
    tiny = np.finfo(np.float32).tiny  # smaller ones are 0 on a CPU that flushes subnormals to zero
    below = np.where(np.abs(below) < tiny, -tiny, below)
    return np.unique(np.concatenate([inner, atoms, below]))


def _atoms(known: np.ndarray) -> np.ndarray:
    """Returns the commonest values of a sample, those that are repeated."""
    values, counts = np.unique(known, return_counts=True)
    common = np.argsort(-counts, kind="stable")[:ATOMS]
    return values[common[counts[common] >= max(ATOM_LEAST, len(known) // ATOM_SHARE)]]
