"""Norms and clipping that keep their bound whatever the type, and survive entries whose squares overflow."""

from typing import Any

import jax
import jax.numpy as jnp

from dpaudit import check
from dpaudit.widths import wide


def norm_and_direction(x: Any, ord: int = 2) -> tuple[jax.Array, jax.Array]:
    """|x| and x / |x|, with x scaled by its largest entry first so that no square overflows or vanishes.

    The norm is infinite only where it exceeds the largest float; the direction is right even then.

    Args:
      x: array of any shape, taken as one vector; computed in float32 or wider.
      ord: 2 or 1, the norm.

    Returns:
      (norm, a scalar; direction, the shape of x). A zero x has norm 0 and direction 0.

    Raises:
      InputError: another ``ord``.
    """
    if ord not in (1, 2):
        raise check.expected("ord", "1 or 2", ord)
    x = wide(x)
    tiny = jnp.finfo(x.dtype).tiny
    scale = jnp.clip(jnp.max(jnp.abs(x), initial=0), tiny, 1 / tiny)  # its reciprocal is a normal number too
    scaled = x / scale
    norm = jnp.sum(jnp.abs(scaled)) if ord == 1 else jnp.sqrt(jnp.sum(scaled * scaled))
    return scale * norm, scaled / jnp.where(norm > 0, norm, 1)


def at_most(clip_norm: Any) -> jax.Array:
    """Clip to this for a norm that is at most C after rounding: C (1 - 4 eps), in float32 or wider."""
    most = wide(clip_norm)
    return most * (1 - 4 * jnp.finfo(most.dtype).eps)


def factor(norm: Any, clip_norm: Any) -> jax.Array:
    """min(1, C / norm), in float32 or wider and rounded so that norm times the factor is never above C."""
    norm, most = wide(norm), at_most(clip_norm)
    return jnp.where(norm > most, most / norm, 1.0)


def clip(x: Any, clip_norm: Any, ord: int = 2) -> jax.Array:
    """x min(1, L / |x|): the nearest point to x along its ray in the ball of radius L.

    Args:
      x: array of any shape, taken as one vector; computed in float32 or wider.
      clip_norm: L > 0, in the norm of ``ord``.
      ord: 2 or 1, the norm.

    Returns:
      The shape of x, float32 or wider; its norm is at most L, not L and a rounding error.

    Raises:
      InputError: another ``ord``.
    """
    norm, direction = norm_and_direction(x, ord)
    most = at_most(clip_norm).astype(direction.dtype)
    return jnp.where(norm > most, most * direction, jnp.asarray(x, direction.dtype))
