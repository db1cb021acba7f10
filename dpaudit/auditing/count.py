"""Counts the outcomes of trials on the devices that played them, and saves the counts so that an audit can resume.

Scores reach the host only for the trials set aside to choose a rule, and for the pairs that an audit looks at where it
may stop after any pair.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from dpaudit import _validate
from dpaudit._engine import sharding
from dpaudit._engine.checkpoint import Checkpoint
from dpaudit._engine.game import Game
from dpaudit._engine.sharding import ALIKE, CUT
from dpaudit.auditing.attacks import choose
from dpaudit.auditing.attacks.portfolio import Portfolio
from dpaudit.auditing.bounds import alternative
from dpaudit.auditing.bounds.sequential import Watch, update

SUMS = 4  # of what is reduced on the devices: the outcomes of pairs
INFINITY = {4: 0x7F800000, 8: 0x7FF0000000000000}  # its bits


Judge = Callable[..., "Account"]


class Account(NamedTuple):
    """The state of an audit: everything that its result depends on, and so everything that a checkpoint saves.

    Attributes:
      done: trials of each world that have been played.
      looks: of each score, [scores, 4]: threshold, whether world 1 is above it, bound and accuracy on
        the trials set aside; empty until the rule is chosen.
      order: the numbers of the scores, the one that decides first.
      early: scores of the trials set aside, [2, n, scores], until the rule is chosen on them.
      counts: of the outcomes of the other pairs, [4], as :func:`betting.outcomes` numbers them.
      stopped: whether the stopping rule was met.
      normal: whether the deciding score, on the trials set aside, passes for normal in both worlds.
      low, high: ranks of the smallest and of the largest counted score of each world, [2].
    """

    done: Any
    looks: np.ndarray
    order: np.ndarray
    early: np.ndarray
    counts: np.ndarray
    stopped: Any
    normal: Any
    low: np.ndarray
    high: np.ndarray

    @property
    def seen(self) -> list[choose.Seen]:
        """Returns every score with its rule, in the order of the scores."""
        return [choose.Seen(choose.Rule(float(t), bool(above)), float(b), float(a)) for t, above, b, a in self.looks]

    @property
    def rule(self) -> choose.Rule:
        """Returns the rule by which the deciding score tells the worlds apart."""
        return self.seen[int(self.order[0])].rule


def count(
    game: Game,
    watch: Watch,
    *,
    threshold: float | None,
    aside: int,
    at_every_pair: bool,
    family: Portfolio | None = None,
    checkpoint: Checkpoint | None = None,
    progress: Callable[[int], None] | None = None,
) -> tuple[Account, Watch]:
    """Plays a game and counts its outcomes, until all trials are played or the watch's rule is met.

    Args:
      game: of scores [2] a trial, one for each world, or of several scores, [2, scores].
      watch: the state before the first trial.
      threshold: of the rule "world 1 where score > threshold", compared in float64; None to choose a score, a side
        and a threshold on the first ``aside`` pairs, which are then not counted.
      aside: pairs, at most as many as there are.
      at_every_pair: check the watch's rule after each pair; otherwise only counts leave the devices.
      family: whose scores the game plays, to choose from; None for games of one score.
      checkpoint: saved after each call to the devices, and resumed from.
      progress: called with the number of trials finished, of both worlds, first with those of the checkpoint.

    Returns:
      (the account, the state after).

    Raises:
      InputError: scores that are not one number a trial; a checkpoint that :meth:`Checkpoint.restore` refuses.
    """
    (score,) = game.traced.out_avals
    scores = 1 if family is None else len(family.finalists)
    if score.shape != ((2,) if family is None else (2, scores)):
        raise _validate.expected("scores", "one number for each release", f"shape {list(score.shape[1:])}")
    account = Account(
        done=0,
        looks=np.empty((0, 4)) if threshold is None else np.array([[threshold, True, np.nan, np.nan]]),
        order=np.zeros(0 if threshold is None else 1, int),
        early=np.empty((2, 0, scores)),
        counts=watch.counts,
        stopped=False,
        normal=False,
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
            return account, watch
        if family is not None and len(account.order):
            game = family.narrowed(game, int(account.order[0]))
        judge = partial(_looks, watch=watch, family=family, aside=aside)
        step = partial(
            _looked_at if at_every_pair else _counted, watch=watch, account=account, aside=aside, judge=judge
        )
        account, game = game.fitted(step)
        if checkpoint is not None:
            checkpoint.save(**account._asdict())


def _counted(game: Game, watch: Watch, account: Account, aside: int, judge: Judge) -> Account:
    """Returns the account after one more call, whose counted trials are reduced where they were played."""
    played, there, early = _call(game, account, aside)
    account = account._replace(done=account.done + there)
    if early:
        account = judge(account, _by_world(game.first(played, early)))
    if early == there:
        return account
    column = None if played.ndim == 2 else np.uint32(account.order[0])
    bar = _bar(account.rule.threshold, played.dtype)
    sums, ends = map(np.array, _tally(played, bar, np.uint32(early), np.uint32(there), column, mesh=game.mesh))
    return account._replace(
        counts=account.counts + (sums if account.rule.above else sums[::-1]),
        low=np.minimum(account.low, ~ends[:2]),
        high=np.maximum(account.high, ends[2:]),
    )


def _looked_at(game: Game, watch: Watch, account: Account, aside: int, judge: Judge) -> Account:
    """Returns the account after one more call, whose pairs are checked one by one."""
    played, there, early = _call(game, account, aside)
    scores = _by_world(game.first(played, there))
    account = account._replace(done=account.done + there)
    if early:
        account = judge(account, scores[:, :early])
    if early == there:
        return account
    own = scores[:, early:, account.order[0]]
    above = (own > account.rule.threshold) | np.isnan(own)
    after = update(watch, *(above == account.rule.above))
    ranks = _rank(own[:, : after.pairs - watch.pairs])
    return account._replace(
        counts=after.counts,
        stopped=after.stopped,
        low=np.minimum(account.low, ranks.min(1)),
        high=np.maximum(account.high, ranks.max(1)),
    )


def _call(game: Game, account: Account, aside: int) -> tuple[jax.Array, int, int]:
    """Plays the next trials; returns them, their number, and how many of them are set aside."""
    done = int(account.done)
    there = min(game.size, game.trials - done)
    return game.call(done), there, min(max(aside - done, 0), there)


def _by_world(played: np.ndarray) -> np.ndarray:
    """Reshapes [n, 2] or [n, 2, scores] to [2, n, scores], in float64."""
    return np.moveaxis(played.astype(np.float64).reshape(*played.shape[:2], -1), 1, 0)


def _looks(account: Account, scores: np.ndarray, *, watch: Watch, family: Portfolio | None, aside: int) -> Account:
    """Returns the account with more scores set aside, [2, n, scores], and with the rule once these are complete."""
    early = np.concatenate([account.early, scores], axis=1)
    if account.done < aside:
        return account._replace(early=early)
    settings: dict[str, Any] = {"delta": watch.delta, "confidence": watch.confidence, "claim": watch.claim}
    seen = [choose.look(early[..., 0], **settings)] if family is None else family.look(early, **settings)
    looks = np.array([[*one.rule, one.bound, one.accuracy] for one in seen])
    order = np.array(choose.best(seen))
    normal = alternative.looks_normal(early[..., order[0]])
    return account._replace(early=early[:, :0], looks=looks, order=order, normal=normal)


@partial(jax.jit, static_argnames="mesh")
def _tally(
    scores: jax.Array,
    bar: jax.Array,
    early: jax.Array,
    there: jax.Array,
    column: jax.Array | None = None,
    *,
    mesh: Mesh | None,
) -> Any:
    """Reduces scores [n, 2], or a column of [n, 2, scores], to (sums, ends), the same on every device.

    ``bar`` is the rank of the threshold.
    Of pairs ``early`` to ``there``, ``sums`` are the counts of the four outcomes and ``ends`` the highest ranks of
    both worlds' scores, first with all bits inverted (so of the lowest), then as they are.
    """

    def tally(scores: jax.Array, bar: jax.Array, early: jax.Array, there: jax.Array, column: Any) -> Any:
        scores = scores if column is None else scores[..., column]
        number = jnp.uint32(sharding.place(mesh)) * len(scores) + jnp.arange(len(scores), dtype=jnp.uint32)
        counted = (early <= number) & (number < there)
        ranks = _rank(scores.astype(_wide(scores.dtype))).T
        guess0, guess1 = ranks > bar
        outcomes = jnp.where(counted, guess0 + 2 * guess1, -1)
        to_sum = [(outcomes == outcome).astype(jnp.uint32) for outcome in range(SUMS)]
        least = np.asarray(np.iinfo(ranks.dtype).min, ranks.dtype)
        to_bound = [jnp.where(counted, rank, least) for rank in (*~ranks, *ranks)]
        starts = [np.uint32(0)] * SUMS + [least] * len(to_bound)
        found = jax.lax.reduce(to_sum + to_bound, starts, _sums_and_ends, (0,))  # in one loop
        sums, ends = found[:SUMS], found[SUMS:]
        return sharding.added(sums, mesh), ends if mesh is None else jax.lax.pmax(ends, mesh.axis_names)

    return sharding.shared_out(tally, mesh, (CUT, ALIKE, ALIKE, ALIKE, ALIKE), ALIKE)(
        scores, bar, early, there, column
    )


def _sums_and_ends(one: Any, other: Any) -> Any:
    both = list(zip(one, other, strict=True))
    return [a + b for a, b in both[:SUMS]] + [jnp.maximum(a, b) for a, b in both[SUMS:]]


def _bar(threshold: float, kind: np.dtype) -> np.ndarray:
    """Returns the rank of the largest number of the scores' type that is <= threshold, which cuts scores alike."""
    kind = _wide(kind)
    if kind.kind == "f":
        with np.errstate(over="ignore"):
            bar = kind.type(threshold)
        return _rank(np.asarray(np.nextafter(bar, kind.type(-np.inf)) if bar > threshold else bar))
    least, most = np.iinfo(kind).min, np.iinfo(kind).max
    if threshold < least:
        raise _validate.expected("threshold", f"at least {least}, the smallest score of type {kind}", threshold)
    return np.asarray(most if threshold >= most else int(np.floor(np.nan_to_num(threshold))), kind)


def _wide(kind: np.dtype) -> np.dtype:
    """Returns the scores' type, or one of 32 bits that holds all its numbers."""
    if kind.itemsize >= 4:
        return kind
    return np.dtype(np.float32 if jnp.issubdtype(kind, jnp.floating) else np.int32)


def _rank(numbers: Any) -> Any:
    """Returns integers in the order of the numbers, NumPy's or JAX's, with NaN on top.

    Integers, because a CPU that flushes subnormals to zero does not tell the smallest floats apart.
    """
    if numbers.dtype.kind != "f":
        return numbers
    kind = np.dtype(f"int{8 * numbers.dtype.itemsize}")
    bits, most = numbers.view(kind), np.iinfo(kind).max
    negative = bits >> (8 * kind.itemsize - 1)  # 0 or -1
    rank = (bits ^ (negative & most)) - negative
    missing = -((bits & most) > INFINITY[kind.itemsize]).astype(kind)  # 0 or -1
    return (rank & ~missing) | (most & missing)
