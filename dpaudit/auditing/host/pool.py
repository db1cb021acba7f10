"""Runs chunks of trials in this process, or in several supervised worker processes."""

import contextlib
import multiprocessing
import os
import pickle
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from multiprocessing import connection
from typing import Any, NamedTuple, Protocol

from dpaudit import _validate
from dpaudit.auditing.host import chunks, worker
from dpaudit.auditing.host.chunks import Plan, Probed
from dpaudit.auditing.host.encoder import Encoder

THREADS = ("OMP", "OPENBLAS", "MKL", "NUMEXPR", "VECLIB_MAXIMUM", "RAYON")  # libraries, limited to one thread
AHEAD = 2  # tasks queued at each worker, so that it need not wait for the next one
TRIES = 2  # most deaths of workers at one task
POLL = 0.5  # seconds between checks of workers that are silent

Task = tuple[int, ...]  # numbers of chunks


class Player(Protocol):
    """Runs chunks of trials; :meth:`take` returns one result for each chunk of both worlds, in order."""

    def probe(self) -> Probed:
        """Runs a few trials twice."""
        ...

    def use(self, encoder: Encoder) -> None:
        """Encodes releases from now on."""
        ...

    def take(self, wanted: range, ahead: Iterable[int] = ()) -> tuple[list[Any], list[Any]]:
        """Returns the results of the wanted chunks of both worlds; the chunks ``ahead`` may be started."""
        ...

    def close(self) -> None:
        """Ends all processes."""
        ...


class InProcess:
    """Runs trials in this process."""

    def __init__(self, plan: Plan, name: str) -> None:
        self._plan, self._name, self._encoder = plan, name, None
        self._function: Any = None
        self._inputs = chunks.Inputs(plan)

    def probe(self) -> Probed:
        with self._named():
            found = chunks.probe(self._plan, self._ready())
        self._refuse_changes()
        return found

    def use(self, encoder: Encoder) -> None:
        self._encoder = encoder

    def take(self, wanted: range, ahead: Iterable[int] = ()) -> tuple[list[Any], list[Any]]:
        with self._named():
            function = self._ready()
            found = [worker.played(self._plan, function, number, chunks.no_tick, self._encoder) for number in wanted]
        self._refuse_changes()
        return [one for one, _ in found], [other for _, other in found]

    def close(self) -> None:
        pass

    def _refuse_changes(self) -> None:
        if self._inputs.changed():
            raise changed(self._name)

    def _ready(self) -> Any:
        if self._function is None:
            self._function = chunks.ready(self._plan)
        return self._function

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        with contextlib.redirect_stdout(sys.stderr):
            try:
                yield
            except _validate.InputError:
                raise
            except (Exception, SystemExit) as error:
                raise failure(worker.one_line(error), self._name) from None


def failure(cause: str, name: str) -> _validate.InputError:
    """Returns the error for a trial that failed."""
    return _validate.InputError(
        f"mechanism: expected a release in every trial, got {_validate.one_line(cause)} (raised by {name})"
    )


def changed(name: str) -> _validate.InputError:
    """Returns the error for a function that writes to its input, which is then another one in all later trials."""
    return _validate.expected("mechanism", "a function that leaves its input as it is", f"{name}, which changes it")


class _Worker(NamedTuple):
    process: Any
    pipe: connection.Connection
    calls: Any
    tasks: "deque[Task | None]"  # in progress or queued, in order; None is a probe


