import numpy as np
import pytest

from dpaudit import _validate
from dpaudit.secure.noise.lookup import from_seeds, separation, table


def test_table_is_the_normal_law() -> None:
    values = table(437.0)
    assert values.shape == (65_536,)
    assert values.std() == pytest.approx(437, rel=1e-3)
    np.testing.assert_array_equal(values, -values[::-1])
    first, second = np.random.default_rng(0).integers(0, 1 << 16, (2, 1_000), np.uint16)
    np.testing.assert_array_equal(from_seeds(values, first, second), [values[i] for i in first ^ second])


@pytest.mark.parametrize(("std", "wanted"), [(437.0, 2.8e-3), (65_536.0, 1.0)])
def test_a_shift_of_one_unit_is_seen(std: float, wanted: float) -> None:
    visible, variation = separation(table(std))
    assert visible == pytest.approx(wanted, rel=0.02)
    assert visible <= variation <= 1


def test_separation_by_hand() -> None:
    values = np.array([0, 0, 1, 3])  # against 1, 1, 2, 4: 0 and 3 give the first away
    assert separation(values) == (0.75, 0.75)
    assert separation(values, shift=3) == (0.75, 0.75)
    with pytest.raises(_validate.InputError, match="shift: expected a whole number >= 1, got 0"):
        separation(values, shift=0)
