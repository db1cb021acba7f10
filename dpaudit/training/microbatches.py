"""A sum over a batch, part by part: for less memory, and on a CPU for speed."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from dpaudit import sharding, widths

CACHED = 20 << 20  # bytes of values that a CPU's core computes for one part; half or twice cost up to a fifth


def microbatch_size(bytes_of_one: int, n: int, *, most: int | None, multiple: int) -> int:
    """How many of n examples to take at a time: parts of one size, or else as even as can be.

    A part that is filled up with examples of weight 0 costs all parts the weights, so a divisor of n is taken where
    there is one from half the size on.

    Args:
      bytes_of_one: of all values that are computed for one example.
      n: a multiple of ``multiple``.
      most: at most so many; None for no limit but that of a CPU's caches.
      multiple: what the result is a multiple of.
    """
    size = n if most is None else min(n, most)
    if jax.default_backend() == "cpu":
        cached = CACHED * sharding.cores() // jax.local_device_count()
        size = min(size, max(1, cached // max(1, bytes_of_one * multiple)) * multiple)
    units, most = n // multiple, max(1, size // multiple)
    divisor = next(size for size in range(most, 0, -1) if units % size == 0)
    return multiple * (divisor if 2 * divisor >= most else -(-units // -(-units // most)))


def in_microbatches(
    part: Callable[[Any, Any, Any], tuple[Any, Any]], batch: Any, weights: Any, size: int, *, run: int = 1
) -> tuple[Any, Any]:
    """The sum of ``part`` over a batch and what else it says of every part.

    Parts are added plainly in runs, and these with compensation: a plain sum of very many drifts.

    Parts behind the last example of weight other than 0 are not computed.

    Args:
      part: ``part(first, batch, weights) -> (summand, info)`` of ``size`` examples, the first of which has number
        ``first``.
      batch: pytree, leaves [n, ...].
      weights: [n] or None; an example that fills up the last part gets weight 0.
      size: examples in a part.
      run: how many parts are added plainly.

    Returns:
      (total, info): a pytree like the summand; infos stacked, leaves [parts, ...], zeros for a part not computed.
    """
    n = len(jax.tree.leaves(batch)[0])
    parts, padding = -(-n // size), -n % size
    if weights is None and padding:
        weights = jnp.ones(n)

    def cut(leaf: jax.Array) -> jax.Array:
        whole = jnp.pad(leaf, [(0, padding)] + [(0, 0)] * (leaf.ndim - 1)) if padding else leaf
        return whole.reshape(parts, size, *leaf.shape[1:])

    batch, weights = jax.tree.map(cut, (batch, weights))
    if parts == 1:
        total, info = part(0, *jax.tree.map(lambda leaf: leaf[0], (batch, weights)))
        return total, jax.tree.map(lambda leaf: leaf[None], info)

    def add(i: Any, so_far: tuple[Any, Any]) -> tuple[Any, Any]:
        total, infos = so_far
        summand, info = part(i * size, *jax.tree.map(lambda leaf: leaf[i], (batch, weights)))
        infos = jax.tree.map(lambda whole, own: whole.at[i].set(own), infos, info)
        return jax.tree.map(jnp.add, total, summand), infos

    shapes = jax.eval_shape(part, 0, *jax.tree.map(lambda leaf: leaf[0], (batch, weights)))
    total = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes[0])
    infos = jax.tree.map(lambda x: jnp.zeros((parts, *x.shape), x.dtype), shapes[1])
    used = parts if weights is None else jnp.max(jnp.where((weights != 0).any(axis=1), jnp.arange(1, parts + 1), 0))
    if parts <= run:
        return lax.fori_loop(0, used, add, (total, infos))

    def add_run(i: Any, so_far: tuple[tuple[Any, Any], Any]) -> tuple[tuple[Any, Any], Any]:
        sums, infos = so_far
        summand, infos = lax.fori_loop(i * run, jnp.minimum((i + 1) * run, used), add, (total, infos))
        return widths.plus(sums, summand), infos

    sums, infos = lax.fori_loop(0, (used + run - 1) // run, add_run, ((total, total), infos))
    return widths.value(sums), infos
