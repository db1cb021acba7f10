"""From trials to counts: the scores stay on the devices that played them, and what is left can be resumed.

Scores reach the host for the trials set aside to choose a threshold, and, where an audit may stop after any pair, for
the pairs that it looks at.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from dpaudit import check, sharding
from dpaudit.auditing.checkpoint import Checkpoint
from dpaudit.auditing.estimate import checked_scores, choose_threshold
from dpaudit.auditing.game import Game
from dpaudit.auditing.sequential import Watch, update
from dpaudit.sharding import ALIKE, CUT

SUMS = 5  # of what is reduced on the devices: the outcomes of pairs, and scores that are not numbers


class Account(NamedTuple):
    """Where an audit stands: all that its result depends on, and so all that a checkpoint keeps.

    Attributes:
      done: trials of each world that have been played.
      threshold: guess world 1 where score > threshold; NaN until it is chosen.
      early: scores of the trials set aside, [2, n], until the threshold is chosen on them.
      counts: of the outcomes of the other pairs, [4], as :func:`betting.outcomes` numbers them.
      stopped: the rule by which to stop was met.
      missing: scores that are not numbers.
      low, high: ranks of the smallest and of the largest score of each world, [2].
    """

    done: Any
    threshold: Any
    early: np.ndarray
    counts: np.ndarray
    stopped: Any
    missing: Any
    low: np.ndarray
    high: np.ndarray


def count(
    game: Game,
    watch: Watch,
    *,
    threshold: float | None,
    aside: int,
    at_every_pair: bool,
    checkpoint: Checkpoint | None = None,
    progress: Callable[[int], None] | None = None,
) -> tuple[Account, Watch]:
    """Plays a game and counts its outcomes, until all trials are played or the watch's rule is met.

    Args:
      game: of scores [2] a trial, one for each world.
      watch: the state before the first trial.
      threshold: of the rule "world 1 where score > threshold", compared in float64; None to choose it on the first
        ``aside`` pairs, which are then not counted.
      aside: pairs, at most as many as there are.
      at_every_pair: look at the watch's rule after each pair; otherwise the counts alone leave the devices.
      checkpoint: saved after each call to the devices, and gone on from.
      progress: called with the number of trials finished, of both worlds, first with those of the checkpoint.

    Returns:
      (the account, the state after).

    Raises:
      InputError: scores that are not one number a trial, or NaN; what :meth:`Checkpoint.restore` refuses.
    """
    (score,) = game.traced.out_avals
    if score.shape != (2,):
        raise check.expected("scores", "one number for each release", f"shape {list(score.shape[1:])}")
    account = Account(
        done=0,
        threshold=np.nan if threshold is None else threshold,
        early=np.empty((2, 0)),
        counts=watch.counts,
        stopped=False,
        missing=0,
        low=np.full(2, np.iinfo(np.int64).max),
        high=np.full(2, np.iinfo(np.int64).min),
    )
    kept = None if checkpoint is None else checkpoint.restore()
    if kept is not None:
        account = Account(**kept)
    while True:
        watch = watch._replace(counts=account.counts, stopped=bool(account.stopped))
        if progress is not None:
            progress(2 * int(account.done))
        if account.done >= game.trials or watch.stopped:
            break
        step = partial(_looked_at if at_every_pair else _counted, watch=watch, account=account, aside=aside)
        account, game = game.fitted(step)
        if checkpoint is not None:
            checkpoint.save(**account._asdict())
    if account.missing:
        missing = f"NaN in {account.missing} of {2 * account.done} trials"
        raise check.expected("scores", "numbers", missing)
    return account, watch


def _counted(game: Game, watch: Watch, account: Account, aside: int) -> Account:
    """The account after one more call, whose counted trials are reduced where they were played."""
    played, there, early = _call(game, account, aside)
    account = _with_early(account, watch, game.first(played, early).T if early else np.empty((2, 0)), aside)
    bar = _bar(account.threshold, played.dtype)
    sums, ends = map(np.array, _tally(played, bar, np.uint32(early), np.uint32(there), mesh=game.mesh))
    return account._replace(
        done=account.done + there,
        counts=account.counts + sums[:4],
        missing=account.missing + int(sums[4]),
        low=np.minimum(account.low, ~ends[:2]),
        high=np.maximum(account.high, ends[2:]),
    )


def _looked_at(game: Game, watch: Watch, account: Account, aside: int) -> Account:
    """The account after one more call, whose pairs are looked at one by one."""
    played, there, early = _call(game, account, aside)
    scores = checked_scores(game.first(played, there).T)
    account = _with_early(account, watch, scores[:, :early], aside)
    watch = update(watch, *(scores[:, early:] > account.threshold))
    return account._replace(done=account.done + there, counts=watch.counts, stopped=watch.stopped)


def _call(game: Game, account: Account, aside: int) -> tuple[jax.Array, int, int]:
    """(the next trials, how many of them there are, how many of these are set aside)."""
    done = int(account.done)
    there = min(game.size, game.trials - done)
    return game.call(done), there, min(max(aside - done, 0), there)


def _with_early(account: Account, watch: Watch, scores: np.ndarray, aside: int) -> Account:
    """The account with more scores set aside, [2, n], and with the threshold as soon as these are all."""
    if not scores.shape[1]:
        return account
    early = np.concatenate([account.early, scores], axis=1)
    if early.shape[1] < aside:
        return account._replace(early=early)
    numbers = np.where(np.isnan(early), 0, early)
    threshold = choose_threshold(numbers, delta=watch.delta, confidence=watch.confidence)
    return account._replace(early=np.empty((2, 0)), threshold=threshold)


@partial(jax.jit, static_argnames="mesh")
def _tally(scores: jax.Array, bar: jax.Array, early: jax.Array, there: jax.Array, *, mesh: Mesh | None) -> Any:
    """scores [n, 2] -> (sums, ends), the same on every device; ``bar`` is a rank.

    ``sums`` are the counts of the four outcomes of pairs ``early`` to ``there``, and, as all that follows of pairs up
    to ``there``, the number of scores that are NaN. ``ends`` are the highest ranks of both worlds' scores, first with
    all bits inverted (so of the lowest), then as they are.
    """

    def tally(scores: jax.Array, bar: jax.Array, early: jax.Array, there: jax.Array) -> Any:
        number = jnp.uint32(sharding.place(mesh)) * len(scores) + jnp.arange(len(scores), dtype=jnp.uint32)
        played = number < there
        missing = jnp.where(played[:, None], jnp.isnan(scores), False)
        ranks = _rank(scores.astype(_wide(scores.dtype))).T
        guess0, guess1 = ranks > bar
        counted = jnp.where(played & (early <= number), guess0 + 2 * guess1, -1)
        to_sum = [*(counted == outcome for outcome in range(4)), missing.sum(1)]
        to_sum = [terms.astype(jnp.uint32) for terms in to_sum]
        least = np.asarray(np.iinfo(ranks.dtype).min, ranks.dtype)
        to_bound = [jnp.where(played, rank, least) for rank in (*~ranks, *ranks)]
        starts = [np.uint32(0)] * SUMS + [least] * len(to_bound)
        found = jax.lax.reduce(to_sum + to_bound, starts, _sums_and_ends, (0,))  # in one loop
        sums, ends = found[:SUMS], found[SUMS:]
        return sharding.added(sums, mesh), ends if mesh is None else jax.lax.pmax(ends, mesh.axis_names)

    return sharding.shared_out(tally, mesh, (CUT, ALIKE, ALIKE, ALIKE), ALIKE)(scores, bar, early, there)


def _sums_and_ends(one: Any, other: Any) -> Any:
    both = list(zip(one, other, strict=True))
    return [a + b for a, b in both[:SUMS]] + [jnp.maximum(a, b) for a, b in both[SUMS:]]


def _bar(threshold: float, kind: np.dtype) -> np.ndarray:
    """The rank of the largest number of the scores' type that is <= threshold: scores are above both or neither."""
    kind = _wide(kind)
    if kind.kind == "f":
        with np.errstate(over="ignore"):
            bar = kind.type(threshold)
        return _rank(np.asarray(np.nextafter(bar, kind.type(-np.inf)) if bar > threshold else bar))
    least, most = np.iinfo(kind).min, np.iinfo(kind).max
    if threshold < least:
        raise check.expected("threshold", f"at least {least}, the smallest score of type {kind}", threshold)
    return np.asarray(most if threshold >= most else int(np.floor(np.nan_to_num(threshold))), kind)


def _wide(kind: np.dtype) -> np.dtype:
    """The scores' type, or one of 32 bits that holds all its numbers."""
    if kind.itemsize >= 4:
        return kind
    return np.dtype(np.float32 if jnp.issubdtype(kind, jnp.floating) else np.int32)


def _rank(numbers: Any) -> Any:
    """Integers in the order of the numbers, NumPy's or JAX's: a processor that takes the smallest floats for zero does
    not see them differ."""
    if numbers.dtype.kind != "f":
        return numbers
    kind = np.dtype(f"int{8 * numbers.dtype.itemsize}")
    bits = numbers.view(kind)
    negative = bits >> (8 * kind.itemsize - 1)  # 0 or -1
    return (bits ^ (negative & np.iinfo(kind).max)) - negative
