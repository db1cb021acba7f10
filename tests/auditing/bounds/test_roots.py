"""Bracketed roots of many functions at once."""

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from dpaudit.auditing.bounds.roots import increasing_root


def test_finds_every_root_in_few_calls():
    levels = np.array([[1e-6, 0.01, 0.5], [0.9, 0.999, 1 - 1e-9]])
    calls = []

    def function(x: np.ndarray) -> np.ndarray:
        calls.append(x)
        return ndtr(x) - levels

    found = increasing_root(function, np.full((2, 3), -7.0), np.full((2, 3), 6.5))
    np.testing.assert_allclose(ndtr(found), levels, atol=1e-10)
    np.testing.assert_allclose(found[:, :2], ndtri(levels)[:, :2], atol=1e-4)
    assert len(calls) < 30


def test_a_jump_a_flat_piece_and_an_exact_end_are_no_trouble():
    def function(x: np.ndarray) -> np.ndarray:
        return np.stack([np.where(x[0] < 0.3, -1.0, 5.0), np.maximum(x[1] - 0.7, 0) ** 3 - 1e-9, x[2]])

    found = increasing_root(function, np.zeros(3), np.ones(3))
    np.testing.assert_allclose(found, [0.3, 0.701, 0.0], atol=1e-9)


def test_without_a_root_the_nearer_end_is_returned():
    found = increasing_root(lambda x: x + np.array([1.0, -9.0]), np.zeros(2), np.ones(2))
    np.testing.assert_array_equal(found, [0, 1])


def test_no_root_is_further_away_than_the_tolerance():
    levels = np.linspace(0.01, 0.99, 2000)
    for tolerance in (0.3, 0.1, 0.01):
        found = increasing_root(
            lambda x: ndtr(x) - levels, np.full(2000, -4.0), np.full(2000, 4.0), tolerance=tolerance
        )
        assert np.abs(found - ndtri(levels)).max() <= tolerance


@pytest.mark.parametrize(
    "function, root",
    [
        (lambda x: ndtr(8 * x - 4) - 0.3, (4 + ndtri(0.3)) / 8),
        (lambda x: np.where(x < 0.3, -1.0, 5.0), 0.3),
        (lambda x: np.where(x < 0.4, -np.inf, x - 0.6), 0.6),
        (lambda x: np.where(x < 0.6, -1e-3, np.inf), 0.6),
        (lambda x: np.maximum(x - 0.7, 0) ** 3 - 1e-9, 0.701),
        (lambda x: x + 1, 0.0),
        (lambda x: x - 9, 1.0),
    ],
)
@pytest.mark.parametrize("shape", [(), (1,), (2,)])
def test_one_function_has_the_same_root_as_many(function, root, shape):
    found = increasing_root(function, np.zeros(shape), np.ones(shape))
    assert found.shape == shape
    np.testing.assert_allclose(found, root, rtol=0, atol=1e-9)
