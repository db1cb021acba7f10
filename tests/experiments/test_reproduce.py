"""Committed rows are made again from what they carry, and a row that its command does not make is found."""

import functools
import inspect
import json
import math
import sys

import pytest

from dpaudit import InputError
from dpaudit.report.rows import write_rows
from experiments import common, fingerprint, reproduce
from experiments.common import HERE, Rows, read_all, results


def committed(name):
    return read_all(results(name))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Results of our own in place of the committed ones."""
    monkeypatch.setattr(reproduce, "HERE", tmp_path)
    (tmp_path / "folder" / "results").mkdir(parents=True)
    return tmp_path / "folder" / "results"


@pytest.mark.parametrize("name", ["spgc", "ldp_client_audit"])
def test_a_sample_of_the_committed_rows_is_made_again(name, capsys):
    assert reproduce.reproduce(name, committed(name), 5.0, None, every=False), capsys.readouterr().out
    assert "rows are the same" in capsys.readouterr().out


@pytest.mark.parametrize("field", ["ours", "scale", "setting"])
def test_a_row_that_was_changed_is_found(folder, capsys, field):
    rows = committed("spgc")
    found = next(row for row in rows if row["quantity"] == "outside" and row["ours"] > 0.1)
    if field == "setting":
        found["setting"]["noise_multiplier"] *= 1.01
    else:
        found[field] = found["ours"] * 1.001 if field == "ours" else "another"
    write_rows(rows, folder / "spgc.json")
    assert reproduce.main(["--only", "spgc"]) == 1
    said = capsys.readouterr().out
    assert "spgc.outside(): 10 rows differ" in said
    assert f": {field} is" in said


def test_a_row_that_a_part_no_longer_makes_is_found(folder, capsys):
    rows = committed("spgc")
    rows.remove(next(row for row in rows if row["quantity"] == "outside"))
    write_rows(rows, folder / "spgc.json")
    assert reproduce.main(["--only", "spgc"]) == 1
    assert "9 rows are committed, 10 were made" in capsys.readouterr().out


def test_rows_that_carry_another_part_s_fingerprint_are_refused(folder):
    rows = committed("spgc")
    next(row for row in rows if row["quantity"] == "outside")["made_by"]["at"] = 7
    write_rows(rows, folder / "spgc.json")
    with pytest.raises(InputError, match="outside: expected the fingerprint of what its row carries, got another"):
        reproduce.main(["--only", "spgc"])


def test_what_is_left_is_counted_and_a_program_that_has_changed_is_told(folder, capsys):
    rows = committed("spgc")
    for row in rows:
        if row["fingerprint"] is not None:
            row["made_by"] |= {"program": "0123456789abcdef"}
            row["fingerprint"] = fingerprint.of(row["made_by"], row["seed"])
    write_rows(rows, folder / "spgc.json")
    write_rows(rows[:3], folder / "bench_ldp.json")
    assert reproduce.main(["--only", "spgc"]) == 0
    said = capsys.readouterr().out
    assert "spgc.outside(): 10 rows are the same, by a program that has changed since" in said
    old = sum(row["fingerprint"] is None for row in rows)
    assert f"spgc: of {len(rows)} rows 10 can be made again, {old} are from before rows carried a fingerprint" in said
    assert "drawn in figures: 3 rows, left." in said


def test_the_key_of_a_part_is_that_of_its_place(tmp_path):
    """A part whose keys depend on the rows before it, behind others."""

    def part(rows, times):
        for _ in range(times):
            rows.add("q", {"place": len(rows.rows)}, float(len(rows.rows)), scale="")

    rows = Rows("", "spgc", str(tmp_path), 5)
    rows.run(part, 2)
    rows.run(part, 3)
    first, second = reproduce.parts_of(rows.rows, ["part"])
    assert (len(first.rows), len(second.rows)) == (2, 3)
    for one in (first, second):
        again = reproduce.made_again("spgc", one, part, None)
        assert list(reproduce.differences(one.rows, again, 0.0)) == []
    moved = reproduce.made_again("spgc", second._replace(at=1), part, None)
    assert len(list(reproduce.differences(second.rows, moved, 0.0))) == 6  # setting and number of each


def test_numbers_are_compared_within_rounding_and_times_are_not():
    assert reproduce.same(
        {"a": [1.0, "inf"], "fit_seconds": 1.0}, {"a": [1.00001, math.inf], "fit_seconds": 9.0}, 1e-4
    )
    assert not reproduce.same({"a": [1.0]}, {"a": [1.001]}, 1e-4)
    assert not reproduce.same({"a": None}, {"a": 0.0}, 1e-4)
    assert not reproduce.same({"a": 1.0}, {"b": 1.0}, 1e-4)
    assert not reproduce.same([1.0], [1.0, 1.0], 1e-4)
    assert not reproduce.same("violation", "consistent", 1e-4)


def test_the_sample_is_short_but_not_the_shortest():
    def taking(seconds):
        return reproduce.Part(str(seconds), {}, 0, 0, "", [{"seconds": seconds}])

    parts = [taking(seconds) for seconds in (0.1, 4.0, 50.0, 70.0)]
    assert [part.name for part in reproduce.sample(parts, 60.0, every=False)] == ["4.0"]
    assert [part.name for part in reproduce.sample(parts[2:], 60.0, every=False)] == ["50.0"]
    assert [part.name for part in reproduce.sample(parts, 60.0, every=True)] == ["0.1", "4.0", "50.0"]
    assert reproduce.sample(parts, 0.01, every=False) == []


def test_every_experiment_whose_rows_are_not_times_can_be_made_again_in_part():
    names = {file.stem.partition(".")[0] for file in HERE.glob("*/results/*.json")}
    names -= {name for name in names if name.startswith("bench") or name.endswith(("_rows", "_curves", "_records"))}
    assert names - set(reproduce.EXPERIMENTS) == set(reproduce.ELSEWHERE)
    for module in reproduce.EXPERIMENTS.values():
        assert module.REPRODUCIBLE
        assert all(name == part.__name__ for name, part in module.REPRODUCIBLE.items())
    assert names <= common.PROGRAMS.keys()


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize(
    "name",
    [
        "dp_sniper",
        "fault_zoo",
        "federated_audit",
        "personalization_audit",
        "personalization_protocols",
        "spgc_audit",
        "training_audit",
    ],
)
def test_a_command_is_made_of_parts_that_can_be_made_again(name, quick, tmp_path, monkeypatch):
    """With every part's name and arguments in its rows, and nothing of the place where it ran."""
    module, out = reproduce.EXPERIMENTS[name], ["--out", str(tmp_path), "--data-dir", str(tmp_path / "data")]

    def noted(part):
        @functools.wraps(part)
        def add(rows, *arguments, **named):
            rows.add("q", {}, 0.0, scale="")

        return add

    for part in module.REPRODUCIBLE.values():
        monkeypatch.setattr(module, part.__name__, noted(part))
    monkeypatch.setattr(sys, "argv", [name, *out, *["--quick"] * quick])
    made = []
    monkeypatch.setattr(module, "Rows", lambda *how, **named: made.append(Rows(*how, **named)) or made[-1])
    module.main()
    (rows,) = made
    assert rows.rows
    for place, row in enumerate(rows.rows):
        assert row["made_by"]["at"] == place
        inspect.signature(module.REPRODUCIBLE[row["made_by"]["part"]]).bind(rows, **row["made_by"]["arguments"])
        assert str(tmp_path) not in json.dumps(row)
    assert len(reproduce.parts_of(rows.rows, list(module.REPRODUCIBLE))) == len(rows.rows)
