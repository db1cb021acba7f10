"""The host's loop around a training: part by part, with progress, evaluation, and a checkpoint to go on from.

    fitted = fit(key, trainer, params, data, sampling, 1_000, every=100, checkpoint="run", progress=print)

A training is one program; what a person wants to see on the way, and what a killed one goes on from, is the host's.
"""

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpaudit import check
from dpaudit.identity import Identity, digest, is_key, raw, text
from dpaudit.training.checkpoint import Checkpoint
from dpaudit.training.dp_sgd import Info, State, Trainer, train
from dpaudit.training.sampling import Sampling


class Fitted(NamedTuple):
    """A training and how it went.

    Attributes:
      state: after the last step.
      info: of every step, NumPy [steps]; not for release.
      evaluations: what was evaluated, by name, NumPy float64 [k], with the ``step`` of each; empty where nothing was.
    """

    state: State
    info: Info
    evaluations: dict[str, np.ndarray]


def fit(
    key: jax.Array,
    trainer: Trainer,
    params: Any,
    data: Any,
    sampling: Sampling,
    steps: int,
    *,
    every: int = 100,
    checkpoint: str | os.PathLike[str] | None = None,
    evaluate: Callable[[Any], dict[str, float]] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Fitted:
    """:func:`dpaudit.training.dp_sgd.train` to step ``steps``, in calls that end at the multiples of ``every``.

    However it is cut, killed and resumed, parameters and info are those of one call, bit for bit. Where ``every`` does
    not divide ``steps``, the last call is shorter and so a program of its own to compile.

    Args:
      key, trainer, data, sampling: as for :func:`dpaudit.training.dp_sgd.train`.
      params: where training starts.
      steps: >= 1. With more than a finished run had made, its checkpoint goes on.
      every: steps between two looks at the training, >= 1.
      checkpoint: a folder that keeps all there is after each call; the same training goes on from it. It depends on
        the data without noise (info), so it is not for release.
      evaluate: ``evaluate(params) -> dict of floats``, of the same names each time, after each call.
      progress: called with the number of steps taken after each call and, of a checkpoint, before the first.

    Returns:
      A :class:`Fitted`.

    Raises:
      InputError: a value out of range; a checkpoint that is torn, further on than ``steps``, or of another training:
        another key, start, program (network, clipping, noise, optimiser), data or sampling.
    """
    check.at_least(1, steps=steps)
    check.at_least(1, every=every)
    key = check.key(key=key)
    state, infos, evaluations = trainer.init(params), [], {}
    kept = None
    if checkpoint is not None:
        kept = Checkpoint(Path(checkpoint), _identity(key, trainer, state, data, sampling))
        if (found := kept.restore()) is not None:
            state, evaluations = _filled(state, found["state"]), found["evaluations"]
            infos = [Info(**found["info"])]
    done = int(state.step)
    if done > steps:
        raise check.expected("steps", f"at least the {done} that the checkpoint has made", steps)
    if progress is not None and done:
        progress(done)
    while done < steps:
        part = min(every - done % every, steps - done)
        state, info = train(key, trainer, state, data, sampling, part)
        done += part
        infos = [_joined(*infos, jax.tree.map(np.asarray, info))]
        if evaluate is not None:
            evaluations = _extended(evaluations, {"step": done} | evaluate(state.params))
        if kept is not None:
            arrays = {"state": _plain(state), "info": infos[0]._asdict(), "evaluations": evaluations}
            kept.save(done, arrays)
        if progress is not None:
            progress(done)
    return Fitted(state, infos[0], evaluations)


def _identity(key: jax.Array, trainer: Trainer, state: State, data: Any, sampling: Sampling) -> Identity:
    def step(key: jax.Array, state: State, data: Any) -> Any:
        return inspect.unwrap(train)(key, trainer, state, data, sampling, 1)

    traced = jax.make_jaxpr(step)(key, state, data)
    parts = {
        "key": [raw(key)],
        "start": map(raw, jax.tree.leaves(state)),
        "program": [text(traced.jaxpr), *map(raw, traced.consts)],
        "data": map(raw, jax.tree.leaves(data)),
        "sampling": [text((sampling.examples, sampling.batch_size, sampling.capacity))],
    }
    return {name: digest(part) for name, part in parts.items()}


def _plain(state: State) -> dict[str, np.ndarray]:
    """The state's leaves by number, keys as their data; without those of no numbers, which Orbax refuses."""
    leaves = (jax.random.key_data(leaf) if is_key(leaf) else leaf for leaf in jax.tree.leaves(state))
    return {str(i): np.asarray(leaf) for i, leaf in enumerate(leaves) if np.size(leaf)}


def _filled(state: State, arrays: dict[str, np.ndarray]) -> State:
    """``state`` with the leaves that :func:`_plain` wrote."""

    def restored(leaf: Any, array: np.ndarray | None) -> Any:
        if array is None:
            return leaf
        whole = jnp.asarray(array)
        return jax.random.wrap_key_data(whole, impl=jax.random.key_impl(leaf)) if is_key(leaf) else whole

    leaves, structure = jax.tree.flatten(state)
    return jax.tree.unflatten(structure, [restored(leaf, arrays.get(str(i))) for i, leaf in enumerate(leaves)])


def _joined(*infos: Info) -> Info:
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *infos)


def _extended(past: dict[str, np.ndarray], row: dict[str, float]) -> dict[str, np.ndarray]:
    if past and past.keys() != row.keys():
        raise check.expected("evaluate", f"the names {', '.join(past)}, as before", ", ".join(row))
    return {name: np.append(past.get(name, []), float(value)) for name, value in row.items()}
