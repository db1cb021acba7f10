"""Rows on disk: what is written is read, whole or not at all; an output directory that cannot be used is refused."""

import json
import math
import os
import tempfile

import pytest

from dpaudit._validate import InputError
from dpaudit.report.rows import prepare_out, read_rows, write_rows
from tests.report.samples import computed, row


def test_round_trip_with_infinity_and_none(tmp_path):
    file = tmp_path / "results.json"
    write_rows([row(epsilon_upper=math.inf, dataset="größe"), computed(), row(epsilon_hat="inf")], file)
    expected = [row(epsilon_upper="inf", dataset="größe"), computed(), row(epsilon_hat="inf")]
    assert read_rows(file) == expected
    assert os.listdir(tmp_path) == ["results.json"]
    json.loads(file.read_text(encoding="utf-8"), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_infinity_within_a_field_and_a_file_name_that_is_no_text(tmp_path):
    file = tmp_path / "results.json"
    write_rows([{"more": [{"detectable": math.inf, "ends": [-math.inf, 1.0]}], "target": "\udcff.py:f"}], file)
    (found,) = read_rows(file)
    assert found == {"more": [{"detectable": "inf", "ends": ["-inf", 1.0]}], "target": "\udcff.py:f"}


def test_one_field_a_line(tmp_path):
    write_rows([row()], tmp_path / "results.json")
    assert '  "craft": "benign",\n' in (tmp_path / "results.json").read_text()


def test_a_list_of_numbers_takes_one_line_and_a_field_of_its_own_each(tmp_path):
    file = tmp_path / "results.json"
    rows = [{"a": [1.5, None, 2], "b": {"c": [[1, 2], []], "größe": {}, "d": [{"e": "x\n"}]}}, {"f": [], "g": "]"}]
    write_rows(rows, file)
    assert read_rows(file) == rows
    lines = file.read_text(encoding="utf-8").splitlines()
    assert lines[:6] == ["[", " {", '  "a": [1.5, null, 2],', '  "b": {', '   "c": [', "    [1, 2],"]
    assert lines[-4:] == ['  "f": [],', '  "g": "]"', " }", "]"]
    with pytest.raises(InputError, match="values that JSON knows"):
        write_rows([{"a": [[math.nan]]}], file)
    assert read_rows(file) == rows


def test_what_json_does_not_know_is_refused_and_the_old_file_stays(tmp_path):
    file = tmp_path / "results.json"
    write_rows([row()], file)
    with pytest.raises(InputError, match=r"^rows: expected values that JSON knows, got .*nan"):
        write_rows([row(epsilon_hat=math.nan)], file)
    assert read_rows(file) == [row()]


def test_two_processes_that_write_one_file_leave_a_whole_one(tmp_path, monkeypatch):
    file, sync = tmp_path / "results.json", os.fsync

    def meanwhile(descriptor: int) -> None:
        monkeypatch.setattr(os, "fsync", sync)
        write_rows([row(), row()], file)  # as another process would
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", meanwhile)
    write_rows([row()], file)
    assert read_rows(file) == [row()]
    assert os.listdir(tmp_path) == ["results.json"]


def test_a_kill_while_writing_leaves_the_old_file(tmp_path, monkeypatch):
    file = tmp_path / "results.json"
    write_rows([row()], file)

    def killed(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", killed)
    with pytest.raises(KeyboardInterrupt):
        write_rows([row(), row()], file)
    assert read_rows(file) == [row()]


@pytest.mark.parametrize(
    "content, found",
    [
        (b'[{"a": 1}, {"b"', r"other text \("),
        (b"", r"other text \("),
        (b"\xff\xfe\x00", r"other text \("),
        (b'[{"a": NaN}]', r"other text \(NaN is not JSON\)"),
        (b'{"a": 1}', r"a JSON dict"),
        (b"[1, 2]", r"a JSON list of something else"),
    ],
)
def test_torn_and_foreign_files_are_refused_in_one_line(tmp_path, content, found):
    file = tmp_path / "results.json"
    file.write_bytes(content)
    with pytest.raises(
        InputError, match=rf"^results\.json: expected a JSON list of result rows, got {found}"
    ) as caught:
        read_rows(file)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


def test_missing_file_and_missing_directory(tmp_path):
    with pytest.raises(InputError, match=r"^results\.json: expected a JSON list .*No such file"):
        read_rows(tmp_path / "results.json")
    with pytest.raises(InputError, match=r"^results\.json: expected a file that can be written, got No such file"):
        write_rows([row()], tmp_path / "nowhere" / "results.json")


def test_out_is_made_and_an_empty_one_is_taken(tmp_path):
    out = prepare_out(tmp_path / "a" / "b", force=False)
    assert out.is_dir()
    assert prepare_out(str(out), force=False) == out
    assert list(out.iterdir()) == []


def test_out_that_holds_something_needs_force(tmp_path):
    (tmp_path / "kept").write_text("precious")
    with pytest.raises(InputError, match=r"^--out: expected a new or empty directory, or --force .*, got /"):
        prepare_out(tmp_path, force=False)
    assert prepare_out(tmp_path, force=True) == tmp_path
    assert (tmp_path / "kept").read_text() == "precious"


def test_out_that_is_a_file_or_lies_below_one(tmp_path):
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(InputError, match=r"^--out: expected a directory, got the file "):
        prepare_out(file, force=True)
    with pytest.raises(InputError, match=r"^--out: expected a directory that can be written, got Not a directory"):
        prepare_out(file / "below", force=True)


def test_out_that_cannot_be_written(tmp_path, monkeypatch):
    def denied(**named: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", denied)
    with pytest.raises(InputError, match=r"^--out: expected a directory that can be written, got Permission denied"):
        prepare_out(tmp_path, force=False)
