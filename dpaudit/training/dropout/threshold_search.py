"""Searches the best thresholds on several statistics, exactly, for every combination of statistics and kind of rule.

The "and" rule of Algorithm 2 guesses D' inside an upper orthant of the statistics, the "or" rule guesses D inside a
lower one; with statistics negated and worlds exchanged, the second is the first. So there is one problem: given points
that should be inside, points that should be outside, and a value that grows with a = points rightly inside and falls
with b = points wrongly inside, find the orthant {s >= t} of the largest value.

Two facts make the search exact without trying all (n + 1)^k combinations. An orthant may shrink until each threshold
touches one of the a points: b can only fall. And if the first thresholds are fixed and touched, the points that touch
them are inside, so the remaining thresholds lie at or below these points: everything above all of them is inside in
any case. That bounds b from below, as the fixed thresholds alone bound a from above. A branch whose bound is no better
than the best found is cut.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dpaudit import _validate

KINDS = ("and", "or")  # types 1 and 2 of Algorithm 2
CHUNK = 256  # branches that are extended together


class Rule(NamedTuple):
    """Guesses D' where s > threshold in every statistic ("and"), or in at least one ("or").

    A statistic is left out by the threshold -inf in an "and" rule, and inf in an "or" rule.
    """

    kind: str
    thresholds: tuple[float, ...]  # one a statistic

    def guesses(self, statistics: Any) -> np.ndarray:
        """Tells whether D' is guessed, [n], from statistics [n, k].

        Raises:
          InputError: a kind that is neither; not one statistic for each threshold.
        """
        _validate.one_of(KINDS, kind=self.kind)
        shape, count = np.shape(statistics), len(self.thresholds)
        if len(shape) != 2 or shape[1] != count:
            wanted = f"shape [n, {count}], one for each threshold"
            raise _validate.expected("statistics", wanted, f"shape {list(shape)}")
        above = np.asarray(statistics, np.float64) > np.asarray(self.thresholds)
        return np.all(above, axis=1) if self.kind == "and" else np.any(above, axis=1)


class Found(NamedTuple):
    """The best rule of one kind on one subset of the statistics, with its value."""

    rule: Rule
    value: float
    false_positives: int
    false_negatives: int


def errors(rule: Rule, statistics: Any, member: Any) -> tuple[int, int]:
    """Counts (false positives, false negatives): models trained on D taken for D', and the other way round.

    Args:
      rule: fixed.
      statistics: [n, k].
      member: [n] booleans, trained on D'.

    Raises:
      InputError: shapes that do not fit; a kind that is neither.
    """
    guesses, member = rule.guesses(statistics), np.asarray(member, bool)
    if member.shape != guesses.shape:
        raise _validate.expected("member", f"shape {list(guesses.shape)}, one a row", f"shape {list(member.shape)}")
    return int(np.sum(guesses & ~member)), int(np.sum(~guesses & member))


def search(
    statistics: Any,
    member: Any,
    value: np.ndarray,
    *,
    subsets: Iterable[Sequence[int]],
    kinds: Iterable[str] = KINDS,
) -> dict[tuple[tuple[int, ...], str], Found]:
    """Finds the best thresholds for every subset of the statistics and every kind of rule, exactly.

    Args:
      statistics: [n, k], larger for members; +inf is allowed.
      member: [n] booleans, trained on D'; at least one of each.
      value: [n0 + 1, n1 + 1] by false positives and false negatives, growing in neither; n0 and n1 models of D and D'.
      subsets: numbers of statistics, each without repetition. A subset never has a smaller value than one inside it.
      kinds: of "and", "or".

    Returns:
      (subset in increasing order, kind) -> :class:`Found`; its rule has a threshold for each of the k statistics, and
      leaves out those that do not change its value.

    Raises:
      InputError: statistics that are not numbers, an empty world, an unknown subset or kind.
    """
    statistics, member = checked(statistics, member)
    width = statistics.shape[1]
    wanted = sorted({_subset(subset, width) for subset in subsets}, key=lambda subset: (len(subset), subset))
    found = {}
    for kind in kinds:
        _validate.one_of(KINDS, kind=kind)
        for subset in wanted:
            smaller = [found[other, kind] for other in wanted if (other, kind) in found and set(other) < set(subset)]
            found[subset, kind] = _best(statistics, member, value, subset, kind, smaller)
    return found


def checked(statistics: Any, member: Any, *, name: str = "statistics") -> tuple[np.ndarray, np.ndarray]:
    """Checks statistics [n, k] and returns them in float64, with booleans [n]; ``name`` is their name in errors.

    Raises:
      InputError: shapes that do not fit, NaN or -inf, an empty world.
    """
    statistics, member = np.asarray(statistics, np.float64), np.asarray(member)
    if statistics.ndim != 2 or 0 in statistics.shape:
        raise _validate.expected(name, "shape [n, k] with n, k >= 1", f"shape {list(statistics.shape)}")
    if not np.all(statistics > -np.inf):
        wrong = int(np.sum(~(statistics > -np.inf)))
        raise _validate.expected(name, "numbers or inf", f"NaN or -inf in {wrong} of {statistics.size}")
    if member.shape != statistics.shape[:1] or not np.isin(member, (0, 1)).all():
        raise _validate.expected(
            "member", f"{len(statistics)} booleans", f"shape {list(member.shape)} of {member.dtype}"
        )
    member = member.astype(bool)
    if member.all() or not member.any():
        raise _validate.expected(
            "member", "models of both worlds", f"{int(member.sum())} of {len(member)} trained on D'"
        )
    return statistics, member


def _subset(subset: Sequence[int], width: int) -> tuple[int, ...]:
    numbers = tuple(sorted(int(number) for number in subset))
    if not numbers or len(set(numbers)) < len(numbers) or not 0 <= numbers[0] <= numbers[-1] < width:
        raise _validate.expected("subsets", f"different numbers in 0..{width - 1}", tuple(subset))
    return numbers


def _best(
    statistics: np.ndarray,
    member: np.ndarray,
    value: np.ndarray,
    subset: tuple[int, ...],
    kind: str,
    smaller: list[Found],
) -> Found:
    """Finds the best rule on a subset, given the best ones on smaller subsets of it."""
    conjunction = kind == "and"
    left_out = -np.inf if conjunction else np.inf
    columns = statistics[:, subset].T

    def found(changed: Sequence[int], to: Any, thresholds: Any) -> Found:
        thresholds = np.array(thresholds)
        thresholds[list(changed)] = to
        return _found(Rule(kind, tuple(thresholds.tolist())), statistics, member, value)

    nothing = np.full(statistics.shape[1], left_out)
    start = max(smaller or [found(subset, -left_out, nothing)], key=lambda found: found.value)  # an empty orthant
    if conjunction:
        touched = _best_orthant(columns[:, member], columns[:, ~member], value[:, ::-1].T, start.value)
    else:
        touched = _best_orthant(-columns[:, ~member], -columns[:, member], value[::-1], start.value)
    if touched is None:
        return start
    place = _below if conjunction else _above
    ends = [place(column, end) for column, end in zip(columns, touched if conjunction else -touched, strict=True)]
    best = found(subset, ends, nothing)
    for number in reversed(subset):  # a threshold that does not matter for these models may matter for others
        fewer = found([number], left_out, best.rule.thresholds)
        best = max(fewer, best, key=lambda found: found.value)
    return best


def _below(column: np.ndarray, inside: float) -> float:
    """Returns the threshold that has ``inside`` above it and all smaller values below."""
    return _between(np.max(column, where=column < inside, initial=-np.inf), inside)


def _above(column: np.ndarray, inside: float) -> float:
    """Returns the threshold that has ``inside`` below it and all larger values above."""
    larger = column[column > inside]
    return _between(inside, larger.min()) if larger.size else np.inf


def _between(low: float, high: float) -> float:
    """Returns a number in [low, high), halfway if there is such a number."""
    if np.isinf(low) or np.isinf(high):
        return low
    halfway = low / 2 + high / 2
    return halfway if low <= halfway < high else low


def _found(rule: Rule, statistics: np.ndarray, member: np.ndarray, value: np.ndarray) -> Found:
    counts = errors(rule, statistics, member)
    return Found(rule, float(value[counts]), *counts)


class _Axis(NamedTuple):
    """One statistic: its levels are the distinct values of the points to be inside."""

    levels: np.ndarray  # [v], increasing
    inside: np.ndarray  # [na], the levels of the points to be inside, increasing
    inside_order: np.ndarray  # [na], which points these are
    inside_start: np.ndarray  # [v], where in this order the points at a level or above begin
    inside_bits: np.ndarray  # [v, words], the points at a level or above
    outside_order: np.ndarray  # [nb]
    outside_start: np.ndarray  # [v]
    outside_bits: np.ndarray  # [v, words]


class _Task(NamedTuple):
    axes: list[_Axis]
    value: np.ndarray  # [na + 1, nb + 1], for a points rightly inside and b wrongly inside
    points: np.ndarray  # [k, na], the levels of the points to be inside


class _Branches(NamedTuple):
    """m sets of orthants, each with the first thresholds fixed."""

    inside: np.ndarray  # [m, words], the points that the fixed thresholds leave inside, as bits
    outside: np.ndarray  # [m, words]
    corner: np.ndarray  # [m, k], levels: of the fixed thresholds, and the highest that the others can have
    bound: np.ndarray  # [m], a value that none of the orthants exceeds

    def take(self, which: Any) -> "_Branches":
        return _Branches(*(field[which] for field in self))


class _Best(NamedTuple):
    value: float
    corner: np.ndarray | None  # [k], levels; None while nothing beats the value to start with


def _best_orthant(inside: np.ndarray, outside: np.ndarray, value: np.ndarray, start: float) -> np.ndarray | None:
    """Finds the corner t [k] of the orthant {s >= t} of the largest value; None if none exceeds ``start``.

    Args:
      inside, outside: points [k, na] and [k, nb].
      value: [na + 1, nb + 1], non-decreasing in the first count and non-increasing in the second.
    """
    axes, points = zip(*(_axis(*columns) for columns in zip(inside, outside, strict=True)), strict=True)
    whole = _Branches(
        inside=_packed(np.ones((1, inside.shape[1]), bool)),
        outside=_packed(np.ones((1, outside.shape[1]), bool)),
        corner=np.array([[len(axis.levels) - 1 for axis in axes]]),
        bound=np.array([np.inf]),
    )
    best = _descend(_Task(list(axes), value, np.stack(points)), 0, whole, _Best(start, None))
    if best.corner is None:
        return None
    return np.array([axis.levels[level] for axis, level in zip(axes, best.corner, strict=True)])


def _axis(inside: np.ndarray, outside: np.ndarray) -> tuple[_Axis, np.ndarray]:
    """Builds an axis, and returns it with the levels of the points to be inside."""
    levels, points = np.unique(inside, return_inverse=True)
    points = points.astype(np.min_scalar_type(-len(levels) - 1))
    reached = np.searchsorted(levels, outside, side="right") - 1  # the highest level, -1 for none
    every = np.arange(len(levels))
    inside_order, outside_order = np.argsort(points, kind="stable"), np.argsort(reached, kind="stable")
    axis = _Axis(
        levels=levels,
        inside=points[inside_order],
        inside_order=inside_order,
        inside_start=np.searchsorted(points[inside_order], every),
        inside_bits=_packed(points >= every[:, None]),
        outside_order=outside_order,
        outside_start=np.searchsorted(reached[outside_order], every),
        outside_bits=_packed(reached >= every[:, None]),
    )
    return axis, points


def _descend(task: _Task, j: int, branches: _Branches, best: _Best) -> _Best:
    """Returns the best of ``best`` and the branches whose thresholds before j are fixed, most promising first."""
    branches = branches.take(np.argsort(-branches.bound, kind="stable"))
    for start in range(0, len(branches.bound), CHUNK):
        some = branches.take(slice(start, start + CHUNK))
        some = some.take(some.bound > best.value)
        if j == len(task.axes) - 1:
            best = _finished(task, some, best)
        else:
            best = _descend(task, j + 1, _grown(task, j, some, best.value), best)
    return best


def _grown(task: _Task, j: int, branches: _Branches, least: float) -> _Branches:
    """Fixes threshold j as well, and returns the branches that can exceed ``least``."""
    axis = task.axes[j]
    there = _unpacked(branches.inside, len(axis.inside))[:, axis.inside_order]
    a = _from(there, axis.inside_start)
    touches = a > np.pad(a[:, 1:], ((0, 0), (0, 1)))  # some point is at the level
    allowed = touches & (np.arange(len(axis.levels)) <= branches.corner[:, j, None])
    parent, level = np.nonzero(allowed & (task.value[a, 0] > least))
    corner = branches.corner[parent]
    corner[:, j] = level
    outside = branches.outside[parent] & axis.outside_bits[level]
    forced = outside  # the points that no further thresholds can keep out
    for other in range(j + 1, len(task.axes)):
        reach = np.where(there, task.points[other, axis.inside_order], -1)
        reach = np.maximum.reduceat(reach, axis.inside_start, axis=1)  # of the points at the level, one of them inside
        corner[:, other] = np.minimum(corner[:, other], reach[parent, level])
        forced = forced & task.axes[other].outside_bits[corner[:, other]]
    bound = task.value[a[parent, level], np.bitwise_count(forced).sum(axis=1)]
    inside = branches.inside[parent] & axis.inside_bits[level]
    return _Branches(inside, outside, corner, bound).take(bound > least)


def _finished(task: _Task, branches: _Branches, best: _Best) -> _Best:
    """Returns the best of ``best`` and the branches, each with every level of the last threshold."""
    if not len(branches.bound):
        return best
    axis = task.axes[-1]
    a = _from(_unpacked(branches.inside, len(axis.inside_order))[:, axis.inside_order], axis.inside_start)
    b = _from(_unpacked(branches.outside, len(axis.outside_order))[:, axis.outside_order], axis.outside_start)
    values = task.value[a, b]
    branch, level = np.unravel_index(np.argmax(values), values.shape)
    if values[branch, level] <= best.value:
        return best
    return _Best(float(values[branch, level]), np.append(branches.corner[branch, :-1], level))


def _from(there: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Counts the points [m, n] at or after each start: [m, v]."""
    before = np.zeros((there.shape[0], there.shape[1] + 1), np.int32)
    np.cumsum(there, axis=1, out=before[:, 1:])
    return before[:, -1:] - before[:, start]


def _packed(points: np.ndarray) -> np.ndarray:
    """Packs booleans [m, n] into words [m, ceil(n/64)]."""
    padded = np.pad(points, ((0, 0), (0, -points.shape[1] % 64)))
    return np.packbits(padded, axis=1).view(np.uint64)


def _unpacked(words: np.ndarray, count: int) -> np.ndarray:
    return np.unpackbits(words.view(np.uint8), axis=1, count=count)
