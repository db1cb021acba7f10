"""What an audit would have seen of worse mechanisms: predicted power against audits that are really played."""

import itertools
from functools import cache
from typing import Any

import numpy as np
import pytest

from dpaudit import _validate
from dpaudit.auditing.attacks.choose import choose_rule
from dpaudit.auditing.bounds import alternative, gdp, normality, plan
from dpaudit.auditing.bounds.estimate import epsilon_bounds, errors

AUDITS = 200


def laplace(draws: np.random.Generator, epsilon: float, n: int) -> np.ndarray:
    return draws.laplace(scale=1 / epsilon, size=(2, n)) + np.array([[0.0], [1.0]])


def bits(draws: np.random.Generator, epsilon: float, n: int) -> np.ndarray:
    return (draws.random((2, n)) < 1 / (1 + np.exp(np.array([[epsilon], [-epsilon]])))).astype(float)


def geometric(draws: np.random.Generator, epsilon: float, n: int) -> np.ndarray:
    """Discrete Laplace noise: a difference of two geometric numbers."""
    noise = draws.geometric(1 - np.exp(-epsilon), size=(2, 2, n))
    return (noise[0] - noise[1] + np.array([[0], [1]])).astype(float)


def normal(draws: np.random.Generator, epsilon: float, n: int) -> np.ndarray:
    return draws.normal(size=(2, n)) + np.array([[0.0], [mu(epsilon)]])


@cache
def mu(epsilon: float) -> float:
    return float(gdp.mu_from_epsilon(epsilon, 1e-3))


def near(value: float) -> Any:
    return pytest.approx([value])


def violations(draw, epsilon: float, n: int, aside: int, delta: float) -> float:
    """The share of audits of the mechanism that loses epsilon which find more than the claim of 1."""
    draws, found = np.random.default_rng(11), 0.0
    for _ in range(AUDITS):
        scores = draw(draws, epsilon, n + aside)
        rule = choose_rule(scores[:, :aside], delta=delta, confidence=0.95)
        lower, _ = epsilon_bounds(*errors(scores[:, aside:], *rule), n, n, delta=delta, confidence=0.95)
        found += float(lower > 1.0)
    return found / AUDITS


@pytest.mark.integration
@pytest.mark.parametrize("draw, delta", [(laplace, 0.0), (bits, 0.0), (geometric, 0.0), (normal, 1e-3)])
def test_four_fifths_of_the_audits_see_what_is_called_detectable(draw, delta):
    n, aside = 15_000, 5_000
    settings = {"delta": delta, "confidence": 0.95}
    pilot = draw(np.random.default_rng(3), 1.0, aside)
    if normality.looks_normal(pilot):
        family = alternative.gaussian(aside, **settings)
    else:
        rule = choose_rule(pilot, delta=delta, confidence=0.95)
        family = alternative.event(*(count / aside for count in errors(pilot, *rule)), delta=delta)
    found = alternative.detectable(family, 1.0, n, n, **settings)
    assert violations(draw, found, n, aside, delta) == pytest.approx(0.8, abs=0.1)
    least = plan.detectable(1.0, n, n, **settings)
    if draw is normal:  # a perfect attack is far more than this one is
        assert violations(draw, least, n, aside, delta) < 0.2
    assert found >= least - 1e-3


def test_a_rule_goes_on_as_it_was_seen():
    wrong = 1 / (1 + np.exp(1.0))  # randomised response stays randomised response
    assert alternative.event(wrong, wrong).rates(2.0) == (near(1 / (1 + np.exp(2.0))),) * 2
    for fpr, fnr, delta in ((0.01, 0.6, 0.0), (0.6, 0.01, 0.0), (0.05, 0.3, 0.1), (0.2, 0.22, 0.1)):
        shown = max(np.log((1 - delta - fnr) / fpr), np.log((1 - delta - fpr) / fnr))
        assert alternative.event(fpr, fnr, delta=delta).rates(shown) == (near(fpr), near(fnr))
    # "world 1" is forty times as likely in world 1: it keeps its probability there
    assert alternative.event(0.01, 0.6).rates(5.0) == (near(0.4 * np.exp(-5.0)), near(0.6))
    assert alternative.event(0.6, 0.01, delta=0.1).rates(5.0) == (near(0.6), near(0.3 * np.exp(-5.0)))


