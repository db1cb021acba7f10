"""Chooses, on a pilot, what :mod:`dpaudit.auditing.attacks.features` reads from every release."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.linalg import eigh

from dpaudit.auditing.attacks.features import (
    DIGITS,
    MOST_BITS,
    MOST_COORDINATES,
    MOST_PAIRS,
    MOST_SPREAD,
    Sight,
    View,
    finite,
)

BITS_LOOKED_AT = 1 << 22  # of the pilot's integers, at each place
LATTICE_ROWS, OFF_LATTICE = 1024, 0.01  # releases that a lattice is looked for in, share that may lie elsewhere
FINEST_STEP = 12  # binary digits below the spread
ALL_PAIRS, PARTNERS, RELATED = 1024, 8, 0.3  # coordinates, pairs, least correlation of those that share their noise
CORRELATED_ROWS = 256, 64  # releases that it is looked for in, of all pairs and otherwise
USUAL_ROWS = 128  # whose norms are the usual ones
FEW_MORE = 4  # pairs of the pilot for each coordinate whose covariance is looked at


def sight(views: View, given: Any, whole: Sequence[int] = ()) -> Sight:
    """Chooses, on a pilot, what to read.

    Args:
      views: of the pilot, [2, n, d].
      given: a direction [d] to look along, or None.
      whole: coordinates of the views' words.
    """
    numbers = views.numbers
    pooled = numbers.reshape(-1, numbers.shape[-1])
    centre = _middle(pooled).astype(numbers.dtype)
    own = finite(np, numbers - centre).astype(np.float64 if numbers.shape[-1] <= 4096 else np.float32)
    huge = _huge(own)
    own /= huge
    n, d = own.shape[1:]
    means, spreads = own.mean(1), own.var(1)
    apart = means[1] - means[0]
    k = min(d, MOST_COORDINATES)
    chosen = np.arange(d)
    if d > k:
        first = np.argsort(-_interest(views, means, spreads, n), kind="stable")[:k]
        partners = _partners(own, first)
        chosen = np.sort(np.r_[partners, first[~np.isin(first, partners)]][:k])
    few = own[..., chosen].astype(np.float64)
    inner = few - few.mean(1, keepdims=True)
    covariance = np.einsum("wni,wnj->ij", inner, inner, optimize=True) / (2 * n)
    pairs, signs = _related(covariance)
    size = np.diag(covariance)
    ridge = covariance + np.diag(1e-7 * size + np.where(size > 0, 0, 1e-12 * max(size.max(), 1e-300)))
    fisher = np.linalg.lstsq(ridge, apart[chosen], rcond=1e-14)[0]
    fisher /= max(np.abs(fisher).max(), 1e-300)
    directions = [apart] if given is None else [given, apart]
    spread, level, hidden = _spread(own, chosen, huge)
    return Sight(
        centre,
        np.asarray(directions, np.float32),
        chosen.astype(np.int32),
        pairs.astype(np.int32),
        signs.astype(np.float32),
        _telling_bits(views.words, whole),
        fisher.astype(np.float32),
        np.floor(np.log2(np.maximum(np.sqrt(size), 1e-30)) - DIGITS).astype(np.float32),
        spread,
        level,
        hidden,
        views.ring[0, 0],
        _lattice(few * np.broadcast_to(huge, d)[chosen], np.sqrt(size) * np.broadcast_to(huge, d)[chosen]),
        np.stack([_usual(pooled[:, part]) for part in views.parts]).astype(numbers.dtype),
    )


def _partners(own: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Finds coordinates that share their noise with another one, [at most 2 ``PARTNERS``], wherever both are.

    Args:
      own: [2, n, d].
      first: coordinates of most interest, whose partners are looked for where all pairs are too many.
    """
    few = own.shape[-1] <= ALL_PAIRS
    inner = np.moveaxis(own[:, : CORRELATED_ROWS[not few]], -1, 0).astype(np.float32)
    inner -= inner.mean(-1, keepdims=True)
    inner = inner.reshape(own.shape[-1], -1)
    size = np.sqrt(np.einsum("in,in->i", inner, inner))
    inner /= np.where(size > 0, size, 1)[:, None]
    if few:
        related = np.triu(np.abs(inner @ inner.T), 1)
        one, other = np.arange(len(related)), related.argmax(1)
    else:  # those with the same noise are neighbours by any sum of it
        order = np.argsort(np.abs(inner @ np.random.default_rng(0).normal(size=inner.shape[1]).astype(np.float32)))
        related = np.abs(inner[first[:PARTNERS]] @ inner.T)
        related[np.arange(len(related)), first[:PARTNERS]] = 0
        one, other = np.r_[order[1:], first[:PARTNERS]], np.r_[order[:-1], related.argmax(1)]
    strength = np.abs(np.einsum("in,in->i", inner[one], inner[other]))
    best = np.argsort(-strength, kind="stable")[:PARTNERS]
    best = best[strength[best] > max(RELATED, 6 / np.sqrt(inner.shape[1]))]
    return np.unique(np.r_[one[best], other[best]])


