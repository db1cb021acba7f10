"""Plays the game many times as one program: world b in {0, 1} -> release(key, b) -> observation -> score.

Trial i of world b draws only from ``fold_in(fold_in(key, b), i)``. Trials run in blocks of a fixed shape that depends
only on one trial's arrays and the kind of device. Batch size, device count and restarts decide how many blocks go to
the device at a time, never what a block computes, so scores are bit-identical for all of them. Between kinds of
devices the last bits of scores may differ, by their arithmetic and their blocks: on a CPU a block stays in a core's
cache, on an accelerator it grows with the memory.
"""

import math
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.errors import JaxRuntimeError
from jax.extend.core import ClosedJaxpr
from jax.sharding import Mesh
from jax.tree_util import Partial

from dpaudit import _validate
from dpaudit._engine import memory, programs, sharding, worlds
from dpaudit._engine.blocks import CPU, accelerator_room, block_size, calls_python, largest_array
from dpaudit._engine.checkpoint import checkpoint as checkpoint_of
from dpaudit._engine.sharding import ALIKE, CUT
from dpaudit.kernels import philox

TRIAL = jax.ShapeDtypeStruct((), np.uint32)  # its number
CALL_BLOCKS = 64  # blocks per device and call, unless batch says otherwise

Played = TypeVar("Played")
Ahead = dict[tuple[int, int], Any]  # results of calls that were launched early, by their first trial and their size


class Game(NamedTuple):
    """Trials as one compiled program that is called again and again.

    Attributes:
      one: the function of a trial's number.
      trials: how many there are to play.
      block: trials of a block.
      blocks: that each device plays in a call.
      mesh: of these devices, or None for one.
      traced: one trial, as a program.
      read: a function applied to the results of a call, [size, ...], or None.
      begun: results of the first call that are known already, or None.
    """

    one: Partial
    trials: int
    block: int
    blocks: int
    mesh: Mesh | None
    traced: ClosedJaxpr
    read: Callable[["Game", jax.Array], Any] | None = None
    begun: jax.Array | None = None

    @property
    def size(self) -> int:
        """Returns the number of trials that a call plays; in the last call those beyond ``trials`` are padding."""
        return self.block * self.blocks * sharding.devices(self.mesh)

    @property
    def shape(self) -> tuple[int, ...]:
        """Returns the shape of one trial's result before ``read``."""
        return self.traced.out_avals[0].shape

    def call(self, done: int) -> Any:
        """Plays the trials from number ``done`` on, [size, ...]; they stay on the devices unless ``read`` moves
        them."""
        played = self.begun if done == 0 else None
        if played is None or len(played) != self.size:
            played = _run(self.one, np.uint32(done), block=self.block, blocks=self.blocks, mesh=self.mesh)
        return played if self.read is None else self.read(self, played)

    def program(self, shapes: Callable[[Any], Any]) -> Any:
        """Returns the traced program of one call, for other devices, on which ``shapes`` places arrays."""
        return _run.trace(*shapes((self.one, np.uint32(0))), block=self.block, blocks=self.blocks, mesh=self.mesh)

    def fitted(self, step: Callable[["Game"], Played]) -> tuple[Played, "Game"]:
        """Returns (step(game), game), with a game of smaller calls if memory runs out."""
        of = f"blocks of {self.block} trials"
        played, blocks = memory.fitting(
            lambda blocks: step(self._replace(blocks=blocks)), self.blocks, of=of, mesh=self.mesh
        )
        return played, self._replace(blocks=blocks)

    def head(self, trials: int) -> np.ndarray:
        """Plays the first trials and returns them, [trials, ...], on the host of every process."""
        parts, game, done = [], self, 0
        while done < trials:
            played, game = game.fitted(lambda game, done=done: game.call(done))
            parts.append(game.first(played, min(len(played), trials - done)))
            done += len(played)
        return np.concatenate(parts)

    def first(self, played: Any, rows: int) -> np.ndarray:
        """Returns the first ``rows`` of a call's results, on the host of every process."""
        if isinstance(played, np.ndarray):
            return played[:rows]
        within = played.is_fully_addressable
        if not within or (rows < len(played) and memory.platform(self.mesh) != "cpu"):
            played = _first(played, rows=rows, mesh=self.mesh)
        return np.asarray(played)[:rows]


def play(
    key: jax.Array,
    release: Callable[[jax.Array, int], Any],
    score: Callable[[Any], Any],
    trials: int,
    *,
    batch: int | None = None,
    mesh: Mesh | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Callable[[int], None] | None = None,
) -> np.ndarray:
    """Plays ``trials`` games in each world and returns their scores.

    Args:
      key: a jax.random key, consumed; trial i of world b is a function of only (key, b, i).
      release: ``release(key, world) -> observation``, jittable; ``world`` is the Python integer 0 or 1. A fresh pair
        of inputs every trial is a release that draws the pair from its key and returns it with the observation.
      score: ``score(observation) -> float`` (or an array of a fixed shape), jittable; larger means world 1.
      trials: per world, >= 1 and at most 2^31.
      batch, mesh, checkpoint, progress: as for :func:`sweep`.

    Returns:
      Scores, [2, trials, ...], one row per world, in the score's own type.

    Raises:
      InputError: trials or batch out of range; a score that is not of real numbers; a checkpoint that is damaged or
        belongs to another game.
    """
    key = trial_key(key)
    one = both_worlds(key, release, score)
    scores = sweep(one, trials, batch=batch, mesh=mesh, checkpoint=checkpoint, progress=progress)
    return np.moveaxis(scores, 1, 0)


