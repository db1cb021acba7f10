"""Reduces the scores of counted trials to the numbers that an audit's bounds need: on the devices that played them, or
with NumPy where that takes less time than compiling."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from dpaudit._engine import memory, sharding
from dpaudit._engine.game import Game
from dpaudit._engine.sharding import ALIKE, CUT
from dpaudit.auditing.attacks.scoring import HOST_PAIRS
from dpaudit.auditing.ranks import rank, wide

SUMS = 4  # outcomes of pairs

Reduced = tuple[np.ndarray, np.ndarray, np.ndarray]  # sums, ends and beside, as on_devices returns them


def reduced(
    game: Game, played: Any, number: int, bar: np.ndarray, bars: np.ndarray, *, early: int, there: int
) -> Reduced:
    """Reduces what a call has played, [n, 2] or score ``number`` of [n, 2, scores], as :func:`on_devices` does."""
    if _is_quicker_on_host(game, played):
        own = game.first(played, there)[early:]
        return on_host(own if own.ndim == 2 else own[..., number], bar, bars)
    column = None if played.ndim == 2 else np.uint32(number)
    found = on_devices(played, bar, np.uint32(early), np.uint32(there), column, bars, mesh=game.mesh)
    sums, ends, beside = map(np.array, found)
    return sums, ends, beside.astype(np.int64)


def _is_quicker_on_host(game: Game, played: Any) -> bool:
    """Tells whether NumPy reduces all trials in less time than :func:`on_devices` takes to compile: scores that are on
    the host already, and not too many of a CPU."""
    if isinstance(played, np.ndarray):
        return True
    return played.is_fully_addressable and game.trials <= HOST_PAIRS and memory.platform(game.mesh) == "cpu"


def on_host(scores: np.ndarray, bar: np.ndarray, bars: np.ndarray) -> Reduced:
    """Reduces scores [n, 2], n >= 1, to what :func:`on_devices` reduces them to, with NumPy."""
    ranks = np.ascontiguousarray(rank(scores.astype(wide(scores.dtype))).T)
    guesses = ranks > bar
    both, (one, other) = np.count_nonzero(guesses.all(0)), np.count_nonzero(guesses, axis=1)
    sums = np.array([len(scores) - one - other + both, one - both, other - both, both])
    beside = np.array([np.count_nonzero(ranks > further, axis=1) for further in bars], np.int64)
    return sums, np.concatenate([(~ranks).max(1), ranks.max(1)]), beside.reshape(-1, 2)


@partial(jax.jit, static_argnames="mesh")
def on_devices(
    scores: jax.Array,
    bar: jax.Array,
    early: jax.Array,
    there: jax.Array,
    column: jax.Array | None = None,
    bars: jax.Array | None = None,
    *,
    mesh: Mesh | None,
) -> Any:
    """Reduces scores [n, 2], or one column of [n, 2, scores], to (sums, ends, beside), the same on every device.

    ``bar`` is the rank of the threshold, ``bars``, [b], are the ranks of the further ones. Of pairs ``early`` to
    ``there``, ``sums`` are the counts of the four outcomes and ``ends`` the highest ranks of both worlds' scores,
    first with all bits inverted (so of the lowest), then as they are; ``beside``, [b, 2], is how many scores of each
    world are above each of the bars.
    """

    def tally(scores: jax.Array, bar: jax.Array, early: jax.Array, there: jax.Array, column: Any, bars: Any) -> Any:
        scores = scores if column is None else scores[..., column]
        number = jnp.uint32(sharding.place(mesh)) * len(scores) + jnp.arange(len(scores), dtype=jnp.uint32)
        counted = (early <= number) & (number < there)
        ranks = rank(scores.astype(wide(scores.dtype))).T
        guess0, guess1 = ranks > bar
        outcomes = jnp.where(counted, guess0 + 2 * guess1, -1)
        to_sum = [(outcomes == outcome).astype(jnp.uint32) for outcome in range(SUMS)]
        least = np.asarray(np.iinfo(ranks.dtype).min, ranks.dtype)
        to_bound = [jnp.where(counted, rank, least) for rank in (*~ranks, *ranks)]
        starts = [np.uint32(0)] * SUMS + [least] * len(to_bound)
        found = jax.lax.reduce(to_sum + to_bound, starts, _sums_and_ends, (0,))  # in one loop
        sums, ends = found[:SUMS], found[SUMS:]
        beside = jnp.zeros((0, 2), jnp.uint32)
        if bars is not None:
            above = (ranks.T[:, None, :] > bars[:, None]) & counted[:, None, None]
            beside = above.sum(0, dtype=jnp.uint32)
        ends = ends if mesh is None else jax.lax.pmax(ends, mesh.axis_names)
        *sums, beside = sharding.added([*sums, beside], mesh)
        return sums, ends, beside

    return sharding.shared_out(tally, mesh, (CUT, ALIKE, ALIKE, ALIKE, ALIKE, ALIKE), ALIKE)(
        scores, bar, early, there, column, bars
    )


def _sums_and_ends(one: Any, other: Any) -> Any:
    both = list(zip(one, other, strict=True))
    return [a + b for a, b in both[:SUMS]] + [jnp.maximum(a, b) for a, b in both[SUMS:]]
