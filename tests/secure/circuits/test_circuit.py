import numpy as np
import pytest

from dpaudit import _validate
from dpaudit.secure.circuits import circuit
from dpaudit.secure.circuits.circuit import ONE, ZERO, Builder
from tests.secure import programs


@pytest.mark.parametrize("seed", range(20))
def test_random_circuits_compute_what_their_programs_do(seed: int) -> None:
    program = programs.draw(seed, inputs=7, steps=150)
    bits = np.random.default_rng(seed).random((7, 64)) < 0.5
    built = programs.build(program, inputs=7)
    np.testing.assert_array_equal(circuit.evaluate(built, bits), programs.compute(program, bits))
    assert built.ands <= sum(kind == "and" for kind, *_ in program)


def test_another_gate_computes_something_else() -> None:
    differ = 0
    for seed in range(20):
        program = programs.draw(seed, inputs=7, steps=150)
        number = max(i for i, (kind, a, b) in enumerate(program) if kind == "xor" and a != b)
        twin = [*program[:number], ("and", *program[number][1:]), *program[number + 1 :]]
        bits = np.random.default_rng(seed).random((7, 64)) < 0.5
        differ += not np.array_equal(
            circuit.evaluate(programs.build(twin, inputs=7), bits), programs.compute(program, bits)
        )
    assert differ >= 15


def test_gates_with_a_known_result_are_not_made() -> None:
    builder = Builder(2)
    a, b = builder.inputs
    assert [builder.conjunction(a, a), builder.conjunction(ONE, a), builder.conjunction(a, ONE)] == [a, a, a]
    assert [builder.conjunction(ZERO, a), builder.conjunction(a, ZERO), builder.xor(a, a)] == [ZERO] * 3
    assert [builder.xor(a, ZERO), builder.xor(ZERO, a), builder.negation(ZERO), builder.negation(ONE)] == [a, a, 1, 0]
    used, _ = builder.conjunction(a, b), builder.conjunction(builder.negation(a), b)
    built = builder.build([used, ONE, a])
    assert (built.ands, len(built.gates)) == (1, 1)  # the second is for nobody
    values = circuit.evaluate(built, np.array([[0, 0, 1, 1], [0, 1, 0, 1]]))
    np.testing.assert_array_equal(values, [[0, 0, 0, 1], [1, 1, 1, 1], [0, 0, 1, 1]])


def test_every_wire_is_let_go_after_its_last_reader() -> None:
    built = programs.build(programs.draw(3, inputs=7, steps=150), inputs=7)
    readers = {wire: number for number, gate in enumerate(built.gates) for wire in (gate.a, gate.b)}
    expected = {wire: number for wire, number in readers.items() if wire not in (ZERO, ONE, *built.outputs)}
    assert {wire: number for number, gate in enumerate(built.gates) for wire in gate.last} == expected
    assert len(expected) > 50


def test_digest_names_the_circuit() -> None:
    program = programs.draw(5, inputs=7, steps=50)
    digests = {circuit.digest(programs.build(program, inputs)) for inputs in (7, 8)}
    digests |= {circuit.digest(programs.build([*program, (kind, 40, 50)], 7)) for kind in ("xor", "and")}
    assert {len(digest) for digest in digests} == {32}
    assert len(digests) == 4
    assert circuit.digest(programs.build(program, 7)) in digests


def test_wrong_number_of_inputs_is_refused() -> None:
    built = programs.build(programs.draw(5, inputs=7, steps=50), inputs=7)
    with pytest.raises(_validate.InputError, match="inputs: expected 7 wires, got 6"):
        circuit.evaluate(built, np.zeros((6, 3)))
    with pytest.raises(_validate.InputError, match="inputs: expected a whole number >= 1, got 0"):
        Builder(0)
