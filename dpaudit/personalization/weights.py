"""How much each of a user's ratings counts, decided on the device from what everybody knows of the items.

    rule = adaptive(0.25)
    rule(popularity, present)       # [w] each -> weights [w], the sum of whose squares is at most 1

Sensitivities are those of weights with sum_j w_ij^2 <= 1; any other bound is the same as other noise. A rule may look
at how popular items are, as noisy counts that were released tell it, and at which of a row's places hold a rating;
never at others' data.

Source: Chien et al. 2021, Section 4 (uniform, tail); Krichene et al. 2023 (arXiv 2302.07975; adaptive).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from dpaudit import check

LEAST = 1e-15  # whose square is a float32 still

Rule = Callable[[jax.Array, jax.Array], jax.Array]


def uniform(popularity: jax.Array, present: jax.Array) -> jax.Array:
    """1/sqrt(n) for each of a user's n ratings."""
    return _of_norm_one(present)


def tail(most: int) -> Rule:
    """1/sqrt(n) for each of the user's ``most`` least popular items, of which there are n; 0 for the others.

    Args:
      most: how many ratings of a user count, >= 1; ties go to the earlier rating.
    """
    most = check.at_least(1, most=most)

    def weights(popularity: jax.Array, present: jax.Array) -> jax.Array:
        order = jnp.argsort(jnp.where(present > 0, popularity, jnp.inf), stable=True)
        place = jnp.zeros_like(order).at[order].set(jnp.arange(len(order)))
        return _of_norm_one(jnp.where(place < most, present, 0))

    return weights


def adaptive(power: float) -> Rule:
    """In proportion to popularity^-power: rare items get more of what a user may say than popular ones.

    Args:
      power: >= 0; 0 is :func:`uniform`. A popularity below 1 counts as 1.
    """
    power = check.non_negative(power=power)

    def weights(popularity: jax.Array, present: jax.Array) -> jax.Array:
        return _of_norm_one(present * jnp.maximum(popularity, 1.0) ** -power)

    return weights


def _of_norm_one(weights: jax.Array) -> jax.Array:
    """At most 1, whatever rounding does; 0 without ratings, or where popularity makes weights NaN or next to nothing.

    The server that tells how popular items are is not trusted.
    """
    norm = jnp.sqrt(jnp.sum(weights**2, axis=-1, keepdims=True))
    return jnp.where(norm > LEAST, weights / (norm * (1 + 1e-6)), 0.0)
