"""Runs the Python and shell blocks of the documentation, and checks its links.

The blocks of a page run in order and share their names. Commands run at a small scale, in this process. What takes
more than a few seconds belongs to the integration tier. Workflows are run by tests/integration/test_workflows.py.
"""

import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

from dpaudit import __version__
from dpaudit.cli import main
from experiments.libraries import first
from tests.processes import environment

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
HEAVY = {  # names of pages
    "bounds", "ci", "clip_norm", "dropout", "federated", "mechanism", "personalization", "protocols", "scores",
    "training",
}  # fmt: skip
SMALL = {
    "audit": ["--trials", "4000"],
    "data": [],
    "examine": ["--seconds", "2"],
    "ldp": ["--trials", "200", "--repeats", "1", "--craft", "dummy", "--pretraining-steps", "0"],
    "plan": ["--rate", "1000"],
    "train": ["--epochs", "1"],
}
BY_HAND = {"owner", *first.blocks()}  # blocks that test_docs_secure.py and test_libraries.py of tests/integration run
FILES = {"mine.py", "play.py", "test_privacy.py"}  # blocks that commands of their page run


class Block(NamedTuple):
    """A fenced block: its language, its title, which names a file, and its text."""

    language: str
    title: str
    text: str


def blocks(page: Path) -> list[Block]:
    found = re.findall(
        r"^```(\w*)(?: title=\"(.*?)\")?\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    return [Block(*parts) for parts in found]


def name(page: Path) -> str:
    return page.relative_to(ROOT).with_suffix("").as_posix()


@contextmanager
def suppress_success(*also: int) -> Iterator[None]:
    """Passes on every exit but that of a command that succeeded, or that has one of the other statuses."""
    try:
        yield
    except SystemExit as ended:
        if ended.code and ended.code not in also:
            raise


def run_command(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a command line, or checks that what it names is there."""
    program, *rest = words
    if program == "pytest":
        plugin = ["-p", "no:dpaudit", "-p", "dpaudit.pytest_plugin", "-p", "no:cacheprovider"]  # installed or not
        subprocess.run([sys.executable, "-m", "pytest", *plugin, *rest], check=True, env=environment(1))
    elif program == "make":
        assert re.search(rf"^{rest[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif program == "pip":
        assert rest[0] == "install"
        (asked,) = re.findall(r"^\.(?:\[(.*)\])?$", rest[1])
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
        assert {name for name in asked.split(",") if name} <= set(extras)
        assert rest[2:] == []
    elif program == "sbatch":
        assert (ROOT / rest[0]).is_file()
    elif words[:2] == ["python", "-m"]:
        assert find_spec(words[2]) is not None
    elif program == "srun" or words[:2] == ["dpaudit", "secure"]:
        main.parsed(rest[1:] if program == "srun" else rest)
    else:
        assert program == "dpaudit"
        played = not {"--scores", "--counts"} & set(rest)  # what ran elsewhere takes no number of trials
        monkeypatch.setattr(sys, "argv", words + SMALL.get(rest[0], []) * played)
        underpowered = (3,) * (rest[0] == "ldp")  # as the small number of trials is
        with suppress_success(*underpowered):
            main.main()


@pytest.mark.integration
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=name(page), marks=[pytest.mark.integration] * (page.stem in HEAVY))
        for page in PAGES
        if blocks(page)
    ],
)
def test_every_block_runs(page, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    (mechanism,) = (block for block in blocks(ROOT / "docs/start.md") if block.title == "my_mechanism.py")
    (tmp_path / mechanism.title).write_text(mechanism.text, encoding="utf-8")
    names: dict = {}
    for block in blocks(page):
        if block.title in FILES:
            (tmp_path / block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "python" and block.title not in BY_HAND:
            exec(compile(block.text, name(page), "exec"), names)
        elif block.language == "sh":
            for line in block.text.replace("\\\n", " ").splitlines():
                run_command(shlex.split(line, comments=True), monkeypatch)
    if page.name == "README.md":
        assert names["result"].verdict == "consistent"
        assert capsys.readouterr().out.startswith("consistent 0.")


def test_every_block_is_of_a_kind_that_is_run():
    assert {block.language for page in PAGES for block in blocks(page)} == {"python", "sh", "yaml"}


def test_extras_are_those_of_the_package():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    start = (ROOT / "docs/start.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", start, re.MULTILINE)) == set(extras)


def test_links_and_named_files_lead_somewhere():
    lost = []
    for page in PAGES:
        text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        targets = [page.parent / link for link in re.findall(r"\]\((?![a-z]+:)([^)#]+)", text)]
        if page.name == "CONTRIBUTING.md":
            targets += [ROOT / path for path in re.findall(r"`((?:dpaudit|experiments|tests)/[^`]*)`", text)]
        lost += [target for target in targets if not target.exists()]
    assert lost == []


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 600


def test_the_version_to_cite_is_this_one():
    assert re.findall(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE) == [__version__]
    assert f"dpaudit {'.'.join(__version__.split('.')[:2])} |" in (ROOT / "README.md").read_text(encoding="utf-8")
