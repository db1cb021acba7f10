"""Checks the notebooks' kept outputs, and runs each from top to bottom at a small scale."""

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import nbformat
import pytest
from nbclient import NotebookClient

from colab.execute import named

FOLDER = Path(__file__).parents[2] / "colab"


class Story(NamedTuple):
    """What a notebook is tested for: its line of constants in small, how many pictures it shows, what it must say."""

    scale: str
    pictures: int
    says: tuple[str, ...]


STORIES = {
    "audit_your_client": Story("TRIALS = 200", 2, ("consistent",)),
    "audit_your_own_mechanism": Story(
        "TRIALS, AUDITS = 4_000, 2", 5, ("consistent", "violation", "underpowered", "sensitivity:", "key_reuse:")
    ),
    "choose_a_clip_size": Story("ROUNDS, CLIENTS = 10, 8", 5, ()),
    "dropout_and_privacy": Story("NETWORKS, STEPS, SAMPLES = 40, 4, 10", 4, ("shuffled coins", "honest bound 0.00")),
    "personalization": Story(
        "USERS, FILMS, TRIALS, EPSILONS = 300, 20, 4_000, (None,)", 5, ("consistent: ", "violation: ")
    ),
    "what_a_server_sees": Story(
        "EXAMPLES, VIEWS = 5, 400", 6, ("added or removed: epsilon 1.", "underpowered", "violation")
    ),
}
PLACEHOLDER = "PROJECT_OWNER/dpaudit"
SIZE = 400_000  # bytes of a notebook with its pictures


def read(name: str) -> nbformat.NotebookNode:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def code(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_every_notebook_has_a_story() -> None:
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(STORIES)


def said_and_shown(notebook: nbformat.NotebookNode) -> tuple[str, int, list[str]]:
    """What its outputs print, how many pictures they hold, and what they warn of."""
    outputs = [output for cell in code(notebook) for output in cell.outputs]
    streams = {
        name: [output.text for output in outputs if output.get("name") == name] for name in ("stdout", "stderr")
    }
    return (
        "".join(streams["stdout"]),
        sum("image/png" in output.get("data", {}) for output in outputs),
        streams["stderr"],
    )


def check(notebook: nbformat.NotebookNode, story: Story) -> None:
    said, pictures, warned = said_and_shown(notebook)
    assert pictures == story.pictures
    assert re.search(r"^running on \d+ x \w+", said, re.MULTILINE)
    assert [words for words in story.says if words not in said] == []
    assert warned == []


@pytest.mark.integration
@pytest.mark.parametrize("name", STORIES)
def test_runs(name: str) -> None:
    story, notebook = STORIES[name], read(name)
    constants, _ = story.scale.split(" = ")
    replaced = 0
    for cell in code(notebook):
        cell.source, found = re.subn(rf"^{constants} = .*$", story.scale, cell.source, flags=re.MULTILINE)
        replaced += found
    assert replaced == 1
    where = {"metadata": {"path": FOLDER}}  # where Jupyter starts them, too
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=where).execute()
    check(notebook, story)


@pytest.mark.parametrize("name", STORIES)
def test_keeps_its_outputs(name: str) -> None:
    notebook = read(name)
    assert [cell.execution_count for cell in code(notebook)] == list(range(1, len(code(notebook)) + 1))
    check(notebook, STORIES[name])
    assert (FOLDER / f"{name}.ipynb").stat().st_size < SIZE


@pytest.mark.parametrize("name", STORIES)
def test_its_badge_and_its_address_lead_to_one_repository(name: str) -> None:
    first, install = read(name).cells[0].source, code(read(name))[0].source
    (badge,) = re.findall(rf"colab\.research\.google\.com/github/([^/]+/[^/]+)/blob/main/colab/{name}\.ipynb", first)
    assert re.findall(r'^SOURCE = "git\+https://github\.com/(.+)"$', install, re.MULTILINE) == [badge]
    assert (
        named(first, "somebody/else").count("somebody/else")
        == named(install, "somebody/else").count("somebody/else")
        == 1
    )


def test_all_install_and_look_at_their_runtime_alike() -> None:
    """But for the extras of what they install."""
    beginnings = [[cell.source for cell in code(read(name))[:2]] for name in STORIES]
    assert len({(re.sub(r"dpaudit\[[a-z,]+\]", "dpaudit", install), runtime) for install, runtime in beginnings}) == 1


@pytest.mark.parametrize("of_an_index", [True, False])
def test_refuses_another_package_of_this_name(tmp_path: Path, of_an_index: bool) -> None:
    """Only a package that pip got from an index has no direct_url.json."""
    (tmp_path / "dpaudit").mkdir()
    (tmp_path / "dpaudit" / "__init__.py").write_text("raise RuntimeError('imported')")
    about = tmp_path / "dpaudit-9.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: dpaudit\nVersion: 9\n")
    if not of_an_index:
        (about / "direct_url.json").write_text('{"url": "https://github.com/somebody/dpaudit"}')
    ran = installed([str(tmp_path)])
    assert ran.returncode == of_an_index
    assert ("expected the package at SOURCE, got one of the same name" in ran.stderr) == of_an_index


def test_refuses_a_placeholder_where_nothing_is_installed() -> None:
    assert "SOURCE: expected the address of a repository or a wheel, got a placeholder" in installed([]).stderr


def installed(path: list[str]) -> subprocess.CompletedProcess[str]:
    """Runs the installing cell where ``path`` alone leads to packages, with its placeholder and without pip."""
    cell = named(code(read("audit_your_client"))[0].source, PLACEHOLDER).replace("%pip", "assert False  #")
    program = f"import sys\nsys.path = {path} + [p for p in sys.path if p and 'site-packages' not in p]\n"
    program += (
        "sys.meta_path = [finder for finder in sys.meta_path if 'editable' not in type(finder).__name__.lower()]\n"
    )
    command = [sys.executable, "-I", "-S", "-c", program + cell]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", STORIES)
def test_names_no_path_of_a_machine(name: str) -> None:
    text = (FOLDER / f"{name}.ipynb").read_text(encoding="utf-8")
    text = re.sub(r'"image/png": "[^"]*"', "", text)
    assert re.findall(r"(?<![\w.:/])/(?:work|tmp|home|root|opt|usr|mnt|content)\b", text) == []
