"""The mechanisms of the DP-Sniper table against exact probabilities; a wrong parameter must be noticed."""

import math
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from experiments.trust import sniper_exact as exact
from experiments.trust import sniper_mechanisms as mechanisms
from experiments.trust.sniper_mechanisms import ABORTED, FALSE, NO_MORE, NO_VALUE, TRUE

KEY = jax.random.key(8)
TRIALS = 20_000
HALF = np.array([2.0] * 2 + [0.0] * 2)  # four answers around the threshold
LOUD = 2.0  # an epsilon at which the answers matter


@lru_cache
def compiled(fn, **parameters):
    apply = lambda key, x, epsilon: fn(key, x, epsilon=epsilon, **parameters)  # noqa: E731
    return jax.jit(jax.vmap(apply, in_axes=(0, None, None)))


def releases(fn, x, *, epsilon=LOUD, **parameters) -> np.ndarray:
    """[TRIALS, d]; one program for all epsilons."""
    drawn = compiled(fn, **parameters)(jax.random.split(KEY, TRIALS), jnp.asarray(x, jnp.float32), epsilon)
    return np.asarray(drawn, np.float64).reshape(TRIALS, -1)


def geometric(key, x, *, epsilon):
    """The mechanism at 2 or below it: its law is worked out on the host, for a number."""
    draw = [mechanisms.truncated_geometric(key, x, epsilon=each) for each in (LOUD, LOUD / 10)]
    return jnp.where(epsilon >= LOUD, *draw)


def heaped_geometric(count: int, people: int, ratio: float) -> np.ndarray:
    """Two-sided geometric noise on a count, clamped to 0 .. people, summed term by term."""
    law = np.zeros(people + 1)
    for noise in range(-400, 401):
        law[min(max(count + noise, 0), people)] += (1 - ratio) / (1 + ratio) * ratio ** abs(noise)
    return law


def worst_z(seen: np.ndarray, outcomes: np.ndarray, law: np.ndarray) -> float:
    """The largest distance of an outcome's frequency from its probability, in standard errors."""
    frequency = np.array([(seen == outcome).all(1).mean() for outcome in outcomes])
    return float(np.max(np.abs(frequency - law) / np.sqrt(np.maximum(law * (1 - law), 1e-9) / TRIALS)))


def singles(n: int) -> np.ndarray:
    return np.arange(n)[:, None]


def sparse(patterns, bar: float, query: float):
    settings = {"threshold": 1.0, "threshold_scale": bar / LOUD, "query_scale": query / LOUD}
    return patterns, exact.pattern_law(HALF, patterns, **settings)


DISCRETE = {
    "truncated_geometric": ([2.0], singles(6), heaped_geometric(2, 5, 1 / 2)),  # k = 0 at epsilon 2
    "report_noisy_max1": (HALF, singles(4), exact.argmax_law(HALF, stats.laplace, 2 / LOUD)),
    "report_noisy_max2": (HALF, singles(4), exact.argmax_law(HALF, stats.expon, 2 / LOUD)),
    "svt1": (HALF, *sparse(exact.first_true(4), 2, 4)),
    "svt2": (HALF, *sparse(exact.first_true(4), 2, 4)),
    "svt4": (HALF, *sparse(exact.first_true(4), 4, 4 / 3)),
    "svt5": (HALF, *sparse(exact.all_bits(4), 2, 0)),
    "svt6": (HALF, *sparse(exact.all_bits(4), 2, 2)),
}


@pytest.mark.parametrize("name", DISCRETE)
def test_every_outcome_has_its_probability_and_another_epsilon_does_not(name):
    x, outcomes, law = DISCRETE[name]
    assert law.sum() == pytest.approx(1, abs=1e-3)
    settings = {"threshold": 1.0} if name == "svt1" else {}
    fn = geometric if name == "truncated_geometric" else getattr(mechanisms, name)
    assert worst_z(releases(fn, x, epsilon=LOUD, **settings), outcomes, law) < 4.5
    assert worst_z(releases(fn, x, epsilon=LOUD / 4, **settings), outcomes, law) > 8


