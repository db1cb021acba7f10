"""``dpaudit secure train``: a user's model through two server processes; a kill changes no sum; the page."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpaudit import InputError
from dpaudit.cli import main, secure_train
from dpaudit.report import words

TASK = """
import jax.numpy as jnp, numpy as np, optax
from dpaudit.training.two_servers import Task

features = np.random.default_rng(0).standard_normal((24, 3)).astype(np.float32)
labels = (features[:, 0] > 0).astype(np.int32)


def logits(params, x):
    return x @ params["w"] + params["b"]


def loss(params, example):
    return optax.softmax_cross_entropy_with_integer_labels(logits(params, example[0]), example[1])


def records(owner):
    own = slice(0, 12) if owner == "anna" else slice(12, 24)
    return features[own], labels[own]


def measure(params):
    return {"accuracy": (logits(params, features).argmax(axis=1) == labels).mean()}


task = Task(loss, {"w": jnp.zeros((3, 2)), "b": jnp.zeros(2)}, records, optax.adam(0.1), measure)
task_by_name = task._replace(records={"anna": 1}.__getitem__)
"""
OPTIONS = ("--owners", "anna", "bert", "--batch-size", "4")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("task") / "mine.py"
    file.write_text(TASK)
    return f"{file}:task"


def started(target: str, *more: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "dpaudit.cli.main", "secure", "train", target, *OPTIONS, *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(target: str, *more: str) -> dict[str, Any]:
    process = started(target, *more, "--json")
    told, failed = process.communicate(timeout=300)
    assert process.returncode == 0, failed
    assert "Traceback" not in failed
    (row,) = json.loads(told)
    return row


def sums(folder: Path) -> list[bytes]:
    """Returns what H1 keeps of the values of each step."""
    return [path.read_bytes().partition(b"\n")[2] for path in sorted((folder / "h1").glob("*.step"))]


def test_a_killed_training_goes_on_with_the_same_sums(target: str, tmp_path: Path) -> None:
    """Kills the command after some steps; its servers end too, and --resume arrives at the sums of a whole run."""
    plain = ("--mode", "plain", "--steps", "120", "--every", "7")
    whole = finished(target, *plain, "--checkpoint", str(tmp_path / "whole"), "--out", str(tmp_path / "out"))
    assert (whole["steps"], whole["ended"], whole["epsilon"]) == (120, "done", None)
    killed = tmp_path / "killed"
    process = started(target, *plain, "--checkpoint", str(killed))
    until = time.monotonic() + 200
    while not (killed / "h1" / "00000020.step").exists():
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.005)
    process.kill()
    process.communicate()
    assert len(sums(killed)) < 120
    refused = started(target, *plain, "--checkpoint", str(killed))
    assert "--checkpoint: expected a new folder, or --resume to continue from it" in refused.communicate()[1]
    again = finished(target, *plain, "--checkpoint", str(killed), "--resume", "--out", str(tmp_path / "again"))
    assert again["steps"] == 120
    assert sums(killed) == sums(tmp_path / "whole")
    one, other = (np.load(tmp_path / name / "params.npz") for name in ("out", "again"))
    assert sorted(one.files) == ["b", "w"]
    for name in one.files:
        np.testing.assert_array_equal(one[name], other[name])
    page = (tmp_path / "out" / "report.html").read_text()
    assert "The sums were opened without noise, so nothing is promised" in page
    assert f"{whole['measured'][-1]['accuracy']:.4g} after step 120" in page


def test_noise_and_budget(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the environment names a proxy, too, the parties of this machine talk to each other."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    row = finished(
        target, "--noise-multiplier", "20", "--budget", "8", "1e-5", "--steps", "3", "--out", str(tmp_path / "out")
    )
    assert row["measured"][-1]["step"] == 3
    assert 0 < row["epsilon"] < 8
    assert row["h1_bytes_sent"] > 0 < row["h2_bytes_sent"]
    assert 0 < row["h1_peak_gib"] < 2
    assert (row["protocol"], row["openings"], row["owners_in_last_step"]) == ("transfers", 3, 2)
    page = (tmp_path / "out" / "report.html").read_text()
    assert f"an ε of {words.at_most(row['epsilon'])} at δ = 1e-05" in page


def test_parameters_that_cannot_be_written_do_not_lose_the_report(target: str, tmp_path: Path) -> None:
    (tmp_path / "out" / "params.npz").mkdir(parents=True)
    options = ("--mode", "plain", "--steps", "1", "--out", str(tmp_path / "out"), "--force", "--json")
    told, failed = started(target, *options).communicate(timeout=300)
    assert json.loads(told)[0]["steps"] == 1
    assert "Is a directory" in failed
    assert (tmp_path / "out" / "report.html").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--steps", "0", "--mode", "plain"), "--steps: expected a whole number >= 1, got 0"),
        (("--steps", "3"), "--noise-multiplier: expected a finite number > 0, got None"),
        (
            ("--steps", "9999", "--noise-multiplier", "9", "--budget", "8", "1e-5"),
            "--steps: expected at most ",
        ),
        (
            ("--steps", "3", "--mode", "plain", "--owner", "anna"),
            "--servers: expected addresses of h1 and h2 for some of the owners, got none",
        ),
        (
            ("--steps", "3", "--mode", "plain", "--owner", "anna", "bert", "anna"),
            "--owner: expected each owner once, got anna bert anna",
        ),
        (
            ("--steps", "3", "--mode", "plain", "--keys", "keys"),
            "--keys: expected none without --servers: those here have their own keys, got keys",
        ),
        (
            ("--steps", "3", "--mode", "plain", "--insecure"),
            "--insecure: expected none without --servers: those here have their own keys, got True",
        ),
        (
            ("--steps", "3", "--mode", "plain", "--servers", "example.org:1", "example.org:2"),
            "h1: expected certificates, a loopback address such as 127.0.0.1, or insecure, got example.org:1",
        ),
    ],
)
def test_unusable_options_are_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    target: str,
    more: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.setattr(sys, "argv", ["dpaudit", "secure", "train", target, *OPTIONS, *more])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 2
    output = capsys.readouterr()
    assert output.err.startswith(f"dpaudit: {message}")
    assert output.err.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("loss", "mine.py: loss: expected a dpaudit.training.two_servers.Task, got <function"),
        ("tsk", "mine.py: expected a task named tsk, got no such name\n"),
    ],
)
def test_a_name_for_something_else_or_for_nothing_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], target: str, name: str, message: str
) -> None:
    other = target.replace(":task", f":{name}")
    monkeypatch.setattr(sys, "argv", ["dpaudit", "secure", "train", other, *OPTIONS, "--steps", "1"])
    with pytest.raises(SystemExit):
        main.main()
    assert f"dpaudit: {message}" in capsys.readouterr().err


def test_an_owner_whom_the_records_lack_is_named(target: str) -> None:
    """It was "stopped by KeyError: 'carl'"."""
    task = secure_train.load_task(f"{target}_by_name")
    assert task.records("anna") == 1
    with pytest.raises(InputError) as refused:
        task.records("carl")
    wanted = """:task_by_name: expected records("carl") to return them, got KeyError: 'carl'"""
    assert str(refused.value).endswith(f"mine.py{wanted}")
