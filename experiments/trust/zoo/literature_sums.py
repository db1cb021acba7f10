"""Plants faults of the literature in sums: what is added up, over how many, and what the sum is divided by."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import chi2, ncx2

from dpaudit import Case, Claim
from dpaudit.auditing.attacks.distinguish import projection
from experiments.trust.zoo.fault import GAUSSIAN, SIGMA, Fault, clip, event, noisy, noisy_count, whole_noise

COUNT = Claim(1.0, neighbouring="add_remove")
MANY = jnp.ones(128, jnp.int8).at[7].set(0)  # their sum is the largest int8
ONE_MORE = jnp.ones(128, jnp.int8)

STEPS = jnp.zeros(8)  # who came in at which time
FIRST_STEP = STEPS.at[0].set(1.0)

ROWS = 6
SEVEN = jnp.array([0, 0, 1, 2, 2, 2, 5, -1])  # the category of every record; -1 for the absent one
EIGHT = SEVEN.at[-1].set(4)

WIDTH = 64
TWO = jnp.zeros((3, WIDTH)).at[0, 0].set(1.0).at[1, 0].set(-1.0)  # a record without a gradient is absent
THREE = TWO.at[2, 1].set(1.0)

REPLACE = Claim(GAUSSIAN.epsilon, GAUSSIAN.delta, "replace")
GRADIENTS = jnp.ones((8, 16))
NO_GRADIENT = GRADIENTS.at[2].set(0.0)
STABILITY = 0.01


def noisy_sum(key: jax.Array, x: jax.Array, *, dtype: type) -> jax.Array:
    """Returns the sum of zeros and ones in a whole number of this type."""
    return noisy_count(key, jnp.sum(x, dtype=dtype).astype(jnp.float32), scale=1.0, limit=128.0)


def running_sums(key: jax.Array, x: jax.Array, *, scale: float) -> jax.Array:
    """How many there have been at every time; one record changes all sums from its own on."""
    return jnp.cumsum(jnp.clip(x, 0.0, 1.0)) + whole_noise(key, x.shape, scale=scale)


def histogram(x: jax.Array) -> jax.Array:
    return jnp.sum(jax.nn.one_hot(x, ROWS), axis=0)


def consistent(cells: jax.Array, total: jax.Array) -> jax.Array:
    """Returns the cells, moved so that they add up to the total."""
    return cells + (total - jnp.sum(cells)) / ROWS


def to_the_true_total(key: jax.Array, x: jax.Array) -> jax.Array:
    counts = histogram(x)
    return consistent(counts + whole_noise(key, counts.shape), jnp.sum(counts))


def to_a_noisy_total(key: jax.Array, x: jax.Array) -> jax.Array:
    cells_key, total_key = jax.random.split(key)
    counts = histogram(x)
    cells = counts + whole_noise(cells_key, counts.shape, scale=2.0)
    return consistent(cells, jnp.sum(counts) + whole_noise(total_key, scale=2.0))


def noisy_gradient(key: jax.Array, x: jax.Array) -> jax.Array:
    return noisy(key, jnp.sum(clip(x, axis=1), axis=0))


def over_the_true_size(key: jax.Array, x: jax.Array) -> jax.Array:
    size = jnp.sum(jnp.any(x != 0, axis=1))
    return noisy_gradient(key, x) / jnp.maximum(size, 1)


def over_the_expected_size(key: jax.Array, x: jax.Array) -> jax.Array:
    return noisy_gradient(key, x) / 2


def longer(squares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How often the release's square is larger, over 2 and over 3.

    It is chi squared with WIDTH degrees of freedom times (SIGMA/2)^2 over 2; over 3 it is not central, as one gradient
    is left, and times (SIGMA/3)^2.
    """
    of_two = chi2.sf(squares / (SIGMA / 2) ** 2, WIDTH)
    return of_two, ncx2.sf(squares / (SIGMA / 3) ** 2, WIDTH, SIGMA**-2)


def epsilon_of_the_size() -> float:
    """At least: of the events "the release is longer than t"."""
    of_two, of_three = longer(np.linspace(1.0, 300.0, 300))
    return float(np.log(np.maximum(of_two - GAUSSIAN.delta, 1e-300) / of_three).max())


def normalised(key: jax.Array, x: jax.Array, *, stability: float) -> jax.Array:
    """Returns the sum of gradients over their norms, each of norm at most 1."""
    norms = jnp.linalg.norm(x, axis=1, keepdims=True)
    return noisy(key, jnp.sum(x / (norms + stability), axis=0), 2 * SIGMA)


FAULTS = (
    Fault(
        "a sum that overflows",
        "Casacuberta, Shoup, Vadhan and Wagner 2022, Widespread underestimation of sensitivity in differentially "
        "private libraries and how to fix it",
        Case(partial(noisy_sum, dtype=jnp.int8), MANY, ONE_MORE, COUNT),
        Case(partial(noisy_sum, dtype=jnp.int32), MANY, ONE_MORE, COUNT),
        255.0,
        attacks=(projection, event("below 0", lambda release: release < 0)),
    ),
    Fault(
        "running sums with the noise of one",
        "Dwork, Naor, Pitassi and Rothblum 2010 and Chan, Shi and Song 2011: one record changes all later sums",
        Case(partial(running_sums, scale=1.0), STEPS, FIRST_STEP, COUNT),
        Case(partial(running_sums, scale=float(len(STEPS))), STEPS, FIRST_STEP, COUNT),
        float(len(STEPS)),
        attacks=(projection, event("sum above 4", lambda release: jnp.sum(release) > 4)),
    ),
    Fault(
        "cells that add up to the true total",
        "Hardt, Ligett and McSherry 2012 (MWEM) take the number of records for public; Abowd et al. 2022 on the "
        "invariants of the 2020 census",
        Case(to_the_true_total, SEVEN, EIGHT, COUNT),
        Case(to_a_noisy_total, SEVEN, EIGHT, COUNT),
        math.inf,
        attacks=(projection, event("eight in all", lambda release: jnp.round(jnp.sum(release)) == 8)),
    ),
    Fault(
        "the mean over the true batch size",
        "meta-pytorch/opacus issues 571 (2023) and 819 (2026)",
        Case(over_the_true_size, TWO, THREE, GAUSSIAN),
        Case(over_the_expected_size, TWO, THREE, GAUSSIAN),
        epsilon_of_the_size(),
        attacks=(
            projection,
            event("shorter than of two", lambda release: jnp.sum(release**2) < 0.65 * WIDTH * (SIGMA / 2) ** 2),
        ),
    ),
    Fault(
        "a gradient of zero over its norm",
        "Bu, Wang, Zha and Karypis 2023, Automatic clipping, add a constant to the norm",
        Case(partial(normalised, stability=0.0), GRADIENTS, NO_GRADIENT, REPLACE),
        Case(partial(normalised, stability=STABILITY), GRADIENTS, NO_GRADIENT, REPLACE),
        math.inf,
        attacks=(event("no number", lambda release: jnp.any(jnp.isnan(release))),),
    ),
)
