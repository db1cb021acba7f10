"""Records what every user has spent in a file: over runs, protocols and restarts.

    ledger = Ledger("ledger.jsonl")
    run(key, protocol, state, None, users, rounds=20, budget=Budget(1.0, 1e-6), ledger=ledger, who=names)
    ledger.spent(1e-6, "anna")

A run is charged before it starts: its line is on the disk before any noise is drawn, so a process that is killed can
leave a ledger that has charged too much, but never too little. Each line ends with a hash of everything up to it. The
last line may be incomplete if the process was killed before the run started, and is then dropped. The ledger belongs
inside the boundary, like the aggregator's memory.

Where the noise of a stream is correlated, its later releases tell more of the noise in earlier ones. Users who took
part in it are then charged for all of its releases so far, also those after they left. Users who join a stream of any
kind later are charged for its releases before, too: more than they spend, never less.

A memory that a run with a ledger returned names the run in which its streams began, so that streams of one name are
told apart. One that does not, as of an earlier version, continues correlated noise only if it can be of one stream.
"""

import fcntl
import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import attr
import numpy as np
from dp_accounting import ComposedDpEvent, DpEvent, SelfComposedDpEvent

from dpaudit import _validate
from dpaudit.personalization.boundary._events import from_json, to_json
from dpaudit.personalization.boundary.budget import SLACK, Budget, affordable, spent
from dpaudit.personalization.boundary.processes import Process

HEADER = {"ledger": "dpaudit users 1"}
History = frozenset[tuple[int, int]]  # (stream, the last of its releases that is charged)
NOTHING: History = frozenset()


class Stream(NamedTuple):
    """A process in a run, and the number ``began`` of releases that it has made before the run.

    Attributes:
      process: that releases.
      began: how many releases it has made before.
      first: the run that made the first of these; empty if not known.
    """

    process: Process
    began: int
    first: str = ""

    def accounts(self, event: DpEvent) -> bool:
        """Tells whether the process accounts its releases before the run by this event, up to rounding."""
        return _alike(self.process.event(self.began), event)


class Admitted(NamedTuple):
    """The part of a run that was charged.

    Attributes:
      rounds: the rounds that were charged, 0 for none.
      who: [n] booleans: the users who were charged, or, for no rounds, those who could pay for one; None for
        everybody.
    """

    rounds: int
    who: np.ndarray | None


class _Kept(NamedTuple):
    name: str
    first: str  # the run that it began in
    events: dict[int, DpEvent]  # of its first n releases, by n


