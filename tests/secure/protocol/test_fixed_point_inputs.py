"""Tests what the rounding of gradients refuses, and that an owner may have no example in a step."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dpaudit import InputError
from dpaudit.secure.protocol import fixed_point

SCALE = fixed_point.largest(examples=30, clip_norm=1.0)


def test_no_example_adds_zeros() -> None:
    parameters = [np.zeros((0, 2, 3), np.float32), np.zeros((0,)), np.zeros((0, 4))]
    found = fixed_point.clipped_sum(parameters, SCALE)
    assert (found.dtype, found.shape, found.any()) == (np.int64, (11,), False)
    np.testing.assert_array_equal(found, fixed_point.quantized_sum(np.zeros((0, 11)), SCALE))


@pytest.mark.parametrize("values", [[[1j, 0.0]], [["1"]], [[None]]], ids=["complex", "text", "none"])
@pytest.mark.parametrize(
    "add",
    [fixed_point.quantize, fixed_point.quantized_sum, lambda rows, scale: fixed_point.clipped_sum([rows], scale)],
    ids=["quantize", "quantized_sum", "clipped_sum"],
)
def test_what_is_no_real_number_is_refused(add: Callable[..., Any], values: list[Any]) -> None:
    rows = np.array(values)
    with pytest.raises(
        InputError, match=rf"^gradients: expected real numbers, got {rows.dtype} ones$".replace("<", ".")
    ):
        add(rows, SCALE)
