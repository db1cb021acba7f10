"""Reads numbers from any release: with NumPy on a pilot, and with NumPy or JAX in every trial.

Each :class:`Part` of the family says which numbers it reads and what they are called. All parts read the same
:class:`View` of a release: all its numbers as one vector, and their lowest bits.
"""

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import jax
import numpy as np

RESIDUE = 24  # modulus of integers; its residues give those modulo 2, 3, 4, 6, 8 and 12
NO_BIT, NO_NUMBER, NEGATIVE = 200.0, 201.0, 400.0  # for the lowest bit of 0, of what is not finite, and of -0
DIGITS = 16  # binary digits of a float, below its spread, that are read
STEPS = 1 << 14  # that a release's usual norm is divided into
MOST_COORDINATES, MOST_PAIRS, MOST_BITS = 48, 8, 8  # read one by one
MOST_PARTS = 8  # arrays whose norms are read, beside those of all together
BITS_LOOKED_AT = 1 << 22  # of the pilot's integers, at each place


class View(NamedTuple):
    """A release.

    Attributes:
      numbers: [..., d]; integers of 32 bits or more as differences from a reference.
      low: [..., d], the exponent of the last binary digit of a float, and the residue of an integer.
      words: [..., e], integers in words of 32 bits.
      parts: where the numbers of the whole release, and of each of its :data:`MOST_PARTS` largest arrays, lie.
    """

    numbers: Any
    low: Any
    words: Any
    parts: Sequence[slice]


class Sight(NamedTuple):
    """The choice, made on a pilot, of what is read from a view. All fields are arrays.

    Attributes:
      centre: [d], subtracted from every release.
      directions: [r, d], to project on.
      chosen: [k], the coordinates that are read one by one.
      pairs: [p, 2] of the chosen ones, and signs [p]: their differences (1) or sums (-1).
      bits: [b, 3], bits of integers: the word, the place in it, and the coordinate for names.
      fisher: [k], the direction that tells the worlds apart best where both are normal with one covariance.
      finest: [k], exponents: lower digits are not read, because they reveal the input whenever noise is added in
        floating point (Mironov 2012). :data:`distinguish.lowest_bits` reads them.
      usual: [s, 2], the usual mean and root mean square of the sizes of the numbers in each of the view's parts.
    """

    centre: Any
    directions: Any
    chosen: Any
    pairs: Any
    signs: Any
    bits: Any
    fisher: Any
    finest: Any
    usual: Any


class Part(NamedTuple):
    """A part of the family of attacks.

    Attributes:
      read: ``read(xp, view, sight) -> [..., n]``, for ``xp`` NumPy or jax.numpy.
      names: ``names(sight) -> n names``.
    """

    read: Callable[[Any, View, Sight], Any]
    names: Callable[[Sight], list[str]]


def array(leaf: Any) -> np.ndarray:
    """Returns a number or an array as a NumPy array, in the type that it has in JAX."""
    found = np.asarray(leaf)
    return found.astype(jax.dtypes.canonicalize_dtype(found.dtype))


def view(xp: Any, leaves: Sequence[Any], reference: Sequence[Any], lead: int = 0) -> View:
    """Returns the view of a release.

    Args:
      xp: numpy or jax.numpy.
      leaves: its arrays, [..., *shape] with ``lead`` axes before the shape.
      reference: the arrays of another release, without those axes, as NumPy arrays.
      lead: axes of many releases.
    """
    low = _joined(xp, leaves, reference, lead, _lowest)
    words = _joined(xp, leaves, reference, lead, _words)
    return View(numbers(xp, leaves, reference, lead), low, words, parts([leaf.shape[lead:] for leaf in leaves]))


def parts(shapes: Sequence[Sequence[int]]) -> tuple[slice, ...]:
    """Returns where the numbers of all arrays together lie, and of each of the largest, if there are several and they
    have several numbers."""
    sizes = [math.prod(shape) for shape in shapes]
    ends = list(accumulate(sizes))
    largest = sorted(range(len(sizes)), key=lambda i: (-sizes[i], i))[:MOST_PARTS] if len(sizes) > 1 else []
    return slice(0, ends[-1]), *(slice(ends[i] - sizes[i], ends[i]) for i in sorted(largest) if sizes[i] > 1)


def cast(array: Any, kind: Any) -> Any:
    """Returns the array in this type, without a copy if it has it already."""
    return array if array.dtype == kind else array.astype(kind)


def numbers(xp: Any, leaves: Sequence[Any], reference: Sequence[Any], lead: int = 0) -> Any:
    """Returns the numbers of :func:`view` alone."""
    return _joined(xp, leaves, reference, lead, _numbers)


def _joined(xp: Any, leaves: Sequence[Any], reference: Sequence[Any], lead: int, of: Callable[..., Any]) -> Any:
    """Joins what ``of`` reads of every array into one vector for a release."""
    pairs = zip(leaves, reference, strict=True)
    return xp.concatenate([of(xp, leaf.reshape(*leaf.shape[:lead], -1), at.reshape(-1)) for leaf, at in pairs], -1)


