"""Joins processes on several hosts into one machine, turns SIGTERM into an interruption, and ends processes cleanly.

    dpaudit.join_hosts()
    result = dpaudit.audit(mechanism, x0, x1, key=key, mesh=hosts.mesh("trials"))
    if hosts.first():
        print(result.to_json())

SLURM (``srun``) and Open MPI let the processes find each other; without them, set ``JAX_COORDINATOR_ADDRESS``,
``JAX_NUM_PROCESSES`` and ``JAX_PROCESS_ID``. :func:`jax.distributed.initialize` does the rest.

Schedulers send SIGTERM before they reclaim a machine; :func:`sigterm_interrupts` turns it into KeyboardInterrupt, so
that finished work is saved and the process ends with status 143.
"""

import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from dpaudit import _validate

COUNTS = ("JAX_NUM_PROCESSES", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")  # number of processes started together
OWN = {"num_processes": "JAX_NUM_PROCESSES", "process_id": "JAX_PROCESS_ID"}  # JAX looks up the address itself
PATIENCE = 300  # seconds to wait for the others at the start and at the end
LEAVING = 15  # seconds to wait for the others before ending without them
INTERRUPTED, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM  # exit statuses, as shells count them
SECONDS = 20  # that a running computation may take to finish, since it may wait for another process forever
SECONDS_OF_SEVERAL = 5


def join_hosts(seconds: int = PATIENCE) -> None:
    """Joins the processes that were started together into one machine; a single process returns at once.

    Tasks of a SLURM array are separate jobs: each joins only the tasks of its own step, usually none. Call this before
    any computation. On CPUs the processes communicate by Gloo.

    Args:
      seconds: how long to wait for the others before the process ends with status 2 and a one-line message.

    Raises:
      InputError: variables that do not identify the other processes.
    """
    count = max(_whole_number(name) or 1 for name in COUNTS)
    if count == 1 or several():
        return
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)  # JAX would handle SIGTERM itself
    given: dict[str, Any] = {argument: _whole_number(name) for argument, name in OWN.items()}
    if "JAX_COORDINATOR_ADDRESS" in os.environ and None not in given.values():
        given["cluster_detection_method"] = "deactivate"  # the environment already describes the processes
    # JAX ends a process that waits too long with a core dump, so end it earlier.
    with _within(seconds, f"processes: expected {count} to join within {seconds} s, got no answer from all"), _quiet():
        try:
            jax.distributed.initialize(**given, initialization_timeout=seconds + 60, shutdown_timeout_seconds=PATIENCE)
        except (ValueError, RuntimeError) as error:
            raise _validate.expected(
                "processes", f"{count} that can find each other", _validate.one_line(str(error))
            ) from None
        multihost_utils.sync_global_devices("dpaudit")


def mesh(axis: str) -> Mesh | None:
    """Returns a one-axis mesh of all devices of all processes, as the ``mesh`` argument of this library; None for a
    single device.

    Virtual devices of one CPU share its threads, and linear algebra or Fourier transforms may need more threads than
    there are devices: the environment variable NPROC sets their number at the start (:mod:`dpaudit._engine.game`).
    """
    return None if jax.device_count() == 1 else Mesh(np.array(jax.devices()), (axis,))


def several() -> bool:
    """Tells whether processes have joined."""
    return jax.distributed.is_initialized()


def alone(name: str, why: str) -> None:
    """Refuses to run in several processes.

    Raises:
      InputError: several processes have joined, and ``name`` supports only one.
    """
    if several():
        raise _validate.expected(name, f"one process ({why})", f"{jax.process_count()} of them")


def first() -> bool:
    """Tells whether this process is the one that prints and writes."""
    return not several() or jax.process_index() == 0


def once(do: Callable[[], Any]) -> Any:
    """Calls ``do()`` only in the first process and returns its value in all of them.

    Args:
      do: returns a JSON value. An InputError that it raises is raised in all processes.

    Raises:
      InputError: the one that ``do`` raises.
    """
    if not several():
        return do()
    message = b""
    if first():
        try:
            message = json.dumps([True, do()]).encode()
        except _validate.InputError as error:
            message = json.dumps([False, str(error)]).encode()
    size = int(multihost_utils.broadcast_one_to_all(np.int32(len(message))))
    padded = np.frombuffer(message.ljust(size), np.uint8)
    done, value = json.loads(np.asarray(multihost_utils.broadcast_one_to_all(padded), np.uint8).tobytes())
    if not done:
        raise _validate.InputError(value)
    return value


def leave(status: int) -> NoReturn:
    """Ends the process before its work is done; one of several processes first waits a while for the others.

    If the first process ends, JAX ends the others with a core dump; and a process that exits normally during a
    computation may wait for the contribution of another, or crash while its devices are shut down.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(BrokenPipeError):  # of a reader that has left
            stream.flush()
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
    """Silences Gloo, which would report its connections on standard output, among the results."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


class Terminated(KeyboardInterrupt):
    """Raised in the main thread by SIGTERM."""


def status(interruption: KeyboardInterrupt) -> int:
    """Returns the exit status of an interrupted process."""
    return TERMINATED if isinstance(interruption, Terminated) else INTERRUPTED


@contextmanager
def sigterm_interrupts(last_words: Callable[[], str]) -> Iterator[None]:
    """Makes SIGTERM raise :class:`Terminated` in the main thread, once.

    Python drops what is raised while it collects garbage or finalizes an object; the signal is then sent again.

    A main thread that computes handles no signal until the device answers. That may take a long compilation, or never
    happen if another process was interrupted before it sent its part. A second thread therefore waits a little less
    than schedulers do and then ends the process with the same status. No file is left partly written.

    Args:
      last_words: returns the line to print before the second thread ends the process.
    """

    def interrupt(*_: Any) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    def again(unraisable: Any) -> None:
        if not isinstance(unraisable.exc_value, Terminated):
            dropped(unraisable)
            return
        signal.signal(signal.SIGTERM, interrupt)
        sent_again.append(threading.Timer(0.1, signal.pthread_kill, [threading.main_thread().ident, signal.SIGTERM]))
        sent_again[-1].start()

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
    sent_again: list[threading.Timer] = []
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    wakeup = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    handler = signal.signal(signal.SIGTERM, interrupt)
    dropped, sys.unraisablehook = sys.unraisablehook, again
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    except Exception:
        if signal.getsignal(signal.SIGTERM) is signal.SIG_IGN:  # raised in a callback: JAX reports it as its own error
            raise Terminated from None
        raise
    finally:
        if leaving.is_set():
            watcher.join()  # the second thread ends the process
        sys.unraisablehook = dropped
        for timer in sent_again:
            timer.cancel()
        signal.signal(signal.SIGTERM, handler or signal.SIG_DFL)
        signal.set_wakeup_fd(wakeup)
        writing.close()
