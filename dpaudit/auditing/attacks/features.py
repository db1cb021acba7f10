"""Reads numbers from any release: with NumPy on a pilot, and with NumPy or JAX in every trial.

Each :class:`Part` of the family says which numbers it reads and what they are called. All parts read the same
:class:`View` of a release: all its numbers as one vector, their lowest bits, and more. What they read of it is chosen
on the pilot, by :mod:`dpaudit.auditing.attacks.pilot`.
"""

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

import jax
import numpy as np

RESIDUE = 24  # modulus of integers; its residues give those modulo 2, 3, 4, 6, 8 and 12
LOW = 256  # modulus of joined shares
NO_BIT, NO_NUMBER, NEGATIVE = 200.0, 201.0, 400.0  # for the lowest bit of 0, of what is not finite, and of -0
DIGITS = 16  # binary digits of a float, below its spread, that are read
STEPS = 1 << 14  # that a release's usual norm is divided into
MOST_COORDINATES, MOST_PAIRS, MOST_BITS = 48, 8, 8  # read one by one
MOST_SPREAD = 256  # coordinates whose covariance is looked at
MOST_PARTS = 8  # arrays whose norms are read, beside those of all together


class View:
    """A release, of which everything is read when it is first asked for.

    Args:
      xp: numpy or jax.numpy.
      leaves: its arrays, [..., *shape] with ``lead`` axes before the shape.
      reference: the arrays of another release, without those axes, as NumPy arrays.
      lead: axes of many releases.
    """

    def __init__(self, xp: Any, leaves: Sequence[Any], reference: Sequence[Any], lead: int = 0) -> None:
        self._xp = xp
        self._leaves = [leaf.reshape(*leaf.shape[:lead], -1) for leaf in leaves]
        self._reference = [at.reshape(-1) for at in reference]
        self.parts = parts([leaf.shape[lead:] for leaf in leaves])
        """Where the numbers of the whole release, and of each of its :data:`MOST_PARTS` largest arrays, lie."""

    @cached_property
    def numbers(self) -> Any:
        """[..., d]; integers of 32 bits or more as differences from the reference."""
        return self._joined(_numbers)

    @cached_property
    def low(self) -> Any:
        """[..., d], the exponent of the last binary digit of a float, and the residue of an integer."""
        return self._joined(_lowest)

    @cached_property
    def words(self) -> Any:
        """[..., e], integers in words of 32 bits."""
        return self._joined(_words)

    @cached_property
    def zero(self) -> Any:
        """[..., d], whether a number is 0."""
        return self._joined(lambda xp, leaf, at: leaf == 0)

    @cached_property
    def ring(self) -> Any:
        """[..., 3], modulo 2^32, as shares of a secret are joined: the sum of all integers, that of their first half
        less that of the second, and all of them xored; [..., 0] of fewer than two integers."""
        xp = self._xp
        found = [leaf.astype(np.uint32) for leaf in self._leaves if leaf.dtype.kind in "biu"]
        words = xp.concatenate([xp.zeros((*self._leaves[0].shape[:-1], 0), np.uint32), *found], -1)
        half = words.shape[-1] // 2
        if not half:
            return words[..., :0]
        first, second = (part.sum(-1, dtype=np.uint32) for part in (words[..., :half], words[..., half : 2 * half]))
        total = words.sum(-1, dtype=np.uint32)
        return xp.stack([total, first - second, xp.bitwise_xor.reduce(words, axis=-1)], -1)

    def _joined(self, of: Callable[..., Any]) -> Any:
        """Joins what ``of`` reads of every array into one vector for a release."""
        pairs = zip(self._leaves, self._reference, strict=True)
        return self._xp.concatenate([of(self._xp, leaf, at) for leaf, at in pairs], -1)


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
      spread: [2, d], directions: along the first, world 1 varies least beside world 0, along the other it varies most;
        [2, k], of the chosen coordinates, where d is above :data:`MOST_SPREAD`.
      level: [2], the place along each that releases of the world that varies least there lie around.
      hidden: [2], distances from it up to which all count alike, for the reason of ``finest``.
      ring: those of one release.
      lattice: [3, k], of the lattice that each chosen coordinate lies on in one world: a point, one over the step (0
        where there is none), and the least part of a step that is read.
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
    spread: Any
    level: Any
    hidden: Any
    ring: Any
    lattice: Any
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


def parts(shapes: Sequence[Sequence[int]]) -> tuple[slice, ...]:
    """Returns where the numbers of all arrays lie, and those of each of the largest, if there are several arrays."""
    sizes = [math.prod(shape) for shape in shapes]
    ends = list(accumulate(sizes))
    largest = sorted(range(len(sizes)), key=lambda i: (-sizes[i], i))[:MOST_PARTS] if len(sizes) > 1 else []
    return slice(0, ends[-1]), *(slice(ends[i] - sizes[i], ends[i]) for i in sorted(largest) if sizes[i] > 1)


def cast(array: Any, kind: Any) -> Any:
    """Returns the array in this type, without a copy if it has it already."""
    return array if array.dtype == kind else array.astype(kind)


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


