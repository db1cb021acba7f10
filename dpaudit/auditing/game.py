"""The one game: world b in {0, 1} -> release(key, b) -> observation -> score, played many times as one program.

Trial i of world b sees ``fold_in(fold_in(key, b), i)`` and nothing else. Trials run in blocks of a fixed shape that
depends on one trial's arrays alone, so batch size, device count and restarts decide only how many blocks go to the
device at a time, never what a block computes: scores are bit-identical for all of them.
"""

import hashlib
import math
import os
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxprs_in_params
from jax.sharding import Mesh, PartitionSpec
from jax.tree_util import Partial

from dpaudit import check
from dpaudit.kernels import philox

BLOCK_BYTES = 1 << 21  # the largest array of a block; what a core's cache holds
BLOCK_TRIALS = 4096  # at most this many trials a block
HOST_BLOCK_TRIALS = 64  # where a trial calls Python: whole blocks are played, and these are slow
CALL_BLOCKS = 64  # blocks per device and call, unless batch says otherwise


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
    one = _both_worlds(key, release, score)
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
    call, _ = _program(Partial(_both_worlds(trial_key(key), release, score)), trials, batch, mesh)
    done = 0
    while done < trials:
        part = call(done)
        done += len(part)
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


def _both_worlds(
    key: jax.Array, release: Callable[[jax.Array, int], Any], score: Callable[[Any], Any]
) -> Callable[[jax.Array], jax.Array]:
    """trial -> scores [2, ...]: what one trial is in either world."""

    def one(trial: jax.Array) -> jax.Array:
        keys = (jax.random.fold_in(jax.random.fold_in(key, world), trial) for world in (0, 1))
        return jnp.stack([score(release(trial_key, world)) for world, trial_key in enumerate(keys)])

    return one


def trial_key(key: jax.Array) -> jax.Array:
    """The key that trials draw from: a counter-based Philox key, three times as fast as threefry on a CPU.

    Args:
      key: a jax.random key of any kind, consumed.
    """
    return philox.from_key(check.key(key=key))


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
    one = one if isinstance(one, Partial) else Partial(one)
    call, traced = _program(one, trials, batch, mesh)
    result = traced.out_avals[0]
    kind = result.dtype if result.dtype.kind in "biuf" else np.dtype(np.float32)  # bfloat16 has no place in a file
    results = np.zeros((int(trials), *result.shape), kind)
    file = None if checkpoint is None else Path(checkpoint)
    identity = "" if file is None else _identity(one, traced, results)
    done = 0 if file is None else _restore(file, identity, results)
    while done < trials:
        part = call(done)
        results[done : done + len(part)] = part
        done += len(part)
        if file is not None:
            _save(file, identity, results[:done])
        if progress is not None:
            progress(done)
    return results


def _program(
    one: Partial, trials: int, batch: int | None, mesh: Mesh | None
) -> tuple[Callable[[int], np.ndarray], ClosedJaxpr]:
    """(call, traced): call(done) computes the trials from number ``done`` on, as many as one call to the device takes.

    ``traced`` is one trial, as a program. Every call runs one and the same compiled program.
    """
    trials = check.at_least(1, trials=trials)
    if trials > 1 << 31:
        raise check.expected("trials", "at most 2^31", trials)
    traced = jax.make_jaxpr(lambda one, trial: one(trial))(one, jnp.uint32(0))
    block = block_size(_largest_array(traced.jaxpr))
    devices = 1 if mesh is None else mesh.size
    if mesh is not None:  # whatever its axes were made for, here they only carry blocks
        mesh = Mesh(mesh.devices, mesh.axis_names)
    blocks = CALL_BLOCKS if batch is None else math.ceil(check.at_least(1, batch=batch) / block)
    blocks = min(blocks, math.ceil(trials / (block * devices)))

    def call(done: int) -> np.ndarray:
        starts = done + block * jnp.arange(blocks * devices, dtype=jnp.uint32)
        part = np.asarray(_run(one, starts, block=block, mesh=mesh))
        return part.reshape(-1, *part.shape[2:])[: trials - done]

    return call, traced


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


@partial(jax.jit, static_argnames=("block", "mesh"))
def _run(one: Partial, starts: jax.Array, *, block: int, mesh: Mesh | None) -> jax.Array:
    """starts [blocks] -> results [blocks, block, ...]."""

    def blocks(one: Partial, starts: jax.Array) -> jax.Array:
        return jax.lax.map(lambda start: jax.vmap(one)(start + jnp.arange(block, dtype=jnp.uint32)), starts)

    if mesh is None:
        return blocks(one, starts)
    every = PartitionSpec(mesh.axis_names)
    return jax.shard_map(blocks, mesh=mesh, in_specs=(PartitionSpec(), every), out_specs=every, check_vma=False)(
        one, starts
    )


def _identity(one: Partial, traced: ClosedJaxpr, results: np.ndarray) -> str:
    """What a checkpoint must match: the program of a trial, its data and key, the number of trials."""
    program = re.sub(r"0x[0-9a-f]+", "", str(traced.jaxpr))  # addresses differ from process to process
    digest = hashlib.sha256(f"{results.shape} {results.dtype} {program}".encode())
    for leaf in (*traced.consts, *jax.tree.leaves(one)):
        keyed = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        digest.update(np.asarray(jax.random.key_data(leaf) if keyed else leaf).tobytes())
    return digest.hexdigest()


def _save(file: Path, identity: str, results: np.ndarray) -> None:
    """Writes beside the old file and replaces it in one step: a kill at any moment leaves one whole file."""
    beside = file.with_name(file.name + ".partial")
    with open(beside, "wb") as stream:
        np.savez(stream, identity=np.array(identity), results=results)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(beside, file)


def _restore(file: Path, identity: str, results: np.ndarray) -> int:
    """Copies a checkpoint's part of the results in place and returns how many trials it holds."""
    if not file.parent.is_dir():
        raise check.expected("checkpoint", "a file in a folder that exists", file)
    if not file.exists():
        return 0
    try:
        with np.load(file, allow_pickle=False) as saved:
            found, kept = str(saved["identity"]), saved["results"]
    except Exception as error:  # every way a file can be torn
        raise check.expected("checkpoint", "a whole checkpoint", f"{file.name}: {error}") from None
    if found != identity:
        raise check.expected(
            "checkpoint", "one of this audit", f"{file.name}: made by another mechanism, key, data or size"
        )
    results[: len(kept)] = kept
    return len(kept)
