"""Writes the pages of results and their figures from the committed rows: RESULTS.md of each folder, and README.md.

A folder's ``template.md`` makes RESULTS.md, and another, such as ``template_cost.md``, COST.md.

make results
python -m experiments.make_results paper000    # this folder's page alone
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from dpaudit.report.rows import replace_text
from experiments import overview
from experiments.pages import FOLDERS, HERE, Row, filled, page_of, rows_of

LINES = 300  # of a page, at most
MOST = {"README.md": 160}


def texts_of(folder: str, rows: Sequence[Row]) -> dict[str, str]:
    """Returns a folder's pages by their names; the figures are expected to have been drawn."""
    found = {}
    for template in sorted((HERE / folder).glob("template*.md")):
        name = template.stem.removeprefix("template").removeprefix("_").upper() or "RESULTS"
        text = template.read_text(encoding="utf-8")
        found[f"{name}.md"] = filled(text, page_of(folder), rows, f"{folder}/{template.name}")
    return found


def write(file: Path, text: str) -> None:
    """Writes a page that is no longer than it may be."""
    lines = text.strip().splitlines()
    most = MOST.get(file.name, LINES)
    if len(lines) > most:
        raise SystemExit(f"{file}: expected at most {most} lines, got {len(lines)}")
    replace_text(file, "\n".join(lines) + "\n")
    print(f"{file.relative_to(HERE)}: {len(lines)} lines")


def main() -> None:
    wanted = sys.argv[1:]
    for folder in wanted or FOLDERS:
        rows, page = rows_of(folder), page_of(folder)
        if hasattr(page, "draw"):
            page.draw(rows, HERE / folder / "results")
        for name, text in texts_of(folder, rows).items():
            write(HERE / folder / name, text)
    if wanted:
        return
    template = (HERE / "template.md").read_text(encoding="utf-8")
    write(HERE / "README.md", filled(template, overview, [], "experiments/template.md"))


if __name__ == "__main__":
    main()
