"""Plants faults of keys: noise that is drawn once and used twice cancels in a difference."""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from dpaudit import Case, Claim
from dpaudit.personalization.boundary import processes
from dpaudit.training.dp_sgd import add_noise
from experiments.trust.zoo.fault import GAUSSIAN, SIGMA, Fault, clip, event, noisy, with_learned

CLIENTS = jnp.zeros((4, 3))
ONE_CLIENT = CLIENTS.at[0, 0].set(1.0)
LOCAL = Claim(1.0, 1e-5)

WEIGHTS = jnp.zeros((4, 8))  # a gradient, split over 4 devices
ONE_GRADIENT = WEIGHTS.at[0, 0].set(1.0)

UPDATES = jnp.zeros((3, 4))  # one client's, by round
ONE_UPDATE = UPDATES.at[0, 0].set(1.0)

TOTAL = jnp.zeros(4)  # what a protocol sums up, and releases twice
ONE_USER = TOTAL.at[0].set(1.0)
Z = SIGMA / math.sqrt(0.2), SIGMA / math.sqrt(0.8)  # of t and of 2 t: shares of mu^2 that add up to one


def clients(key: jax.Array, x: jax.Array, *, keys: Callable[[jax.Array, int], jax.Array]) -> jax.Array:
    """Every client's own noisy message, as the server gets them."""
    return jax.vmap(lambda key, x: noisy(key, clip(x), 2 * SIGMA))(keys(key, len(x)), x)


def sharded(key: jax.Array, x: jax.Array, *, key_of: Callable[[jax.Array, jax.Array], jax.Array]) -> jax.Array:
    """Every device adds noise to its shard of one gradient that is clipped as a whole."""

    def device(shard: jax.Array) -> jax.Array:
        norm = jnp.sqrt(jax.lax.psum(jnp.sum(shard * shard), "devices"))
        return noisy(key_of(key, jax.lax.axis_index("devices")), shard / jnp.maximum(1.0, norm))

    return jax.vmap(device, axis_name="devices")(x)


def by_round(key: jax.Array, x: jax.Array, *, key_of: Callable[[jax.Array, jax.Array], jax.Array]) -> jax.Array:
    """Returns a noisy update a round; one client may change all of them, so mu^2 is shared out over the rounds."""
    sigma = SIGMA * math.sqrt(len(x))

    def step(number: jax.Array, update: jax.Array) -> tuple[jax.Array, jax.Array]:
        return number + 1, noisy(key_of(key, number), clip(update), sigma)

    return jax.lax.scan(step, jnp.int32(0), x)[1]


def two_releases(
    key: jax.Array, x: jax.Array, *, release: Callable[[jax.Array, str, jax.Array, float, float], jax.Array]
) -> jax.Array:
    """One round of a protocol: t by one process and 2 t by another, both handed the round's key, [2, 4]."""
    return jnp.stack([release(key, "a", x, 1.0, Z[0]), release(key, "b", 2 * x, 2.0, Z[1])])


def by_key(key: jax.Array, name: str, total: jax.Array, sensitivity: float, multiplier: float) -> jax.Array:
    """Noise from the key alone, whoever releases."""
    del name
    return add_noise(key, total, sensitivity * multiplier)


def by_process(key: jax.Array, name: str, total: jax.Array, sensitivity: float, multiplier: float) -> jax.Array:
    process = processes.gaussian(name, noise_multiplier=multiplier)
    return process.release(key, total, process.init(total), sensitivity=sensitivity)[0].value


def cancelled(told: jax.Array) -> jax.Array:
    """t, where both releases of :func:`two_releases` have the same draws."""
    return (2 * Z[1] * told[0] - Z[0] * told[1]) / (2 * Z[1] - 2 * Z[0])


def same(key: jax.Array, number: jax.Array) -> jax.Array:
    del number
    return key


def repeated(key: jax.Array, count: int) -> jax.Array:
    return jnp.broadcast_to(key, (count,))


FIRST_LESS_SECOND = event("first row less second", lambda rows: jnp.abs(rows[0, 0] - rows[1, 0] - 1.0) < 1e-3)

NOISE_CANCELLED = event("noise cancelled", lambda told: jnp.abs(cancelled(told)[0] - 1.0) < 1e-3)

FAULTS = (
    Fault(
        "the same key for every client",
        "google-deepmind/optax issue 148: the key must be split after it is replicated",
        Case(partial(clients, keys=repeated), CLIENTS, ONE_CLIENT, LOCAL),
        Case(partial(clients, keys=jax.random.split), CLIENTS, ONE_CLIENT, LOCAL),
        math.inf,
        attacks=with_learned(FIRST_LESS_SECOND),
        look={"sensitivity": 2.0, "per_client": True},
    ),
    Fault(
        "the same noise on every device",
        "mlcommons/training pull request 844: one seed for all shards; VsonicV/es-at-scale issue 46: for all layers",
        Case(partial(sharded, key_of=same), WEIGHTS, ONE_GRADIENT, GAUSSIAN),
        Case(partial(sharded, key_of=jax.random.fold_in), WEIGHTS, ONE_GRADIENT, GAUSSIAN),
        math.inf,
        attacks=with_learned(FIRST_LESS_SECOND),
        look={"sensitivity": 1.0, "per_client": True},
    ),
    Fault(
        "a key reused across rounds",
        "no report found in a private mechanism; the rule is jax.random's own: a key is consumed once",
        Case(partial(by_round, key_of=same), UPDATES, ONE_UPDATE, GAUSSIAN),
        Case(partial(by_round, key_of=jax.random.fold_in), UPDATES, ONE_UPDATE, GAUSSIAN),
        math.inf,
        attacks=with_learned(FIRST_LESS_SECOND),
    ),
    Fault(
        "one key for two releases of a protocol",
        "an earlier Process.release of this project: noise was a function of the key alone",
        Case(partial(two_releases, release=by_key), TOTAL, ONE_USER, GAUSSIAN),
        Case(partial(two_releases, release=by_process), TOTAL, ONE_USER, GAUSSIAN),
        math.inf,
        attacks=with_learned(NOISE_CANCELLED),
    ),
)
