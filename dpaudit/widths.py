"""Arithmetic that decides how far one record can move a release: float32 or wider, whatever it is given.

Three things would let a clipped gradient weigh more than its clip norm. Numbers narrower than float32 hold a sum of
thousands of gradients to one or two clip norms. Accelerators round the factors of a matrix product unless told not to:
a TPU to bfloat16, a GPU to TF32 where that is on; so every product that decides a bound is an :func:`einsum` of this
module. A CPU computes in float32 anyway and runs the same program. On an accelerator a product in full precision takes
three to six passes of a narrow one, but these are the products of the bookkeeping, a third of a training step or less:
the network's own, forward and backward, keep the precision that they were written with. And a float32 sum of very many
summands, added one after another, drifts: :func:`plus` keeps what every addition rounds away.
"""

from typing import Any

import jax
import jax.numpy as jnp

HIGHEST = jax.lax.Precision.HIGHEST


def wide(tree: Any) -> Any:
    """The tree in float32 or wider."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.promote_types(jnp.result_type(leaf), jnp.float32)), tree)


def einsum(spec: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """``jnp.einsum`` in full precision."""
    return jnp.einsum(spec, a, b, precision=HIGHEST)


def plus(total: tuple[Any, Any], summand: Any) -> tuple[Any, Any]:
    """``total`` and one more summand, a pytree of arrays: (the sum in float32, what its additions have rounded away).

    Source: the error of one addition is exact, Knuth, The Art of Computer Programming 2, 4.2.2, Theorem B.
    """
    high, low = total
    summand = jax.lax.optimization_barrier(summand)  # fused into the lines below it might be rounded in two ways
    after = jax.tree.map(jnp.add, high, summand)

    def lost(low: jax.Array, high: jax.Array, x: jax.Array, after: jax.Array) -> jax.Array:
        added = after - high
        return low + ((high - (after - added)) + (x - added))

    return after, jax.tree.map(lost, low, high, summand, after)


def value(total: tuple[Any, Any]) -> Any:
    """What :func:`plus` has added up, rounded once; not finite where the plain sum is not."""
    return jax.tree.map(lambda high, low: jnp.where(jnp.isfinite(high), high + low, high), *total)
