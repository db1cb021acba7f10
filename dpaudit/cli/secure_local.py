"""Runs both servers of a secure training as processes of this machine, with keys of their own."""

import contextlib
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dpaudit import _validate
from dpaudit.cli.secure_terms import Servers, TermsOptions
from dpaudit.secure.protocol import storage
from dpaudit.secure.protocol.agreement import SERVERS, Terms
from dpaudit.secure.service import certificates

if TYPE_CHECKING:
    from subprocess import Popen

_STOPS = 10.0  # seconds for a server to end before it is killed


class LocalServers(Servers):
    """The two server processes.

    Args:
      folder: their logs lie there, h1.log and h2.log.
      processes: of H1 and H2, their first two lines of output not yet read.
    """

    def __init__(self, folder: Path, processes: "dict[str, Popen[str]]") -> None:
        self._folder, self._processes = folder, processes
        self._metrics: dict[str, int] = {}
        self.addresses = ("", "")

    def listens(self, name: str) -> int:
        """Waits until a server listens; returns its port."""
        process = self._processes[name]
        assert process.stdout is not None
        port, metrics = (process.stdout.readline().rpartition(":")[2].rpartition(" ")[2].strip() for _ in range(2))
        if not port.isdecimal() or not metrics.isdecimal():
            process.wait()
            self.check()
        self._metrics[name] = int(metrics)
        return int(port)

    def check(self) -> None:
        """Raises InputError where one of them has ended, with the last line of its log."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                lines = (self._folder / f"{name}.log").read_text("utf-8", "replace").split("\n")
                said = next((line for line in reversed(lines) if line.strip()), "nothing")
                raise _validate.expected(name, "a server that goes on", f"status {process.returncode} ({said})")

    def figures(self) -> dict[str, float]:
        """Returns the bytes between them, and the processor time and peak of memory of each; {} if one has ended."""
        found: dict[str, float] = {}
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # whatever proxy the environment names
        for name, port in self._metrics.items():
            try:
                with direct.open(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                    lines = dict(line.split() for line in answer.read().decode().splitlines())
            except OSError:  # it ended after the last step, whose sum the owners have
                return {}
            found[f"{name}_bytes_sent"] = float(lines["dpaudit_secure_peer_bytes_sent"])
            found[f"{name}_cpu_seconds"] = float(lines["dpaudit_secure_cpu_seconds"])
            found[f"{name}_peak_gib"] = float(lines["dpaudit_secure_peak_memory_bytes"]) / 2**30
        return found


@contextlib.contextmanager
def started(options: TermsOptions, terms: Terms, folder: Path, *, patience: float) -> Iterator[LocalServers]:
    """Starts both servers, with state in ``folder``; ends them afterwards.

    Args:
      options: of the training.
      terms: what they say.
      folder: of states, certificates and logs.
      patience: seconds that a step may take.

    Raises:
      InputError: a server refuses its options or its state.
    """
    storage.folder(folder)
    certificates.make(folder / "keys", terms.owners)
    with contextlib.ExitStack() as stack:
        processes: dict[str, Popen[str]] = {}
        servers = LocalServers(folder, processes)

        def start(name: str, *more: str) -> str:
            command = [sys.executable, "-m", "dpaudit.cli.main", "secure", "server", "--attached"]
            command += ["--role", name, *more]
            command += ["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--state", str(folder / name)]
            command += ["--keys", str(folder / "keys" / name), "--deadline", str(patience)]
            command += ["--wait", str(patience if options.least_owners is None else 5.0)]
            log = stack.enter_context(open(folder / f"{name}.log", "a", encoding="utf-8"))
            words = [*command, *options.words(terms.dimension, terms.examples)]
            pipe = subprocess.PIPE
            processes[name] = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=log, text=True)
            stack.callback(_ended, processes[name])
            return f"127.0.0.1:{servers.listens(name)}"

        second = start("h2")
        servers.addresses = start("h1", "--peer", second), second
        assert tuple(sorted(processes)) == SERVERS
        yield servers


def _ended(process: "Popen[str]") -> None:
    """Ends a server, by force if it does not end by itself."""
    process.terminate()
    until = time.monotonic() + _STOPS
    while process.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream:
            stream.close()
