"""Canaries of one training: an audit that does not tell which were included is underpowered, a sound one is not."""

import numpy as np
import pytest
from scipy.special import expit, logit
from scipy.stats import binomtest

import dpaudit
from dpaudit import Claim
from dpaudit.auditing.bounds.one_run import Plan
from dpaudit.auditing.one_training import NOT_TOLD, most_attained

MANY = 4_000


def claim(epsilon: float) -> Claim:
    return Claim(epsilon, 1e-5, "add_remove")


def canaries(seed: int, count: int = MANY) -> tuple[np.random.Generator, np.ndarray]:
    draws = np.random.default_rng(seed)
    return draws, draws.random(count) < 0.5


def guessed(right: int) -> tuple[np.ndarray, np.ndarray]:
    """400 canaries of which a quarter is guessed in and a quarter out, ``right`` times rightly, of the twenty surest
    on either side ten times."""
    above, below = right // 2, right - right // 2
    included = np.zeros(400, bool)
    for first, last, count in ((0, 20, 10), (20, 100, above - 10), (100, 300, 100), (300, 380, 90 - below)):
        included[first : first + count] = True
        assert 0 <= count <= last - first
    included[380:390] = True
    return -np.arange(400.0), included


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("seed", range(10))
def test_scores_that_tell_nothing_are_underpowered(seed, epsilon):
    """They were called consistent."""
    draws, included = canaries(seed)
    found = dpaudit.one_run(draws.normal(size=MANY), included, claim=claim(epsilon))
    assert (found.verdict, found.reason) == ("underpowered", NOT_TOLD)
    assert dpaudit.one_run(draws.normal(size=MANY), included).verdict == "measured"


@pytest.mark.parametrize("epsilon", [0.2, 0.5, 1.0, 4.0])
@pytest.mark.parametrize("seed", range(10))
def test_guesses_that_attain_a_promise_are_consistent_and_twice_its_loss_is_a_violation(seed, epsilon):
    """Each coin is told truly with probability e^eps/(1 + e^eps), ties broken at random."""
    draws, included = canaries(seed, 20_000)

    def told(loss):
        truly = draws.random(len(included)) < expit(loss)
        return np.where(truly, included, ~included) + 1e-3 * draws.random(len(included))

    assert dpaudit.one_run(told(epsilon), included, claim=claim(epsilon)).verdict == "consistent"
    assert dpaudit.one_run(told(2 * epsilon), included, claim=claim(epsilon)).verdict == "violation"


@pytest.mark.parametrize(
    "right, epsilon, verdict",
    [
        (107, 1.0, "underpowered"),  # at most 0.38 is attained
        (107, 0.7, "consistent"),  # which is more than half of this
        (118, 2.0, "consistent"),  # at least 0.07 is shown
    ],
)
def test_what_is_not_shown_has_to_be_less_than_half(right, epsilon, verdict):
    scores, included = guessed(right)
    found = dpaudit.one_run(scores, included, claim=Claim(epsilon, 0.0, "add_remove"))
    assert found.verdict == verdict
    assert found.reason == (NOT_TOLD if verdict == "underpowered" else None)
    assert (found.epsilon_lower > 0) == (right == 118)


@pytest.mark.parametrize("right", [107, 118])
def test_what_is_attained_is_bounded_by_the_guesses_of_the_largest_plan(right):
    scores, included = guessed(right)
    plans = [Plan(20, 20), Plan(100, 100)]
    exact = binomtest(right, 200).proportion_ci(0.9, "exact").high  # two-sided: 0.95 on either side
    assert most_attained(scores, included, plans, confidence=0.95) == pytest.approx(logit(exact))
    assert most_attained(scores, scores > -200, plans, confidence=0.95) == np.inf
    assert most_attained(-scores, scores > -200, plans, confidence=0.95) == 0
