"""Rules chosen on trials set aside: the best of all, of either side, from more data a better one."""

import math
from typing import Any

import numpy as np
import pytest

from dpaudit.auditing.attacks.choose import STRICT, Rule, best, choose_rule, look, screen
from dpaudit.auditing.bounds import threshold
from dpaudit.auditing.bounds.estimate import epsilon_bounds, errors
from dpaudit.mechanisms.claim import Claim

SETTINGS: dict[str, Any] = {"delta": 0.0, "confidence": 0.95}


def brute_force_best(scores: np.ndarray) -> float:
    n = scores.shape[1]
    strict: dict[str, Any] = {"delta": 0.0, "confidence": 1 - STRICT}
    return max(
        float(epsilon_bounds(*errors(scores, t, above), n, n, **strict)[0])
        for t in np.unique(scores)
        for above in (True, False)
    )


@pytest.mark.parametrize("sign", [1, -1])
def test_the_chosen_rule_is_the_best_of_all(sign):
    rng = np.random.default_rng(1)
    for shift in (0.5, 2.0, 6.0):
        scores = sign * np.round(rng.normal(size=(2, 300)) + np.array([[0], [shift]]), 1)
        seen = look(scores, **SETTINGS)
        assert seen.rule.above == (sign > 0)
        lower = epsilon_bounds(*errors(scores, *seen.rule), 300, 300, delta=0.0, confidence=1 - STRICT)[0]
        assert seen.bound == pytest.approx(float(lower), abs=1e-12)
        assert seen.bound == pytest.approx(brute_force_best(scores), abs=1e-12)


def test_with_many_scores_extreme_thresholds_are_not_thinned_away():
    """One release in a hundred gives world 1 away, far out in the tail."""
    rng = np.random.default_rng(2)
    scores = rng.normal(size=(2, 20_000))
    scores[1, :200] += 100
    rule = choose_rule(scores, **SETTINGS)
    best, _ = epsilon_bounds(0, 20_000 - 200, 20_000, 20_000, **SETTINGS)
    lower, _ = epsilon_bounds(*errors(scores, *rule), 20_000, 20_000, **SETTINGS)
    assert scores[0].max() < rule.threshold
    assert 0.98 * best < lower <= best


def test_a_rare_event_of_one_world_alone_is_not_passed_over():
    """A step of eight in a thousand among rules that all show about ln 2."""
    rng = np.random.default_rng(4)
    scores = np.sort(rng.laplace(scale=1 / 0.7, size=(2, 2500)) + np.array([[0.0], [1.0]]), axis=1)
    scores[1, -40:] = 50 + np.arange(40)
    scores[0] = np.minimum(scores[0], 49)
    rule = choose_rule(scores, delta=0.0, confidence=0.999)
    assert look(scores, delta=0.0, confidence=0.999).bound == pytest.approx(brute_force_best(scores), abs=1e-9)
    assert errors(scores, *rule)[0] == 0


def test_where_nothing_is_certain_the_most_accurate_rule_is_taken():
    scores = np.array([[0.0, 1.0, 2.0, 3.0], [2.5, 3.5, 4.5, 5.5]])
    assert choose_rule(scores, delta=0.0, confidence=0.999999) == Rule(2.0, above=True)
    assert choose_rule(scores[::-1], delta=0.0, confidence=0.999999) == Rule(2.0, above=False)
    assert choose_rule(np.zeros((2, 5)), **SETTINGS) == Rule(0.0, above=True)


def test_nan_is_told_from_the_largest_number_and_from_infinity():
    scores = np.array([[1.0, np.inf] * 300, [1.0, np.nan] * 300])
    rule = choose_rule(scores, **SETTINGS)
    assert rule == Rule(math.inf, above=True)
    assert errors(scores, *rule) == (0, 300)
    assert errors(scores, math.inf, above=False) == (600, 300)


def test_of_several_scores_the_one_that_shows_most_comes_first():
    rng = np.random.default_rng(3)
    seen = [look(rng.normal(size=(2, 500)) + np.array([[0], [shift]]), **SETTINGS) for shift in (0.0, 2.0, -1.0)]
    assert best(seen) == [1, 2, 0]
    simple = seen[1]._replace(bound=0.995 * seen[1].bound)
    assert best([simple, *seen]) == [0, 2, 3, 1]  # as good as the best one, and simpler