class Pool:
    """Runs trials in spawned worker processes of one thread each.

    A worker that dies is replaced once for each task; a call that takes longer than ``seconds_per_call`` ends the
    audit.
    """

    def __init__(self, plan: Plan, name: str, workers: int, seconds_per_call: float) -> None:
        try:
            self._packed = pickle.dumps(plan)
        except Exception as error:
            raise _validate.expected(
                "workers",
                f"None for a function, inputs or a setup that cannot be pickled ({name})",
                f"{workers} ({_validate.one_line(str(error), 60)})",
            ) from None
        self._name, self._limit, self._encoder = name, seconds_per_call, None
        self._context = multiprocessing.get_context("spawn")
        self._waiting: deque[Task] = deque()
        self._found: dict[int, tuple[Any, Any]] = {}
        self._asked: set[int] = set()
        self._tries: Counter[Task] = Counter()
        self._probed: list[Probed] = []
        self._changed: dict[int, tuple[int, float]] = {}  # by process: the number of calls, and when it last rose
        self._ready: set[int] = set()
        self._workers = [self._start() for _ in range(workers)]
        self.chunks_of_task = 1

    def probe(self) -> Probed:
        both = self._workers[:2]
        for one in both:
            self._send(one, None, ("probe",))
        while len(self._probed) < len(both):
            self._serve()
        if self._probed[0].is_copied(self._probed[-1]) and len(both) > 1:
            wanted = f"1 or None for a function that seeds a generator of its own ({self._name}), or draws from rng"
            raise _validate.expected("workers", wanted, f"{len(self._workers)}, which would all draw the same noise")
        return self._probed[0]

    def use(self, encoder: Encoder) -> None:
        self._encoder = encoder
        for one in self._workers:
            one.pipe.send(("encoder", encoder))

    def take(self, wanted: range, ahead: Iterable[int] = ()) -> tuple[list[Any], list[Any]]:
        self._ask(wanted)
        self._ask(ahead)
        while not all(number in self._found for number in wanted):
            self._serve()
        self._asked.difference_update(wanted)
        found = [self._found.pop(number) for number in wanted]
        return [one for one, _ in found], [other for _, other in found]

    def close(self) -> None:
        for one in self._workers:
            one.pipe.close()
            one.process.terminate()
        for one in self._workers:
            one.process.join(5)
            if one.process.is_alive():
                one.process.kill()

    def _ask(self, numbers: Iterable[int]) -> None:
        """Queues the chunks that are not queued yet, a few per task."""
        new = [number for number in numbers if number not in self._asked]
        self._asked.update(new)
        step = self.chunks_of_task
        self._waiting.extend(tuple(new[i : i + step]) for i in range(0, len(new), step))

    def _start(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        calls = self._context.RawValue("Q", 0)
        process = self._context.Process(target=worker.run, args=(theirs, self._packed, calls), daemon=True)
        with _one_thread():
            process.start()
        theirs.close()
        found = _Worker(process, ours, calls, deque())
        if self._encoder is not None:
            ours.send(("encoder", self._encoder))
        return found

    def _send(self, one: _Worker, task: Task | None, message: tuple[Any, ...]) -> None:
        if not one.tasks:
            self._changed[one.process.pid] = (one.calls.value, time.monotonic())
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # a dead worker is noticed by its silence
            one.pipe.send(message)
        one.tasks.append(task)

    def _serve(self) -> None:
        """Hands out tasks and receives results."""
        for depth in range(AHEAD):  # every worker gets its first task before any gets a second
            for one in self._workers:
                if self._waiting and len(one.tasks) <= depth:
                    task = self._waiting.popleft()
                    self._send(one, task, ("play", task))
        ready: Any = connection.wait([one.pipe for one in self._workers], POLL)
        for place, one in enumerate(self._workers):
            if one.pipe not in ready:
                self._refuse_hanging(one)
                continue
            try:
                kind, found = pickle.loads(one.pipe.recv_bytes())
            except (EOFError, ConnectionResetError):
                self._replace(place)
                continue
            self._changed[one.process.pid] = (one.calls.value, time.monotonic())
            self._receive(one, kind, found)

    def _receive(self, one: _Worker, kind: str, found: Any) -> None:
        if kind == "ready":
            self._ready.add(one.process.pid)
            return
        if kind == "unready":
            raise _validate.expected(
                "workers", f"a function and setup that a new process can use ({self._name})", found
            )
        task = one.tasks.popleft()
        if kind == "failed":
            raise failure(found, self._name)
        if kind == "changed":
            raise changed(self._name)
        if task is None:
            self._probed.append(found)
            return
        self._found.update(zip(task, found, strict=True))

    def _replace(self, place: int) -> None:
        """Replaces a worker that died, and hands out its tasks again.

        Raises:
          InputError: a worker died before it was ready, or twice at the same task.
        """
        one = self._workers[place]
        one.process.join(5)
        status = one.process.exitcode
        if one.process.pid not in self._ready:
            raise _validate.expected(
                "workers",
                "a process that starts (a script must keep its calls under if __name__ == '__main__')",
                f"one that ended with status {status}",
            )
        tasks = [task for task in one.tasks if task is not None]
        if tasks:
            self._tries[tasks[0]] += 1
        if len(tasks) < len(one.tasks) or (tasks and self._tries[tasks[0]] >= TRIES):
            raise failure(f"a worker that died with status {status}", self._name)
        self._waiting.extendleft(reversed(tasks))
        self._workers[place] = self._start()

    def _refuse_hanging(self, one: _Worker) -> None:
        if not one.tasks or one.process.pid not in self._ready:
            return
        now, calls = time.monotonic(), one.calls.value
        before, since = self._changed[one.process.pid]
        if calls != before:
            self._changed[one.process.pid] = (calls, now)
        elif now - since > self._limit:
            one.process.kill()
            raise failure(f"none in {self._limit:g} s, the limit of seconds_per_call", self._name)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Makes processes that are started within the context use one thread and the same hash seed (order of sets)."""
    wanted = {f"{library}_NUM_THREADS": "1" for library in THREADS} | {"PYTHONHASHSEED": "0"}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
