"""Bounds what the last digits of floats tell of the input, which the family of attacks does not read.

Nearly every mechanism that adds a float to a float leaks by them, whatever its scale (Mironov 2012). So no verdict
rests on them unless :data:`distinguish.lowest_bits` is named; what they show is told beside it.
"""

from collections.abc import Sequence

import numpy as np

from dpaudit.auditing.attacks import choose, features
from dpaudit.auditing.bounds.estimate import epsilon_bounds, errors

LEAST = 32  # pairs of either half


def lower(leaves: Sequence[np.ndarray], *, delta: float, confidence: float) -> float | None:
    """Bounds epsilon from below by the place of the last binary digit that is not 0, of a number or the least of all.

    The first half of the pairs chooses the number and the rule, the second one counts.

    Args:
      leaves: arrays of releases, [n, 2, *shape] each.
      delta, confidence: of the bound.

    Returns:
      The bound in nats; None without floats, or of too few pairs.
    """
    floats = [leaf.reshape(*leaf.shape[:2], -1) for leaf in leaves if leaf.dtype.kind == "f"]
    pairs = len(leaves[0])
    if pairs < 2 * LEAST or not sum(leaf.shape[-1] for leaf in floats):
        return None
    wide = [features.cast(leaf, np.float32) if leaf.dtype.itemsize < 4 else leaf for leaf in floats]
    places = np.concatenate([features.lowest_bit(np, leaf) for leaf in wide], -1)
    first, rest = (np.moveaxis(half, 1, 0) for half in (places[: pairs // 2], places[pairs // 2 :]))
    gap = np.abs(np.diff(first.mean(1), axis=0)[0]) / np.sqrt(first.var(1).sum(0) + 1e-6)
    some = np.argsort(-gap, kind="stable")[: features.MOST_COORDINATES]
    first, rest = (np.concatenate([half[..., some], half.min(-1, keepdims=True)], -1) for half in (first, rest))
    seen = [choose.look(first[..., i], delta=delta, confidence=confidence) for i in range(first.shape[-1])]
    best = choose.best(seen)[0]
    wrong = errors(rest[..., best], *seen[best].rule)
    n = rest.shape[1]
    return float(epsilon_bounds(*wrong, n, n, delta=delta, confidence=confidence)[0])
