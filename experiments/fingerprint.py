"""Fingerprints a program by its source: it changes with what the program does, not with what it says.

    fingerprint.of_module("trust.fault_zoo")   # of that file, and all of this repository that it imports

Comments, docstrings, names of files and line numbers are left out. It is the same on every machine.
"""

import ast
import hashlib
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGES = ("dpaudit", "experiments", "kernels")
DIGITS = 16
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def of(*parts: Any) -> str:
    """The first digits of the SHA-256 of JSON values."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


@cache
def of_module(name: str) -> str | None:
    """Of a module of this folder and of every module that it imports, and they, from this repository.

    None where there is no such module.
    """
    first = f"experiments.{name}"
    return of([(module, of_source(_file(module))) for module in closure(first)]) if _file(first).is_file() else None


def closure(first: str) -> list[str]:
    """The modules of this repository that are imported on the way to this one, itself among them, in order."""
    found, ahead = set[str](), [first]
    while ahead:
        module = ahead.pop()
        if module not in found:
            found.add(module)
            ahead += imported(module)
    return sorted(found)


@cache
def imported(module: str) -> tuple[str, ...]:
    """The modules of this repository that one imports itself, with the packages that they lie in."""
    file, names = _file(module), set[str]()
    for node in ast.walk(_parsed(file)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            here = module.split(".") if file.name == "__init__.py" else module.split(".")[:-1]
            base = here[: len(here) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            names |= {origin} | {f"{origin}.{alias.name}" for alias in node.names}
    parts = [name.split(".") for name in names if name.split(".")[0] in PACKAGES]
    whole = {".".join(part[:depth]) for part in parts for depth in range(1, len(part) + 1)}
    return tuple(sorted(name for name in whole if _file(name).is_file()))


@cache
def of_source(file: Path) -> str:
    """Of one file."""
    return of(list(_spelled(_parsed(file))))


def _spelled(node: Any) -> Iterator[Any]:
    """A syntax tree, less its docstrings, positions and empty fields, which differ among versions of Python."""
    if isinstance(node, ast.AST):
        yield type(node).__name__
        for field, value in ast.iter_fields(node):
            if field == "body" and isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
                value = value[1:]
            if value is not None and value != []:
                yield field
                yield list(_spelled(value))
    elif isinstance(node, list):
        for each in node:
            yield list(_spelled(each))
    else:
        yield repr(node)


@cache
def _parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def _file(module: str) -> Path:
    """Where a module or a package lies; a file that is not there for any other name."""
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