def _numbers(xp: Any, leaf: Any, at: Any) -> Any:
    kind = leaf.dtype
    if kind.kind not in "iu":  # bfloat16 is of kind V
        return leaf if kind.itemsize == 8 else cast(leaf, np.float32)
    return _whole(leaf, at).astype(np.float64 if kind.itemsize == 8 else np.float32)


def _lowest(xp: Any, leaf: Any, at: Any) -> Any:
    if leaf.dtype.kind == "b":
        return xp.zeros(leaf.shape, np.float32)
    if leaf.dtype.kind not in "iu":
        return lowest_bit(xp, _numbers(xp, leaf, at))
    return (_whole(leaf, at) % RESIDUE).astype(np.float32)


def _words(xp: Any, leaf: Any, at: Any) -> Any:
    if leaf.dtype.kind not in "iu":
        return xp.zeros((*leaf.shape[:-1], 0), np.uint32)
    return (leaf if leaf.dtype.itemsize >= 4 else leaf.astype(np.int32)).view(np.uint32)


def _whole(leaf: Any, at: Any) -> Any:
    """Returns integers as signed ones; those of 32 bits or more as differences modulo 2^bits."""
    bits = 8 * leaf.dtype.itemsize
    return (leaf - at).view(np.dtype(f"int{bits}")) if bits >= 32 else leaf.astype(np.int32)


