"""Runs a long program part by part on the host, with evaluation, progress and a checkpoint after each part."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpaudit import _validate
from dpaudit._engine.checkpoint import FolderCheckpoint
from dpaudit._engine.fingerprint import Identity, is_key


class Parts(NamedTuple):
    """The result of a run.

    Attributes:
      state: after the last step.
      info: of every step, NumPy leaves [steps, ...].
      evaluations: by name, NumPy float64 [k], with the ``step`` of each; empty where nothing was evaluated.
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
    """Advances a state by ``steps`` in calls that end at the multiples of ``every``.

    Args:
      advance: ``advance(state, part) -> (state, info)``, info with leaves [part, ...]; the same state after the same
        number of steps, whatever the parts.
      state: a pytree of arrays and keys, before the first step.
      steps: >= 1. A finished run resumes from its checkpoint when given more steps.
      unit: what messages call the steps.
      every: steps from one evaluation and checkpoint to the next, >= 1.
      identity: returns the identity that a checkpoint must have.
      checkpoint: a folder that receives state, info and evaluations after each call.
      evaluate: ``evaluate(state) -> dict of floats``, of the same names each time, after each call.
      progress: called with the number of steps taken after each call and, of a checkpoint, before the first.

    Returns:
      :class:`Parts`.

    Raises:
      InputError: a value out of range; a checkpoint that is damaged, beyond ``steps``, or of another run; a folder
        that cannot be written.
    """
    _validate.at_least(1, **{unit: steps})
    _validate.at_least(1, every=every)
    done, info, evaluations, kept = 0, None, {}, None
    if checkpoint is not None:
        kept = FolderCheckpoint(Path(checkpoint), identity())
        if (found := kept.restore()) is not None:
            state, evaluations = _filled(state, found["state"]), found["evaluations"]
            done = int(found["done"])
            shapes = jax.eval_shape(lambda state: advance(state, 1)[1], state)
            nothing = jax.tree.map(lambda one: np.zeros((done, *one.shape[1:]), one.dtype), shapes)
            info = _filled(nothing, found["info"])
    if done > steps:
        raise _validate.expected(unit, f"at least the {done} of the checkpoint", steps)
    if kept is not None and done < steps:
        kept.refuse_unwritable()
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
    """Returns the leaves by number, keys as their data; empty ones are left out because Orbax refuses them."""
    leaves = (jax.random.key_data(leaf) if is_key(leaf) else leaf for leaf in jax.tree.leaves(tree))
    return {str(i): np.asarray(leaf) for i, leaf in enumerate(leaves) if np.size(leaf)}


def _filled(tree: Any, arrays: dict[str, np.ndarray]) -> Any:
    """Returns ``tree`` with the leaves that :func:`_plain` wrote."""

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
