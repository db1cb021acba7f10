import numpy as np
import pytest

from dpaudit import _validate
from dpaudit.secure.protocol.fixed_point import Scale, dequantize, quantize, quantized_sum

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
