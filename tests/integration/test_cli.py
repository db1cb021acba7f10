"""The command line: what it writes, and that unusable input is one line and a status, never a traceback."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial

import jax
import pytest

from dpaudit import _validate
from dpaudit.audits import ldp_client
from dpaudit.cli import command, main
from tests.report import samples

FAST = ("ldp", "--pretraining-steps", "0", "--craft", "dummy", "--epsilon", "1")
# Issue: flat rows with at least these fields.
FIELDS = (
    "dataset craft engine epsilon clip_norm pretraining_steps trials repeats accuracy fpr fnr "
    "epsilon_hat epsilon_hat_std epsilon_lower epsilon_upper epsilon_exact epsilon_optimal "
    "neighbouring ceiling detectable verdict seconds versions seed"
)


def run(monkeypatch, *arguments: str) -> int:
    """The status with which the command ends."""
    monkeypatch.setattr(sys, "argv", ["dpaudit", *arguments])
    try:
        main.main()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


@pytest.mark.parametrize("arguments", [("audit", "--help"), ("--help",), ("--version",)])
def test_help_whose_reader_has_ended_ends_quietly(monkeypatch, arguments):
    """As of ``dpaudit audit --help | head -1``."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as unread:
        monkeypatch.setattr(sys, "stdout", unread)
        assert run(monkeypatch, *arguments) == 0
        unread.flush()


def test_help_is_printed_and_a_mistake_has_its_status(monkeypatch, capsys):
    assert run(monkeypatch, "audit", "--help") == 0
    assert "--until-violation" in capsys.readouterr().out
    assert run(monkeypatch, "audit", "--no-such-option") == 2


def test_a_warning_is_one_line_too(capsys):
    asked = partial(_validate.delta, 10, "users", delta=0.5)
    command.perform("dpaudit", lambda: asked() and None, measures=False)
    assert capsys.readouterr().err == (
        "dpaudit: delta: expected at most 1/10, one over the number of users, got 0.5: publishing all data of one of "
        "them, drawn at random, would keep it\n"
    )


class Panic(BaseException):
    """An exception that is none of Exception, as of libraries written in Rust."""


@pytest.mark.parametrize("error", [RuntimeError("no\nluck"), SystemExit(0), Panic("!")], ids=lambda error: repr(error))
def test_an_unexpected_exception_has_the_status_of_no_verdict(monkeypatch, capsys, error):
    def fails():
        raise error

    for measures in (True, False):
        with pytest.raises(SystemExit) as ended:
            command.perform("dpaudit", fails, measures=measures, judges=True)
        assert ended.value.code == 2
        said = capsys.readouterr().err
        cause = f"{type(error).__name__}: {error}".replace("\n", " ")
        assert said == f"dpaudit: stopped by {cause} (set DPAUDIT_TRACEBACK=1 to see where)\n"
    monkeypatch.setenv("DPAUDIT_TRACEBACK", "1")
    with pytest.raises(SystemExit):
        command.perform("dpaudit", fails, measures=False, judges=True)
    assert "in fails" in capsys.readouterr().err
    with pytest.raises(type(error)) as unchanged:
        command.perform("experiment", fails)
    assert unchanged.value is error


def test_a_checkpoint_is_a_file_or_a_folder(tmp_path):
    file = tmp_path / "file.npz"
    file.write_bytes(b"")
    for resume in (True, False):
        with pytest.raises(_validate.InputError, match=r"^--checkpoint: expected a file, got the folder .+$"):
            command.checkpoint_path(str(tmp_path), resume, "file")
        for inside in (file, file / "inside" / "it"):
            with pytest.raises(_validate.InputError, match=r"^--checkpoint: expected a folder, got the file .+$"):
                command.checkpoint_path(str(inside), resume, "folder")
    assert command.checkpoint_path(str(file), True, "file") == file
    assert command.checkpoint_path(str(tmp_path), True, "folder") == tmp_path
    assert command.checkpoint_path(str(tmp_path / "new" / "one"), False, "folder") == tmp_path / "new" / "one"


def test_a_seed_is_the_one_of_jax():
    for seed in (0, -1, 2**63 - 1, -(2**63)):
        assert command.key_of(seed) == jax.random.key(seed)
    for seed in (2**63, -(2**63) - 1):
        with pytest.raises(_validate.InputError, match=f"^--seed: expected a whole number of 64 bits, got {seed}$"):
            command.key_of(seed)