@pytest.mark.parametrize("delta", [0.0, 1e-3, 0.1])
def test_the_family_loses_the_epsilon_that_it_says(delta):
    """By all four inequalities of (epsilon, delta)-DP: none is broken, and one holds with equality."""
    rates = (0.0, 0.001, 0.05, 0.31, 0.5, 0.8, 0.95, 0.9995, 1.0)
    for fpr, fnr, epsilon in itertools.product(rates, rates, (0.1, 1.0, 3.0)):
        (a,), (b,) = alternative.event(fpr, fnr, delta=delta).rates(epsilon)
        pairs = [(a, b), (b, a), (1 - a, 1 - b), (1 - b, 1 - a)]
        assert min(np.exp(epsilon) * x + y for x, y in pairs) == pytest.approx(1 - delta, abs=1e-9)


@pytest.mark.parametrize("fpr, fnr", [(0.001, 0.9995), (0.95, 0.05), (0.6, 0.4)])
def test_a_rule_that_shows_nothing_detects_no_less_than_a_perfect_one(fpr, fnr):
    settings: dict[str, Any] = {"delta": 0.0, "confidence": 0.95}
    least = plan.detectable(1.0, 7_500, 7_500, **settings)
    found = alternative.detectable(alternative.event(fpr, fnr, trials=7_500), 1.0, 7_500, 7_500, **settings)
    assert least > 1.05
    assert found >= least - 2e-3  # powers by quantiles and by sums


@pytest.mark.parametrize("n0, n1", [(300, 200), (40_000, 40_000)])
@pytest.mark.parametrize("fpr, fnr", [(0.05, 0.7), (0.002, 0.95), (0.7, 0.02), (0.0, 0.9)])
def test_power_is_the_share_of_audits_above_the_claim(n0, n1, fpr, fnr):
    draws = np.random.default_rng(5)
    settings: dict[str, Any] = {"delta": 0.001, "confidence": 0.95}
    family = alternative.Alternative(lambda epsilon: (np.array([fpr]), np.array([fnr])), "fixed")
    fp, fn = draws.binomial(n0, fpr, 20_000), draws.binomial(n1, fnr, 20_000)
    lower, _ = epsilon_bounds(fp, fn, n0, n1, **settings)
    between = np.quantile(lower, [0.1, 0.5, 0.9]) + 1e-9  # claims that some audits refute
    shares = [np.mean(lower > claimed) for claimed in between]
    found = [alternative.power(family, 9.0, claimed, n0, n1, **settings) for claimed in between]
    assert found == pytest.approx(shares, abs=0.03)
    assert alternative.power(family, 9.0, 30.0, n0, n1, **settings) == 0


def test_normal_scores_are_told_from_others():
    draws = np.random.default_rng(2)
    passed = [normality.looks_normal(draws.normal(size=(2, 2000))) for _ in range(40)]
    assert all(passed)
    assert not normality.looks_normal(laplace(draws, 1.0, 2000))
    assert not normality.looks_normal(bits(draws, 1.0, 2000))
    assert not normality.looks_normal(np.zeros((2, 50)))


def test_values_out_of_range_are_refused():
    with pytest.raises(_validate.InputError, match="fpr: expected a rate in"):
        alternative.event(1.2, 0.1)
    with pytest.raises(_validate.InputError, match="delta"):
        alternative.gaussian(10, delta=0.0, confidence=0.95)


def test_scores_that_are_not_finite_are_not_normal():
    """And no word of NumPy's about infinity less infinity: warnings are errors here."""
    scores = np.random.default_rng(0).normal(size=(2, 500))
    with np.errstate(all="raise"):
        assert normality.looks_normal(scores)
        for strange in (np.inf, -np.inf, np.nan):
            assert not normality.looks_normal(np.where(np.arange(500) == 3, strange, scores))
