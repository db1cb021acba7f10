"""Judges pairs of inputs for a search by short games, and proposes new pairs from old ones.

The result of a short game (a look) guides the search and is never reported, because pairs are selected by it. New
pairs need no step size: lengths are those between the members of the population and between random pairs. Integers
cannot be moved by small amounts; they take the value of another member or of a random pair instead.
"""

from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpaudit._engine.game import trial_key
from dpaudit.auditing.attacks.base import Distinguisher
from dpaudit.auditing.domain import Domain, Pair
from dpaudit.mechanisms.claim import Mechanism

SURE = 2.0  # standard errors by which a look takes a rate to be worse than it was
SLOPE = 0.1  # nats: weight of the separation, which guides the search where nothing is certain yet
ELITE = 4  # one member in four leads the others
SHORTEST = 1e-2  # shortest random move, in lengths between two random pairs


class Look(NamedTuple):
    """The result of a short game.

    Attributes:
      bound: the epsilon of the best rule, with each rate ``SURE`` standard errors worse, never below 0.
      separation: E sigmoid((s1 - s0)/spread) of the best score, both worlds with the same randomness; 1/2 for a score
        that shows nothing. Smooth.
    """

    bound: jax.Array
    separation: jax.Array

    @property
    def value(self) -> jax.Array:
        """Ranks pairs: by the bound and, where that is flat, by the separation."""
        return self.bound + SLOPE * self.separation


def look(
    key: jax.Array,
    pair: Pair,
    *,
    mechanism: Mechanism,
    distinguishers: Sequence[Distinguisher],
    delta: float,
    trials: int,
) -> Look:
    """Plays ``trials`` games of a pair in each world, as one traceable program.

    Args:
      key: consumed; the same key for all pairs makes their differences visible above the noise.
      pair: (x0, x1), of the same shapes.
      mechanism: what is audited.
      distinguishers: attacks that can be fitted in a traced program; the best of them counts.
      delta: of the epsilon.
      trials: in each world.
    """
    scores = _scores(key, pair, pair, mechanism, distinguishers, trials)
    rules = [
        worlds
        if attack.threshold is None
        else worlds > attack.threshold  # if the threshold is set, only the side counts
        for worlds, attack in zip(scores, distinguishers, strict=True)
    ]
    bounds = jax.vmap(partial(_bound, delta=delta))(jnp.stack(rules).astype(jnp.float32))
    return Look(bounds.max(), jax.vmap(_separation)(scores).max())


def ascent(
    key: jax.Array, pair: Pair, *, mechanism: Mechanism, distinguishers: Sequence[Distinguisher], trials: int
) -> Pair:
    """Returns the direction in which the separation grows fastest, of unit L2 norm over the whole pair.

    The derivative is that of the releases with their randomness held fixed; the score is the one fitted to the pair
    (where it is the best one, its own change has no effect of first order). It is zero for integers, and where the
    derivative is zero or not finite, as for releases that jump.

    Args:
      key, pair, mechanism, distinguishers, trials: as for :func:`look`.
    """

    def separation(moving: Pair) -> jax.Array:
        return jax.vmap(_separation)(_scores(key, moving, pair, mechanism, distinguishers, trials)).max()

    slopes = jax.grad(separation, allow_int=True)(pair)
    slopes = jax.tree.map(lambda x, slope: slope if is_real(x) else jnp.zeros(x.shape), pair, slopes)
    norm = jnp.sqrt(jnp.sum(jnp.stack([jnp.sum(jnp.square(slope)) for slope in jax.tree.leaves(slopes)])))
    usable = jnp.isfinite(norm) & (norm > 0)
    return jax.tree.map(lambda slope: jnp.where(usable, slope / jnp.where(usable, norm, 1), 0), slopes)


def is_real(x: Any) -> bool:
    """Tells whether an array holds real numbers, which can be moved a little."""
    return bool(jnp.issubdtype(x.dtype, jnp.floating))


