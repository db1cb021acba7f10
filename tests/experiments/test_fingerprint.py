"""A fingerprint is of what a program does, and rows carry it."""

import subprocess
import sys

import pytest

from dpaudit.report.rows import read_rows
from experiments import fingerprint
from experiments.common import HERE, Rows, files_of

SOURCE = '''"""Adds."""
import math  # for pi

def more(x: float, y: float = 1.0) -> float:
    """Returns more."""
    return x + y * math.pi
'''
SAME = {
    "a comment": SOURCE.replace("# for pi", "# for its pi"),
    "no comment": SOURCE.replace("  # for pi", ""),
    "docstrings": SOURCE.replace('"""Adds."""', '"""Adds up."""').replace('"""Returns more."""\n    ', ""),
    "lines": SOURCE.replace("\n", "\n\n").replace("x + y", "(x + y)").replace("(x + y)", "x + y"),
}
OTHER = {
    "a number": SOURCE.replace("1.0", "1.5"),
    "an operator": SOURCE.replace("x + y", "x - y"),
    "a name": SOURCE.replace("math.pi", "math.tau"),
    "a type": SOURCE.replace("1.0", "1"),
}


def of_text(folder, text):
    file = folder / f"{abs(hash(text))}.py"
    file.write_text(text)
    return fingerprint.of_source(file)


@pytest.mark.parametrize("change", SAME)
def test_what_is_only_said_leaves_a_fingerprint_alone(tmp_path, change):
    assert SAME[change] != SOURCE
    assert of_text(tmp_path, SAME[change]) == of_text(tmp_path, SOURCE)


@pytest.mark.parametrize("change", OTHER)
def test_what_is_done_changes_it(tmp_path, change):
    assert of_text(tmp_path, OTHER[change]) != of_text(tmp_path, SOURCE)


def test_all_that_is_imported_on_the_way_counts_and_nothing_else():
    found = fingerprint.closure("experiments.paper002.audit")
    for module in (
        "experiments.paper002.audit",
        "experiments.common",
        "dpaudit._validate",
        "dpaudit.federated.clients",
    ):
        assert module in found  # the last but one is imported by others alone
    assert not {"experiments.paper001.run", "dpaudit.secure.circuits.garbling"} & set(found)
    assert fingerprint.of_module("paper002.audit") != fingerprint.of_module("paper001.cost")
    assert fingerprint.of_module("nowhere") is None


def test_another_process_finds_the_same():
    code = "from experiments import fingerprint; print(fingerprint.of_module('paper002.audit'))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.strip() == fingerprint.of_module("paper002.audit")


def test_a_row_carries_what_made_it(tmp_path):
    def part(rows, number, *, name="a"):
        rows.add("q", {}, number, scale=name)

    rows = Rows("", "federated_audit", str(tmp_path), 3)
    rows.add("before", {}, 0.0, scale="")
    rows.run(part, 1.5)
    rows.run(part, 1.5)
    rows.run(part, 1.5, name="b")
    rows.add("after", {}, 0.0, scale="")
    before, *made, after = rows.rows
    program = fingerprint.of_module("paper002.audit")
    assert program is not None
    assert before["made_by"] == after["made_by"] == {"program": program, "part": None, "arguments": None, "at": None}
    assert [row["made_by"]["at"] for row in made] == [1, 2, 3]
    assert made[2]["made_by"] == {
        "program": program,
        "part": "part",
        "arguments": {"number": 1.5, "name": "b"},
        "at": 3,
    }
    assert len({row["fingerprint"] for row in rows.rows}) == 4
    other = Rows("", "federated_audit", str(tmp_path), 4)
    other.add("before", {}, 0.0, scale="")
    assert other.rows[0]["fingerprint"] != before["fingerprint"]  # of another seed


def test_rows_in_files_beside_are_kept_with_the_others_and_a_file_without_rows_goes(tmp_path):
    def begun(**named):
        return Rows("", "federated_audit", str(tmp_path), 0, beside=lambda row: row["scale"], **named)

    def kept():
        return {
            file.name: [row["quantity"] for row in read_rows(file)] for file in files_of(tmp_path / "results.json")
        }

    rows = begun()
    for quantity, scale in (("a", ""), ("b", "large"), ("c", "large"), ("d", "long")):
        rows.add(quantity, {}, 0.0, scale=scale)
    rows.finish_part("")
    assert kept() == {"results.json": ["a"], "results.large.json": ["b", "c"], "results.long.json": ["d"]}
    (tmp_path / "results_rows.json").write_text("[]")
    rows = begun(keep=True)
    rows.add("b", {}, 0.0, scale="long")
    rows.finish_part("")
    assert kept() == {"results.json": ["a"], "results.large.json": ["c"], "results.long.json": ["d", "b"]}
    rows = begun()
    rows.add("a", {}, 0.0, scale="long")
    rows.finish_part("")
    assert kept() == {"results.json": [], "results.long.json": ["a"]}
    assert (tmp_path / "results_rows.json").exists()


def test_a_kill_loses_no_row_that_moves_to_a_file_beside(tmp_path, monkeypatch):
    rows = Rows("", "federated_audit", str(tmp_path), 0)
    rows.add("a", {}, 0.0, scale="")
    rows.finish_part("")
    write, written = Rows.write, []

    def killed(self, own, ending=""):
        write(self, own, ending)
        written.append(ending)
        raise KeyboardInterrupt

    rows = Rows("", "federated_audit", str(tmp_path), 0, keep=True, beside=lambda row: "large")
    monkeypatch.setattr(Rows, "write", killed)
    with pytest.raises(KeyboardInterrupt):
        rows.finish_part("")
    assert written == [".large"]
    assert [row["quantity"] for row in read_rows(tmp_path / "results.large.json")] == ["a"]
    assert (tmp_path / "results.json").exists()


@pytest.mark.parametrize("file", sorted(HERE.glob("*/results/*.json")), ids=lambda file: file.stem)
def test_every_committed_row_says_what_made_it_or_which_commit_added_it(file):
    rows = read_rows(file)
    assert rows
    for row in rows:
        if "_records" in file.stem:  # of whole runs, as a work folder keeps them
            assert row["identity"].keys() == {"key", "start", "program", "data", "test"}
        elif row["fingerprint"] is None:
            assert len(row["made_by"]["commit"]) == 12
        else:
            assert len(row["fingerprint"]) == fingerprint.DIGITS
            assert row["made_by"].keys() == {"program", "part", "arguments", "at"}
