"""The paper's noise: a table of 2^16 normal values, looked up at the exclusive or of two seeds.

**A reproduction, not differentially private.** A table of 65,536 entries has at most that many values: where they lie
apart, moving the sum by one unit leads to results that were impossible before, and :func:`separation` says how often.

The paper says only that a table of the normal law by seed is embedded in the circuit. Here entry i is the quantile at
(i + 1/2) / 2^16, rounded to whole units, and every coordinate has a seed of its own.

Source: paper 001, Algorithm 2, lines 2, 4 and 5, and section 5.1.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from dpaudit import check

SEED_BITS = 16


class Table(NamedTuple):
    """The values of a circuit's table, int64 [65536]."""

    values: np.ndarray

    @property
    def offset(self) -> int:
        """What the circuit's noise is above N: nothing."""
        return 0


def table(std: float) -> np.ndarray:
    """The values of N(0, std^2) that the circuit holds, in units: int64 [65536], increasing.

    Raises:
      InputError: a standard deviation that is no finite number > 0.
    """
    size = 1 << SEED_BITS
    return np.rint(check.positive(std=std) * ndtri((np.arange(size) + 0.5) / size)).astype(np.int64)


def from_seeds(values: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """N_{s1 xor s2} of a table, for the servers' seeds: uint16 [d] each -> int64 [d]."""
    return values[first ^ second]


def separation(values: np.ndarray, shift: int = 1) -> tuple[float, float]:
    """How far a table's noise tells a sum from one that is ``shift`` units larger.

    Args:
      values: the table; every entry is as likely as any other.
      shift: units, >= 1.

    Returns:
      (visible, total variation): the probability of a result that one world can have and the other cannot, which no
      epsilon covers and delta must, and the largest difference in the probability of any event.

    Raises:
      InputError: a shift below 1.
    """
    shift = check.at_least(1, shift=shift)
    lowest = values.min()
    counts = np.bincount(values - lowest, minlength=values.max() - lowest + 1)
    here, there = np.pad(counts, (0, shift)), np.pad(counts, (shift, 0))
    return float(here[there == 0].sum() / values.size), float(np.maximum(here - there, 0).sum() / values.size)
