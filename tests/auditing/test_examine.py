"""An examination: one verdict from the program, the sensitivity, the worst pair and every attack."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

import dpaudit
from dpaudit import Claim, _validate, domain
from dpaudit.auditing import examine
from dpaudit.auditing.examine import Examination, _judged

KEY = jax.random.key(3)
RECORDS = domain.records(domain.box((), 0.0, 1.0), 3)
CLAIM = Claim(1.0)


def noisy_sum(key, x):
    return jnp.sum(x) + jax.random.laplace(key)


def half_noise(key, x):
    return jnp.sum(x) + jax.random.laplace(key) / 2


def one_key_twice(key, x):
    """Two answers with the same noise: their difference is exact, and no attack at (8, 0) sees it by chance."""
    return jnp.stack([x[0], x[1]]) + 4 * jax.random.laplace(key) + 4 * jax.random.laplace(key, (2,))


@pytest.mark.integration
def test_a_sound_mechanism_is_consistent_and_everything_that_was_tried_is_told():
    seen = []
    found = dpaudit.examine(
        noisy_sum, RECORDS, CLAIM, key=KEY, seconds=3, sensitivity=1.0, progress=lambda name, _: seen.append(name)
    )
    assert found.verdict == "consistent"
    assert found.findings == ()
    assert [step.name for step in found.steps] == seen
    assert seen[:3] == [
        "check whether it is a pure function of its key",
        "read the program",
        "compare releases of 256 pairs under one key",
    ]
    assert seen[3].startswith("attack the widest pair in 10,000 trials")
    assert 0.7 < found.result.epsilon_lower < 1.0
    assert [one.confidence for one in found.results] == pytest.approx([1 - 0.25 * 0.05, 1 - 0.75 * 0.05])


def test_a_broken_promise_ends_it():
    found = dpaudit.examine(half_noise, RECORDS, CLAIM, key=KEY, seconds=60)
    assert found.verdict == "violation"
    assert found.sentence == f"The promise of 1 is broken: the loss is at least {found.result.epsilon_lower:.3g}."
    assert len(found.results) == 1  # neither searched nor played on
    assert found.result.epsilon_lower > 1.5


def test_trials_are_timed_on_the_first_array_that_holds_a_number():
    assert examine._first_number({"a": jnp.zeros((0, 2)), "b": jnp.array([[3, 4]])}) == 3


@pytest.mark.integration
def test_a_release_may_hold_an_empty_array():
    def beside_nothing(key, x):
        return {"a": jnp.zeros(0), "b": noisy_sum(key, x)}

    found = dpaudit.examine(beside_nothing, (jnp.zeros(3), jnp.eye(3)[0]), CLAIM, key=KEY, seconds=1)
    assert found.verdict == "consistent"


@pytest.mark.integration
def test_a_key_that_is_used_twice_is_a_fault_whatever_the_trials_show():
    pair = jnp.zeros(2), jnp.array([0.0, 1.0])
    found = dpaudit.examine(one_key_twice, pair, Claim(8.0), key=KEY, seconds=2)
    assert (found.verdict, {one.kind for one in found.findings}) == ("fault", {"key_reuse"})
    assert "key_reuse" in found.sentence


@pytest.mark.integration
def test_a_sensitivity_beyond_what_is_declared_is_a_fault():
    wide = domain.records(domain.box((), 0.0, 3.0), 3)
    found = dpaudit.examine(noisy_sum, wide, Claim(4.0), key=KEY, seconds=2, sensitivity=1.0)
    assert found.verdict == "fault"
    assert [one.kind for one in found.findings] == ["sensitivity"]
    sound = dpaudit.examine(noisy_sum, wide, Claim(4.0), key=KEY, seconds=2, sensitivity=3.0)
    assert sound.findings == ()


def test_too_few_trials_are_told_from_a_promise_that_is_kept():
    found = dpaudit.examine(noisy_sum, (jnp.zeros(3), jnp.eye(3)[0]), Claim(20.0), key=KEY, seconds=1)
    assert found.verdict == "underpowered"


def test_what_is_shown_of_it_agrees_with_the_decisive_audit():
    found = dpaudit.examine(noisy_sum, (jnp.zeros(3), jnp.eye(3)[0]), CLAIM, key=KEY, seconds=2)
    curve, result = found.curve(), found.result
    assert curve["fpr_low"][1] <= result.fpr <= curve["fpr_high"][1]
    assert curve["fnr_low"][1] <= result.fnr <= curve["fnr_high"][1]
    assert curve["claimed_fnr"] == pytest.approx(CLAIM.fnr(jnp.asarray(curve["claimed_fpr"])), abs=1e-6)
    ten, hundred = found.with_more()
    assert result.detectable is not None
    assert 1.0 < hundred["detectable"] < ten["detectable"] < result.detectable + 1e-3


@pytest.mark.slow
def test_the_worst_pair_is_searched_and_certified():
    """A box changes all three records at once: the loss of a pair is up to 3, of the widest one drawn less."""
    found = dpaudit.examine(noisy_sum, domain.box(3, 0.0, 1.0), Claim(2.7), key=KEY, seconds=90)
    assert any(step.name == "search for the worst pair" for step in found.steps)
    assert found.verdict == "violation"
    assert jnp.abs(found.pair[1] - found.pair[0]).sum() > 2.8


@pytest.mark.parametrize(
    "change, message",
    [
        ({"seconds": 0.5}, "seconds: expected at least 1, as no attack is played in less, got 0.5"),
        ({"claim": None}, "claim: expected a Claim, of the mechanism or of its own"),
        ({"domain": 3}, "domain: expected a Domain"),
        ({"norm_order": 3}, "norm_order: expected 1, 2 or infinity, got 3"),
        ({"sensitivity": 0.0}, "sensitivity"),
        ({"confidence": 1.0}, "confidence"),
        ({"mechanism": 5}, "mechanism: expected a Mechanism or a function"),
    ],
)
def test_bad_input_is_refused(change, message):
    given = {"mechanism": noisy_sum, "domain": RECORDS, "claim": CLAIM, "key": KEY} | change
    with pytest.raises(_validate.InputError, match=message):
        dpaudit.examine(**given)


def coarse(scale):
    """Noise rounded to quarters: against a curve, each threshold that is tried takes as long as all of the trials."""
    scale = jnp.full(1, scale)  # as data, so that both are one compiled program
    return lambda key, x: jnp.round(4 * (x + scale * jax.random.normal(key))) / 4


@pytest.mark.integration
def test_a_promise_that_is_a_curve_is_named_as_one():
    for scale in (0.5, 1.0):
        found = dpaudit.examine(
            coarse(scale),
            (jnp.zeros(1), jnp.ones(1)),
            Claim.gaussian(1.0),
            key=jax.random.key(0),
            seconds=1,
        )
        assert (found.verdict == "violation") is (scale < 1)
        assert repr(Claim.gaussian(1.0)) in found.sentence
        assert " at delta " in found.sentence
        assert "inf" not in found.sentence


def test_against_a_curve_the_audit_that_proved_a_violation_decides():
    """Not the one with the larger lower bound, which keeps the curve."""
    claim, pairs = Claim.gaussian(1.0), ((0, 1), (2, 3))
    kept = dpaudit.from_counts(12, 1800, 2000, 2000, claim=claim, confidence=0.9875)
    broken = dpaudit.from_counts(300, 900, 2000, 2000, claim=claim, confidence=0.9625)
    assert (kept.verdict, broken.verdict) == ("consistent", "violation")
    assert kept.epsilon_lower > broken.epsilon_lower
    verdict, sentence = _judged([kept, broken], [], claim)
    assert verdict == "violation"
    assert sentence == f"The promise of {claim!r} is broken: the loss is at least 1.15 at delta 0."
    found = Examination(verdict, sentence, (), (), (kept, broken), pairs, 0.95)
    assert (found.result, found.pair) == (broken, pairs[1])
    assert Examination("consistent", "", (), (), (kept, kept), pairs, 0.95).result == kept


def test_what_is_told_of_an_examination_is_told_of_the_audit_on_which_its_verdict_rests():
    """Of audits that show nothing, it was the first and smallest one, whose reason stood beside another verdict."""
    claim, pairs = Claim(0.1), ((0, 1), (2, 3))
    small = dpaudit.from_counts(250, 250, 500, 500, claim=claim)
    large = dpaudit.from_counts(2_500, 2_500, 5_000, 5_000, claim=claim)
    assert (small.verdict, large.verdict) == ("underpowered", "consistent")
    assert small.epsilon_lower == large.epsilon_lower == 0
    verdict, sentence = _judged([small, large], [], claim)
    assert (verdict, sentence[:43]) == ("consistent", "No attack that was tried breaks the promise")
    found = Examination(verdict, sentence, (), (), (small, large), pairs, 0.95)
    assert (found.result, found.pair) == (large, pairs[1])
    lucky = dataclasses.replace(small, epsilon_lower=0.02)
    assert Examination("consistent", "", (), (), (lucky, large), pairs, 0.95).result == large
    fewer = dataclasses.replace(large, trials=9)
    assert Examination("consistent", "", (), (), (large, fewer), pairs, 0.95).result == large


def test_an_examination_that_could_not_tell_says_why():
    """It said "too few trials" of attacks that saw nothing."""
    seen = dataclasses.replace(dpaudit.from_counts(250, 250, 500, 500, claim=CLAIM), reason="this attack saw nothing")
    assert _judged([seen], [], CLAIM) == (
        "underpowered",
        "It is not known whether 1 is kept: this attack saw nothing. The loss is at least 0.",
    )
