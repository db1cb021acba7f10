"""Writes the pages of results and their figures from the committed rows: RESULTS.md of each folder, and README.md.

make results
python -m experiments.make_results paper000    # this folder's page alone
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from dpaudit.report.rows import replace_text
from experiments import overview
from experiments.pages import FOLDERS, HERE, Row, filled, page_of, rows_of

MOST = {"README.md": 150, "RESULTS.md": 360}  # lines


def text_of(folder: str, rows: Sequence[Row]) -> str:
    """Returns a folder's page; the figures are expected to have been drawn."""
    template = (HERE / folder / "template.md").read_text(encoding="utf-8")
    return filled(template, page_of(folder), rows, f"{folder}/template.md")


def write(file: Path, text: str) -> None:
    """Writes a page that is no longer than it may be."""
    lines = text.strip().splitlines()
    if len(lines) > MOST[file.name]:
        raise SystemExit(f"{file}: expected at most {MOST[file.name]} lines, got {len(lines)}")
    replace_text(file, "\n".join(lines) + "\n")
    print(f"{file.relative_to(HERE)}: {len(lines)} lines")


def main() -> None:
    wanted = sys.argv[1:]
    for folder in wanted or FOLDERS:
        rows, page = rows_of(folder), page_of(folder)
        if hasattr(page, "draw"):
            page.draw(rows, HERE / folder / "results")
        write(HERE / folder / "RESULTS.md", text_of(folder, rows))
    if wanted:
        return
    template = (HERE / "template.md").read_text(encoding="utf-8")
    write(HERE / "README.md", filled(template, overview, [], "experiments/template.md"))


if __name__ == "__main__":
    main()