def test_rows_report_and_table(monkeypatch, capsys, tmp_path):
    out = tmp_path / "new" / "results"
    assert run(monkeypatch, *FAST, "--engine", "plane", "--out", str(out)) == 0
    (row,) = json.loads((out / "results.json").read_text())
    assert [name for name in FIELDS.split() if name not in row] == []
    assert (row["dataset"], row["craft"], row["epsilon"], row["trials"], row["repeats"]) == (
        "digits",
        "dummy",
        1.0,
        10_000,
        10,
    )
    assert row["epsilon_exact"] == pytest.approx(1.0)
    assert row["epsilon_lower"] < 1 < row["epsilon_upper"]
    page = (out / "report.html").read_text()
    assert f"{100 * row['accuracy']:.0f}" in page
    assert "consistent" in capsys.readouterr().out


def test_the_seed_decides(monkeypatch, capsys):
    def rows(*more: str) -> list[dict]:
        assert run(monkeypatch, *FAST, "--engine", "full", "--trials", "400", "--json", *more) == 0
        return [{**row, "seconds": None} for row in json.loads(capsys.readouterr().out)]

    first = rows("--seed", "5")
    assert first == rows("--seed", "5")
    assert first[0]["fpr"] != rows("--seed", "6")[0]["fpr"]


def test_a_setting_does_not_depend_on_its_company(monkeypatch, capsys):
    def dummy(*crafts: str) -> dict:
        chosen = (*FAST[:3], "--craft", *crafts, "--epsilon", "1", "--engine", "plane", "--trials", "400", "--json")
        assert run(monkeypatch, *chosen) == 0
        (row,) = (row for row in json.loads(capsys.readouterr().out) if row["craft"] == "dummy")
        return row

    assert dummy("dummy")["fpr"] == dummy("watermark", "dummy")["fpr"]


@pytest.mark.parametrize(
    ("verdicts", "status"),
    [
        (("consistent", "consistent"), 0),
        (("consistent", "underpowered"), 3),
        (("underpowered", "violation", "consistent"), 1),
        (("computed",), 0),
    ],
)
def test_the_status_is_that_of_the_worst_row(monkeypatch, tmp_path, verdicts, status):
    """It was 0 whatever the rows said."""
    parts = [
        [samples.row(craft="dummy", epsilon=2.0**place, verdict=verdict)] for place, verdict in enumerate(verdicts)
    ]
    monkeypatch.setattr(ldp_client, "audit_client", lambda *_, **more: iter(parts))
    assert run(monkeypatch, "ldp", "--json") == status


def test_too_few_trials_have_their_status(monkeypatch, capsys):
    few = (*FAST[:5], "--epsilon", "8", "--engine", "plane", "--trials", "100", "--repeats", "1", "--json")
    assert run(monkeypatch, *few) == 3
    (found,) = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "underpowered"


def test_all_settings_may_be_named_beside_others(monkeypatch):
    """ "all" beside another was refused, as no setting, once the data had been read."""
    asked = []
    monkeypatch.setattr(ldp_client, "audit_client", lambda *_, crafts, **more: asked.extend(crafts) or [])
    assert run(monkeypatch, "ldp", "--craft", "all", "watermark", "dummy") == 0
    assert asked == [*ldp_client.ACCESS, "watermark"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--epsilon", "0"), "--epsilon: expected a finite number > 0, got 0.0"),
        (("--epsilon", "nan"), "--epsilon: expected a finite number > 0, got nan"),
        (("--epsilon", "inf"), "--epsilon: expected a finite number > 0, got inf"),
        (("--epsilon", "-1"), "--epsilon: expected a finite number > 0, got -1.0"),
        (("--clip-norm", "0"), "--clip-norm: expected a finite number > 0, got 0.0"),
        (("--trials", "0"), "--trials: expected a whole number >= 2, got 0"),
        (("--repeats", "0"), "--repeats: expected a whole number >= 1, got 0"),
        (("--confidence", "1"), "--confidence: expected a number in (0, 1), got 1.0"),
        (("--pretraining-steps", "-1"), "--pretraining-steps: expected a whole number >= 0, got -1"),
        (("--seed", "99999999999999999999"), "--seed: expected a whole number of 64 bits, got 99999999999999999999"),
        (("--data", "imagenet"), "--data: expected one of digits, breast_cancer, mnist"),
        (("--mechanism", "gaussian"), "--delta: expected a number in (0, 1), got None"),
        (("--mechanism", "privunit", "--delta", "0.1"), "--delta: expected none for privunit"),
        (("--data", "breast_cancer"), "image_shape: expected images [h, w, channels]"),
        (("--craft", "rude"), "--craft: expected one of benign, label_flip"),
        (("--epsilon",), "--epsilon: expected a value, got none"),
        (("--data", "mnist", "--data-dir", "no/such/folder"), "--data-dir: expected"),
    ],
)
def test_unusable_input_is_one_line(monkeypatch, capsys, arguments, message):
    assert run(monkeypatch, *FAST, "--engine", "exact", *arguments) == 2
    output = capsys.readouterr()
    assert output.err.startswith(f"dpaudit: {message}")
    assert output.err.count("\n") == 1
    assert output.out == ""


