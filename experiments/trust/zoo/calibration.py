"""Plants faults of calibration: the noise is made for another sensitivity, relation, number of rounds or sampling."""

import math
from functools import partial

import dp_accounting
import jax
import jax.numpy as jnp

from dpaudit import Case, Claim
from dpaudit.auditing.attacks.distinguish import projection
from dpaudit.mechanisms import sampling
from experiments.trust.zoo.fault import (
    GAUSSIAN,
    SIGMA,
    Fault,
    beyond,
    clip,
    event,
    gaussian_epsilon,
    noisy,
    noisy_count,
)

LOCAL = Claim(1.0, 1e-5)
UNIT = jnp.zeros(8).at[0].set(1.0)
RECORDS = jnp.zeros((8, 4))
ONE_RECORD = RECORDS.at[2, 0].set(1.0)

LOOSE = Claim(8.0, 0.05, "add_remove")  # far enough beyond epsilon 1 for trials to show it
CLASSICAL = math.sqrt(2 * math.log(1.25 / LOOSE.delta)) / LOOSE.epsilon
ANALYTIC = dp_accounting.get_sigma_gaussian(LOOSE.epsilon, LOOSE.delta)

ROUNDS = 9

RATE, BATCH_EPSILON, BATCHES = 0.1, 2.0, jnp.zeros(10)
AMPLIFIED = Claim(math.log1p(RATE * math.expm1(BATCH_EPSILON)), neighbouring="add_remove")

BOUNDED = Claim(1.0, 1e-6)


def one_record(key: jax.Array, x: jax.Array, *, sigma: float) -> jax.Array:
    return noisy(key, clip(x), sigma)


def total(key: jax.Array, x: jax.Array) -> jax.Array:
    """Returns the sum, with the noise of the mean."""
    return noisy(key, jnp.sum(clip(x, axis=1), axis=0), SIGMA / len(x))


def mean(key: jax.Array, x: jax.Array) -> jax.Array:
    return noisy(key, jnp.mean(clip(x, axis=1), axis=0), SIGMA / len(x))


def rounds(key: jax.Array, x: jax.Array, *, sigma: float) -> jax.Array:
    """Returns the same record in every round: mu^2 adds up, so sigma must grow by sqrt(ROUNDS)."""
    keys = jax.random.split(key, ROUNDS)
    return jax.vmap(lambda key: one_record(key, x, sigma=sigma))(keys)


def first_batch(key: jax.Array, x: jax.Array) -> jax.Array:
    """Batches in the data's order: who is in the first one is no secret."""
    return noisy_count(key, jnp.sum(jnp.clip(x[:1], 0.0, 1.0)), scale=1 / BATCH_EPSILON, limit=10.0)


def poisson_batch(key: jax.Array, x: jax.Array) -> jax.Array:
    """Every record with probability RATE, on a coin of its own."""
    coin_key, noise_key = jax.random.split(key)
    chosen = sampling.bernoulli(coin_key, RATE, x.shape)
    return noisy_count(noise_key, jnp.sum(jnp.clip(x, 0.0, 1.0) * chosen), scale=1 / BATCH_EPSILON, limit=10.0)


def bound_for(delta: float) -> float:
    """Where Laplace noise of scale 1/epsilon and sensitivity 1 may end: Geng et al. 2018, the truncated Laplacian."""
    return math.log1p(math.expm1(BOUNDED.epsilon) / (2 * delta)) / BOUNDED.epsilon


def truncated(key: jax.Array, x: jax.Array, *, bound: float) -> jax.Array:
    """x + Laplace noise given that it is smaller than the bound: an exponential modulo the bound is one cut there."""
    sign_key, size_key = jax.random.split(key)
    size = jnp.mod(sampling.exponential(size_key) / BOUNDED.epsilon, bound)
    return jnp.clip(x, 0.0, 1.0) + jnp.where(sampling.bernoulli(sign_key, 0.5), size, -size)


FAULTS = (
    Fault(
        "noise for add/remove, claimed for replace",
        "google/differential-privacy issue 378; paper 002, Algorithm 3 against its Section 3.1.2",
        Case(partial(one_record, sigma=SIGMA), -UNIT, UNIT, LOCAL),
        Case(partial(one_record, sigma=2 * SIGMA), -UNIT, UNIT, LOCAL),
        gaussian_epsilon(2 / SIGMA),
        attacks=(projection, beyond(2, UNIT)),
    ),
    Fault(
        "noise of the mean on the sum",
        "DataResponsibly/DataSynthesizer issue 34; the other way round (google-deepmind/jax_privacy issue 383) the "
        "noise is too large, which breaks no promise",
        Case(total, RECORDS, ONE_RECORD, GAUSSIAN),
        Case(mean, RECORDS, ONE_RECORD, GAUSSIAN),
        gaussian_epsilon(len(RECORDS) / SIGMA),
        look={"sensitivity": 1 / len(RECORDS)},
    ),
    Fault(
        "classical Gaussian formula beyond epsilon 1",
        "Balle and Wang 2018, Section 2: sqrt(2 ln(1.25/delta))/epsilon is a theorem for epsilon < 1 only",
        Case(partial(one_record, sigma=CLASSICAL), 0 * UNIT, UNIT, LOOSE),
        Case(partial(one_record, sigma=ANALYTIC), 0 * UNIT, UNIT, LOOSE),
        gaussian_epsilon(1 / CLASSICAL, delta=LOOSE.delta),
        attacks=(beyond(4.3, UNIT, CLASSICAL),),
        trials=4_000_000,
    ),
    Fault(
        "composition left out",
        "Dwork and Roth 2014, Section 3.5; for Gaussians mu^2 adds up over the rounds (Dong, Roth and Su 2022)",
        Case(partial(rounds, sigma=SIGMA), 0 * UNIT, UNIT, GAUSSIAN),
        Case(partial(rounds, sigma=SIGMA * math.sqrt(ROUNDS)), 0 * UNIT, UNIT, GAUSSIAN),
        gaussian_epsilon(math.sqrt(ROUNDS) / SIGMA),
        attacks=(projection, beyond(2, jnp.tile(UNIT, (ROUNDS, 1)))),
    ),
    Fault(
        "amplification claimed for batches in order",
        "pytorch/opacus issue 80 and pull request 128; Chua et al. 2024 on how far shuffling is from Poisson sampling",
        Case(first_batch, BATCHES, BATCHES.at[0].set(1.0), AMPLIFIED),
        Case(poisson_batch, BATCHES, BATCHES.at[0].set(1.0), AMPLIFIED),
        BATCH_EPSILON,
    ),
    Fault(
        "a delta of 1e-2 hidden in truncation",
        "Geng, Ding, Guo and Kumar 2018: Laplace noise that ends at a bound has the delta of that bound",
        Case(partial(truncated, bound=bound_for(1e-2)), jnp.zeros(()), jnp.ones(()), BOUNDED),
        Case(partial(truncated, bound=bound_for(BOUNDED.delta)), jnp.zeros(()), jnp.ones(()), BOUNDED),
        math.inf,
        attacks=(projection, event("beyond the bound", lambda release: release > bound_for(1e-2))),
    ),
)
