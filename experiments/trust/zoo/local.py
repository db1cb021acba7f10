"""Plants faults of a client's own release: what it sends tells more than the randomised direction."""

import math
from functools import partial

import jax
import jax.numpy as jnp

from dpaudit import Case, Claim
from dpaudit.mechanisms import gaussian, laplace, ldp_sgd, sampling
from dpaudit.mechanisms.clipping import norm_and_direction
from experiments.trust.zoo.fault import Fault, event, with_learned

PURE = Claim(2.0)
FIRST = jnp.zeros(4).at[0].set(1.0)
POLE = jnp.array([0.0, 0.0, 1.0])

MIXED = Claim(2.0, 1e-5)
MESSAGE = gaussian.mechanism(epsilon=1.0, delta=MIXED.delta, clip_norm=1.0)
LENGTH = laplace.mechanism(epsilon=1.0, clip_norm=2.0)


def unprojected(key: jax.Array, x: jax.Array) -> jax.Array:
    """Algorithm 1 without its line 2: the vector that is randomised keeps its own length."""
    coin_key, sphere_key = jax.random.split(key)
    v = sampling.sphere(sphere_key, x.size)
    against = sampling.bernoulli(coin_key, 1 / (1 + math.exp(PURE.epsilon)))
    return jnp.linalg.norm(x) * jnp.where((jnp.sum(x * v) >= 0) ^ against, v, -v)


def privunit_in_space(key: jax.Array, x: jax.Array, *, coin: float, cap: float) -> jax.Array:
    """PrivUnit in three dimensions, where a uniform point's height is uniform: epsilon is coin + cap.

    The cap holds a share 1/(1 + e^cap) of the sphere and is hit with probability e^coin/(1 + e^coin).
    """
    coin_key, height_key, around_key = jax.random.split(key, 3)
    edge = 1 - 2 / (1 + math.exp(cap))
    misses = sampling.bernoulli(coin_key, 1 / (1 + math.exp(coin)))
    low, high = jnp.where(misses, jnp.array([-1.0, edge]), jnp.array([edge, 1.0]))
    height = low + (high - low) * jax.random.uniform(height_key)
    direction = norm_and_direction(x)[1]
    around = sampling.sphere(around_key, 3)
    around = norm_and_direction(around - jnp.sum(around * direction) * direction)[1]
    return height * direction + jnp.sqrt(1 - height**2) * around


def with_raw_norm(key: jax.Array, x: jax.Array) -> dict[str, jax.Array]:
    """Returns the gradient is private; its norm goes with it, so that the server can undo the clipping."""
    return {"gradient": MESSAGE.apply(key, x), "norm": jnp.linalg.norm(x)}


def with_private_norm(key: jax.Array, x: jax.Array) -> dict[str, jax.Array]:
    gradient_key, norm_key = jax.random.split(key)
    return {"gradient": MESSAGE.apply(gradient_key, x), "norm": LENGTH.apply(norm_key, jnp.linalg.norm(x))}


FAULTS = (
    Fault(
        "LDP-SGD without norm projection",
        "paper 000, Algorithm 1, line 2. A release of unit length would keep epsilon without it (and be biased); "
        "here the length stays in the release",
        Case(unprojected, FIRST / 2, FIRST, PURE),
        Case(ldp_sgd.mechanism(epsilon=PURE.epsilon, clip_norm=1.0), FIRST / 2, FIRST, PURE),
        math.inf,
        attacks=with_learned(event("longer than 0.75", lambda release: jnp.linalg.norm(release) > 0.75)),
    ),
    Fault(
        "PrivUnit whose coin and cap both spend epsilon",
        "Bhowmick et al. 2018, Algorithm 1 and Theorem 1: the two must share it",
        Case(partial(privunit_in_space, coin=PURE.epsilon, cap=PURE.epsilon), -POLE, POLE, PURE),
        Case(partial(privunit_in_space, coin=PURE.epsilon / 2, cap=PURE.epsilon / 2), -POLE, POLE, PURE),
        2 * PURE.epsilon,
    ),
    Fault(
        "the raw norm beside a private gradient",
        "Andrew et al. 2021 add noise to what they report of norms; no report found of one that does not",
        Case(with_raw_norm, FIRST, 2 * FIRST, MIXED),
        Case(with_private_norm, FIRST, 2 * FIRST, MIXED),
        math.inf,
        attacks=with_learned(event("norm > 1.5", lambda release: release["norm"] > 1.5)),
    ),
)
