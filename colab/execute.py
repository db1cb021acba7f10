"""Executes the notebooks of this folder and keeps their outputs: ``make notebooks``.

The environment variable REPOSITORY, owner/name on GitHub, is written into their badges and addresses. About two
minutes a notebook on two cores.
"""

import os
import re
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent
KEPT = ("image/png", "text/plain")  # of what a cell shows
CELL = re.compile(r"/\S*/ipykernel_\d+/\d+\.py")  # the file that a kernel makes of a cell


def execute(path: Path, repository: str) -> None:
    """Runs one notebook from top to bottom and writes it back with what it showed."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells[:3]:
        cell.source = named(cell.source, repository)
    NotebookClient(notebook, timeout=3600, kernel_name="python3", resources={"metadata": {"path": FOLDER}}).execute()
    for cell in notebook.cells:
        cell.metadata = {}
        for output in cell.get("outputs", ()):
            if "text" in output:
                output.text = CELL.sub("this cell", output.text)
            if "data" in output:
                output.data = {kind: output.data[kind] for kind in KEPT if kind in output.data}
                output.metadata = {}
    notebook.metadata.pop("widgets", None)
    notebook.metadata.language_info = {"name": "python"}
    nbformat.write(notebook, path)


def named(text: str, repository: str) -> str:
    """Puts the repository into the addresses of a cell."""
    text = re.sub(r"(colab\.research\.google\.com/github/)[^/]+/[^/]+(?=/blob/)", rf"\g<1>{repository}", text)
    return re.sub(r'(SOURCE = "git\+https://github\.com/)[^"]+"', rf'\g<1>{repository}"', text)


def main() -> None:
    """Executes the notebooks that are named, or all."""
    repository = os.environ.get("REPOSITORY") or "PROJECT_OWNER/dpaudit"
    for path in sorted(FOLDER.glob("*.ipynb")):
        if len(sys.argv) == 1 or path.stem in sys.argv[1:]:
            print(path.name, flush=True)
            execute(path, repository)


if __name__ == "__main__":
    main()
