"""Starts the parties of :mod:`tests.integration.week` again and again, on clocks that jump and a link that fails."""

import ctypes
import multiprocessing
import os
import socket
import subprocess
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from dpaudit.secure.protocol.agreement import SERVERS
from dpaudit.secure.service import certificates
from tests.integration import week_parties
from tests.integration.week_parties import OWNERS, Place

ROOT = Path(__file__).parents[2]
DAY = 86_400
STUCK = 120.0  # seconds without a step, after which the service is said to hang

# Answers of the wall clock, moved by the number of seconds in a file; for all that is loaded after it.
CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static long zero;
static volatile long *moved = &zero;

int clock_follow(const char *path) {
    int file = open(path, O_RDONLY);
    void *found = file < 0 ? MAP_FAILED : mmap(0, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
    if (found == MAP_FAILED) return -1;
    moved = found;
    return 0;
}

int clock_gettime(clockid_t which, struct timespec *out) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(which, out);
    if (which == CLOCK_REALTIME) out->tv_sec += *moved;
    return status;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    out->tv_sec = now.tv_sec, out->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return out ? (*out = now.tv_sec) : now.tv_sec;
}
"""


def preloaded(folder: Path) -> dict[str, str]:
    """Compiles the clock; returns the environment in which a process and its children use it."""
    source, library = folder / "clock.c", folder / "clock.so"
    source.write_text(CLOCK)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    return os.environ | {"LD_PRELOAD": str(library), "PYTHONPATH": paths, "GRPC_VERBOSITY": "NONE"}


class Link:
    """Carries bytes between a port and another one, and can cut them off, send them twice, or send old ones again."""

    def __init__(self, to: int) -> None:
        self._to, self._fault, self._first = to, "", b""
        self._sockets: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def cut(self) -> None:
        """Cuts off all connections."""
        for one in self._sockets:
            self._close(one)
        self._sockets = []

    def wrong(self, fault: str) -> None:
        """Makes one of the next pieces go wrong: "twice", or "old" for one from the past before it."""
        self._fault = fault

    def _serve(self) -> None:
        while True:
            near, _ = self._listening.accept()
            try:
                far = socket.create_connection(("127.0.0.1", self._to), 5)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            self._sockets = [*self._sockets[-40:], near, far]
            for ends in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=ends, daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while piece := source.recv(1 << 16):
                fault, old = self._fault, self._first
                if fault and len(piece) > 500:
                    self._fault = ""
                    piece = piece + piece if fault == "twice" else old + piece
                elif len(piece) > 500:
                    self._first = self._first or piece
                target.sendall(piece)
        except OSError:
            pass
        self._close(source)
        self._close(target)

    @staticmethod
    def _close(one: socket.socket) -> None:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()


class Service:
    """The parties, of which those that end are started again.

    Args:
      folder: an empty one, for everything.
      last: the last step.
    """

    def __init__(self, folder: Path, last: int) -> None:
        self.folder, self.last, self.generation = folder, last, 0
        self.said: dict[str, str] = defaultdict(str)
        self.deaths: Counter[str] = Counter()
        self.held: set[str] = set()  # not to be started now
        self._options: dict[str, tuple[str, ...]] = {}
        self._processes: dict[str, ForkServerProcess] = {}
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([week_parties.__name__])
        for name in (*SERVERS, *OWNERS):
            (folder / f"{name}.clock").write_bytes(bytes(8))
            self._read(name)
        self._read("reports")
        (folder / "own.clock").write_bytes(bytes(8))
        assert ctypes.CDLL(None).clock_follow(os.fsencode(folder / "own.clock")) == 0
        first, second = (self._free() for _ in SERVERS)
        self.link = Link(second)
        self.ports = first, second, self.link.port
        self.renew()

    def renew(self) -> None:
        """Makes certificates that are valid for a day, for processes to come."""
        self.generation += 1
        self.keys = self.folder / f"keys {self.generation}"
        certificates.make(self.keys, OWNERS, days=1)

    def days_pass(self, days: int) -> None:
        """Moves all clocks."""
        for name in (*SERVERS, *OWNERS, "own"):
            self.jump(name, self.moved() + days * DAY)

    def jump(self, name: str, seconds: int) -> None:
        """Moves a clock so far from the true time."""
        with open(self.folder / f"{name}.clock", "r+b", buffering=0) as file:
            file.write(seconds.to_bytes(8, "little", signed=True))

    def settle(self, name: str) -> None:
        """Sets a clock like all others."""
        self.jump(name, self.moved())

    def start(self, name: str, *more: str) -> None:
        """Starts a party."""
        place = Place(self.folder, self.keys, self.ports, self.last)
        target = week_parties.run_server if name in SERVERS else week_parties.run_owner
        arguments = (name, place, more) if name in SERVERS else (name, place)
        process = self._context.Process(target=target, args=arguments, daemon=True)
        process.start()
        self._processes[name] = process

    def kill(self, *names: str) -> None:
        """Kills parties at once; they stay down until :meth:`tend` starts them."""
        for name in names:
            self._processes[name].kill()
        for name in names:
            self._processes[name].join()

    def pid(self, name: str) -> int:
        """Returns the number of a party's process."""
        pid = self._processes[name].pid
        assert pid is not None
        return pid

    def alive(self, name: str) -> bool:
        """Tells whether a party runs."""
        return self._processes[name].is_alive()

    def tend(self) -> None:
        """Starts whoever has ended."""
        for name in (*SERVERS, *OWNERS):
            ended = name not in self._processes or not self.alive(name)
            done = name in OWNERS and name in self._processes and self._processes[name].exitcode == 0
            if ended and not done and name not in self.held:
                self.deaths[name] += name in self._processes
                self.start(name, *self._options.pop(name, ()))

    def steps(self) -> int:
        """Counts the steps that are completed at both servers."""
        return min(len(list((self.folder / name).glob("*.step"))) for name in SERVERS)

    def until(self, done: Callable[[], object], what: str, seconds: float = STUCK) -> None:
        """Tends the parties until something is so; AssertionError if it takes too long."""
        end = time.monotonic() + seconds
        while not done():
            said = "\n".join(f"{name}: {text[-400:]}" for name, text in self.said.items() if name != "reports")
            assert time.monotonic() < end, f"still not, after {seconds:g} s: {what}; {said}"
            self.tend()
            time.sleep(0.02)

    def with_option(self, name: str, option: str) -> None:
        """Starts a party with an option the next time."""
        self._options[name] = (option,)

    def moved(self) -> int:
        """Returns by how much all clocks are moved, in seconds."""
        return int.from_bytes((self.folder / "own.clock").read_bytes(), "little", signed=True)

    def _read(self, name: str) -> None:
        """Collects what is written into a pipe."""
        path = self.folder / f"{name}.pipe"
        os.mkfifo(path)
        pipe = os.open(path, os.O_RDWR)  # so that it does not end with its last writer

        def collect() -> None:
            while True:
                self.said[name] += os.read(pipe, 1 << 16).decode("utf-8", "replace")

        threading.Thread(target=collect, daemon=True).start()

    @staticmethod
    def _free() -> int:
        with socket.create_server(("127.0.0.1", 0)) as one:
            return int(one.getsockname()[1])
