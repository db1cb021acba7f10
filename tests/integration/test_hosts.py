"""Several processes, or one with many devices, as one machine: the commands print and write what one device does."""

import gc
import json
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest

from dpaudit import _validate
from dpaudit._engine import hosts
from tests.integration.test_cli import run
from tests.integration.together import COMMANDS, ended, free_address, ours, slurm, start

FILE = """
import jax, jax.numpy as jnp
import dpaudit

def noisy_sum(key, x):
    return jnp.sum(x) + jax.random.laplace(key)

mine = dpaudit.Case(noisy_sum, jnp.zeros(3), jnp.eye(3)[1], dpaudit.Claim(0.5))
"""
AUDIT = "audit mine.py:mine --trials 300000 --json"  # a violation: status 1
LDP = "ldp --craft dummy --epsilon 1 4 --trials 600 --repeats 2 --json"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("hosts")
    (made / "mine.py").write_text(FILE)
    return made


@pytest.fixture(scope="module")
def alone(folder: Path):
    """What one device finds: the rows of both commands."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert run(patch, *LDP.split(), "--out", "one-ldp") == 0
        assert run(patch, *AUDIT.split(), "--out", "one-audit") == 1
    return rows(folder / "one-ldp"), rows(folder / "one-audit")


def rows(out: Path) -> list[dict[str, Any]]:
    return untimed((out / "results.json").read_text())


def untimed(text: str) -> list[dict[str, Any]]:
    """Rows, but for the time they took."""
    return [{name: value for name, value in row.items() if name != "seconds"} for row in json.loads(text)]


def test_two_processes_speak_and_write_as_one(folder, alone):
    """They find each other as tasks of SLURM; what the first refuses at the end, both refuse."""
    address = free_address()
    lines = f"{LDP} --out two-ldp", f"{AUDIT} --out two-audit", f"{AUDIT} --out ."
    first, second = ended(
        *(start(COMMANDS, *lines, folder=folder, variables=slurm(address, rank)) for rank in range(2))
    )
    assert second == (2, "status 1\n", "")
    status, out, said = first
    of_ldp, audited, last = out.splitlines()
    assert (status, last) == (2, "status 1")
    assert [untimed(of_ldp), untimed(audited)] == [*alone]
    *reports, refused = said.splitlines()
    assert reports == ["Report: two-ldp/report.html", "Report: two-audit/report.html"]
    assert refused.startswith("dpaudit: --out: expected a new or empty directory, or --force to replace the results")
    assert (rows(folder / "two-ldp"), rows(folder / "two-audit")) == alone


@pytest.mark.slow
def test_eight_devices_write_what_one_does(folder, alone):
    lines = f"{LDP} --out eight-ldp", f"{AUDIT} --out eight-audit"
    ended(start(COMMANDS, *lines, folder=folder, devices=8))
    assert (rows(folder / "eight-ldp"), rows(folder / "eight-audit")) == alone


@pytest.mark.slow
def test_one_training_is_for_one_process(folder):
    address = free_address()
    pair = (start(COMMANDS, "train", folder=folder, variables=ours(address, rank)) for rank in range(2))
    said = "dpaudit: train: expected one process (one training runs on one device), got 2 of them\n"
    assert ended(*pair) == [(2, "", said), (2, "", "")]


@pytest.mark.slow
def test_what_the_server_trained_is_the_same_for_two_processes(folder):
    """A setting that depends on the server's model, which every process trains: all use the first one's."""
    line = "ldp --craft label_flip --epsilon 4 --trials 200 --repeats 2 --pretraining-steps 5 --json"
    address = free_address()
    first, second = ended(*(start(COMMANDS, line, folder=folder, variables=ours(address, rank)) for rank in range(2)))
    ((_, out, _),) = ended(start(COMMANDS, line, folder=folder))
    underpowered = "status 3\n"  # by so few trials
    assert second == (0, underpowered, "")
    assert first[1].endswith(underpowered)
    assert untimed(first[1].removesuffix(underpowered)) == untimed(out.removesuffix(underpowered))


@pytest.fixture
def dropped() -> Iterator[list[bool]]:
    """A SIGTERM while garbage is collected, where what is raised is raised nowhere."""
    asked: list[bool] = []

    def collected(*_: Any) -> None:
        if not asked:
            asked.append(True)
            signal.raise_signal(signal.SIGTERM)

    gc.callbacks.append(collected)
    yield asked
    gc.callbacks.remove(collected)


def command(seconds: float) -> None:
    with hosts.sigterm_interrupts(str):
        gc.collect()
        time.sleep(seconds)


def test_an_interruption_that_python_drops_comes_again(dropped):
    kept = sys.unraisablehook
    with pytest.raises(hosts.Terminated):
        command(30)
    assert dropped
    assert sys.unraisablehook is kept
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_an_interruption_that_python_drops_does_not_come_after_the_end(dropped):
    heard: list[int] = []
    handler = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        command(0)
        time.sleep(0.3)
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert dropped
    assert not heard


def test_who_cannot_join_says_so_in_one_line(tmp_path):
    """Nobody listens at the address."""
    code = "import dpaudit; dpaudit.join_hosts(seconds=2)"
    ((status, out, said),) = ended(start(code, folder=tmp_path, variables=ours(free_address(), 1)))
    assert (status, out) == (2, "")
    last = "dpaudit: processes: expected 2 to join within 2 s, got no answer from all"
    assert said.splitlines()[-1] == last


def test_variables_that_tell_nothing_are_refused(tmp_path):
    ((_, out, said),) = ended(start(COMMANDS, AUDIT, folder=tmp_path, variables={"JAX_NUM_PROCESSES": "2"}))
    assert out == "status 2\n"
    assert said.startswith("dpaudit: processes: expected 2 that can find each other, got ")
    assert said.count("\n") == 1


def test_a_number_of_processes_is_a_number(monkeypatch):
    monkeypatch.setenv("JAX_NUM_PROCESSES", "many")
    with pytest.raises(_validate.InputError, match=r"^JAX_NUM_PROCESSES: expected a whole number, got many$"):
        hosts.join_hosts()


@pytest.mark.parametrize("array", [True, False])
def test_a_single_task_joins_nobody(monkeypatch, array):
    """One task of a SLURM array, and of a job of one task; the script of a job of many is one process as well."""
    for name, value in {
        "SLURM_JOB_ID": "7",
        "SLURM_NTASKS": "1" if array else "4",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
    }.items():
        monkeypatch.setenv(name, value)
    if array:
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
        monkeypatch.setenv("SLURM_STEP_NODELIST", "node[1-4]")
        monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    hosts.join_hosts()
    assert not hosts.several()
    assert hosts.first()
    assert hosts.mesh("trials") is None
    assert hosts.once(lambda: [1]) == [1]
    assert jax.process_count() == 1
