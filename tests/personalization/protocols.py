"""Small protocols whose sensitivity is the boundary's own."""

import jax
import jax.numpy as jnp

from dpaudit.personalization.boundary.bounds import bounded
from dpaudit.personalization.boundary.processes import gaussian
from dpaudit.personalization.boundary.protocol import Protocol, each, everything, private

WIDTH = 5


def people(count: int, *, seed: int = 0) -> jax.Array:
    """What each of them has, [count, 5]."""
    return jax.random.normal(jax.random.key(seed), (count, WIDTH))


def steps(noise_multiplier: float, *, stretch: float = 1.0, rate: float = 0.01) -> Protocol:
    """Moves the state along the noisy sum of what devices send, ``stretch`` times what they have, clipped to 1."""
    devices = each(everything, lambda key, state, user: stretch * (user - state), clip_norm=1.0, chunk=4)
    return private(
        devices,
        gaussian("steps", noise_multiplier=noise_multiplier),
        update=lambda state, told: state + rate * told["steps"],
    )


def two_parts(noise_multiplier: float) -> Protocol:
    """A count of who is positive where, and a mean of what was clipped to [-1, 1], each with its bound and noise."""
    devices = each(
        everything,
        lambda key, state, user: {"positive": user > 0, "sums": user},
        bound={"positive": bounded(0, 1), "sums": bounded(-1, 1, clip_norm=1.5)},
        chunk=4,
    )
    return private(
        devices,
        gaussian("sums", noise_multiplier=noise_multiplier),
        gaussian("positive", noise_multiplier=2 * noise_multiplier),
        update=lambda state, told: told["sums"] / jnp.maximum(told["positive"], 1.0),
    )


START = jnp.zeros(WIDTH)
