"""Plants faults of clipping: a record can move the release by more than the noise was made for.

Records are gradients, [n, d]; the absent one is zero. Every release is a sum or mean with Gaussian noise.
"""

from functools import partial

import jax
import jax.numpy as jnp

from dpaudit import Case, Claim
from dpaudit.auditing.attacks.distinguish import projection
from experiments.trust.zoo.fault import GAUSSIAN, SIGMA, Fault, beyond, clip, event, gaussian_epsilon, noisy

ABSENT = jnp.zeros((8, 16))
REPLACE = Claim(GAUSSIAN.epsilon, GAUSSIAN.delta, "replace")


def record(gradient: jax.Array) -> jax.Array:
    """Returns the records with this one in the third place."""
    return ABSENT.at[2].set(gradient)


def unclipped_sum(key: jax.Array, x: jax.Array) -> jax.Array:
    return noisy(key, jnp.sum(x, axis=0))


def clipped_sum(key: jax.Array, x: jax.Array, *, axis: int = 1) -> jax.Array:
    """axis 1: the norm of every record; axis 0: of every coordinate over all records."""
    return noisy(key, jnp.sum(clip(x, axis=axis), axis=0))


def clipped_mean(key: jax.Array, x: jax.Array) -> jax.Array:
    return noisy(key, clip(jnp.mean(x, axis=0)), 2 * SIGMA / len(x))


def mean_of_clipped(key: jax.Array, x: jax.Array) -> jax.Array:
    return noisy(key, jnp.mean(clip(x, axis=1), axis=0), 2 * SIGMA / len(x))


def narrow_sum(key: jax.Array, x: jax.Array) -> jax.Array:
    """Clipped in float32, summed in the parameters' bfloat16, with noise in float32."""
    return noisy(key, jnp.sum(clip(x, axis=1), axis=0).astype(jnp.bfloat16).astype(jnp.float32))


def layerwise(key: jax.Array, x: jax.Array) -> jax.Array:
    """One record, [layers, d]: every layer clipped to norm 1, noise for norm 1 in all."""
    return noisy(key, clip(x, axis=1))


def as_a_whole(key: jax.Array, x: jax.Array) -> jax.Array:
    return noisy(key, clip(x))


ONE_LARGE, ALL_LARGE = jnp.zeros(16).at[0].set(10.0), jnp.full(16, 10.0)
LAYERS = jnp.zeros((9, 4))
MANY = jnp.zeros((600, 16)).at[:514, 0].set(10.0)  # 514 lies between 512 and 516, which bfloat16 has

FAULTS = (
    Fault(
        "forgot to clip",
        "pytorch/opacus pull request 664: an engine that never passed its clip norm on",
        Case(unclipped_sum, ABSENT, record(ONE_LARGE / 2), GAUSSIAN),
        Case(clipped_sum, ABSENT, record(ONE_LARGE / 2), GAUSSIAN),
        gaussian_epsilon(5 / SIGMA),
        look={"sensitivity": 1.0},
    ),
    Fault(
        "clipped the mean rather than each example",
        "Abadi et al. 2016, Algorithm 1 clips every example; tensorflow/privacy issue 46 on what else changes",
        Case(clipped_mean, record(-ONE_LARGE), record(ONE_LARGE), REPLACE),
        Case(mean_of_clipped, record(-ONE_LARGE), record(ONE_LARGE), REPLACE),
        gaussian_epsilon(len(ABSENT) / SIGMA),
        look={"sensitivity": 2 / len(ABSENT)},
    ),
    Fault(
        "norm per layer, claimed for the whole",
        "fedbiomed/fedbiomed issue 1443, item 4; sqrt(layers) as in pytorch/opacus issue 202",
        Case(layerwise, LAYERS, LAYERS + 1, GAUSSIAN),
        Case(as_a_whole, LAYERS, LAYERS + 1, GAUSSIAN),
        gaussian_epsilon(3 / SIGMA),
        attacks=(projection, beyond(2, LAYERS + 1)),
        look={"sensitivity": 1.0},
    ),
    Fault(
        "clip along the wrong axis",
        "no report found of just this; pytorch/opacus pull request 751 mends a norm contracted over the wrong axis",
        Case(partial(clipped_sum, axis=0), ABSENT, record(ALL_LARGE), GAUSSIAN),
        Case(clipped_sum, ABSENT, record(ALL_LARGE), GAUSSIAN),
        gaussian_epsilon(4 / SIGMA),
        attacks=(projection, beyond(2, ALL_LARGE)),
        look={"sensitivity": 1.0},
    ),
    Fault(
        "clipped sum added up in bfloat16",
        "dpaudit's own clipped_sum, which added up in the type of the parameters",
        Case(narrow_sum, MANY, MANY.at[514, 0].set(10.0), GAUSSIAN),
        Case(clipped_sum, MANY, MANY.at[514, 0].set(10.0), GAUSSIAN),
        gaussian_epsilon(4 / SIGMA),
        attacks=(projection, event("beyond 512 + 2 sigma", lambda release: release[0] > 512 + 2 * SIGMA)),
        look={"sensitivity": 1.0},
    ),
)
