import numpy as np
import pytest

from dpaudit import check, data
from dpaudit.data.features import one_hot_bins, standardised

TRAIN = np.array([[0.0, 5.0, 1.0], [3.0, 5.0, 2.0], [6.0, 5.0, 9.0]])


def test_standardised_by_the_training_records_alone() -> None:
    np.testing.assert_allclose(standardised(TRAIN, TRAIN).mean(axis=0), 0, atol=1e-7)
    np.testing.assert_allclose(standardised(TRAIN, TRAIN).std(axis=0), [1, 0, 1], atol=1e-6)
    found = standardised(TRAIN, np.array([[9.0, 7.0, 4.0]]))
    np.testing.assert_allclose(found, [[6 / np.sqrt(6), 0, 0]], atol=1e-6)
    assert found.dtype == np.float32


def test_bins_hold_as_many_training_records_each() -> None:
    train = np.array([[0.0, 10.0], [1.0, 20.0], [2.0, 1000.0], [3.0, 30.0], [4.0, 5.0], [5.0, 40.0]])
    where = one_hot_bins(train, train, bins=3).reshape(6, 2, 3).argmax(axis=-1)
    np.testing.assert_array_equal(where, [[0, 0], [0, 1], [1, 2], [1, 1], [2, 0], [2, 2]])
    beyond = one_hot_bins(train, np.array([[-9.0, 1e6], [9.0, -1e6]]), bins=3)
    np.testing.assert_array_equal(beyond, [[1, 0, 0, 0, 0, 1], [0, 0, 1, 1, 0, 0]])


def test_cancer_becomes_ninety_bits() -> None:
    train, test = (data.load("breast_cancer", split=split).inputs for split in data.SPLITS)
    found = one_hot_bins(train, test, bins=3)
    assert found.shape == (179, 90)
    assert set(np.unique(found)) == {0.0, 1.0}
    np.testing.assert_allclose(one_hot_bins(train, train, bins=3).mean(axis=0), 1 / 3, atol=0.02)


def test_refuses_a_single_bin() -> None:
    with pytest.raises(check.InputError, match="bins: expected a whole number >= 2, got 1"):
        one_hot_bins(TRAIN, TRAIN, bins=1)
