"""Audits of promises that are curves, and what an audit by a family of attacks says it would have seen."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpaudit
from dpaudit import AuditResult, Claim, _validate
from dpaudit.auditing.attacks import distinguish
from dpaudit.auditing.bounds import sequential

KEY = jax.random.key(5)


def noisy(std):
    return lambda key, x: x + std * jax.random.normal(key, jnp.shape(x))


def flipped(key, x):
    return -noisy(1.0)(key, x)


@pytest.mark.parametrize("mechanism", [noisy(1.0), flipped])
def test_noise_that_is_half_of_what_was_promised_breaks_the_curve(mechanism):
    """At (1, 1e-5) alone, 10,000 trials of it show nothing; the curve that the accountant has shows it."""
    result = dpaudit.audit(mechanism, 0.0, 2.0, key=KEY, claim=Claim.gaussian(1.0), trials=10_000)
    assert result.verdict == "violation"
    assert result.p_value is not None
    assert result.p_value < 1e-6
    assert result.detectable is None


def test_a_promise_that_is_kept_is_consistent_with_its_curve():
    result = dpaudit.audit(noisy(1.0), 0.0, 1.0, key=KEY, claim=Claim.gaussian(1.0), trials=10_000)
    assert result.verdict == "consistent"
    assert result.p_value is not None
    assert result.p_value > 0.05


def test_sound_mechanisms_break_no_curve_more_often_than_is_said():
    keys = jax.random.split(KEY, 40)
    found = [dpaudit.audit(noisy(1.0), 0.0, 1.0, key=key, claim=Claim.gaussian(1.0), trials=1_000) for key in keys]
    assert sum(one.verdict == "violation" for one in found) <= 8  # 2 are expected; 9 or more, once in 5,000 times
    assert len({one.p_value for one in found}) > 30


def test_a_named_attack_with_a_fixed_threshold_tests_both_of_its_events():
    against = distinguish.Distinguisher(lambda *_: lambda release: -release, -1.0, "the wrong way round")
    result = dpaudit.audit(noisy(1.0), 0.0, 2.0, key=KEY, claim=Claim.gaussian(1.0), distinguisher=against)
    assert (result.verdict, result.side) == ("violation", "either")
    assert result.accuracy < 0.5


def test_a_curve_goes_through_json_and_few_trials_are_underpowered():
    result = dpaudit.audit(noisy(1.0), 0.0, 2.0, key=KEY, claim=Claim.gaussian(30.0), trials=1_000)
    assert result.verdict == "underpowered"
    assert "without an error" in str(result.reason)
    assert AuditResult.from_json(result.to_json()) == result


def test_a_curve_is_not_tested_at_every_pair():
    with pytest.raises(_validate.InputError, match="until: expected None where the claim is a curve"):
        dpaudit.audit(noisy(1.0), 0.0, 2.0, key=KEY, claim=Claim.gaussian(1.0), until=sequential.violation())


def test_a_checkpoint_of_another_curve_is_refused(tmp_path):
    kept = tmp_path / "kept.npz"
    settings = {"key": KEY, "trials": 2_000, "checkpoint": kept}
    dpaudit.audit(noisy(1.0), 0.0, 2.0, claim=Claim.gaussian(1.0), **settings)
    with pytest.raises(_validate.InputError, match="checkpoint"):
        dpaudit.audit(noisy(1.0), 0.0, 2.0, claim=Claim.gaussian(2.0), **settings)


def test_detectable_speaks_of_this_mechanism():
    """Half of the Gaussian noise that (1, 1e-5) asks for has a loss of 2.15, which 10,000 trials cannot see."""
    std = 0.5 * 3.7304
    result = dpaudit.audit(noisy(std), 0.0, 1.0, key=KEY, claim=Claim(1.0, 1e-5), trials=10_000)
    assert result.verdict == "underpowered"
    assert result.detectable is not None
    assert 2.5 < result.detectable < 4.0
    assert "twice the claim" in str(result.reason)


def test_detectable_of_laplace_noise_is_close_to_its_claim():
    def laplace(key, x):
        return x + jax.random.laplace(key)

    result = dpaudit.audit(laplace, 0.0, 1.0, key=KEY, claim=Claim(1.0), trials=20_000)
    assert result.verdict == "consistent"
    assert result.detectable is not None
    assert 1.05 < result.detectable < 1.25
    assert np.isfinite(result.epsilon_lower)
