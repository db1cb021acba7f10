"""What a server keeps on disk: the terms, what each completed step opened, and how many openings were begun.

A result is on disk, synchronised, under its name before anybody outside is told, and its name appears only when it is
whole: a server that is killed finds all that it has told. An opening is noted before anything is said from which a sum
can be read. If it comes to no result, the values may be known nevertheless, and the step's next opening is a release
more: whoever accounts for privacy counts :attr:`Records.releases`, not the completed steps.
"""

import fcntl
import json
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dpaudit import check
from dpaudit.secure import agreement
from dpaudit.secure.agreement import Terms
from dpaudit.secure.reveal import KEPT


class Opened(NamedTuple):
    """What one step opened.

    Attributes:
      values: int64 [d], units.
      owners: whose shares are in it.
      releases: openings begun until then, this one included.
    """

    values: np.ndarray
    owners: tuple[str, ...]
    releases: int


class Records:
    """One server's state directory, this process's alone until it ends.

    Args:
      folder: made if need be.
      role: "h1" or "h2".
      terms: of the training; those of an earlier run must be the same.

    Attributes:
      completed: the number of the last completed step, from 1; 0 for none.
      releases: openings begun.
      ahead: a folder for blocks that are made ahead.

    Raises:
      InputError: a directory that another process uses, that is another role's or training's, or not to be had.
    """

    def __init__(self, folder: str | Path, role: str, terms: Terms) -> None:
        self._folder = Path(folder)
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = (self._folder / "lock").open("w")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise check.expected("state", "a directory that no other server uses", self._folder) from None
        except OSError as fault:
            raise check.expected("state", "a directory to write to", f"{self._folder} ({fault.strerror})") from None
        try:
            self._claim(role, terms)
        except check.InputError:
            self._lock.close()
            raise
        self.ahead = self._folder / "ahead"
        self.completed = max((int(path.stem) for path in self._folder.glob("*.step")), default=0)
        self._begun = os.open(self._folder / "begun", os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_DSYNC, 0o600)
        self.releases = len((self._folder / "begun").read_bytes().split())  # one that broke off counts too

    def begin(self, step: int) -> None:
        """Notes that the opening of a step begins; on disk when this returns."""
        os.write(self._begun, b"%d\n" % step)
        self.releases += 1

    def complete(self, step: int, opened: Opened) -> None:
        """Keeps what the step after the last completed one opened; on disk when this returns."""
        if step != self.completed + 1:
            raise check.expected("step", f"{self.completed + 1}, the next one", step)
        head = agreement.stated({"owners": opened.owners, "releases": opened.releases}).encode()
        self._put(_name(step), head + b"\n" + opened.values.astype(KEPT).tobytes())
        self.completed = step

    def opened(self, step: int) -> Opened:
        """What a completed step opened."""
        head, _, values = (self._folder / _name(step)).read_bytes().partition(b"\n")
        said = agreement.understood(head)
        return Opened(np.frombuffer(values, KEPT).astype(np.int64), tuple(said["owners"]), said["releases"])

    def close(self) -> None:
        """Lets another process have the directory."""
        os.close(self._begun)
        self._lock.close()

    def _claim(self, role: str, terms: Terms) -> None:
        """Makes the directory this role's and training's, if it is nobody's yet."""
        kept = self._folder / "terms.json"
        if not kept.exists():
            self._put(kept.name, json.dumps({"role": role, **terms._asdict()}, indent=1).encode())
        earlier = agreement.understood(kept.read_bytes())
        if earlier.pop("role") != role:
            raise check.expected("state", f"a directory of {role}", self._folder)
        agreement.same(terms, earlier)

    def _put(self, name: str, data: bytes) -> None:
        """Writes a file that is there whole or not at all."""
        new = self._folder / f"{name}.new"
        with new.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        new.rename(self._folder / name)
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _name(step: int) -> str:
    return f"{step:08d}.step"
