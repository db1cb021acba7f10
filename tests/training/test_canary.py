"""Audits of trainings: below the accounted epsilon, close to it in the worst case, and beyond it for a fault."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.stats import kstest, norm

import dpaudit
from dpaudit.auditing import one_run as estimates
from dpaudit.training.accounting import epsilon
from dpaudit.training.canary import ABSENT, PRESENT, black_box, one_run, white_box
from dpaudit.training.dp_sgd import dp_sgd
from dpaudit.training.sampling import poisson

KEY = jax.random.key(21)
N, D = 24, 3
DELTA = 0.01
FULL = {"steps": 6, "clip_norm": 0.5, "noise_multiplier": 3.0, "batch_size": N + 1, "optimizer": optax.sgd(0.1)}
SAMPLED = FULL | {"batch_size": 5, "noise_multiplier": 0.8}


def loss(params, example):
    return 0.5 * (example[0] @ params - example[1]) ** 2


def data():
    features = jax.random.normal(jax.random.key(1), (N, D))
    return features, features @ jnp.arange(1.0, D + 1)


def halved_noise(loss_fn, *, noise_multiplier, **settings):
    return dp_sgd(loss_fn, noise_multiplier=noise_multiplier / 2, **settings)


def never_clipped(loss_fn, **settings):
    return dp_sgd(loss_fn, clipping=lambda norms, clip_norm: jnp.ones_like(norms), **settings)


def promised(result):
    assert result.claim is not None
    return result.claim.epsilon


def white(settings, make=dp_sgd):
    return white_box(loss, jnp.zeros(D), data(), delta=DELTA, make=make, **settings)


def test_the_canarys_coordinate_is_the_pair_that_the_accounting_assumes():
    mechanism = white(SAMPLED)
    keys = jax.random.split(KEY, 2_000)
    absent = np.asarray(jax.vmap(lambda key: mechanism.apply(key, ABSENT))(keys)).ravel()
    present = np.asarray(jax.vmap(lambda key: mechanism.apply(key, PRESENT))(keys)).ravel()
    assert kstest(absent, norm(0, 0.8).cdf).pvalue > 1e-3
    assert kstest(absent, norm(0, 0.9).cdf).pvalue < 1e-3
    share = 5 / (N + 1)
    error = np.sqrt((0.8**2 + share * (1 - share)) / present.size)
    assert abs(present.mean() - share) < 4 * error < 0.2 * share


def test_a_sound_training_is_consistent_and_close_in_the_worst_case():
    result = dpaudit.audit(white(FULL), ABSENT, PRESENT, key=KEY, trials=8_000)
    assert result.neighbouring == "add_remove"
    assert result.verdict == "consistent"
    assert result.epsilon_lower > 0.55 * promised(result)


@pytest.mark.parametrize("make", [halved_noise, never_clipped])
def test_a_fault_in_the_training_is_a_violation(make):
    assert dpaudit.audit(white(FULL, make), ABSENT, PRESENT, key=KEY, trials=8_000).verdict == "violation"


def many(make, noise_multiplier):
    settings = FULL | {"batch_size": N + 500, "noise_multiplier": noise_multiplier, "steps": 4}
    found, params = one_run(KEY, loss, jnp.zeros(D), data(), canaries=500, make=make, **settings)
    spent = epsilon(poisson(N + 500, N + 500), noise_multiplier, 4, delta=1e-5)
    assert found.scores.shape == found.included.shape == (500,)
    assert 200 < found.included.sum() < 300
    assert np.isfinite(params).all()
    plans = [estimates.Plan(n, n) for n in (25, 100, 250)]
    return estimates.audit(found.scores, found.included, plans, delta=1e-5, confidence=0.95).epsilon_lower, spent


def test_one_run_certifies_something_and_no_more_than_was_spent():
    lower, spent = many(dp_sgd, 2.0)
    assert 0.2 < lower <= spent


def test_one_run_sees_that_nothing_was_clipped():
    lower, spent = many(never_clipped, 4.0)
    assert lower > spent


def test_the_loss_of_a_strange_target_gives_it_away_and_no_more_than_was_spent():
    target = jnp.full(D, 10.0), jnp.float32(-200.0)
    mechanism = black_box(loss, jnp.zeros(D), data(), target, delta=DELTA, **FULL)
    result = dpaudit.audit(mechanism, ABSENT, PRESENT, key=KEY, trials=8_000)
    assert result.verdict == "consistent"
    assert result.epsilon_lower > 0.25 * promised(result)


def test_bad_input_is_refused():
    with pytest.raises(dpaudit.InputError, match="steps: expected a whole number >= 1, got 0"):
        white(FULL | {"steps": 0})
    with pytest.raises(dpaudit.InputError, match="batch_size: expected at most the 25 examples there are, got 26"):
        white(FULL | {"batch_size": 26})
    with pytest.raises(dpaudit.InputError, match=r"data: expected arrays with one leading axis of n >= 1 examples"):
        white_box(loss, jnp.zeros(D), (jnp.ones((3, D)), jnp.ones(4)), delta=DELTA, **FULL)
    with pytest.raises(dpaudit.InputError, match="canaries: expected a whole number >= 1, got 0"):
        one_run(KEY, loss, jnp.zeros(D), data(), canaries=0, **FULL)
