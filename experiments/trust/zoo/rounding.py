"""Plants faults of finite precision: narrow noise, gaps, probabilities and grids that are rounded."""

import math

import jax
import jax.numpy as jnp

from dpaudit import Case, Claim
from dpaudit.auditing.attacks.distinguish import projection
from dpaudit.mechanisms import laplace, randomized_response
from experiments.trust.zoo.fault import GAUSSIAN, SIGMA, Fault, clip, event, noisy, whole_noise, with_learned

ZERO, ONE = jnp.zeros(1), jnp.ones(1)
UNIT_LAPLACE = Claim(1.0)
FINE = 2.0**24  # in (-5/4, -3/4), the float32 numbers are whole multiples of 2^-24

COIN = Claim(5.0)
LIE_BYTE = int(256 / (1 + math.exp(COIN.epsilon)))  # 1.71 becomes 1

WHOLE = Claim(1.0, neighbouring="add_remove")


def bfloat16_noise(key: jax.Array, x: jax.Array) -> jax.Array:
    noise = jax.random.normal(key, x.shape, jnp.bfloat16)
    return clip(x).astype(jnp.bfloat16) + jnp.bfloat16(SIGMA) * noise


def float32_noise(key: jax.Array, x: jax.Array) -> jax.Array:
    return noisy(key, clip(x)).astype(jnp.bfloat16)


def float32_laplace(key: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.clip(x, -1.0, 1.0) + 2 / UNIT_LAPLACE.epsilon * jax.random.laplace(key, x.shape)


def byte_coin(key: jax.Array, x: jax.Array) -> jax.Array:
    """Randomised response whose probability of a lie is one byte, rounded down."""
    lies = jax.random.bits(key, dtype=jnp.uint8) < LIE_BYTE
    return jnp.where(lies, 1 - x, x)


def unrounded(key: jax.Array, x: jax.Array) -> jax.Array:
    """x plus whole numbers, whatever x is."""
    return x + whole_noise(key, x.shape, scale=1 / WHOLE.epsilon)


def rounded_first(key: jax.Array, x: jax.Array) -> jax.Array:
    return unrounded(key, jnp.round(jnp.clip(x, 0.0, 1.0)))


def on_one_grid_only(release: jax.Array) -> jax.Array:
    """Small, and no multiple of 2^-24: sums of 1 and noise never are."""
    scaled = release[0] * FINE
    return (jnp.abs(release[0]) < 0.25) & (jnp.round(scaled) != scaled)


FAULTS = (
    Fault(
        "bfloat16 noise",
        "pytorch/pytorch issue 166853 for bfloat16 normals that end at 3.5; in JAX they end at -2.9 and 2.5",
        Case(bfloat16_noise, ZERO, ONE, GAUSSIAN),
        Case(float32_noise, ZERO, ONE, GAUSSIAN),
        math.inf,
        attacks=(projection, event("beyond bfloat16's last", lambda release: release[0] > 2.6 * SIGMA)),
    ),
    Fault(
        "float32 Laplace noise has gaps",
        "Mironov 2012, On significance of the least significant bits for differential privacy; "
        "world-federation-of-advertisers/cross-media-measurement issue 1357",
        Case(float32_laplace, ONE, ZERO, UNIT_LAPLACE),
        Case(laplace.mechanism(epsilon=UNIT_LAPLACE.epsilon, clip_norm=1.0), ONE, ZERO, UNIT_LAPLACE),
        math.inf,
        attacks=with_learned(event("small and off the grid of 2^-24", on_one_grid_only)),
        last_bits=True,
    ),
    Fault(
        "a coin biased by rounding",
        "Balcer and Vadhan 2018, Differential privacy on finite computers: probabilities must be exact",
        Case(byte_coin, jnp.int32(0), jnp.int32(1), COIN),
        Case(randomized_response.mechanism(epsilon=COIN.epsilon), jnp.int32(0), jnp.int32(1), COIN),
        math.log(256 / LIE_BYTE - 1),
    ),
    Fault(
        "quantised noise on values that are not",
        "Canonne, Kamath and Steinke 2020 and Kairouz, Liu and Steinke 2021 round the values first",
        Case(unrounded, ZERO, 0.75 * ONE, WHOLE),
        Case(rounded_first, ZERO, 0.75 * ONE, WHOLE),
        math.inf,
        attacks=with_learned(event("no whole number", lambda release: release[0] != jnp.round(release[0]))),
    ),
)
