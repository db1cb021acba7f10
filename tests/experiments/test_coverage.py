"""The coverage study: its truths, its tests, and that it judges what the library ships."""

import jax
import numpy as np
import pytest
from scipy.stats import binom

import dpaudit
from dpaudit.auditing.bounds.estimate import epsilon_bounds, epsilon_from_rates
from experiments.common import Rows
from experiments.trust import coverage, coverage_estimators

PAIRS = pytest.mark.parametrize("known", [*coverage.KNOWN, coverage.SMALL_DELTA], ids=lambda known: known.name)


@PAIRS
def test_the_fixed_rule_attains_the_truth_and_no_rule_more(known):
    claim = known.mechanism.claim
    if known.epsilon > 0:
        assert (known.epsilon, known.delta) == (claim.epsilon, claim.delta)
    assert epsilon_from_rates(*known.rates(known.threshold), delta=known.delta) == pytest.approx(
        known.epsilon, abs=1e-9
    )
    everywhere = epsilon_from_rates(*known.rates(np.linspace(-1.1, 1.1, 101) * claim.epsilon), delta=known.delta)
    assert everywhere.max() <= known.epsilon + 1e-9


@PAIRS
def test_releases_have_the_known_rates(known):
    n = 20_000
    scores = known.play(jax.random.key(1), 1, n)
    for threshold in (known.threshold, -0.3, 0.1):
        exact = np.array(known.rates(np.asarray(threshold)))
        seen = np.ravel(coverage_estimators.error_counts(scores, threshold)) / n
        if known.epsilon == 0:
            exact, seen = exact.sum(), seen.sum()
        error = np.sqrt(np.maximum(exact * (1 - exact), 1e-9) / n) + (known.epsilon == 0) * 2 / np.sqrt(n)
        assert np.all(np.abs(seen - exact) < 4.5 * error)


def test_the_study_judges_the_shipped_audit():
    known, key, trials = coverage.KNOWN[4], jax.random.key(3), 800
    attack = dpaudit.distinguish.likelihood_ratio
    result = dpaudit.audit(known.mechanism, known.x0, known.x1, key=key, trials=trials, distinguisher=attack)
    scores = known.play(jax.random.split(key)[1], 1, trials // 2)
    lower, threshold, above = coverage_estimators.split(scores, known, 0.95)
    assert threshold is not None
    assert above is not None
    assert (lower[0], threshold[0], above[0]) == (result.epsilon_lower, result.threshold, result.side == "above")


def test_its_rate_is_the_exact_one():
    known, half, audits = coverage.KNOWN[2], 50, 3000
    errors = np.arange(half + 1)
    lower, _ = epsilon_bounds(errors[:, None], errors, half, half, delta=0.0, confidence=0.95)
    fpr, fnr = (binom.pmf(errors, half, rate) for rate in known.rates(np.asarray(known.threshold)))
    exact = float(fpr @ (lower > known.epsilon) @ fnr)
    seen = coverage_estimators.fixed(known.play(jax.random.key(4), audits, half), known, 0.95).lower > known.epsilon
    assert np.mean(seen) == pytest.approx(exact, abs=4 * np.sqrt(0.05 / audits))


def test_looking_all_the_time_needs_the_betting_bound():
    known, audits = coverage.KNOWN[5], 500
    scores = known.play(jax.random.key(5), audits, 300)
    too_many = binom.isf(1e-4, audits, 0.2)
    wrong = {
        estimator: np.sum(estimator(scores, known, 0.8).lower > known.epsilon)
        for estimator in (coverage_estimators.at_any_time, coverage_estimators.peeking)
    }
    assert wrong[coverage_estimators.at_any_time] <= too_many < wrong[coverage_estimators.peeking]


def test_holm_over_promised_cells_alone(tmp_path):
    table = coverage.Table(Rows("", "coverage", str(tmp_path / "out"), 0))
    parts = [coverage.PROMISED] * 4 + [coverage.CONTROL]
    for part, p in zip(parts, (0.01, 0.04, 0.03, 0.005, 0.001), strict=True):
        table.rows.rows.append({"setting": {"part": part}, "p": p})
    table.finish()
    assert [cell["holm_p"] for cell in table.cells] == pytest.approx([0.03, 0.06, 0.06, 0.02, 0.005])


def test_a_cell_counts_bounds_above_the_rule_and_above_the_mechanism(tmp_path):
    table = coverage.Table(Rows("", "coverage", str(tmp_path / "out"), 0))
    known = coverage.KNOWN[3]
    middle = float(epsilon_from_rates(*known.rates(np.zeros(()))))  # what the rule in the middle attains: below 1
    bounds = coverage_estimators.Bounds(np.array([middle - 0.01, middle + 0.01, 1.01, 0.0]), np.zeros(4))
    table.add(coverage.PROMISED, "some", known, 100, 0.99, lambda: bounds)
    rates = {row["quantity"]: row["ours"] for row in table.rows.rows}
    assert rates["false_violation_rate"] == 0.5
    assert rates["mechanism_false_violation_rate"] == 0.25


def test_a_bound_that_is_no_number_is_refused(tmp_path):
    """It exceeds nothing: an estimator that returns NaN would never be wrong."""
    table, known = coverage.Table(Rows("", "coverage", str(tmp_path), 0)), coverage.KNOWN[1]
    lower = np.array([0.5, np.nan, 0.1, np.nan])
    with pytest.raises(dpaudit.InputError, match="bounds: expected a number from every audit, got 2 NaN of broken"):
        table.add(coverage.PROMISED, "broken", known, 100, 0.95, lambda: coverage_estimators.Bounds(lower))
    assert not table.rows.rows
    table.add(coverage.PROMISED, "sound", known, 100, 0.95, lambda: coverage_estimators.Bounds(lower[::2]))
    assert table.cells[0]["ours"] == 0
