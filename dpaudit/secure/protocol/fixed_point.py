"""Converts clipped gradients to whole numbers and back, at the finest scale whose sum *with its noise* fits the ring.

One unit is C/Q: a clipped gradient becomes whole numbers of L2 norm at most Q, so a coordinate of the sum over m
examples is at most m Q, and with the noise Z the release stays in the ring as long as ::

    m Q + |Z| <= 2^N - 1

The paper's scale, (2^N - 1)/(m C), leaves no room for the noise: at m = 30 its standard deviation is a quarter of the
ring's half at epsilon 0.5, and 12.6 times it at 0.01. The uncorrected protocol of Chase et al. uses no scale at all,
so that sums of +m C and -m C are the same value.

A release that leaves the ring is reduced modulo 2^(N+1): a coordinate is then wrong, but nothing more is revealed
about anyone, since the ring's value is a function of the sum with its noise.

:func:`quantize` rounds toward zero. Rounding to the nearest unit can lengthen a vector by up to sqrt(d)/2 units, and
with it the sensitivity for which the noise was calibrated. Rounding toward zero never lengthens it, and whole numbers
add exactly: the sum that the servers reconstruct is that of the examples' integers, to the bit, however it was split.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dpaudit import _validate
from dpaudit.secure.crypto import shares
from dpaudit.secure.noise.binomial import Binomial, binomial

MISSED = 2.0**-64  # probability that a coordinate's Gaussian noise does not fit into the ring
MOST_LEVELS = 1 << 24  # up to here float64 is exact enough for a clipped gradient's norm (quantize)


class Scale(NamedTuple):
    """The fixed-point scale of a training, the same for all owners and both servers.

    Attributes:
      clip_norm: C, L2, per example.
      levels: Q, units in one clip norm, and the largest integer norm of an example.
      ring_bits: N + 1; shares are modulo 2^(N+1).
    """

    clip_norm: float
    levels: int
    ring_bits: int

    @property
    def unit(self) -> float:
        """The value of one unit, C/Q."""
        return self.clip_norm / self.levels

    def room(self, examples: int) -> int:
        """Returns the largest noise, in units, with which no sum over this many examples leaves the ring."""
        return (1 << (self.ring_bits - 1)) - 1 - examples * self.levels


def largest(
    *, examples: int, clip_norm: float, noise_multiplier: float = 0.0, reach: float = 0.0, ring_bits: int = 25
) -> Scale:
    """Finds the finest scale where m examples and noise of ``reach`` standard deviations fit: (m + reach z) Q < 2^N.

    Args:
      examples: m, of all owners together in one step.
      clip_norm: C, L2, per example.
      noise_multiplier: z, standard deviation of the total noise over the clip norm; 0 for none.
      reach: in standard deviations; :func:`subgaussian_reach` for the discrete Gaussian.
      ring_bits: N + 1, 2 to 32.

    Returns:
      A :class:`Scale`, of at most 2^24 levels.

    Raises:
      InputError: a value is out of range, or the ring is too small for a single level.
    """
    examples = _validate.at_least(1, examples=examples)
    clip_norm = _validate.positive(clip_norm=clip_norm)
    noise_multiplier = _validate.non_negative(noise_multiplier=noise_multiplier)
    reach = _validate.non_negative(reach=reach)
    needed = examples + reach * noise_multiplier
    ring_bits = shares.checked_ring(ring_bits)
    levels = min(MOST_LEVELS, int(((1 << (ring_bits - 1)) - 1) / needed))
    if levels < 1:
        raise _validate.expected("ring_bits", f"a ring with room for {needed:g} clip norms", ring_bits)
    return Scale(float(clip_norm), levels, ring_bits)


def subgaussian_reach(probability: float) -> float:
    """Returns t with P(|Z| > t sigma) <= 2 exp(-t^2 / 2) = ``probability``, for (discrete) Gaussian noise or its sums.

    Raises:
      InputError: a probability outside (0, 1).

    Source: Canonne, Kamath and Steinke 2020: the discrete Gaussian is sub-Gaussian with parameter sigma.
    """
    return math.sqrt(2 * math.log(2 / _validate.open_unit(probability=probability)))


def for_gaussian(*, noise_multiplier: float, examples: int, clip_norm: float, ring_bits: int = 25) -> Scale:
    """Finds the finest scale at which a coordinate with Gaussian noise leaves the ring with probability <= 2^-64.

    The noise may be discrete or from a table. Arguments and errors: as for :func:`with_binomial`.
    """
    return largest(
        examples=examples,
        clip_norm=clip_norm,
        noise_multiplier=_validate.positive(noise_multiplier=noise_multiplier),
        reach=subgaussian_reach(MISSED),
        ring_bits=ring_bits,
    )


def with_binomial(
    *, noise_multiplier: float, examples: int, clip_norm: float, coins: int = 127, ring_bits: int = 25
) -> tuple[Scale, Binomial]:
    """Finds the finest scale, and binomial noise of at least the wanted standard deviation, that never leave the ring.

    The step is a power of two, so the scale follows the noise: with the widest step that fits, Q is the largest
    integer with std >= z Q, and the resulting noise multiplier, std / Q, is z to one part in Q. The whole support of
    the noise fits, so the probability of leaving the ring is 0.

    Args:
      noise_multiplier: z, wanted standard deviation of the noise over the clip norm.
      examples: m, of all owners together in one step.
      clip_norm: C, L2, per example.
      coins: n = 2^k - 1 of the binomial.
      ring_bits: N + 1, 2 to 32.

    Returns:
      (scale, noise).

    Raises:
      InputError: a value is out of range, the ring has no room, or even the narrowest noise is more than wanted.
    """
    noise_multiplier = _validate.positive(noise_multiplier=noise_multiplier)
    finest = largest(examples=examples, clip_norm=clip_norm, ring_bits=ring_bits)
    for step_bits in range(ring_bits, 0, -1):
        noise = binomial(coins=coins, step_bits=step_bits)
        scale = finest._replace(levels=int(min(noise.std / noise_multiplier, MOST_LEVELS + 1)))  # it may be infinite
        if 1 <= scale.levels <= MOST_LEVELS and noise.reach <= scale.room(examples):
            return scale, noise
    narrowest = binomial(coins=coins, step_bits=1)
    levels = min(MOST_LEVELS, (finest._replace(levels=0).room(examples) - narrowest.reach) // examples)
    if levels >= 1 and noise_multiplier < (least := narrowest.std / levels):
        wanted = f"at least {1.001 * least:.4g}, the least noise of {coins} coins in a ring of {ring_bits} bits"
        raise _validate.expected("noise_multiplier", wanted, noise_multiplier)
    wanted = f"a ring with room for {examples} examples and noise of {noise_multiplier:g} clip norms"
    raise _validate.expected("ring_bits", wanted, ring_bits)


SLACK = 1e-4  # relative error of a float32 clip norm; a longer row was not clipped
_BLOCK = 1 << 17  # coordinates that are rounded at a time: 1 MB of float64, which stays in a core's cache


def quantize(gradients: np.ndarray, scale: Scale) -> np.ndarray:
    """Rounds each example's clipped gradient toward zero, in units of C/Q: integers of L2 norm at most Q.

    Rows longer than C by no more than rounding are first shortened to C, in float64.

    Args:
      gradients: [n, d], one clipped gradient per example.
      scale: C and Q.

    Returns:
      int32 [n, d]. :func:`quantized_sum` adds them up.

    Raises:
      InputError: a row is not clipped, or not finite; the numbers are not real.
    """
    integers = np.empty(np.shape(gradients), np.int32)
    for start, rows in _rounded(_clipped(gradients), scale, _checked):
        integers[start : start + len(rows)] = rows
    return integers


def quantized_sum(gradients: np.ndarray, scale: Scale) -> np.ndarray:
    """Adds up :func:`quantize` of the examples, what an owner submits, without keeping them: int64 [d].

    Arguments and errors: as for :func:`quantize`.
    """
    total = np.zeros(np.shape(gradients)[-1:], np.int64)
    for _, rows in _rounded(_clipped(gradients), scale, _checked):
        total += rows.sum(axis=0).astype(np.int64)  # whole numbers below 2^53, so the order of adding does not matter
    return total


def clipped_sum(gradients: Sequence[np.ndarray], scale: Scale) -> np.ndarray:
    """Clips each example's gradient to C, rounds it toward zero in units of C/Q, and adds up: int64 [d].

    What an owner submits. Clipping is in float64, so that no clipped gradient has to be written out before it is
    rounded: g min(1, C / |g|), with |g| taken as large as its rounding allows. A gradient that is not finite adds
    zero, as in :func:`dpaudit.training.per_example.clipped_sum`.

    Args:
      gradients: arrays [n, ...], each example's gradient of one parameter after another; d is their size without n,
        which may be 0: an owner without an example in a step adds zeros.
      scale: C and Q.

    Raises:
      InputError: there are no arrays, they are not of real numbers, or their numbers of examples differ.
    """
    leaves = [_real(leaf) for leaf in gradients]
    counts = {leaf.shape[:1] for leaf in leaves}
    if len(counts) != 1 or counts == {()}:
        raise _validate.expected("gradients", "arrays of one number of examples", sorted(counts))
    rows_of = [leaf.reshape(len(leaf), math.prod(leaf.shape[1:])) for leaf in leaves]
    total = np.zeros(sum(leaf.shape[1] for leaf in rows_of), np.int64)
    for _, rows in _rounded(rows_of, scale, _shortened):
        total += rows.sum(axis=0).astype(np.int64)
    return total


def _shortened(rows: np.ndarray, scale: Scale) -> np.ndarray:
    """Returns what each row is multiplied by to be clipped, in units; rows that are not finite become zero."""
    norms = np.sqrt(np.einsum("nd,nd->n", rows, rows))
    if not np.isfinite(norms).all():
        rows[~np.isfinite(norms)] = 0
        norms = np.where(np.isfinite(norms), norms, 0)
    most = norms * (1 + rows.shape[1] * np.finfo(rows.dtype).eps)  # no row is longer: a sum of d squares is rounded
    return scale.levels / np.maximum(most, scale.clip_norm)


def _checked(rows: np.ndarray, scale: Scale) -> np.ndarray:
    """Returns what each clipped row is multiplied by, in units; InputError for one that is not clipped."""
    norms = np.sqrt(np.einsum("nd,nd->n", rows, rows))
    if not (norms <= scale.clip_norm * (1 + SLACK)).all():
        raise _validate.expected("gradients", f"rows of L2 norm <= {scale.clip_norm:g}", float(norms.max()))
    return scale.levels / np.maximum(norms, scale.clip_norm)


def _clipped(gradients: np.ndarray) -> list[np.ndarray]:
    gradients = _real(gradients)
    if gradients.ndim != 2:
        raise _validate.expected("gradients", "an array of shape [n, d]", f"shape {list(gradients.shape)}")
    return [gradients]


def _real(gradients: np.ndarray) -> np.ndarray:
    found = np.asarray(gradients)
    if not np.can_cast(found.dtype, np.float64, "same_kind"):
        raise _validate.expected("gradients", "real numbers", f"{found.dtype} ones")
    return found


def _rounded(
    leaves: list[np.ndarray], scale: Scale, factors: Callable[[np.ndarray, Scale], np.ndarray]
) -> Iterator[tuple[int, np.ndarray]]:
    """Yields (first row, whole numbers as float64) for a few rows at a time, in memory that is used again."""
    ends = np.cumsum([leaf.shape[1] for leaf in leaves])
    count, together = len(leaves[0]), max(1, _BLOCK // max(1, int(ends[-1])))
    block = np.empty((min(together, count), ends[-1]))
    for start in range(0, count, together):
        rows = block[: min(together, count - start)]
        for leaf, end in zip(leaves, ends, strict=True):
            np.copyto(rows[:, end - leaf.shape[1] : end], leaf[start : start + together])
        rows *= factors(rows, scale)[:, None]
        np.trunc(rows, out=rows)
        squares = np.einsum("nd,nd->n", rows, rows)  # exact: Q^2 is at most 2^48
        if (squares > scale.levels**2).any():
            raise _validate.expected("scale", "levels for which float64 is exact enough", scale.levels)
        yield start, rows


def dequantize(total: np.ndarray, scale: Scale) -> np.ndarray:
    """Converts units back into gradients: float64, of any shape."""
    return total * scale.unit
