"""Computes the privacy that binomial noise spends, from its exact probabilities.

:func:`spent` bounds the Renyi divergences of a noisy vector from above; :func:`epsilon`, :func:`allowed` and
:func:`claim` follow from them. :func:`least_epsilon` is exact, for a record that changes one coordinate only.

Neighbouring sums differ by an integer vector v of L2 norm at most Delta; coordinates are independent, so the
divergences add up over them. Let p be one coordinate's probabilities (:mod:`dpaudit.secure.noise.binomial`) and, for a
shift of v >= 1 units and alpha > 1, ::

    S(v) = sum over z in E of p(z)^alpha p(z - v)^(1 - alpha),   R(v) = log S(v) / (alpha - 1)

*Trimming.* The support is bounded, so without the event E every S is infinite. E leaves out both ends, from a corner
of p on (corners are a step apart). Given that all d coordinates are in E, of probability P(E)^d, the release has
divergence at most sum R(v_i) - d alpha/(alpha - 1) log P(E) from the neighbour's; 1 - P(E)^d is charged to delta. p is
symmetric, so the other direction is the same.

*All shifts.* kappa is the largest R(v)/v^2 over v = 1..Delta, so sum R(v_i) <= kappa Delta^2 for every v, however the
shift is spread. A Gaussian's kappa is alpha/(2 sigma^2) at all shifts. Here the worst shift is often neither 1 nor
Delta.

*Upper bounds instead of long sums*:

- Between neighbouring corners of p(z) and p(z - v) both are straight lines, and x^alpha y^(1 - alpha) is convex in
  (x, y): a sum over the whole numbers between two nodes is at most that over the chord.
- Shifts beyond 256 are computed at every w-th, w a power of two, for the law of step 2^s/w at shift v/w. With the low
  bits of U and U' made public, Z has that law; adding r < w to the low part of U, which is uniform again, carries into
  the high one with probability r/w. So by joint convexity S(a w + r) <= (1 - r/w) S'(a) + (r/w) S'(a + 1), where S'
  belongs to the coarser law. With x = log S', Hoeffding's lemma bounds that chord's logarithm, which adds 1/(4 a^2) of
  the larger end's ratio and (x(a+1) - x(a))^2 / (8 a^2): as a >= 128, a relative 2e-5 and, where x is 20, 6e-4.

*One coordinate, exactly.* The hockey-stick divergence of the noise from itself, moved by v units, is ::

    delta(epsilon) = sum over z of max(0, p(z) - e^epsilon p(z - v))

Between neighbouring corners of p(z) and of p(z - v) both are straight lines, and so is their difference: its positive
part there is an arithmetic series. So the sum takes a few hundred terms, however many values the noise has. A vector
of L2 norm v spends at least this much: the same length spread over more coordinates may cost more.

dp-accounting converts divergences to (epsilon, delta) and composes them.
"""

import math
from bisect import bisect_right
from typing import Any, NamedTuple

import numpy as np
from dp_accounting import rdp
from scipy import optimize

from dpaudit import _validate
from dpaudit.mechanisms.claim import Claim
from dpaudit.secure.noise.binomial import Binomial, coin_probabilities, probabilities, tail

ORDERS = (1.25, 1.5, 1.75, *(2 * 2 ** (i / 3) for i in range(31)))  # to 2,048: an epsilon of 0.01 needs them
TRIMMED = 0.01  # the part of delta that pays for leaving E
EXACT = 128  # shifts that are each computed, and cells in every doubling beyond
MOST = 1 << 20  # largest number of releases that a budget allows
NODES = 8  # chords from one corner to the next


class Spent(NamedTuple):
    """The privacy loss of one release, as a curve.

    Attributes:
      divergence: [orders], nats; infinite where float64 cannot hold it.
      trimmed: probability of what the curve leaves out; it is charged to delta.
    """

    divergence: np.ndarray
    trimmed: float


