"""The host's loop around a federation: round after round, with progress, metrics, and a checkpoint to go on from.

done = simulate(key, server, params, population, data, 10_000, every=500, evaluate=evaluate, progress=print)
"""

import os
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from dpaudit import check
from dpaudit.federated.clip_size import LARGEST
from dpaudit.federated.population import Population
from dpaudit.federated.rounds import Info, Server, run
from dpaudit.identity import of_run
from dpaudit.training.in_parts import Parts, in_parts

WORSE = 5.0  # times the first round's loss


def simulate(
    key: jax.Array,
    server: Server,
    params: Any,
    population: Population,
    data: Any,
    rounds: int,
    *,
    every: int = 100,
    checkpoint: str | os.PathLike[str] | None = None,
    evaluate: Callable[[Any], dict[str, float]] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Parts:
    """:func:`dpaudit.federated.rounds.run` to round ``rounds``, in calls that end at the multiples of ``every``.

    However it is cut, killed and resumed, parameters and info are those of one call, bit for bit.

    Args:
      key, server, population, data: as for :func:`dpaudit.federated.rounds.run`.
      params: the server's first model.
      rounds: >= 1. With more than a finished run had made, its checkpoint goes on.
      every: rounds between two looks at the model, >= 1.
      checkpoint: a folder that keeps all there is after each call; the same simulation goes on from it. It depends on
        the clients' data without noise (info), so it is not for release.
      evaluate: ``evaluate(params) -> dict of floats``, of the same names each time, after each call.
      progress: called with the number of rounds done after each call and, of a checkpoint, before the first.

    Returns:
      :class:`Parts` with the last :class:`dpaudit.federated.rounds.State`, and every round's ``Info``, not for
      release. A federation that diverges runs to its end; :func:`diverged` says from where on.

    Raises:
      InputError: a value out of range; more clients in a round than there are; a checkpoint that is torn, further on
        than ``rounds``, or of another simulation.
    """
    key = check.key(key=key)
    start = server.init(params)

    def step(key: jax.Array, state: Any, given: Any) -> Any:  # not compiled: the constants of a loss are seen
        return server.step(key, state, population.clients, *given)

    return in_parts(
        lambda state, part: run(key, server, state, population, data, part),
        start,
        rounds,
        unit="rounds",
        every=every,
        identity=lambda: of_run(step, key=key, start=start, data=(population.train, data)),
        checkpoint=checkpoint,
        evaluate=None if evaluate is None else lambda state: evaluate(state.params),
        progress=progress,
    )


def diverged(info: Info) -> int | None:
    """The first round from which learning cannot be said to go on; None for none.

    That is a loss or an update that is not finite, a clip size at its ceiling, or a loss more than five times that of
    the first round (where that is positive): a model that much worse than the one it began with.

    Args:
      info: of every round, as from :func:`simulate` or :func:`dpaudit.federated.rounds.run`.
    """
    loss = np.asarray(info.loss, np.float64)
    lost = ~np.isfinite(loss) | (np.asarray(info.dropped) > 0) | (np.asarray(info.clip_norm) >= LARGEST)
    first = loss[:1]
    lost |= (first > 0) & (loss > WORSE * first)
    return int(np.argmax(lost)) if lost.any() else None
