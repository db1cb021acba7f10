"""Tests bit transposition against single bits placed by hand and against NumPy's unpacking."""

import numpy as np
import pytest

from dpaudit import _validate
from dpaudit.secure.crypto import correlated_transfers


def _labels(rows: np.ndarray) -> np.ndarray:
    words = correlated_transfers.transposed(rows)
    return words.transpose(2, 1, 0).reshape(-1, 2).copy().view(np.uint8)


def test_known_answers() -> None:
    rows = np.zeros((128, 16), np.uint8)
    rows[0, 0] = 1  # row 0, columns 0
    rows[3, 0] = 0b101  # row 3, columns 0 and 2
    rows[127, 15] = 0b1000_0000  # the last row and column
    expected = np.zeros((128, 16), np.uint8)
    expected[0, 0] = 0b1001
    expected[2, 0] = 0b1000
    expected[127, 15] = 0b1000_0000
    np.testing.assert_array_equal(_labels(rows), expected)


@pytest.mark.parametrize("blocks", [1, 255, 256, 257, 513])
def test_every_bit_is_where_it_belongs(blocks: int) -> None:
    rows = np.random.default_rng(blocks).integers(0, 256, (128, 8 * blocks), dtype=np.uint8)
    before = rows.copy()
    bits = np.unpackbits(rows, axis=1, bitorder="little")
    np.testing.assert_array_equal(_labels(rows), np.packbits(bits.T, axis=1, bitorder="little"))
    np.testing.assert_array_equal(rows, before)


def test_twice_is_nothing() -> None:
    square = np.random.default_rng(0).integers(0, 256, (128, 16), dtype=np.uint8)
    once = _labels(square)
    assert not np.array_equal(once, square)
    np.testing.assert_array_equal(_labels(once), square)


@pytest.mark.parametrize(
    "rows, message",
    [
        (np.zeros((128, 4), np.uint8), r"^rows: expected uint8 \[128, 0\], .* got uint8 \[128, 4\]$"),
        (np.zeros((128, 8), np.int8), r"^rows: expected uint8 \[128, 8\], .* got int8 \[128, 8\]$"),
        (np.zeros((8, 128), np.uint8).T, r"^rows: expected uint8 \[128, 8\], with contiguous rows, got uint8"),
    ],
)
def test_other_shapes_are_refused(rows: np.ndarray, message: str) -> None:
    with pytest.raises(_validate.InputError, match=message):
        correlated_transfers.transposed(rows)