def test_a_split_keeps_the_promise_that_the_naive_maximum_breaks(monkeypatch):
    """200 audits of a Laplace pair whose every tail threshold has exactly the claimed ratio: e^epsilon, epsilon = 1.

    Choosing and counting on different trials calls a violation within the nominal 5% (and 3 binomial standard
    errors); choosing and counting on the same trials, one by one at the bound's own level, does not.
    """
    rng = np.random.default_rng(3)
    audits, n, epsilon = 200, 10_000, 1.0
    split, naive = [], 0
    for _ in range(audits):
        scores = rng.laplace(scale=1 / epsilon, size=(2, n)) + np.array([[0.0], [1.0]])
        aside, counted = scores[:, : n // 4], scores[:, n // 4 :]
        fp, fn = errors(counted, *choose_rule(aside, **SETTINGS))
        split.append(float(epsilon_bounds(fp, fn, counted.shape[1], counted.shape[1], **SETTINGS)[0]))
        with monkeypatch.context() as own_level:
            own_level.setattr(threshold, "STRICT", 1.0)
            own_level.setattr(threshold, "MILD", 1e-12)  # shows nothing, so that nothing is averaged
            fp, fn = errors(scores, *choose_rule(scores, **SETTINGS))
        naive += epsilon_bounds(fp, fn, n, n, **SETTINGS)[0] > epsilon
    allowed = 0.05 + 3 * math.sqrt(0.05 * 0.95 / audits)
    assert np.mean(np.array(split) > epsilon) <= allowed
    assert naive / audits > allowed
    assert np.mean(split) > 0.92
    assert np.quantile(split, 0.05) > 0.85  # 0.72 where chosen at the bound's own level


@pytest.mark.parametrize(
    "law, delta, mean, quantile",
    [("laplace", 0.0, 0.885, 0.80), ("normal", 0.05, 1.21, 1.06)],
)
def test_a_threshold_is_chosen_for_what_its_neighbours_show(law, delta, mean, quantile):
    """Bounds over 150 audits of 10,000 trials, mean and 5% quantile. One by one at the bound's own level the best
    thresholds of Laplace noise give 0.85 and 0.69, at the strict level those of normal noise 1.20 and 1.04."""
    rng, settings, found = np.random.default_rng(6), {"delta": delta, "confidence": 0.95}, []
    for _ in range(150):
        scores = getattr(rng, law)(size=(2, 5_000)) + np.array([[0.0], [1.0]])
        rule = choose_rule(scores[:, :1250], **settings)
        found.append(float(epsilon_bounds(*errors(scores[:, 1250:], *rule), 3750, 3750, **settings)[0]))
    assert np.mean(found) > mean
    assert np.quantile(found, 0.05) > quantile


@pytest.mark.parametrize("sign", [1, -1])
def test_against_a_curve_that_is_kept_a_rule_still_says_both_worlds(sign):
    """With a threshold beyond all scores, the audit would be called blind where it saw nothing wrong."""
    for seed in range(20):
        scores = np.random.default_rng(seed).normal(size=(2, 400)) + sign * np.array([[0.0], [0.3]])
        seen = look(scores, **SETTINGS, claim=Claim.gaussian(1.0))
        wrong, missed = errors(scores, *seen.rule)
        assert 40 < wrong < 360
        assert 40 < missed < 360
        assert seen.accuracy > 0.5


def test_where_no_bound_shows_anything_a_rare_event_of_one_world_comes_before_a_lucky_coin():
    """Of 250 pairs, 13 times in one world alone, beside a coin that is right in 54 of 100."""
    n = 250
    rare, coin = np.zeros((2, n)), np.zeros((2, n))
    rare[1, :13] = 1
    coin[0, :115], coin[1, :135] = 1, 1
    seen = [look(scores, delta=0.0, confidence=0.95) for scores in (coin, rare)]
    assert [one.bound for one in seen] == [0, 0]
    assert seen[0].accuracy > seen[1].accuracy
    assert best(seen) == [1, 0]
    screened = screen(np.stack([coin, rare], -1), delta=0.0, confidence=0.95)
    assert screened[0] < screened[1] < 0


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_against_a_curve_that_nothing_comes_near_the_score_that_shows_most_is_chosen(seed):
    scores = np.random.default_rng(seed).normal(size=(2, 1000, 3))
    scores[1, :, 1] += 1
    claim = Claim.renyi([2, 4, 8], [1.0, 2.0, 4.0])  # of this noise, without its other orders
    seen = [look(scores[..., i], claim=claim, **SETTINGS) for i in range(3)]
    assert best(seen)[0] == 1
    assert seen[1].bound > 0.4
