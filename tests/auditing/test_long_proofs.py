"""Long proofs, for `make verify`: the engines and the verdict at a scale where a small error would show."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import dpaudit
from dpaudit.auditing.bounds.estimate import epsilon_bounds
from dpaudit.audits import craft, engines, oracle
from dpaudit.mechanisms import ldp_sgd

pytestmark = pytest.mark.slow


def excess(count: float, n: int, p: float) -> float:
    """Standard errors between a count and its expectation."""
    return abs(count - n * p) / math.sqrt(n * p * (1 - p))


def test_plane_on_two_hundred_million_trials():
    pair = oracle.Pair(np.array(0.8), np.array(2.0), np.array(2.2))
    codes = engines.plane(jax.random.key(1), pair, 1_000_000, epsilons=[4.0], clip_norm=1.0, repeats=100)[:, 0]
    wrong0, wrong1 = np.sum(codes[0] & engines.GUESS > 0), np.sum(codes[1] & engines.GUESS == 0)
    (fpr, fnr), n = oracle.cosine_rates(pair, epsilon=4.0, clip_norm=1.0), 100_000_000
    assert excess(wrong0, n, float(fpr)) < 5
    assert excess(wrong1, n, float(fnr)) < 5
    fpr, fnr = oracle.cosine_rates(pair._replace(angle=np.array(2.201)), epsilon=4.0, clip_norm=1.0)
    assert max(excess(wrong0, n, float(fpr)), excess(wrong1, n, float(fnr))) > 5


@pytest.mark.parametrize("dimension, trials", [(10, 400_000), (1_000, 100_000), (100_000, 2_000)])
def test_full_meets_the_worst_case_exactly(dimension, trials):
    repeats, epsilon = 5, 4.0
    codes = engines.full(
        jax.random.key(2), craft.dummy(dimension, 1.0), trials, epsilons=[epsilon], clip_norm=1.0, repeats=repeats,
        pair_key=jax.random.key(3),
    )  # fmt: skip
    wrong = np.sum(codes[0] & engines.GUESS > 0) + np.sum(codes[1] & engines.GUESS == 0)
    n = 2 * repeats * trials
    assert excess(wrong, n, 1 / (1 + math.exp(epsilon))) < 5
    if n > 100_000:
        assert excess(wrong, n, 1 / (1 + math.exp(1.05 * epsilon))) > 5


def test_unbiased_at_a_standard_error_of_a_thousandth():
    """Client plus server: the mean of 2 x 10^6 unbiased releases of one gradient."""
    x = jnp.asarray([0.3, -0.2, 0.1, 0.0, 0.4])
    keys = jax.random.split(jax.random.key(4), 2_000_000)
    releases = jax.jit(jax.vmap(lambda key: ldp_sgd.randomize(key, x, epsilon=2.0, clip_norm=1.0)))(keys)
    estimate = np.asarray(ldp_sgd.aggregate(releases, epsilon=2.0, clip_norm=1.0), np.float64)
    factor = ldp_sgd.unbiasing_factor(5, epsilon=2.0, clip_norm=1.0)
    error = factor / math.sqrt(5 * len(keys))
    assert np.max(np.abs(estimate - np.asarray(x))) < 5 * error
    assert np.max(np.abs(estimate / 5 - np.asarray(x))) > 50 * error  # the constant as printed: short by d


def test_the_lower_bound_is_wrong_as_rarely_as_it_says():
    """20,000 tests of the worst pair, whose true epsilon is the promise: at 95%, at most 5% may claim a violation."""
    audits, n, epsilon = 20_000, 500, 1.0
    rate = 1 / (1 + math.exp(epsilon))
    pair = oracle.Pair(np.array(1.0), np.array(1.0), np.array(math.pi))
    codes = engines.plane(jax.random.key(5), pair, n, epsilons=[epsilon], clip_norm=1.0, repeats=audits)[:, 0]
    wrong0, wrong1 = np.sum(codes[0] & 1 > 0, axis=1), np.sum(codes[1] & 1 == 0, axis=1)
    lower, upper = epsilon_bounds(wrong0, wrong1, n, n, delta=0.0, confidence=0.95)
    allowed = scipy.stats.binom.isf(1e-6, audits, 0.05)
    assert np.sum(lower > epsilon) <= allowed
    assert np.sum(upper < epsilon) <= allowed
    assert np.sum(lower > 0.9 * epsilon) > allowed  # it is not merely small
    assert excess(wrong0.sum(), audits * n, rate) < 5


def test_complete_audits_of_a_tight_mechanism_seldom_cry_wolf():
    """150 audits, thresholds chosen and all, of randomised response, whose true epsilon is the claim."""
    mechanism = dpaudit.mechanisms.randomized_response.mechanism(epsilon=1.0)
    violations = sum(
        dpaudit.audit(mechanism, 0, 1, key=jax.random.key(seed), trials=800).verdict == "violation"
        for seed in range(150)
    )
    assert violations <= scipy.stats.binom.isf(1e-6, 150, 0.05)
    weak = dpaudit.Claim(0.5)
    found = sum(
        dpaudit.audit(mechanism, 0, 1, key=jax.random.key(seed), trials=800, claim=weak).verdict == "violation"
        for seed in range(20)
    )
    assert found >= 10


def test_a_pair_of_its_own_for_every_trial_is_bounded_too():
    """2,000 tests with fresh pairs of all angles and norms: the optimal test's bound holds for the mixture."""
    rng = np.random.default_rng(6)
    pair = oracle.Pair(rng.uniform(0, 2, 400), rng.uniform(0, 2, 400), rng.uniform(0, math.pi, 400))
    best = oracle.optimal_test(pair, epsilon=2.0, clip_norm=1.0)
    codes = engines.plane(jax.random.key(7), pair, 400, epsilons=[2.0], clip_norm=1.0, repeats=2_000)[:, 0]
    pattern = engines.SIDE1 if best.pattern == 0 else engines.SIDE0
    entered = np.sum((codes & 6) == pattern, axis=2)
    likely, unlikely = (entered[1], entered[0]) if best.pattern == 0 else (entered[0], entered[1])
    lower, _ = epsilon_bounds(unlikely, 400 - likely, 400, 400, delta=0.0, confidence=0.95)
    assert np.sum(lower > best.epsilon) <= scipy.stats.binom.isf(1e-6, 2_000, 0.05)
    assert np.sum(lower > 0.5 * best.epsilon) > 500
