"""Clips arrays and sums clipped ones, so that the bounds hold after rounding, for every type and size of entries.

These functions decide how far one record can move a release, so they guard against three kinds of rounding:

* Types narrower than float32 hold a sum of thousands of gradients only to within one or two clip norms, so everything
  is computed in float32 or wider.
* Accelerators round the factors of a matrix product by default, a TPU to bfloat16 and a GPU to TF32 if that is on, so
  every product that decides a bound is an :func:`einsum` of this module. In full precision it takes three to six times
  as long on an accelerator, but these products are at most a third of a training step; the network's own products keep
  the precision that they were written with. A CPU computes in float32 anyway.
* A float32 sum of very many summands, added one after another, drifts: :func:`plus` keeps what every addition rounds
  away.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpaudit import _validate

HIGHEST = jax.lax.Precision.HIGHEST
UNROLLED = 16  # summands that an accelerator adds in one kernel


def wide(tree: Any) -> Any:
    """Converts a tree to float32 or wider."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.promote_types(jnp.result_type(leaf), jnp.float32)), tree)


def accepted(x: Any) -> jax.Array:
    """Returns x in float32 or wider, as :func:`wide` does, if its numbers are finite there too (where they are known).

    Raises:
      InputError: no single array; NaN or infinity; a float64 that is too large for float32, where 64 bits are off.
    """
    if not jax.tree_util.all_leaves([x]):
        raise _validate.expected("x", "one array", x)
    _validate.finite(x=x)
    with np.errstate(over="ignore"):  # what overflows is refused
        return _validate.finite(x=wide(x))


def einsum(spec: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """Computes ``jnp.einsum`` in full precision."""
    return jnp.einsum(spec, a, b, precision=HIGHEST)


def plus(total: tuple[Any, Any], summand: Any) -> tuple[Any, Any]:
    """Adds a summand, a pytree of arrays, to ``total``: (the sum in float32, what its additions have rounded away).

    Source: the error of one addition is exact, Knuth, The Art of Computer Programming 2, 4.2.2, Theorem B.
    """
    return _added(
        total, jax.lax.optimization_barrier(summand)
    )  # if fused with the addition, the summand might be rounded in two ways


def _added(total: tuple[Any, Any], summand: Any) -> tuple[Any, Any]:
    high, low = total
    after = jax.tree.map(jnp.add, high, summand)

    def lost(low: jax.Array, high: jax.Array, x: jax.Array, after: jax.Array) -> jax.Array:
        added = after - high
        return low + ((high - (after - added)) + (x - added))

    return after, jax.tree.map(lost, low, high, summand, after)


def total_of(summands: Any) -> Any:
    """Adds up the first axis of every array as :func:`plus` does, in order."""
    summands = jax.lax.optimization_barrier(summands)  # as in :func:`plus`
    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), summands)

    def add(total: tuple[Any, Any], summand: Any) -> tuple[tuple[Any, Any], None]:
        return _added(total, summand), None

    return value(jax.lax.scan(add, (zero, zero), summands, unroll=UNROLLED)[0])


def value(total: tuple[Any, Any]) -> Any:
    """Returns the sum that :func:`plus` has built, rounded once; not finite where the plain sum is not."""
    return jax.tree.map(lambda high, low: jnp.where(jnp.isfinite(high), high + low, high), *total)


def norm_and_direction(x: Any, ord: int = 2) -> tuple[jax.Array, jax.Array]:
    """Returns |x| and x / |x|, scaling x by its largest entry first so that no square overflows or vanishes.

    The norm is infinite only if it exceeds the largest float; the direction is right even then.

    Args:
      x: array of any shape, taken as one vector; computed in float32 or wider.
      ord: 2 or 1, the norm.

    Returns:
      (norm, a scalar; direction, the shape of x). A zero x has norm 0 and direction 0.

    Raises:
      InputError: another ``ord``.
    """
    if ord not in (1, 2):
        raise _validate.expected("ord", "1 or 2", ord)
    x = wide(x)
    tiny = jnp.finfo(x.dtype).tiny
    scale = jnp.clip(jnp.max(jnp.abs(x), initial=0), tiny, 1 / tiny)  # its reciprocal is a normal number too
    scaled = x / scale
    norm = jnp.sum(jnp.abs(scaled)) if ord == 1 else jnp.sqrt(jnp.sum(scaled * scaled))
    return scale * norm, scaled / jnp.where(norm > 0, norm, 1)


def at_most(clip_norm: Any, dtype: Any = jnp.float64) -> jax.Array:
    """Returns the norm to clip to so that the result is at most C after rounding: C (1 - 4 eps), float32 or wider.

    Args:
      clip_norm: C.
      dtype: of what is clipped; eps is that of C or that of what is clipped, in float32 or wider: the larger one.
    """
    most = wide(clip_norm)
    kinds = most.dtype, jnp.promote_types(dtype, jnp.float32)
    return most * (1 - 4 * max(jnp.finfo(kind).eps for kind in kinds))


def factor(norm: Any, clip_norm: Any) -> jax.Array:
    """Returns min(1, C / norm), in float32 or wider, rounded so that norm times the factor is never above C."""
    norm = wide(norm)
    most = at_most(clip_norm, norm.dtype)
    return jnp.where(norm > most, most / norm, 1.0)


def clip(x: Any, clip_norm: Any, ord: int = 2) -> jax.Array:
    """Clips x to x min(1, L / |x|), the nearest point to x along its ray in the ball of radius L.

    Args:
      x: array of any shape, taken as one vector; computed in float32 or wider.
      clip_norm: L > 0, in the norm of ``ord``. A traced one has no value to check: NaN would clip nothing.
      ord: 2 or 1, the norm.

    Returns:
      The shape of x, float32 or wider; its norm is at most L, rounding included.

    Raises:
      InputError: another ``ord``; a clip_norm that is NaN or not positive.
    """
    clip_norm = _validate.positive(infinity_allowed=True, clip_norm=clip_norm)
    norm, direction = norm_and_direction(x, ord)
    most = at_most(clip_norm, direction.dtype).astype(direction.dtype)
    return jnp.where(norm > most, most * direction, jnp.asarray(x, direction.dtype))
