"""Options that cannot be used are refused in one line: argument, what was expected, value."""

import os
import re

import pytest

from dpaudit.cli import main, options

REFUSED = {
    "": "command: expected one of ldp, audit, examine, train, plan, data, secure, got none",
    "foo": "command: expected one of ldp, audit, examine, train, plan, data, secure, got foo",
    "secure foo": "command: expected one of server, keys, train, got foo",
    "ldp --epsilonn 3": "--epsilonn, 3: expected options that --help lists, perhaps --epsilon",
    "audit a.py:b c": "c: expected options that --help lists",
    "ldp --epsilon": "--epsilon: expected a value, got none",
    "ldp --data": "--data: expected a value, got none",
    "ldp --epsilon 1 b c": "--epsilon: expected numbers, got 1 b c",
    "ldp --trials": "--trials: expected a value, got none",
    "ldp --trials 1.5": "--trials: expected a whole number, got 1.5",
    "ldp --trials it's": "--trials: expected a whole number, got it's",
    "plan --trials 1.5": "--trials: expected a whole number, got 1.5",
    "plan --epsilon=x": "--epsilon: expected a number, got x",
    "ldp --mechanism x": "--mechanism: expected one of ldp_sgd, gaussian, privunit, got x",
    "secure server --role 3": "--role: expected one of h1, h2, got 3",
    "examine": "FILE:NAME: expected a value, got none",
    "secure train": "FILE:NAME, --owners, --batch-size, --steps: expected a value each, got none",
    "secure keys --owners --out folder": "--owners: expected a value, got none",
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_cannot_be_parsed_is_refused_in_one_line(monkeypatch, capsys, line):
    monkeypatch.setattr("sys.argv", ["dpaudit", *line.split()])
    monkeypatch.setenv("COLUMNS", "40")  # where the parser's own box breaks every line
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 2
    assert capsys.readouterr() == ("", f"dpaudit: {REFUSED[line]}\n")


@pytest.mark.parametrize("line", ["ldp --epsilon 1 2", "secure train a.py:b --owners c --batch-size 1 --steps 2"])
def test_what_can_be_used_is_parsed_without_a_word(capsys, line):
    assert main.parsed(line.split())
    assert capsys.readouterr() == ("", "")


def test_help_is_printed_as_wide_as_the_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    with pytest.raises(SystemExit) as ended:
        main.parsed(["examine", "--help"])
    assert not ended.value.code
    said = capsys.readouterr()
    assert said.err == ""
    assert "FILE:NAME" in said.out
    assert max(len(rule) for rule in re.findall("[─-]+", said.out)) in range(50, 61)


def test_a_refusal_of_an_unknown_form_is_its_first_paragraph():
    box = "╭─ Strange ─╮\n│ It is      │\n│   odd.     │\n│ ────────── │\n│ See --help │\n╰────────────╯\n"
    assert options.one_line(box) == "It is odd."
    assert options.one_line("what is no box") == "expected options that --help lists"


def test_the_environment_is_left_as_it_was(monkeypatch):
    monkeypatch.setenv("COLUMNS", "77")
    monkeypatch.delenv("NO_COLOR", raising=False)
    before = dict(os.environ)
    with pytest.raises(SystemExit):
        main.parsed(["foo"])
    assert dict(os.environ) == before
