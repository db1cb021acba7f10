"""Tests a server's metrics over HTTP, and its log as JSON objects."""

import datetime
import json
import socket
import struct
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from dpaudit import _validate
from dpaudit.secure.protocol.agreement import Budget
from dpaudit.secure.service import monitoring
from dpaudit.secure.service.monitoring import Metrics
from tests.secure.servers import OWNERS, integers, terms
from tests.secure.serving import owners, pair, until


def told(port: int, path: str = "/metrics") -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        text = answer.read().decode()
    pairs = (line.split(" ") for line in text.splitlines())
    return {name.removeprefix("dpaudit_secure_"): float(value) for name, value in pairs}


def _still(ends: list[Metrics]) -> list[dict[str, float]]:
    """Returns the figures of a moment at which what one server has sent the other has received; none at others."""
    both = [told(end.port) for end in ends]
    sent, received = ([each[f"peer_bytes_{side}"] for each in both] for side in ("sent", "received"))
    return both if sent == received[::-1] and sent[0] > 1_000 else []


def test_figures_follow_a_training(tmp_path: Path) -> None:
    mine = terms(noise_multiplier=2.0, ring_bits=14, budget=(12.0, 1e-5))
    with pair(tmp_path, mine, lambda line: None) as both, owners(both, mine, *OWNERS) as all_of:
        ends = [Metrics("127.0.0.1:0", server.figures) for server in both]
        until(lambda: all(told(end.port)["session_open"] for end in ends))
        before = told(ends[0].port)
        assert before["owners_waiting"] == before["steps_completed"] == before["epsilon_spent"] == 0
        assert (before["owners"], before["openings_allowed"], before["epsilon_budget"]) == (3, mine.openings, 12)
        all_of[0].submit(1, integers(1)["alice"] // 1000)
        assert [told(end.port)["owners_waiting"] for end in ends] == [1, 1]
        for one in all_of[1:]:
            one.submit(1, integers(1)[one._name] // 1000)
        all_of[0].result(1)
        until(lambda: all(told(end.port)["steps_completed"] == 1 for end in ends))
        still: list[dict[str, float]] = []
        until(lambda: still.extend(_still(ends)) or still)
        first, second = still
        for each in (first, second):
            assert (each["openings_begun"], each["owners_waiting"], each["sessions"]) == (1, 0, 1)
            assert each["epsilon_spent"] == pytest.approx(Budget(mine).epsilon(1))
        assert first["peer_bytes_sent"] == second["peer_bytes_received"] > 1_000 * mine.dimension
        assert second["peer_bytes_sent"] == first["peer_bytes_received"] > before["peer_bytes_received"]
        with pytest.raises(urllib.error.HTTPError, match="404"):
            told(ends[0].port, "/")
        for end in ends:
            end.close()


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("0.0.0.0:0", r"^metrics: expected a loopback address such as 127\.0\.0\.1:9100, got 0\.0\.0\.0:0$"),
        ("127.0.0.1", r"^metrics: expected HOST:PORT, got 127\.0\.0\.1$"),
    ],
)
def test_figures_stay_on_this_machine(address: str, message: str) -> None:
    with pytest.raises(_validate.InputError, match=message):
        Metrics(address, dict)
    one = Metrics("127.0.0.1:0", dict)
    with pytest.raises(
        _validate.InputError, match=r"^metrics: expected a free port of this machine, got 127\.0\.0\.1:"
    ):
        Metrics(f"127.0.0.1:{one.port}", dict)
    one.close()


def _connected(end: Metrics) -> socket.socket:
    return socket.create_connection(("127.0.0.1", end.port), timeout=20)


def test_a_client_that_leaves_early_is_not_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    """It is gone when its answer is written; a fault of ours is told as before."""
    asked, gone, faulty = threading.Event(), threading.Event(), []

    def figures() -> dict[str, float]:
        asked.set()
        assert gone.wait(20)
        return {"steps": 1 / (not faulty)}

    before, end = threading.active_count(), Metrics("127.0.0.1:0", figures)
    with _connected(end) as client:
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert asked.wait(20)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # leaves by a reset
    gone.set()
    until(lambda: threading.active_count() == before + 1)
    assert capsys.readouterr().err == ""
    faulty.append(True)
    with pytest.raises(ConnectionError):
        told(end.port)
    until(lambda: threading.active_count() == before + 1)
    assert "ZeroDivisionError" in capsys.readouterr().err
    end.close()


def test_a_client_that_says_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitoring, "_IDLE", 0.2)
    end = Metrics("127.0.0.1:0", lambda: {"steps": 1.0})
    with _connected(end) as silent:
        assert silent.recv(1) == b""
    assert told(end.port) == {"steps": 1.0}
    end.close()


def test_figures_are_served_on_the_other_loopback_address() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    end = Metrics("[::1]:0", lambda: {"steps": 1.0})
    with urllib.request.urlopen(f"http://[::1]:{end.port}/metrics", timeout=10) as answer:
        assert answer.read() == b"dpaudit_secure_steps 1\n"
    end.close()


def test_a_line_of_the_log_is_an_object_with_its_step() -> None:
    told = json.loads(monitoring.as_json("h2", "step 12: complete, of 3 owners"))
    assert datetime.datetime.fromisoformat(told.pop("time")).tzinfo is not None
    assert told == {"server": "h2", "step": 12, "message": "complete, of 3 owners"}
    other = json.loads(monitoring.as_json("h1", "bob: a share of step 1 is refused"))
    assert (other["step"], other["message"]) == (None, "bob: a share of step 1 is refused")
