"""``dpaudit train``: to the target, audited in the same run; a fault is found, a kill changes nothing."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from orbax.checkpoint import StandardCheckpointer
from rich.table import Table

from dpaudit import data
from dpaudit._validate import InputError
from dpaudit.auditing.one_training import NOT_TOLD
from dpaudit.audits.audited_training import train_audited
from dpaudit.cli import command
from dpaudit.cli import train as cli
from dpaudit.report import page_audit
from dpaudit.training import accounting
from dpaudit.training.dp_sgd import dp_sgd
from dpaudit.training.models import CNN8, accuracy
from dpaudit.training.sampling import poisson
from tests.integration.test_cli import run

TINY = ("train", "--steps", "10", "--batch-size", "400", "--canaries", "300", "--epsilon", "3", "--seed", "7")
SETTINGS: dict[str, Any] = {
    "steps": 10,
    "batch_size": 400,
    "canaries": 300,
    "epsilon": 3.0,
    "delta": 1e-5,
    "clip_norm": 1.0,
    "optimizer": optax.adam(0.01),
}
ROWS = 1437 + 300
TRAIN, TEST = data.load("digits", split="train"), data.load("digits", split="test")


def trained(**more: Any):
    return train_audited(jax.random.key(7), TRAIN, TEST, **SETTINGS | more)


def never_clipped(loss_fn, **settings):
    return dp_sgd(loss_fn, clipping=lambda norms, clip_norm: jnp.ones_like(norms), **settings)


@pytest.fixture(scope="module")
def alone():
    """A run left alone."""
    return trained()[0]


def test_it_keeps_the_target_and_says_what_the_canaries_show(alone):
    spent = accounting.epsilon(poisson(ROWS, 400), alone["noise_multiplier"], 10, delta=1e-5)
    assert alone["epsilon_accounted"] == spent
    assert 2.99 < spent <= 3
    assert 0.1 < alone["epsilon_lower"] < spent < alone["ceiling"]
    assert alone["accuracy"] > 0.3  # of ten classes
    said = {"verdict": "consistent", "neighbouring": "add_remove", "examples": 1437, "tested": 360, "canaries": 300}
    assert said.items() <= alone.items()


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_row_of_one_left_alone(monkeypatch, capsys, tmp_path, alone):
    shown = []

    def killed(step, spent):
        shown.append((step, spent()))
        if step == 2:
            raise KeyboardInterrupt

    kept, out = tmp_path / "kept", tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        trained(every=1, checkpoint=kept, progress=killed)
    assert [step for step, _ in shown] == [1, 2]
    assert 0 < shown[0][1] < shown[1][1] < 3
    assert run(monkeypatch, *TINY, "--checkpoint", str(kept)) == 2
    assert capsys.readouterr().err.startswith(
        "dpaudit: --checkpoint: expected a new folder, or --resume to continue from"
    )
    assert run(monkeypatch, *TINY, "--checkpoint", str(kept), "--resume", "--out", str(out), "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert [row] == json.loads((out / "results.json").read_text())
    assert alone.items() <= row.items()
    params = StandardCheckpointer().restore(out / "params")
    assert accuracy(CNN8(), params, TEST.inputs, TEST.labels) == row["accuracy"]
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "<h1>No violation was found</h1>" in page
    assert "sees the noisy sum of every step" in page


def test_a_fault_is_a_violation():
    row, _ = trained(make=never_clipped, epsilon=2.0, neighbouring="replace")
    assert row["verdict"] == "violation"
    assert row["epsilon_lower"] > row["epsilon_accounted"] > 1.99


def test_the_table_and_too_few_canaries(monkeypatch, capsys):
    assert run(monkeypatch, *TINY, "--canaries", "10") == 3
    printed = " ".join(capsys.readouterr().out.split())
    assert "verdict underpowered" in printed
    assert "397 of a batch's 400 rows are records: canaries cost accuracy" in printed
    assert "neighbours add_remove: one record is present or absent" in printed


def test_twice_the_loss_has_to_be_found(alone):
    few = trained(canaries=200)[0]
    assert few["ceiling"] > few["epsilon_accounted"]
    assert few["verdict"] == "underpowered"
    shown = {"learning_rate": 0.01, "seconds": 1.0, "seed": 7, "device": "cpu", "versions": "", "optimizer": "adam"}
    page = page_audit.render_training(alone | few | shown)
    assert "Reason: with this many canaries, even a perfect attack finds" in page
    assert page_audit.MORE_CANARIES in page
    assert page_audit.KNOWN_LOSS not in page


def test_canaries_that_noise_hides_are_underpowered(alone):
    """They were called consistent."""

    def far_too_noisy(loss_fn, **settings):
        settings["noise_multiplier"] = 1e4
        return dp_sgd(loss_fn, **settings)

    row = trained(make=far_too_noisy)[0]
    assert (row["verdict"], row["reason"]) == ("underpowered", NOT_TOLD)
    assert row["ceiling"] > row["epsilon_accounted"]
    shown = {"learning_rate": 0.01, "seconds": 1.0, "seed": 7, "device": "cpu", "versions": "", "optimizer": "adam"}
    page = page_audit.render_training(alone | row | shown)
    assert page.count("the canaries that were included were not told from the others") == 1
    assert page_audit.KNOWN_LOSS in page
    assert page_audit.MORE_CANARIES not in page


@pytest.mark.parametrize(
    "more, message",
    [
        (("--epsilon", "0"), "--epsilon: expected a finite number > 0, got 0.0"),
        (("--delta", "1"), "--delta: expected a number in (0, 1), got 1.0"),
        (("--steps", "0"), "--steps: expected a whole number >= 1, got 0"),
        (("--batch-size", "0"), "--batch-size: expected a whole number >= 1, got 0"),
        (("--batch-size", "2000"), "--batch-size: expected at most 1737, the number of examples, got 2000"),
        (("--clip-norm", "-1"), "--clip-norm: expected a finite number > 0, got -1.0"),
        (("--learning-rate", "nan"), "--learning-rate: expected a finite number > 0, got nan"),
        (("--optimizer", "magic"), "--optimizer: expected one of sgd, adam, got magic"),
        (("--neighbouring", "magic"), "--neighbouring: expected one of add_remove, replace, got magic"),
        (("--canaries", "1"), "--canaries: expected a whole number >= 2, got 1"),
        (("--data", "movielens_100k"), "--data: expected one of digits, breast_cancer, mnist"),
        (("--confidence", "1"), "--confidence: expected a number in (0, 1), got 1.0"),
        (("--data", "breast_cancer"), "image_shape: expected images [h, w, channels]"),
        (("--resume",), "--resume: expected a folder to resume from, named by --checkpoint, got none"),
    ],
)
def test_a_mistake_is_one_line(monkeypatch, capsys, more, message):
    assert run(monkeypatch, *TINY, *more) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(f"dpaudit: {message}")
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_a_training_keeps_its_parameters_if_its_page_cannot_be_written(monkeypatch, tmp_path):
    def unwritten(row, page):
        raise InputError("report.html: expected a file that can be written, got No space left on device")

    params = {"w": np.arange(3.0)}
    row = {"verdict": "consistent"}
    monkeypatch.setattr("dpaudit.audits.audited_training.train_audited", lambda *_, **__: (row, params))
    monkeypatch.setattr("dpaudit.report.page.write_training_page", unwritten)
    monkeypatch.setattr("dpaudit.report.table.training_table", lambda row: Table())
    with pytest.raises(InputError, match="No space left"):
        cli.run(cli.Train(common=command.Common(out=str(tmp_path))))
    with StandardCheckpointer() as checkpointer:
        np.testing.assert_array_equal(checkpointer.restore(tmp_path / "params")["w"], params["w"])
