"""Keeps a server's state on disk: the terms, the result of each completed step, and the number of openings begun.

A result is written whole and synchronised before anyone is told of it, so a server that is killed finds every result
that it has announced. An opening is recorded before any message is sent from which a sum could be read. Even if it
produces no result, the values may be known, and the next opening of the step is one more release: privacy accounting
counts :attr:`Records.releases`, not the completed steps.

Only their owner can read the files and folders.
"""

import json
import os
import re
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dpaudit import _validate
from dpaudit.secure.crypto import randomness
from dpaudit.secure.protocol import agreement, storage
from dpaudit.secure.protocol.agreement import Terms
from dpaudit.secure.protocol.prepared import IDENTITY_BYTES, Pair
from dpaudit.secure.protocol.two_server_sum import KEPT

KEY_BYTES = 32
_STEP = re.compile(r"\d{8,}\.step")


class Opened(NamedTuple):
    """The result of a step.

    Attributes:
      values: int64 [d], units.
      owners: those whose shares are in the sum.
      releases: openings begun up to then, this one included.
    """

    values: np.ndarray
    owners: tuple[str, ...]
    releases: int


class Records:
    """The state directory of a server, locked for this process until it ends.

    Args:
      folder: created if missing.
      role: "h1" or "h2".
      terms: the terms of the training; those of an earlier run must be the same.

    Attributes:
      completed: the number of the last completed step, from 1; 0 for none.
      releases: openings begun.
      ahead: a folder for blocks prepared in advance.
      pair: the identity of this server and its peer; None before they first met.

    Raises:
      InputError: the directory is in use by another process, belongs to another role or training, lacks a readable
        result of a step, or cannot be used.
    """

    def __init__(self, folder: str | Path, role: str, terms: Terms) -> None:
        self._folder, self._terms = Path(folder), terms
        try:
            storage.folder(self._folder)
            self._lock = storage.lock(self._folder / "lock")
        except BlockingIOError:
            raise _validate.expected("state", "a directory that no other server uses", self._folder) from None
        except OSError as fault:
            raise _validate.expected(
                "state", "a directory to write to", f"{self._folder} ({fault.strerror})"
            ) from None
        self.ahead, self._begun = self._folder / "ahead", self._folder / "begun"
        try:
            self._claim(role, terms)
            self.completed = self._steps()
            self.releases = self._count()
            if self.completed:  # ``begun`` of a restored state may be older than its results
                self.heard(self.opened(self.completed).releases)
        except OSError as fault:
            os.close(self._lock)
            raise _validate.expected(
                "state", "files that can be read", f"{fault.filename or self._folder} ({fault.strerror})"
            ) from None
        except _validate.InputError:
            os.close(self._lock)
            raise
        self.pair = self._paired()

    def begin(self, step: int) -> None:
        """Records that the opening of a step begins; on disk when this returns."""
        storage.add(self._begun, b"%d\n" % step)
        self.releases += 1

    def heard(self, releases: int) -> None:
        """Records the openings begun of which the other server, or a result, tells, if more than are known here."""
        if releases > self.releases:
            storage.add(self._begun, b"+%d\n" % (releases - self.releases))
            self.releases = releases

    def complete(self, step: int, opened: Opened) -> None:
        """Records the result of the step after the last completed one; on disk when this returns."""
        if step != self.completed + 1:
            raise _validate.expected("step", f"{self.completed + 1}, the next one", step)
        said = {"owners": self._terms.names(opened.owners).hex(), "releases": opened.releases}
        head = agreement.stated(said).encode()
        storage.put(self._folder / _name(step), head + b"\n" + opened.values.astype(KEPT).tobytes())
        self.completed = step

    def opened(self, step: int) -> Opened:
        """Reads the result of a completed step; InputError for an unreadable file."""
        path = self._folder / _name(step)
        try:
            head, _, values = path.read_bytes().partition(b"\n")
            said = agreement.understood(head)
            owners, releases = self._terms.named(bytes.fromhex(said["owners"])), int(said["releases"])
            whole = len(values) == KEPT.itemsize * self._terms.dimension
        except (OSError, KeyError, TypeError, ValueError):
            whole = False
        if not whole:
            raise _validate.expected("state", "a complete result of each completed step", path)
        return Opened(np.frombuffer(values, KEPT).astype(np.int64), owners, releases)

    def file(self, step: int) -> tuple[int, ...]:
        """Identifies the content of a result's file: step, inode, size and nanoseconds; zeros for no file."""
        try:
            found = (self._folder / _name(step)).stat()
        except OSError:
            return step, 0, 0, 0
        return step, found.st_ino, found.st_size, found.st_mtime_ns

    def join(self, identity: bytes) -> None:
        """Starts anew with the other server: discards all prepared blocks and stores the new identity of the pair."""
        if self.ahead.exists():
            shutil.rmtree(self.ahead)
        pair = Pair(identity, randomness.system(KEY_BYTES))
        kept = json.dumps({"identity": pair.identity.hex(), "key": pair.key.hex()})
        storage.put(self._folder / "pair.json", kept.encode())
        self.pair = pair

    def close(self) -> None:
        """Unlocks the directory."""
        os.close(self._lock)

    def _claim(self, role: str, terms: Terms) -> None:
        """Claims a new directory for this role and training; checks an existing one."""
        kept = self._folder / "terms.json"
        if not kept.exists():
            storage.put(kept, json.dumps({"role": role, **terms.statement()}, indent=1).encode())
        try:
            earlier = agreement.understood(kept.read_bytes())
        except _validate.InputError:
            raise _validate.expected("state", "the terms of a training", kept) from None
        if earlier.pop("role", None) != role:
            raise _validate.expected("state", f"a directory of {role}", self._folder)
        agreement.same(terms, earlier)

    def _steps(self) -> int:
        """Counts the completed steps."""
        names = {path.name for path in self._folder.glob("*.step")}
        lacking = next((_name(step) for step in range(1, len(names) + 1) if _name(step) not in names), None)
        if lacking:
            stray = next((name for name in sorted(names) if not _STEP.fullmatch(name)), None)
            found = f"{stray} beside them" if stray else f"no {lacking}"
            raise _validate.expected("state", f"results of steps 1 to {len(names)}", f"{found} in {self._folder}")
        return len(names)

    def _count(self) -> int:
        """Counts the openings begun; ends an incomplete last line, so that the next one does not continue it."""
        begun = self._begun.read_bytes() if self._begun.exists() else b""
        if begun and not begun.endswith(b"\n"):
            storage.add(self._begun, b"\n")
        return sum(_openings(line) for line in begun.split())

    def _paired(self) -> Pair | None:
        """Reads the stored pair; None if there is none or it cannot be read."""
        try:
            kept = agreement.understood((self._folder / "pair.json").read_bytes())
            pair = Pair(bytes.fromhex(kept["identity"]), bytes.fromhex(kept["key"]))
        except (OSError, KeyError, TypeError, ValueError):
            return None
        return pair if (len(pair.identity), len(pair.key)) == (IDENTITY_BYTES, KEY_BYTES) else None


def _name(step: int) -> str:
    return f"{step:08d}.step"


def _openings(line: bytes) -> int:
    """Counts the openings that a line of ``begun`` stands for; an incomplete line counts too."""
    return int(line[1:] or 1) if line[:1] == b"+" and line[1:].isdigit() else 1