def _spread(own: np.ndarray, chosen: np.ndarray, unit: np.ndarray) -> list[np.ndarray]:
    """Finds the directions v in which v'C_1 v is smallest and largest beside v'(C_0 + C_1) v, for the covariances C of
    both worlds: a world without noise along one of them shows no coordinate that varies less.

    Args:
      own: [2, n, d], in ``unit`` [d].
      chosen: [k], coordinates that are looked at alone where d is too large, or the pilot too small for it.

    Returns:
      spread, level and hidden of :class:`Sight`.
    """
    n, d = own.shape[1:]
    looked_at = np.arange(d) if d <= MOST_SPREAD and n >= FEW_MORE * d else chosen
    few = own[..., looked_at].astype(np.float64)
    inner = few - few.mean(1, keepdims=True)
    size = np.sqrt(np.einsum("wni,wni->i", inner, inner) / (2 * n))
    size = np.where(size > 0, size, 1)
    inner /= size
    ridge = 1e-7 * np.eye(len(looked_at))  # of both, so that what varies in neither world is equal in them
    zero, one = (world.T @ world / n + ridge for world in inner)
    found = eigh(one, (zero + one) / 2)[1][:, [0, -1]].T
    spread = np.zeros((2, d if d <= MOST_SPREAD else len(chosen)))
    place = looked_at if d <= MOST_SPREAD else np.arange(len(chosen))
    spread[:, place] = found / (size * np.broadcast_to(unit, d)[looked_at])
    level = [np.median(world @ (along / size)) for world, along in zip(few[::-1], found, strict=True)]
    hidden = 2.0**-DIGITS * np.linalg.norm(found, axis=1)
    return [part.astype(np.float32) for part in (spread, np.asarray(level), hidden)]


