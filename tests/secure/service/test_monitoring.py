"""Tests a server's metrics over HTTP, and its log as JSON objects."""

import datetime
import json
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


def _still(ends: list[Metrics]) -> bool:
    """Tells whether the servers have prepared the next step, so that what one sent the other has received."""
    first, second = (told(end.port) for end in ends)
    sent, received = ([each[f"peer_bytes_{side}"] for each in (first, second)] for side in ("sent", "received"))
    return sent == received[::-1] and sent[0] > 1_000


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
        until(lambda: _still(ends))
        first, second = (told(end.port) for end in ends)
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


def test_a_line_of_the_log_is_an_object_with_its_step() -> None:
    told = json.loads(monitoring.as_json("h2", "step 12: complete, of 3 owners"))
    assert datetime.datetime.fromisoformat(told.pop("time")).tzinfo is not None
    assert told == {"server": "h2", "step": 12, "message": "complete, of 3 owners"}
    other = json.loads(monitoring.as_json("h1", "bob: a share of step 1 is refused"))
    assert (other["step"], other["message"]) == (None, "bob: a share of step 1 is refused")
