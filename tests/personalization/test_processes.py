"""What a process releases and what it says that costs: the noise's law, brute force, and events against integrals."""

import itertools
import math

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from scipy import stats

from dpaudit._validate import InputError
from dpaudit.personalization.boundary.processes import Release, correlated, gaussian, poisson_gaussian
from dpaudit.training.matrix_noise import banded, independent, toeplitz
from dpaudit.training.sampling import participation

KEY = jax.random.key(21)
SUMS = gaussian("sums", noise_multiplier=2.0)
PATTERN = participation(12, separation=4)
BANDED = banded(PATTERN, bands=4)


def released(process, totals, *, sensitivity=1.0):
    """[rounds, ...], what a process makes of one total after another; each round has a key of its own."""

    def round(memory, given):
        key, total = given
        made, memory = process.release(key, total, memory, sensitivity=sensitivity)
        return memory, (made.value, made.number)

    start = process.init(jax.tree.map(lambda leaf: leaf[0], totals))
    rounds = len(jax.tree.leaves(totals)[0])
    values, numbers = jax.lax.scan(round, start, (jax.random.split(KEY, rounds), totals))[1]
    np.testing.assert_array_equal(numbers, np.arange(rounds))
    return values


def deviation(drawn, claimed):
    """The largest distance of the covariance of rows [n, draws] from ``claimed`` [n, n], in standard errors."""
    sample = np.asarray(drawn, np.float64)
    error = np.sqrt((np.outer(np.diag(claimed), np.diag(claimed)) + claimed**2) / sample.shape[1])
    return float(np.max(np.abs(sample @ sample.T / sample.shape[1] - claimed) / error))


MAKE = {
    "gaussian": lambda: gaussian("x", noise_multiplier=1.5),
    "Poisson": lambda: poisson_gaussian("x", rate=0.2, noise_multiplier=1.5),
    "correlated": lambda: correlated("x", BANDED, 1.5),
}


def covariance(name, *, multiplier=1.5, sensitivity=0.7):
    """Of the noise of twelve rounds, by the docstrings."""
    inverse = np.linalg.inv(BANDED.matrix()) if name == "correlated" else np.eye(12)
    unit = BANDED.sensitivity(PATTERN) if name == "correlated" else 1.0
    return (sensitivity * multiplier * unit) ** 2 * inverse @ inverse.T


@pytest.mark.parametrize("name", MAKE)
def test_noise_has_the_stated_size_and_nothing_else_is_added(name):
    totals = jnp.arange(12.0)[:, None] * jnp.ones(20_000)
    noise = np.asarray(released(MAKE[name](), totals, sensitivity=0.7)) - np.asarray(totals)
    assert deviation(noise, covariance(name)) < 5
    assert deviation(noise, covariance(name, multiplier=1.05 * 1.5)) > 5  # 5% more or less would be seen
    assert deviation(noise, covariance(name, multiplier=0.95 * 1.5)) > 5
    assert deviation(np.tile(noise[:1], (12, 1)), covariance(name)) > 20  # and so would the same noise every round
    assert np.abs(noise.mean(axis=1)).max() < 5 * np.sqrt(covariance(name).diagonal().max() / 20_000)


@pytest.mark.parametrize("name", MAKE)
def test_every_number_of_a_total_has_noise_of_its_own(name):
    totals = {"a": jnp.zeros((12, 2_000, 3)), "b": jnp.zeros((12, 2_000))}
    found = released(MAKE[name](), totals)
    for t in (0, 11):
        columns = np.column_stack([np.asarray(found["a"][t]), np.asarray(found["b"][t])])
        assert np.abs(np.corrcoef(columns.T) - np.eye(4)).max() < 5 / np.sqrt(2_000)
        assert abs(np.corrcoef(columns[:-1, 0], columns[1:, 0])[0, 1]) < 5 / np.sqrt(2_000)


@pytest.mark.parametrize("sensitivity", [1.5, jnp.float32(1.5)])
def test_noise_is_as_wide_as_float32_for_a_narrow_total(sensitivity):
    like = jnp.zeros(20_000, jnp.bfloat16)
    made, _ = SUMS.release(KEY, like, SUMS.init(like), sensitivity=sensitivity)
    assert made.value.dtype == jnp.float32  # bfloat16 noise would be cut off
    assert len(np.unique(made.value)) > 19_000
    assert abs(float(made.value.std()) / 3.0 - 1) < 4 / np.sqrt(2 * 20_000)
    assert abs(float(made.value.std()) / 2.85 - 1) > 4 / np.sqrt(2 * 20_000)  # 5% less would be seen


def test_without_noise_the_total_is_released_as_it_is_and_accounted_as_no_privacy():
    process = gaussian("sums", noise_multiplier=0)
    total = jnp.arange(5.0)
    made, _ = process.release(KEY, total, process.init(total), sensitivity=1.0)
    np.testing.assert_array_equal(made.value, total)
    assert process.event(3) == dp_accounting.SelfComposedDpEvent(dp_accounting.NonPrivateDpEvent(), 3)


@pytest.mark.parametrize("rounds", [1, 4])
def test_a_gaussian_process_costs_what_the_hockey_stick_of_its_releases_says(rounds):
    """Two worlds that differ by the sensitivity in every round are N(0, 1) and N(mu, 1), mu = sqrt(rounds)/z."""
    spent = PLDAccountant().compose(gaussian("x", noise_multiplier=1.3).event(rounds)).get_epsilon(1e-4)

    def delta(epsilon, z):
        mu = math.sqrt(rounds) / z
        return stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)

    assert delta(spent, 1.3) == pytest.approx(1e-4, rel=5e-3)
    assert delta(spent, 1.3 / 1.02) > 1.05e-4


