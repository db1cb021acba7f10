"""Tests that what a training has learned is written, whatever its parameters are called and if a server ends first."""

import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from dpaudit.cli.command import Common
from dpaudit.cli.secure_local import LocalServers
from dpaudit.cli.secure_train import Follower, Train, _played, _save
from dpaudit.training.two_servers import Spending
from tests.training.test_two_servers import BATCH, OWNERS, TASK, terms


def a_last_step(*_: Any) -> str:
    """Takes long enough to be waited for, and less than passes between two looks at the servers."""
    time.sleep(0.1)
    return "done"


def test_servers_that_end_after_the_last_step_cost_nothing(tmp_path: Path) -> None:
    """The owners have the last sum when both servers end: there is no refusal, and no figures of the servers."""
    gone = subprocess.Popen([sys.executable, "-c", ""], text=True)
    gone.wait()
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        servers = LocalServers(tmp_path, {"h1": gone, "h2": gone})
        servers._metrics = {"h1": unused.getsockname()[1]}  # bound, so that nothing else listens there
        mine = terms("plain")
        options = Train(target="", owners=OWNERS, batch_size=BATCH, steps=1, mode="plain", common=Common())
        spending = Spending(mine, 1, 1e-5)
        players: list[Any] = [SimpleNamespace(run=a_last_step, close=lambda: None) for _ in OWNERS]
        assert _played(players, options, servers, Follower(TASK, options, mine, spending), spending) == "done"
        assert servers.figures() == {}


def test_parameters_of_any_name_are_written(tmp_path: Path) -> None:
    params = {"file": np.arange(3.0), "allow_pickle": np.ones((2, 2), np.float16), "a/b": {"c": np.zeros((), int)}}
    _save(tmp_path / "params.npz", params)
    with np.load(tmp_path / "params.npz") as kept:
        assert sorted(kept.files) == ["a/b.c", "allow_pickle", "file"]
        for name, leaf in (("file", params["file"]), ("allow_pickle", params["allow_pickle"])):
            assert kept[name].dtype == leaf.dtype
            np.testing.assert_array_equal(kept[name], leaf)