def play_on(
    key: jax.Array,
    release: Callable[[jax.Array, int], Any],
    score: Callable[[Any], Any],
    trials: int,
) -> Iterator[np.ndarray]:
    """Yields the scores of :func:`play`, bit for bit, one call to the device at a time, for callers that may stop
    early.

    Args:
      key, release, score, trials: as for :func:`play`; ``trials`` is the largest number per world.

    Yields:
      Scores, [2, n, ...], of the next block of n trials; nothing is computed in advance.

    Raises:
      InputError: trials out of range.
    """
    whole, done = game(both_worlds(trial_key(key), release, score), trials, batch=1), 0
    while done < whole.trials:
        part, whole = whole.fitted(partial(_read, done=done))
        done += len(part)
        yield np.moveaxis(part, 1, 0)


def trials_per_second(
    key: jax.Array,
    release: Callable[[jax.Array, int], Any],
    score: Callable[[Any], Any],
    *,
    seconds: float = 1.0,
) -> float:
    """Measures how many trials of both worlds together this machine plays in a second, without compilation.

    Args:
      key, release, score: as for :func:`play`.
      seconds: how long to play, at least one call to the device.
    """
    parts = play_on(key, release, score, 1 << 31)
    next(parts)
    played, began = 0, time.perf_counter()
    for part in parts:
        played += 2 * part.shape[1]
        if time.perf_counter() - began >= seconds:
            break
    return played / (time.perf_counter() - began)


def both_worlds(key: jax.Array, release: Callable[[jax.Array, int], Any], score: Callable[[Any], Any]) -> Partial:
    """Returns trial -> scores [2, ...], one trial in both worlds, with the key, from :func:`trial_key`, as its
    data."""

    def one(bases: jax.Array, trial: jax.Array) -> jax.Array:
        keys = jax.vmap(jax.random.fold_in, (0, None))(bases, trial)  # vmapped: half the program of two calls
        return worlds.both((lambda key: scored(key, 0), lambda key: scored(key, 1)), keys)

    def scored(key: jax.Array, world: int) -> Any:
        found = score(release(key, world))
        if not jax.tree_util.all_leaves([found]):
            raise _validate.expected("score", "a number or an array", type(found).__name__)
        kind = jax.typeof(found)
        real = any(jnp.issubdtype(kind.dtype, of) for of in (jnp.floating, jnp.integer, jnp.bool))
        if not (real and kind.size):
            raise _validate.expected("score", "a real number or a non-empty array of them", kind.str_short())
        return found

    return Partial(one, of_worlds(key))


