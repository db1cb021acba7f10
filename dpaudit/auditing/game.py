"""The one game: world b in {0, 1} -> release(key, b) -> observation -> score, played many times as one program.

Trial i of world b sees ``fold_in(fold_in(key, b), i)`` and nothing else. Trials run in blocks of a fixed shape that
depends on one trial's arrays alone, so batch size, device count and restarts decide only how many blocks go to the
device at a time, never what a block computes: scores are bit-identical for all of them.
"""

import math
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import compress
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun, jaxprs_in_params
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.tree_util import Partial

from dpaudit import check
from dpaudit.auditing.checkpoint import checkpoint as checkpoint_of
from dpaudit.kernels import philox

BLOCK_BYTES = 1 << 21  # the largest array of a block; what a core's cache holds
BLOCK_TRIALS = 4096  # at most this many trials a block
HOST_BLOCK_TRIALS = 64  # where a trial calls Python: whole blocks are played, and these are slow
LARGE = 1024  # numbers of an array that is not compiled into the program
CALL_BLOCKS = 64  # blocks per device and call, unless batch says otherwise


class Game(NamedTuple):
    """Trials as one compiled program that is called again and again.

    Attributes:
      one: the function of a trial's number.
      trials: how many there are to play.
      size: trials that a call plays; those of the last one beyond ``trials`` are padding.
      call: ``call(done) -> [size, ...]``, those from number ``done`` on, on the devices that played them.
      mesh: of these devices, or None for one.
      traced: one trial, as a program.
    """

    one: Partial
    trials: int
    size: int
    call: Callable[[int], jax.Array]
    mesh: Mesh | None
    traced: ClosedJaxpr

    def first(self, played: jax.Array, rows: int) -> np.ndarray:
        """The first ``rows`` of what a call has played, on the host of every process."""
        if rows < len(played) or not played.is_fully_addressable:
            played = _first(played, rows=rows, mesh=self.mesh)
        return np.asarray(played)


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
      key: a jax.random key, consumed; trial i of world b is a function of (key, b, i) alone.
      release: ``release(key, world) -> observation``, jittable; ``world`` is the Python integer 0 or 1. A fresh pair
        of inputs every trial is a release that draws the pair from its key and returns it with the observation.
      score: ``score(observation) -> float`` (or an array of a fixed shape), jittable; larger means world 1.
      trials: per world, >= 1 and at most 2^31.
      batch, mesh, checkpoint, progress: as for :func:`sweep`.

    Returns:
      Scores, [2, trials, ...], one row per world, in the score's own type.

    Raises:
      InputError: trials or batch out of range; a checkpoint that is torn or belongs to another game.
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
    *,
    batch: int = 1,
    mesh: Mesh | None = None,
) -> Iterator[np.ndarray]:
    """The scores of :func:`play`, bit for bit, one call to the device after another, for whoever may stop early.

    Args:
      key, release, score, trials: as for :func:`play`; ``trials`` per world is the most that are played.
      batch: trials sent to each device at a time, rounded up to whole blocks.
      mesh: as for :func:`sweep`.

    Yields:
      Scores, [2, n, ...], those of the next n trials; nothing is computed ahead.

    Raises:
      InputError: trials or batch out of range.
    """
    whole = game(both_worlds(trial_key(key), release, score), trials, batch=batch, mesh=mesh)
    for done in range(0, whole.trials, whole.size):
        part = whole.first(whole.call(done), min(whole.size, whole.trials - done))
        yield np.moveaxis(part, 1, 0)


