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
    """Returns the first digits of the SHA-256 of JSON values."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


@cache
def of_module(name: str) -> str | None:
    """Returns the fingerprint of a module of this folder and of every module that it imports, and they, from this
    repository.

    None where there is no such module.
    """
    first = f"experiments.{name}"
    return of([(module, of_source(_file(module))) for module in closure(first)]) if _file(first).is_file() else None


def closure(first: str) -> list[str]:
    """Returns the modules of this repository that are imported on the way to this one, itself among them, in order."""
    found, ahead = set[str](), [first]
    while ahead:
        module = ahead.pop()
        if module not in found:
            found.add(module)
            ahead += imported(module)
    return sorted(found)


@cache
def imported(module: str) -> tuple[str, ...]:
    """Returns the modules of this repository that one imports or uses itself, with the packages that they lie in."""
    file, names, bound = _file(module), set[str](), dict[str, str]()
    for node in _run(_parsed(file)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
            bound |= {alias.asname or alias.name.split(".")[0]: alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            here = module.split(".") if file.name == "__init__.py" else module.split(".")[:-1]
            base = here[: len(here) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            names.add(origin)
            for alias in node.names:
                found = _inside(origin, alias.name)
                names.add(found)
                bound[alias.asname or alias.name] = found
    for node in _run(_parsed(file)):
        if isinstance(node, ast.Attribute):
            names |= set(_reached(node, bound))
    parts = [name.split(".") for name in names if name.split(".")[0] in PACKAGES]
    whole = {".".join(part[:depth]) for part in parts for depth in range(1, len(part) + 1)}
    return tuple(sorted(name for name in whole if _file(name).is_file()))


def _run(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the nodes of a tree that run; imports for a type checker do not."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield from _run(child)


@cache
def _public(package: str) -> dict[str, str]:
    """Where a package's public names lie, which it loads on first use and lists for a type checker."""
    file = _file(package)
    if package.split(".")[0] not in PACKAGES or file.name != "__init__.py" or not file.is_file():
        return {}
    checked = [node for node in _parsed(file).body if isinstance(node, ast.If)]
    imports = [node for block in checked for node in block.body if isinstance(node, ast.ImportFrom) and node.module]
    return {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        if _file(f"{node.module}.{alias.name}").is_file()
        else str(node.module)
        for node in imports
        for alias in node.names
    }


def _inside(package: str, name: str) -> str:
    return _public(package).get(name, f"{package}.{name}")


def _reached(node: ast.Attribute, bound: dict[str, str]) -> Iterator[str]:
    """Yields the modules that a dotted name goes through, such as that of ``audit`` in ``dpaudit.audit``."""
    dotted = ast.unparse(node).split(".")
    place = bound.get(dotted[0], "")
    for name in dotted[1:]:
        if not place or _file(place).name != "__init__.py":
            return
        place = _inside(place, name)
        yield place


@cache
def of_source(file: Path) -> str:
    """Returns the fingerprint of one file."""
    return of(list(_spelled(_parsed(file))))


def _spelled(node: Any) -> Iterator[Any]:
    """Yields a syntax tree, less its docstrings, positions and empty fields, which differ among versions of Python."""
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
