"""Power and detectable loss against the plain double sum over all outcomes."""

import math

import numpy as np
import pytest
import scipy.stats

from dpaudit.auditing.bounds import plan
from dpaudit.auditing.bounds.estimate import epsilon_bounds, upper_bound


def double_sum(epsilon, claimed, n0, n1, *, delta, confidence, bounds=epsilon_bounds):
    rate = (1 - delta) / (1 + math.exp(epsilon))
    fp, fn = np.arange(n0 + 1)[:, None], np.arange(n1 + 1)[None, :]
    lower, _ = bounds(fp, fn, n0, n1, delta=delta, confidence=confidence)
    weight = scipy.stats.binom.pmf(fp, n0, rate) * scipy.stats.binom.pmf(fn, n1, rate)
    return float(weight[lower > claimed].sum())


@pytest.mark.parametrize("n0, n1", [(8, 8), (40, 60), (150, 90)])
@pytest.mark.parametrize("delta", [0.0, 0.02])
@pytest.mark.parametrize("confidence", [0.95, 0.7])
def test_power_is_the_double_sum(n0, n1, delta, confidence):
    seen = []
    for claimed in (0.1, 1.0, 2.0):
        for more in (0.0, 0.5, 2.0, 5.0):
            settings = {"delta": delta, "confidence": confidence}
            found = plan.power(claimed + more, claimed, n0, n1, **settings)
            assert found == pytest.approx(double_sum(claimed + more, claimed, n0, n1, **settings), abs=1e-9)
            seen.append(found)
    assert min(seen) < 0.06 + (1 - confidence)
    assert max(seen) > 0.5 or n0 == 8


def test_of_many_numbers_of_errors_few_are_computed_and_power_is_the_same(monkeypatch):
    """Of half a billion trials in each world, 140,000 numbers of errors can occur."""
    sizes, settings = [], {"delta": 0.0, "confidence": 0.95}

    def counted(successes, *more, **settings):
        sizes.append(np.size(successes))
        return upper_bound(successes, *more, **settings)

    monkeypatch.setattr(plan, "upper_bound", counted)
    assert 0 < plan.power(1.0003, 1.0, 500_000_000, 500_000_000, **settings) < 1
    assert max(sizes) <= 5000
    found = {}
    for knots in (1 << 12, 1 << 10, 1 << 4):
        monkeypatch.setattr(plan, "KNOTS", knots)
        found[knots] = plan.power(1.004, 1.0, 1_000_000, 1_000_000, **settings)
    assert sizes[-3] > 5000  # all of them
    assert found[1 << 10] == pytest.approx(found[1 << 12], abs=1e-10)
    assert found[1 << 4] != pytest.approx(found[1 << 12], abs=1e-6)


def test_power_at_the_claim_is_the_false_alarm_rate():
    for claimed in (0.1, 1.0, 3.0):
        assert plan.power(claimed, claimed, 500, 500, delta=0.0, confidence=0.95) <= 0.05


@pytest.mark.parametrize("claimed, n", [(0.5, 200), (2.0, 200), (4.0, 5000)])
def test_detectable_is_where_power_reaches_four_fifths(claimed, n):
    settings = {"delta": 0.0, "confidence": 0.95}
    found = plan.detectable(claimed, n, n, **settings)
    assert claimed < found < math.inf
    power = double_sum if n <= 200 else plan.power
    assert power(found + 1e-3, claimed, n, n, **settings) >= 0.8
    assert power(found - 1e-3, claimed, n, n, **settings) < 0.8


def test_detectable_falls_with_trials_and_is_infinite_where_the_ceiling_is_in_the_way():
    settings = {"delta": 0.0, "confidence": 0.95}
    found = [plan.detectable(4.0, n, n, **settings) for n in (100, 1000, 10_000, 100_000)]
    assert plan.ceiling(100, 100, **settings) < 4 < plan.ceiling(1000, 1000, **settings)
    assert found[0] == math.inf
    assert math.inf > found[1] > found[2] > found[3] > 4
    assert plan.power(60.0, 4.0, 100, 100, **settings) == 0


@pytest.mark.parametrize("n, ceiling", [(1_000, 5.60), (5_000, 7.21), (10_000, 7.91)])
def test_ceiling_known_answers(n, ceiling):
    assert plan.ceiling(n, n, delta=0.0, confidence=0.95) == pytest.approx(ceiling, abs=0.01)


def test_ceiling_is_the_largest_lower_bound_of_all_outcomes():
    counts = np.arange(31)
    lower, _ = epsilon_bounds(counts[:, None], counts[None, :], 30, 30, delta=0.01, confidence=0.9)
    assert plan.ceiling(30, 30, delta=0.01, confidence=0.9) == pytest.approx(lower.max(), rel=1e-12)
