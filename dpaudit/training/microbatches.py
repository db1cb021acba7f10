"""Divides a batch into parts that are computed one after another, and adds up what they give."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from dpaudit import _platform
from dpaudit._engine import sharding
from dpaudit.mechanisms import clipping

CACHED = 8 << 20  # bytes of values that a CPU core computes for one part, near its caches: twice as many cost a tenth
READ = 5  # least such bytes for each byte of parameters, which every part reads again: half as many cost a tenth


def microbatch_size(bytes_of_one: int, n: int, *, shared: int, most: int | None, multiple: int) -> int:
    """Chooses how many of n examples to take at a time, in parts as even as possible.

    Filling up the last part with examples of weight 0 makes all parts compute with weights, so a divisor of n is
    chosen if there is one of at least half the size.

    Args:
      bytes_of_one: of all values that are computed for one example.
      n: a multiple of ``multiple``.
      shared: bytes of the parameters.
      most: the largest size; None for no limit but that of a CPU's caches.
      multiple: the result is a multiple of it.
    """
    size = n if most is None else min(n, most)
    if _platform.on_cpu():
        cached = max(CACHED, READ * shared) * sharding.cores() // jax.local_device_count()
        size = min(size, max(1, cached // max(1, bytes_of_one * multiple)) * multiple)
    units, most = n // multiple, max(1, size // multiple)
    divisor = next(size for size in range(most, 0, -1) if units % size == 0)
    return multiple * (divisor if 2 * divisor >= most else -(-units // -(-units // most)))


def in_microbatches(
    part: Callable[[Any, Any, Any], tuple[Any, Any]], batch: Any, weights: Any, size: int, *, run: int = 1
) -> tuple[Any, Any]:
    """Sums ``part`` over a batch, and stacks the info of every part.

    Parts are added plainly in runs, and runs with compensation: a plain sum of very many terms drifts. Parts behind
    the last example of nonzero weight are not computed, except on a GPU, where the host would have to be asked before
    each part whether it is the last.

    Args:
      part: ``part(first, batch, weights) -> (summand, info)`` of ``size`` examples, the first of which has number
        ``first``.
      batch: pytree, leaves [n, ...].
      weights: [n] or None; an example that fills up the last part gets weight 0.
      size: examples in a part.
      run: number of parts that are added plainly.

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
    used = (
        parts
        if weights is None or _platform.current() == "gpu"
        else jnp.max(jnp.where((weights != 0).any(axis=1), jnp.arange(1, parts + 1), 0))
    )
    if parts <= run:
        return lax.fori_loop(0, used, add, (total, infos))

    def add_run(i: Any, so_far: tuple[tuple[Any, Any], Any], count: Any = run) -> tuple[tuple[Any, Any], Any]:
        sums, infos = so_far
        summand, infos = lax.fori_loop(0, count, lambda j, so_far: add(i * run + j, so_far), (total, infos))
        return clipping.plus(sums, summand), infos

    start = ((total, total), infos)
    if isinstance(used, int):  # lengths of loops that XLA knows
        done = lax.fori_loop(0, used // run, add_run, start)
        sums, infos = add_run(used // run, done, used % run) if used % run else done
    else:
        runs = (used + run - 1) // run
        sums, infos = lax.fori_loop(
            0, runs, lambda i, so_far: add_run(i, so_far, jnp.minimum(run, used - i * run)), start
        )
    return clipping.value(sums), infos
