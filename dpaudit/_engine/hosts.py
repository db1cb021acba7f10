"""Processes on several hosts as one machine: how they join, their devices, and which of them speaks for all.

    hosts.join()
    result = dpaudit.audit(mechanism, x0, x1, key=key, mesh=hosts.mesh("trials"))
    if hosts.first():
        print(result.to_json())

Who starts the processes tells them of each other: SLURM (``srun``) and Open MPI by themselves, everybody else by
``JAX_COORDINATOR_ADDRESS``, ``JAX_NUM_PROCESSES`` and ``JAX_PROCESS_ID``. What a process then looks up is left to
:func:`jax.distributed.initialize`.
"""

import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from dpaudit import _validate

COUNTS = ("JAX_NUM_PROCESSES", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")  # how many were started together
OWN = {"num_processes": "JAX_NUM_PROCESSES", "process_id": "JAX_PROCESS_ID"}  # JAX looks up the address itself
PATIENCE = 300  # seconds to wait for the others at the start and at the end
LEAVING = 15  # seconds to wait for the others before going without them


def join(seconds: int = PATIENCE) -> None:
    """Makes one machine of the processes that were started together; of a single one, nothing is asked.

    Tasks of a SLURM array are jobs of their own: each joins the tasks of its own step alone, mostly none. To be called
    before any computation. On CPUs the processes speak by Gloo.

    Args:
      seconds: how long to wait for the others. Past that the process ends with status 2 and one line.

    Raises:
      InputError: variables that do not tell who and where the others are.
    """
    count = max(_whole_number(name) or 1 for name in COUNTS)
    if count == 1 or several():
        return
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM for itself
    given: dict[str, Any] = {argument: _whole_number(name) for argument, name in OWN.items()}
    if "JAX_COORDINATOR_ADDRESS" in os.environ and None not in given.values():
        given["cluster_detection_method"] = "deactivate"  # there is nothing left to detect
    # JAX ends a process that waits in vain by a core dump, so this one ends before.
    with _within(seconds, f"processes: expected {count} to join within {seconds} s, got no answer from all"), _quiet():
        try:
            jax.distributed.initialize(**given, initialization_timeout=seconds + 60, shutdown_timeout_seconds=PATIENCE)
        except (ValueError, RuntimeError) as error:
            raise _validate.expected(
                "processes", f"{count} that know of each other", _validate.one_line(str(error))
            ) from None
        multihost_utils.sync_global_devices("dpaudit")


def mesh(axis: str) -> Mesh | None:
    """All devices of all processes in a row, as the ``mesh`` argument of this library; None for a single one.

    Devices that stand for one CPU share its threads, and linear algebra or Fourier transforms may need more of them
    than there are devices: the environment's NPROC, from the start, sets how many (:mod:`dpaudit._engine.game`).
    """
    return None if jax.device_count() == 1 else Mesh(np.array(jax.devices()), (axis,))


def several() -> bool:
    """Whether processes have joined."""
    return jax.distributed.is_initialized()


def alone(name: str, why: str) -> None:
    """Refuses several processes, in each of them.

    Raises:
      InputError: ``name`` is for one process.
    """
    if several():
        raise _validate.expected(name, f"one process ({why})", f"{jax.process_count()} of them")


def first() -> bool:
    """Whether this process is the one that prints and writes."""
    return not several() or jax.process_index() == 0


def once(do: Callable[[], Any]) -> Any:
    """What ``do()`` returns in the first process, which alone calls it, in all of them.

    Args:
      do: returns a JSON value. What it refuses, all processes refuse.

    Raises:
      InputError: as ``do``.
    """
    if not several():
        return do()
    said = b""
    if first():
        try:
            said = json.dumps([True, do()]).encode()
        except _validate.InputError as error:
            said = json.dumps([False, str(error)]).encode()
    size = int(multihost_utils.broadcast_one_to_all(np.int32(len(said))))
    padded = np.frombuffer(said.ljust(size), np.uint8)
    done, value = json.loads(np.asarray(multihost_utils.broadcast_one_to_all(padded), np.uint8).tobytes())
    if not done:
        raise _validate.InputError(value)
    return value


def leave(status: int) -> NoReturn:
    """Ends the process before its work is done: one of several once the others end too, or a while later.

    One that loses sight of the first process ends in a core dump; and whoever ends in the usual way with a computation
    under way may wait for another's part of it, or crash as its devices are taken down.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    if several():
        backstop = threading.Timer(LEAVING, os._exit, (status,))
        backstop.daemon = True
        backstop.start()
        jax.distributed.shutdown()
    os._exit(status)


def _whole_number(name: str) -> int | None:
    text = os.environ.get(name)
    if text is not None and not text.isdecimal():
        raise _validate.expected(name, "a whole number", text)
    return None if text is None else int(text)


@contextmanager
def _within(seconds: float, line: str) -> Iterator[None]:
    def give_up() -> None:
        print(f"dpaudit: {line}", file=sys.stderr, flush=True)
        os._exit(2)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def _quiet() -> Iterator[None]:
    """Gloo tells of its connections on the standard output, which belongs to results."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


# SIGTERM, by which a scheduler takes a machine back, as an interruption: what is finished is saved, status 143.

INTERRUPTED, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM  # statuses, as shells count
SECONDS = 20  # for what is under way; of several processes, one may wait in vain for another's part
SECONDS_OF_SEVERAL = 5


class Terminated(KeyboardInterrupt):
    """Raised in the main thread by SIGTERM."""


def status(interruption: KeyboardInterrupt) -> int:
    """With which an interrupted process ends."""
    return TERMINATED if isinstance(interruption, Terminated) else INTERRUPTED


@contextmanager
def sigterm_interrupts(last_words: Callable[[], str]) -> Iterator[None]:
    """SIGTERM raises :class:`Terminated` in the main thread, once.

    A main thread that computes hears of no signal until the device answers: for a long compilation, or for ever where
    another process was interrupted before it had sent its part. A second thread waits for so long as a scheduler does
    and then ends the process, with the same status. Files are written as a whole or not at all, so nothing is torn.

    Args:
      last_words: the line to print in that case.
    """

    def interrupt(*_: Any) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    def watch() -> None:
        while number := reading.recv(1):
            if number[0] == signal.SIGTERM:
                break
        else:
            return
        reading.settimeout(SECONDS_OF_SEVERAL if several() else SECONDS)
        try:
            while reading.recv(1):
                pass  # other signals
        except TimeoutError:
            leaving.set()
            if first():
                print(last_words(), file=sys.stderr, flush=True)
            leave(TERMINATED)

    leaving = threading.Event()
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    wakeup = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    handler = signal.signal(signal.SIGTERM, interrupt)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    except Exception:
        if signal.getsignal(signal.SIGTERM) is signal.SIG_IGN:  # raised in a callback, and told by JAX in its own way
            raise Terminated from None
        raise
    finally:
        if leaving.is_set():
            watcher.join()  # it ends the process
        signal.signal(signal.SIGTERM, handler or signal.SIG_DFL)
        signal.set_wakeup_fd(wakeup)
        writing.close()
