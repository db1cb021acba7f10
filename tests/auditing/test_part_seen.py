"""Attacks that see a part of a loss, audits that something else than a violation stops, and bands read as Gaussian are
not credited with more than they have."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpaudit
from dpaudit import AuditResult, Claim, distinguish, estimators
from dpaudit.auditing.bounds import alternative, gdp, plan, sequential
from dpaudit.auditing.part_seen import most_attained
from dpaudit.auditing.plan_mechanism import plan_mechanism
from dpaudit.report.table import result_lines

KEY = jax.random.key(71)
CLAIM = Claim(1.0)
ZERO, ONE = jnp.zeros(10), jnp.ones(10)


def on_each(scale):
    """Laplace noise on ten numbers, each of which one person moves: the loss is 10 / scale."""
    scale = jnp.full(1, scale, jnp.float32)
    return lambda key, x: x + scale * jax.random.laplace(key, (10,))


def audited(mechanism, *, trials=20_000, key=KEY, **more):
    return dpaudit.audit(mechanism, ZERO, ONE, key=key, trials=trials, claim=CLAIM, **more)


def test_a_loss_that_is_spread_over_coordinates_leaves_an_audit_underpowered():
    found = audited(on_each(10.0))
    assert found.epsilon_upper < 0.5
    assert found.verdict == "underpowered"
    assert found.detectable is not None
    assert 2 < found.detectable < 3.5
    assert alternative.SPREAD in str(found.reason)
    twin = dpaudit.audit(on_each(1.0), ZERO, ONE.at[1:].set(0), key=KEY, trials=20_000, claim=CLAIM)
    assert twin.verdict == "consistent"  # all of the loss is in one coordinate
    assert twin.detectable is not None
    assert twin.detectable < 1.3


@pytest.mark.integration
def test_what_is_called_detectable_of_a_spread_loss_is_detected():
    """Four times in five, and half of it never."""
    detectable = audited(on_each(10.0)).detectable
    assert detectable is not None
    keys = jax.random.split(KEY, 20)
    found = [
        sum(audited(on_each(10 / epsilon), key=key).verdict == "violation" for key in keys)
        for epsilon in (detectable, 0.6 * detectable)
    ]
    assert found[0] >= 20 * 0.8 - 3 * np.sqrt(20 * 0.8 * 0.2)
    assert found[1] <= 2


def test_an_audit_that_would_have_missed_the_given_alternative_is_underpowered():
    found = audited(on_each(10.0), alternative=on_each(5.0))
    assert found.power is not None
    assert found.power < plan.POWER
    assert found.verdict == "underpowered"
    assert str(found.reason).startswith("the given alternative would have been called a violation with probability")
    seen = audited(on_each(10.0), alternative=on_each(2.0))
    assert seen.power is not None
    assert seen.power > plan.POWER
    assert seen.verdict == "consistent"


def test_a_plan_for_a_spread_loss_takes_as_many_trials_as_it_needs():
    planned = plan_mechanism(on_each(10.0), ZERO, ONE, key=jax.random.key(0), claim=CLAIM)
    assert planned.fixed > 50_000
    one = plan_mechanism(on_each(1.0), ZERO, ONE.at[1:].set(0), key=KEY, claim=CLAIM)
    assert one.fixed < 2_000


def test_the_report_names_the_part_of_a_promise_that_an_attack_attains():
    generous = dpaudit.audit(
        lambda key, x: x + jax.random.laplace(key), 0.0, 1.0, key=KEY, trials=8_000, claim=Claim(4.0)
    )
    assert generous.verdict == "consistent"
    told = dict(result_lines(generous))["part seen"]
    assert told.startswith(f"at most {generous.epsilon_upper / 4:.0%} of the promise")
    tight = dpaudit.audit(
        lambda key, x: x + jax.random.laplace(key), 0.0, 1.0, key=KEY, trials=8_000, claim=Claim(1.0)
    )
    assert "part seen" not in dict(result_lines(tight))


def test_of_a_band_the_part_is_that_of_its_best_threshold():
    """Its upper bound over all thresholds is infinite."""
    draws = np.random.default_rng(3).laplace(size=(2, 10_000))
    found = dpaudit.from_scores(draws[0], draws[1] + 1, claim=Claim(4.0), estimator=estimators.equal_level)
    assert found.epsilon_upper == np.inf
    assert found.verdict == "consistent"
    told = dict(result_lines(found))["part seen"]
    assert 1 / 4 <= int(told.split("%")[0].split()[-1]) / 100 < 2 / 4
    assert most_attained(found) > found.epsilon_hat + 0.05  # a bound, and not what was seen


@pytest.mark.parametrize("attack", [None, distinguish.projection._replace(threshold=0.5)])
def test_an_audit_that_something_else_stops_has_the_power_of_the_trials_it_played(attack):
    def laplace(key, x):
        return x + jax.random.laplace(key)

    settings = {"key": KEY, "trials": 1_000_000, "claim": CLAIM, "distinguisher": attack}
    found = dpaudit.audit(laplace, 0.0, 1.0, until=sequential.width(0.6), **settings)
    assert found.trials < 20_000
    assert found.detectable is not None
    perfect = plan.detectable_by_betting(1.0, found.negatives, delta=0.0, confidence=0.95)
    assert found.detectable >= perfect - 1e-3
    whole = plan.detectable_by_betting(1.0, 500_000, delta=0.0, confidence=0.95)
    assert found.detectable > whole + 0.05


@pytest.mark.integration
def test_twice_a_curve_is_found_by_the_bets_that_are_made():
    """Betting needs more trials than the test of a fixed number."""
    settings = {"key": KEY, "claim": Claim.gaussian(0.2), "trials": 2_000}
    by_bets = dpaudit.audit(
        lambda key, x: x + jax.random.normal(key), 0.0, 0.2, until=sequential.violation(), **settings
    )
    assert by_bets.verdict == "underpowered"
    assert "twice the claim" in str(by_bets.reason)
    settings["trials"] = 20_000
    more = dpaudit.audit(lambda key, x: x + jax.random.normal(key), 0.0, 0.2, until=sequential.violation(), **settings)
    assert more.verdict == "consistent"


@pytest.mark.integration
def test_a_band_read_as_gaussian_has_the_confidence_of_the_band():
    draws = np.random.default_rng(7)
    true, above, audits = float(gdp.epsilon_from_mu(0.3, 1e-3)), 0, 150
    for _ in range(audits):
        scores0, scores1 = draws.normal(size=1_000), draws.normal(size=1_000) + 0.3
        found = dpaudit.from_scores(
            scores0, scores1, delta=1e-3, estimator=estimators.equal_level, reading="gaussian", confidence=0.8
        )
        assert found.reading_lower is not None
        assert found.reading_upper is not None
        assert found.reading_lower <= found.reading_upper
        above += found.reading_lower > true
    assert above <= 0.2 * audits + 3 * np.sqrt(audits * 0.2 * 0.8)
    far = draws.normal(size=1_000) + 2.0  # the twin shows something
    shown = dpaudit.from_scores(
        draws.normal(size=1_000), far, delta=1e-3, estimator=estimators.equal_level, reading="gaussian", confidence=0.8
    )
    assert shown.reading_lower is not None
    assert shown.reading_lower > true


@pytest.mark.parametrize("confidence", [np.float32(0.9), np.float64(0.9)])
def test_counts_and_confidence_may_be_numpy_s(confidence):
    counts: Any = [np.int64(count) for count in (10, 20, 100, 100)]
    found = dpaudit.from_counts(*counts, claim=CLAIM, confidence=confidence)
    assert AuditResult.from_json(found.to_json()) == found
    included = np.arange(100) % 2 == 0
    one = dpaudit.one_run(np.arange(100.0), included, confidence=confidence)
    assert AuditResult.from_json(one.to_json()) == one