def _lattice(few: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Finds the coordinates that lie on a lattice in one world, as with discrete noise.

    Args:
      few: [2, n, k], the chosen coordinates.
      size: [k], of what varies in them.

    Returns:
      lattice of :class:`Sight`.
    """
    found = np.stack([np.zeros_like(size), np.zeros_like(size), np.ones_like(size)])
    least = np.maximum(2.0**-DIGITS * size, 1e-30)
    for world in few[::-1, :LATTICE_ROWS]:  # that of world 0 where both have one
        rising = np.sort(world, axis=0)
        gaps = np.diff(rising, axis=0)
        step = np.where(gaps > size * 2.0**-FINEST_STEP, gaps, np.inf).min(0, initial=np.inf)
        whole = np.rint(gaps / step).sum(0)  # of all gaps together, which tell the step to more digits than one
        step = np.where(whole > 0, gaps.sum(0) / np.maximum(whole, 1), 1)
        point = rising[len(rising) // 2]
        away = np.abs((world - point) / step - np.rint((world - point) / step)) * step
        on = (size > 0) & (np.mean(away <= least, axis=0) >= 1 - OFF_LATTICE)
        found = np.where(on, np.stack([point, 1 / step, least / step]), found)
    return found.astype(np.float32)


def coordinates_of_words(leaves: Sequence[Any], lead: int) -> list[int]:
    """Returns the coordinate that each of a view's words belongs to."""
    found, first = [], 0
    for leaf in leaves:
        size = int(np.prod(leaf.shape[lead:]))
        if leaf.dtype.kind in "iu":
            found += [first + i for i in range(size) for _ in range(max(1, leaf.dtype.itemsize // 4))]
        first += size
    return found


def _telling_bits(words: np.ndarray, coordinates: Sequence[int]) -> np.ndarray:
    """Finds the bits, [b, 3], whose share of ones differs most between the worlds; words [2, n, e]."""
    n = max(1, min(words.shape[1], BITS_LOOKED_AT // max(1, 2 * words.shape[2])))
    few = words[:, :n]
    ones = np.stack([((few >> np.uint32(place)) & np.uint32(1)).mean(1) for place in range(32)], -1)  # [2, e, 32]
    both = ones.mean(0)
    apart = np.abs(ones[1] - ones[0]) / np.sqrt(both * (1 - both) + 1 / n)
    word, place = np.divmod(np.argsort(-apart, axis=None, kind="stable")[:MOST_BITS], 32)
    own = np.asarray(coordinates, int)[word] if len(word) else word
    return np.stack([word, place, own], 1).astype(np.int32)


def _middle(pooled: np.ndarray) -> np.ndarray:
    """Returns a value near the median of each column's finite values, one that occurs, so that exact values stay
    exact."""
    few = np.sort(pooled[:: max(1, len(pooled) // 512)], axis=0)  # NaN and infinity last
    known = np.isfinite(few)
    place = np.argmax(known, axis=0) + known.sum(0) // 2
    found = np.take_along_axis(few, np.minimum(place, len(few) - 1)[None], 0)[0]
    return np.where(np.isfinite(found), found, 0)


def _usual(pooled: np.ndarray) -> np.ndarray:
    """Returns the medians, [2], of the mean and of the root mean square of each release's sizes; 1 where one is 0."""
    few = np.abs(finite(np, pooled[:: max(1, len(pooled) // USUAL_ROWS)])).astype(np.float64)
    largest = few.max(-1, initial=0)
    few /= np.where(largest > 0, largest, 1)[:, None]  # no square overflows
    norms = np.stack([few.mean(-1), np.sqrt((few * few).mean(-1))]) * largest
    middle = np.sort(norms)[:, norms.shape[1] // 2]  # one that occurs
    return np.where(middle.min() > np.finfo(np.float32).tiny, middle, 1.0)


def _huge(own: np.ndarray) -> np.ndarray:
    """Returns the power of 2 by which to divide each coordinate so that no square overflows: 1, unless it is huge."""
    exponent = np.frexp(np.abs(own).max((0, 1), initial=0))[1]
    return np.ldexp(np.ones((), own.dtype), np.where(exponent > np.finfo(own.dtype).maxexp // 4, exponent, 0))


def _interest(views: View, means: np.ndarray, spreads: np.ndarray, n: int) -> np.ndarray:
    """Measures how much each coordinate's mean, variance and lowest bits differ between the worlds, [d]."""
    total = spreads.sum(0)
    tiny = np.finfo(np.float32).tiny
    shift = (means[1] - means[0]) ** 2 / (total + tiny) * n
    ratio = n / 4 * np.log((spreads[1] + tiny) / (spreads[0] + tiny)) ** 2
    low, vary = views.low.mean(1), views.low.var(1).sum(0)
    bits = (low[1] - low[0]) ** 2 / (vary + 1e-6) * n
    return np.clip(shift, 0, 1e30) + np.clip(ratio, 0, 1e30) * (total > 0) + np.clip(bits, 0, 1e30)


def _related(covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns (pairs, signs) of coordinates: those that are most correlated, then neighbours."""
    k = len(covariance)
    if k < 2:
        return np.zeros((0, 2), int), np.zeros(0)
    size = np.sqrt(np.diag(covariance))
    with np.errstate(divide="ignore", invalid="ignore"):
        correlation = np.nan_to_num(covariance / np.outer(size, size))
    first, second = np.triu_indices(k, 1)
    related = correlation[first, second]
    rank = np.where(np.abs(related) > RELATED, np.abs(related), 0) + 1e-3 / (second - first)
    best = np.argsort(-rank, kind="stable")[:MOST_PAIRS]
    signs = np.where(related[best] < -RELATED, -1.0, 1.0)
    return np.stack([second[best], first[best]], 1), signs
