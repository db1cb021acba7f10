from typing import Any

import numpy as np
import pytest

from dpaudit import _validate
from dpaudit.secure.protocol.fixed_point import Scale, clipped_sum, dequantize, quantize, quantized_sum

SCALE = Scale(clip_norm=0.7, levels=5583, ring_bits=25)


def clipped(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    rows = rng.standard_normal(shape)
    return (SCALE.clip_norm * rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def squares(integers: np.ndarray) -> np.ndarray:
    return (integers.astype(np.int64) ** 2).sum(axis=1)


@pytest.mark.parametrize("dimension", [1, 2, 182, 30_000])
def test_integer_norm_never_exceeds_the_budget(dimension: int) -> None:
    rows = clipped(np.random.default_rng(dimension), (64, dimension))
    integers = quantize(rows, SCALE)
    assert (squares(integers) <= SCALE.levels**2).all()
    error = rows / SCALE.unit - integers
    assert np.abs(error).max() < 1 + 1e-3  # float32 rows may be a little too long and are shortened first
    assert (np.abs(integers) <= np.abs(rows) / SCALE.unit).all()


def test_nearest_would_exceed_it() -> None:
    """A twin with a fault: coordinates of 0.6 units all become 1, and the norm grows by a factor of 1/0.6."""
    rows = np.full((1, 10_000), SCALE.clip_norm / 100)
    scale = SCALE._replace(levels=60)
    assert squares(np.rint(rows / scale.unit))[0] > scale.levels**2
    assert squares(quantize(rows, scale))[0] == 0
    rows = clipped(np.random.default_rng(0), (64, 30_000))
    assert (squares(np.rint(rows / scale.unit)) > scale.levels**2).all()


def test_whole_numbers_of_exactly_the_budget_are_kept() -> None:
    scale = Scale(clip_norm=1.0, levels=1 << 24, ring_bits=32)
    rows = np.array([[1.0, 0.0], [0.0, -1.0], [0.6, 0.8]])
    np.testing.assert_array_equal(quantize(rows, scale)[:2], [[1 << 24, 0], [0, -(1 << 24)]])
    assert squares(quantize(rows, scale))[2] <= 1 << 48


def test_sum_is_the_same_however_it_is_split() -> None:
    rows = clipped(np.random.default_rng(1), (90, 182))
    whole = quantize(rows, SCALE).sum(axis=0)
    owners = sum(quantize(part, SCALE).sum(axis=0) for part in np.array_split(rows, 7))
    np.testing.assert_array_equal(whole, owners)
    np.testing.assert_allclose(dequantize(whole, SCALE), rows.sum(axis=0), atol=90 * SCALE.unit)


@pytest.mark.parametrize(("examples", "dimension"), [(1, 1), (5, 200_000), (17, 30_000), (2_000, 182), (0, 3)])
def test_a_sum_made_in_blocks_is_that_of_all_rows(examples: int, dimension: int) -> None:
    rows = clipped(np.random.default_rng(examples), (examples, dimension))
    np.testing.assert_array_equal(quantized_sum(rows, SCALE), quantize(rows, SCALE).sum(axis=0, dtype=np.int64))


def test_a_row_that_is_not_clipped_is_found_in_the_last_block() -> None:
    rows = clipped(np.random.default_rng(0), (2_000, 182))
    rows[-1] *= 2
    with pytest.raises(_validate.InputError, match=r"gradients: expected rows of L2 norm <= 0\.7, got 1\.(4|39)"):
        quantized_sum(rows, SCALE)


def test_refusals() -> None:
    with pytest.raises(_validate.InputError, match=r"gradients: expected rows of L2 norm <= 0\.7, got 1\.4"):
        quantize(np.array([[0.0, 0.1], [1.4, 0.0]]), SCALE)
    with pytest.raises(_validate.InputError, match=r"gradients: expected rows of L2 norm <= 0\.7, got nan"):
        quantize(np.array([[np.nan, 0.1]]), SCALE)
    with pytest.raises(_validate.InputError, match=r"gradients: expected an array of shape \[n, d\], got shape \[3\]"):
        quantize(np.zeros(3), SCALE)


@pytest.mark.parametrize(("longer", "refused"), [(1 + 5e-5, False), (1 + 2e-4, True), (1.05, True)])
def test_rows_longer_than_rounding_explains_were_not_clipped(longer: float, refused: bool) -> None:
    rows = np.array([[SCALE.clip_norm * longer, 0.0]])
    if refused:
        with pytest.raises(_validate.InputError):
            quantize(rows, SCALE)
    else:
        assert squares(quantize(rows, SCALE))[0] == SCALE.levels**2


def test_gradients_are_clipped_rounded_and_added_up_as_one_by_one() -> None:
    rng = np.random.default_rng(3)
    leaves = [rng.standard_normal((2_000, 7, 13)).astype(np.float32), rng.standard_normal((2_000, 91)), np.ones(2_000)]
    leaves[0][::3] *= 1e-3  # some are shorter than C, most are longer
    leaves[1][::3] *= 1e-3
    leaves[2][::3] *= 1e-3
    wanted, lengths = np.zeros(183, np.int64), []
    for example in zip(*leaves, strict=True):
        row = np.concatenate([np.ravel(leaf) for leaf in example]).astype(np.float64)
        lengths.append(np.linalg.norm(row))
        wanted += np.trunc(row * min(1, SCALE.clip_norm / lengths[-1]) / SCALE.unit).astype(np.int64)
    assert min(lengths) < SCALE.clip_norm < max(lengths)
    np.testing.assert_array_equal(clipped_sum(leaves, SCALE), wanted)
    assert not np.array_equal(clipped_sum(leaves, SCALE._replace(levels=SCALE.levels - 1)), wanted)


@pytest.mark.parametrize("levels", [5, 4_000, 1 << 24])
def test_a_clipped_gradient_is_never_longer_than_the_levels(levels: int) -> None:
    """Of whole numbers whose length is nearly or exactly Q, by lengths of any size and of many coordinates."""
    scale, rng = Scale(0.7, levels, 32), np.random.default_rng(4)
    whole = np.zeros((4, 20_000))
    whole[0, :2], whole[1, 0], whole[2, :4], whole[3] = (3, 4), 1, 1, rng.integers(-1, 2, 20_000)
    for long in (0.1401, 1.0, 1e9, 1e18):
        for row in (whole * long).astype(np.float32):
            integers = clipped_sum([row[None]], scale)
            assert (integers.astype(object) ** 2).sum() <= levels**2
            if np.count_nonzero(row) <= 4 and np.linalg.norm(row) > 0.7:
                assert (integers.astype(object) ** 2).sum() >= (levels - 2) ** 2


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_is_not_finite_adds_zero(broken: float) -> None:
    rows = np.random.default_rng(5).standard_normal((9, 4)).astype(np.float32)
    wanted = clipped_sum([np.delete(rows, 3, axis=0)], SCALE)
    rows[3, 1] = broken
    np.testing.assert_array_equal(clipped_sum([rows], SCALE), wanted)


def test_gradients_of_other_numbers_of_examples_are_refused() -> None:
    of_one_number: Any = [np.float64(1)]
    for gradients in ([np.zeros((2, 3)), np.zeros((3, 3))], [], of_one_number):
        with pytest.raises(_validate.InputError, match="gradients: expected arrays of one number of examples"):
            clipped_sum(gradients, SCALE)
