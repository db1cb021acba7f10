"""Numbers that an observer can read from any release: computed by NumPy on a pilot and by JAX in every trial.

A part of the family is a value: what it reads, and how each of its numbers is called. All parts read the same view of
a release, every number of it as a vector, beside what is left in its lowest bits.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dpaudit._engine.game import trial_key
from dpaudit.mechanisms.claim import Mechanism

RESIDUE = 24  # of whole numbers; tells residues modulo 2, 3, 4, 6, 8 and 12
NO_BIT, NO_NUMBER = 200.0, 201.0  # in place of the lowest bit of 0, and of what is not finite
DIGITS = 16  # of a float, binary ones below its spread, that are read
MOST_COORDINATES, MOST_PAIRS = 48, 8  # that are read one by one


class View(NamedTuple):
    """A release: its numbers [..., d], whole ones of 32 bits or more less a reference; and their lowest bits [..., d],
    the exponent of the last binary digit of a float and the residue of a whole number."""

    numbers: Any
    low: Any


class Sight(NamedTuple):
    """What is read from a view: all arrays, chosen on a pilot.

    Attributes:
      centre: [d], subtracted from every release.
      directions: [r, d], to project on.
      chosen: [k], the coordinates that are read one by one.
      pairs: [p, 2] of the chosen ones, and signs [p]: their differences (1) or sums (-1).
      fisher: [k], the direction that tells the worlds apart best where both are normal with one covariance.
      finest: [k], exponents: digits below are not read. That they tell inputs apart is true of any sum with noise in
        floating point (Mironov 2012), whatever its noise: :data:`distinguish.lowest_bits` reads them.
    """

    centre: Any
    directions: Any
    chosen: Any
    pairs: Any
    signs: Any
    fisher: Any
    finest: Any


class Part(NamedTuple):
    """A part of the family of attacks.

    Attributes:
      read: ``read(xp, view, sight) -> [..., n]``, for ``xp`` NumPy or jax.numpy.
      names: ``names(sight) -> n names``.
    """

    read: Callable[[Any, View, Sight], Any]
    names: Callable[[Sight], list[str]]


def view(xp: Any, leaves: Sequence[Any], reference: Sequence[Any], lead: int = 0) -> View:
    """The view of a release.

    Args:
      xp: numpy or jax.numpy.
      leaves: its arrays, [..., *shape] with ``lead`` axes before the shape.
      reference: the same of another release, without those axes, as NumPy arrays.
      lead: axes of many releases.
    """
    parts = [
        _leaf(xp, leaf.reshape(*leaf.shape[:lead], -1), at.reshape(-1))
        for leaf, at in zip(leaves, reference, strict=True)
    ]
    numbers, low = (xp.concatenate(columns, -1) for columns in zip(*parts, strict=True))
    return View(numbers, low)


def _leaf(xp: Any, leaf: Any, at: Any) -> tuple[Any, Any]:
    kind = leaf.dtype
    if kind.kind == "b":
        return leaf.astype(np.float32), xp.zeros(leaf.shape, np.float32)
    if kind.kind not in "iu":  # bfloat16 is of kind V
        numbers = leaf if kind.itemsize == 8 else leaf.astype(np.float32)
        return numbers, lowest_bit(xp, numbers)
    if kind.itemsize >= 4:  # a difference modulo 2^bits, read as a signed number
        leaf = (leaf - at).view(np.dtype(f"int{8 * kind.itemsize}"))
    leaf = leaf if kind.itemsize >= 4 else leaf.astype(np.int32)
    return leaf.astype(np.float64 if leaf.dtype.itemsize == 8 else np.float32), (leaf % RESIDUE).astype(np.float32)


def lowest_bit(xp: Any, numbers: Any) -> Any:
    """The exponent of the last binary digit of each float that is not 0."""
    size = numbers.dtype.itemsize
    kind, digits, highest = (np.int32, 23, 255) if size == 4 else (np.int64, 52, 2047)
    bits = numbers.view(kind)
    exponent, fraction = (bits >> digits) & highest, bits & ((1 << digits) - 1)
    whole = xp.where(exponent > 0, fraction | (1 << digits), fraction)
    last = xp.maximum(whole & -whole, 1)
    place = xp.round(xp.log2(last.astype(numbers.dtype)))
    found = xp.maximum(exponent, 1) - (highest // 2 + digits) + place
    found = xp.where(whole == 0, NO_BIT, xp.where(exponent == highest, NO_NUMBER, found))
    return found.astype(np.float32)


def _centred(xp: Any, view: View, sight: Sight) -> Any:
    return (view.numbers - sight.centre).astype(np.float32)


def _finite(xp: Any, numbers: Any) -> Any:
    return xp.where(xp.isfinite(numbers), numbers, 0)


def coordinates(xp: Any, view: View, sight: Sight) -> Any:
    """The chosen coordinates, [..., k]."""
    return xp.take(_centred(xp, view, sight), sight.chosen, axis=-1)


def _low(xp: Any, view: View, sight: Sight) -> Any:
    return xp.maximum(xp.take(view.low, sight.chosen, axis=-1), sight.finest)


def _pairs(xp: Any, view: View, sight: Sight) -> Any:
    own = coordinates(xp, view, sight)
    first, second = (xp.take(own, sight.pairs[:, i], axis=-1) for i in range(2))
    return first - sight.signs * second


def _fisher(xp: Any, view: View, sight: Sight) -> Any:
    own = _finite(xp, coordinates(xp, view, sight))
    return (own * sight.fisher).sum(-1)[..., None]


def _norms(xp: Any, view: View, sight: Sight) -> Any:
    own = _finite(xp, _centred(xp, view, sight))
    size = xp.abs(own)
    mean, square = own.mean(-1), (own * own).mean(-1)
    return xp.stack([size.sum(-1), xp.sqrt(square), size.max(-1), mean, square - mean * mean], -1)


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


NORMS = ["L1 norm", "L2 norm", "largest size", "mean", "variance"]

FAMILY: tuple[Part, ...] = (
    Part(coordinates, _each("coordinate {}")),
    Part(_low, _each("lowest bits of coordinate {}")),
    Part(_pairs, _names_of_pairs),
    Part(_fisher, lambda sight: ["Fisher's direction"]),
    Part(_norms, lambda sight: list(NORMS)),
    Part(_order, lambda sight: ["which coordinate is largest", "which coordinate is smallest"]),
)
"""What is read one number at a time, beside the projections on whole directions."""


def project(xp: Any, view: View, sight: Sight) -> Any:
    """The projections on the directions, [..., r]; a coordinate that is not finite adds nothing."""
    own = _finite(xp, _centred(xp, view, sight))
    return xp.stack([(own * direction).sum(-1) for direction in sight.directions], -1)


def read(xp: Any, view: View, sight: Sight) -> Any:
    """All numbers of the family, [..., m] in float32."""
    return xp.concatenate([part.read(xp, view, sight).astype(np.float32) for part in FAMILY], -1)


def names(sight: Sight) -> list[str]:
    """How the numbers of :func:`read` are called, [m]."""
    return [name for part in FAMILY for name in part.names(sight)]


def sight(views: View, given: Any) -> Sight:
    """Chooses what is to be read on a pilot.

    Args:
      views: of the pilot, [2, n, d].
      given: a direction [d] to look along, or None.
    """
    numbers = views.numbers
    pooled = numbers.reshape(-1, numbers.shape[-1])
    centre = _middle(pooled).astype(numbers.dtype)
    own = _finite(np, numbers - centre).astype(np.float64 if numbers.shape[-1] <= 4096 else np.float32)
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
        fisher.astype(np.float32),
        np.floor(np.log2(np.maximum(np.sqrt(size), 1e-30)) - DIGITS).astype(np.float32),
    )


def _middle(pooled: np.ndarray) -> np.ndarray:
    """A value in the middle of each column's finite ones, one that was seen, so that exact values stay exact."""
    few = np.sort(pooled[:: max(1, len(pooled) // 512)], axis=0)  # NaN and infinity last
    known = np.isfinite(few)
    place = np.argmax(known, axis=0) + known.sum(0) // 2
    found = np.take_along_axis(few, np.minimum(place, len(few) - 1)[None], 0)[0]
    return np.where(np.isfinite(found), found, 0)


def _interest(views: View, means: np.ndarray, spreads: np.ndarray, n: int) -> np.ndarray:
    """How much each coordinate's mean, variance and lowest bits differ between worlds, [d]."""
    total = spreads.sum(0)
    tiny = np.finfo(np.float32).tiny
    shift = (means[1] - means[0]) ** 2 / (total + tiny) * n
    ratio = n / 4 * np.log((spreads[1] + tiny) / (spreads[0] + tiny)) ** 2
    low, vary = views.low.mean(1), views.low.var(1).sum(0)
    bits = (low[1] - low[0]) ** 2 / (vary + 1e-6) * n
    return np.clip(shift, 0, 1e30) + np.clip(ratio, 0, 1e30) * (total > 0) + np.clip(bits, 0, 1e30)


def _related(covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(pairs, signs) of coordinates: those that vary together most, then neighbours."""
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


# What every distinguisher is: types, and the one way to read a release as numbers.

Score = Callable[[Any], jax.Array]


class Distinguisher(NamedTuple):
    """An attack: what it computes from a release, and where it draws the line.

    Attributes:
      fit: ``fit(key, mechanism, x0, x1) -> score`` with ``score(release) -> float``, jittable.
      threshold: guess world 1 where score > threshold; None to have it chosen on a first split.
      name: for tables.
    """

    fit: Callable[[jax.Array, Mechanism, Any, Any], Score]
    threshold: float | None
    name: str = "own distinguisher"


def flat(tree: Any) -> jax.Array:
    """All numbers of a pytree as one vector, float32 or wider."""
    vector = ravel_pytree(tree)[0]
    return vector.astype(jnp.promote_types(vector.dtype, jnp.float32))


def reader(reference: Any) -> Callable[[Any], jax.Array]:
    """:func:`flat` for trees like ``reference``, but for whole numbers of 32 bits and more, which no float32 holds.

    These are read as their difference from the reference, which is taken as whole numbers: what varies is small where
    it matters, however far from 0 it lies. float64 holds those of 64 bits.

    Args:
      reference: an example of what is to be read.
    """
    if not any(map(_wide, jax.tree.leaves(reference))):
        return flat

    def less(leaf: Any, at: Any) -> jax.Array:
        leaf = jnp.asarray(leaf)
        if not _wide(leaf):
            return leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))
        bits = 8 * leaf.dtype.itemsize  # a difference modulo 2^bits, read as a signed number
        difference = jax.lax.bitcast_convert_type(leaf - jnp.asarray(at, leaf.dtype), jnp.dtype(f"int{bits}"))
        return difference.astype(jnp.float32 if bits == 32 else jnp.float64)

    return lambda tree: flat(jax.tree.map(less, tree, reference))


def release_reader(key: jax.Array, mechanism: Mechanism, x: Any) -> Callable[[Any], jax.Array]:
    """The :func:`reader` of a mechanism's releases; their reference, where they need one, is a release of ``x``."""
    key = trial_key(key)  # of the kind that trials have
    shapes = jax.eval_shape(lambda: mechanism.apply(key, x))
    if not any(map(_wide, jax.tree.leaves(shapes))):
        return flat
    return reader(jax.jit(mechanism.apply)(key, x))


def _wide(leaf: Any) -> bool:
    kind = leaf.dtype if hasattr(leaf, "dtype") else jnp.asarray(leaf).dtype
    return bool(jnp.issubdtype(kind, jnp.integer)) and kind.itemsize >= 4
