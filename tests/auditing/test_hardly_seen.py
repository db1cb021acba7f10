"""An attack that sees hardly anything does not show that a promise is kept: the loss may lie elsewhere."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpaudit
from dpaudit import Claim, estimators
from dpaudit.auditing.bounds import alternative, plan, sequential
from dpaudit.auditing.foresight import worse_than
from dpaudit.auditing.part_seen import UNKNOWN, most_attained, sees_hardly_anything, tells_apart, unseen
from dpaudit.auditing.result import Band
from dpaudit.mechanisms import randomized_response
from dpaudit.report.page_audit import ANOTHER_ATTACK, render
from dpaudit.report.table import result_lines

KEY = jax.random.key(29)
HALF = Claim(0.4)  # less than half of what randomised response loses here


def laplace(scale):
    return lambda key, x: x + scale * jax.random.laplace(key)


def response(categories):
    return randomized_response.mechanism(epsilon=1.0, num_categories=categories).apply


def uniform(key):
    return jax.random.uniform(key)


def audited(mechanism, claim, **more):
    return dpaudit.audit(mechanism, *more.pop("pair", (0.0, 1.0)), key=KEY, claim=claim, **{"trials": 20_000} | more)


@pytest.mark.integration
@pytest.mark.parametrize("categories, verdict", [(1_000, "underpowered"), (10_000, "underpowered"), (30, "violation")])
def test_a_loss_that_one_rare_outcome_carries_is_not_called_kept(categories, verdict):
    for key in jax.random.split(KEY, 3):
        found = dpaudit.audit(response(categories), 0, 1, key=key, trials=40_000, claim=HALF)
        assert found.verdict == verdict
        assert (UNKNOWN in str(found.reason)) == (verdict == "underpowered")


FORMS = {
    "its type": lambda told: told.astype(jnp.float32),
    "one hot": lambda told: jax.nn.one_hot(told, 1_000),
    "the order": lambda told: 999 - told,
    "the scale": lambda told: told * 1e-6,
}


@pytest.mark.integration
@pytest.mark.parametrize("form", FORMS)
def test_it_is_not_called_kept_in_another_form(form):
    """Slight signs of a loss, or wide bounds of a rare event, are no sight of it."""
    mechanism = response(1_000)
    for seed in range(2):
        key = jax.random.key(seed)
        found = dpaudit.audit(lambda key, x: FORMS[form](mechanism(key, x)), 0, 1, key=key, trials=40_000, claim=HALF)
        assert found.verdict == "underpowered"


@pytest.mark.parametrize("estimator", [estimators.equal_level, estimators.dkw], ids=lambda one: one.name)
def test_bands_in_which_nothing_is_told_apart_leave_it_open(estimator):
    found = audited(response(1_000), HALF, pair=(0, 1), estimator=estimator)
    assert found.verdict == "underpowered"
    assert most_attained(found) < 0.2


def test_slight_signs_are_none():
    """A hundredth of the advantage that the claim allows, 0.197 here."""
    seen = audited(laplace(1.0), Claim(1.0))
    assert seen.certified is not None
    for lower, told in ((0.0015, False), (0.003, True)):
        advantage = seen.certified.advantage._replace(lower=lower)
        one = dataclasses.replace(
            seen, epsilon_lower=0.0, claim=HALF, band=None, certified=seen.certified._replace(advantage=advantage)
        )
        assert tells_apart(one) == told
    assert not tells_apart(dataclasses.replace(seen, epsilon_lower=0.003, claim=HALF, band=None, certified=None))
    assert tells_apart(dataclasses.replace(seen, epsilon_lower=0.005, claim=HALF, band=None, certified=None))


@pytest.mark.parametrize("draw", [jax.random.normal, jax.random.uniform, jax.random.bernoulli])
@pytest.mark.parametrize("claim", [Claim(1.0), Claim(1.0, 1e-5), Claim.gaussian(1.0)], ids=["pure", "small", "curve"])
def test_releases_that_are_alike_leave_open_whether_there_is_a_loss(draw, claim):
    found = audited(lambda key, x: draw(key), claim)
    assert found.verdict == "underpowered"
    assert str(found.reason).startswith("the two inputs were not told apart")
    assert found.detectable is None or found.detectable > 3


@pytest.mark.integration
def test_noise_that_keeps_its_promise_is_told_apart():
    assert audited(laplace(1.0), Claim(1.0)).verdict == "consistent"
    curve = audited(lambda key, x: x + jax.random.normal(key), Claim.gaussian(1.0))
    assert tells_apart(curve)
    assert curve.verdict == "consistent"
    other = dataclasses.replace(curve, epsilon_lower=0.0, certified=None)
    assert tells_apart(other)  # by the other thresholds
    fpr, fnr, fpr_low, fpr_high, fnr_low, fnr_high = (tuple(1 - rate for rate in rates) for rates in other.band or ())
    assert tells_apart(dataclasses.replace(other, band=Band(fpr, fnr, fpr_high, fpr_low, fnr_high, fnr_low)))


def test_less_than_a_tenth_of_the_promise_is_hardly_anything():
    little = audited(laplace(20.0), Claim(1.0), trials=200_000)
    assert tells_apart(little)
    assert little.verdict == "underpowered"
    assert f"the attack attains {most_attained(little):.2g} of the claim at most" in str(little.reason)
    more = audited(laplace(5.0), Claim(1.0))
    assert more.verdict == "consistent"
    assert "part seen" in dict(result_lines(more))  # and not refused: it saw something


def test_an_alternative_tells_which():
    def shifted(key, x):
        return x / 2 + uniform(key)

    found = audited(lambda key, x: uniform(key), Claim(1.0), alternative=shifted)
    assert found.power is not None
    assert found.power > plan.POWER
    assert found.verdict == "consistent"
    assert found.detectable is not None
    assert found.detectable < 1.5  # by an attack that sees the alternative


def test_what_is_detectable_grows_as_less_is_seen():
    """The attack shows a share of any loss, so that a loss is found which is as much larger."""
    found = audited(lambda key, x: jax.random.bernoulli(key), Claim(1.0))
    share, pairs = most_attained(found), found.negatives
    settings: dict[str, Any] = {"delta": 0.0, "confidence": 0.95}
    seen = alternative.event(found.fpr, found.fnr, trials=pairs)
    least = [
        alternative.detectable(worse, 1.0, pairs, pairs, **settings)
        for worse in (seen, alternative.in_part(seen, share), alternative.in_part(seen, 2 * share))
    ]
    assert least[1] == pytest.approx(least[0] / share, rel=0.02)
    assert least[2] == pytest.approx(least[1] / 2, rel=0.02)
    assert found.detectable == pytest.approx(least[1], rel=0.01)
    assert alternative.in_part(seen, 1.0).name == seen.name
    smaller = worse_than(dataclasses.replace(found, claim=Claim(share / 2)), 1_000)  # attained whole, maybe
    assert smaller.name == seen.name
    assert smaller.rates(0.5) == seen.rates(0.5)


def test_of_a_spread_loss_the_part_is_taken_once():
    """Normal scores of a part are extrapolated by how far apart they are."""
    found = audited(lambda key, x: x + 40 * jax.random.normal(key), Claim(1.0), trials=60_000)
    normal = dataclasses.replace(found, normal=True)
    assert sees_hardly_anything(normal)
    assert worse_than(normal, 1_000).name == alternative.SPREAD


@pytest.mark.integration
def test_a_small_promise_that_is_kept_is_not_taken_for_a_blind_attack():
    """Chance may hide a loss of the promise, but then the bound on it is no smaller than the promise."""
    draws, judged = np.random.default_rng(2), []
    for _ in range(20):
        worlds = np.array([[0.0], [1.0]]) + 10 * draws.laplace(size=(2, 4_000))
        judged.append(dpaudit.from_samples(*worlds, claim=Claim(0.1)))
    assert sum(UNKNOWN in str(one.reason) for one in judged) <= 2  # 2.5% each
    assert any(not tells_apart(one) for one in judged)


def test_a_curve_that_allows_little_is_not_refused_for_showing_little():
    found = audited(lambda key, x: jax.random.normal(key), Claim.gaussian(1.0))
    assert UNKNOWN in str(found.reason)
    for mu, told in ((0.02, False), (0.5, True)):
        one = unseen(dataclasses.replace(found, reason=None, claim=Claim.gaussian(mu), p_value=0.5))
        assert (UNKNOWN in str(one.reason)) == told
    for high, told in ((0.53, False), (0.503, True)):  # what the opposite guesses may attain counts, too
        band = Band((0.5,), (0.5,), (0.4975,), (high,), (0.4975,), (high,))
        one = dataclasses.replace(found, reason=None, claim=Claim.gaussian(0.1), p_value=0.5, band=band)
        assert (UNKNOWN in str(unseen(one).reason)) == told


def test_the_page_advises_another_attack():
    found = audited(lambda key, x: jax.random.bernoulli(key), Claim(1.0))
    page = render(found.to_row() | {"target": "a coin", "seed": 0, "seconds": 1.0, "versions": ""})
    assert ANOTHER_ATTACK in page


@pytest.mark.integration
def test_given_scores_and_counts_that_tell_nothing_leave_it_open_too():
    draws = np.random.default_rng(3)
    blind = dpaudit.from_scores(*draws.laplace(size=(2, 10_000)), claim=Claim(1.0))
    assert blind.verdict == "underpowered"
    assert str(blind.reason).startswith("the two inputs were not told apart")
    told = dpaudit.from_scores(*(np.array([[0.0], [1.0]]) + draws.laplace(size=(2, 10_000))), claim=Claim(1.0))
    assert told.verdict == "consistent"
    assert dpaudit.from_counts(2_500, 2_500, 5_000, 5_000, claim=Claim(1.0)).verdict == "underpowered"
    assert dpaudit.from_counts(2_000, 2_000, 5_000, 5_000, claim=Claim(1.0)).verdict == "consistent"
    rare = dpaudit.from_counts(72, 9_526, 10_000, 10_000, claim=Claim(1.6, 0.05))  # told apart, by less than delta
    assert (rare.epsilon_lower, rare.verdict) == (0.0, "consistent")
    small = dpaudit.from_counts(2_500, 2_500, 5_000, 5_000, claim=Claim(0.1))  # the bound is as large as half of it
    assert small.verdict == "consistent"
    for rule in (None, sequential.violation()):
        named = audited(response(1_000), HALF, pair=(0, 1), distinguisher=dpaudit.distinguish.projection, until=rule)
        assert named.verdict == "underpowered"
        assert UNKNOWN in str(named.reason)
