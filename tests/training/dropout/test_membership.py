"""Who was in the training set: the paper's estimate and its bias, and bounds that hold, on data whose law is known."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import binom

from dpaudit import _validate
from dpaudit.auditing.bounds import gdp
from dpaudit.auditing.bounds.estimate import epsilon_bounds
from dpaudit.mechanisms.claim import Claim
from dpaudit.training.dropout.membership import (
    MAXIMUM,
    MEAN,
    MINIMUM,
    STD,
    audit,
    audit_likelihood_ratio,
    estimates,
    gaussian_features,
    of_loss,
    statistics,
)

KEY = jax.random.key(6)


def predictions(rng, n, samples=20, shift=0.0):
    """mean, std, minimum and maximum of probabilities whose logits the members' training has shifted."""
    member = rng.random(n) < 0.5
    p = 1 / (1 + np.exp(-(rng.normal(size=n) + shift * member)[:, None] - rng.normal(size=(n, samples))))
    return (p.mean(1), p.std(1), p.min(1), p.max(1)), member


def normals(rng, n, shift, correlation=0.0):
    """[n, k] unit normals, shifted for members, and the mu of the best test: sqrt(shift' covariance^-1 shift)."""
    shift = np.asarray(shift, float)
    covariance = np.full((len(shift), len(shift)), correlation) + (1 - correlation) * np.eye(len(shift))
    member = np.arange(n) % 2 == 1
    points = rng.multivariate_normal(np.zeros(len(shift)), covariance, size=n) + member[:, None] * shift
    return points, member, math.sqrt(shift @ np.linalg.solve(covariance, shift))


def best(found):
    return max(found.values(), key=lambda rule: rule.value)


def test_statistics_are_those_of_section_3_3():
    columns = statistics([0.5, 0.6], [0.25, 0.0], [0.1, 0.6], [0.9, 0.6])
    assert columns[:, MEAN].tolist() == [0.5, 0.6]
    assert columns[:, STD].tolist() == [4.0, np.inf]
    assert columns[:, MINIMUM].tolist() == [0.1, 0.6]
    assert columns[:, MAXIMUM].tolist() == [0.9, 0.6]
    features = gaussian_features([0.5, 1.0000001], [0.25, 0.0], [0.1, 0.0], [0.9, 1.0])  # as float32 may sum up
    assert features[0] == pytest.approx([0.0, math.log(4), math.log(0.1 / 0.9), math.log(9)])
    assert features[1] == pytest.approx(math.log(2) * np.array([24, 24, -24, 24]), abs=1e-6)


def test_algorithm_1_guesses_the_members_by_a_small_loss():
    loss, member = np.array([0.1, 0.7, 0.4, 2.0, 0.9, 3.0]), np.array([1, 1, 0, 0, 1, 0])
    (found, _) = estimates(of_loss(loss), member, delta=0.0).values()
    assert (found.rule.guesses(of_loss(loss)) == (loss < -found.rule.thresholds[0])).all()
    assert (found.false_positives, found.false_negatives) == (1, 0)  # loss < 1.45, ln((1 - 1/3)/(1/6))
    assert found.value == pytest.approx(math.log(4))


def test_one_sample_has_no_deviation_to_tell_anything():
    (mean, *_), member = predictions(np.random.default_rng(1), 100, samples=1, shift=5.0)
    columns = statistics(mean, np.zeros(100), mean, mean)
    alone = estimates(columns, member, delta=1e-5, subsets=[[STD]])
    assert [found.value for found in alone.values()] == [0.0, 0.0]
    assert best(estimates(columns, member, delta=1e-5)).value > 2
    ratio = gaussian_features(mean, np.zeros(100), mean, mean)
    assert audit_likelihood_ratio(KEY, ratio, member).epsilon_lower > 0
    assert audit_likelihood_ratio(KEY, ratio[:, [STD]], member).epsilon_lower == 0