def finite(xp: Any, numbers: Any) -> Any:
    """Returns the numbers with 0 for those that are not finite."""
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
    own = finite(xp, coordinates(xp, view, sight))
    return _along(xp, own, sight.fisher)[..., None]


def _norms(xp: Any, view: View, sight: Sight) -> Any:
    """Returns norms of the differences from the centre, and of the whole release, which may lie on a sphere whose
    radius tells the worlds apart: in steps from the usual norm, so that the rounding of sums does not show."""
    own = finite(xp, _centred(xp, view, sight))
    size = xp.abs(own)
    mean, square = own.mean(-1), (own * own).mean(-1)
    around = [size.sum(-1), xp.sqrt(square), size.max(-1), mean, square - mean * mean]
    for part, usual in zip(view.parts, sight.usual, strict=True):
        whole = xp.abs(own[..., part] / usual[1] + cast(sight.centre[part] / usual[1], np.float32))
        norms = whole.mean(-1) * (usual[1] / usual[0]), xp.sqrt((whole * whole).mean(-1))
        around += [xp.rint((norm - 1) * STEPS) for norm in norms]
    return xp.stack(around, -1)


def _off_lattice(xp: Any, view: View, sight: Sight) -> Any:
    """Returns how far a release is from a lattice: noise in whole steps hides no part of a step."""
    point, inverse, least = sight.lattice
    steps = finite(xp, coordinates(xp, view, sight) - point) * inverse
    away = xp.abs(steps - xp.rint(steps))
    return (xp.rint(away / least) * least).sum(-1)[..., None]


def _joined_shares(xp: Any, view: View, sight: Sight) -> Any:
    """Returns what shares of a secret are joined to, as differences from another release's and in their low bits."""
    sums, xored = (view.ring - sight.ring)[..., :2].view(np.int32), (view.ring ^ sight.ring)[..., 2:]
    return xp.concatenate([part.astype(np.float32) for part in (sums, xored, view.ring % LOW)], -1)


def _counts(xp: Any, view: View, sight: Sight) -> Any:
    kinds = view.zero, view.low == NEGATIVE, view.low == NO_NUMBER
    return xp.stack([kind.sum(-1) for kind in kinds], -1).astype(np.float32)


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


def _names_of_ring(sight: Sight) -> list[str]:
    found = ["sum of all integers", "first half of all integers less the second", "all integers xored"]
    return [name + more for more in ("", f" modulo {LOW}") for name in found[: len(sight.ring)]]


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
    Part(_joined_shares, _names_of_ring),
    Part(_off_lattice, lambda sight: ["distance from a lattice"]),
    Part(_counts, lambda sight: [f"how many numbers are {kind}" for kind in ("0", "-0", "not finite")]),
    Part(_order, lambda sight: ["which coordinate is largest", "which coordinate is smallest"]),
)
"""The numbers that are read one at a time, beside the projections on whole directions."""


def project(xp: Any, numbers: Any, sight: Sight) -> Any:
    """Projects a view's numbers on the directions, [..., r], and measures distances along those of different spread,
    [..., 2]; a number that is not finite counts as 0."""
    own = cast(numbers - sight.centre, np.float32)
    if xp is np:  # one pass where all are finite, and then so are the sums
        found = _projected(np, own, sight)
        if np.isfinite(found).all():
            return found
    return _projected(xp, finite(xp, own), sight)


def _projected(xp: Any, own: Any, sight: Sight) -> Any:
    some = own if own.shape[-1] <= MOST_SPREAD else xp.take(own, sight.chosen, axis=-1)
    found = [_along(xp, own, direction) for direction in sight.directions]
    for direction, level, hidden in zip(sight.spread, sight.level, sight.hidden, strict=True):
        found.append(xp.maximum(xp.abs(_along(xp, some, direction) - level), hidden))
    return xp.stack(found, -1)


def only(sight: Sight, number: int) -> Sight:
    """Returns a sight by which :func:`project` computes the one number alone."""
    beyond = max(0, number - len(sight.directions))
    spread = slice(beyond, beyond + (number >= len(sight.directions)))
    parts = {name: getattr(sight, name)[spread] for name in ("spread", "level", "hidden")}
    return sight._replace(directions=sight.directions[number : number + 1], **parts)


def _along(xp: Any, own: Any, direction: Any) -> Any:
    """Computes inner products; with NumPy in one pass and without BLAS."""
    return np.einsum("...i,i->...", own, direction) if xp is np else (own * direction).sum(-1)


def read(xp: Any, view: View, sight: Sight) -> Any:
    """Returns all numbers of the family, [..., m] in float32."""
    return xp.concatenate([cast(part.read(xp, view, sight), np.float32) for part in FAMILY], -1)


def read_one(xp: Any, view: View, sight: Sight, number: int) -> Any:
    """Returns one of the numbers of :func:`read`, [...], without reading the others."""
    for part in FAMILY:
        if number < (count := len(part.names(sight))):
            return cast(part.read(xp, view, sight), np.float32)[..., number]
        number -= count
    raise IndexError(number)


def names(sight: Sight) -> list[str]:
    """Names the numbers of :func:`read`, [m]."""
    return [name for part in FAMILY for name in part.names(sight)]