def test_what_an_audited_file_gives_is_no_option_s_value():
    """A refusal names the option whose value it shows, however the option is held, and no other."""
    options = main.parsed(["audit", "mine.py:noisy", "--epsilon", "2", "--until-violation", "--seed", "5"])
    for message, told in (
        ("epsilon: expected 1, got 2.0", "--epsilon: expected 1, got 2.0"),
        ("seed: expected 1, got 5: five", "--seed: expected 1, got 5: five"),
        ("epsilon: expected 1, got 3.0", "epsilon: expected 1, got 3.0"),
        ("target: expected a mechanism, got mine.py:noisy", "target: expected a mechanism, got mine.py:noisy"),
        ("mine.py: expected x0, got 2.0", "mine.py: expected x0, got 2.0"),
    ):
        assert command.of_option(message, options) == told
        assert command.of_option(message, None) == message


def test_help_tells_what_no_owners_stand_for(monkeypatch, capsys):
    assert run(monkeypatch, "secure", "train", "--help") == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "The owners that this process plays. (default: all)" in told
    assert "(default: )" not in told


def test_nothing_is_overwritten_without_force(monkeypatch, capsys, tmp_path):
    mine = tmp_path / "results.json"
    mine.write_text("mine")
    assert run(monkeypatch, *FAST, "--engine", "exact", "--out", str(tmp_path)) == 2
    assert "--out: expected a new or empty directory, or --force" in capsys.readouterr().err
    assert mine.read_text() == "mine"
    assert run(monkeypatch, *FAST, "--engine", "exact", "--out", str(tmp_path), "--force") == 0
    assert json.loads(mine.read_text())[0]["verdict"] == "computed"


def test_an_interruption_keeps_what_is_finished(tmp_path):
    """Ctrl-C during the second setting: one line, status 130, the first setting's rows and page on disk."""
    arguments = ("ldp", "--craft", "dummy", "collusion", "--trials", "100000", "--repeats", "50", "--epsilon", "1")
    command = [sys.executable, "-m", "dpaudit.cli.main", *arguments, "--engine", "plane", "--pretraining-steps", "0"]
    command += ["--out", str(tmp_path / "out")]
    # Where the tests run in the background, the shell has them ignore Ctrl-C, and so would the process.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ)
    signal.signal(signal.SIGINT, before)
    with process:
        results = tmp_path / "out" / "results.json"
        for _ in range(6000):  # the second setting takes seconds
            if results.exists() or process.poll() is not None:
                break
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        shown, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert "dpaudit: interrupted; 1 finished rows are in out/results.json" in said
    (row,) = json.loads(results.read_text())
    assert row["craft"] == "dummy"
    for told in (shown, (tmp_path / "out" / "report.html").read_text("utf-8")):
        assert "1 of 2 tests; the run was interrupted." in told


def test_the_data_sets_are_listed(monkeypatch, capsys):
    assert run(monkeypatch, "data") == 0
    text = capsys.readouterr().out
    assert "digits" in text
    assert "movielens_20m" in text


def test_a_folder_whose_name_looks_like_markup_is_named(monkeypatch, capsys, tmp_path):
    (tmp_path / "[bold]").mkdir()
    for file in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"):
        (tmp_path / "[bold]" / file).touch()
    assert run(monkeypatch, "data", "--data-dir", str(tmp_path / "[bold]")) == 0
    assert "[bold]" in capsys.readouterr().out


def test_what_is_asked_for_twice_is_tested_once(monkeypatch, capsys, tmp_path):
    """Its rows would be the same ones, told as if they were other tests, and all bounds would be wider for it."""
    asked = []
    monkeypatch.setattr(ldp_client, "audit_client", lambda *given, **how: asked.append(how) or iter(()))
    twice = ("--data", "digits", "digits", "--craft", "dummy", "dummy", "--epsilon", "1", "2", "1.0", "2")
    assert run(monkeypatch, "ldp", *twice) == 0
    assert [(how["epsilons"], how["datasets"], how["crafts"]) for how in asked] == [((1.0, 2.0), 1, ("dummy",))]
    assert capsys.readouterr().err == ""


def test_a_warning_that_several_parts_give_is_one_line(capsys):
    def warns():
        for _ in range(2):
            _validate.delta(10, "users", delta=0.5)
        return _validate.delta(10, "users", delta=0.5) and None

    command.perform("dpaudit", warns, measures=False)
    assert capsys.readouterr().err.count("expected at most 1/10") == 1
