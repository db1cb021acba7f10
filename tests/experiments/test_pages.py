"""The template language: marks are replaced, sentences must hold, and no number is typed by hand."""

import random
import re
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from experiments import make_results, overview, pages
from experiments.pages import Untrue, fact, filled

ROWS = [{"quantity": "epsilon", "setting": {"data": "mnist"}, "ours": 3.5, "ours_low": 3.0, "ours_high": 4.0}]
PAGE: Any = SimpleNamespace(
    table=lambda rows: pages.table(["data", "ε"], [["mnist", pages.ranged(rows[0])]]),
    bound=lambda rows: fact(rows[0]["ours"] < 4, most=rows[0]["ours"], bounds=pages.interval(rows[0])),
)


def test_marks_are_replaced_by_what_the_page_makes_of_the_rows():
    text = filled("# Title\n\n[[table]]\n\n[[bound: At most {most:.1f}, within {bounds}.]] More.\n", PAGE, ROWS)
    table = "| data | ε |\n| --- | ---: |\n| mnist | 3.50 [3.00, 4.00] |"
    assert text == f"# Title\n\n{table}\n\nAt most 3.5, within [3.00, 4.00]. More.\n"


def test_a_sentence_that_no_longer_holds_ends_the_build():
    other = [ROWS[0] | {"ours": 4.5}]
    with pytest.raises(Untrue, match=re.escape("page.md: bound no longer holds: At most 4.5 of all.")):
        filled("[[bound: At most {most:.1f}\nof all.]]", PAGE, other, "page.md")


@pytest.mark.parametrize("prose", ["It takes 3 hours.", "[[bound: At most 4 of {most}.]]", "| a | 0.96 |"])
def test_a_number_typed_by_hand_ends_the_build(prose):
    with pytest.raises(Untrue, match=r"expected numbers from rows, got '(3|4|0\.96)' typed by hand in: "):
        filled(prose, PAGE, ROWS)


@pytest.mark.parametrize(
    "prose", ["Table 1 and Section 6.2.2", "noise of 2C by CNN32, RQ1", "`python -m x --delta 1e-5`", "![a](b/c1.png)"]
)
def test_numbers_that_name_something_are_no_numbers(prose):
    assert filled(prose, PAGE, ROWS) == prose


def test_what_a_verdict_is_called():
    said = [pages.Verdict(holds, "", "").word for holds in (True, False, None)]
    assert said == ["holds", "fails", "open"]
    assert [pages.from_interval(*ends) for ends in ((0.1, 1), (-1, -0.1), (-1, 1), (0, 1))] == [
        True,
        False,
        None,
        None,
    ]


@pytest.mark.parametrize("folder", pages.FOLDERS)
def test_a_committed_page_is_what_its_template_and_rows_make(folder):
    made = make_results.texts_of(folder, pages.rows_of(folder))
    assert "RESULTS.md" in made
    assert {file.name for file in (pages.HERE / folder).glob("*.md") if file.stem.isupper()} == {*made}
    for name, text in made.items():
        committed = (pages.HERE / folder / name).read_text(encoding="utf-8")
        assert text.strip() == committed.strip()
        for file in re.findall(r"!\[[^]]*\]\(([^)]*)\)", committed):
            assert (pages.HERE / folder / file).exists(), file
        assert len(committed.splitlines()) <= make_results.LINES


def said(text: str) -> Counter[Any]:
    """Counts what lines say: of a line the words, of a line of a table the words of each cell with its column."""
    found, header = Counter(), None
    for line in text.splitlines():
        cells = [tuple(sorted(cell.strip(".,;:()") for cell in part.split())) for part in line.split("|")]
        header = (header or cells) if line.startswith("|") else None
        found[tuple(sorted(zip(header or cells, cells, strict=True)))] += 1
    return found


def test_rows_are_grouped_by_what_they_are_not_by_where_they_stand():
    one, two, three = rows = [
        {"setting": {"fault": f, "data": d}} for f, d in (("no", "a"), ("yes", "b"), ("yes", "a"))
    ]
    assert pages.grouped(rows, "fault", "data") == [{"no": one, "yes": three}, {"yes": two}]
    with pytest.raises(ValueError, match=r"one row of fault = 'yes' among those that agree in \(\), got two: "):
        pages.grouped(rows, "fault")


@pytest.mark.parametrize("folder", pages.FOLDERS)
def test_a_page_says_the_same_of_rows_in_another_order(folder, monkeypatch):
    def joined(template: str) -> str:
        """Puts a sentence that rows fill on one line, since its numbers decide where lines of a list would end."""
        return pages.MARK.sub(lambda mark: f"\n{' '.join(mark[0].split())}\n", template)

    rows, filled = pages.rows_of(folder), make_results.filled
    monkeypatch.setattr(make_results, "filled", lambda template, *more: filled(joined(template), *more))
    triples = [row for row in rows if "training" in row["setting"]]  # which stand together: AUDITS.md of paper 003
    others = [row for row in rows if "training" not in row["setting"]]
    mixed = [*random.Random(0).sample(others, len(others)), *triples[::-1]]
    made, other = (make_results.texts_of(folder, order) for order in (rows, mixed))
    assert {name: said(text) for name, text in made.items()} == {name: said(text) for name, text in other.items()}


def test_the_first_page_is_what_the_folders_rows_make():
    template = (pages.HERE / "template.md").read_text(encoding="utf-8")
    committed = (pages.HERE / "README.md").read_text(encoding="utf-8")
    assert filled(template, overview, []).strip() == committed.strip()
    assert len(committed.splitlines()) <= make_results.MOST["README.md"]
    for folder in pages.FOLDERS:
        assert f"({folder}/RESULTS.md)" in committed


def test_a_page_is_not_written_longer_than_it_may_be(tmp_path, monkeypatch):
    monkeypatch.setattr(make_results, "HERE", tmp_path)
    with pytest.raises(SystemExit, match="expected at most 160 lines, got 161"):
        make_results.write(tmp_path / "README.md", "x\n" * 161)
