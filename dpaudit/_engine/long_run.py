"""The host's loop around a long program: part by part, a look at it after each, and a checkpoint to go on from."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpaudit import _validate
from dpaudit._engine.fingerprint import Identity, is_key, refuse_another

if TYPE_CHECKING:
    from orbax.checkpoint import CheckpointManager


# What a killed training goes on from: a folder of Orbax's, whole at any moment, for the same training alone.


class Checkpoint(NamedTuple):
    """A folder with the arrays of the last step saved, and the training that they belong to.

    Attributes:
      folder: where; made if need be.
      identity: what the training is, part by part.
    """

    folder: Path
    identity: Identity

    def save(self, step: int, arrays: Any) -> None:
        """Writes the step beside the one before, then removes that one: a kill at any moment leaves a whole one.

        Args:
          step: steps taken.
          arrays: nested dictionaries and lists of NumPy arrays, none of them empty.
        """
        from orbax.checkpoint import args

        items = args.Composite(arrays=args.StandardSave(arrays), identity=args.JsonSave(self.identity))
        with _manager(self.folder, writing=True) as manager:
            manager.save(step, args=items)

    def restore(self) -> Any:
        """The arrays last saved, or None where there are none yet.

        Raises:
          InputError: a folder that is torn, or that another training has made; it is left as it is.
        """
        if not self.folder.exists():
            return None
        if not self.folder.is_dir():
            raise _validate.expected("checkpoint", "a folder", f"the file {self.folder.name}")
        from orbax.checkpoint import args

        items = args.Composite(arrays=args.StandardRestore(), identity=args.JsonRestore())
        with _manager(self.folder, writing=False) as manager:
            if manager.latest_step() is None:
                return None
            try:
                found = manager.restore(manager.latest_step(), args=items)
                arrays, identity = found["arrays"], dict(found["identity"])
            except Exception as error:  # every way a folder can be torn
                raise _validate.expected("checkpoint", "a whole checkpoint", f"{self.folder.name}: {error}") from None
        refuse_another(self.identity, identity, "training", self.folder.name)
        return arrays


def save(folder: Path, params: Any) -> None:
    """Writes a pytree of arrays by itself, in place of what was there; ``StandardCheckpointer().restore`` reads it."""
    from orbax.checkpoint import StandardCheckpointer

    with StandardCheckpointer() as checkpointer:
        checkpointer.save(os.path.abspath(folder), params, force=True)


def _manager(folder: Path, *, writing: bool) -> "CheckpointManager":
    """Opens a folder. Only a writer removes what killed writers left: Orbax does that in the background, where a reader
    that is closed at once would remove what the next writer has just begun."""
    from orbax.checkpoint import CheckpointManager, CheckpointManagerOptions  # takes a second

    options = CheckpointManagerOptions(
        max_to_keep=1, create=True, cleanup_tmp_directories=writing, enable_async_checkpointing=False
    )
    return CheckpointManager(os.path.abspath(folder), options=options)


class Parts(NamedTuple):
    """A run and how it went.

    Attributes:
      state: after the last step.
      info: of every step, NumPy leaves [steps, ...].
      evaluations: what was evaluated, by name, NumPy float64 [k], with the ``step`` of each; empty where nothing was.
    """

    state: Any
    info: Any
    evaluations: dict[str, np.ndarray]


def in_parts(
    advance: Callable[[Any, int], tuple[Any, Any]],
    state: Any,
    steps: int,
    *,
    unit: str = "steps",
    every: int,
    identity: Callable[[], Identity],
    checkpoint: str | os.PathLike[str] | None = None,
    evaluate: Callable[[Any], dict[str, float]] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Parts:
    """``advance(state, steps)``, in calls that end at the multiples of ``every``.

    Args:
      advance: ``advance(state, part) -> (state, info)``, info with leaves [part, ...]; the same state after the same
        number of steps however they are cut.
      state: a pytree of arrays and keys, before the first step.
      steps: >= 1. With more than a finished run had made, its checkpoint goes on.
      unit: what messages call the steps.
      every: steps between two looks, >= 1.
      identity: makes what the run is, which a checkpoint must be of.
      checkpoint: a folder that keeps all there is after each call.
      evaluate: ``evaluate(state) -> dict of floats``, of the same names each time, after each call.
      progress: called with the number of steps taken after each call and, of a checkpoint, before the first.

    Returns:
      :class:`Parts`.

    Raises:
      InputError: a value out of range; a checkpoint that is torn, further on than ``steps``, or of another run.
    """
    _validate.at_least(1, **{unit: steps})
    _validate.at_least(1, every=every)
    done, info, evaluations, kept = 0, None, {}, None
    if checkpoint is not None:
        kept = Checkpoint(Path(checkpoint), identity())
        if (found := kept.restore()) is not None:
            state, evaluations = _filled(state, found["state"]), found["evaluations"]
            shapes = jax.eval_shape(lambda state: advance(state, 1)[1], state)
            info, done = _filled(shapes, found["info"]), int(found["done"])
    if done > steps:
        raise _validate.expected(unit, f"at least the {done} that the checkpoint has made", steps)
    if progress is not None and done:
        progress(done)
    while done < steps:
        part = min(every - done % every, steps - done)
        state, new = advance(state, part)
        done += part
        info = _joined(info, jax.tree.map(np.asarray, new))
        if evaluate is not None:
            evaluations = _extended(evaluations, {"step": done} | evaluate(state))
        if kept is not None:
            arrays = {"state": _plain(state), "info": _plain(info), "evaluations": evaluations}
            kept.save(done, arrays | {"done": np.int64(done)})
        if progress is not None:
            progress(done)
    return Parts(state, info, evaluations)


def _plain(tree: Any) -> dict[str, np.ndarray]:
    """The leaves by number, keys as their data; without those of no numbers, which Orbax refuses."""
    leaves = (jax.random.key_data(leaf) if is_key(leaf) else leaf for leaf in jax.tree.leaves(tree))
    return {str(i): np.asarray(leaf) for i, leaf in enumerate(leaves) if np.size(leaf)}


def _filled(tree: Any, arrays: dict[str, np.ndarray]) -> Any:
    """``tree`` with the leaves that :func:`_plain` wrote."""

    def restored(leaf: Any, array: np.ndarray | None) -> Any:
        if array is None:
            return leaf
        if is_key(leaf):
            return jax.random.wrap_key_data(jnp.asarray(array), impl=jax.random.key_impl(leaf))
        return jnp.asarray(array) if isinstance(leaf, jax.Array) else array

    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, [restored(leaf, arrays.get(str(i))) for i, leaf in enumerate(leaves)])


def _joined(before: Any, new: Any) -> Any:
    if before is None:
        return new
    return jax.tree.map(lambda old, new: np.concatenate([old, new]), before, new)


def _extended(past: dict[str, np.ndarray], row: dict[str, float]) -> dict[str, np.ndarray]:
    if past and past.keys() != row.keys():
        raise _validate.expected("evaluate", f"the names {', '.join(past)}, as before", ", ".join(row))
    return {name: np.append(past.get(name, []), float(value)) for name, value in row.items()}