def spent(
    noise: Binomial, *, sensitivity: int, dimension: int, trimmed: float, orders: tuple[float, ...] = ORDERS
) -> Spent:
    """Bounds the Renyi divergences of a vector of d noisy sums under any integer shift of L2 norm <= Delta.

    Args:
      noise: the law of each coordinate's noise.
      sensitivity: Delta in units, L2: with Q units in a clip norm, 2 Q if a record is replaced, Q if one is added or
        removed.
      dimension: d.
      trimmed: the probability that may be left out, all coordinates together, in (0, 1). More is left out where
        the support is so short that the shift requires it.
      orders: alpha > 1.

    Returns:
      A :class:`Spent`.

    Raises:
      InputError: a value is out of range.

    Source: Mironov 2017, Proposition 1 (composition, here over coordinates); the bounds are derived in this
    module's docstring, from the joint convexity of S, an f-divergence.
    """
    sensitivity = _validate.at_least(1, sensitivity=sensitivity)
    dimension = _validate.at_least(1, dimension=dimension)
    trimmed = _validate.open_unit(trimmed=trimmed)
    alphas = np.array(orders, np.float64)
    if not (alphas > 1).all():
        raise _validate.expected("orders", "numbers > 1", float(alphas.min()))
    cut, outside = _cut(noise, sensitivity, trimmed / dimension)
    if outside == 1:
        return Spent(np.full(len(alphas), math.inf), 1.0)
    ratio = _steepest(noise, sensitivity, cut, alphas)
    inside = dimension * math.log1p(-outside)
    return Spent(ratio * float(sensitivity) ** 2 - alphas / (alphas - 1) * inside, -math.expm1(inside))


def epsilon(noise: Binomial, *, sensitivity: int, dimension: int, delta: float, steps: int = 1) -> float:
    """Bounds the epsilon that ``steps`` releases spend on a record that is in every batch, at a total ``delta``.

    Args:
      noise, sensitivity, dimension: as for :func:`spent`.
      delta: in (0, 1); a hundredth of it, or what the shift requires, pays for the ends of the noise.
      steps: >= 1.

    Returns:
      epsilon in nats, an upper bound; infinite where the ends of the noise cost more than delta.

    Raises:
      InputError: a value is out of range.

    Source: conversion by Canonne, Kamath and Steinke 2020, Proposition 12, in dp-accounting.
    """
    delta = _validate.open_unit(delta=delta)
    steps = _validate.at_least(1, steps=steps)
    one = spent(noise, sensitivity=sensitivity, dimension=dimension, trimmed=TRIMMED * delta / steps)
    return composed(one, steps, delta)


def composed(one: Spent, steps: int, delta: float) -> float:
    """Composes ``steps`` releases that spend ``one`` each (at :data:`ORDERS`) into an epsilon; 0 for no release."""
    left = delta - steps * one.trimmed
    if steps == 0 or left <= 0:
        return math.inf if steps else 0.0
    return float(rdp.compute_epsilon(ORDERS, list(steps * one.divergence), left)[0])


