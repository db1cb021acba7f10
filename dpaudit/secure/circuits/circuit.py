"""Builds Boolean circuits of XOR and AND gates and runs them on many coordinates at once.

A circuit is a list of gates in an order in which they can be computed; NOT is XOR with the constant one. A wire is an
array whose last axis runs over the coordinates, so each gate is one NumPy operation, whether wires carry bits
(:func:`evaluate`) or labels (:mod:`dpaudit.secure.circuits.garbling`).
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from dpaudit import _validate

ZERO, ONE = 0, 1  # the two constant wires; the inputs follow, then one wire per gate

Wire = TypeVar("Wire")


class Gate(NamedTuple):
    """A gate, ``a AND b`` or ``a XOR b``.

    Attributes:
      conjunction: whether it is AND.
      a, b: the wires it reads.
      last: the wires that no later gate reads; their memory can be freed.
    """

    conjunction: bool
    a: int
    b: int
    last: tuple[int, ...]


class Circuit(NamedTuple):
    """A Boolean circuit, made by :meth:`Builder.build`.

    Attributes:
      inputs: number of input bits.
      gates: in an order in which they can be computed.
      outputs: the wires that are the result.
      ands: number of AND gates; only these cost anything when garbled.
    """

    inputs: int
    gates: tuple[Gate, ...]
    outputs: tuple[int, ...]
    ands: int


class Builder:
    """Collects gates; a wire is a number. No gate is made where constants already determine the result.

    Args:
      inputs: number of input bits, the wires :attr:`inputs`.
    """

    def __init__(self, inputs: int) -> None:
        self.inputs = list(range(2, 2 + _validate.at_least(1, inputs=inputs)))
        self._gates: dict[int, tuple[bool, int, int]] = {}  # by the wire that each computes

    def xor(self, a: int, b: int) -> int:
        """Returns a XOR b."""
        if a == b:
            return ZERO
        if ZERO in (a, b):
            return b if a == ZERO else a
        return self._gate(False, a, b)

    def conjunction(self, a: int, b: int) -> int:
        """Returns a AND b."""
        if a == b:
            return a
        if ZERO in (a, b):
            return ZERO
        if ONE in (a, b):
            return b if a == ONE else a
        return self._gate(True, a, b)

    def negation(self, a: int) -> int:
        """Returns NOT a."""
        return self.xor(a, ONE)

    def build(self, outputs: Sequence[int]) -> Circuit:
        """Returns the circuit that computes these wires, without gates that none of them needs."""
        needed = set(outputs)
        for wire, (_, *read) in reversed(self._gates.items()):
            needed.update(read if wire in needed else ())
        kept = [wire for wire in self._gates if wire in needed]
        renamed = {wire: number for number, wire in enumerate([ZERO, ONE, *self.inputs, *kept])}
        wires = [(conjunction, renamed[a], renamed[b]) for conjunction, a, b in map(self._gates.__getitem__, kept)]
        results = tuple(renamed[wire] for wire in outputs)
        last_reader = {wire: number for number, (_, *read) in enumerate(wires) for wire in read}
        ends: list[list[int]] = [[] for _ in wires]
        for wire, number in last_reader.items():
            ends[number] += [wire] * (wire not in (ZERO, ONE, *results))
        gates = tuple(Gate(*gate, tuple(end)) for gate, end in zip(wires, ends, strict=True))
        return Circuit(len(self.inputs), gates, results, sum(gate.conjunction for gate in gates))

    def _gate(self, conjunction: bool, a: int, b: int) -> int:
        wire = 2 + len(self.inputs) + len(self._gates)
        self._gates[wire] = (conjunction, a, b)
        return wire


def run(
    circuit: Circuit,
    constants: tuple[Wire, Wire],
    inputs: Sequence[Wire],
    xor: Callable[[Wire, Wire], Wire],
    conjunction: Callable[[Wire, Wire], Wire],
) -> list[Wire]:
    """Runs a circuit with the given meaning of its gates; AND gates are visited in order.

    Args:
      circuit: the circuit.
      constants: the values of the wires :data:`ZERO` and :data:`ONE`.
      inputs: the values of the input wires.
      xor, conjunction: the gates; they return new values and do not change their arguments.

    Returns:
      The values of the output wires.

    Raises:
      InputError: the number of inputs is not the circuit's.
    """
    if len(inputs) != circuit.inputs:
        raise _validate.expected("inputs", f"{circuit.inputs} wires", f"{len(inputs)}")
    wires: dict[int, Wire] = dict(enumerate((*constants, *inputs)))
    for number, gate in enumerate(circuit.gates, start=2 + circuit.inputs):
        wires[number] = (conjunction if gate.conjunction else xor)(wires[gate.a], wires[gate.b])
        for wire in gate.last:
            del wires[wire]
    return [wires[wire] for wire in circuit.outputs]


def evaluate(circuit: Circuit, inputs: np.ndarray) -> np.ndarray:
    """Evaluates a circuit on plain bits.

    Args:
      circuit: the circuit.
      inputs: bool [circuit.inputs, d].

    Returns:
      bool [outputs, d].
    """
    bits = np.asarray(inputs, dtype=bool)
    constants = np.zeros(bits.shape[1], bool), np.ones(bits.shape[1], bool)
    return np.array(run(circuit, constants, list(bits), np.bitwise_xor, np.bitwise_and))


def digest(circuit: Circuit) -> bytes:
    """Computes the SHA-256 of a circuit, 32 bytes, by which two parties check that they use the same one."""
    gates = [(gate.conjunction, gate.a, gate.b) for gate in circuit.gates]
    numbers = np.array([len(gates), circuit.inputs, *np.ravel(gates), *circuit.outputs], dtype="<u8")
    return hashlib.sha256(numbers.tobytes()).digest()


# Integers: a number is a list of wires, the lowest bit first.


def add(builder: Builder, x: Sequence[int], y: Sequence[int], carry: int = ZERO) -> list[int]:
    """Adds two N-bit numbers and a carry: N + 1 bits for N AND gates, N - 1 if the highest bit is not used.

    Every bit costs one AND gate: the carry c becomes ``((x ^ c) & (y ^ c)) ^ c``.

    Source: Kolesnikov, Sadeghi and Schneider 2009, "Improved garbled circuit building blocks", section 3.1.
    """
    total = []
    for a, b in zip(x, y, strict=True):
        a_differs, b_differs = builder.xor(a, carry), builder.xor(b, carry)
        total.append(builder.xor(a_differs, b))
        carry = builder.xor(builder.conjunction(a_differs, b_differs), carry)
    return [*total, carry]


def subtract(builder: Builder, x: Sequence[int], y: Sequence[int]) -> list[int]:
    """Subtracts modulo 2^N, as x + (NOT y) + 1: N bits for N - 1 AND gates."""
    return add(builder, x, [builder.negation(wire) for wire in y], ONE)[:-1]


def popcount(builder: Builder, coins: Sequence[int]) -> list[int]:
    """Counts the ones among n = 2^k - 1 bits: k bits for n - k AND gates.

    Counts two halves and adds them, with the remaining coin as the carry: A(k) = 2 A(k - 1) + k - 1.
    """
    if len(coins) == 1:
        return list(coins)
    half = len(coins) // 2
    return add(builder, popcount(builder, coins[:half]), popcount(builder, coins[half:-1]), coins[-1])


def reconstruction(*, bits: int) -> Circuit:
    """Builds the paper's reconstruction without noise, ``x1 - x2`` modulo 2^bits, from ``bits - 1`` AND gates.

    Inputs: the two shares, lowest bit first; outputs: ``bits`` bits.

    Raises:
      InputError: bits below 1.
    """
    builder = Builder(2 * _validate.at_least(1, bits=bits))
    return builder.build(subtract(builder, builder.inputs[:bits], builder.inputs[bits:]))
