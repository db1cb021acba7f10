"""Counts the outcomes of trials on the devices that played them, or with NumPy where they are few.

The counts are saved, so that an audit can resume.
Scores reach the host only for the trials set aside to choose a rule, and for the pairs that an audit looks at where it
may stop after any pair.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import numpy as np

from dpaudit import _validate
from dpaudit._engine.checkpoint import Checkpoint
from dpaudit._engine.game import Game
from dpaudit.auditing import tally
from dpaudit.auditing.attacks import choose
from dpaudit.auditing.attacks.portfolio import Family, Portfolio
from dpaudit.auditing.bounds import betting, normality
from dpaudit.auditing.bounds.sequential import Watch, next_stage, update
from dpaudit.auditing.ranks import bar as bar_of
from dpaudit.auditing.ranks import rank

NO_MORE = np.empty(0, np.int64)

Judge = Callable[..., "tuple[Account, Watch]"]


class Account(NamedTuple):
    """The state of an audit: everything that its result depends on, and so everything that a checkpoint saves.

    Attributes:
      done: trials of each world that have been played.
      looks: of each score, [scores, 4]: threshold, whether world 1 is above it, bound and accuracy on
        the trials set aside; empty until the rule is chosen.
      order: the numbers of the scores, the one that decides first.
      early: scores of the trials set aside, [2, n, scores], until the rule is chosen on them.
      counts: of the outcomes of the other pairs, [4], as :func:`betting.outcomes` numbers them.
      stopped: the rule by which to stop was met.
      bars: thresholds of the deciding score counted beside the rule's, [b]; empty for a rule fixed in advance.
      beside: trials above each of them, [b, 2], of world 0 and of world 1, among those of ``counts``.
      kept: every score that is counted, [2, n], where an estimator reads them; else empty.
      earlier: outcomes under rules that have been replaced, [k, 4].
      bets: of these rules and of the present one against a curve, as :class:`sequential.Watch` has them.
      chosen: pairs on which the rule was chosen.
      normal: the scores set aside, of the one that decides, pass for normal in both worlds.
      low, high: ranks of the smallest and of the largest counted score of each world, [2].
      unpaired: of counted trials without a partner in the other world, where scores were given: false positives, false
        negatives, and trials of world 0 and of world 1, [4].
    """

    done: Any
    looks: np.ndarray
    order: np.ndarray
    early: np.ndarray
    counts: np.ndarray
    stopped: Any
    bars: np.ndarray
    beside: np.ndarray
    kept: np.ndarray
    earlier: np.ndarray
    bets: np.ndarray
    chosen: Any
    normal: Any
    low: np.ndarray
    high: np.ndarray
    unpaired: np.ndarray = NO_MORE

    @property
    def seen(self) -> list[choose.Seen]:
        """Returns every score with its rule, in the order of the scores."""
        return [choose.Seen(choose.Rule(float(t), bool(above)), float(b), float(a)) for t, above, b, a in self.looks]

    @property
    def rule(self) -> choose.Rule:
        """Returns the rule by which the deciding score tells the worlds apart."""
        return self.seen[int(self.order[0])].rule

    @property
    def errors(self) -> tuple[int, int, int, int]:
        """Returns false positives, false negatives, and counted trials of world 0 and of world 1."""
        false_positives, false_negatives, pairs = betting.error_counts(self.counts)
        found = np.array([false_positives, false_negatives, pairs, pairs])
        fp, fn, negatives, positives = map(int, found + self.unpaired if len(self.unpaired) else found)
        return fp, fn, negatives, positives

    @property
    def wrong(self) -> np.ndarray | None:
        """Returns false positives and false negatives at each bar, [b, 2]; None without bars."""
        if not len(self.bars):
            return None
        above0, above1 = self.beside.T
        *_, n0, n1 = self.errors
        return np.stack([above0, n1 - above1] if self.rule.above else [n0 - above0, above1], axis=1)


def count(
    game: Game,
    watch: Watch,
    *,
    threshold: float | None,
    cuts: Sequence[int],
    at_every_pair: bool,
    keep_scores: bool = False,
    family: Portfolio | None = None,
    checkpoint: Checkpoint | None = None,
    progress: Callable[[int], None] | None = None,
) -> tuple[Account, Watch]:
    """Plays a game and counts its outcomes, until all trials are played or the watch's rule is met.

    Args:
      game: of scores [2] a trial, one for each world, or of several scores, [2, scores], where there is a family.
      watch: the state before the first trial.
      threshold: of the rule "world 1 where score > threshold", compared in float64; None to choose a score, a side
        and a threshold on the first pairs, which are then not counted.
      cuts: increasing numbers of pairs, at most as many as there are, after each of which the rule is chosen on all
        pairs up to there; one or none where only the counts leave the devices. Without a threshold, none for scores
        that are all kept. With one, a side is chosen, and the bet against a curve.
      at_every_pair: look at the watch's rule after each pair; otherwise the counts alone leave the devices.
      keep_scores: keep the score that decides of every counted trial.
      family: whose scores the game plays, to choose from; None for games of one score.
      checkpoint: saved after each call to the devices, and resumed from.
      progress: called with the number of trials finished, of both worlds, first with those of the checkpoint.

    Returns:
      (the account, the state after).

    Raises:
      InputError: scores that are not one number a trial; a checkpoint that :meth:`Checkpoint.restore` refuses.
    """
    shape = game.shape
    scores = 1 if family is None else len(family.attacks.finalists)
    if family is None and shape != (2,):
        raise _validate.expected("scores", "one number for each release", f"shape {list(shape[1:])}")
    account = fresh(watch, scores, undecided=bool(cuts), threshold=threshold)
    kept = None if checkpoint is None else checkpoint.restore()
    if kept is not None:
        account = _unpacked(account, kept)
    while True:
        state = {name: getattr(account, name) for name in ("counts", "earlier", "bets")}
        watch = watch._replace(**state, stopped=bool(account.stopped))
        if progress is not None:
            progress(2 * int(account.done))
        if account.done >= game.trials or watch.stopped:
            return account, watch
        if family is not None and len(account.order) and account.done >= max(cuts, default=0):
            game = family.narrowed(game, int(account.order[0]), alone=not (at_every_pair or keep_scores))
        judge = partial(
            looks,
            watch=watch,
            family=None if family is None else family.attacks,
            threshold=threshold,
            bets=at_every_pair and (watch.stages > 1 or _curve(watch)),
        )
        how = {"watch": watch, "account": account, "cuts": cuts, "judge": judge}
        step = partial(_looked_at, **how) if at_every_pair else partial(_counted, **how, keep_scores=keep_scores)
        account, game = game.fitted(step)
        if checkpoint is not None:
            checkpoint.save(**_packed(account))


def fresh(watch: Watch, scores: int, *, undecided: bool, threshold: float | None) -> Account:
    """Returns the account before the first trial.

    Args:
      watch: the state then.
      scores: of each trial.
      undecided: whether the rule will be chosen.
      threshold: of the rule if it is fixed.
    """
    fixed = 0.0 if threshold is None else threshold  # of scores that are kept, any will do
    return Account(
        done=0,
        looks=np.empty((0, 4)) if undecided else np.array([[fixed, True, np.nan, np.nan]]),
        order=np.zeros(0 if undecided else 1, int),
        early=np.empty((2, 0, scores)),
        counts=watch.counts,
        stopped=False,
        bars=np.empty(0),
        beside=np.empty((0, 2), np.int64),
        kept=np.empty((2, 0)),
        earlier=watch.earlier,
        bets=watch.bets,
        chosen=0,
        normal=False,
        low=np.full(2, np.iinfo(np.int64).max),
        high=np.full(2, np.iinfo(np.int64).min),
    )


SMALL = ("done", "stopped", "chosen", "normal")  # numbers kept in one array
PAIRS = ("low", "high")  # and arrays


def _curve(watch: Watch) -> bool:
    return watch.claim is not None and watch.claim.is_curve


def _packed(account: Account) -> dict[str, Any]:
    """Returns what a file keeps of an account, without the empty arrays."""
    apart = (*SMALL, *PAIRS)
    arrays = {name: value for name, value in account._asdict().items() if name not in apart and np.size(value)}
    numbers = np.array([int(getattr(account, name)) for name in SMALL])
    return arrays | {"numbers": numbers, "ends": np.stack([getattr(account, name) for name in PAIRS])}


def _unpacked(fresh: Account, arrays: dict[str, np.ndarray]) -> Account:
    """Returns the account of a file; ``fresh`` is the one before the first trial."""
    arrays = dict(arrays)
    numbers, ends = (
        dict(zip(names, arrays.pop(of), strict=True)) for names, of in ((SMALL, "numbers"), (PAIRS, "ends"))
    )
    return fresh._replace(**numbers, **ends, **arrays)


def _counted(
    game: Game, watch: Watch, account: Account, cuts: Sequence[int], judge: Judge, keep_scores: bool
) -> Account:
    """Plays one more call and returns the account; the counted trials are reduced where they were played."""
    aside = max(cuts, default=0)
    played, there, early = _call(game, account, aside)
    account = account._replace(done=account.done + there)
    if early:
        account = account._replace(early=np.concatenate([account.early, _by_world(game.first(played, early))], axis=1))
        if account.done >= aside:
            account = judge(account)[0]
    if early == there:
        return account
    bar = bar_of(account.rule.threshold, played.dtype)
    bars = np.array([bar_of(threshold, played.dtype) for threshold in account.bars], bar.dtype)
    if keep_scores:
        own = _by_world(game.first(played, there))[:, early:, account.order[0]]
        account = account._replace(kept=np.concatenate([account.kept, own], axis=1))
    number = int(account.order[0])
    sums, ends, beside = tally.reduced(game, played, number, bar, bars, early=early, there=there)
    return account._replace(
        counts=account.counts + (sums if account.rule.above else sums[::-1]),
        beside=account.beside + beside,
        low=np.minimum(account.low, ~ends[:2]),
        high=np.maximum(account.high, ends[2:]),
    )


def _looked_at(game: Game, watch: Watch, account: Account, cuts: Sequence[int], judge: Judge) -> Account:
    """Plays one more call and returns the account; its pairs are looked at one by one."""
    last_cut, before = max(cuts, default=0), int(account.done)
    played, there, _ = _call(game, account, last_cut)
    scores = _by_world(game.first(played, there))
    edges = [0, *(cut - before for cut in cuts if 0 < cut - before < there), there]
    for first, last in pairwise(edges):
        part = scores[:, first:last]
        account = account._replace(done=before + last)
        if len(account.order):
            account, watch = _bet(account, watch, part[..., account.order[0]])
        if watch.stopped:
            break
        if before + first < last_cut:
            account = account._replace(early=np.concatenate([account.early, part], axis=1))
        if before + last in cuts:
            account, watch = judge(account, watch=watch)
            if before + last == last_cut:
                account = account._replace(early=account.early[:, :0])
    return account._replace(done=before + there)


def _bet(account: Account, watch: Watch, own: np.ndarray) -> tuple[Account, Watch]:
    """Returns the account and the state after more pairs, [2, n], of the deciding score."""
    above = (own > account.rule.threshold) | np.isnan(own)
    after = update(watch, *(above == account.rule.above))
    own = own[:, : after.pairs - watch.pairs]
    ranks = rank(own)
    beyond = (own[..., None] > account.bars) | np.isnan(own)[..., None]
    return account._replace(
        counts=after.counts,
        stopped=after.stopped,
        beside=account.beside + beyond.sum(1).T,
        low=np.minimum(account.low, ranks.min(1)),
        high=np.maximum(account.high, ranks.max(1)),
    ), after


def _call(game: Game, account: Account, aside: int) -> tuple[jax.Array, int, int]:
    """Plays the next trials; returns them, their number, and how many of them are set aside."""
    done = int(account.done)
    there = min(game.size, game.trials - done)
    return game.call(done), there, min(max(aside - done, 0), there)


def _by_world(played: np.ndarray) -> np.ndarray:
    """Reshapes [n, 2] or [n, 2, scores] to [2, n, scores], in float64."""
    return np.moveaxis(played.astype(np.float64).reshape(*played.shape[:2], -1), 1, 0)


def looks(
    account: Account, *, watch: Watch, family: Family | None, threshold: float | None, bets: bool
) -> tuple[Account, Watch]:
    """Chooses the rule on the scores set aside, or the side of a fixed threshold; returns the account and the
    state."""
    early = account.early
    settings: dict[str, Any] = {"delta": watch.delta, "confidence": watch.confidence, "claim": watch.claim}
    if threshold is not None:
        above = (early[..., 0] > threshold) | np.isnan(early[..., 0])
        seen = [choose.Seen(choose.Rule(threshold, bool(above[1].mean() >= above[0].mean())), np.nan, np.nan)]
    else:
        seen = [choose.look(early[..., 0], **settings)] if family is None else family.look(early, **settings)
    looks = np.array([[*one.rule, one.bound, one.accuracy] for one in seen])
    order = np.array(choose.best(seen) if threshold is None else [0])
    own, rule = early[..., order[0]], seen[order[0]].rule
    bars = choose.beside(own, rule, confidence=watch.confidence) if threshold is None else np.empty(0)
    if bets:
        watch = next_stage(watch, ((own > rule.threshold) | np.isnan(own)) == rule.above)
    account = account._replace(
        looks=looks,
        order=order,
        counts=watch.counts,
        earlier=watch.earlier,
        bets=watch.bets,
        bars=bars,
        beside=np.zeros((len(bars), 2), np.int64),
        chosen=early.shape[1],
        normal=normality.looks_normal(own, peaked=watch.delta == 0),
    )
    return (account if watch.stages > 1 else account._replace(early=early[:, :0])), watch
