"""Before a run: how many rounds its budget pays for, and whose. The ledger is charged here."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from dp_accounting import ComposedDpEvent
from jax.core import Tracer

from dpaudit import _validate
from dpaudit._engine.fingerprint import digest, raw, text
from dpaudit.kernels import philox
from dpaudit.personalization.boundary.bounds import Noised
from dpaudit.personalization.boundary.budget import Budget, affordable, spent
from dpaudit.personalization.boundary.ledger import Ledger, Stream
from dpaudit.personalization.boundary.processes import memories


def streams(key: jax.Array, protocol: Any, state: Any, memory: Any, users: Any) -> list[Stream]:
    """What a run of a protocol releases, the arguments as for :func:`dpaudit.personalization.boundary.aggregator.run`.

    Raises:
      InputError: a memory of other processes; a run that is mapped.
    """
    if type(protocol.release) is Noised:
        processes = protocol.release.processes
    else:
        model = jax.eval_shape(protocol.broadcast, state)
        total = jax.eval_shape(lambda *given: protocol.devices(*given), philox.from_key(key), model, users)
        processes = [
            each.process for each in jax.eval_shape(lambda *given: protocol.release(*given), key, total, memory)[0]
        ]
    numbers = [part.number for part in memories(memory)]
    if len(numbers) != len(processes):
        raise _validate.expected("memory", f"one of each of {len(processes)} processes, or None to begin", memory)
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((key, state, memory, users))):
        raise _validate.expected("budget", "a run by itself, for one that is mapped costs as often", "a traced one")
    began = [_validate.at_least(0, memory=number) for number in numbers]
    return [Stream(*pair) for pair in zip(processes, began, strict=True)]


def paid(
    key: jax.Array,
    streams: Sequence[Stream],
    rounds: int,
    budget: Budget | None,
    ledger: Ledger | None,
    who: Sequence[int | str] | None,
    *,
    least: int,
) -> tuple[int, np.ndarray | None]:
    """As much of a run as is paid for.

    Args:
      key: of the run.
      streams: that release once a round.
      rounds: asked for.
      budget, ledger, who: as for :func:`dpaudit.personalization.boundary.aggregator.run`.
      least: users there have to be.

    Returns:
      (rounds, users): the numbers of the users who take part, or None for all. No rounds: too few can pay.

    Raises:
      InputError: a budget that pays for no round of anybody.
    """

    def event(rounds: int) -> ComposedDpEvent:
        return ComposedDpEvent([stream.process.event(stream.began + rounds) for stream in streams])

    if ledger is not None:
        if jax.process_count() > 1:
            raise _validate.expected("ledger", "a run of one process, which charges it once", jax.process_count())
        most, able = ledger.charge(_run(key, streams), streams, rounds, budget=budget, who=who, least=least)
        if most or (able is not None and able.any()):
            return most, None if able is None else np.flatnonzero(able)
    else:
        most = rounds if budget is None else affordable(lambda r: budget.pays(event(r)), rounds)
        if most:
            return most, None
    cost = math.nan if budget is None else spent(event(1), budget.delta)
    before = " beside what users have spent" if ledger is not None else ""
    raise _validate.expected("budget", f"one that pays for a round, of epsilon {cost:.4g}{before}", budget)


def _run(key: jax.Array, streams: Sequence[Stream]) -> str:
    """A digest of all that the noise of a run is drawn from."""
    began = [(stream.process.name, stream.began) for stream in streams]
    return digest([raw(philox.from_key(key)), text(began)])