def lowest_bit(xp: Any, numbers: Any) -> Any:
    """Returns the exponent of the last binary digit of each float, which 0 and -0 have none of."""
    size = numbers.dtype.itemsize
    kind, digits, highest = (np.int32, 23, 255) if size == 4 else (np.int64, 52, 2047)
    bits = numbers.view(kind)
    exponent, fraction = (bits >> digits) & highest, bits & ((1 << digits) - 1)
    whole = xp.where(exponent > 0, fraction | (1 << digits), fraction)
    last = xp.maximum(whole & -whole, 1)
    place = (last.astype(numbers.dtype).view(kind) >> digits) - highest // 2  # the exponent of a power of two
    found = xp.maximum(exponent, 1) - (highest // 2 + digits) + place
    zero = xp.where(bits < 0, NEGATIVE, NO_BIT)
    found = xp.where(whole == 0, zero, xp.where(exponent == highest, NO_NUMBER, found))
    return found.astype(np.float32)


def _centred(xp: Any, view: View, sight: Sight) -> Any:
    return cast(view.numbers - sight.centre, np.float32)


def _finite(xp: Any, numbers: Any) -> Any:
    return xp.where(xp.isfinite(numbers), numbers, 0)


def coordinates(xp: Any, view: View, sight: Sight) -> Any:
    """Returns the chosen coordinates, [..., k]."""
    return xp.take(_centred(xp, view, sight), sight.chosen, axis=-1)


def _low(xp: Any, view: View, sight: Sight) -> Any:
    return xp.maximum(xp.take(view.low, sight.chosen, axis=-1), sight.finest)


def _pairs(xp: Any, view: View, sight: Sight) -> Any:
    own = coordinates(xp, view, sight)
    first, second = (xp.take(own, sight.pairs[:, i], axis=-1) for i in range(2))
    return first - sight.signs * second


def _bits(xp: Any, view: View, sight: Sight) -> Any:
    words = xp.take(view.words, sight.bits[:, 0], axis=-1)
    return ((words >> sight.bits[:, 1].astype(np.uint32)) & np.uint32(1)).astype(np.float32)


def _fisher(xp: Any, view: View, sight: Sight) -> Any:
    own = _finite(xp, coordinates(xp, view, sight))
    return _along(xp, own, sight.fisher)[..., None]


def _norms(xp: Any, view: View, sight: Sight) -> Any:
    """Returns norms of the differences from the centre, and of the whole release, which may lie on a sphere whose
    radius tells the worlds apart: in steps from the usual norm, so that the rounding of sums does not show."""
    own = _finite(xp, _centred(xp, view, sight))
    size = xp.abs(own)
    mean, square = own.mean(-1), (own * own).mean(-1)
    around = [size.sum(-1), xp.sqrt(square), size.max(-1), mean, square - mean * mean]
    for part, usual in zip(view.parts, sight.usual, strict=True):
        whole = xp.abs(own[..., part] / usual[1] + cast(sight.centre[part] / usual[1], np.float32))
        norms = whole.mean(-1) * (usual[1] / usual[0]), xp.sqrt((whole * whole).mean(-1))
        around += [xp.rint((norm - 1) * STEPS) for norm in norms]
    return xp.stack(around, -1)


def _order(xp: Any, view: View, sight: Sight) -> Any:
    own = xp.take(view.numbers, sight.chosen, axis=-1)
    return xp.stack([xp.argmax(own, -1), xp.argmax(-own, -1)], -1).astype(np.float32)


def _each(words: str) -> Callable[[Sight], list[str]]:
    return lambda sight: [words.format(i) for i in np.asarray(sight.chosen)]


def _names_of_pairs(sight: Sight) -> list[str]:
    chosen = np.asarray(sight.chosen)
    ends = [(chosen[i], chosen[j]) for i, j in np.asarray(sight.pairs)]
    return [
        f"coordinate {i} {'less' if sign > 0 else 'plus'} coordinate {j}"
        for (i, j), sign in zip(ends, np.asarray(sight.signs), strict=True)
    ]


def _names_of_norms(sight: Sight) -> list[str]:
    parts = ["the release", *(f"array {i}" for i in range(len(sight.usual) - 1))]
    return [*NORMS, *(f"{norm} norm of {part}" for part in parts for norm in ("L1", "L2"))]


def _names_of_bits(sight: Sight) -> list[str]:
    return [f"bit {place} of coordinate {i}" for _, place, i in np.asarray(sight.bits)]


NORMS = ["L1 norm", "L2 norm", "largest size", "mean", "variance"]  # of differences from the centre

FAMILY: tuple[Part, ...] = (
    Part(coordinates, _each("coordinate {}")),
    Part(_low, _each("lowest bits of coordinate {}")),
    Part(_pairs, _names_of_pairs),
    Part(_bits, _names_of_bits),
    Part(_fisher, lambda sight: ["Fisher's direction"]),
    Part(_norms, _names_of_norms),
    Part(_order, lambda sight: ["which coordinate is largest", "which coordinate is smallest"]),
)
"""The numbers that are read one at a time, beside the projections on whole directions."""


def project(xp: Any, numbers: Any, sight: Sight) -> Any:
    """Projects a view's numbers on the directions, [..., r]; a number that is not finite counts as 0."""
    own = cast(numbers - sight.centre, np.float32)
    if xp is np:  # one pass where all are finite, and then so are the sums
        found = np.stack([_along(np, own, direction) for direction in sight.directions], -1)
        if np.isfinite(found).all():
            return found
    own = _finite(xp, own)
    return xp.stack([_along(xp, own, direction) for direction in sight.directions], -1)


def _along(xp: Any, own: Any, direction: Any) -> Any:
    """Computes inner products; with NumPy in one pass and without BLAS."""
    return np.einsum("...i,i->...", own, direction) if xp is np else (own * direction).sum(-1)


def read(xp: Any, view: View, sight: Sight) -> Any:
    """Returns all numbers of the family, [..., m] in float32."""
    return xp.concatenate([cast(part.read(xp, view, sight), np.float32) for part in FAMILY], -1)


def names(sight: Sight) -> list[str]:
    """Names the numbers of :func:`read`, [m]."""
    return [name for part in FAMILY for name in part.names(sight)]


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
    own = _finite(np, numbers - centre).astype(np.float64 if numbers.shape[-1] <= 4096 else np.float32)
    own /= _huge(own)
    n, d = own.shape[1:]
    means, spreads = own.mean(1), own.var(1)
    apart = means[1] - means[0]
    k = min(d, MOST_COORDINATES)
    chosen = np.arange(d)
    if d > k:
        chosen = np.sort(np.argsort(-_interest(views, means, spreads, n), kind="stable")[:k])
    few = own[..., chosen].astype(np.float64)
    inner = few - few.mean(1, keepdims=True)
    covariance = np.einsum("wni,wnj->ij", inner, inner, optimize=True) / (2 * n)
    pairs, signs = _related(covariance)
    size = np.diag(covariance)
    ridge = covariance + np.diag(1e-7 * size + np.where(size > 0, 0, 1e-12 * max(size.max(), 1e-300)))
    fisher = np.linalg.lstsq(ridge, apart[chosen], rcond=1e-14)[0]
    fisher /= max(np.abs(fisher).max(), 1e-300)
    directions = [apart] if given is None else [given, apart]
    return Sight(
        centre,
        np.asarray(directions, np.float32),
        chosen.astype(np.int32),
        pairs.astype(np.int32),
        signs.astype(np.float32),
        _telling_bits(views.words, whole),
        fisher.astype(np.float32),
        np.floor(np.log2(np.maximum(np.sqrt(size), 1e-30)) - DIGITS).astype(np.float32),
        np.stack([_usual(pooled[:, part]) for part in views.parts]).astype(numbers.dtype),
    )


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
    few = np.abs(_finite(np, pooled[:: max(1, len(pooled) // 512)])).astype(np.float64)
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
    rank = np.where(np.abs(related) > 0.3, np.abs(related), 0) + 1e-3 / (second - first)
    best = np.argsort(-rank, kind="stable")[:MOST_PAIRS]
    signs = np.where(related[best] < -0.3, -1.0, 1.0)
    return np.stack([second[best], first[best]], 1), signs
