"""Parses the options of a command line, and says in one line which of them cannot be used."""

import dataclasses
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from io import BytesIO, StringIO, TextIOWrapper
from typing import Any

import tyro

from dpaudit.cli.command import tell

KINDS = {"INT": "a whole number", "FLOAT": "a number", "INTS": "whole numbers", "FLOATS": "numbers"}
UNBROKEN = {"COLUMNS": "10000", "NO_COLOR": "1"}  # a refusal's lines are as long as its sentences
BOX = re.compile(r"^│ (.*?) *│$", re.MULTILINE)
RULE = re.compile(r"^─+$", re.MULTILINE)
UNREADABLE = re.compile(r"""Error parsing (\S+): .*?(\[.*\]|'[^']*'|"[^"]*")\.?""")


def parsed_as(commands: Any, arguments: Sequence[str] | None, *, prog: str, description: str) -> Any:
    """Returns the one of ``commands`` that the arguments, by default those of the process, name, with its options.

    Raises:
      SystemExit: 0 after help was printed, 2 after a line on standard error that names the argument, what was expected
        and what was given.
    """

    def parse() -> Any:
        flags = (tyro.conf.FlagCreatePairsOff,)
        return tyro.cli(commands, args=arguments, prog=prog, description=description, config=flags)

    try:
        with redirect_stderr(StringIO()):
            command = parse()
        refused = _without_values(command)
    except SystemExit as ended:
        if not ended.code:
            raise
        boxes = redirect_stdout(TextIOWrapper(BytesIO(), encoding="utf-8"))  # to an encoding without, none are drawn
        with _environment(UNBROKEN), boxes, redirect_stderr(StringIO()) as said, suppress(SystemExit):
            parse()
        refused = one_line(said.getvalue())
    if not refused:
        return command
    tell(f"{prog}: {refused}")
    sys.exit(2)


def _without_values(command: Any) -> str:
    """Refuses an option of several values, such as ``--epsilon``, that has none."""
    for field in dataclasses.fields(command):
        value = getattr(command, field.name)
        if dataclasses.is_dataclass(value) and (refused := _without_values(value)):
            return refused
        if value == () != field.default:
            return f"--{field.name.replace('_', '-')}: expected a value, got none"
    return ""


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets variables for a while."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def one_line(said: str) -> str:
    """Writes the parser's box, a paragraph above and its hints below a rule, as ``<name>: expected ..., got ...``; one
    of an unknown form as its first paragraph."""
    what, *hints = RULE.split("\n".join(BOX.findall(said)))
    line, hint = " ".join(what.split()), "\n".join(hints)
    if found := re.fullmatch(r"Unrecognized options: (.+)", line):
        if known := re.search(r"Available subcommands: (.+)", hint):
            return f"command: expected one of {known[1].strip()}, got {found[1]}"
        near = re.search(r"^ +(--[\w-]+)", hint, re.MULTILINE)
        return f"{found[1]}: expected options that --help lists" + (f", perhaps {near[1]}" if near else "")
    if found := UNREADABLE.fullmatch(line):
        values = (value for _, value in re.findall(r"(['\"])(.*?)\1", found[2]))
        return f"{found[1]}: expected {_kind(found[1], hint)}, got {' '.join(values)}"
    if found := re.fullmatch(r"invalid choice '(.*)' for argument '(.+)'\. Expected one of \((.+)\)\.", line):
        choices = re.findall(r"'([^']*)'", found[3])
        return f"{found[2]}: expected one of {', '.join(choices)}, got {found[1]}"
    if found := re.fullmatch(r"Missing value for argument '(.+)'\. Expected (\d+) values\.", line):
        return f"{found[1]}: expected {'a value' if found[2] == '1' else f'{found[2]} values'}, got none"
    if found := re.fullmatch(r"Expected one of \{(.+)\}\.", line):
        return f"command: expected one of {found[1]}, got none"
    if line.startswith("Missing from "):
        names = re.findall(r"^ {4}(\S+)", what, re.MULTILINE)
        return f"{', '.join(names)}: expected {'a value' if len(names) == 1 else 'a value each'}, got none"
    return line or "expected options that --help lists"


def _kind(option: str, hint: str) -> str:
    """Returns in words what an option takes: its help has ``INT``, ``{None}|INT`` or ``[INT [INT ...]]``."""
    shape = re.search(rf"^ +{re.escape(option)} (?:\{{None\}}\|)?(\[?)(\w+)", hint, re.MULTILINE)
    return KINDS.get(shape[2] + "S" * bool(shape[1]), shape[2]) if shape else "another value"
