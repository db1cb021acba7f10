from collections.abc import Callable

import numpy as np
import pytest

from dpaudit import _validate
from dpaudit.secure.circuits import garbling

Linear = Callable[[np.ndarray], np.ndarray]


def encrypted(encrypt: garbling.Encrypt, block: bytes) -> bytes:
    out = bytearray(len(block) + garbling.SLACK)
    encrypt(memoryview(block), memoryview(out))
    return bytes(out[: len(block)])


@pytest.mark.parametrize(
    ("key", "plain", "cipher"),
    [  # FIPS 197, appendices B and C.1
        ("2b7e151628aed2a6abf7158809cf4f3c", "3243f6a8885a308d313198a2e0370734", "3925841d02dc09fbdc118597196a0b32"),
        ("000102030405060708090a0b0c0d0e0f", "00112233445566778899aabbccddeeff", "69c4e0d86a7b0430d8cdb78070b4c55a"),
    ],
)
def test_aes_known_answers(key: str, plain: str, cipher: str) -> None:
    encrypt = garbling.encryption(bytes.fromhex(key))
    assert encrypted(encrypt, bytes.fromhex(plain) * 3) == bytes.fromhex(cipher) * 3


def test_a_gates_key_is_the_seeds_encryption_of_its_number() -> None:
    seed, plain = bytes(range(16)), bytes.fromhex("00112233445566778899aabbccddeeff")
    chunk, gate = (int.from_bytes(part, "little") for part in (plain[:8], plain[8:]))
    under = garbling.encryption(bytes.fromhex("69c4e0d86a7b0430d8cdb78070b4c55a"))  # FIPS 197, C.1
    assert encrypted(garbling.GateKeys(seed)(chunk, gate), plain) == encrypted(under, plain)


def test_no_key_is_given_out_twice() -> None:
    keys = garbling.GateKeys(bytes(16))
    given = {encrypted(keys(chunk, gate), bytes(16)) for chunk in range(40) for gate in range(50)}
    assert len(given) == 2000
    for chunk, gate in [(39, 49), (39, 3), (2, 51)]:
        with pytest.raises(_validate.InputError, match=r"\(chunk, gate\): expected a pair after \(39, 49\)"):
            keys(chunk, gate)
    with pytest.raises(_validate.InputError, match="seed: expected 16 bytes, got 15"):
        garbling.GateKeys(bytes(15))


def sigma(labels: np.ndarray) -> np.ndarray:
    """Applies the shipped map to bytes [n, 16], without a tweak."""
    out = np.empty((len(labels), 2), garbling.WORD)
    garbling.blocks(labels.view(garbling.WORD).T, np.zeros(len(labels), garbling.WORD), out=out)
    return out.view(np.uint8)


def rank(matrix: np.ndarray) -> int:
    """Computes the rank of a bit matrix over GF(2), by elimination on its rows as integers."""
    pivots: dict[int, int] = {}
    for row in (int("".join(map(str, bits)), 2) for bits in matrix):
        while row and row.bit_length() in pivots:
            row ^= pivots[row.bit_length()]
        if row:
            pivots[row.bit_length()] = row
    return len(pivots)


def ranks(linear: Linear) -> tuple[int, int]:
    """Computes the ranks of the map and of its sum with the identity."""
    units = np.packbits(np.eye(128, dtype=np.uint8), axis=1)
    matrix = np.unpackbits(linear(units), axis=1)
    return rank(matrix), rank(matrix ^ np.eye(128, dtype=np.uint8))


def test_sigma_is_a_linear_orthomorphism() -> None:
    assert ranks(sigma) == (128, 128)
    x, y = np.random.default_rng(0).integers(256, size=(2, 100, 16), dtype=np.uint8)
    np.testing.assert_array_equal(sigma(x) ^ sigma(y), sigma(x ^ y))


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (lambda x: x, (128, 0)),  # no map at all
        (lambda x: np.roll(x, 8, axis=1), (128, 64)),  # halves swapped, without the sum
        (lambda x: np.roll(x, 8, axis=1) ^ np.where(np.arange(16) < 8, x & 0x0F, 0), (128, 96)),  # a wrong mask
    ],
)
def test_maps_that_are_none_are_told(wrong: Linear, expected: tuple[int, int]) -> None:
    assert ranks(wrong) == expected


def test_tweaks_are_told_apart_and_go_into_the_second_word() -> None:
    tweaks = garbling.tweaks_of(5)
    np.testing.assert_array_equal(tweaks, [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]])
    labels = np.random.default_rng(1).integers(256, size=(5, 16), dtype=np.uint8)
    out = np.empty((5, 2), garbling.WORD)
    garbling.blocks(labels.view(garbling.WORD).T, tweaks[1], out=out)
    left, right = (labels[:, part].copy().view("<u8")[:, 0].tolist() for part in (slice(8), slice(8, 16)))
    assert out.tolist() == [[x ^ y, x ^ (2 * i + 1)] for i, (x, y) in enumerate(zip(left, right, strict=True))]