@jax.jit
def of_worlds(key: jax.Array) -> jax.Array:
    """Returns the keys that the trials of world 0 and of world 1 are drawn from."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(2))


def trial_key(key: jax.Array) -> jax.Array:
    """Returns the key that trials draw from: a counter-based Philox key, on a CPU three times as fast as threefry.

    Args:
      key: a jax.random key of any kind, consumed.
    """
    key = _validate.key(key=key)
    return philox.from_key(key) if isinstance(key, Tracer) else _from_key(key)


_from_key = programs.quickly(philox.from_key)  # one program, not one for each step


def of_trials() -> Any:
    """Returns the shape and type of a trial's key, for :func:`jax.eval_shape`; it has more words than jax.random's."""
    return jax.eval_shape(philox.from_key, jax.random.key(0))


def sweep(
    one: Callable[[jax.Array], jax.Array],
    trials: int,
    *,
    batch: int | None = None,
    mesh: Mesh | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Callable[[int], None] | None = None,
) -> np.ndarray:
    """Returns ``one(i)`` for i = 0 .. trials - 1, computed in blocks of a fixed shape. All audits are built on it.

    Args:
      one: a jittable function of the trial's number (a uint32 scalar) to an array of a fixed shape; its randomness
        comes from a key by fold_in. Arrays that it closes over, or that a ``jax.tree_util.Partial`` holds, are passed
        to the device as data, and functions that compute the same share a compiled program.
      trials: >= 1 and at most 2^31.
      batch: trials sent to each device at a time, rounded up to whole blocks; None chooses. It affects memory and
        speed, not results. When memory runs out, half as many blocks are sent from then on (except to devices of
        several processes).
      mesh: a device mesh over whose devices the trials are split, or None for one device.
      checkpoint: a file that receives the results after each call to the device, and from which an interrupted sweep
        resumes; a file of another sweep is refused. None saves nothing.
      progress: called with the number of trials finished so far.

    Returns:
      [trials, ...], in the type of ``one``.

    Raises:
      InputError: trials or batch out of range; a checkpoint that is damaged or belongs to another sweep; a single
        block that does not fit into a device's memory.
    """
    whole = game(one, trials, batch=batch, mesh=mesh)
    trials, result = whole.trials, whole.traced.out_avals[0]
    kind = result.dtype if result.dtype.kind in "biuf" else np.dtype(np.float32)  # NumPy files cannot hold bfloat16
    results = np.zeros((trials, *result.shape), kind)
    file = checkpoint_of(checkpoint, whole.one, whole.traced, trials, mesh=mesh)
    kept = None if file is None else file.restore()
    done = 0 if kept is None else len(kept["results"])
    if kept is not None:
        results[:done] = kept["results"]
    # Trials that call Python are not launched early: they would run beside ``progress`` and the checkpoint.
    ahead: Ahead | None = None if calls_python(whole.traced) else {}
    while done < trials:
        part, whole = whole.fitted(partial(_read, done=done, ahead=ahead))
        results[done : done + len(part)] = part
        done += len(part)
        if file is not None:
            file.save(results=results[:done])
        if progress is not None:
            progress(done)
    return results


def game(
    one: Callable[[jax.Array], jax.Array], trials: int, *, batch: int | None = None, mesh: Mesh | None = None
) -> Game:
    """Prepares the trials of :func:`sweep`.

    Args:
      one, trials, batch, mesh: as for :func:`sweep`.

    Raises:
      InputError: trials or batch out of range.
    """
    trials = _validate.at_least(1, trials=trials)
    if trials > 1 << 31:
        raise _validate.expected("trials", "at most 2^31", trials)
    one = one if isinstance(one, Partial) else Partial(one)
    try:
        traced = jax.make_jaxpr(lambda one, trial: one(trial))(one, TRIAL)
    except _validate.InputError as error:  # without JAX's note on its frames
        raise _validate.InputError(*error.args) from None
    worlds.enough_threads(traced.jaxpr, mesh)
    one = programs.as_data(one, traced)
    room = CPU if memory.platform(mesh) == "cpu" else accelerator_room(memory.limit(mesh))
    block = block_size(largest_array(traced.jaxpr, room), room)
    blocks = CALL_BLOCKS if batch is None else math.ceil(_validate.at_least(1, batch=batch) / block)
    blocks = min(blocks, math.ceil(trials / (block * sharding.devices(mesh))))
    return Game(one, trials, block, blocks, sharding.flat(mesh), traced)


def _read(whole: Game, done: int, ahead: Ahead | None = None) -> np.ndarray:
    """Plays one call from trial ``done`` on and returns it on the host, the next one being launched before.

    Args:
      whole: the game.
      done: trials before the call.
      ahead: what was launched early, and is changed; None launches nothing early.
    """
    rows, following = min(whole.size, whole.trials - done), done + whole.size
    if ahead is None:
        return whole.first(whole.call(done), rows)
    played = ahead.pop((done, whole.size), None)
    ahead.clear()  # what was launched for calls of another size
    alone = played is None and following >= whole.trials
    try:
        played = whole.call(done) if played is None else played
        if following < whole.trials:
            ahead[following, whole.size] = whole.call(following)
        return whole.first(played, rows)
    except (JaxRuntimeError, ValueError) as error:
        if alone or not memory.ran_out(error) or sharding.several_processes(whole.mesh):
            raise
        played = None
        ahead.clear()
    return whole.first(whole.call(done), rows)  # alone in memory


@partial(jax.jit, static_argnames=("block", "blocks", "mesh"))
def _run(one: Partial, done: jax.Array, *, block: int, blocks: int, mesh: Mesh | None) -> jax.Array:
    """Plays the trials from number ``done`` on, [trials, ...]; each device plays ``blocks`` blocks in a row."""

    def play_blocks(one: Partial, done: jax.Array) -> jax.Array:
        place = jnp.uint32(sharding.place(mesh))
        starts = done + block * (place * blocks + jnp.arange(blocks, dtype=jnp.uint32))
        if block == 1:  # without an axis of length one, over which XLA's loops on a CPU take twice as long
            return jax.lax.map(one, starts)
        played = jax.lax.map(lambda start: jax.vmap(one)(start + jnp.arange(block, dtype=jnp.uint32)), starts)
        return played.reshape(-1, *played.shape[2:])

    return sharding.shared_out(play_blocks, mesh, (ALIKE, ALIKE), CUT)(one, done)


@partial(jax.jit, static_argnames=("rows", "mesh"))
def _first(played: jax.Array, *, rows: int, mesh: Mesh | None) -> jax.Array:
    """Returns the first rows on every device, so that every process can read them."""
    return sharding.whole(played[:rows], mesh)