def trials_per_second(
    key: jax.Array,
    release: Callable[[jax.Array, int], Any],
    score: Callable[[Any], Any],
    *,
    seconds: float = 1.0,
) -> float:
    """Trials of both worlds together that this machine plays in a second, compilation left out.

    Args:
      key, release, score: as for :func:`play`.
      seconds: how long to play (one call to the device at least).
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
    """trial -> scores [2, ...]: what one trial is in either world, for a key from :func:`trial_key`, which is data."""

    def one(worlds: jax.Array, trial: jax.Array) -> jax.Array:
        keys = jax.vmap(jax.random.fold_in, (0, None))(worlds, trial)  # both at once: half of the program
        return jnp.stack([score(release(keys[world], world)) for world in (0, 1)])

    return Partial(one, _of_worlds(key))


@jax.jit
def _of_worlds(key: jax.Array) -> jax.Array:
    return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(2))


def trial_key(key: jax.Array) -> jax.Array:
    """The key that trials draw from: a counter-based Philox key, three times as fast as threefry on a CPU.

    Args:
      key: a jax.random key of any kind, consumed.
    """
    return _from_key(check.key(key=key))


_from_key = jax.jit(philox.from_key)  # one program, not one for each step


def sweep(
    one: Callable[[jax.Array], jax.Array],
    trials: int,
    *,
    batch: int | None = None,
    mesh: Mesh | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Callable[[int], None] | None = None,
) -> np.ndarray:
    """``one(i)`` for i = 0 .. trials - 1, in blocks of a fixed shape: the engine below every audit.

    Args:
      one: a jittable function of the trial's number (a uint32 scalar) to an array of a fixed shape; its randomness
        comes from ``key`` by fold_in. Large arrays belong in a ``jax.tree_util.Partial``, whose arguments travel to
        the device as data; a plain function's are compiled into the program.
      trials: >= 1 and at most 2^31.
      batch: trials sent to each device at a time, rounded up to whole blocks; None chooses. A matter of memory and
        speed: results do not depend on it.
      mesh: a device mesh over whose devices the trials are split, or None for one device.
      checkpoint: a file that receives the results after each call to the device, and from which an interrupted sweep
        goes on; one that belongs to another is refused. None keeps nothing.
      progress: called with the number of trials finished so far.

    Returns:
      [trials, ...], in the type of ``one``.

    Raises:
      InputError: trials or batch out of range; a checkpoint that is torn or belongs to another sweep.
    """
    whole = game(one, trials, batch=batch, mesh=mesh)
    trials, result = whole.trials, whole.traced.out_avals[0]
    kind = result.dtype if result.dtype.kind in "biuf" else np.dtype(np.float32)  # bfloat16 has no place in a file
    results = np.zeros((trials, *result.shape), kind)
    file = checkpoint_of(checkpoint, whole.one, whole.traced, trials, mesh=mesh)
    kept = None if file is None else file.restore()
    done = 0 if kept is None else len(kept["results"])
    if kept is not None:
        results[:done] = kept["results"]
    while done < trials:
        part = whole.first(whole.call(done), min(whole.size, trials - done))
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
    """The trials of :func:`sweep`, ready to be played.

    Args:
      one, trials, batch, mesh: as for :func:`sweep`.

    Raises:
      InputError: trials or batch out of range.
    """
    trials = check.at_least(1, trials=trials)
    if trials > 1 << 31:
        raise check.expected("trials", "at most 2^31", trials)
    one = one if isinstance(one, Partial) else Partial(one)
    traced = jax.make_jaxpr(lambda one, trial: one(trial))(one, jnp.uint32(0))
    one = _with_constants_as_data(one, traced)
    block = block_size(_largest_array(traced.jaxpr))
    devices = 1 if mesh is None else mesh.size
    if mesh is not None:  # whatever its axes were made for, here they only carry blocks
        mesh = Mesh(mesh.devices, mesh.axis_names)
    blocks = CALL_BLOCKS if batch is None else math.ceil(check.at_least(1, batch=batch) / block)
    blocks = min(blocks, math.ceil(trials / (block * devices)))

    def call(done: int) -> jax.Array:
        return _run(one, np.uint32(done), block=block, blocks=blocks, mesh=mesh)

    return Game(one, trials, blocks * block * devices, call, mesh, traced)


def _with_constants_as_data(one: Partial, traced: ClosedJaxpr) -> Partial:
    """``one`` with the large arrays that it closes over as arguments, which travel to the devices like any data.

    Compiled into the program they take long; and a compiler that sees their values simplifies sums with them in
    another order for several devices than for one. Small ones it may see: their programs are faster for it.
    """
    large = [np.size(constant) >= LARGE for constant in traced.consts]
    if not any(large):
        return one
    program = traced.jaxpr
    opened = program.replace(constvars=[], invars=[*program.constvars, *program.invars], debug_info=None)
    run = jaxpr_as_fun(ClosedJaxpr(opened, ()))

    def with_data(arrays: list[Any], leaves: list[Any], trial: jax.Array) -> Any:
        rest = iter(arrays)
        constants = [next(rest) if moved else known for moved, known in zip(large, traced.consts, strict=True)]
        return run(*constants, *leaves, trial)[0]

    return Partial(with_data, list(compress(traced.consts, large)), jax.tree.leaves(one))


def block_size(trial_bytes: int) -> int:
    """How many trials a block holds: a power of two that keeps its largest array near ``BLOCK_BYTES``.

    Args:
      trial_bytes: size of the largest array of one trial.
    """
    fitting = BLOCK_BYTES // max(trial_bytes, 1)
    return min(BLOCK_TRIALS, 1 << max(fitting.bit_length() - 1, 0))


def _largest_array(jaxpr: Any) -> int:
    """Bytes of the largest array that one trial computes, inner programs included; a call to Python weighs as much
    as a large one."""
    sizes = [var.aval.size * getattr(var.aval.dtype, "itemsize", 4) for eqn in jaxpr.eqns for var in eqn.outvars]
    if any(eqn.primitive.name == "pure_callback" for eqn in jaxpr.eqns):
        sizes.append(BLOCK_BYTES // HOST_BLOCK_TRIALS)
    inner = (sub for eqn in jaxpr.eqns for sub in jaxprs_in_params(eqn.params))
    return max([1, *sizes, *map(_largest_array, inner)])


@partial(jax.jit, static_argnames=("block", "blocks", "mesh"))
def _run(one: Partial, done: jax.Array, *, block: int, blocks: int, mesh: Mesh | None) -> jax.Array:
    """The trials from number ``done`` on -> [trials, ...]; each device plays ``blocks`` blocks in a row."""

    def play_blocks(one: Partial, done: jax.Array) -> jax.Array:
        place = jnp.uint32(0 if mesh is None else jax.lax.axis_index(mesh.axis_names))
        starts = done + block * (place * blocks + jnp.arange(blocks, dtype=jnp.uint32))
        played = jax.lax.map(lambda start: jax.vmap(one)(start + jnp.arange(block, dtype=jnp.uint32)), starts)
        return played.reshape(-1, *played.shape[2:])

    if mesh is None:
        return play_blocks(one, done)
    alike, each = PartitionSpec(), PartitionSpec(mesh.axis_names)
    return jax.shard_map(play_blocks, mesh=mesh, in_specs=(alike, alike), out_specs=each, check_vma=False)(one, done)


@partial(jax.jit, static_argnames=("rows", "mesh"))
def _first(played: jax.Array, *, rows: int, mesh: Mesh | None) -> jax.Array:
    """The first rows, on every device, so that every process can read them."""
    rows_of_it = played[:rows]
    if mesh is None:
        return rows_of_it
    return jax.lax.with_sharding_constraint(rows_of_it, NamedSharding(mesh, PartitionSpec()))
