"""New pairs from old ones. None needs a step size: lengths are those between the members and between random pairs.

Whole numbers cannot be moved a little: they take another member's value, or a random pair's, instead.
"""

from itertools import accumulate
from typing import Any

import jax
import jax.numpy as jnp

from dpaudit.auditing.domain import Domain, Pair
from dpaudit.auditing.search_look import is_real

ELITE = 4  # one member in so many leads the others
SHORTEST = 1e-2  # of a random move, in lengths between two random pairs


def challengers(
    key: jax.Array, domain: Domain, members: Pair, fresh: Pair, ranked: jax.Array, i: jax.Array, slope: Pair | None
) -> list[Pair]:
    """Who competes with member i for its place.

    Toward the best: x_i + F (x_best - x_i) + F (x_a - x_b) in a random share of the entries, x_best one of the best
    members, x_a and x_b any. At random: x_i + s (y_i - y_j) in a random share of the entries, y random pairs. Uphill:
    x_i + s |y_i - y_j| slope.

    Args:
      key: consumed.
      domain: to which each pair is brought back.
      members: the population, each leaf with a leading axis [n, ...].
      fresh: as many random pairs.
      ranked: [n], the members' numbers, the best first.
      i: the member's number.
      slope: a direction for member i; None where the mechanism has none.

    Source: differential evolution, Storn and Price 1997; current-to-best as in Zhang and Sanderson 2009.
    """
    count, entries = len(ranked), sum(leaf[0].size for leaf in jax.tree.leaves(members))
    number, chances = jnp.split(jax.random.uniform(key, (8 + 2 * entries,)), [8])
    a, b, c = (number[:3] * count).astype(int)
    best = ranked[(number[3] * -(-count // ELITE)).astype(int)]
    factor, step, climb = 0.1 + 0.9 * number[4], SHORTEST ** number[5], SHORTEST ** number[6]
    rate = (1.0 / entries) ** number[7]  # from one entry to all of them
    member, one, other = take(members, i), take(fresh, i), take(fresh, c)

    def toward_best(leaf: jax.Array) -> jax.Array:
        return leaf[i] + factor * (leaf[best] - leaf[i] + leaf[a] - leaf[b]) if is_real(leaf) else leaf[best]

    def at_random(x: jax.Array, one: jax.Array, other: jax.Array) -> jax.Array:
        return x + step * (one - other) if is_real(x) else one

    def uphill(x: jax.Array, slope: jax.Array) -> jax.Array:
        return x + climb * length * slope if is_real(x) else x

    moved = jax.tree.map(toward_best, members), jax.tree.map(at_random, member, one, other)
    chosen = jnp.split(chances < rate, 2)
    pairs = [_mixed(mask, member, pair) for mask, pair in zip(chosen, moved, strict=True)]
    if slope is not None:
        apart = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
        length = jnp.sqrt(sum(jnp.sum(jnp.square(a - b)) for a, b in apart if is_real(a)))
        pairs.append(jax.tree.map(uphill, member, slope))
    return [domain.project(pair) for pair in pairs]


def take(members: Any, i: Any) -> Any:
    """The members of these numbers."""
    return jax.tree.map(lambda leaf: leaf[i], members)


def _mixed(chosen: jax.Array, pair: Pair, moved: Pair) -> Pair:
    """The moved values in the chosen entries, [entries] of the whole pair."""
    leaves, structure = jax.tree.flatten(pair)
    ends = list(accumulate(leaf.size for leaf in leaves))[:-1]
    pieces = zip(jnp.split(chosen, ends), leaves, jax.tree.leaves(moved), strict=True)
    return jax.tree.unflatten(structure, [jnp.where(mask.reshape(old.shape), new, old) for mask, old, new in pieces])