class Ledger:
    """Keeps users' charges in a file, which is created if needed and can be shared by several processes.

    Args:
      path: of the file.

    Raises:
      InputError: a file that is not a ledger, has another schema, was changed, or cannot be read and written.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        self._read, self._hash = 0, b""
        self._streams: list[_Kept] = []
        self._runs: set[str] = set()
        self._everybody = NOTHING
        self._histories: dict[str, History] = {}
        with self._locked():
            pass

    def spent(self, delta: float, user: int | str | None = None) -> float:
        """Computes the epsilon of all charges of one user; None for the user who spent the most.

        Raises:
          InputError: delta out of range.
        """
        _validate.open_unit(delta=delta)
        with self._locked():
            if user is not None:
                return spent(self._event(self._everybody | self._histories.get(str(user), NOTHING)), delta)
            return max(spent(self._event(history), delta) for history in self._all())

    def charge(
        self,
        run: str,
        streams: Sequence[Stream],
        rounds: int,
        *,
        budget: Budget | None = None,
        who: Sequence[int | str] | None = None,
        least: int = 1,
    ) -> Admitted:
        """Charges a run that is about to start.

        Args:
          run: a digest of everything that its noise is drawn from.
          streams: the processes that release once a round.
          rounds: the rounds asked for.
          budget: the budget of every user; None charges without a limit.
          who: the users, each once; the number 7 and the text "7" are the same. None charges everybody alike.
          least: the least number of users who have to be able to pay.

        Returns:
          :class:`Admitted`: the most rounds that ``least`` users can pay for, and those users. Nothing is charged for
          no rounds.

        Raises:
          InputError: a run with the noise of an earlier one; a stream whose earlier releases are not in the ledger, or
            could be those of several streams there, or were charged otherwise than its process accounts them; a budget
            that does not pay for one more release of correlated noise, of a user who took part in the stream before.
        """
        named = None if who is None else _names(who)
        with self._locked() as append:
            if run in self._runs:
                wanted = "a key that is new for these names and numbers, so that no noise is drawn twice"
                raise _validate.expected("key", wanted, "that of a run in the ledger")
            numbers = self._numbers(streams)

            def pays(history: History, rounds: int) -> bool:
                new = [stream.process.event(stream.began + rounds) for stream in streams]
                return budget is None or budget.pays(self._event(history, dict(zip(numbers, new, strict=True))))

            if budget is not None:
                rounds = self._paid_by_the_past(numbers, streams, pays, rounds, budget)
            able = self._able(named, lambda history: affordable(lambda r: pays(history, r), rounds))
            most = int(able.min()) if named is None else int(np.sort(able)[::-1][least - 1 : least].sum())
            if most == 0:
                return Admitted(0, None if named is None else able >= 1)
            users = (
                None if named is None else [name for name, r in zip(named, able.tolist(), strict=True) if r >= most]
            )
            lasts = [stream.began + most for stream in streams]
            charged = [
                {
                    "stream": number,
                    "name": stream.process.name,
                    "last": last,
                    "event": to_json(stream.process.event(last)),
                }
                for number, stream, last in zip(numbers, streams, lasts, strict=True)
            ]
            append({"run": run, "users": users, "streams": charged})
            return Admitted(most, None if named is None else able >= most)

    def _paid_by_the_past(
        self,
        numbers: list[int],
        streams: Sequence[Stream],
        pays: Callable[[History, int], bool],
        rounds: int,
        budget: Budget,
    ) -> int:
        """Returns the rounds that all earlier users of continued streams of correlated noise can pay, in or out."""
        going = {
            number: process.name
            for number, (process, began, _) in zip(numbers, streams, strict=True)
            if began and not _independent(process.event(began))
        }
        held = {history for history in self._all() if any(stream in going for stream, _ in history)}
        paid = min((affordable(lambda r, own=history: pays(own, r), rounds) for history in held), default=rounds)
        if paid == 0:
            names = ", ".join(sorted(going.values()))
            wanted = f"one that pays for a round of all who ever took part in {names}, whose noise is correlated"
            raise _validate.expected("budget", wanted, budget)
        return paid

    def _able(self, named: list[str] | None, rounds_of: Callable[[History], int]) -> np.ndarray:
        """Returns the number of rounds that each user can pay; without names, that of every distinct history."""
        if named is None:
            return np.array([rounds_of(history) for history in self._all()])
        own = [self._histories.get(name, NOTHING) for name in named]
        found = {history: rounds_of(self._everybody | history) for history in set(own)}
        return np.array([found[history] for history in own], int)

    def _all(self) -> set[History]:
        """Returns every distinct history, including that of a user who was never named."""
        return {self._everybody, *(self._everybody | own for own in set(self._histories.values()))}

    def _event(self, history: History, longer: dict[int, DpEvent] | None = None) -> ComposedDpEvent:
        """Composes every stream for as long as the user was charged for it, or as it will be in ``longer``.

        Version 0.2.0 let another process go on with a stream. In its files what came before counts beside the rest.
        """
        found = {number: [event] for number, event in (longer or {}).items()}
        for stream, last in sorted(history, reverse=True):
            event, later = self._told(stream, last), found.setdefault(stream, [])
            if not any(_goes_on(event, other) for other in later):
                later.append(event)
        return ComposedDpEvent([event for _, events in sorted(found.items()) for event in events])

    def _told(self, stream: int, last: int) -> DpEvent:
        """Returns the event of what a stream has told of a user whose last release in it had this number."""
        events = self._streams[stream].events
        if _independent(events[last]):
            return events[last]
        return events[max(number for number, event in events.items() if not _independent(event))]

    def _numbers(self, streams: Sequence[Stream]) -> list[int]:
        """Returns the numbers of new streams and of those that are continued."""
        names = [stream.process.name for stream in streams]
        if len(set(names)) < len(names):
            raise _validate.expected("streams", "every process once, as a round releases it", ", ".join(names))
        new, numbers = len(self._streams), []
        for stream in streams:
            numbers.append(self._continued(stream) if stream.began else new)
            new += not stream.began
        return numbers

    def _continued(self, stream: Stream) -> int:
        """Returns the number of the stream that goes on, with as many releases as its memory tells."""
        process, began, first = stream
        of_name = [
            number
            for number, kept in enumerate(self._streams)
            if kept.name == process.name and (not first or kept.first == first)
        ]
        independent = _independent(process.event(began))
        if independent:  # which of several streams then only decides how much too much is charged
            of_name = of_name[-1:]
        longest = {number: max(self._streams[number].events) for number in of_name}
        if began not in longest.values():
            wanted = f"the memory of the run that {process.name!r} was last charged for"
            raise _validate.expected("memory", wanted, f"one of {began} releases")
        able = [number for number, length in longest.items() if length >= began]  # also those that went on since
        if len(able) > 1:
            wanted = f"one that tells which of {len(able)} streams of {process.name!r} it continues"
            raise _validate.expected("memory", wanted, "one that was not returned by a run with this ledger")
        if not stream.accounts(charged := self._streams[able[0]].events[began]):
            wanted = f"one whose {began} releases {process.name!r} accounts as they were charged, {charged}"
            raise _validate.expected("memory", wanted, process.event(began))
        return able[0]

    @contextmanager
    def _locked(self) -> Iterator[Callable[[dict[str, Any]], None]]:
        """Locks the file for this process, reads what others wrote, and yields ``append(record)``."""
        try:
            new = not self.path.exists()
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                self._catch_up(descriptor)
                if new:
                    _sync_folder(self.path)
                yield lambda record: self._append(descriptor, record)
            finally:
                os.close(descriptor)
        except OSError as error:
            found = f"{error.strerror or error}: {self.path}"
            raise _validate.expected("ledger", "a file that can be read and written", found) from None

    def _catch_up(self, descriptor: int) -> None:
        content = _content(descriptor, self._read)
        *lines, torn = content.split(b"\n")
        if not self._read and not lines and not self._line(HEADER).startswith(torn):
            raise _validate.expected("ledger", "a file that a Ledger made", self.path)
        for line in lines:
            self._take(line)
        if torn:
            os.ftruncate(descriptor, self._read)
        if not self._read:
            self._append(descriptor, HEADER)

    def _take(self, line: bytes) -> None:
        text, _, found = line.rpartition(b"\t")
        if found != self._hashed(text):
            raise _validate.expected(
                "ledger", "a file that only Ledgers have written", f"{self.path}, changed at byte {self._read}"
            )
        record = json.loads(text)
        if not self._read and record != HEADER:
            raise _validate.expected("ledger", f"the schema {HEADER['ledger']!r}", f"{self.path} of {record}")
        if self._read:
            self._enter(record)
        self._read, self._hash = self._read + len(line) + 1, found

    def _enter(self, record: dict[str, Any]) -> None:
        self._runs.add(record["run"])
        for one in record["streams"]:
            if one["stream"] == len(self._streams):
                self._streams.append(_Kept(one["name"], record["run"], {}))
            self._streams[one["stream"]].events[one["last"]] = from_json(one["event"])
        added = frozenset((one["stream"], one["last"]) for one in record["streams"])
        if record["users"] is None:
            self._everybody |= added
            return
        grown: dict[History, History] = {}
        for user in map(str, record["users"]):  # version 0.2.0 kept whole numbers as such
            own = self._histories.get(user, NOTHING)
            self._histories[user] = grown.setdefault(own, own | added)

    def _append(self, descriptor: int, record: dict[str, Any]) -> None:
        line = self._line(record)
        written = os.write(descriptor, line)
        if written != len(line):
            raise OSError(f"{written} of {len(line)} bytes were written")
        os.fsync(descriptor)
        self._take(line[:-1])

    def _line(self, record: dict[str, Any]) -> bytes:
        text = json.dumps(record, separators=(",", ":")).encode()
        return text + b"\t" + self._hashed(text) + b"\n"

    def _hashed(self, text: bytes) -> bytes:
        return hashlib.sha256(self._hash + text).hexdigest().encode()


def _independent(event: DpEvent) -> bool:
    """Tells whether the releases of an event are composed of independent ones, so that none tells of another."""
    return isinstance(event, SelfComposedDpEvent)


def _goes_on(event: DpEvent, longer: DpEvent) -> bool:
    """Tells whether both events may be of one process: where releases are composed, of equal ones."""
    if isinstance(event, SelfComposedDpEvent) and isinstance(longer, SelfComposedDpEvent):
        return _alike(event.event, longer.event)
    return True


def _alike(one: Any, other: Any) -> bool:
    """Tells whether two events, or values in them, are equal up to rounding, which differs between machines."""
    if isinstance(one, DpEvent):
        fields = attr.fields(type(one))
        return type(one) is type(other) and all(_alike(getattr(one, f.name), getattr(other, f.name)) for f in fields)
    if isinstance(one, list | tuple):
        return isinstance(other, list | tuple) and len(one) == len(other) and all(map(_alike, one, other))
    return bool(one == other) or (isinstance(one, float) and math.isclose(one, other, rel_tol=SLACK))


def _names(who: Sequence[int | str]) -> list[str]:
    names = who.tolist() if isinstance(who, np.ndarray) else list(who)
    if not set(map(type, names)) <= {int, str}:
        odd = next(name for name in names if type(name) not in (int, str))
        raise _validate.expected("who", "users' names, whole numbers or text", odd)
    names = list(map(str, names))
    if len(set(names)) < len(names):
        name, times = Counter(names).most_common(1)[0]
        raise _validate.expected("who", "every user once", f"{name!r} {times} times")
    return names


def _content(descriptor: int, start: int) -> bytes:
    size = os.fstat(descriptor).st_size
    if size < start:
        raise _validate.expected("ledger", f"a file of {start} bytes or more, as it was", f"{size} bytes")
    return os.pread(descriptor, size - start, start)


def _sync_folder(path: Path) -> None:
    folder = os.open(path.absolute().parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