CONTINUOUS = {  # a one-dimensional view of the release, with its law at epsilon 2
    "laplace": ([1.0], lambda z: z[:, 0], stats.laplace(1, 1 / LOUD).cdf),
    "laplace_parallel": ([1.0], lambda z: z[:, 7], stats.laplace(1, 1 / LOUD).cdf),
    "noisy_hist1": (HALF, lambda z: z[:, 1], stats.laplace(2, 1 / LOUD).cdf),
    "noisy_hist2": (HALF, lambda z: z[:, 1], stats.laplace(2, LOUD).cdf),
    "prefix_sum": (HALF, lambda z: z[:, 3] - z[:, 2], stats.laplace(0, 1 / LOUD).cdf),
    "report_noisy_max3": (
        HALF,
        lambda z: z[:, 0],
        lambda v: (stats.laplace.cdf(np.subtract.outer(v, HALF), scale=2 / LOUD)).prod(1),
    ),
    "report_noisy_max4": (
        HALF,
        lambda z: z[:, 0],
        lambda v: (stats.expon.cdf(np.subtract.outer(v, HALF), scale=2 / LOUD)).prod(1),
    ),
}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_every_number_follows_its_law_and_another_epsilon_does_not(name):
    x, view, law = CONTINUOUS[name]
    fn = getattr(mechanisms, name)
    assert stats.kstest(view(releases(fn, x, epsilon=LOUD)), law).pvalue > 1e-4
    assert stats.kstest(view(releases(fn, x, epsilon=LOUD / 1.4)), law).pvalue < 1e-9


def test_a_second_threshold_is_fresh_in_svt2_and_the_first_one_in_svt1():
    """Two answers at the threshold: under one noisy threshold they agree more often than under two."""
    x = np.array([0.0, 0.0])
    both = {}
    for name in ("svt1", "svt2"):
        seen = releases(getattr(mechanisms, name), x, epsilon=LOUD, cutoff=3, threshold=0.0)
        both[name] = (seen == TRUE).all(1).mean()
    scales = {"threshold": 0.0, "threshold_scale": 2 / LOUD, "query_scale": 12 / LOUD}
    shared = exact.pattern_law(x, np.array([[TRUE, TRUE]]), **scales)[0]
    error = 0.5 / math.sqrt(TRIALS)
    assert both["svt1"] == pytest.approx(shared, abs=4 * error)
    assert both["svt2"] == pytest.approx(0.25, abs=4 * error)  # independent and symmetric
    scales["threshold_scale"] = 6 / LOUD  # what a shared threshold of svt2's size would give
    assert exact.pattern_law(x, np.array([[TRUE, TRUE]]), **scales)[0] > 0.25 + 6 * error


def test_answers_stop_at_the_cutoff_with_the_sentinels_of_the_original():
    seen = releases(mechanisms.svt1, np.zeros(6), epsilon=LOUD, cutoff=2)
    assert set(np.unique(seen)) == {FALSE, TRUE, ABORTED}
    assert (seen == TRUE).sum(1).max() == 2
    after = np.cumsum(seen == TRUE, 1)[:, :-1] == 2
    assert ((seen[:, 1:] == ABORTED) == after).all()
    numbers = releases(mechanisms.svt3, np.zeros(6), epsilon=LOUD, cutoff=2)
    assert ((numbers == NO_MORE)[:, 1:] == (np.cumsum(numbers > NO_VALUE, 1)[:, :-1] == 2)).all()
    answers = releases(mechanisms.numerical_svt, np.zeros(6), epsilon=LOUD)
    assert ((answers == NO_VALUE)[:, 1:] == (np.cumsum((answers != 0) & (answers != NO_VALUE), 1)[:, :-1] == 2)).all()
    both = releases(mechanisms.svt34_parallel, np.zeros(6), epsilon=LOUD)
    assert both.shape[1] == 12
    assert set(np.unique(both[:, 6:])) == {FALSE, TRUE, ABORTED}


