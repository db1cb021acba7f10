"""Serves a server's metrics to Prometheus on this machine, and formats the lines of its log."""

import datetime
import json
import re
import resource
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from dpaudit import _validate
from dpaudit.secure.service import certificates

Figures = Mapping[str, float]

LONGEST = 80  # characters of a name in a line
_IDLE = 10.0  # seconds for a client of the metrics to send or receive more, as it occupies a thread


class Metrics:
    """Answers ``GET /metrics`` until it is closed.

    Args:
      address: host:port, loopback only, as the figures are not public; the system chooses a port for 0.
      figures: called at each request; returns the figures by name.

    Attributes:
      port: the port on which it listens.

    Raises:
      InputError: the address is beyond this machine, or cannot be used.
    """

    def __init__(self, address: str, figures: Callable[[], Figures]) -> None:
        host, port = certificates.checked_address("metrics", address)
        if not certificates.is_loopback(host):
            raise _validate.expected("metrics", "a loopback address such as 127.0.0.1:9100", address)

        class Handler(BaseHTTPRequestHandler):
            timeout = _IDLE

            def do_GET(self) -> None:
                if self.path != "/metrics":
                    self.send_error(404)
                    return
                lines = [f"dpaudit_secure_{name} {value:.17g}\n" for name, value in figures().items()]
                data = "".join(lines).encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                """Does not log requests."""

        class Serving(ThreadingHTTPServer):
            address_family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET

            def handle_error(self, request: Any, client_address: Any) -> None:
                """Does not tell of clients that leave early or say nothing."""
                if not isinstance(sys.exception(), OSError):
                    super().handle_error(request, client_address)

        try:
            self._server = Serving((host.strip("[]"), port), Handler)
        except OSError as fault:
            raise _validate.expected(
                "metrics", "a free port of this machine", f"{address} ({fault.strerror})"
            ) from None
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()

    def close(self) -> None:
        """Stops serving."""
        self._server.shutdown()
        self._server.server_close()


def used() -> Figures:
    """Returns the processor seconds and the peak of memory of this process."""
    own, status = resource.getrusage(resource.RUSAGE_SELF), Path("/proc/self/status")
    peak = own.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    if status.exists():  # where ru_maxrss counts the process that started this one
        peak = next((1024 * int(row.split()[1]) for row in status.read_text().splitlines() if "VmHWM" in row), peak)
    return {"cpu_seconds": own.ru_utime + own.ru_stime, "peak_memory_bytes": peak}


def printable(text: str) -> str:
    """Escapes every character that is not printable, line ends included, as Python does."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text)


def short(text: str) -> str:
    """Returns the beginning of a text, with unprintable characters escaped."""
    text = printable(text[: LONGEST + 1])
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def as_json(server: str, line: str) -> str:
    """Converts a line of a server's log to a JSON object, with the step that the line begins with, if any."""
    step = re.match(r"step (\d+): ", line)
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    entry = {"time": now, "server": server, "step": int(step[1]) if step else None}
    return json.dumps(entry | {"message": line[step.end() :] if step else line})
