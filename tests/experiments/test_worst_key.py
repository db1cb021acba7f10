"""The worst-key table: its claims are exact, and what it says of many bounds is counted right."""

import math

import pytest
from scipy.stats import binom

from dpaudit import InputError
from dpaudit.mechanisms import gaussian
from experiments.common import Rows
from experiments.trust import worst_key


def test_the_normal_epsilon_is_the_one_that_the_mechanism_is_calibrated_for():
    epsilon = worst_key.normal_epsilon(1.0, 0.05)
    assert gaussian.noise_std(epsilon=epsilon, delta=0.05, clip_norm=0.5) == pytest.approx(1.0, rel=1e-6)


def test_bounds_above_the_truth_are_counted():
    judged = worst_key.judged({"lower": [0.8] * 18 + [1.1, 1.2], "truth": 1.0, "delta": 0.0})
    assert (judged["above"], judged["quantile5"]) == (2, pytest.approx(0.8))
    assert judged["p"] == pytest.approx(1 - binom.cdf(1, 20, 0.05))


def test_a_bound_that_is_no_number_is_refused():
    """It is above nothing: an audit that returned NaN would never be wrong."""
    with pytest.raises(InputError, match="lower: expected a number from every audit, got 1 NaN"):
        worst_key.judged({"lower": [0.8, math.nan], "truth": 1.0, "delta": 0.0})


def test_a_row_holds_the_mean_over_its_keys(tmp_path):
    rows = Rows("", "worst_key", str(tmp_path), 0)
    rows.run(worst_key.cell, "randomised response", 600, 4)
    (row,) = rows.rows
    again = worst_key.measured("randomised response", 600, 4, 0)["lower"]
    assert row["ours"] == pytest.approx(sum(again) / 4)
    assert row["above"] == sum(bound > 1.0 for bound in again)
    assert row["made_by"]["part"] == "cell"
