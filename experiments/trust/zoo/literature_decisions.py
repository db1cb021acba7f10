"""Plants faults of the literature in decisions on the data without noise: which cells, how much noise, whether at
all."""

import math
from functools import partial

import jax
import jax.numpy as jnp

from dpaudit import Case, Claim
from dpaudit.auditing.attacks.distinguish import projection
from dpaudit.mechanisms import sampling
from experiments.trust.zoo.fault import Fault, event, whole_noise

COUNT = Claim(1.0, neighbouring="add_remove")
KEYS = 6
WITHOUT = jnp.array([0, 0, 1, 2, 2, 2, 5, -1])  # the key of every record; -1 for the absent one
WITH = WITHOUT.at[-1].set(4)

DECAY = math.exp(-COUNT.epsilon)
LAST = 5  # the least noise that lets a count of 1 through
THRESHOLDED = Claim(COUNT.epsilon, DECAY**LAST / (1 + DECAY), "add_remove")  # delta: of noise of LAST or more

GAP_OF_FIVE = jnp.array([0, 0, 0, 0, 0, 0, 1, -1])
GAP_OF_SIX = GAP_OF_FIVE.at[-1].set(0)

FEW_ONES = jnp.array([0.0, 0.0, 0.0, 0.0, 1.0])
TWO_ONES = jnp.array([0.0, 0.0, 0.0, 1.0, 1.0])
MEDIAN = Claim(1.0, 1e-3)
BETA = MEDIAN.epsilon / (2 * math.log(2 / MEDIAN.delta))

HALVINGS = 6
SALARIES = jnp.array([0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9])
ANOTHER = SALARIES.at[4].set(0.95)
QUANTILE = Claim(1.0)


def histogram(x: jax.Array) -> jax.Array:
    return jnp.sum(jax.nn.one_hot(x, KEYS), axis=0)


def every_cell(key: jax.Array, x: jax.Array) -> jax.Array:
    return histogram(x) + whole_noise(key, (KEYS,))


def cells_that_exist(key: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.where(histogram(x) > 0, every_cell(key, x), 0.0)


def common_keys(key: jax.Array, x: jax.Array, *, least: int) -> jax.Array:
    """Returns the noisy counts of keys that occur and whose noisy count is at least so large, 0 for the others."""
    noisy = cells_that_exist(key, x)
    return jnp.where(noisy >= least, noisy, 0.0)


def proposed(key: jax.Array, x: jax.Array, *, scale: float) -> jax.Array:
    """Returns the most common key if it leads by LAST + 1 after noise, else -1; one record changes the lead by at most
    1."""
    counts = histogram(x)
    second, first = jnp.sort(counts)[-2:]
    return jnp.where(first - second + whole_noise(key, scale=scale) > LAST, jnp.argmax(counts), -1)


def local_sensitivity(values: jax.Array, away: int = 0) -> jax.Array:
    """How far one record moves the median of data in [0, 1] that are ``away`` records from these."""
    middle = len(values) // 2
    padded = jnp.concatenate([jnp.zeros(away + 1), jnp.sort(values), jnp.ones(away + 1)])
    shifts = jnp.arange(away + 2)
    return jnp.max(padded[middle + away + 1 + shifts] - padded[middle + shifts])


def smooth_sensitivity(values: jax.Array) -> jax.Array:
    distances = range(len(values) + 1)
    return jnp.max(jnp.stack([math.exp(-BETA * k) * local_sensitivity(values, k) for k in distances]))


def noisy_median(key: jax.Array, x: jax.Array, *, smooth: bool) -> jax.Array:
    """Returns the median with Laplace noise, on a grid of 2^-6, so without the noise's last bits."""
    x = jnp.clip(x, 0.0, 1.0)
    scale = 2 / MEDIAN.epsilon * (smooth_sensitivity(x) if smooth else local_sensitivity(x))
    up, down = sampling.exponential(key, (2,))
    return jnp.round(64 * (jnp.sort(x)[len(x) // 2] + scale * (up - down))) / 64


def halved(key: jax.Array, x: jax.Array, *, scale: float) -> jax.Array:
    """Returns a median by binary search in [0, 1): the middle of the last of 2^HALVINGS intervals."""
    low, width = jnp.float32(0.0), 1.0
    for step_key in jax.random.split(key, HALVINGS):
        width = width / 2
        below = jnp.sum(x < low + width) + whole_noise(step_key, scale=scale)
        low = jnp.where(below < len(x) / 2, low + width, low)
    return low + width / 2


FAULTS = (
    Fault(
        "noise on the cells that are not empty",
        "Korolova, Kenthapadi, Mishra and Ntoulas 2009, Releasing search queries and clicks privately, on why rare "
        "keys need a threshold; Ghazi et al. 2023 on gradients of embeddings",
        Case(cells_that_exist, WITHOUT, WITH, COUNT),
        Case(every_cell, WITHOUT, WITH, COUNT),
        math.inf,
        attacks=(projection, event("cell 4 is not 0", lambda release: release[4] != 0)),
    ),
    Fault(
        "rare keys with a threshold too low by one",
        "opendp/opendp issue 2922 (2026): keys at the threshold are released, delta is that of those above it",
        Case(partial(common_keys, least=LAST), WITHOUT, WITH, THRESHOLDED),
        Case(partial(common_keys, least=LAST + 1), WITHOUT, WITH, THRESHOLDED),
        math.inf,
        attacks=(projection, event("key 4 is there", lambda release: release[4] != 0)),
    ),
    Fault(
        "propose-test-release whose test has no noise",
        "Dwork and Lei 2009, Differential privacy and robust statistics: the distance is noised before it is tested",
        Case(partial(proposed, scale=0.0), GAP_OF_FIVE, GAP_OF_SIX, THRESHOLDED),
        Case(partial(proposed, scale=1 / COUNT.epsilon), GAP_OF_FIVE, GAP_OF_SIX, THRESHOLDED),
        math.inf,
        attacks=(projection, event("an answer", lambda release: release >= 0)),
    ),
    Fault(
        "a median with noise of the local sensitivity",
        "Nissim, Raskhodnikova and Smith 2007, Smooth sensitivity and sampling in private data analysis, Section 1.3",
        Case(partial(noisy_median, smooth=False), FEW_ONES, TWO_ONES, MEDIAN),
        Case(partial(noisy_median, smooth=True), FEW_ONES, TWO_ONES, MEDIAN),
        math.inf,
        attacks=(projection, event("not 0", lambda release: release != 0)),
    ),
    Fault(
        "a quantile by comparisons without noise",
        "no report found of just this; Huang, Liang and Yi 2021, Instance-optimal mean estimation under differential "
        "privacy, put noise on every comparison of the search",
        Case(partial(halved, scale=0.0), SALARIES, ANOTHER, QUANTILE),
        Case(partial(halved, scale=HALVINGS / QUANTILE.epsilon), SALARIES, ANOTHER, QUANTILE),
        math.inf,
        attacks=(projection, event("above 0.5", lambda release: release > 0.5)),
    ),
)