def _scores(
    key: jax.Array,
    pair: Pair,
    fitted: Pair,
    mechanism: Mechanism,
    distinguishers: Sequence[Distinguisher],
    trials: int,
) -> jax.Array:
    """Returns the scores, [attacks, 2, trials]: every attack, fitted to the pair ``fitted``, on the same releases of
    ``pair``."""
    fit_key, play_key = jax.random.split(trial_key(key))
    fits = [attack.fit(jax.random.fold_in(fit_key, i), mechanism, *fitted) for i, attack in enumerate(distinguishers)]

    def one(key: jax.Array, x: Any) -> jax.Array:
        release = mechanism.apply(key, x)
        return jnp.stack([jnp.asarray(score(release), jnp.float32) for score in fits])

    worlds = jax.tree.map(lambda *leaves: jnp.stack(leaves), *pair)
    keys = jax.random.split(play_key, trials)  # the same in both worlds, so that common noise cancels
    return jnp.moveaxis(jax.vmap(jax.vmap(one, (0, None)), (None, 0))(keys, worlds), -1, 0)


def _separation(scores: jax.Array) -> jax.Array:
    finite = jnp.isfinite(scores)
    variance = scores.var(axis=1, where=finite).sum()
    spread = jnp.sqrt(jnp.where(variance > 0, variance, 1.0))
    both = finite.all(axis=0)
    apart = jnp.where(both, (scores[1] - scores[0]) / spread, 0.0)
    return jnp.nan_to_num(jax.nn.sigmoid(apart).mean(), nan=0.5)


def _bound(scores: jax.Array, delta: float) -> jax.Array:
    """Computes Eq. (2) of paper 000 at the rates' upper ends (Wilson), for the best threshold of scores [2,
    trials]."""
    trials = scores.shape[1]
    values = scores.reshape(-1)
    order = jnp.argsort(values)
    ordered, from1 = values[order], order >= trials
    false_negatives = jnp.cumsum(from1)
    false_positives = trials - jnp.cumsum(~from1)
    missing = jnp.isnan(ordered)  # the last ones
    tied = (ordered[1:] == ordered[:-1]) | (missing[1:] & missing[:-1])
    tied = jnp.append(tied, False)  # a rule includes all of a tie or none of it
    fpr, fnr = _upper(false_positives, trials), _upper(false_negatives, trials)
    shown = jnp.maximum(_log(1 - delta - fpr) - jnp.log(fnr), _log(1 - delta - fnr) - jnp.log(fpr))
    return jnp.max(jnp.where(tied, 0.0, shown), initial=0.0)


def _upper(count: jax.Array, trials: int) -> jax.Array:
    """Computes Wilson's upper bound on a rate, ``SURE`` standard errors above it."""
    rate, pad = count / trials, SURE**2 / trials
    return (rate + pad / 2 + jnp.sqrt(pad * (rate * (1 - rate) + pad / 4))) / (1 + pad)


def _log(x: jax.Array) -> jax.Array:
    return jnp.where(x > 0, jnp.log(jnp.where(x > 0, x, 1)), -jnp.inf)


def challengers(
    key: jax.Array, domain: Domain, members: Pair, fresh: Pair, ranked: jax.Array, i: jax.Array, slope: Pair | None
) -> list[Pair]:
    """Proposes the pairs that compete with member i for its place.

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
    return [domain.project(jax.tree.map(lambda new, old: new.astype(old.dtype), pair, member)) for pair in pairs]


def take(members: Any, i: Any) -> Any:
    """Returns the members with these numbers."""
    return jax.tree.map(lambda leaf: leaf[i], members)


def _mixed(chosen: jax.Array, pair: Pair, moved: Pair) -> Pair:
    """Takes the moved values in the chosen entries, [entries] of the whole pair."""
    leaves, structure = jax.tree.flatten(pair)
    ends = list(accumulate(leaf.size for leaf in leaves))[:-1]
    pieces = zip(jnp.split(chosen, ends), leaves, jax.tree.leaves(moved), strict=True)
    return jax.tree.unflatten(structure, [jnp.where(mask.reshape(old.shape), new, old) for mask, old, new in pieces])
