"""Runs a family of attacks on the same releases, and chooses the best one on the trials set aside.

The first of the trials set aside are a pilot, which is read as raw releases: :mod:`features` reads every number of
them, tables and a small network are fitted, and the scores that show most become the finalists. One program makes
releases; another one (:mod:`scoring`) scores them, by all finalists or only by the chosen one. One finalist is chosen
on the trials set aside, and its bound is computed on the other trials, so the number of attacks does not cost
confidence.
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.tree_util import Partial

from dpaudit._engine import fingerprint, worlds
from dpaudit._engine.checkpoint import Checkpoint
from dpaudit._engine.checkpoint import checkpoint as checkpoint_of
from dpaudit._engine.game import Game, game, of_worlds
from dpaudit._engine.sharding import cores, devices, of_first_process, several_processes
from dpaudit.auditing.attacks import checked, choose, distinguish, features, scoring
from dpaudit.auditing.attacks.base import Distinguisher, Score
from dpaudit.auditing.attacks.scoring import FEATURES, FREQUENCIES, NETWORK, OTHERS
from dpaudit.auditing.result import Tried
from dpaudit.mechanisms.claim import Claim, Mechanism

PILOT_BYTES, PILOT_MOST, PILOT_LEAST = 1 << 25, 4096, 16  # of all its releases; pairs
FAR_MORE = 50  # pairs of the pilot for each number of a mean, so that the same pairs can judge it
CALL_BYTES = 1 << 28  # of the releases that a device plays in a call


class Finalist(NamedTuple):
    """One of the scores that are compared on the trials set aside.

    Attributes:
      name: for tables.
      fitted: whether it was fitted or picked on the pilot, whose trials can then not judge it.
      needs: of FEATURES, FREQUENCIES, NETWORK and OTHERS, what it is computed from.
    """

    name: str
    fitted: bool
    needs: tuple[int, ...] = ()


class Family(NamedTuple):
    """The finalists of the family, fitted on a pilot.

    Attributes:
      arrays: that the scores are computed from.
      finalists: of each score.
      screened: names of all numbers that were screened on the pilot, with what they showed there.
      pilot: pairs of trials.
    """

    arrays: scoring.Arrays
    finalists: list[Finalist]
    screened: list[tuple[str, float]]
    pilot: int

    @property
    def digest(self) -> str:
        """Returns a fingerprint of all that was fitted."""
        return fingerprint.digest(map(fingerprint.raw, jax.tree.leaves(self.arrays)))

    def needs(self, number: int) -> np.ndarray:
        """Returns, [4], what a score is computed from: FEATURES, FREQUENCIES, NETWORK and OTHERS."""
        return np.isin(np.arange(4), self.finalists[number].needs)

    def look(
        self, early: np.ndarray, *, delta: float, confidence: float, claim: Claim | None = None
    ) -> list[choose.Seen]:
        """Finds the best rule for every score on the trials set aside, [2, n, scores]; scores that were fitted on the
        pilot are judged without it."""

        def seen(i: int) -> choose.Seen:
            first = self.pilot if self.finalists[i].fitted else 0
            return choose.look(early[:, first:, i], delta=delta, confidence=confidence, claim=claim)

        with ThreadPoolExecutor(
            min(scoring.THREADS, cores())
        ) as pool:  # most time goes into sorting, which releases the interpreter's lock
            return list(pool.map(seen, range(len(self.finalists))))

    def tried(self, seen: Sequence[choose.Seen], order: np.ndarray) -> tuple[Tried, ...]:
        """Lists every attack, the best finalist first, then the numbers that were screened on the pilot."""
        found = [Tried(self.finalists[i].name, seen[i].bound, seen[i].accuracy) for i in map(int, order)]
        known = {one.name for one in found}
        rest = [Tried(name, max(0.0, shown), None) for name, shown in self.screened if name not in known]
        return (*found, *sorted(rest, key=lambda one: -one.bound))


class Portfolio(NamedTuple):
    """The finalists, as a game of several scores.

    Attributes:
      game: of [2, scores] a trial; on JAX's devices a :class:`Game`, on the host its counterpart there.
      attacks: the finalists.
      like: ``like(apply, key)``, the same game of another mechanism on trials of its own.
      narrow: ``narrow(game, needs, number)``, the same game of what is needed alone, and of one score where NumPy can
        leave out the others.
    """

    game: Any
    attacks: Family
    like: Callable[[Callable[..., Any], jax.Array], Any]
    narrow: Callable[[Any, np.ndarray, int | None], Any]

    def narrowed(self, game: Any, number: int, *, alone: bool) -> Any:
        """Returns the same game without what the chosen score does not need; the other scores are 0.

        Args:
          game: to be played on.
          number: of the score that was chosen.
          alone: whether NumPy may leave out the other scores.
        """
        return self.narrow(game, self.attacks.needs(number), number if alone else None)


def _narrowed(game: Game, needs: np.ndarray, number: int | None) -> Game:
    consts, (bases, _) = game.one.args
    read = game.read
    assert isinstance(read, partial)
    settings: dict[str, Any] = {"wanted": needs[:OTHERS]}
    if number is not None and read.func is scoring.read_on_host:
        settings["number"] = number
    one = Partial(game.one.func, consts, [bases, needs[OTHERS]])
    return game._replace(one=one, read=partial(read, **settings), begun=None)


def pilot_pairs(mechanism: Mechanism, x0: Any, aside: int) -> int:
    """Returns how many pairs of trials are read as raw releases: at most half of those set aside, and what memory
    allows."""
    size = scoring.size(scoring.layout(checked.shapes_of(mechanism, x0)))
    return min(aside // 2, PILOT_MOST, PILOT_BYTES // max(1, 8 * size))


def portfolio(
    fit_key: jax.Array,
    play_key: jax.Array,
    mechanism: Mechanism,
    x0: Any,
    x1: Any,
    attacks: Sequence[Distinguisher],
    trials: int,
    *,
    aside: int,
    pilot: int,
    delta: float,
    confidence: float,
    batch: int | None,
    mesh: Mesh | None,
    checkpoint: Path | None = None,
) -> Portfolio:
    """Plays the pilot and fits the finalists.

    Args:
      fit_key: for the attacks that are fitted.
      play_key: of the trials, from :func:`game.trial_key`.
      mechanism, x0, x1: what is audited.
      attacks: beside the family.
      trials: of each world.
      aside: of these, how many are set aside to choose the attack.
      pilot: of these, how many are read as raw releases: the first ones.
      delta, confidence: those of the bound.
      batch, mesh: as for :func:`game.sweep`.
      checkpoint: a file that keeps the pilot's releases, from which the same audit goes on.

    Raises:
      InputError: an attack that raises, cannot be traced, or gives no number.
    """
    others = [] if mechanism.log_prob is None else [distinguish.likelihood_ratio]
    scores = [attack.fit(fit_key, mechanism, x0, x1) for attack in others]
    pair = mechanism, x0, x1
    scores += [checked.fitted("attacks", one, jax.random.fold_in(fit_key, i), *pair) for i, one in enumerate(attacks)]
    others += attacks
    shapes = checked.shapes_of(mechanism, x0)
    arrays_of = scoring.layout(shapes)

    def of(apply: Callable[..., Any], key: jax.Array) -> Game:
        return releases(key, apply, (x0, x1), scores, trials, batch=batch, mesh=mesh)

    whole = of(mechanism.apply, play_key)
    blocks = CALL_BYTES // (whole.block * 4 * whole.traced.out_avals[0].size)
    blocks = min(
        blocks, math.ceil(aside / (whole.block * devices(mesh)))
    )  # so that the call after it already has the finalists
    whole = whole._replace(blocks=max(1, min(whole.blocks, blocks)))
    given = distinguish.difference(x0, x1) if _alike_in_size(x0, x1, shapes) else None
    static = {"arrays_of": arrays_of, "others": len(scores), "block": whole.block}
    soon = scoring.soon_read(trials, arrays_of)
    ahead = [] if soon or mesh is not None else [scoring.compiled_ahead(whole, given is not None, **static)]
    kept = checkpoint_of(checkpoint, whole.one, whole.traced, trials, "pilot", pilot, mesh=mesh)
    raw, whole = _pilot(whole, pilot, kept)
    leaves = scoring.leaves(np.ascontiguousarray(np.moveaxis(raw[..., len(scores) :], 1, 0)), arrays_of)
    settings = {"pilot": pilot, "delta": delta, "confidence": confidence}
    fitted = family(leaves, given, [attack.name for attack in others], mesh=mesh, **settings)
    wait(ahead)  # an error there is raised again where the program is used
    read = scoring.read_on_host if soon else scoring.read_on_devices
    whole = whole._replace(read=partial(read, arrays=fitted.arrays, wanted=np.ones(OTHERS, bool), **static))

    def like(apply: Callable[..., Any], key: jax.Array) -> Game:
        return of(apply, key)._replace(block=whole.block, blocks=whole.blocks, read=whole.read)

    return Portfolio(whole, fitted, like, _narrowed)


def family(
    leaves: list[np.ndarray],
    given: np.ndarray | None = None,
    others: Sequence[str] = (),
    *,
    pilot: int,
    delta: float,
    confidence: float,
    rename: Callable[[list[str]], list[str]] | None = None,
    mesh: Mesh | None = None,
) -> Family:
    """Fits the family to a pilot.

    Args:
      leaves: the pilot's releases, [2, pilot, *shape] each.
      given: a direction [d] to look along, or None.
      others: names of the attacks beside the family.
      pilot: pairs.
      delta, confidence: those of the bound.
      rename: ``rename(names)`` of the family's numbers, for tables.
      mesh: whose first process decides.
    """
    arrays, shown = scoring.fitted(leaves, given, delta=delta, confidence=confidence)
    if several_processes(mesh):
        arrays, shown = of_first_process((arrays, shown))
    names = features.names(arrays.sight)
    names = names if rename is None else rename(names)
    finalists = [
        *([] if given is None else [Finalist("projection on x1 - x0", False)]),
        Finalist("projection on the difference of means", len(arrays.sight.centre) > pilot / FAR_MORE),
        *(Finalist(f"distance along what varies least in world {world}", True) for world in (1, 0)),
        *(Finalist(names[i], True, (FEATURES,)) for i in arrays.singles),
        *(Finalist(f"frequencies of {names[i]}", True, (FEATURES, FREQUENCIES)) for i in arrays.listed),
        *(Finalist(f"frequencies of {what}", True, (FEATURES, FREQUENCIES)) for what in scoring.SUMS),
        Finalist("network", True, (FEATURES, FREQUENCIES, NETWORK)),
        *(Finalist(name, False, (OTHERS,)) for name in others),
    ]
    screened = [(name, float(bound)) for name, bound in zip(names, shown, strict=True)]
    return Family(arrays, finalists, screened, pilot)


def releases(
    key: jax.Array,
    apply: Callable[..., Any],
    pair: tuple[Any, Any],
    scores: Sequence[Score],
    trials: int,
    *,
    batch: int | None = None,
    mesh: Mesh | None = None,
) -> Game:
    """Prepares the trials of a mechanism, whose releases the family reads; ``scores`` are computed beside it."""
    played = partial(_played, apply=apply, pair=pair, scores=scores)
    return game(Partial(played, of_worlds(key), np.array(True)), trials, batch=batch, mesh=mesh)


def _alike_in_size(x0: Any, x1: Any, shapes: Any) -> bool:
    """Tells whether both inputs have as many numbers as a release."""
    first, second, release = (sum(int(np.size(leaf)) for leaf in jax.tree.leaves(tree)) for tree in (x0, x1, shapes))
    return first == second == release


def _played(
    bases: jax.Array,
    wanted: jax.Array,
    trial: jax.Array,
    *,
    apply: Callable[..., Any],
    pair: tuple[Any, Any],
    scores: Sequence[Score],
) -> jax.Array:
    """Plays one trial, [2, others + w]: the scores beside the family, 0 unless wanted, and the words of both
    releases."""
    keys = jax.vmap(jax.random.fold_in, (0, None))(bases, trial)

    def of(world: int) -> Callable[[jax.Array], jax.Array]:
        return lambda key: _seen(apply(key, pair[world]), wanted, scores)

    return worlds.both((of(0), of(1)), keys)


def _seen(release: Any, wanted: jax.Array, scores: Sequence[Score]) -> jax.Array:
    """Joins the scores beside the family and the words of a release in one vector."""
    if not scores:
        return scoring.words(release)

    def own() -> jax.Array:
        return jnp.stack([jnp.asarray(score(release), jnp.float32) for score in scores])

    beside = jax.lax.cond(wanted, own, lambda: jnp.zeros(len(scores), jnp.float32))
    return jnp.concatenate([jax.lax.bitcast_convert_type(beside, jnp.int32), scoring.words(release)])


def _pilot(whole: Game, pilot: int, kept: Checkpoint | None) -> tuple[np.ndarray, Game]:
    """Plays the first ``pilot`` pairs; returns them, and the game, which keeps the results of its first call."""
    found = None if kept is None else kept.restore()
    if found is not None:
        return found["played"], whole
    parts, begun, done = [], None, 0
    while done < pilot:
        played, whole = whole.fitted(lambda game, done=done: game.call(done))
        parts.append(whole.first(played, min(len(played), pilot - done)))
        begun, done = (played if done == 0 else begun), done + len(played)
    raw = np.concatenate(parts)
    if kept is not None:
        kept.save(played=raw)
    return raw, whole._replace(begun=begun)
