"""Batches that are settled in advance: who takes part when, kept to the participation that is declared.

    sampling = spaced(key, examples=6_000, batch_size=100, rounds=500, separation=40)
    strategy = blt(sampling.participation(500))

What DP-FTRL promises rests on how often, and how far apart, one example (or user) takes part, and not on chance, so
that a schedule may be public. :func:`spaced` makes one, :func:`scheduled` takes any that keeps to its own words.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpaudit import check
from dpaudit.training.sampling import Participation, Sampling, fitting, in_order, participation

NOBODY = -1


def scheduled(table: Any, *, examples: int, separation: int = 1, most: int | None = None) -> Sampling:
    """Round t takes the examples ``table[t]``, whatever the key; after the last round there is nobody.

    Args:
      table: [rounds, m], whole numbers in 0..examples - 1, or -1 for nobody; a round may be empty.
      examples: size of the data set.
      separation: declared: at least so many rounds lie between an example's participations, from round to round.
      most: declared: an example takes part at most so often; None for as often as the separation allows.

    Returns:
      A :class:`Sampling` for "replace". Its ``participation(rounds)`` is what is declared, of the first rounds.

    Raises:
      InputError: a table that is not of this shape, that names an example which is not there, or in which one takes
        part more often or sooner again than declared: named with its rounds. Nothing is left out to make it fit.
    """
    given = np.asarray(table)
    if given.ndim != 2 or 0 in given.shape or given.dtype.kind not in "iu":
        raise check.expected("table", "whole numbers [rounds, m]", f"{given.dtype}{list(given.shape)}")
    examples = check.at_least(1, examples=examples)
    strange = given[(given < NOBODY) | (given >= examples)]
    if strange.size:
        raise check.expected("table", f"examples in 0..{examples - 1}, or {NOBODY} for nobody", int(strange[0]))
    rounds, width = given.shape
    declared = participation(rounds, separation=separation, most=most)
    _kept(given, declared)
    front = np.sort(given, axis=1)[:, ::-1]  # nobody behind everybody
    rows = jnp.asarray(np.ascontiguousarray(front), jnp.int32)

    def draw(key: jax.Array, step: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        batch = jnp.where(jnp.asarray(step) < rounds, rows[step], NOBODY)
        return jnp.maximum(batch, 0), (batch != NOBODY).astype(jnp.float32)

    def pattern(asked: int) -> Participation:
        if check.at_least(1, rounds=asked) > rounds:
            raise check.expected("rounds", f"at most the {rounds} of the schedule", asked)
        return participation(asked, separation=separation, most=declared.most)

    return in_order(draw, examples, width, pattern, "scheduled")


def spaced(key: jax.Array, examples: int, batch_size: int, rounds: int, *, separation: int) -> Sampling:
    """Every epoch takes the examples in a new random order, and none sooner than ``separation`` rounds after its last.

    An epoch has examples // batch_size rounds. In each of them a uniformly random subset takes part of those who have
    not yet in this epoch, and not in the last separation - 1 rounds either; with m separation <= examples there are
    always enough.

    Args:
      key: JAX random key, consumed.
      examples: size of the data set.
      batch_size: m, at most examples.
      rounds: >= 1.
      separation: at most an epoch's rounds, where the order is as :func:`dpaudit.training.sampling.cyclic` has it in
        all but what does not fill an epoch.

    Returns:
      A :class:`Sampling` as of :func:`scheduled`: at most one participation an epoch.

    Raises:
      InputError: a value out of range.
    """
    batch_size, rounds = fitting(examples, batch_size), check.at_least(1, rounds=rounds)
    epoch = examples // batch_size
    if check.at_least(1, separation=separation) > epoch:
        raise check.expected("separation", f"at most the {epoch} rounds of an epoch", separation)
    table = _orders(check.key(key=key), examples, batch_size, rounds, separation=separation)
    return scheduled(table, examples=examples, separation=separation, most=math.ceil(rounds / epoch))


@partial(jax.jit, static_argnums=(1, 2, 3), static_argnames="separation")
def _orders(key: jax.Array, examples: int, batch_size: int, rounds: int, *, separation: int) -> jax.Array:
    epoch = examples // batch_size

    def draw(last: jax.Array, t: jax.Array) -> tuple[jax.Array, jax.Array]:
        free = (last < t // epoch * epoch) & (t - last >= separation)
        places = jnp.where(free, jax.random.uniform(jax.random.fold_in(key, t), (examples,)), 2.0)
        batch = jax.lax.top_k(-places, batch_size)[1]
        return last.at[batch].set(t), batch

    return jax.lax.scan(draw, jnp.full(examples, -rounds - separation), jnp.arange(rounds))[1]


def _kept(table: np.ndarray, declared: Participation) -> None:
    """Refuses a table in which an example takes part otherwise than declared."""
    rounds, places = np.nonzero(table != NOBODY)
    who = table[rounds, places]
    order = np.lexsort((rounds, who))
    who, rounds = who[order], rounds[order]
    again = who[1:] == who[:-1]
    close = np.flatnonzero(again & (np.diff(rounds) < declared.separation))
    if close.size:
        i = close[0]
        raise check.expected(
            "table",
            f"at least {declared.separation} rounds from one participation to the next",
            f"{rounds[i + 1] - rounds[i]} of example {who[i]}, in rounds {rounds[i]} and {rounds[i + 1]}",
        )
    examples, counts = np.unique(who, return_counts=True)
    if counts.size and counts.max() > declared.most:
        worst = counts.argmax()
        raise check.expected(
            "table", f"at most {declared.most} participations", f"{counts[worst]} of example {examples[worst]}"
        )
