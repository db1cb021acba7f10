"""Plants faults of the literature in the noise itself: its support, its seed, its ends, its scale and its norm."""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from dpaudit import Case, Claim
from dpaudit.auditing.attacks.distinguish import Distinguisher, projection
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
    whole_noise,
)

COUNT = Claim(1.0, neighbouring="add_remove")
ABSENT = jnp.zeros(8)  # who has the property that is counted
PRESENT = ABSENT.at[5].set(1.0)

HALF_WIDTH = 2  # of the uniform noise; its variance, 2, is about that of the twin's, 1.84

SEED_BITS = 15
CELLS = 4
HISTOGRAM = jnp.zeros((8, CELLS))  # a row for each record; an absent one is zero
ONE_RECORD = HISTOGRAM.at[2, 1].set(1.0)
STEP = 2.0**-8  # of the grid that noise of scale 1 is on

DIMENSION = 16
GRADIENT = jnp.full(DIMENSION, DIMENSION**-0.5)


def counted(x: jax.Array) -> jax.Array:
    return jnp.sum(jnp.clip(x, 0.0, 1.0))


def within_bounds(key: jax.Array, x: jax.Array) -> jax.Array:
    return counted(x) + jax.random.randint(key, (), -HALF_WIDTH, HALF_WIDTH + 1)


def discrete_laplace(key: jax.Array, x: jax.Array) -> jax.Array:
    return counted(x) + whole_noise(key)


def cells(key: jax.Array, x: jax.Array) -> jax.Array:
    return noisy_count(key, jnp.sum(jnp.clip(x, 0.0, 1.0), axis=0), scale=1.0, limit=10.0)


def of_a_process_id(key: jax.Array) -> jax.Array:
    """Returns a generator that is seeded with 15 bits."""
    return jax.random.key(jax.random.bits(key, dtype=jnp.uint32) >> (32 - SEED_BITS))


def few_seeds(key: jax.Array, x: jax.Array) -> jax.Array:
    return cells(of_a_process_id(key), x)


def spelled(histogram: jax.Array) -> jax.Array:
    """Returns a histogram as one number of 32 bits, which two of them rarely share."""
    steps = jnp.round(histogram / STEP).astype(jnp.int32).astype(jnp.uint32)
    return jnp.sum(steps * jnp.array([1, 40503, 2654435761, 2246822519], jnp.uint32), dtype=jnp.uint32)


def all_seeds(*_: Any) -> Any:
    """Returns the attack of one who draws the noise of every seed beforehand."""

    @jax.vmap
    def of_world_1(seed: jax.Array) -> jax.Array:
        return spelled(cells(jax.random.key(seed), ONE_RECORD))

    table = jnp.sort(of_world_1(jnp.arange(2**SEED_BITS, dtype=jnp.uint32)))

    def score(release: jax.Array) -> jax.Array:
        number = spelled(release)
        place = jnp.minimum(jnp.searchsorted(table, number), len(table) - 1)
        return jnp.asarray(table[place] == number, jnp.float32)

    return score


def redrawn(key: jax.Array, x: jax.Array) -> jax.Array:
    """Discrete Laplace noise, drawn until the count is between 0 and the number of records: that law in one draw."""
    possible = jnp.arange(len(x) + 1.0)
    return possible[jax.random.categorical(key, -jnp.abs(possible - counted(x)))]


def clamped(key: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.clip(discrete_laplace(key, x), 0.0, len(x))


def one_record(key: jax.Array, x: jax.Array, *, sigma: float) -> jax.Array:
    return noisy(key, clip(x), sigma)


def in_every_coordinate(key: jax.Array, x: jax.Array, *, scale: float) -> jax.Array:
    """Returns a gradient of L2 norm 1, so of L1 norm up to sqrt(DIMENSION)."""
    return noisy_count(key, clip(x), scale=scale, limit=10.0)


FAULTS = (
    Fault(
        "uniform noise between bounds",
        "Asghar and Kaafar 2020, Averaging attacks on bounded noise-based disclosure control algorithms",
        Case(within_bounds, ABSENT, PRESENT, COUNT),
        Case(discrete_laplace, ABSENT, PRESENT, COUNT),
        math.inf,
        attacks=(projection, event("beyond world 0's bound", lambda release: release > HALF_WIDTH)),
    ),
    Fault(
        "noise from a seed of 15 bits",
        "CVE-2008-0166 (2008): a process id was the only seed; Garfinkel and Leclerc 2020, Randomness concerns when "
        "deploying differential privacy",
        Case(few_seeds, HISTOGRAM, ONE_RECORD, COUNT),
        Case(cells, HISTOGRAM, ONE_RECORD, COUNT),
        math.inf,
        attacks=(projection, Distinguisher(all_seeds, 0.5, "one of world 1's 32,768")),
    ),
    Fault(
        "noise drawn again until the count is in range",
        "Holohan, Antonatos, Braghin and Mac Aonghusa 2020, The bounded Laplace mechanism in differential privacy",
        Case(redrawn, ABSENT, PRESENT, COUNT),
        Case(clamped, ABSENT, PRESENT, COUNT),
        1
        + math.log(math.exp(-1) + (1 - math.exp(-8)) / (1 - math.exp(-1)))  # of the law around 1 ...
        - math.log((1 - math.exp(-9)) / (1 - math.exp(-1))),  # ... and around 0
        attacks=(projection, event("above 0", lambda release: release > 0)),
    ),
    Fault(
        "a variance where a standard deviation belongs",
        "tensorflow/privacy's normal noise takes a standard deviation, paper 003 (Section 4) calls 0.5 a variance; no "
        "report found of this direction",
        Case(partial(one_record, sigma=math.sqrt(SIGMA)), 0 * GRADIENT, GRADIENT, GAUSSIAN),
        Case(partial(one_record, sigma=SIGMA), 0 * GRADIENT, GRADIENT, GAUSSIAN),
        gaussian_epsilon(1 / math.sqrt(SIGMA)),
        attacks=(projection, beyond(2.5, GRADIENT, math.sqrt(SIGMA))),
        look={"sensitivity": 1.0},
    ),
    Fault(
        "Laplace noise for the L2 sensitivity",
        "Dwork, McSherry, Nissim and Smith 2006, Proposition 1: the sensitivity is that of the L1 norm",
        Case(partial(in_every_coordinate, scale=1.0), 0 * GRADIENT, GRADIENT, COUNT),
        Case(partial(in_every_coordinate, scale=math.sqrt(DIMENSION)), 0 * GRADIENT, GRADIENT, COUNT),
        math.sqrt(DIMENSION),
        attacks=(projection, event("sum above 12", lambda release: jnp.sum(release) > 12)),
    ),
)
