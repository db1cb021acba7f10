"""Tests that a model that diverged is reported: what was measured of it need not be a finite number."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from dpaudit import InputError
from dpaudit.cli import secure_train
from dpaudit.cli.command import Common
from dpaudit.cli.secure_train import Follower, Train
from dpaudit.report.page import write_secure_page
from dpaudit.report.page_secure import render, secure_lines
from dpaudit.report.rows import read_rows, write_rows
from dpaudit.secure.service.records import Opened
from dpaudit.training.two_servers import Participant, Progress, Spending
from tests.training.test_two_servers import BATCH, OWNERS, TASK, terms


def test_measured_values_that_are_not_finite_are_reported(tmp_path: Path) -> None:
    mine = terms("plain")
    task = TASK._replace(measure=lambda params: {"loss": math.nan, "worst": math.inf, "accuracy": 0.25})
    bob = Participant("bob", task, mine, ("127.0.0.1:1", "127.0.0.1:2"), batch_size=BATCH)
    options = Train(target="", owners=OWNERS, batch_size=BATCH, steps=1, mode="plain", common=Common())
    follow = Follower(task, options, mine, Spending(mine, 1, 1e-5))
    follow.told(bob, lambda *_: None, Progress(1, 1, math.inf, Opened(np.zeros(10, np.int64), OWNERS, 1)))
    row = follow.row(bob) | {"ended": "done", "target": "mine.py:task", "played": ["bob"], "seed": 0}
    row |= {"seconds": 1.0, "cpu_seconds": 1.0, "versions": "none"}
    bob.close()
    write_rows([row], tmp_path / "results.json")
    (told,) = read_rows(tmp_path / "results.json")
    wanted = {"step": 1, "loss": "nan", "worst": "inf", "accuracy": 0.25}
    assert told["measured"] == [wanted]
    assert json.loads(json.dumps(row, allow_nan=False))["measured"] == [wanted]
    lines = dict(secure_lines(row))
    assert [lines[name] for name in ("loss", "worst", "accuracy")] == [
        "nan after step 1",
        "inf after step 1",
        "0.25 after step 1",
    ]
    promised = row | {"epsilon": 3.441}  # which must not be promised as 3.44
    assert dict(secure_lines(promised))["ε spent"].startswith("3.45 at δ = ")
    assert "an ε of 3.45 at δ = " in render(promised)
    write_secure_page(row, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "<td>nan</td>" in page
    assert "<td>inf</td>" in page


def test_a_measure_called_step_is_refused_before_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take the place of the number of the step, and if it is not finite, of the whole report."""
    task = TASK._replace(measure=lambda params: {"accuracy": 0.25, "step": math.nan})
    monkeypatch.setattr(secure_train, "load_task", lambda target: task)
    monkeypatch.setattr(secure_train, "checkpoint_path", lambda *given: pytest.fail("it began"))
    options = Train(target="", owners=OWNERS, batch_size=BATCH, steps=1, mode="plain", common=Common())
    with pytest.raises(InputError, match=r"^measure: expected names other than step, which is the number of the step"):
        secure_train.run(options)
    assert secure_train.measured(task._replace(measure=None), task.initial) == {}
