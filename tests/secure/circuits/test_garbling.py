from collections.abc import Iterator

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from dpaudit import _validate
from dpaudit.secure.circuits import circuit, garbling
from dpaudit.secure.circuits.circuit import Builder, Circuit
from dpaudit.secure.circuits.garbling import CHUNK, Garbled, GateKeys, Keys
from tests.secure import programs

SEED = bytes(range(16))


def secrets(seed: int, wires: int, d: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draws labels for zero [wires, d, 16], delta, and bits [wires, d]."""
    rng = np.random.default_rng(seed)
    delta = rng.integers(256, size=16, dtype=np.uint8)
    delta[0] |= 1
    return rng.integers(256, size=(wires, d, 16), dtype=np.uint8), delta, rng.random((wires, d)) < 0.5


def garbled(built: Circuit, zeros: np.ndarray, delta: np.ndarray, keys: Keys | None = None) -> list[Garbled]:
    return list(garbling.garble(built, garbling.chunks(zeros), delta, keys or GateKeys(SEED)))


def evaluated(built: Circuit, active: np.ndarray, sent: list[Garbled], keys: Keys | None = None) -> np.ndarray:
    """Garbles and evaluates; returns the output bits [outputs, d]."""
    tables = (part.tables for part in sent)
    bits = garbling.evaluate(built, garbling.chunks(active), tables, keys or GateKeys(SEED))
    return np.concatenate([mine ^ part.decoding for mine, part in zip(bits, sent, strict=True)], axis=1)


@pytest.mark.parametrize("d", [1, 7, 63, 64, 65, 182, CHUNK, CHUNK + 1, 30_000])
def test_random_circuits_come_out_as_in_plaintext(d: int) -> None:
    for seed in range(1 if d > CHUNK else 4):
        program = programs.draw(seed, inputs=7, steps=20 if d > CHUNK else 120)
        built = programs.build(program, inputs=7)
        zeros, delta, bits = secrets(seed, 7, d)
        sent = garbled(built, zeros, delta)
        assert sum(part.tables.nbytes for part in sent) == built.ands * d * 32 > 0
        result = evaluated(built, garbling.choose(zeros, bits, delta), sent)
        np.testing.assert_array_equal(result, programs.compute(program, bits))


@pytest.fixture(scope="module")
def deep() -> tuple[Circuit, np.ndarray, np.ndarray, np.ndarray, list[Garbled]]:
    """Builds 40 AND gates on six inputs, each depending on the last, with one coordinate more than a chunk."""
    builder = Builder(6)
    wire = builder.inputs[0]
    for number in range(40):
        other = builder.inputs[number % 5 + 1]
        wire = builder.xor(builder.conjunction(wire, other), builder.inputs[number % 3])
    built = builder.build([wire])
    zeros, delta, bits = secrets(11, 6, CHUNK + 1)
    return built, zeros, delta, bits, garbled(built, zeros, delta)


def test_whatever_is_wrong_gives_garbage(deep) -> None:
    built, zeros, delta, bits, sent = deep
    active = garbling.choose(zeros, bits, delta)
    truth = circuit.evaluate(built, bits)
    assert (evaluated(built, active, sent) == truth).all()

    noise = np.zeros(16, np.uint8)
    noise[9] = 4
    flipped = [part._replace(tables=part.tables ^ np.eye(1, 2, dtype="<u8")[:, :, None, None]) for part in sent]
    wrong = {
        "label": evaluated(built, active ^ noise, sent),
        "table": evaluated(built, active, flipped),
        "seed": evaluated(built, active, sent, GateKeys(bytes(16))),
        "gate": evaluated(built, active, sent, lambda chunk, gate: GateKeys(SEED)(chunk, gate + 1)),
        "chunk": evaluated(built, active, sent, lambda chunk, gate: GateKeys(SEED)(chunk + 1, gate)),
        "place": evaluated(
            built,
            np.roll(active, 1, axis=1),
            [part._replace(tables=np.roll(part.tables, 1, axis=-1)) for part in sent],
        ),
    }
    for name, result in wrong.items():
        share = (result[0, :CHUNK] == truth[0, :CHUNK]).mean()
        assert abs(share - 0.5) < 5 * 0.5 / CHUNK**0.5, name


def textbook(built: Circuit, zeros: list[bytes], delta: int, chunk: int, place: int) -> tuple[list[bytes], list[int]]:
    """Garbles one coordinate by Figure 2 of Zahur, Rosulek and Evans 2015, on integers: tables and decoding bits."""

    def number(label: bytes) -> int:
        return int.from_bytes(label, "little")

    def aes(key: bytes, block: int) -> bytes:
        return Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(block.to_bytes(16, "little"))

    def hashed(label: int, gate: int, half: int) -> int:
        left, right = label % 2**64, label >> 64
        block = (left ^ right) | (left ^ (2 * place + half)) << 64
        return number(aes(aes(SEED, chunk | gate << 64), block)) ^ block

    wires = [0, delta, *map(number, zeros)]
    tables: list[bytes] = []
    for gate in built.gates:
        a, b = wires[gate.a], wires[gate.b]
        if not gate.conjunction:
            wires.append(a ^ b)
            continue
        j = len(tables) // 2
        of_a, of_b = hashed(a, j, 0), hashed(b, j, 1)
        generator = of_a ^ hashed(a ^ delta, j, 0) ^ (b & 1) * delta
        evaluator = of_b ^ hashed(b ^ delta, j, 1) ^ a
        wires.append(of_a ^ (a & 1) * generator ^ of_b ^ (b & 1) * (evaluator ^ a))
        tables += [generator.to_bytes(16, "little"), evaluator.to_bytes(16, "little")]
    return tables, [wires[wire] & 1 for wire in built.outputs]


def test_tables_are_those_of_the_textbook() -> None:
    built = programs.build(programs.draw(2, inputs=7, steps=60), inputs=7)
    zeros, delta, _ = secrets(2, 7, CHUNK + 3)
    sent = garbled(built, zeros, delta)
    assert built.ands > 10
    for d in (0, 1, CHUNK - 1, CHUNK, CHUNK + 2):
        chunk, place = divmod(d, CHUNK)
        labels = [label.tobytes() for label in zeros[:, d]]
        tables, decoding = textbook(built, labels, int.from_bytes(delta.tobytes(), "little"), chunk, place)
        ours = sent[chunk].tables[..., place].reshape(-1, 2)
        assert [row.tobytes() for row in ours] == tables
        assert sent[chunk].decoding[:, place].tolist() == decoding


def test_no_key_and_input_meet_twice() -> None:
    builder = Builder(3)
    a, b, c = builder.inputs
    same = builder.xor(builder.xor(a, b), b)  # a, with a's label
    opposite = builder.negation(a)
    wires = [builder.conjunction(x, y) for x, y in [(a, b), (a, same), (a, opposite), (b, c), (b, c)]]
    built = builder.build(wires)
    zeros, delta, _ = secrets(4, 3, CHUNK + 5)
    seen: dict[tuple[int, int], list[bytes]] = {}

    def recorded(keys: Keys) -> Keys:
        def keyed(chunk: int, gate: int) -> garbling.Encrypt:
            encrypt = keys(chunk, gate)

            def recording(source: memoryview, target: memoryview) -> object:
                seen.setdefault((chunk, gate), []).append(bytes(source))
                return encrypt(source, target)

            return recording

        return keyed

    garbled(built, zeros, delta, recorded(GateKeys(SEED)))
    assert sorted(seen) == [(chunk, gate) for chunk in range(2) for gate in range(5)]
    blocks = {key: np.frombuffer(b"".join(calls), "<u8").reshape(-1, 2) for key, calls in seen.items()}
    for (chunk, _), inputs in blocks.items():
        assert len(inputs) == 4 * (5 if chunk else CHUNK)
        assert len(np.unique(inputs, axis=0)) == len(inputs)
    halves = blocks[0, 1].reshape(2, 2, CHUNK, 2).copy()  # the gate of one label twice: without the tweak,
    halves[..., 1] ^= garbling.tweaks_of(CHUNK)  # every input comes twice, and this test would tell
    assert len(np.unique(halves.reshape(-1, 2), axis=0)) == 2 * CHUNK


def test_what_is_sent_holds_neither_delta_nor_labels() -> None:
    built = programs.build(programs.draw(6, inputs=7, steps=120), inputs=7)
    zeros, delta, _ = secrets(6, 7, 200)
    (sent,) = garbled(built, zeros, delta)
    rows = {row.tobytes() for row in np.moveaxis(sent.tables, -1, 2).reshape(-1, 2)}
    assert len(rows) == 2 * built.ands * 200
    secret = [delta, *zeros.reshape(-1, 16), *(zeros ^ delta).reshape(-1, 16)]
    assert rows.isdisjoint(label.tobytes() for label in secret)


def test_the_garblers_own_bit_needs_no_wire() -> None:
    builder = Builder(2)
    built = builder.build([builder.conjunction(*builder.inputs)])
    zeros, delta, bits = secrets(8, 2, 500)
    mine = np.random.default_rng(8).random((2, 500)) < 0.5
    sent = garbled(built, garbling.choose(zeros, mine, delta), delta)  # W ^ mine D stands for zero
    result = evaluated(built, garbling.choose(zeros, bits, delta), sent)
    np.testing.assert_array_equal(result[0], (bits[0] ^ mine[0]) & (bits[1] ^ mine[1]))


def test_chunks_are_garbled_one_at_a_time() -> None:
    builder = Builder(2)
    built = builder.build([builder.conjunction(*builder.inputs)])
    zeros, delta, _ = secrets(9, 2, 3 * CHUNK)
    taken: list[int] = []

    def stream() -> Iterator[np.ndarray]:
        for number, labels in enumerate(garbling.chunks(zeros)):
            taken.append(number)
            yield labels

    parts = garbling.garble(built, stream(), delta, GateKeys(SEED))
    for number, part in enumerate(parts):
        assert taken == list(range(number + 1))
        assert part.tables.shape == (1, 2, 2, CHUNK)
    assert taken == [0, 1, 2]


def test_wrong_arguments_are_refused() -> None:
    builder = Builder(2)
    built = builder.build([builder.conjunction(*builder.inputs)])
    zeros, delta, _ = secrets(9, 2, 3)
    sent = garbled(built, zeros, delta)
    for bad in (delta & 0xFE, delta[:8], delta.astype(np.int64)):
        with pytest.raises(_validate.InputError, match=r"delta: expected uint8 \[16\] with the last bit one, got "):
            garbled(built, zeros, bad)
    for bad in (
        zeros[:1],
        zeros[..., :8],
        zeros.astype(np.int8),
        zeros[:, :0],
        np.zeros((2, CHUNK + 1, 16), np.uint8),
    ):
        with pytest.raises(
            _validate.InputError, match=r"labels: expected uint8 \[2, n, 16\] with n in 1 to 4096, got "
        ):
            next(garbling.garble(built, iter([bad]), delta, GateKeys(SEED)))
    with pytest.raises(_validate.InputError, match=r"tables: expected shape \[1, 2, 2, 2\], got shape \[1, 2, 2, 3\]"):
        evaluated(built, zeros[:, :2], sent)
    keys = GateKeys(SEED)
    garbled(built, zeros, delta, keys)
    with pytest.raises(_validate.InputError, match=r"\(chunk, gate\): expected a pair after \(0, 0\), got \(0, 0\)"):
        garbled(built, zeros, delta, keys)
