"""Every notebook runs from top to bottom at a small scale, shows its pictures and says what it is to say."""

import re
from pathlib import Path
from typing import NamedTuple

import nbformat
import pytest
from nbclient import NotebookClient

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
SHORT = ("audit_your_own_mechanism", "what_a_server_sees")  # about ten seconds each on two cores
SOURCE = re.compile(r'^SOURCE = "dpaudit(\[\w+\])?"$', re.MULTILINE)


def read(name: str) -> nbformat.NotebookNode:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def code(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_every_notebook_has_a_story() -> None:
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(STORIES)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in SHORT else [pytest.mark.slow]) for name in STORIES]
)
def test_runs(name: str) -> None:
    story, notebook = STORIES[name], read(name)
    constants, _ = story.scale.split(" = ")
    replaced = 0
    for cell in code(notebook):
        cell.source, found = re.subn(rf"^{constants} = .*$", story.scale, cell.source, flags=re.MULTILINE)
        replaced += found
    assert replaced == 1
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    outputs = [output for cell in code(notebook) for output in cell.outputs]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == story.pictures
    said = "".join(output.get("text", "") for output in outputs if output.get("name") == "stdout")
    assert re.search(r"^running on \d+ x \w+", said, re.MULTILINE)
    assert [words for words in story.says if words not in said] == []
    assert [output.text for output in outputs if output.get("name") == "stderr"] == []


@pytest.mark.parametrize("name", STORIES)
def test_is_committed_without_outputs(name: str) -> None:
    assert [cell.id for cell in code(read(name)) if cell.outputs or cell.execution_count is not None] == []


def test_all_install_and_look_at_their_runtime_alike() -> None:
    """But for the extras of what they install."""
    beginnings = {name: [cell.source for cell in code(read(name))[:2]] for name in STORIES}
    assert all(len(SOURCE.findall(install)) == 1 for install, _ in beginnings.values())
    alike = {(SOURCE.sub("", install), runtime) for install, runtime in beginnings.values()}
    assert len(alike) == 1


@pytest.mark.parametrize("name", STORIES)
def test_names_no_path_of_a_machine(name: str) -> None:
    text = "\n".join(cell.source for cell in read(name).cells)
    assert re.findall(r"(?<![\w.:/])/(?:work|tmp|home|root|opt|usr|mnt|content)\b", text) == []
