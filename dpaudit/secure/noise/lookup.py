"""Reproduces the paper's noise: a table of 2^16 normal values, indexed by the exclusive or of two seeds.

**A reproduction, not differentially private.** A table of 65,536 entries has at most that many values: where they lie
apart, moving the sum by one unit leads to results that were impossible before; :func:`separation` computes how often.

The paper says only that a table of the normal law by seed is embedded in the circuit. Here entry i is the quantile at
(i + 1/2) / 2^16, rounded to whole units, and every coordinate has a seed of its own.

In the circuit, the table is odd: entry 65535 - i is minus entry i. So the highest bit of the seed is the sign, and the
15 others, inverted where it is negative, choose a magnitude; the sum with the inverted magnitude and a carry is the
difference. Each bit of the magnitude is a tree of multiplexers, one AND gate each, in which branches that are equal,
or each other's negation, are shared. Wider noise has more distinct entries and so needs a larger circuit, which is
also why the paper's traffic grows as epsilon falls.

Source: paper 001, Algorithm 2, lines 2, 4 and 5, and section 5.1.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from dpaudit import _validate
from dpaudit.secure.circuits.circuit import ONE, ZERO, Builder, Circuit, add

SEED_BITS = 16


class Table(NamedTuple):
    """A table of noise, int64 [65536]."""

    values: np.ndarray

    @property
    def offset(self) -> int:
        """The difference between the circuit's noise and N: none."""
        return 0


def table(std: float) -> np.ndarray:
    """Tabulates N(0, std^2) in units, as the circuit holds it: int64 [65536], increasing.

    Raises:
      InputError: the standard deviation is not a finite number > 0.
    """
    size = 1 << SEED_BITS
    return np.rint(_validate.positive(std=std) * ndtri((np.arange(size) + 0.5) / size)).astype(np.int64)


def from_seeds(values: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Looks up N_{s1 xor s2} for the servers' seeds: uint16 [d] each -> int64 [d]."""
    return values[first ^ second]


def separation(values: np.ndarray, shift: int = 1) -> tuple[float, float]:
    """Computes how well a sum with a table's noise can be told from one that is ``shift`` units larger.

    Args:
      values: the table; all entries are equally likely.
      shift: units, >= 1.

    Returns:
      (visible, total variation): the probability of a result that is possible in one world only, which delta must
      cover whatever epsilon is, and the largest difference in the probability of any event.

    Raises:
      InputError: the shift is below 1.
    """
    shift = _validate.at_least(1, shift=shift)
    lowest = values.min()
    counts = np.bincount(values - lowest, minlength=values.max() - lowest + 1)
    here, there = np.pad(counts, (0, shift)), np.pad(counts, (shift, 0))
    return float(here[there == 0].sum() / values.size), float(np.maximum(here - there, 0).sum() / values.size)


def noisy_sum(values: np.ndarray, *, bits: int) -> Circuit:
    """Builds the circuit of ``share + N_seed`` modulo 2^bits, with the paper's noise.

    Args:
      values: as made by :func:`table`.
      bits: bits of the ring.

    Returns:
      A circuit whose inputs are the share and then the seed, and whose outputs are ``bits`` bits, lowest first.

    Raises:
      InputError: the values are not an odd table of 2^16, or do not fit into the ring.

    Source: paper 001, Algorithm 2, lines 2, 4 and 5, and section 5.1.
    """
    if values.shape != (1 << SEED_BITS,) or (values != -values[::-1]).any():
        raise _validate.expected(
            "values", f"{1 << SEED_BITS} of them, entry i minus the last but i", list(values.shape)
        )
    magnitudes = values[len(values) // 2 :]
    if (magnitudes < 0).any():
        raise _validate.expected("values", "rising from negative to positive", int(magnitudes.min()))
    width = int(magnitudes.max()).bit_length()
    _validate.at_least(width + 1, bits=bits)
    builder = Builder(bits + SEED_BITS)
    share, seed = builder.inputs[:bits], builder.inputs[bits:]
    negative = builder.negation(seed[-1])
    index = [builder.xor(wire, negative) for wire in seed[:-1]]
    found = [_look_up(builder, index, magnitudes >> bit & 1) for bit in range(width)]
    signed = [builder.xor(wire, negative) for wire in [*found, *[ZERO] * (bits - width)]]
    return builder.build(add(builder, share, signed, negative)[:-1])


def _look_up(builder: Builder, index: Sequence[int], entries: np.ndarray) -> int:
    """Selects the entry, 0 or 1, at an index whose lowest bit is first.

    Branches are numbered: 2 j is a function and 2 j + 1 its negation, so 0 and 1 are the constants.
    """
    branches, wires = entries.astype(np.int64), [ZERO]
    for select in index:
        low, high = branches[::2], branches[1::2]
        turned = low & 1  # turns a negated lower branch into a negated multiplexer
        pairs, which = np.unique((low ^ turned) << 32 | (high ^ turned), return_inverse=True)
        numbers = []
        for pair in pairs.tolist():
            a, b = pair >> 32, pair & 0xFFFFFFFF
            if a == b:
                numbers.append(a)
                continue
            one, other = (builder.xor(wires[branch >> 1], branch & 1) for branch in (a, b))
            wires.append(builder.xor(one, builder.conjunction(select, builder.xor(one, other))))
            numbers.append(2 * (len(wires) - 1))
        branches = np.array(numbers)[which] ^ turned
    return builder.xor(wires[branches[0] >> 1], ONE if branches[0] & 1 else ZERO)
