"""What the binomial noise spends: Renyi divergences from its exact probabilities, never from a Gaussian's.

Neighbouring sums differ by an integer vector v of L2 norm at most Delta; coordinates are independent, so orders add up
over them. Let p be one coordinate's probabilities (:mod:`noise`) and, for a shift of v >= 1 units and alpha > 1, ::

    S(v) = sum over z in E of p(z)^alpha p(z - v)^(1 - alpha),   R(v) = log S(v) / (alpha - 1)

*Trimming.* The support ends, so without the event E every S is infinite. E leaves out both ends, from a corner of p on
(corners are a step apart). Given that all d coordinates are in E, of probability P(E)^d, the release has divergence at
most sum R(v_i) - d alpha/(alpha - 1) log P(E) from the neighbour's; 1 - P(E)^d is charged to delta. p is symmetric, so
the other direction is the same.

*All shifts.* kappa is the largest R(v)/v^2 over v = 1..Delta, so sum R(v_i) <= kappa Delta^2 for every v, however the
shift is spread. A Gaussian's kappa is alpha/(2 sigma^2) at all shifts. Here the worst is often neither 1 nor Delta.

*Bounds in place of long sums*, each from above:

- Between neighbouring corners of p(z) and p(z - v) both are straight lines, and x^alpha y^(1 - alpha) is convex in
  (x, y): a sum over the whole numbers between two nodes is at most that over the chord.
- Shifts beyond 256 are computed at every w-th, w a power of two, for the law of step 2^s/w at shift v/w. With the low
  bits of U and U' made public, Z has that law; adding r < w to the low part of U, which is uniform again, carries into
  the high one with probability r/w. So by joint convexity S(a w + r) <= (1 - r/w) S'(a) + (r/w) S'(a + 1), where S'
  belongs to the coarser law. With x = log S', Hoeffding's lemma bounds that chord's logarithm, which adds 1/(4 a^2) of
  the larger end's ratio and (x(a+1) - x(a))^2 / (8 a^2): as a >= 128, a relative 2e-5 and, where x is 20, 6e-4.

Conversion to (epsilon, delta) and composition are dp-accounting's.
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
TRIMMED = 0.01  # of delta, for leaving E
EXACT = 128  # shifts that are each looked at, and cells in every doubling beyond
MOST = 1 << 20  # releases of a budget
NODES = 8  # chords from one corner to the next


class Spent(NamedTuple):
    """One release's privacy loss, as a curve.

    Attributes:
      divergence: [orders], nats; infinite where float64 cannot hold it.
      trimmed: probability of what the curve leaves out; belongs to delta.
    """

    divergence: np.ndarray
    trimmed: float


def spent(
    noise: Binomial, *, sensitivity: int, dimension: int, trimmed: float, orders: tuple[float, ...] = ORDERS
) -> Spent:
    """The Renyi divergences of a vector of d noisy sums under any integer shift of L2 norm <= Delta: upper bounds.

    Args:
      noise: the law of each coordinate's noise.
      sensitivity: Delta in units, L2: with Q units in a clip norm, 2 Q if a record is replaced, Q if added or removed.
      dimension: d.
      trimmed: the probability that may be left out, all coordinates together, in (0, 1). More is left out where
        the support ends so early that the shift needs it.
      orders: alpha > 1.

    Returns:
      A :class:`Spent`.

    Raises:
      InputError: a value out of range.

    Source: Mironov 2017, Proposition 1 (composition, here over coordinates); the bounds are derived in this module's
    text, from the joint convexity of S, an f-divergence.
    """
    sensitivity = _validate.at_least(1, sensitivity=sensitivity)
    dimension = _validate.at_least(1, dimension=dimension)
    _validate.open_unit(trimmed=trimmed)
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
    """The epsilon that ``steps`` releases spend on a record that is in every batch, at ``delta`` for all of them.

    Args:
      noise, sensitivity, dimension: as for :func:`spent`.
      delta: in (0, 1); a hundredth of it, or what the shift needs, pays for the ends of the noise.
      steps: >= 1.

    Returns:
      epsilon in nats, an upper bound; infinite where the ends cost more than delta.

    Raises:
      InputError: a value out of range.

    Source: conversion by Canonne, Kamath and Steinke 2020, Proposition 12, in dp-accounting.
    """
    _validate.open_unit(delta=delta)
    steps = _validate.at_least(1, steps=steps)
    one = spent(noise, sensitivity=sensitivity, dimension=dimension, trimmed=TRIMMED * delta / steps)
    return composed(one, steps, delta)


def composed(one: Spent, steps: int, delta: float) -> float:
    """The epsilon of ``steps`` releases that spend ``one`` each, of :data:`ORDERS`; 0 for none. As :func:`epsilon`."""
    left = delta - steps * one.trimmed
    if steps == 0 or left <= 0:
        return math.inf if steps else 0.0
    return float(rdp.compute_epsilon(ORDERS, list(steps * one.divergence), left)[0])


def allowed(noise: Binomial, *, sensitivity: int, dimension: int, epsilon: float, delta: float) -> int:
    """How many releases spend at most an epsilon, by :func:`epsilon`; more might, by a few in a thousand.

    Args:
      noise, sensitivity, dimension, delta: as for :func:`epsilon`.
      epsilon: nats, > 0.

    Returns:
      A number from 0 to 2^20.

    Raises:
      InputError: a value out of range.
    """
    _validate.positive(epsilon=epsilon)
    _validate.open_unit(delta=delta)
    most = count = MOST
    for _ in range(
        2
    ):  # the more steps delta is for, the more each has to keep: so first for all, then for about as many
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
    """What ``steps`` releases promise to a record that is in every batch, at every delta.

    Let f be the curve of the divergences given E, and t the probability of what E leaves out. The release gives a set
    of outcomes at most t more than the release given E does, and the other way round, so the promise is
    f(min(fpr + t, 1)) - t.

    Args:
      noise, sensitivity, dimension, steps: as for :func:`epsilon`.
      neighbouring: "replace" or "add_remove", as the sensitivity was computed for.
      trimmed: t that may be left out of all releases together, in (0, 1); more where the ends of the noise need it.

    Returns:
      A curve of :class:`dpaudit.Claim`.

    Raises:
      InputError: a value out of range; noise whose ends alone give the record away.
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
    """How many steps of the support E leaves out at each end, and 1 - P(E): as many as the budget pays.

    At least as many as keep p(z - v) > 0 on E, for the shifts up to the end of the last cell of :func:`_steepest`.
    """
    middle = noise.coins // 2
    needed = math.ceil(sensitivity * (1 + 1 / EXACT)) // noise.step
    for cut in range(middle, needed - 1, -1):  # E are the corners cut .. n - cut
        outside = tail(noise, ((noise.coins - 2 * cut) * noise.step) // 2)
        if outside <= budget or cut == needed:
            return cut, outside
    return middle, 1.0


def _steepest(noise: Binomial, sensitivity: int, cut: int, alphas: np.ndarray) -> np.ndarray:
    """kappa, [orders]: a bound on R(v)/v^2 that holds for v = 1..Delta; infinite where float64 cannot hold an S."""
    last, width = min(2 * EXACT, sensitivity), 1
    shifts = np.arange(1, last + 1)[:, None]
    worst = (_log_moments(noise.coins, noise.step, shifts, cut, alphas) / shifts**2.0).max(axis=0)
    while last * width < sensitivity:
        if width < noise.step:
            width, last = 2 * width, last // 2
        shifts = np.arange(last, min(2 * last, -(-sensitivity // width)) + 1)[:, None]
        logs = _log_moments(noise.coins, noise.step // width, shifts, cut, alphas)
        ratios, start = logs / shifts**2.0, shifts[:-1].astype(np.float64)
        with np.errstate(invalid="ignore"):  # infinity less infinity
            bent = (np.diff(logs, axis=0) / start) ** 2 / 8
        cells = np.maximum(ratios[:-1], ratios[1:]) * (1 + 1 / (2 * start) ** 2) + bent
        worst = np.maximum(worst, np.where(np.isnan(cells), math.inf, cells).max(axis=0) / width**2)
        last = int(shifts[-1, 0])
    return worst / (alphas - 1)


def _log_moments(coins: int, step: int, shifts: np.ndarray, cut: int, alphas: np.ndarray) -> np.ndarray:
    """Upper bounds on log S(v), for shifts [v, 1]: [v, orders]. E is from the corner ``cut`` to the one opposite."""
    heights = np.concatenate([[0.0], coin_probabilities(coins), [0.0]]) / step  # of the corners -1 .. n + 1
    corners = np.arange(cut, coins - cut)[:, None] + 1
    with np.errstate(over="ignore", divide="ignore"):
        return np.log1p([_excess(heights, step, int(shift), corners, alphas) for shift in shifts[:, 0]])


def _excess(heights: np.ndarray, step: int, shift: int, corners: np.ndarray, alphas: np.ndarray) -> np.ndarray:
    """S(v) - P(E) from above, [orders]: the sum of p ((p/q)^(alpha - 1) - 1), q being p shifted, chord by chord."""
    whole, rest = divmod(shift, step)
    here, there = heights[corners], heights[corners - whole]
    slope = (heights[corners + 1] - here) / step
    losses, weights = [], []
    for nodes, behind in ((_nodes(0, rest), corners - whole - 1), (_nodes(rest, step), corners - whole)):
        shifted_slope = (heights[behind + 1] - heights[behind]) / step  # q's line begins at the corner ``behind``
        p, q = here + slope * nodes, there + shifted_slope * (nodes - rest)
        difference = (here - there) + slope * nodes - shifted_slope * (nodes - rest)  # p - q, small shifts too
        gaps = np.diff(nodes, prepend=nodes[0], append=nodes[-1])
        losses.append(np.log1p(np.maximum(difference / q, -1)))
        weights.append(p * (gaps[1:] + gaps[:-1]) / 2)
    weights[0][0, 0] += here[0, 0] / 2  # both ends of E belong to a single chord
    weights[1][-1, -1] += heights[corners[-1, 0] + 1] / 2
    loss, weight = np.hstack(losses), np.hstack(weights)
    used = weight > 0
    return np.expm1(np.multiply.outer(alphas - 1, loss[used])) @ weight[used]


def _nodes(start: int, end: int) -> np.ndarray:
    """Whole numbers from ``start`` to ``end``, both included, evenly spread."""
    return np.unique(np.rint(np.linspace(start, end, NODES + 1)))


# What the binomial noise spends when a record moves one coordinate alone: exact, not :mod:`noise_accounting`'s bound.
#
# The hockey-stick divergence of the noise from itself, moved by v units, is ::
#
#     delta(epsilon) = sum over z of max(0, p(z) - e^epsilon p(z - v))
#
# Between neighbouring corners of p(z) and of p(z - v) both are straight lines, and so is their difference: its positive
# part there is an arithmetic series. So the sum takes a few hundred terms, however many values the noise has.
#
# What a vector of L2 norm v spends is at least this: the same length spread over more coordinates may cost more.

LARGEST = 500.0  # nats; beyond it an epsilon counts as infinite


def divergence(noise: Binomial, *, shift: int, epsilon: float) -> float:
    """delta(epsilon): the least delta that a shift of one coordinate needs. p is symmetric, so either way is the same.

    Args:
      noise: its law.
      shift: v >= 1, units.
      epsilon: nats, in [0, 500].

    Returns:
      A probability, float64.

    Raises:
      InputError: a value out of range.

    Source: Barthe and Olmedo 2013 for the divergence; the summation is derived in this module's text.
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
    """The least epsilon of a shift of one coordinate, at a delta.

    Args:
      noise: its law.
      shift: v >= 1, units.
      delta: in (0, 1).

    Returns:
      epsilon in nats; infinite where values that only one side can have are likelier than delta.

    Raises:
      InputError: a value out of range.
    """
    _validate.open_unit(delta=delta)

    def excess(epsilon: float) -> float:
        return divergence(noise, shift=shift, epsilon=epsilon) - delta

    if excess(LARGEST) > 0:
        return math.inf
    if excess(0.0) <= 0:
        return 0.0
    root: Any = optimize.brentq(excess, 0.0, LARGEST, xtol=1e-10)
    return float(root)
