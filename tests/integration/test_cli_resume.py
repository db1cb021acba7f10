"""``dpaudit audit --checkpoint FILE --resume``: killed at random moments, it ends with the row of a run left alone."""

import itertools
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpaudit._engine import hosts
from dpaudit.audits import ldp_client
from tests.integration.test_cli import run
from tests.integration.test_cli_audit import file  # noqa: F401  the fixture
from tests.processes import environment

SLOW = """
import jax, jax.numpy as jnp
import dpaudit

def slow(key, x):  # as large as this, a call to the device is few trials
    return x + jax.random.normal(key)

def pair(size):
    return dpaudit.Case(slow, jnp.zeros(size), jnp.full(size, 0.5), dpaudit.Claim(3.0))

wide, less_wide = pair(120_000), pair(60_000)
"""
UNTIL = "--until-violation"
TRIALS = 40_000  # a second or more of playing


def start(folder: Path, case: str, *more: str, devices: int = 1) -> subprocess.Popen[str]:
    (folder / "slow.py").write_text(SLOW)
    command = [sys.executable, "-m", "dpaudit.cli.main", "audit", f"slow.py:{case}", "--trials", str(TRIALS), "--json"]
    return subprocess.Popen(
        [*command, *more],
        env=environment(devices),
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def row_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=300)
    assert process.returncode in (0, 1, 3), err
    (row,) = json.loads(out)
    return {name: value for name, value in row.items() if name != "seconds"}


def done(kept: Path) -> int:
    """Trials of each world in a checkpoint; a file that a kill left torn would not load."""
    if not kept.exists():
        return 0
    with np.load(kept) as saved:
        return int(saved["numbers"][0])


def killed_and_resumed(
    folder: Path, kills: int, case: str, *more: str, devices: tuple[int, ...] = (1,), seed: int = 0
):
    """(the row at the end, how many trials the checkpoint held after each kill)."""
    kept, wait, held = folder / "audit.npz", random.Random(seed), []
    options = (case, "--checkpoint", kept.name, "--resume", *more)
    for attempt in range(kills):
        before, process = done(kept), start(folder, *options, devices=devices[attempt % len(devices)])
        while done(kept) <= before and process.poll() is None:  # until it plays
            time.sleep(0.005)
        time.sleep(wait.uniform(0, 0.25))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL, "finished before it could be killed"
        held.append(done(kept))
    row = row_of(start(folder, *options))
    assert not kept.exists()  # of a finished audit, nothing is left to resume
    return row, held


@pytest.mark.slow
@pytest.mark.parametrize("command", [("wide",), ("wide", "--distinguisher", "cosine"), ("less_wide", UNTIL)])
@pytest.mark.parametrize("devices", [(1,), (8, 1)])
def test_thirty_kills_change_nothing(tmp_path, command, devices):
    whole = row_of(start(tmp_path, *command))
    row, held = killed_and_resumed(tmp_path, 5, *command, devices=devices, seed=len(command) + devices[0])
    assert row == whole
    assert len(held) == 5
    assert held[0] > 0
    assert all(a < b for a, b in itertools.pairwise(held))  # each run went on from the one before
    assert held[-1] < TRIALS // 2


def test_a_checkpoint_that_is_there_is_kept_unless_it_is_resumed(monkeypatch, capsys, tmp_path, file):  # noqa: F811
    kept = tmp_path / "kept.npz"
    command = ("audit", f"{file}:noisy_sum", "--trials", "8000", "--json")
    assert run(monkeypatch, *command) == 0
    (whole,) = json.loads(capsys.readouterr().out)
    assert run(monkeypatch, *command, "--checkpoint", str(kept), "--resume") == 0
    printed = capsys.readouterr()
    assert printed.err == "dpaudit: kept.npz: no checkpoint yet, starting afresh\n"
    (row,) = json.loads(printed.out)
    assert row | {"seconds": 0} == whole | {"seconds": 0}
    assert not kept.exists()
    kept.write_bytes(b"of value")
    assert run(monkeypatch, *command, "--checkpoint", str(kept)) == 2
    assert capsys.readouterr().err.startswith(
        "dpaudit: --checkpoint: expected a new file, or --resume to continue from "
    )
    assert run(monkeypatch, *command, "--checkpoint", str(kept), "--resume") == 2
    assert capsys.readouterr().err.startswith("dpaudit: checkpoint: expected a whole checkpoint, got kept.npz: ")
    assert kept.read_bytes() == b"of value"
    assert run(monkeypatch, *command, "--resume") == 2
    assert capsys.readouterr().err == (
        "dpaudit: --resume: expected a file to resume from, named by --checkpoint, got none\n"
    )


def test_an_interrupted_table_goes_on_by_the_same_line_in_the_directory_that_it_began_to_fill(
    monkeypatch, capsys, tmp_path
):
    """As the page on SLURM says; directories of anybody else are refused as before."""
    monkeypatch.chdir(tmp_path)
    whole, stops = ldp_client.audit_client, [True]

    def audit_client(*given: Any, **how: Any) -> Any:
        parts = whole(*given, **how)
        yield next(parts)
        if stops.pop():
            raise KeyboardInterrupt
        yield from parts

    monkeypatch.setattr(ldp_client, "audit_client", audit_client)
    monkeypatch.setattr(hosts, "leave", sys.exit)  # and not the whole process at once
    fast = "ldp --engine plane --pretraining-steps 0 --craft dummy collusion --epsilon 1 --trials 200 --repeats 2"
    line = (*fast.split(), *["--checkpoint", "kept", "--resume", "--out", "results"])
    assert run(monkeypatch, *line) == 130
    assert "1 finished rows are in results/results.json; --resume continues from kept" in capsys.readouterr().err
    assert len(json.loads(Path("results/results.json").read_text())) == 1
    stops.append(False)
    for other in ("other", "results/../other"):
        Path("other").mkdir(exist_ok=True)
        Path("other/mine").touch()
        assert run(monkeypatch, *line[:-1], other) == 2
        assert "--out: expected a new or empty directory, or --force" in capsys.readouterr().err
    assert run(monkeypatch, *fast.split(), "--out", "results") == 2  # another run
    assert run(monkeypatch, *line) == 0
    rows = json.loads(Path("results/results.json").read_text())
    assert [row["craft"] for row in rows] == ["dummy", "collusion"]
    assert "Report: results/report.html" in capsys.readouterr().err
