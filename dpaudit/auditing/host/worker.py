"""Runs chunks of trials in a worker process of :mod:`pool`. Imports no JAX, so that it starts quickly.

The parent sends ``("encoder", encoder)``, ``("probe",)`` and ``("play", chunks)``; the worker answers
``("ready", None)``, and each of the last two by ``("done", found)``, ``("failed", cause)`` or, where the function has
changed an input, ``("changed", None)``.
"""

import os
import pickle
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any

from dpaudit.auditing.host import chunks
from dpaudit.auditing.host.chunks import Plan
from dpaudit.auditing.host.encoder import Encoder


def one_line(error: BaseException) -> str:
    """Returns an exception as text."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def run(connection: Connection, packed: bytes, calls: Any) -> None:
    """Serves the parent until it closes the connection.

    Args:
      connection: to the parent.
      packed: the plan, pickled.
      calls: a shared number, raised as calls of the function begin.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to end
    sys.stdout.flush()
    os.dup2(2, 1)  # keep what the function prints out of the parent's standard output
    try:
        plan: Plan = pickle.loads(packed)
        inputs, function = chunks.Inputs(plan), chunks.ready(plan)
    except (Exception, SystemExit) as error:
        connection.send(("unready", one_line(error)))
        return
    connection.send(("ready", None))
    encoder: Encoder | None = None

    def tick() -> None:
        calls.value += 1

    while True:
        try:
            kind, *wanted = connection.recv()
        except (EOFError, OSError):
            return
        if kind == "encoder":
            (encoder,) = wanted
            continue
        try:
            if kind == "probe":
                found: Any = chunks.probe(plan, function)
            else:
                (numbers,) = wanted
                found = [played(plan, function, number, tick, encoder) for number in numbers]
            told = ("changed", None) if inputs.changed() else ("done", found)
            answer = pickle.dumps(told, protocol=pickle.HIGHEST_PROTOCOL)
        except (Exception, SystemExit) as error:
            answer = pickle.dumps(("failed", one_line(error)))
        connection.send_bytes(answer)


def played(plan: Plan, function: Any, chunk: int, tick: Any, encoder: Encoder | None) -> tuple[Any, Any]:
    """Returns the releases of a chunk of both worlds, encoded if there is an encoder already."""
    one, other = chunks.play(plan, function, chunk, tick)
    if encoder is None:
        return one, other
    return encoder.encode(one, plan.features), encoder.encode(other, plan.features)
