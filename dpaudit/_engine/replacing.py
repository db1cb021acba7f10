"""Replaces a file by a whole one, whatever happens meanwhile."""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Opens a file beside ``path`` that takes its place at the end, and is removed if the block raises.

    A kill at any moment leaves the old file or the new one. The file beside has a name of its own, so that two
    processes may replace the same file: what each of them writes is whole, and the last one stays. Of a symbolic link
    it is the file that is replaced.
    """
    path = Path(os.path.realpath(path))
    beside = path.with_name(f"{path.name}.{secrets.token_hex(4)}.partial")
    try:
        with open(beside, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
