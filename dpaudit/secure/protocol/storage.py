"""Which blocks of a store are used up: a log on disk that outlives every session, so that no number is used again.

A block is spent from the moment that its line is on disk, whether or not anything came of it. The log also says which
block the other server is known to have spent. A server whose own log does not reach as far as that has a state from
before: a copy that was put back, which would open a second time what was opened once.
"""

import os
import re
from pathlib import Path
from typing import NamedTuple

from dpaudit import _validate

# Files and folders that their owner alone can read, and files that appear whole or not at all.


def folder(path: Path) -> None:
    """Makes a folder of mode 0700, and those above it that are missing; an existing one keeps its mode.

    Raises:
      OSError: where there is none and none can be made.
    """
    for missing in reversed([each for each in (path, *path.parents) if not each.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)
    path.mkdir(exist_ok=True)  # refuses a file of this name


def create(path: Path) -> int:
    """A descriptor to write to a file of mode 0600 that is new: what was there under this name is gone."""
    path.unlink(missing_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)


def add(path: Path, data: bytes) -> None:
    """Adds to the end of a file, made if need be; on disk when this returns."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_DSYNC, 0o600)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)


def put(path: Path, data: bytes) -> None:
    """Writes a file that is there whole, and on disk when this returns, or not at all."""
    new = path.with_name(path.name + ".new")
    with open(create(new), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.rename(path)
    synchronise(path.parent)


def synchronise(path: Path) -> None:
    """Waits until the disk has a folder's names as they are now."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


IDENTITY_BYTES = 16
NONE = -1  # in place of a number
_LINE = re.compile(rf"(spent) (\d+) ([0-9a-f]{{{2 * IDENTITY_BYTES}}})|(burnt|seen) (\d+)")


class Past(NamedTuple):
    """What a server tells the other of a store when they meet.

    Attributes:
      spent: number of the last block that it has spent, or :data:`NONE`.
      identity: of that block, which only two servers know that once had it; empty for none.
      seen: number of the last block that it has seen the other spend, or :data:`NONE`.
    """

    spent: int
    identity: bytes
    seen: int


class Ledger:
    """One store's log; used by one process at a time.

    Args:
      path: of the file, in a folder that is there.

    Attributes:
      past: as it is now.
      floor: all numbers up to this one are used up, spent or burnt; :data:`NONE` for no number.

    Raises:
      InputError: a file that is no such log.
    """

    def __init__(self, path: Path) -> None:
        self.past, self.floor = Past(NONE, b"", NONE), NONE
        if path.exists():
            *lines, _ = path.read_bytes().split(b"\n")  # what follows the last line's end was never whole
            for line in lines:
                self._read(line.decode("ascii", "replace"), path)
        put(path, self._whole())
        self._path = path

    def spend(self, number: int, identity: bytes) -> None:
        """Notes that a block is spent; on disk when this returns."""
        self.past = self.past._replace(spent=number, identity=identity)
        self.floor = max(self.floor, number)
        self._add(f"spent {number} {identity.hex()}")

    def burn(self, number: int) -> None:
        """Notes that no number up to this one will be used; on disk when this returns."""
        self.floor = max(self.floor, number)
        self._add(f"burnt {number}")

    def see(self, number: int) -> None:
        """Notes that the other server has spent this block; on disk when this returns."""
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
        """The log in as few lines as say the same."""
        lines = []
        if self.past.spent != NONE:
            lines.append(f"spent {self.past.spent} {self.past.identity.hex()}\n")
        if self.floor != self.past.spent:
            lines.append(f"burnt {self.floor}\n")
        if self.past.seen != NONE:
            lines.append(f"seen {self.past.seen}\n")
        return "".join(lines).encode()
