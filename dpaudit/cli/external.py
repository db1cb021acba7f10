"""Runs an external program that writes releases as lines of JSON."""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from dpaudit import _validate

SHOWN = 120  # characters of what a program that fails says on standard error


def releases(command: str, world: int, n: int, *, seconds: float, kept: Path | None = None) -> list[Any]:
    """Runs the program for one world, without a shell, and reads ``n`` releases.

    Args:
      command: the program and its arguments, in which {world} and {n} are replaced.
      world: 0 or 1.
      n: lines to read; a program that writes more is ended.
      seconds: after which the program is killed.
      kept: a file that receives the lines as they are read, and keeps them if the program fails; None for none.

    Returns:
      What the lines hold: a number, a list, or any other JSON for each.

    Raises:
      InputError: a program that cannot be run, fails, takes too long, writes fewer lines or something else than JSON.
    """
    found: list[Any] = []
    with tempfile.TemporaryFile() as errors, contextlib.ExitStack() as stack:
        file = None if kept is None else stack.enter_context(_replaced(kept))

        def failed(wanted: str, got: str) -> _validate.InputError:
            program.close()
            line = f"--command: expected {wanted} in world {world}, got {got}{_said(errors)}"
            return _validate.InputError(line if kept is None else f"{line}; kept in {kept}: {len(found):,}")

        program = stack.enter_context(contextlib.closing(_Program(_words(command, world, n), seconds, errors)))
        for line in program.stdout:
            if not line.strip():
                continue
            if len(found) == n:
                return found
            try:
                value = json.loads(line)
            except ValueError:
                text = _validate.one_line(line.decode("utf-8", "replace"), 60)
                raise failed("a release in JSON on every line", f"{text!r} in line {len(found) + 1}") from None
            found.append(value)
            if file is not None:
                file.write(line.strip() + b"\n")
        status = program.wait()
        if program.late:
            raise failed(f"{n:,} releases within {seconds:g} seconds", f"{len(found):,}")
        if status:
            raise failed(
                "a program that ends with status 0", f"status {status} after {len(found):,} of {n:,} releases"
            )
        if len(found) < n:
            raise failed(f"{n:,} lines", f"{len(found):,}")
    return found


@contextlib.contextmanager
def _replaced(path: Path) -> Iterator[IO[bytes]]:
    """Writes beside the old file, which the program may be reading, and replaces it in the end."""
    beside = path.with_name(path.name + ".partial")
    try:
        with open(beside, "wb") as file:
            yield file
    finally:
        os.replace(beside, path)


class _Program:
    """A program in a session of its own, so that it is killed with all that it has started."""

    def __init__(self, words: list[str], seconds: float, errors: IO[bytes]) -> None:
        self.late = False
        try:
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
            )
        except OSError as error:
            got = f"{error.strerror}: {words[0]}"
            raise _validate.expected("--command", "a program that can be run", got) from None
        assert self._process.stdout is not None
        self.stdout = self._process.stdout
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True
        self._timer.start()

    def _end(self) -> None:
        self.late = self._process.poll() is None
        self._kill()

    def _kill(self) -> None:
        if self._process.poll() is not None:
            return
        if sys.platform == "win32":
            self._process.kill()
        else:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Waits for its end, which the time limit brings at the latest, and returns its status."""
        return self._process.wait()

    def close(self) -> None:
        """Ends it."""
        self._timer.cancel()
        self._kill()
        self._process.wait()
        self.stdout.close()


def _words(command: str, world: int, n: int) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise _validate.expected("--command", "a program and its arguments", f"{error}: {command}") from None
    if "{world}" not in command:
        raise _validate.expected("--command", "a program with {world} among its arguments, and {n}", command)
    return [word.replace("{world}", str(world)).replace("{n}", str(n)) for word in words]


def _said(errors: IO[bytes]) -> str:
    """Returns the end of what a program wrote on standard error, on one line."""
    errors.seek(0)
    text = " ".join(errors.read().decode("utf-8", "replace").split())
    if not text:
        return ""
    return f" (it says: {text if len(text) <= SHOWN else '...' + text[-SHOWN:]})"