def allowed(noise: Binomial, *, sensitivity: int, dimension: int, epsilon: float, delta: float) -> int:
    """Counts the releases that spend at most an epsilon, by :func:`epsilon`; the true count may be 0.1% larger.

    Args:
      noise, sensitivity, dimension, delta: as for :func:`epsilon`.
      epsilon: nats, > 0.

    Returns:
      A number from 0 to 2^20.

    Raises:
      InputError: a value is out of range.
    """
    epsilon = _validate.positive(epsilon=epsilon)
    delta = _validate.open_unit(delta=delta)
    most = count = MOST
    for _ in range(2):  # more steps leave each a smaller part of delta: first for the most, then for about as many
        trimmed = TRIMMED * delta / most
        one = spent(noise, sensitivity=sensitivity, dimension=dimension, trimmed=trimmed)
        count = bisect_right(range(1, most + 1), epsilon, key=lambda steps, one=one: composed(one, steps, delta))
        most = min(MOST, count + count // 4 + 1)
    while count:
        one = spent(noise, sensitivity=sensitivity, dimension=dimension, trimmed=TRIMMED * delta / count)
        if composed(one, count, delta) <= epsilon:
            break
        count -= 1 + count // 1_000
    return count


def claim(
    noise: Binomial, *, sensitivity: int, dimension: int, neighbouring: str, steps: int = 1, trimmed: float = 1e-9
) -> Claim:
    """States what ``steps`` releases promise to a record that is in every batch, at every delta.

    Let f be the curve of the divergences given E, and t the probability of what E leaves out. The release gives a set
    of outcomes at most t more than the release given E does, and the other way round, so the promise is
    f(min(fpr + t, 1)) - t.

    Args:
      noise, sensitivity, dimension, steps: as for :func:`epsilon`.
      neighbouring: "replace" or "add_remove", the relation for which the sensitivity was computed.
      trimmed: t that may be left out of all releases together, in (0, 1); more where the ends of the noise require it.

    Returns:
      A trade-off curve as a :class:`dpaudit.Claim`.

    Raises:
      InputError: a value is out of range, or the ends of the noise alone reveal the record.
    """
    steps = _validate.at_least(1, steps=steps)
    each = _validate.open_unit(trimmed=trimmed) / steps
    one = spent(noise, sensitivity=sensitivity, dimension=dimension, trimmed=each)
    outside = steps * one.trimmed
    if outside >= 1 or not np.isfinite(one.divergence).any():
        raise _validate.expected("noise", "one whose ends are wider than the shift", noise)
    given = Claim.renyi(ORDERS, steps * one.divergence, neighbouring=neighbouring)
    fpr, fnr = (np.asarray(given.terms[name]) for name in ("fpr", "fnr"))
    left = np.append(0.0, fpr[fpr > outside] - outside)
    lowest = np.maximum(np.append(given.fnr(outside), fnr[fpr > outside]) - outside, 0.0)
    return Claim.trade_off(np.append(left, 1.0), np.append(lowest, 0.0), neighbouring=neighbouring)


def _cut(noise: Binomial, sensitivity: int, budget: float) -> tuple[int, float]:
    """Returns how many steps of the support E leaves out at each end, and 1 - P(E): as many as the budget pays for.

    These are at least as many as keep p(z - v) > 0 on E, for the shifts up to the end of the last cell of
    :func:`_steepest`.
    """
    middle = noise.coins // 2
    needed = math.ceil(sensitivity * (1 + 1 / EXACT)) // noise.step
    for cut in range(middle, needed - 1, -1):  # E are the corners cut .. n - cut
        outside = tail(noise, ((noise.coins - 2 * cut) * noise.step) // 2)
        if outside <= budget or cut == needed:
            return cut, outside
    return middle, 1.0


def _steepest(noise: Binomial, sensitivity: int, cut: int, alphas: np.ndarray) -> np.ndarray:
    """Computes kappa, [orders]: a bound on R(v)/v^2 for v = 1..Delta; infinite where float64 cannot hold an S."""
    last, width = min(2 * EXACT, sensitivity), 1
    shifts = np.arange(1, last + 1)[:, None]
    worst = (_log_moments(noise.coins, noise.step, shifts, cut, alphas) / shifts**2.0).max(axis=0)
    while last * width < sensitivity:
        if width < noise.step:
            width, last = 2 * width, last // 2
        shifts = np.arange(last, min(2 * last, -(-sensitivity // width)) + 1)[:, None]
        logs = _log_moments(noise.coins, noise.step // width, shifts, cut, alphas)
        ratios, start = logs / shifts**2.0, shifts[:-1].astype(np.float64)
        with np.errstate(invalid="ignore"):  # infinity minus infinity
            bent = (np.diff(logs, axis=0) / start) ** 2 / 8
        cells = np.maximum(ratios[:-1], ratios[1:]) * (1 + 1 / (2 * start) ** 2) + bent
        worst = np.maximum(worst, np.where(np.isnan(cells), math.inf, cells).max(axis=0) / width**2)
        last = int(shifts[-1, 0])
    return worst / (alphas - 1)


def _log_moments(coins: int, step: int, shifts: np.ndarray, cut: int, alphas: np.ndarray) -> np.ndarray:
    """Bounds log S(v) from above, for shifts [v, 1]: [v, orders]. E is from the corner ``cut`` to the opposite one."""
    heights = np.concatenate([[0.0], coin_probabilities(coins), [0.0]]) / step  # of the corners -1 .. n + 1
    corners = np.arange(cut, coins - cut)[:, None] + 1
    with np.errstate(over="ignore", divide="ignore"):
        return np.log1p([_excess(heights, step, int(shift), corners, alphas) for shift in shifts[:, 0]])


def _excess(heights: np.ndarray, step: int, shift: int, corners: np.ndarray, alphas: np.ndarray) -> np.ndarray:
    """Bounds S(v) - P(E), [orders], chord by chord: the sum of p ((p/q)^(alpha - 1) - 1), with q = p shifted."""
    whole, rest = divmod(shift, step)
    here, there = heights[corners], heights[corners - whole]
    slope = (heights[corners + 1] - here) / step
    losses, weights = [], []
    for nodes, behind in ((_nodes(0, rest), corners - whole - 1), (_nodes(rest, step), corners - whole)):
        shifted_slope = (heights[behind + 1] - heights[behind]) / step  # the line of q begins at the corner ``behind``
        p, q = here + slope * nodes, there + shifted_slope * (nodes - rest)
        difference = (
            (here - there) + slope * nodes - shifted_slope * (nodes - rest)
        )  # p - q, without cancellation for small shifts
        gaps = np.diff(nodes, prepend=nodes[0], append=nodes[-1])
        losses.append(np.log1p(np.maximum(difference / q, -1)))
        weights.append(p * (gaps[1:] + gaps[:-1]) / 2)
    weights[0][0, 0] += here[0, 0] / 2  # each end of E belongs to a single chord
    weights[1][-1, -1] += heights[corners[-1, 0] + 1] / 2
    loss, weight = np.hstack(losses), np.hstack(weights)
    used = weight > 0
    return np.expm1(np.multiply.outer(alphas - 1, loss[used])) @ weight[used]


def _nodes(start: int, end: int) -> np.ndarray:
    """Lists evenly spread whole numbers from ``start`` to ``end``, both included."""
    return np.unique(np.rint(np.linspace(start, end, NODES + 1)))


# One coordinate, exactly.

LARGEST = 500.0  # nats; beyond it an epsilon counts as infinite


def divergence(noise: Binomial, *, shift: int, epsilon: float) -> float:
    """Computes delta(epsilon), the least delta for a shift of one coordinate; the same in both directions.

    Args:
      noise: the law of the noise.
      shift: v >= 1, units.
      epsilon: nats, in [0, 500].

    Returns:
      A probability, float64.

    Raises:
      InputError: a value is out of range.

    Source: Barthe and Olmedo 2013 for the divergence; the summation is derived in this module's docstring.
    """
    shift = _validate.at_least(1, shift=shift)
    if not 0 <= epsilon <= LARGEST:
        raise _validate.expected("epsilon", f"a number from 0 to {LARGEST:g}", epsilon)
    corners = (2 * np.arange(-1, noise.coins + 2) - noise.coins) * noise.step // 2
    nodes = np.union1d(corners, corners + shift)
    heights = probabilities(noise, nodes) - math.exp(epsilon) * probabilities(noise, nodes - shift)
    start, length = heights[:-1], np.diff(nodes)
    slope = np.diff(heights) / length
    crossing = np.divide(-start, slope, out=np.zeros_like(slope), where=slope != 0)
    crossing = np.clip(crossing, -1.0, length)
    first = np.where(slope > 0, np.maximum(np.ceil(crossing), 0), 0)
    last = np.where(slope < 0, np.floor(crossing) + 1, np.where(slope + np.maximum(start, 0) > 0, length, 0))
    terms = np.clip(np.minimum(last, length) - first, 0, None)
    return float(np.sum(terms * (start + slope * (2 * first + terms - 1) / 2)))


def least_epsilon(noise: Binomial, *, shift: int, delta: float) -> float:
    """Computes the least epsilon of a shift of one coordinate, at a delta.

    Args:
      noise: the law of the noise.
      shift: v >= 1, units.
      delta: in (0, 1).

    Returns:
      epsilon in nats; infinite where values that only one side can produce are more likely than delta.

    Raises:
      InputError: a value is out of range.
    """
    delta = _validate.open_unit(delta=delta)

    def excess(epsilon: float) -> float:
        return divergence(noise, shift=shift, epsilon=epsilon) - delta

    if excess(LARGEST) > 0:
        return math.inf
    if excess(0.0) <= 0:
        return 0.0
    root: Any = optimize.brentq(excess, 0.0, LARGEST, xtol=1e-10)
    return float(root)