def test_what_a_rate_of_zero_is_taken_for_decides_the_estimate():
    """On one continuous statistic that tells nothing: infinite if the largest is a member's or the smallest is not."""
    rng = np.random.default_rng(2)
    games = [(rng.normal(size=(50, 1)), np.arange(50) % 2 == 1) for _ in range(400)]
    zero, half, one = (
        np.array([best(estimates(*game, delta=1e-5, kinds=["and"], zero_count=count)).value for game in games])
        for count in (None, 0.5, 1.0)
    )
    ends = [member[np.argmax(points)] or not member[np.argmin(points)] for points, member in games]
    assert (np.isinf(zero) == ends).all()
    assert np.isinf(zero).mean() == pytest.approx(0.75, abs=0.02 + 3 * math.sqrt(0.75 * 0.25 / 400))
    assert np.isfinite(half).all()
    assert (half >= one).all()
    assert half.mean() - one.mean() > 0.2


def nulls(runs, n):
    """Networks of one and the same law: what membership has nothing to do with."""
    for seed in range(runs):
        given, member = predictions(np.random.default_rng([3, seed]), n)
        yield jax.random.key(seed), given, member


@pytest.mark.integration
def test_where_nothing_leaks_the_bound_is_zero_and_the_estimate_is_not():
    runs, n = 120, 100
    risks = [audit(key, statistics(*given), member, delta=1e-5) for key, given, member in nulls(runs, n)]
    most = binom.ppf(0.999, runs, 0.05)
    assert sum(risk.honest.epsilon_lower > 0 for risk in risks) <= most
    assert min(risk.estimate.value for risk in risks) > 1
    assert np.mean([risk.estimate.value for risk in risks]) > 2
    assert np.mean([risk.bias for risk in risks]) > 1

    def in_sample(given, member):
        """The wrong twin: a Clopper-Pearson bound on the models that the thresholds were chosen on."""
        found = best(estimates(statistics(*given), member, delta=1e-5))
        counts = found.false_positives, found.false_negatives, (~member).sum(), member.sum()
        return float(epsilon_bounds(*counts, delta=1e-5, confidence=0.95)[0])

    assert sum(in_sample(given, member) > 0 for _, given, member in nulls(runs, n)) > 2 * most


def test_where_nothing_leaks_the_likelihood_ratio_finds_nothing():
    runs = 120
    games = ((key, gaussian_features(*given), member) for key, given, member in nulls(runs, 100))
    assert sum(audit_likelihood_ratio(*game).epsilon_lower > 0 for game in games) <= binom.ppf(0.999, runs, 0.05)


@pytest.mark.integration
def test_a_known_leak_is_bounded_from_below_and_nearly():
    """One normal statistic: a threshold is the best test, and Eq. (7) at it is the trade-off function's epsilon."""
    runs, delta, mu = 12, 0.1, 1.0
    truth = float(gdp.epsilon_from_mu(mu, delta))
    thresholds, ratios = [], []
    for seed in range(runs):
        points, member, _ = normals(np.random.default_rng([4, seed]), 3000, [mu])
        thresholds.append(audit(jax.random.key(seed), points, member, delta=delta).honest.epsilon_lower)
        ratios.append(audit_likelihood_ratio(jax.random.key(seed), points, member, delta=delta).epsilon_lower)
    for lower in (thresholds, ratios):
        assert np.sum(np.array(lower) > truth) <= binom.ppf(0.999, runs, 0.05)
        assert np.mean(lower) > 0.6 * truth
        assert np.sum(np.array(lower) > truth / 2) > binom.ppf(
            0.999, runs, 0.05
        )  # a claim of half the leak is refuted


def test_the_likelihood_ratio_reads_what_no_threshold_sees():
    """Two statistics that go together, shifted apart: mu is 3.16, while each by itself is shifted by 0.5."""
    points, member, mu = normals(np.random.default_rng(5), 4000, [0.5, -0.5], correlation=0.95)
    delta = 0.01
    thresholds = audit(KEY, points, member, delta=delta).honest.epsilon_lower
    ratio = audit_likelihood_ratio(KEY, points, member, delta=delta).epsilon_lower
    assert thresholds + 1 < ratio < gdp.epsilon_from_mu(mu, delta)


