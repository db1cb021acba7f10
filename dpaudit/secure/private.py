"""Files and folders that their owner alone can read, and files that appear whole or not at all."""

import os
from pathlib import Path


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
