"""Count tables: broadcast, and refused by name."""

import numpy as np
import pytest

from dpaudit import _validate
from dpaudit.auditing.bounds import estimate


def test_broadcasts_to_one_shape_in_float64():
    found = estimate.error_table([[1], [2]], [0, 3, 4], 5, 6)
    assert {(column.shape, column.dtype) for column in found} == {((2, 3), np.dtype(np.float64))}
    np.testing.assert_array_equal(found[0], [[1, 1, 1], [2, 2, 2]])


@pytest.mark.parametrize(
    "table, message",
    [
        ((6, 0, 5, 5), "false_positives: expected whole numbers in 0 .. 5, got 6"),
        ((0, [1, -2], 5, 5), "false_negatives: expected whole numbers in 0 .. 5, got -2"),
        ((0.5, 0, 5, 5), "false_positives: expected whole numbers in 0 .. 5, got 0.5"),
        ((np.nan, 0, 5, 5), "false_positives: expected whole numbers in 0 .. 5, got nan"),
        ((0, 0, [5, 0], 5), "negatives: expected at least one trial, got 0"),
    ],
)
def test_refuses(table, message):
    with pytest.raises(_validate.InputError, match=message):
        estimate.error_table(*table)
