"""SIGTERM in the middle: status 143, one line, and a resumed run ends as one that was left alone, bit for bit."""

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration import test_cli_resume as slow
from tests.integration.test_cli import run
from tests.integration.together import command, ended, free_address, ours, start

TRIALS = 4_000  # four calls to two devices: one plays 512 pairs, and the family reads all their 120 million numbers
AUDIT = f"audit slow.py:wide --trials {TRIALS} --checkpoint audit.npz --resume --json"
LDP = "ldp --craft dummy watermark --epsilon 1 --trials 15000 --repeats 2 --json --checkpoint kept --resume"
TRAIN = "train --steps 1000 --batch-size 64 --canaries 100 --json --checkpoint kept --resume"


def terminated(
    there: Callable[[], bool], *processes: subprocess.Popen[str], seconds: float = 60
) -> list[tuple[int, str, str]]:
    """How the processes end by a SIGTERM that is sent once ``there()``."""
    while not there() and all(process.poll() is None for process in processes):
        time.sleep(0.01)
    for process in processes:
        process.send_signal(signal.SIGTERM)
    return ended(*processes, seconds=seconds)


def finished(monkeypatch: pytest.MonkeyPatch, capsys: Any, line: str) -> list[dict[str, Any]]:
    """The rows of a command that nobody interrupts, but for the time it took."""
    assert run(monkeypatch, *line.split()) in (0, 1, 3)
    rows = json.loads(capsys.readouterr().out)
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def alone(line: str) -> str:
    """The same command without a checkpoint."""
    return line.replace("--checkpoint kept --resume", "").replace("--checkpoint audit.npz --resume", "")


def test_two_processes_that_audit(monkeypatch, capsys, tmp_path):
    """Neither waits for the other for ever, and one process goes on from what both have played."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slow.py").write_text(slow.SLOW)
    address = free_address()
    pair = [command(AUDIT, folder=tmp_path, variables=ours(address, rank)) for rank in range(2)]
    first, second = terminated((tmp_path / "audit.npz").exists, *pair)
    assert first == (143, "", "dpaudit: audit.npz: no checkpoint yet, starting afresh\n" + interrupted("audit.npz"))
    assert second == (143, "", "")
    assert 0 < slow.done(tmp_path / "audit.npz") < TRIALS // 2
    assert finished(monkeypatch, capsys, AUDIT) == finished(monkeypatch, capsys, alone(AUDIT))


def interrupted(kept: str, between: str = "") -> str:
    return f"dpaudit: interrupted{between}; --resume continues from {kept}\n"


@pytest.mark.slow
def test_a_test_of_ldp_sgd(monkeypatch, capsys, tmp_path):
    """Of what was finished, pairs and trials are read, not played again; other settings are refused."""
    monkeypatch.chdir(tmp_path)
    kept = tmp_path / "kept" / "digits"
    process = command(f"{LDP} --out out", folder=tmp_path)
    ((status, _, said),) = terminated((kept / "watermark-pairs.npz").exists, process)
    assert status == 143, said
    assert said.endswith(interrupted("kept", "; 1 finished rows are in out/results.json"))
    played = {file.name: file.stat().st_mtime_ns for file in kept.iterdir()}
    assert {"models.npz", "dummy-pairs.npz", "dummy-trials.npz", "watermark-pairs.npz"} <= played.keys()
    rows = finished(monkeypatch, capsys, LDP)
    assert [row["craft"] for row in rows] == ["dummy", "watermark"]
    assert rows == finished(monkeypatch, capsys, alone(LDP))
    assert (kept / "dummy-trials.npz").stat().st_mtime_ns == played["dummy-trials.npz"]
    assert run(monkeypatch, *LDP.split(), "--seed", "1") == 2
    assert "checkpoint: expected one of this audit, got models.npz: made by another key" in capsys.readouterr().err


@pytest.mark.slow
def test_a_training(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)

    def saved() -> bool:
        return any(step.name.isdecimal() for step in Path("kept").glob("*"))

    ((status, _, said),) = terminated(saved, command(TRAIN, folder=tmp_path))
    assert (status, said.splitlines(keepends=True)[-1]) == (143, interrupted("kept"))
    assert finished(monkeypatch, capsys, TRAIN) == finished(monkeypatch, capsys, alone(TRAIN))


WAITING = """
import sys, time
from jax.experimental import multihost_utils
from dpaudit._engine import hosts
from dpaudit.cli.command import perform

def run():
    print(flush=True)
    if hosts.first():
        multihost_utils.sync_global_devices("the other never comes")
    time.sleep(100)

perform("dpaudit", run)
"""


def test_a_process_that_waits_for_another_ends_as_well(tmp_path):
    """The main thread computes, and so hears of no signal."""
    address = free_address()
    pair = [start(WAITING, folder=tmp_path, variables=ours(address, rank)) for rank in range(2)]
    for process in pair:
        assert process.stdout is not None
        process.stdout.readline()
    time.sleep(1)
    began = time.monotonic()
    first, second = terminated(lambda: True, *pair)
    assert first == (143, "", "dpaudit: interrupted\n")
    assert second == (143, "", "")
    assert time.monotonic() - began < 15


def test_a_callback_is_interrupted_too(tmp_path):
    """What is raised in a function that JAX calls back is told by JAX as an error of its own."""
    (tmp_path / "host.py").write_text(
        "import time, numpy as np, dpaudit\n"
        "def slow(rng, x):\n    open('begun', 'w').close()\n    time.sleep(0.01)\n    return x + rng.normal()\n"
        "case = dpaudit.Case(dpaudit.on_host(slow), np.zeros(1), np.ones(1), dpaudit.Claim(1.0))\n"
    )
    process = command("audit host.py:case --trials 1000000", folder=tmp_path)
    ((status, _, said),) = terminated((tmp_path / "begun").exists, process)
    assert status == 143
    assert said.endswith("dpaudit: interrupted\n")
