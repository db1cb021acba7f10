"""What an audit says it would have detected depends on the noise: not on how it is rounded, nor on how many scores
were looked at. Rare events that refute a claim are chosen, and plans agree with the audits that are made."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpaudit
from dpaudit import Claim, distinguish, estimators
from dpaudit.auditing.attacks import choose
from dpaudit.auditing.attacks.choose import ASIDE_MOST, ON_HOST, pairs_aside
from dpaudit.auditing.bounds import alternative, gdp, sequential
from dpaudit.auditing.bounds.estimate import epsilon_bounds, errors
from dpaudit.auditing.bounds.normality import looks_normal, normal_apart
from dpaudit.auditing.examine import examine
from dpaudit.auditing.foresight import worse_than
from dpaudit.auditing.plan_mechanism import plan_mechanism
from dpaudit.auditing.result import Band

KEY = jax.random.key(13)
SMALL = Claim(1.0, 1e-5)
SIGMA = float(1 / gdp.mu_from_epsilon(2.0, 1e-5))  # of noise that loses twice the claim


def bits(count, epsilon):
    """The sum of randomised bits, all of which one person moves."""

    def summed(key, x):
        flip = jax.random.uniform(key, (count,)) < 1 / (1 + jnp.exp(epsilon / count))
        return jnp.where(flip, 1 - x, x).sum()

    return summed, jnp.zeros(count), jnp.ones(count)


def laplace(epsilon):
    return lambda key, x: x + jax.random.laplace(key) / epsilon


@pytest.mark.parametrize("rounded", [False, True])
def test_rounding_does_not_make_rare_events_common(rounded):
    def gaussian(key, x):
        z = x + SIGMA * jax.random.normal(key)
        return jnp.round(z) if rounded else z

    found = dpaudit.audit(gaussian, 0.0, 1.0, key=KEY, claim=SMALL)
    assert found.verdict == "underpowered"
    assert found.detectable is not None
    assert found.detectable > 2.5


@pytest.mark.integration
@pytest.mark.parametrize("estimator", [None, estimators.equal_level])
def test_more_trials_and_bands_do_not_make_a_part_the_whole(estimator):
    found = [
        dpaudit.audit(*bits(300, 4.0), key=KEY, trials=trials, claim=Claim(4.0), estimator=estimator)
        for trials in (2_000, 20_000)
    ]
    assert [one.verdict for one in found] == ["underpowered"] * 2
    assert found[0].detectable is not None
    assert found[1].detectable is not None
    assert found[0].detectable >= found[1].detectable > 8
    twin = dpaudit.audit(laplace(4.0), 0.0, 1.0, key=KEY, trials=20_000, claim=Claim(4.0), estimator=estimator)
    assert twin.verdict == "consistent"


@pytest.mark.integration
def test_a_band_of_a_named_attack_is_judged_by_its_noise_too():
    how: dict[str, Any] = {"key": KEY, "trials": 20_000, "claim": Claim(4.0), "estimator": estimators.equal_level}
    found = dpaudit.audit(*bits(300, 4.0), distinguisher=distinguish.projection, **how)
    assert found.verdict == "underpowered"
    assert alternative.SPREAD in str(found.reason)


@pytest.mark.parametrize("epsilon, verdict", [(1.0, "consistent"), (2.0, "violation")])
def test_laplace_noise_is_not_taken_for_normal_where_scores_are_few(epsilon, verdict):
    found = dpaudit.audit(laplace(epsilon), 0.0, 1.0, key=KEY, trials=1_000, claim=SMALL)
    assert found.verdict == verdict


def test_which_scores_pass_for_normal():
    draws = np.random.default_rng(4)
    for n in (300, 3_000, 100_000):
        z = draws.normal(size=(2, n))
        taken = draws.random(n) < 0.2
        assert looks_normal(z)
        assert looks_normal(np.rint(2.4 * z))
        assert looks_normal(draws.binomial(100, [[0.5], [0.52]], (2, n)))
        assert looks_normal(np.stack([z[0], z[1] + 4 * taken]))  # one world without the sampled record
        assert not looks_normal(draws.laplace(size=(2, n)))
        assert not looks_normal(draws.integers(0, 5, (2, n)))
        assert not looks_normal(draws.random((2, n)) < 0.5)
        assert not looks_normal(draws.geometric(0.3, (2, n)) - draws.geometric(0.3, (2, n)))
    assert not looks_normal(draws.random((2, 50)) < 0.5)  # which chance alone would let pass
    few = draws.laplace(size=(2, 60))
    assert looks_normal(few, peaked=True)
    assert not looks_normal(few)
    assert normal_apart(np.array([[0.0], [0.7]]) + z) == pytest.approx(0.7, abs=0.02)
    assert normal_apart(z * [[1.0], [1.3]]) is None
    assert normal_apart(draws.laplace(size=(2, n))) is None


def test_a_rare_event_that_refutes_the_claim_is_chosen():
    """Laplace noise cut off at four deviations: one value in forty has no counterpart in the other world."""
    draws, claim = np.random.default_rng(6), Claim(1.0)
    settings: dict[str, Any] = {"delta": 0.0, "confidence": 0.95}
    noise = draws.laplace(size=(2, 1_250))
    scores = np.array([[0.0], [1.0]]) + np.clip(noise, -4, 4)
    seen = choose.look(scores, **settings, claim=claim)
    fp, fn = errors(scores, *seen.rule)
    assert min(fp, fn, 1_250 - fp, 1_250 - fn) == 0
    assert seen.evidence > choose.SURE
    plain = choose.look(scores, **settings).rule  # nothing is promised: the largest bound decides
    assert min(errors(scores, *plain)) > 100
    whole = np.array([[0.0], [1.0]]) + noise  # the twin keeps the promise
    assert choose.look(whole, **settings, claim=claim) == choose.look(whole, **settings)


def test_chance_does_not_choose_the_rule_of_a_promise_that_is_kept():
    draws, claim = np.random.default_rng(5), Claim(1.0)
    settings: dict[str, Any] = {"delta": 0.0, "confidence": 0.95}
    changed = 0
    for _ in range(200):
        scores = np.array([[0.0], [1.0]]) + draws.laplace(size=(2, 1_250))
        changed += choose.look(scores, **settings, claim=claim) != choose.look(scores, **settings)
    assert changed <= 2
    half = np.array([[0.0], [2.0]]) + draws.laplace(size=(2, 1_250))
    seen = choose.look(half, **settings, claim=claim)
    assert seen.bound > 1
    assert seen.evidence == np.inf  # it goes before whatever shows less


def test_noise_that_is_cut_off_is_found():
    found = dpaudit.audit(
        lambda key, x: x + jnp.clip(jax.random.laplace(key), -4, 4), 0.0, 1.0, key=KEY, claim=Claim(1.0)
    )
    assert found.verdict == "violation"
    assert found.epsilon_lower > 2


def test_of_attacks_one_that_shows_a_violation_goes_before_rare_evidence():
    bound = choose.Seen(choose.Rule(0.0), 1.2, 0.8, np.inf)
    weaker = bound._replace(bound=1.05)
    rare = choose.Seen(choose.Rule(1.0), 0.9, 0.6, 12.0)
    nothing = choose.Seen(choose.Rule(2.0), 0.95, 0.7)
    assert choose.best([nothing, rare, weaker, bound]) == [3, 2, 1, 0]
    assert choose.best([nothing, rare]) == [1, 0]


@pytest.mark.integration
def test_power_against_normal_scores_is_the_share_of_audits_that_find_them():
    """Rare events: the rule is chosen on as many pairs as in the audit."""
    draws, audits, mu, pairs = np.random.default_rng(6), 60, 1 / SIGMA, 40_000
    claim = Claim(1.0, 1e-3)
    settings: dict[str, Any] = {"delta": claim.delta, "confidence": 0.95}
    found = 0
    for _ in range(audits):
        scores = np.array([[0.0], [2 * mu]]) + draws.normal(size=(2, 4 * pairs // 3))
        rule, rest = choose.look(scores[:, pairs:], **settings).rule, scores[:, :pairs]
        found += epsilon_bounds(*errors(rest, *rule), pairs, pairs, **settings)[0] > claim.epsilon
    fixed = alternative.normal(pairs // 3, mu=2 * mu, **settings)
    power = alternative.power(fixed, 0.0, claim.epsilon, pairs, pairs, **settings)
    assert found / audits == pytest.approx(power, abs=4 * np.sqrt(0.25 / audits))
    less = alternative.normal(pairs // 3, mu=0.5 * mu, **settings)
    assert alternative.power(less, 0.0, claim.epsilon, pairs, pairs, **settings) < 0.1


def test_an_alternative_with_rare_events_is_judged_by_the_choice_that_the_audit_makes():
    def noisy(sigma):
        return lambda key, x: x + sigma * jax.random.normal(key)

    kept = float(1 / gdp.mu_from_epsilon(1.0, 1e-5))
    how: dict[str, Any] = {"key": jax.random.key(2), "claim": SMALL, "trials": 200_000}  # of few pairs, a poor choice
    found = dpaudit.audit(noisy(kept), 0.0, 1.0, alternative=noisy(SIGMA), **how)
    assert found.power is not None
    assert found.power > 0.95
    assert found.verdict == "consistent"
    assert dpaudit.audit(noisy(SIGMA), 0.0, 1.0, **how).verdict == "violation"


def test_what_attains_a_part_of_a_claim_with_a_delta_misses_rare_events_whatever_its_law():
    found = dpaudit.audit(lambda key, x: x + 4.85 * jax.random.normal(key), 0.0, 1.0, key=KEY, claim=SMALL)
    unknown = dataclasses.replace(found, normal=False)
    assert worse_than(unknown, 20_000).name == alternative.GAUSSIAN
    assert unknown.band is not None
    few = [tuple(np.round(rates, 1).tolist()) for rates in unknown.band]
    assert worse_than(dataclasses.replace(unknown, band=Band(*few)), 20_000).name != alternative.GAUSSIAN
    pure = dataclasses.replace(unknown, delta=0.0, claim=Claim(1.0))
    assert worse_than(pure, 20_000).name not in (alternative.GAUSSIAN, alternative.SPREAD)
    assert worse_than(dataclasses.replace(pure, normal=True), 20_000).name == alternative.SPREAD


def test_twice_the_claim_to_three_digits_is_twice_the_claim():
    found = dpaudit.audit(
        lambda key, x: x + 10 * jax.random.laplace(key), 0.0, 1.0, key=jax.random.key(0), claim=Claim(0.1)
    )
    assert found.detectable == pytest.approx(0.2001, abs=1e-4)
    assert found.verdict == "consistent"


@pytest.mark.parametrize("delta", [0.0, 1e-3])
def test_few_peaked_scores_of_a_band_are_a_sum_only_without_a_delta(delta):
    draws = np.random.default_rng(4).laplace(size=(2, 60))
    found = dpaudit.from_scores(*draws, claim=Claim(1.0, delta), estimator=estimators.equal_level)
    assert found.normal == (delta == 0)


def test_the_trials_that_are_advised_do_not_depend_on_those_that_were_played():
    advised = []
    for trials in (10_000, 30_000):
        found = dpaudit.audit(
            lambda key, x: x + 4.85 * jax.random.normal(key), 0.0, 1.0, key=KEY, trials=trials, claim=SMALL
        )
        words = str(found.reason).split("about ")[1]
        advised.append(int(words.split()[0].replace(",", "")))
    assert advised[0] == pytest.approx(advised[1], rel=0.15)
    counted = 3 * advised[0] // 8
    settings: dict[str, Any] = {"delta": 1e-5, "confidence": 0.95}
    worse = alternative.gaussian(advised[0] // 8, **settings)
    assert 0.78 < alternative.power(worse, 2.0, 1.0, counted, counted, **settings) < 0.9


def test_a_prediction_for_more_trials_is_that_of_an_audit_with_as_many():
    found = examine(
        lambda key, x: x + 4.85 * jax.random.normal(key), (0.0, 1.0), SMALL, key=KEY, seconds=1.0, confidence=0.9
    )
    more, result = found.with_more()[0], found.result
    settings: dict[str, Any] = {"delta": result.delta, "confidence": result.confidence}
    assert more["trials"] == 10 * result.trials
    aside = pairs_aside(5 * result.trials, SMALL, named=False, stops=False)
    counted, worse = 5 * result.trials - aside, alternative.gaussian(aside, **settings)
    assert more["detectable"] == pytest.approx(alternative.detectable(worse, 1.0, counted, counted, **settings))


def test_worlds_whose_scores_never_vary_but_differ_are_no_blind_band():
    found = dpaudit.from_scores(np.ones(1000), 2 * np.ones(1000), estimator=estimators.dkw, claim=Claim(1.0))
    assert found.verdict == "violation"
    assert found.reason is None
    same = dpaudit.from_scores(np.ones(1000), np.ones(1000), estimator=estimators.dkw, claim=Claim(1.0))
    assert "all scores are equal" in str(same.reason)


def test_rules_that_stop_are_called_first_and_may_say_one_word():
    uncalled: Any = sequential.violation
    one: Any = lambda watch, counts: True  # noqa: E731
    how: dict[str, Any] = {"key": KEY, "trials": 4_000, "claim": Claim(1.0)}
    with pytest.raises(dpaudit.InputError, match=r"^until: expected a rule such as sequential\.violation\(\)"):
        dpaudit.audit(laplace(1.0), 0.0, 1.0, until=uncalled, **how)
    found = dpaudit.audit(laplace(1.0), 0.0, 1.0, until=one, **how)
    assert found.trials < 4_000


def test_trials_set_aside_for_a_family_have_a_limit():
    many = 1 << 30
    assert pairs_aside(many, None, named=False, stops=False) == ASIDE_MOST
    assert pairs_aside(many, None, named=True, stops=False) == many // 4
    assert pairs_aside(many, None, named=True, stops=False, on_host=True) == ON_HOST < ASIDE_MOST
    assert pairs_aside(4_000, None, named=False, stops=False) == 1_000


@pytest.mark.integration
def test_audits_stop_when_the_plan_says():
    planned = plan_mechanism(laplace(1.0), 0.0, 1.0, key=KEY, claim=Claim(1.0))
    stops = [
        dpaudit.audit(
            laplace(2.0), 0.0, 1.0, key=key, claim=Claim(1.0), trials=40_000, until=sequential.violation()
        ).trials
        for key in jax.random.split(KEY, 9)
    ]
    assert float(np.median(stops)) == pytest.approx(planned.sequential_median, rel=0.1)
    assert max(stops) <= 1.2 * planned.sequential_most
