"""Writes private files durably, and keeps the log of used blocks, so that no block is used twice.

A block counts as used ("spent") from the moment that its line is on disk, whether or not its opening succeeded. The
log also records which block the other server is known to have used. A server whose own log does not reach that far has
an older state, a restored copy, which would open a second time what was opened before.
"""

import fcntl
import os
import re
from pathlib import Path
from typing import NamedTuple

from dpaudit import _validate

# Files and folders that only their owner can read, written whole or not at all.


def folder(path: Path) -> None:
    """Creates a folder of mode 0700 with its missing parents; an existing one keeps its mode.

    Raises:
      OSError: there is no folder and none can be created.
    """
    for missing in reversed([each for each in (path, *path.parents) if not each.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)
    path.mkdir(exist_ok=True)  # fails for a file of this name


def create(path: Path) -> int:
    """Opens a new file of mode 0600 for writing, in place of any file of this name; returns its descriptor."""
    path.unlink(missing_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)


def add(path: Path, data: bytes) -> None:
    """Appends to a file, created if missing; file and data are on disk when this returns, or it raises OSError."""
    new = not path.exists()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_DSYNC, 0o600)
    with open(descriptor, "ab") as file:  # unlike os.write, writes the rest where the system takes only a part
        file.write(data)
    if new:
        synchronise(path.parent)  # the data survive a loss of power only if their file does


def put(path: Path, data: bytes) -> None:
    """Writes a file atomically: it is whole and on disk when this returns, or does not exist."""
    new = path.with_name(path.name + ".new")
    with open(create(new), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.rename(path)
    synchronise(path.parent)


def lock(path: Path) -> int:
    """Opens a file of mode 0600, created if missing, and locks it until the descriptor is closed or the process ends.

    Raises:
      BlockingIOError: it is locked already.
      OSError: it cannot be opened or locked.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def synchronise(path: Path) -> None:
    """Waits until a folder's current entries are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# The log.

IDENTITY_BYTES = 16
NONE = -1  # instead of a number
_LINE = re.compile(rf"(spent) (\d+) ([0-9a-f]{{{2 * IDENTITY_BYTES}}})|(burnt|seen) (\d+)")


class Past(NamedTuple):
    """What a server states about a store when it meets the other.

    Attributes:
      spent: number of the last block that it used, or :data:`NONE`.
      identity: the identity of that block, known only to the two servers that had it; empty for none.
      seen: number of the last block that it saw the other use, or :data:`NONE`.
    """

    spent: int
    identity: bytes
    seen: int


class Ledger:
    """The log of a store; used by one process at a time.

    Args:
      path: the file, in an existing folder.

    Attributes:
      past: what the log says now.
      floor: all numbers up to this one are used or discarded; :data:`NONE` for no number.

    Raises:
      InputError: the file is not such a log.
    """

    def __init__(self, path: Path) -> None:
        self.past, self.floor = Past(NONE, b"", NONE), NONE
        if path.exists():
            *lines, _ = path.read_bytes().split(b"\n")  # a last line without an end was not written completely
            for line in lines:
                self._read(line.decode("ascii", "replace"), path)
        put(path, self._whole())
        self._path = path

    def spend(self, number: int, identity: bytes) -> None:
        """Records that a block is used; on disk when this returns."""
        self.past = self.past._replace(spent=number, identity=identity)
        self.floor = max(self.floor, number)
        self._add(f"spent {number} {identity.hex()}")

    def burn(self, number: int) -> None:
        """Records that no number up to this one will be used; on disk when this returns."""
        self.floor = max(self.floor, number)
        self._add(f"burnt {number}")

    def see(self, number: int) -> None:
        """Records that the other server has used this block; on disk when this returns."""
        self.past = self.past._replace(seen=number)
        self._add(f"seen {number}")

    def _add(self, line: str) -> None:
        add(self._path, line.encode() + b"\n")

    def _read(self, line: str, path: Path) -> None:
        found = _LINE.fullmatch(line)
        if found is None:
            raise _validate.expected("ledger", "lines of blocks that are spent, burnt or seen", f"{line!r} in {path}")
        spent, number, identity, other, other_number = found.groups()
        if spent:
            self.past = self.past._replace(spent=int(number), identity=bytes.fromhex(identity))
        elif other == "seen":
            self.past = self.past._replace(seen=int(other_number))
        if other != "seen":
            self.floor = max(self.floor, int(number or other_number))

    def _whole(self) -> bytes:
        """Returns the log in as few lines as possible."""
        lines = []
        if self.past.spent != NONE:
            lines.append(f"spent {self.past.spent} {self.past.identity.hex()}\n")
        if self.floor != self.past.spent:
            lines.append(f"burnt {self.floor}\n")
        if self.past.seen != NONE:
            lines.append(f"seen {self.past.seen}\n")
        return "".join(lines).encode()
