"""Canary users in real trainings: as far apart as is accounted, and faults that are called."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.special import ndtr

import dpaudit
from dpaudit import InputError
from dpaudit.auditing.bounds.gdp import epsilon_from_mu
from dpaudit.audits import user_canary
from dpaudit.personalization.user_level import dp_ftrl, dp_sgd, users
from dpaudit.training.matrix_noise import banded, blt, independent, restarted, tree
from dpaudit.training.sampling import cyclic, participation, poisson, shuffled

KEY = jax.random.key(21)
N, ROUNDS = 4, 8
COHORTS = cyclic(N, 1)
PATTERN = COHORTS.participation(ROUNDS)  # twice, four rounds apart
STRATEGIES = {
    "independent": lambda: independent(PATTERN),
    "tree": lambda: restarted(tree(participation(4, separation=4)), 2),
    "banded": lambda: banded(PATTERN, bands=4),
    "blt": lambda: blt(PATTERN, buffers=1),
}


def loss(params, example):
    return jnp.sum(params["w"] * example)


def recipe(strategy, *, noise_multiplier, true=1.0, **changed):
    """``true`` of the noise that is claimed."""

    def make(loss_fn, *, noise_multiplier, **settings):
        return dp_ftrl(loss_fn, strategy=strategy, noise_multiplier=true * noise_multiplier, **settings)

    everyone = users(KEY, np.array(jax.random.normal(KEY, (2 * N, 2))), np.arange(2 * N) // 2)
    asked = user_canary.Recipe(
        loss, {"w": jnp.zeros(2)}, everyone, ROUNDS, COHORTS, 0.3, noise_multiplier, optax.sgd(0.1), make
    )
    return asked._replace(**changed)


def scores_of(asked, strategy, trials, key=KEY):
    """[2, trials]; the world is an argument, so that a training is compiled once for both."""
    seat = user_canary.worst_user(asked, strategy)
    assert seat.length == pytest.approx(strategy.sensitivity(PATTERN), rel=1e-6)
    release, read = user_canary.release(asked, seat.user), user_canary.statistic(asked, strategy, seat)

    @jax.jit
    def played(keys, present):
        return jax.lax.map(jax.vmap(lambda key: read(release(key, present))), keys.reshape(-1, 1_000)).ravel()

    keys = jax.random.split(key, (2, trials))
    return np.stack([played(keys[world], float(world)) for world in (0, 1)])


@pytest.mark.integration
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in ("tree", "blt"))) for name in STRATEGIES]
)
def test_a_worst_case_user_is_told_as_well_as_is_accounted(name):
    strategy = STRATEGIES[name]()
    scores = scores_of(recipe(strategy, noise_multiplier=0.5), strategy, 6_000)
    found = user_canary.shift(scores)
    assert abs(found.mu - 2) < 4 * found.error < 0.1
    assert abs(scores[0].mean()) < 4 / np.sqrt(6_000)
    assert abs(scores[0].std() - 1) < 4 / np.sqrt(2 * 6_000)
    assert user_canary.mu_bounds(scores, threshold=1.0, confidence=0.999)[0] < 2


@pytest.mark.integration
def test_noise_that_is_a_tenth_too_small_is_called():
    strategy = STRATEGIES["banded"]()
    scores = scores_of(recipe(strategy, noise_multiplier=0.5, true=0.9), strategy, 8_000)
    assert user_canary.shift(scores).mu == pytest.approx(2 / 0.9, rel=0.05)
    assert user_canary.mu_bounds(scores, threshold=1.0, confidence=0.999)[0] > 2


@pytest.mark.slow
@pytest.mark.parametrize("name", STRATEGIES)
def test_at_epsilon_one_the_audited_mu_is_within_3_percent(name):
    strategy = STRATEGIES[name]()
    mu = 0.268  # epsilon 1 at delta 1e-5
    assert epsilon_from_mu(mu, 1e-5) == pytest.approx(1, abs=2e-3)
    key = jax.random.fold_in(KEY, list(STRATEGIES).index(name))
    scores = scores_of(recipe(strategy, noise_multiplier=1 / mu), strategy, 200_000, key)
    assert user_canary.shift(scores).mu == pytest.approx(mu, rel=0.03)
    faulty = scores_of(recipe(strategy, noise_multiplier=1 / mu, true=0.9), strategy, 200_000, key)
    assert user_canary.shift(faulty).mu == pytest.approx(mu / 0.9, rel=0.03)
    assert user_canary.mu_bounds(faulty, threshold=mu / 2, confidence=0.95)[0] > mu


BEST = 2.75  # threshold of the largest of the rounds, in clip norms above the crowd


def in_crowd(sampling):
    steps, everyone = 10, users(KEY, np.zeros((10, 2)), np.arange(10))
    asked = user_canary.Recipe(loss, {"w": jnp.zeros(2)}, everyone, steps, sampling, 0.3, 0.6, optax.sgd(0.1), dp_sgd)
    mechanism = user_canary.in_crowd(asked, 9, delta=0.05)
    rule = user_canary.largest._replace(threshold=BEST - 1)  # a round without the canary is pushed to -1
    return dpaudit.audit(mechanism, 0.0, 1.0, key=KEY, trials=10_000, confidence=0.99, distinguisher=rule)


@pytest.mark.slow
def test_shuffling_accounted_as_poisson_is_caught():
    amplified = poisson(10, 1)
    sound = in_crowd(amplified)
    assert sound.claim is not None
    assert sound.claim.epsilon == pytest.approx(1.638, abs=1e-3)
    assert sound.verdict == "consistent"
    found = in_crowd(shuffled(10, 1)._replace(event=amplified.event))
    assert found.verdict == "violation"
    below = ndtr(BEST / 0.6) ** 9 * ndtr((BEST - np.array([1, 2])) / 0.6)  # one of 10 rounds is moved by 1, or by 2
    exact = np.log((1 - below[1] - 0.05) / (1 - below[0]))
    assert exact == pytest.approx(3.44, abs=0.01)
    assert sound.claim.epsilon < found.epsilon_lower < exact < found.epsilon_upper


def one_run(true, canaries):
    size, cohorts = 1_500, cyclic(120, 30)
    strategy = banded(cohorts.participation(ROUNDS), bands=3)
    asked = recipe(
        strategy,
        noise_multiplier=1.0,
        true=true,
        params={"w": jnp.zeros(size)},
        users=users(KEY, np.array(jax.random.normal(KEY, (120, size))), np.arange(120)),
        sampling=cohorts,
    )
    return user_canary.one_run(KEY, asked, strategy, canaries=canaries, delta=1e-5, confidence=0.95)[0]


@pytest.mark.integration
def test_canaries_of_a_single_training_measure_its_noise():
    sound, half = (one_run(true, 80) for true in (1.0, 0.5))
    error = 1 / np.sqrt(80)
    assert sound.mu_upper - sound.mu == pytest.approx(1.645 * error, rel=0.1)
    assert abs(sound.mu - 1) < 3 * error
    assert half.mu_lower > 1
    assert half.epsilon_lower > float(epsilon_from_mu(1.0, 1e-5))


def one_short_run(make):
    asked = recipe(STRATEGIES["independent"](), noise_multiplier=1.0, make=make)
    return user_canary.one_run(KEY, asked, STRATEGIES["independent"](), canaries=2, delta=1e-5, confidence=0.95)


def test_rounds_without_accounting_are_no_evidence():
    """Those after the last of the strategy that the noise is made for release NaN: they were scored 0, so mu was 0."""
    shorter = independent(COHORTS.participation(4))
    with pytest.raises(InputError, match="gradients: expected at most the 4 releases of its strategy, got 8"):
        one_short_run(lambda loss_fn, **settings: dp_ftrl(loss_fn, strategy=shorter, **settings))


def test_releases_that_are_not_numbers_are_no_evidence():
    def make(loss_fn, **settings):
        training = dp_ftrl(loss_fn, strategy=STRATEGIES["independent"](), **settings)
        own = training.protocol

        def release(key, inside, memory):
            total, number = inside
            return own.release(key, (jax.tree.map(lambda x: x * jnp.nan, total), number), memory)

        return training._replace(protocol=own._replace(release=release))

    with pytest.raises(InputError, match="releases: expected finite numbers, got 16 NaN or infinite of 16"):
        one_short_run(make)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda r, s: user_canary.release(r, 8), r"user: expected one of 0\.\.3, got 8"),
        (
            lambda r, s: user_canary.shift(np.zeros((3, 4))),
            r"scores: expected those of two worlds, \[2, n\] with n >= 2",
        ),
        (
            lambda r, s: user_canary.one_run(KEY, r, s, canaries=9, delta=1e-5, confidence=0.9),
            "canaries: expected at most the 4 users, got 9",
        ),
        (lambda r, s: user_canary.shift(np.full((2, 9), np.nan)), "scores: expected finite numbers, got 18 NaN"),
        (lambda r, s: user_canary.shift(np.ones((2, 9))), "deviation: expected a finite number > 0, got 0"),
        (
            lambda r, s: user_canary.mu_bounds(np.full((2, 9), np.nan), threshold=0.5, confidence=0.9),
            "scores: expected numbers, got 18 NaN of 18",
        ),
        (
            lambda r, s: user_canary.worst_user(r._replace(rounds=9), s),
            "rounds: expected at most the 8 of the strategy",
        ),
        (
            lambda r, s: user_canary.statistic(r, s, user_canary.Seat(0, np.zeros(8), 0.0)),
            r"length: expected a finite number > 0, got 0\.0",
        ),
        (
            lambda r, s: user_canary.release(r._replace(loss_fn=lambda p, x: jnp.linalg.norm(p["w"] * (x - x))), 1),
            "users: expected examples of user 1, padding included, with a finite gradient at params",
        ),
    ],
)
def test_bad_input_is_refused(call, message):
    strategy = STRATEGIES["independent"]()
    with pytest.raises(InputError, match=message):
        call(recipe(strategy, noise_multiplier=1.0), strategy)


@pytest.mark.integration
def test_a_training_hands_over_the_curve_that_it_was_accounted_with():
    everyone = users(KEY, np.zeros((10, 2)), np.arange(10))
    asked = user_canary.Recipe(
        loss, {"w": jnp.zeros(2)}, everyone, 4, poisson(10, 1), 0.3, 0.6, optax.sgd(0.1), dp_sgd
    )
    curve, point = user_canary.in_crowd(asked, 9).claim, user_canary.in_crowd(asked, 9, delta=0.05).claim
    assert curve is not None
    assert point is not None
    assert curve.is_curve
    assert curve.epsilon_at(0.05) == pytest.approx(point.epsilon, rel=1e-3)
