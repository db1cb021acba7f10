"""Random draws that keep their law where privacy needs it: rare coins, far tails, uniform directions."""

import math
from typing import Any

import jax
import jax.numpy as jnp


def bernoulli(key: jax.Array, p: Any, shape: tuple[int, ...] = ()) -> jax.Array:
    """A coin that is True with probability exactly ``p``.

    A float32 uniform lives on a grid of step 2^-23, so comparing it with p distorts small probabilities. Here 64
    random bits are one integer B, and the coin is B < p 2^64. That is exact for p = 0, p = 1 and every float32
    p >= 2^-41; a smaller p loses less than 2^-64. Near 1 it is p itself that float32 cannot hold: draw the
    complement, ``~bernoulli(key, 1 - p)``, with 1 - p computed on the host.

    Args:
      key: JAX random key, consumed.
      p: probability in [0, 1], scalar or broadcastable to ``shape``; read as float32, may be traced.
      shape: shape of the result.

    Returns:
      bool array of ``shape``.
    """
    high, low = jax.random.bits(key, (2, *shape), jnp.uint32)
    p = jnp.asarray(p, jnp.float32)
    high_bar, low_bar = _fixed_point(p)
    below = (high < high_bar) | ((high == high_bar) & (low < low_bar))
    return below | (p >= 1)


def sphere(key: jax.Array, dimension: int, dtype: Any = jnp.float32) -> jax.Array:
    """A uniform point of the unit sphere: n / |n| with n standard normal.

    Args:
      key: JAX random key, consumed.
      dimension: d >= 1.
      dtype: of the result; noise is never drawn in less than float32.

    Returns:
      [d], unit L2 norm.
    """
    normal = jax.random.normal(key, (dimension,), jnp.promote_types(dtype, jnp.float32))
    norm = jnp.linalg.norm(normal)
    first = jnp.zeros_like(normal).at[0].set(1)
    return jnp.where(norm > 0, normal / norm, first)


def exponential(key: jax.Array, shape: tuple[int, ...] = (), dtype: Any = jnp.float32) -> jax.Array:
    """A standard exponential whose tail ends near 44: -log of a uniform with 64 bits.

    A uniform on float32's grid ends it at 16, and a release beyond that gives its input away.

    Args:
      key: JAX random key, consumed.
      shape: shape of the result.
      dtype: of the result; noise is never drawn in less than float32.

    Returns:
      array of ``shape``, finite and >= 0.
    """
    dtype = jnp.promote_types(dtype, jnp.float32)
    high, low = jax.random.bits(key, (2, *shape), jnp.uint32).astype(dtype)
    return jnp.abs(jnp.log(high * 2.0**-32 + (low + 0.5) * 2.0**-64))


def normal(key: jax.Array, shape: tuple[int, ...] = (), dtype: Any = jnp.float32) -> jax.Array:
    """Standard normals whose tails end near 9.4: sqrt(2 E) (cos a, sin a), E exponential, a a uniform angle.

    float32's ``jax.random.normal`` ends near 5.4. On one coordinate at epsilon 8, delta 1e-7 that alone would leave
    three releases in 10^5 that the other input cannot make.

    Args:
      key: JAX random key, consumed.
      shape: shape of the result.
      dtype: of the result; noise is never drawn in less than float32.

    Returns:
      array of ``shape``.

    Source: Box and Muller 1958.
    """
    dtype = jnp.promote_types(dtype, jnp.float32)
    radius_key, angle_key = jax.random.split(key)
    size = math.prod(shape)
    half = (size + 1) // 2
    radius = jnp.sqrt(2 * exponential(radius_key, (half,), dtype))
    angle = jax.random.uniform(angle_key, (half,), dtype, maxval=2 * math.pi)
    return jnp.concatenate([radius * jnp.cos(angle), radius * jnp.sin(angle)])[:size].reshape(shape)


def _fixed_point(p: jax.Array) -> tuple[jax.Array, jax.Array]:
    """floor(p 2^64) of a float32 p in [0, 1) as two words, by exact steps: powers of two, floor, remainder."""
    scaled = p * 2.0**32
    high = jnp.floor(scaled)
    low = jnp.floor((scaled - high) * 2.0**32)
    return high.astype(jnp.uint32), low.astype(jnp.uint32)
