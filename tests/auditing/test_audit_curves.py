"""Audits of promises that are curves, and what an audit by a family of attacks says it would have seen."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpaudit
from dpaudit import AuditResult, Claim, _validate
from dpaudit.auditing.attacks import distinguish
from dpaudit.auditing.bounds import sequential
from tests.interrupting import Killed, killed_at

KEY = jax.random.key(5)


def noisy(std):
    return lambda key, x: x + std * jax.random.normal(key, jnp.shape(x))


def coarse(std):
    """The noise rounded to quarters of its size, which its curve allows: against a curve, each threshold that is tried
    takes as long as all of the trials."""
    std = jnp.full(1, std, jnp.float32)  # as data, so that all are one compiled program
    return lambda key, x: jnp.round(4 * (x / std + jax.random.normal(key, (1,)))) * std / 4


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


@pytest.mark.parametrize("inputs", [(0.0, 1.0), (1.0, 0.0)])
def test_a_bit_that_is_seldom_flipped_breaks_the_curve_in_either_direction(inputs):
    """The rule of the second begins right below the score of many releases, at a number that float32 does not have."""

    def reply(key, x):
        return jnp.where(jax.random.bernoulli(key, 0.1), 1 - x, x)

    itself = distinguish.Distinguisher(lambda *_: lambda release: release, None, "the bit")
    result = dpaudit.audit(reply, *inputs, key=KEY, claim=Claim.gaussian(0.5), trials=1_000, distinguisher=itself)
    assert result.verdict == "violation"


def test_a_promise_that_is_kept_is_consistent_with_its_curve():
    result = dpaudit.audit(noisy(1.0), 0.0, 1.0, key=KEY, claim=Claim.gaussian(1.0), trials=10_000)
    assert result.verdict == "consistent"
    assert result.p_value is not None
    assert result.p_value > 0.05


@pytest.mark.integration
def test_sound_mechanisms_break_no_curve_more_often_than_is_said():
    keys = jax.random.split(KEY, 24)
    found = [dpaudit.audit(coarse(1.0), 0.0, 1.0, key=key, claim=Claim.gaussian(1.0), trials=1_000) for key in keys]
    assert sum(one.verdict == "violation" for one in found) <= 5  # 1.2 are expected; 6 or more, once in 800 times
    assert len({one.p_value for one in found}) > 18


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


@pytest.mark.parametrize("until", [None, sequential.violation()])
def test_trials_that_could_not_show_twice_a_curve_are_underpowered(until):
    itself = distinguish.Distinguisher(lambda *_: lambda release: release, None, "the release")
    settings: dict[str, Any] = {"key": KEY, "claim": Claim.gaussian(0.1), "distinguisher": itself, "until": until}
    few = dpaudit.audit(noisy(10.0), 0.0, 1.0, trials=2_000, **settings)
    assert few.verdict == "underpowered"
    assert "what two records lose together" in str(few.reason)
    leaking = dpaudit.audit(noisy(1.0), 0.0, 1.0, trials=2_000, **settings)
    assert (leaking.verdict, leaking.reason) == ("violation", None)
    enough = dpaudit.audit(noisy(10.0), 0.0, 1.0, trials=20_000, **settings)
    assert (enough.verdict, enough.reason) == ("consistent", None)


ATTACKS = {
    "family": None,
    "projection": distinguish.projection,
    "fixed, the wrong way round": distinguish.Distinguisher(
        lambda *_: lambda release: -release.sum(), -0.134, "backwards"
    ),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_half_of_the_noise_is_found_in_few_trials_whenever_one_looks(name, tmp_path):
    """At most 500 trials a world; the same whatever the batch, and after an interruption."""
    settings: dict[str, Any] = {
        "key": KEY,
        "claim": Claim.gaussian(0.268),
        "trials": 20_000,
        "until": sequential.violation(),
        "distinguisher": ATTACKS[name],
    }
    result = dpaudit.audit(coarse(0.2), 0.0, 0.268, **settings)
    assert result.verdict == "violation"
    assert result.trials < 1_000
    assert result.p_value is not None
    assert 0 < result.p_value <= 0.05
    assert AuditResult.from_json(result.to_json()) == result
    assert dpaudit.audit(coarse(0.2), 0.0, 0.268, **settings, batch=700) == result
    kept = {"checkpoint": tmp_path / "kept.npz"}
    more: dict[str, Any] = {"confidence": 1 - 1e-12}  # so that some calls to the devices are made
    with pytest.raises(Killed):
        dpaudit.audit(coarse(0.2), 0.0, 0.268, **settings, **kept, **more, progress=killed_at(600))
    again = dpaudit.audit(coarse(0.2), 0.0, 0.268, **settings, **kept, **more)
    assert again == dpaudit.audit(coarse(0.2), 0.0, 0.268, **settings, **more)


@pytest.mark.parametrize(
    "mu, trials, verdict",
    [(1.0, 20, "underpowered"), (5.0, 1_000, "underpowered"), (5.0, 2_500, "violation"), (5.0, 20_000, "violation")],
)
def test_a_fixed_threshold_without_an_error_is_never_consistent_with_a_curve(mu, trials, verdict):
    """The first 64 pairs cannot tell its rates from the corner of the second curve, at 0.0062: more of them choose the
    bet again, and trials that are too few for any bet are said to be."""
    apart = distinguish.Distinguisher(lambda *_: lambda release: release, 50.0, "half of the way")
    settings: dict[str, Any] = {"claim": Claim.gaussian(mu), "distinguisher": apart, "until": sequential.violation()}
    result = dpaudit.audit(noisy(1.0), 0.0, 100.0, key=KEY, trials=trials, **settings)
    assert (result.fpr, result.fnr, result.verdict) == (0, 0, verdict)
    assert (result.reason is None) == (verdict == "violation")
    assert verdict == "violation" or "guesses without an error" in str(result.reason)


@pytest.mark.parametrize("attack", ["projection", "fixed, the wrong way round"])
def test_bets_that_have_nothing_to_bet_on_could_still_have_shown_a_violation(attack):
    """Noise twice as large as the curve allows: the rates that are seen keep the promise, and no bet is placed."""
    settings: dict[str, Any] = {"claim": Claim.gaussian(0.268), "distinguisher": ATTACKS[attack]}
    result = dpaudit.audit(coarse(2.0), 0.0, 0.268, key=KEY, trials=4_000, until=sequential.violation(), **settings)
    assert (result.verdict, result.reason) == ("consistent", None)


@pytest.mark.integration
def test_sound_noise_is_accused_by_no_more_bets_than_is_said():
    keys = jax.random.split(KEY, 24)
    settings: dict[str, Any] = {"claim": Claim.gaussian(1.0), "trials": 4_000, "confidence": 0.9}
    settings["until"] = sequential.violation()
    named: dict[str, Any] = {"distinguisher": distinguish.projection}
    found = [dpaudit.audit(coarse(1.0), 0.0, 1.0, key=key, **settings, **named) for key in keys]
    assert sum(one.verdict == "violation" for one in found) <= 7  # 2.4 at most are expected
    short = [dpaudit.audit(coarse(0.7), 0.0, 1.0, key=key, **settings, **named) for key in keys[:5]]
    assert all(one.verdict == "violation" for one in short)


def test_a_claim_with_a_small_delta_is_refuted_before_rates_as_small_are_known():
    """The choice is made again and again: what shows at once does not wait for 3,662 pairs."""
    settings: dict[str, Any] = {"key": KEY, "trials": 20_000, "until": sequential.violation(), "confidence": 0.999}
    one = dpaudit.audit(
        noisy(0.75), 0.0, 1.0, claim=Claim(1.0, 1e-5), distinguisher=distinguish.projection, **settings
    )
    assert one.verdict == "violation"
    assert one.trials < 3_000
    assert one.epsilon_lower > 1.0
    sound = dpaudit.audit(
        noisy(3.75), 0.0, 1.0, claim=Claim(1.0, 1e-5), distinguisher=distinguish.projection, **settings
    )
    assert sound.verdict != "violation"
    assert sound.epsilon_lower < 1.0


def test_a_checkpoint_of_another_curve_is_refused(tmp_path):
    kept = tmp_path / "kept.npz"
    settings: dict[str, Any] = {"key": KEY, "trials": 2_000, "checkpoint": kept}
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