def test_svt3_releases_the_first_value_above_with_its_density():
    x = np.array([1.0, 0.0])
    seen = releases(mechanisms.svt3, x)
    values, log_density = exact.svt3_log_density(x, epsilon=LOUD)
    for i in range(2):
        weight = np.exp(log_density[i]) * (values[1] - values[0])
        share, mean = weight.sum(), (weight * values).sum() / weight.sum()
        given = seen[:, i][seen[:, i] > NO_VALUE]
        assert len(given) / TRIALS == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / TRIALS))
        assert given.mean() == pytest.approx(mean, abs=4 * given.std() / math.sqrt(len(given)))


def test_numerical_svt_answers_with_noise_of_its_own():
    answers = releases(mechanisms.numerical_svt, np.array([0.0]), epsilon=LOUD, cutoff=1)[:, 0]
    given = answers[answers != 0]
    assert stats.kstest(given, stats.laplace(0, 3 / LOUD).cdf).pvalue > 1e-4  # not the larger ones that passed
    assert stats.kstest(given, stats.laplace(0, 6 / LOUD).cdf).pvalue < 1e-9


def test_rappor_flips_bits_at_its_rates():
    bits = mechanisms.bloom_filter(1) > 0
    keys = jax.random.split(KEY, TRIALS)
    for fn, kept in ((mechanisms.one_time_rappor, 0.525), (mechanisms.rappor, 0.5125)):
        ones = np.asarray(jax.jit(jax.vmap(fn, in_axes=(0, None)))(keys, jnp.ones(1))).mean(0)
        agreed = np.where(bits, ones, 1 - ones).mean()
        assert agreed == pytest.approx(kept, abs=4 * 0.5 / math.sqrt(20 * TRIALS))
        assert abs(agreed - (kept + 0.0125)) > 6 * 0.5 / math.sqrt(20 * TRIALS)  # a twin with other rates
    assert mechanisms.one_time_rappor(KEY, jnp.ones(1), f=0.0).tolist() == bits.tolist()


def test_the_geometric_law_is_the_published_one():
    """Term by term, and at the two probabilities in the authors' log of StatDP: output 4 from the counts 1 and 2."""
    for count in range(6):
        assert mechanisms.truncated_geometric_pmf(count) == pytest.approx(heaped_geometric(count, 5, 8 / 9))
    seen = [mechanisms.truncated_geometric_pmf(count)[4] for count in (1, 2)]
    assert seen == pytest.approx([0.0413347, 0.046463645], abs=4 * math.sqrt(0.05 / 2e8))


def test_the_hash_is_murmur3_and_its_bits_are_those_that_the_published_attack_weighs():
    """Known answers of MurmurHash3; and in the authors' log the six bits with weight between the inputs 0 and 1."""
    word = 0xFFFFFFFF
    known = {("", 1): 0x514E28B7, ("test", 0): 0xBA6BD213, ("hello", 0): 0x248BFA47}
    assert {case: mechanisms.murmur3(case[0], seed=case[1]) & word for case in known} == known
    sets = [set(np.flatnonzero(mechanisms.bloom_filter(value)).tolist()) for value in (0, 1)]
    assert sets == [{0, 11, 18}, {3, 10, 13}]


def test_exact_epsilons_of_pairs_that_are_known_in_closed_form():
    ones = np.ones(5)
    assert exact.pair_epsilon("truncated_geometric", np.array([1.0]), np.array([2.0])) == pytest.approx(
        math.log(1.125)
    )
    assert exact.pair_epsilon("report_noisy_max2", ones, np.array([0.0, 2, 2, 2, 2])) == pytest.approx(0.1, abs=1e-3)
    assert exact.pair_epsilon("report_noisy_max3", ones, 2 * ones) == pytest.approx(0.25)
    assert exact.pair_epsilon("one_time_rappor", np.zeros(1), np.ones(1)) == pytest.approx(6 * math.log(0.525 / 0.475))
    many = np.ones(10)
    assert exact.pair_epsilon("svt5", many, np.array([2.0] * 5 + [0.0] * 5)) == math.inf
    assert 0.087 < (exact.pair_epsilon("svt1", many, np.array([2.0] * 5 + [0.0] * 5)) or 0) < 0.1
    assert exact.pair_epsilon("numerical_svt", many, 2 * many) is None