def test_a_memorised_target_reaches_the_ceiling():
    rng = np.random.default_rng(6)
    member = np.arange(100) % 2 == 1
    p = np.where(member, 0.95, 0.05)[:, None] + 0.04 * rng.uniform(-1, 1, (100, 50))
    given = p.mean(1), p.std(1), p.min(1), p.max(1)
    claim = Claim(25.63, 1e-5, "add_remove")
    risk = audit(KEY, statistics(*given), member, claim=claim)
    for result in (risk.honest, audit_likelihood_ratio(KEY, gaussian_features(*given), member, claim=claim)):
        assert (result.fpr, result.fnr, result.negatives, result.positives) == (0, 0, 25, 25)
        assert (
            result.epsilon_lower == result.ceiling == pytest.approx(math.log((0.025**0.04 - 1e-5) / (1 - 0.025**0.04)))
        )
        assert (result.neighbouring, result.delta, result.trials) == ("add_remove", 1e-5, 100)
    assert risk.estimate.value == pytest.approx(math.log((1 - 1e-5 - 0.01) / 0.01))
    assert risk.bias == 0


def test_a_rule_can_be_chosen_among_subsets_and_the_key_alone_decides_the_halves():
    points, member, _ = normals(np.random.default_rng(7), 1000, [0.0, 2.0])
    risk = audit(KEY, points, member, subsets=[[0], [1]], kinds=["or"])
    assert risk.rule.kind == "or"
    assert risk.rule.thresholds[0] == np.inf  # left out
    assert risk == audit(KEY, points, member, subsets=[[0], [1]], kinds=["or"])
    assert risk.honest != audit(jax.random.key(7), points, member, subsets=[[0], [1]], kinds=["or"]).honest


def member(n0, n1):
    return np.arange(n0 + n1) >= n0


@pytest.mark.parametrize(
    "attack", [lambda *given, **settings: audit(*given, **settings).honest, audit_likelihood_ratio]
)
def test_too_few_models_for_a_bound_are_refused(attack):
    """At 95% five models of each world show nothing, however well they are told apart; six do."""
    points = np.arange(24.0)[:, None]
    assert attack(KEY, points[:22], member(11, 11)).ceiling > 0
    with pytest.raises(
        _validate.InputError, match=r"bound above 0 at delta 0 and .* 0.95, got 5 of D and 5 of D' left"
    ):
        attack(KEY, points[:20], member(10, 10))
    with pytest.raises(_validate.InputError, match="got 1 of D and 12 of D' left to count"):
        attack(KEY, points, member(1, 23), confidence=0.1)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: statistics([0.5], [0.1, 0.1], [0.5], [0.5]), r"std: expected shape \[1\] like mean, got shape \[2\]"),
        (lambda: statistics([0.5], [0.1], [0.6], [0.4]), r"minimum: expected at most the maximum, 0.4, got 0.6"),
        (lambda: statistics([0.5], [-0.1], [0.5], [0.5]), r"std: expected numbers in \[0, 1\], got -0.1"),
        (lambda: statistics([1.5], [0.1], [0.5], [0.5]), r"mean: expected numbers in \[0, 1\], got 1.5"),
        (lambda: statistics([0.5], [0.1], [math.nan], [0.5]), r"minimum: expected numbers in \[0, 1\], got nan"),
        (lambda: of_loss([[0.1]]), r"loss: expected an array of shape \[d\]"),
        (lambda: of_loss([0.1, math.inf]), "loss: expected finite numbers, got 1 NaN or infinite of 2"),
        (lambda: estimates([[1.0], [2.0]], [0, 1], delta=1.0), r"delta: expected a number in \[0, 1\), got 1.0"),
        (
            lambda: estimates([[1.0], [2.0]], [0, 1], delta=0, zero_count=2),
            r"zero_count: expected a number in \(0,",
        ),
        (lambda: estimates([[1.0], [2.0]], [0, 1], delta=0, zero_count=0), "zero_count: expected a finite number > 0"),
        (lambda: audit(KEY, np.ones((40, 1)), member(20, 20), subsets=[]), "subsets and kinds: expected at least one"),
        (
            lambda: audit(KEY, np.ones((40, 1)), member(20, 20), confidence=1.0),
            "confidence: expected a number",
        ),
        (lambda: audit(jnp.zeros(3), np.ones((40, 1)), member(20, 20)), "key: expected a key"),
        (lambda: audit_likelihood_ratio(KEY, np.full((40, 1), np.inf), member(20, 20)), "features: expected finite"),
        (lambda: audit_likelihood_ratio(KEY, np.ones(40), member(20, 20)), r"features: expected shape \[n, k\]"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(_validate.InputError, match=message):
        call()
