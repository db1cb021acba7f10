"""Transposing a bit matrix of 128 rows: from one stream of bits a base OT to one 128-bit label an OT.

A 64 x 64 block, held as 64 words of 64 bits, is transposed in six rounds. Round s = 32, 16, ..., 1 exchanges, for
every pair of rows (r, r + s) with bit s of r clear, the columns of the first whose bit s is set with the columns of
the second whose bit s is clear: shifts and masks on whole rows, which NumPy runs over many blocks side by side.
"""

import numpy as np

from dpaudit import check

ROWS = 128
_WORD = np.dtype("<u8")  # bit i of a row is bit i % 8 of its byte i // 8
_BLOCKS = 256  # transposed together: 128 rows of 2 KiB and a scratch half that size, which stay in a core's L2 cache


def _rounds() -> list[tuple[int, int]]:
    """(distance s, mask of the columns whose bit s is clear), from the largest distance to the smallest."""
    return [(s, sum(1 << column for column in range(64) if not column & s)) for s in (32, 16, 8, 4, 2, 1)]


_ROUNDS = _rounds()


def into_labels(rows: np.ndarray, labels: np.ndarray) -> None:
    """Label i becomes column i of the matrix: bit j of ``labels[i]`` is bit i of ``rows[j]``, least significant first.

    Args:
      rows: uint8 [128, w], C-contiguous, w a multiple of 8: 8 w columns of bits. Left as it is.
      labels: uint8 [8 w, 16], C-contiguous; overwritten.

    Raises:
      InputError: another shape or type.

    Source: Warren, Hacker's Delight, 2nd edition, section 7-3 (transposing a bit matrix by halves).
    """
    blocks = rows.size // (ROWS * 8)
    _check("rows", rows, (ROWS, 8 * blocks))
    _check("labels", labels, (64 * blocks, ROWS // 8))
    words = rows.view(_WORD)
    by_block = labels.view(_WORD).reshape(blocks, 64, 2)
    for start in range(0, blocks, _BLOCKS):
        part = words[:, start : start + _BLOCKS].copy()
        _transpose_blocks(part)
        by_block[start : start + _BLOCKS] = part.reshape(2, 64, -1).transpose(2, 1, 0)


def _check(name: str, array: np.ndarray, shape: tuple[int, int]) -> None:
    if array.dtype != np.uint8 or array.shape != shape or not array.flags.c_contiguous:
        raise check.expected(name, f"uint8 {list(shape)}, C-contiguous", f"{array.dtype} {list(array.shape)}")


def _transpose_blocks(rows: np.ndarray) -> None:
    """Transposes each block (h, b), the words ``rows[64h : 64h + 64, b]`` of uint64 [128, blocks], in its place."""
    blocks = rows.shape[1]
    for distance, mask in _ROUNDS:
        pairs = rows.reshape(ROWS // (2 * distance), 2, distance, blocks)
        upper, lower = pairs[:, 0], pairs[:, 1]
        moved = upper >> np.uint64(distance)
        moved ^= lower
        moved &= np.uint64(mask)
        lower ^= moved
        moved <<= np.uint64(distance)
        upper ^= moved
