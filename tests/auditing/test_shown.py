"""Numbers beside a promise: rounding never moves one across it."""

import dataclasses
import math

import numpy as np
import pytest

from dpaudit import Claim
from dpaudit.auditing.conclude import from_counts
from dpaudit.auditing.examine import _judged
from dpaudit.auditing.shown import beside


@pytest.mark.parametrize(
    ("value", "promised", "form", "shown"),
    [
        (1.0008593, 1.0, ".3g", "1.001"),  # an audit that stopped when a violation of 1 was certain
        (1.0008593, 1.0, ".2f", "1.001"),
        (0.9996, 1.0, ".3g", "1"),  # not above
        (1.25, 1.0, ".2f", "1.25"),
        (1.0, 1.0, ".2f", "1.00"),
        (0.0131, 0.012, ".2f", "0.013"),
        (0.0069, 0.007, ".2f", "0.007"),  # 0.01 would be above what was promised
        (1.0008593, None, ".2f", "1.00"),
        (math.inf, 1.0, ".2f", "inf"),
    ],
)
def test_digits_are_added_only_where_rounding_crosses_the_promise(value, promised, form, shown):
    assert beside(value, promised, form) == shown


def test_no_number_crosses_its_promise():
    rng = np.random.default_rng(0)
    for promised in (1e-4, 0.5, 1.0, 12.0):
        for value in promised * (1 + 0.01 * rng.standard_normal(50) ** 3):
            assert (float(beside(value, promised)) > promised) == (value > promised)


def test_an_examination_says_a_bound_above_the_promise_that_it_calls_broken():
    broken = dataclasses.replace(from_counts(100, 100, 1000, 1000, claim=Claim(1.0)), epsilon_lower=1.0008593)
    assert _judged([broken], [], Claim(1.0)) == (
        "violation",
        "The promise of 1 is broken: the loss is at least 1.001.",
    )
