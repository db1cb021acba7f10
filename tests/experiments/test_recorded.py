"""Faults of the kinds of dp-recorder's own tests are found, mended twins are not accused, and rows are committed."""

import pytest

from dpaudit.report.rows import read_rows
from experiments.common import results
from experiments.libraries import recorded


@pytest.fixture(scope="module")
def committed():
    return [row["setting"] for row in read_rows(results("recorded"))]


@pytest.mark.parametrize("kind", recorded.CASES)
@pytest.mark.parametrize("mended", [False, True])
def test_a_case_is_the_committed_row(kind, mended, committed):
    found = recorded.by_dpaudit(*recorded.CASES[kind], mended=mended)
    assert found["verdict"] == ("consistent" if mended else "violation")
    (row,) = (row for row in committed if (row["kind"], row["mended"]) == (kind, mended))
    assert [found[name] for name in ("verdict", "findings")] == [row[name] for name in ("verdict", "findings")]
    assert row["dp_recorder"]["found"] is not mended


def test_a_library_s_fault_is_found_by_both_and_its_fix_is_not_accused():
    versions = {row["setting"]["mended"]: row["setting"] for row in read_rows(results("replayed"))}
    assert {mended: at["dp_recorder"]["found"] for mended, at in versions.items()} == {False: True, True: False}
    assert (versions[False]["verdict"], versions[False]["findings"]) == ("fault", ["data_dependent_shape"])
    assert (versions[True]["verdict"], versions[True]["findings"]) == ("underpowered", [])
    for at in versions.values():
        assert not any("/" in one and one.split(" at ")[-1].startswith("/") for one in at["left"])
