"""Rows and verdicts on libraries agree, environments are made once, and a child's promises reach the rows."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from dpaudit import Claim
from experiments.common import Rows, results
from experiments.libraries import claims, environments, first, page, play, run
from experiments.libraries.promise import Promise
from experiments.pages import Untrue, rows_of


def noisy(scale):
    return lambda rng, x: x + int(rng.geometric(scale)) - int(rng.geometric(scale))


SOUND = Promise("sound", Claim(1.0), noisy(1 - np.exp(-1)), 0, 1, 2_000)
FAULTY = SOUND._replace(name="faulty", release=noisy(1 - np.exp(-2)), issue="https://example.org/issues/1")


def test_the_plain_call_tells_a_faulty_promise_from_a_sound_one():
    assert play.play(SOUND, 0).verdict == "consistent"
    assert play.play(FAULTY._replace(trials=10_000), 0).verdict == "violation"


def test_a_promise_that_is_withheld_is_not_played():
    told = play.line("numpy", "numpy", Promise("secret", Claim(8.0, 0.1)), 0)
    assert (told["verdict"], told["trials"]) == (play.WITHHELD, 0)


def test_what_cannot_be_audited_is_told_in_its_row():
    told = play.line("numpy", "numpy", SOUND._replace(x1=0), 0)
    assert str(told["verdict"]).startswith("refused: x1")
    assert "lower" not in told


def test_rows_of_a_child_keep_the_version_the_verdict_and_the_issue(tmp_path, capsys):
    rows = Rows("libraries", "libraries", str(tmp_path), 0)
    run.add(rows, play.line("numpy", "numpy", FAULTY._replace(trials=10_000), 0))
    (row,) = rows.rows
    assert row["quantity"] == "promise_numpy"
    assert row["setting"]["version"] == np.__version__
    assert row["ours_low"] > 1
    assert page.line(row)["issue"] == "[1](https://example.org/issues/1)"
    assert "violation epsilon >=" in capsys.readouterr().out


def test_an_environment_is_made_once_for_its_requirements(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(environments, "FOLDER", tmp_path / "made")
    monkeypatch.setattr(environments, "REQUIREMENTS", tmp_path)
    (tmp_path / "one.txt").write_text("numpy==2.4.6\nopendp==0.16.0\n")

    def ran(command, **_):
        asked.append([str(word) for word in command])
        (tmp_path / "made/one").mkdir(parents=True, exist_ok=True)
        return SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr(environments.subprocess, "run", ran)
    assert environments.make("one") == environments.make("one") == tmp_path / "made/one/bin/python"
    assert [command[:3] for command in asked[:1]] == [[sys.executable, "-m", "venv"]]
    assert len(asked) == 3  # the environment, what others are built by, and the rest
    (tmp_path / "one.txt").write_text("opendp==0.0.0\n")
    monkeypatch.setattr(environments.subprocess, "run", failing)
    with pytest.raises(RuntimeError, match="one: ERROR: no such version"):
        environments.make("one")


@pytest.mark.parametrize(
    "line, got",
    [
        ("numpy==0.1", f"got {np.__version__};"),
        ("no-such-package==1.0", "got none;"),
        (f"numpy=={np.__version__}", ""),
    ],
)
def test_a_package_that_is_missing_or_of_another_version_is_told_in_one_line(tmp_path, monkeypatch, line, got):
    monkeypatch.setattr(environments, "REQUIREMENTS", tmp_path)
    (tmp_path / "opendp.txt").write_text(f"{line}\n")
    if not got:
        return environments.check("opendp")
    monkeypatch.setattr(sys, "argv", ["play", "opendp"])
    for program in (play, first):
        with pytest.raises(
            SystemExit, match=f"^opendp: expected {line}, {got} make libraries ONLY=opendp installs it$"
        ):
            program.main()


def failing(command, **named):
    if named.get("check"):
        return SimpleNamespace(returncode=0)
    return SimpleNamespace(returncode=1, stderr="WARNING: x\nERROR: no such version\n")


def test_committed_rows_name_an_issue_for_every_violation():
    own = claims.played(rows_of("libraries"))
    assert claims.violated(own) >= 6
    assert [row["setting"] for row in claims.sound(own) if row["setting"]["verdict"] == "violation"] == []


def test_committed_rows_of_what_is_withheld_tell_no_figure():
    for row in json.loads(results("libraries").read_text()):
        if row["setting"].get("verdict") == play.WITHHELD:
            assert (row["ours"], row["ours_low"], row["setting"]["trials"]) == (None, None, 0)


def test_the_readme_says_what_the_rows_say_of_other_auditors():
    readme = " ".join((environments.ROOT / "README.md").read_text(encoding="utf-8").split())
    rows = [row | {"setting": dict(row["setting"])} for row in rows_of("libraries")]
    assert page.in_readme(rows) in readme
    (found, *_), (sound, *_) = (
        [row["setting"] for row in rows if row["quantity"] == "peer" and test(row["setting"])]
        for test in (lambda at: at["found"], lambda at: at["issue"] is None)
    )
    found["found"] = False
    assert page.in_readme(rows) not in readme
    sound["found"] = True
    with pytest.raises(Untrue, match="no sound one accused"):
        page.in_readme(rows)


def test_keys_differ_between_promises():
    one, other = (play.play(SOUND._replace(name=name), 0).epsilon_hat for name in ("a", "b"))
    assert one != other
