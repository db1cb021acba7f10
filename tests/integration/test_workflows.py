"""The steps of action.yml, of the workflow on the page and of its pre-commit hook, carried out in a folder of their
own."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.processes import ROOT, environment
from tests.test_docs import blocks

PAGE = blocks(ROOT / "docs/howto/ci.md")
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
WRONG = "import jax\nx0, x1 = 0.0, 1.0\ndef noisy_sum(key, x):\n    return x + jax.random.laplace(key) / 2\n"
PLUGIN = "-p no:dpaudit -p dpaudit.pytest_plugin"
INSTALL = re.fullmatch(r'python -m pip install "\$GITHUB_ACTION_PATH(?:\[(.*)\])?"', ACTION["runs"]["steps"][0]["run"])
LIBRARIES = {"data": "sklearn", "report": "matplotlib", "secure": "grpc", "train": "jax_privacy"}


def on_page(title: str) -> Any:
    (text,) = (block.text for block in PAGE if block.title == title)
    return yaml.safe_load(text) if title.endswith((".yml", ".yaml")) else text


@pytest.fixture
def folder(tmp_path) -> Path:
    """A checkout with the mechanism of the start page and its test, and the commands of a package that has only the
    extras which the action installs."""
    (mechanism,) = (block for block in blocks(ROOT / "docs/start.md") if block.title == "my_mechanism.py")
    (tmp_path / mechanism.title).write_text(mechanism.text, encoding="utf-8")
    (tmp_path / "test_privacy.py").write_text(on_page("test_privacy.py"), encoding="utf-8")
    (tmp_path / "bin").mkdir()
    assert INSTALL is not None
    missing = [library for extra, library in LIBRARIES.items() if extra not in (INSTALL[1] or "").split(",")]
    without = f"import sys; sys.modules.update(dict.fromkeys({missing}))"
    for name, run in {
        "dpaudit": ["-c", f"{without}; from dpaudit.cli.main import main; main()"],
        "pytest": ["-m", "pytest", *PLUGIN.split()],
    }.items():
        command = tmp_path / "bin" / name
        command.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, *run])} "$@"\n')
        command.chmod(0o755)
    return tmp_path


def shell(text: str, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    env = environment(1) | {"PATH": path, **more}
    return subprocess.run(["bash", "-eo", "pipefail", "-c", text], cwd=folder, env=env, text=True, capture_output=True)


def last_step(given: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """The action's last step; the first installs the package."""
    _, audit = ACTION["runs"]["steps"]
    assert (ROOT / "pyproject.toml").exists()
    assert set(given) <= set(ACTION["inputs"])
    inputs = {name: one.get("default", "") for name, one in ACTION["inputs"].items()} | given
    env = {
        name: re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda found: inputs[found[1]], text)
        for name, text in audit["env"].items()
    }
    return shell(audit["run"], folder, **env)


def steps_of_action(given: dict[str, str], folder: Path) -> int:
    """The status of the action's last step, which has audited."""
    done = last_step(given, folder)
    assert "Report: " in done.stderr, done.stderr
    return done.returncode


def test_the_action_audits_and_fails_on_a_violation(folder):
    given = {"target": "my_mechanism.py:noisy_sum", "arguments": "--trials 8000"}
    assert steps_of_action(given, folder) == 0
    assert (folder / "dpaudit-pages/audit/report.html").exists()
    (folder / "my_mechanism.py").write_text(WRONG)
    arguments = "--epsilon 1 --trials 8000 --force"
    assert steps_of_action(given | {"arguments": arguments}, folder) == 1


def test_the_action_takes_counts_and_quoted_commands(folder):
    assert steps_of_action({"arguments": "--counts 3 3 10 10 --epsilon 9", "out": "counts"}, folder) == 3
    (play,) = (block.text for block in blocks(ROOT / "docs/howto/scores.md") if block.title == "play.py")
    (folder / "play.py").write_text(play)
    arguments = "--command 'python3 play.py {world} {n}' --epsilon 1 --trials 2000"
    assert steps_of_action({"arguments": arguments, "out": "played"}, folder) == 0


@pytest.mark.parametrize(
    "arguments, words",
    [
        ("", []),
        (" \n", []),
        ("--trials 8000", ["--trials", "8000"]),
        (
            "--command 'python3 play.py {world}'  $HOME\n--json",
            ["--command", "python3 play.py {world}", "$HOME", "--json"],
        ),
        ("--epsilon 1 --neighbouring 'replace", None),
        ('--trials 8000 "--epsilon 1', None),
    ],
)
def test_the_action_splits_its_arguments_and_fails_on_a_quote_that_is_not_closed(folder, arguments, words):
    """With the arguments after the quote left out, among them the claim, there would be nothing to violate."""
    told = folder / "bin/dpaudit"
    told.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\" > told\n")
    done = last_step({"target": "my_mechanism.py:noisy_sum", "arguments": arguments}, folder)
    if words is None:
        assert done.returncode != 0, done.stdout
        assert "unmatched" in done.stderr
        assert not (folder / "told").exists()
        return
    assert done.returncode == 0, done.stderr
    wanted = ["audit", "my_mechanism.py:noisy_sum", *words, "--out", "dpaudit-pages/audit"]
    assert (folder / "told").read_text().splitlines() == wanted


def test_the_workflow_of_the_page(folder):
    (job,) = on_page(".github/workflows/privacy.yml")["jobs"].values()
    ran = []
    for step in job["steps"]:
        if step.get("uses", "").startswith("PROJECT_OWNER/dpaudit@"):
            given = step["with"] | {"arguments": step["with"]["arguments"].replace("200000", "8000")}
            ran.append(steps_of_action(given, folder))
        elif step.get("run", "pip install pytest") != "pip install pytest":
            done = shell(step["run"], folder)
            assert done.returncode == 0, done.stdout
            assert "2 passed" in done.stdout
            ran.append(done.returncode)
    assert ran == [0, 0]
    assert (folder / job["steps"][-1]["with"]["path"] / "noisy_sum/report.html").exists()


@pytest.mark.parametrize("text, status", [(None, 0), (f"import dpaudit\n{WRONG}claim = dpaudit.Claim(1.0)\n", 1)])
def test_the_hook_of_the_page(folder, text, status):
    ((hook,),) = (repo["hooks"] for repo in on_page(".pre-commit-config.yaml")["repos"])
    assert re.search(hook["files"], "my_mechanism.py")
    if text is not None:
        (folder / "my_mechanism.py").write_text(text)
    assert shell(hook["entry"].replace("100000", "8000"), folder).returncode == status
