"""One contract for every estimator: below the truth, close to it, and as rarely above it as it says."""

from functools import cache

import numpy as np
import pytest
from scipy.stats import binom

from dpaudit import _validate
from dpaudit.auditing import estimators
from dpaudit.auditing.bounds import gdp
from dpaudit.auditing.estimators import Counted, Estimator

AUDITS, PAIRS, CONFIDENCE = 200, 4000, 0.9
MOST = binom.ppf(1 - 1e-6, AUDITS, 1 - CONFIDENCE)  # so many errors mean, but for one time in a million, a false bound
DELTA = 1e-3
SHIFT = 1.0  # of two Gaussians, whose mu it is


def laplace(draws: np.random.Generator) -> np.ndarray:
    """Scores of a mechanism of epsilon 1, attained at every threshold outside of (0, 1)."""
    return draws.laplace(size=(2, PAIRS)) + np.array([[0.0], [1.0]])


def bits(draws: np.random.Generator) -> np.ndarray:
    """Randomised response of epsilon 1: all but two scores tie."""
    return (draws.random((2, PAIRS)) < 1 / (1 + np.exp([[1.0], [-1.0]]))).astype(float)


def canaries(draws: np.random.Generator) -> np.ndarray:
    """One training's: each canary's score is its coin by randomised response of epsilon 1, ties broken by chance."""
    included = draws.random(2 * PAIRS) < 0.5
    told = included == (draws.random(2 * PAIRS) < 1 / (1 + np.exp(-1.0)))
    return np.stack([told + 0.5 * draws.random(2 * PAIRS), included])


def gaussian(draws: np.random.Generator) -> np.ndarray:
    return draws.normal(size=(2, PAIRS)) + np.array([[0.0], [SHIFT]])


G = float(gdp.epsilon_from_mu(SHIFT, DELTA))
# (estimator, scores, threshold fixed in advance, delta, true epsilon, the least mean of the lower bound)
CONTRACT = {
    "Clopper-Pearson, Laplace": (estimators.clopper_pearson, laplace, 1.0, 0.0, 1.0, 0.85),
    "Clopper-Pearson, bits": (estimators.clopper_pearson, bits, 0.5, 0.0, 1.0, 0.90),
    "betting, Laplace": (estimators.betting_bounds, laplace, 1.0, 0.0, 1.0, 0.70),
    "betting, bits": (estimators.betting_bounds, bits, 0.5, 0.0, 1.0, 0.85),
    "equal level, Laplace": (estimators.equal_level, laplace, None, 0.0, 1.0, 0.80),
    "equal level, bits": (estimators.equal_level, bits, None, 0.0, 1.0, 0.85),
    "DKW, Laplace": (estimators.dkw, laplace, None, 0.0, 1.0, 0.70),
    "DKW, bits": (estimators.dkw, bits, None, 0.0, 1.0, 0.85),
    "Gaussian DP, Gaussian": (
        estimators.gaussian,
        gaussian,
        SHIFT / 2,
        DELTA,
        G,
        0.9 * G,
    ),
    "Jeffreys, bits": (estimators.jeffreys, bits, 0.5, 0.0, 1.0, 0.90),
    "joint beta, bits": (estimators.joint_beta, bits, 0.5, 0.0, 1.0, 0.90),
    "one run, bits": (estimators.one_run, canaries, None, 0.0, 1.0, 0.80),
}
SOUND = [
    case for case, (estimator, *_) in CONTRACT.items() if not estimator.caveat or estimator is estimators.gaussian
]


@cache
def bounds(case: str, confidence: float = CONFIDENCE) -> tuple[np.ndarray, np.ndarray]:
    """(lower, upper) bounds of so many audits, [AUDITS] each."""
    estimator, draw, threshold, delta, _, _ = CONTRACT[case]
    draws = np.random.default_rng(7)

    def read() -> Counted:
        if estimator.one_training:
            scores, included = draw(draws)
            return estimators.of_one_training(scores, included > 0)
        return estimators.counted(draw(draws), 0.0 if threshold is None else threshold)

    given = [read() for _ in range(AUDITS)]
    lower, upper = np.transpose([estimator.bounds(one, delta=delta, confidence=confidence) for one in given])
    return lower, upper


def test_the_table_names_every_estimator():
    named = {id(estimator) for estimator, *_ in CONTRACT.values()}
    public = [value for name in estimators.__all__ if isinstance(value := getattr(estimators, name), Estimator)]
    assert public
    assert {id(value) for value in public} == named


@pytest.mark.integration
@pytest.mark.parametrize("case", CONTRACT)
def test_a_lower_bound_is_close_to_the_truth_and_below_the_upper_one(case):
    truth, least = CONTRACT[case][4:]
    lower, upper = bounds(case)
    assert least < lower.mean() < truth < upper.mean()
    assert (lower < upper).all()


@pytest.mark.parametrize("case", SOUND)
def test_a_lower_bound_errs_as_rarely_as_it_says(case):
    assert np.sum(bounds(case)[0] > CONTRACT[case][4]) <= MOST


def test_the_test_of_coverage_has_power():
    # a point estimate in place of a bound is above the truth about half of the time
    assert np.sum(bounds("Clopper-Pearson, bits", confidence=1e-6)[0] > 1.0) > MOST


def test_only_sound_bounds_carry_a_verdict():
    assert {case for case, (estimator, *_) in CONTRACT.items() if estimator.caveat} == {
        "Gaussian DP, Gaussian",
        "Jeffreys, bits",
        "joint beta, bits",
    }


def test_counts_and_outcomes_of_a_rule_agree():
    scores = np.array([[0.0, 2.0, 1.0], [3.0, 1.0, 0.0]])
    found = estimators.counted(scores, 1.0)
    assert found[:4] == (1, 2, 3, 3)  # ties are guesses of world 0
    assert found.outcomes.tolist() == [1, 1, 1, 0]


@pytest.mark.parametrize("estimator", [estimators.clopper_pearson, estimators.betting_bounds, estimators.dkw])
def test_what_is_out_of_range_is_refused(estimator):
    """A confidence of 95 gave NaN."""
    counted = estimators.counted(np.arange(8.0).reshape(2, 4), 3.0)
    with pytest.raises(_validate.InputError, match=r"^confidence: expected a number in \(0, 1\), got 95$"):
        estimator.bounds(counted, delta=0.0, confidence=95)
    with pytest.raises(_validate.InputError, match=r"^delta: expected a number in \[0, 1\), got 1.0$"):
        estimator.bounds(counted, delta=1.0, confidence=0.95)


def test_a_band_without_scores_is_refused():
    without = Counted(1, 2, 3, 3, np.array([1, 1, 1, 0]))
    with pytest.raises(_validate.InputError, match="estimator: expected one that reads counts"):
        estimators.dkw.bounds(without, delta=0.0, confidence=0.9)