@pytest.mark.parametrize("rate", [0.05, 0.6, 1.0])
def test_a_sampled_process_costs_what_the_hockey_stick_of_its_mixture_says(rate):
    """One release: N(0, 1) against (1 - q) N(0, 1) + q N(1/z, 1), summed over a grid in both directions."""
    z = 1.3
    spent = PLDAccountant().compose(poisson_gaussian("x", rate=rate, noise_multiplier=z).event(1)).get_epsilon(1e-4)

    def delta(epsilon, rate):
        x = np.linspace(-12, 12, 200_001)
        without = stats.norm.pdf(x)
        with_ = (1 - rate) * without + rate * stats.norm.pdf(x, 1 / z)
        over = [np.maximum(0, p - math.exp(epsilon) * q) for p, q in ((with_, without), (without, with_))]
        return max(np.trapezoid(one, x) for one in over)

    assert delta(spent, rate) == pytest.approx(1e-4, rel=5e-3)
    assert delta(spent, min(1.0, 1.05 * rate)) > 1.04e-4 or rate == 1.0


@pytest.mark.parametrize(
    "made_for", [BANDED, toeplitz(PATTERN), independent(PATTERN)], ids=["banded", "toeplitz", "I"]
)
def test_a_correlated_process_costs_the_farthest_that_one_user_moves_what_it_has_released(made_for):
    """Brute force: every set of rounds of the pattern and every sign, through C, over the noise's deviation."""
    process, matrix = correlated("ftrl", made_for, 1.5), made_for.matrix()
    stddev = 1.5 * made_for.sensitivity(PATTERN)
    for n in (1, 5, 7, 12):
        farthest = 0.0
        for count in range(1, PATTERN.most + 1):
            signs = np.array(list(itertools.product([-1, 1], repeat=count))).T
            for taken in itertools.combinations(range(n), count):
                if all(b - a >= PATTERN.separation for a, b in itertools.pairwise(taken)):
                    moved = np.linalg.norm(matrix[:n, list(taken)] @ signs, axis=0).max()
                    farthest = max(farthest, moved / stddev)
        event = process.event(n)
        assert isinstance(event, dp_accounting.GaussianDpEvent)
        assert 1 / event.noise_multiplier == pytest.approx(farthest, rel=1e-6)
    with pytest.raises(InputError, match="ftrl: expected at most the 12 releases of its strategy, got 13"):
        process.event(13)


def test_past_the_last_round_of_a_strategy_nothing_is_released():
    values = released(correlated("ftrl", BANDED, 1.0), jnp.zeros((14, 3)))
    assert np.isfinite(values[:12]).all()
    assert np.isnan(values[12:]).all()


def test_releases_are_made_by_processes_alone():
    with pytest.raises(InputError, match=r"Release: expected Process\.release to make it"):
        Release(SUMS, jnp.zeros(3), jnp.int32(0))
    made, _ = SUMS.release(KEY, jnp.zeros(3), SUMS.init(jnp.zeros(3)), sensitivity=1.0)
    assert made.fresh
    with pytest.raises(AttributeError, match="cannot assign to field 'value'"):
        made.value = jnp.ones(3)  # pyright: ignore[reportAttributeAccessIssue]


def test_a_release_that_was_mapped_is_not_fresh():
    made, _ = SUMS.release(KEY, jnp.zeros(3), SUMS.init(jnp.zeros(3)), sensitivity=1.0)
    mapped = jax.tree.map(lambda leaf: leaf, made)
    compiled = jax.jit(lambda: SUMS.release(KEY, jnp.zeros(3), SUMS.init(jnp.zeros(3)), sensitivity=1.0)[0])()
    assert mapped.process is compiled.process is SUMS
    assert not mapped.fresh
    assert not compiled.fresh
    np.testing.assert_array_equal(mapped.value, made.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gaussian("x", noise_multiplier=-1.0), "noise_multiplier: expected a finite number >= 0, got -1.0"),
        (lambda: gaussian("x", noise_multiplier=math.nan), "noise_multiplier: expected a finite number >= 0, got nan"),
        (lambda: poisson_gaussian("x", rate=0, noise_multiplier=1.0), r"rate: expected a number in \(0, 1\], got 0"),
        (lambda: poisson_gaussian("x", rate=1.1, noise_multiplier=1.0), r"rate: expected a number in .*, got 1.1"),
        (
            lambda: poisson_gaussian("x", rate=0.1, noise_multiplier=0),
            "noise_multiplier: expected a finite number > 0",
        ),
        (lambda: correlated("x", BANDED, 0.0), "noise_multiplier: expected a finite number > 0, got 0.0"),
        (
            lambda: SUMS.release(KEY, jnp.zeros(3), SUMS.init(jnp.zeros(3)), sensitivity=0),
            "sensitivity: expected a finite number > 0, got 0",
        ),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_noise_is_of_the_key_the_name_and_the_number():
    """The same three draw the same noise and fingerprint; any other of them draws another of both."""
    a, b, total = (*(gaussian(name, noise_multiplier=1.0) for name in "ab"), jnp.zeros(8))
    begun = a.init(total)

    def released(seed, process, memory):
        release, after = process.release(jax.random.key(seed), total, memory, sensitivity=1.0)
        return np.asarray(release.value), np.asarray(release.draw), after

    value, draw, after = released(0, a, begun)
    again = released(0, a, begun)
    np.testing.assert_array_equal(value, again[0])
    np.testing.assert_array_equal(draw, again[1])
    for other in (released(1, a, begun), released(0, b, begun), released(0, a, after)):
        assert (value != other[0]).all()
        assert (draw != other[1]).any()
