"""The page of accelerators is made of the committed rows, and says that its numbers are bounds."""

from experiments.bench import accelerators_page
from experiments.bench.accelerators import SCALE


def test_the_page_is_that_of_the_rows() -> None:
    assert accelerators_page.PAGE.read_text(encoding="utf-8") == accelerators_page.page()
    now = accelerators_page.Read(accelerators_page.NOW)
    assert {"full, d = 26,010", "federated round, 1,000 x 5"} <= set(now.programs("h100")) & set(now.programs("v5e"))


def test_every_row_says_that_it_is_a_bound() -> None:
    rows = accelerators_page.read_rows(accelerators_page.NOW)
    assert len(rows) > 200
    assert {row["scale"] for row in rows} == {SCALE}
    assert "not a time" in SCALE
    assert "Bounds, not times" in accelerators_page.page()
