"""The host's loop around a training: part by part, with progress, evaluation, and a checkpoint to go on from.

    fitted = fit(key, trainer, params, data, sampling, 1_000, every=100, checkpoint="run", progress=print)

A training is one program; what a person wants to see on the way, and what a killed one goes on from, is the host's.
"""

import inspect
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from dpaudit import _validate
from dpaudit._engine.fingerprint import Identity, of_run
from dpaudit._engine.long_run import Parts, in_parts
from dpaudit.training.dp_sgd import Trainer, train
from dpaudit.training.sampling import Sampling


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
) -> Parts:
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
      :class:`Parts` with the last :class:`dpaudit.training.dp_sgd.State`, and every step's ``Info``, not for release.

    Raises:
      InputError: a value out of range; a checkpoint that is torn, further on than ``steps``, or of another training:
        another key, start, program (network, clipping, noise, optimiser), data or sampling.
    """
    key = _validate.key(key=key)
    start = trainer.init(params)

    def identity() -> Identity:
        step = partial(inspect.unwrap(train), trainer=trainer, sampling=sampling, steps=1)
        sizes = sampling.examples, sampling.batch_size, sampling.capacity
        return of_run(
            lambda key, state, data: step(key, state=state, data=data), key=key, start=start, data=data, sampling=sizes
        )

    return in_parts(
        lambda state, part: train(key, trainer, state, data, sampling, part),
        start,
        steps,
        every=every,
        identity=identity,
        checkpoint=checkpoint,
        evaluate=None if evaluate is None else lambda state: evaluate(state.params),
        progress=progress,
    )
