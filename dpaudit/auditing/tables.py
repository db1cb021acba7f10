"""Tables of counts as the estimators take them: many audits at once, checked in one place."""

from typing import Any, NamedTuple

import numpy as np

from dpaudit import check


class ErrorTable(NamedTuple):
    """The four counts of a test in float64, of one shape: errors beside the trials that they are out of."""

    false_positives: np.ndarray
    false_negatives: np.ndarray
    negatives: np.ndarray
    positives: np.ndarray


def counts_within(limit: Any, **named: Any) -> np.ndarray:
    """``name=counts`` in float64, each a whole number in 0 .. limit.

    Args:
      limit: the largest count, any shape that broadcasts with the counts.
      named: one array of counts, under the name that the error message shows.

    Raises:
      InputError: a count that is negative, above its limit, or not a whole number.
    """
    ((name, counts),) = named.items()
    counts, limit = np.broadcast_arrays(np.asarray(counts, np.float64), np.asarray(limit, np.float64))
    wrong = ~((counts >= 0) & (counts <= limit) & (counts == np.floor(counts)))
    if wrong.any():
        first = np.flatnonzero(wrong)[0]
        raise check.expected(name, f"whole numbers in 0 .. {limit.flat[first]:g}", f"{counts.flat[first]:g}")
    return counts


def error_table(false_positives: Any, false_negatives: Any, negatives: Any, positives: Any) -> ErrorTable:
    """The four counts, broadcast to one shape.

    Raises:
      InputError: no trials in a world, or more errors than trials.
    """
    for name, trials in (("negatives", negatives), ("positives", positives)):
        if np.size(trials) and np.min(trials) < 1:
            raise check.expected(name, "at least one trial", int(np.min(trials)))
    false_positives = counts_within(negatives, false_positives=false_positives)
    false_negatives = counts_within(positives, false_negatives=false_negatives)
    negatives, positives = np.asarray(negatives, np.float64), np.asarray(positives, np.float64)
    return ErrorTable(*np.broadcast_arrays(false_positives, false_negatives, negatives, positives))
