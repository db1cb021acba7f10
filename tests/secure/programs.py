"""Makes random Boolean programs: the circuit that the builder makes, and the value by Python's integers.

Output j of a program is the XOR of its steps j, j + OUTPUTS, ..., so every step matters.
"""

from collections.abc import Callable
from functools import reduce

import numpy as np

from dpaudit.secure.circuits.circuit import ONE, ZERO, Builder, Circuit

Program = list[tuple[str, int, int]]
OUTPUTS = 9


def draw(seed: int, inputs: int, steps: int) -> Program:
    """Draws steps that each read one of the last wires and any wire or constant; often XOR, or all would be 0."""
    rng = np.random.default_rng(seed)
    kinds = rng.choice(["xor", "and", "not"], steps, p=[0.6, 0.3, 0.1])
    first = 2 + inputs
    return [
        (str(kind), int(rng.integers(max(0, wires - 15), wires)), int(rng.integers(wires)))
        for wires, kind in enumerate(kinds, start=first)
    ]


def build(program: Program, inputs: int) -> Circuit:
    builder = Builder(inputs)
    operations: dict[str, Callable[[int, int], int]] = {
        "xor": builder.xor,
        "and": builder.conjunction,
        "not": lambda a, _: builder.negation(a),
    }
    wires = [ZERO, ONE, *builder.inputs]
    for kind, a, b in program:
        wires.append(operations[kind](wires[a], wires[b]))
    return builder.build([reduce(builder.xor, wires[2 + inputs + j :: OUTPUTS]) for j in range(OUTPUTS)])


def compute(program: Program, bits: np.ndarray) -> np.ndarray:
    """Computes the program from bits [inputs, d], as bool [OUTPUTS, d]: every wire is one integer of d bits."""
    count = bits.shape[1]
    ones = (1 << count) - 1
    wires = [0, ones, *(int("".join("01"[bit] for bit in row.astype(int)), 2) for row in bits)]
    operations = {"xor": int.__xor__, "and": int.__and__, "not": lambda a, _: a ^ ones}
    for kind, a, b in program:
        wires.append(operations[kind](wires[a], wires[b]))
    outputs = [reduce(int.__xor__, wires[2 + len(bits) + j :: OUTPUTS]) for j in range(OUTPUTS)]
    return np.array([[digit == "1" for digit in f"{wire:0{count}b}"] for wire in outputs])
