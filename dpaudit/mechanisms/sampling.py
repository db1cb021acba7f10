"""Draws random numbers whose distribution is right where privacy depends on it: rare coins, tails, directions."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def bernoulli(key: jax.Array, p: Any, shape: tuple[int, ...] = ()) -> jax.Array:
    """Draws a coin that is True with probability exactly ``p``, once that is rounded to float32.

    A float32 uniform lives on a grid of step 2^-23, so comparing it with p distorts small probabilities. Here 64
    random bits are one integer B, and the coin is B < p 2^64. That is exact for p = 0, p = 1 and every float32
    p >= 2^-41; a smaller p loses less than 2^-64. Float32 cannot represent a p that is very close to 1: draw the
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


def rare(p: float) -> float:
    """Rounds a small probability up to a multiple of 2^-64 and never to 0; :func:`bernoulli` keeps one below 2^-40."""
    return max(1, math.ceil(p * 2.0**64)) / 2.0**64


def sphere(key: jax.Array, dimension: int, dtype: Any = jnp.float32) -> jax.Array:
    """Draws a uniform point of the unit sphere: n / |n| with n standard normal.

    Args:
      key: JAX random key, consumed.
      dimension: d >= 1.
      dtype: of the result; noise is never drawn in less than float32.

    Returns:
      [d], unit L2 norm.
    """
    draw = normal(key, (dimension,), dtype)
    norm = jnp.sqrt(jnp.sum(draw * draw))
    first = jnp.zeros_like(draw).at[0].set(1)
    return jnp.where(norm > 0, draw / norm, first)


def exponential(key: jax.Array, shape: tuple[int, ...] = (), dtype: Any = jnp.float32) -> jax.Array:
    """Draws a standard exponential whose tail ends near 44: -log of a uniform with 64 bits.

    With a uniform on float32's grid it would end at 16, and a release beyond that would reveal its input.

    Args:
      key: JAX random key, consumed.
      shape: shape of the result.
      dtype: of the result; noise is never drawn in less than float32.

    Returns:
      array of ``shape``, finite and >= 0.
    """
    dtype = jnp.promote_types(dtype, jnp.float32)
    high, low = jax.random.bits(key, (2, *shape), jnp.uint32)
    return _exponential_of(high, low, dtype)


def normal(key: jax.Array, shape: tuple[int, ...] = (), dtype: Any = jnp.float32) -> jax.Array:
    """Draws standard normals whose tails end near 9.4: sqrt(2 E) (cos a, sin a), E exponential, a a uniform angle.

    The tails of float32's ``jax.random.normal`` end near 5.4. On one coordinate at epsilon 8, delta 1e-7 that alone
    would give three releases in 10^5 that the other input cannot produce.

    Args:
      key: JAX random key, consumed.
      shape: shape of the result.
      dtype: of the result; noise is never drawn in less than float32.

    Returns:
      array of ``shape``.

    Source: Box and Muller 1958.
    """
    dtype = jnp.promote_types(dtype, jnp.float32)
    size = math.prod(shape)
    half = (size + 1) // 2
    high, low, angle = jax.random.bits(key, (3, half), jnp.uint32)
    return jnp.concatenate(box_muller(high, low, angle, dtype))[:size].reshape(shape)


def box_muller(
    high: jax.Array, low: jax.Array, angle: jax.Array, dtype: Any, sqrt: Callable[[jax.Array], jax.Array] = jnp.sqrt
) -> tuple[jax.Array, jax.Array]:
    """Turns three random words into two independent standard normals: sqrt(2 E) (cos a, sin a).

    Args:
      high, low: the two words of E's uniform, uint32 arrays of one shape.
      angle: the word of the angle, likewise.
      dtype: float32 or wider.
      sqrt: of numbers >= 0; for chips that lack one.
    """
    radius = sqrt(2 * _exponential_of(high, low, dtype))
    cosine, sine = _circle(angle, dtype)
    return radius * cosine, radius * sine


def _exponential_of(high: jax.Array, low: jax.Array, dtype: Any) -> jax.Array:
    """Returns -log of the uniform whose 64 bits are given, taken at the middle of its grid step."""
    uniform = high.astype(dtype) * 2.0**-32 + (low.astype(dtype) + 0.5) * 2.0**-64
    return jnp.abs(jnp.log(uniform))


def _circle(bits: jax.Array, dtype: Any) -> tuple[jax.Array, jax.Array]:
    """Computes (cos, sin) of 2 pi bits/2^32: two bits of quarter turns, Taylor for the rest, at most pi/4 in size.

    Exact to 2e-7; XLA's own cos and sin reduce any angle first and take several times as long on a CPU.
    """
    quarters = lax.bitcast_convert_type(bits << 2, jnp.int32).astype(dtype) * 2.0**-32  # in [-1/2, 1/2)
    squared = quarters * quarters
    sine = cosine = jnp.zeros_like(quarters)
    for k in (4, 3, 2, 1, 0):
        cosine = cosine * squared + (-1) ** k * (math.pi / 2) ** (2 * k) / math.factorial(2 * k)
        sine = sine * squared + (-1) ** k * (math.pi / 2) ** (2 * k + 1) / math.factorial(2 * k + 1)
    sine, turn = sine * quarters, bits >> 30
    cosine, sine = jnp.where(turn & 1, -sine, cosine), jnp.where(turn & 1, cosine, sine)
    return jnp.where(turn & 2, -cosine, cosine), jnp.where(turn & 2, -sine, sine)


def _fixed_point(p: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Computes floor(p 2^64) of a float32 p in [0, 1) as two words, exactly: powers of two, floor, remainder."""
    scaled = p * 2.0**32
    high = jnp.floor(scaled)
    low = jnp.floor((scaled - high) * 2.0**32)
    return high.astype(jnp.uint32), low.astype(jnp.uint32)
