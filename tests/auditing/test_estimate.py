"""Bounds whose error probability is summed exactly over all outcomes, not sampled; and the known answers of others."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats

from dpaudit import _validate
from dpaudit.auditing.bounds import estimate
from dpaudit.auditing.bounds.estimate import clopper_pearson, epsilon_bounds, epsilon_from_rates, errors


@pytest.mark.parametrize(
    "fpr, fnr, delta, epsilon",
    [
        (0.1, 0.2, 0, math.log(0.8 / 0.1)),  # paper 000, Section 5.1: about 2.0 (2.08)
        (0.2, 0.1, 0, math.log(0.8 / 0.1)),
        (0.5, 0.5, 0, 0),
        (0.9, 0.8, 0, 0),  # worse than a coin: nothing shown by this rule
        (0.0, 0.3, 0, math.inf),
        (0.3, 0.0, 0, math.inf),
        (0.0, 0.0, 0, math.inf),
        (0.0, 1.0, 0, 0),  # always g0
        (1.0, 0.0, 0, 0),  # always g1
        (0.0, 0.3, 0.1, math.inf),
        (0.0, 0.95, 0.1, 0),  # all of the power is within delta
        (0.1, 0.2, 0.05, math.log(0.75 / 0.1)),
        (0.2, 0.1, 0.05, math.log(0.75 / 0.1)),
        (0.25, 0.25, 0.5, 0),
    ],
)
def test_epsilon_from_rates_at_its_edges(fpr, fnr, delta, epsilon):
    assert float(epsilon_from_rates(fpr, fnr, delta)) == pytest.approx(epsilon, abs=1e-12)


def test_epsilon_from_rates_is_the_smallest_that_theorem_1_allows():
    """Theorem 1 of paper 000 with delta: fpr + e^eps fnr >= 1 - delta and the other way round."""
    rng = np.random.default_rng(0)
    (fpr, fnr), delta = rng.uniform(0.01, 1, (2, 500)), rng.uniform(0, 0.5, 500)
    epsilon = epsilon_from_rates(fpr, fnr, delta)
    assert epsilon.shape == (500,)

    def allowed(e):
        return (fpr + np.exp(e) * fnr >= 1 - delta) & (np.exp(e) * fpr + fnr >= 1 - delta)

    assert allowed(epsilon + 1e-9).all()
    positive = epsilon > 0
    assert 100 < positive.sum() < 500
    assert not allowed(epsilon - 1e-6)[positive].any()


@pytest.mark.parametrize("n", [1, 7, 1000])
@pytest.mark.parametrize("alpha", [0.025, 0.2])
def test_clopper_pearson_is_scipys_exact_interval(n, alpha):
    counts = np.unique([0, 1, n // 3, n - 1, n])
    low, high = clopper_pearson(counts, n, alpha=alpha)
    for k, found in zip(counts, np.stack([low, high], axis=1), strict=True):
        other = scipy.stats.binomtest(int(k), n).proportion_ci(1 - 2 * alpha, method="exact")
        assert tuple(found) == pytest.approx((other.low, other.high), abs=1e-12)


@pytest.mark.parametrize("n, ceiling", [(1_000, 5.60), (10_000, 7.91), (100_000, 10.21), (1_000_000, 12.51)])
def test_a_perfect_attack_is_certified_up_to_the_known_ceilings(n, ceiling):
    lower, upper = epsilon_bounds(0, 0, n, n, delta=0, confidence=0.95)
    assert float(lower) == pytest.approx(ceiling, abs=0.006)
    assert float(upper) == math.inf


def test_tensorflow_privacys_known_answer():
    """Its Clopper-Pearson for 500 / 0 / 500 / 0 at alpha 0.01 gives 4.54."""
    assert float(epsilon_bounds(0, 0, 500, 500, delta=0, confidence=0.99)[0]) == pytest.approx(4.54, abs=0.005)


def test_the_joint_beta_example_has_the_wider_clopper_pearson_interval():
    """TP 487, TN 1, FP 512, FN 0, delta 1e-5, alpha 0.1: [0, inf); a joint beta posterior says [0.145, 6.4]."""
    lower, upper = epsilon_bounds(512, 0, 513, 487, delta=1e-5, confidence=0.9)
    assert (float(lower), float(upper)) == (0, math.inf)


def wrong_side(n: int, confidence: float, delta: float, fpr: float, fnr: float, bounds=epsilon_bounds):
    """(Pr[lower > truth], Pr[upper < truth]), exactly: summed over all (n + 1)^2 outcomes."""
    counts = np.arange(n + 1)
    lower, upper = bounds(counts[:, None], counts[None, :], n, n, delta=delta, confidence=confidence)
    weight = np.outer(scipy.stats.binom.pmf(counts, n, fpr), scipy.stats.binom.pmf(counts, n, fnr))
    truth = epsilon_from_rates(fpr, fnr, delta)
    return weight[lower > truth + 1e-9].sum(), weight[upper < truth - 1e-9].sum()


RATES = [
    (0.5, 0.5),
    (0.3, 0.3),
    (0.1, 0.1),
    (0.02, 0.02),
    (0.05, 0.4),
    (0.4, 0.05),
    (0.001, 0.6),
    (0.9, 0.05),
    (0.7, 0.7),
]
SETTINGS = list(itertools.product((4, 20, 60), (0.95, 0.6), (0.0, 0.05)))


def test_both_bounds_cover_at_their_stated_rate_for_every_outcome():
    errors = {
        (*setting, *rates): wrong_side(*setting, *rates) for setting, rates in itertools.product(SETTINGS, RATES)
    }
    for (_, confidence, *_), (above, below) in errors.items():
        assert above <= 1 - confidence + 1e-12
        assert below <= 1 - confidence + 1e-12
    assert max(above for above, _ in errors.values()) > 0.1  # at 0.6: not idle
    assert max(below for _, below in errors.values()) > 0.1


def swapped_tails(*counts, **settings):
    return epsilon_bounds(*counts, **settings)[::-1]


def point_estimate(fp, fn, n0, n1, *, delta, confidence):
    return epsilon_from_rates(fp / n0, fn / n1, delta), epsilon_from_rates(fp / n0, fn / n1, delta)


@pytest.mark.parametrize("twin", [swapped_tails, point_estimate], ids=lambda twin: twin.__name__)
def test_wrong_bounds_do_not_cover(twin):
    found = [wrong_side(60, 0.95, 0.0, *rates, bounds=twin) for rates in RATES]
    assert max(max(pair) for pair in found) > 0.05 + 1e-3


@pytest.mark.parametrize("delta", [0.0, 0.01])
def test_bounds_close_in_on_the_truth(delta):
    """Not only valid: at 10^6 trials the two ends are within 0.05 of it."""
    n, epsilon = 1_000_000, 2.0
    rate = (1 - delta) / (1 + math.exp(epsilon))
    count = round(n * rate)
    lower, upper = epsilon_bounds(count, count, n, n, delta=delta, confidence=0.95)
    assert epsilon - 0.05 < float(lower) < epsilon < float(upper) < epsilon + 0.05


def test_errors_give_ties_to_world_0():
    scores = np.array([[0.0, 0.5, 1.0, -1.0], [0.0, 2.0, -3.0, 0.5]])
    assert errors(scores, 0.0) == (2, 2)
    assert errors(scores, 0.5) == (1, 3)
    assert errors(scores, -math.inf) == (4, 0)


# --- choosing a threshold ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "scores, message",
    [
        (np.ones(4), r"^scores: expected shape \[2, n\] with n >= 1, got shape \[4\]$"),
        (np.ones((3, 4)), r"^scores: expected .* got shape \[3, 4\]$"),
        (np.ones((2, 0)), r"^scores: expected .* got shape \[2, 0\]$"),
        (np.array([[1.0, np.nan], [0.0, 1.0]]), "^scores: expected numbers, got NaN in 1 of 4 trials$"),
    ],
)
def test_scores_that_are_not_numbers_are_refused(scores, message):
    with pytest.raises(_validate.InputError, match=message):
        estimate.checked_scores(scores)


def test_infinite_scores_are_numbers():
    found = estimate.checked_scores(np.array([[-np.inf, 0], [np.inf, 1]], np.float32))
    assert found.dtype == np.float64
    assert errors(found, 0.0) == (0, 0)
