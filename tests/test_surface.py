"""The public surface: every package's ``__all__`` with signatures is the text of surface.txt, so a change is seen.

``python -m tests.test_surface`` writes the text anew.
"""

import ast
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, get_origin

import pytest

import dpaudit

SURFACE = Path(__file__).with_name("surface.txt")


def packages() -> list[str]:
    """The package and its public rooms, those that name what they hold."""
    found = [module.name for module in pkgutil.walk_packages(dpaudit.__path__, "dpaudit.") if module.ispkg]
    public = [name for name in ["dpaudit", *found] if not any(part.startswith("_") for part in name.split("."))]
    return [name for name in sorted(public) if hasattr(importlib.import_module(name), "__all__")]


def signature(value: Any) -> str:
    """Names, kinds and defaults of the arguments; without types, whose text differs between versions of Python."""
    if get_origin(value) is not None:  # a type's name; Python 3.13 gives it a signature, which says nothing
        return f": {type(value).__name__}"
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return f": {type(value).__name__}"
    return str(
        inspect.Signature(
            [
                one.replace(
                    annotation=one.empty, default=one.empty if one.default is one.empty else Shown(one.default)
                )
                for one in found.parameters.values()
            ]
        )
    )


class Shown:
    """A default as text, functions without their addresses."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return getattr(self.value, "__qualname__", None) or re.sub(r" at 0x[0-9a-f]+", "", repr(self.value))


def lines(package: str) -> list[str]:
    """The names of a package with their signatures; of a module, its public functions and types as well."""
    found = []
    for name in importlib.import_module(package).__all__:
        value = getattr(importlib.import_module(package), name)
        if not isinstance(value, ModuleType):
            found.append(f"{package}.{name}{signature(value)}")
        elif hasattr(value, "__path__"):
            found.append(f"{package}.{name}: package")
        else:
            found.append(f"{package}.{name}: module")
            found += [f"    {key}{signature(getattr(value, key))}" for key in public(value)]
    return found


def public(module: ModuleType) -> list[str]:
    """The names that a module lists in ``__all__``, else its own functions and types without an underscore."""
    if hasattr(module, "__all__"):
        return sorted(module.__all__)
    own = {key: held for key, held in vars(module).items() if getattr(held, "__module__", None) == module.__name__}
    return sorted(key for key, held in own.items() if not key.startswith("_") and callable(held))


def surface() -> str:
    return "".join(line + "\n" for package in packages() for line in lines(package))


def test_the_surface_is_the_committed_one() -> None:
    assert surface() == SURFACE.read_text(), "the surface has changed: run python -m tests.test_surface"


def test_a_change_of_a_signature_is_seen() -> None:
    def before(key: Any, *, trials: int = 10) -> None: ...

    def after(key: Any, *, trials: int = 11) -> None: ...

    assert signature(before) == "(key, *, trials=10)"
    assert signature(before) != signature(after)


@pytest.mark.parametrize("package", packages())
def test_type_checkers_know_the_names(package: str) -> None:
    """A lazy package imports the same names for them, and no others, from where they really are."""
    module = importlib.import_module(package)
    tree = ast.parse(Path(str(module.__file__)).read_text())
    guarded = [
        node
        for one in ast.walk(tree)
        if isinstance(one, ast.If) and ast.unparse(one.test) == "TYPE_CHECKING"
        for node in one.body
        if isinstance(node, ast.ImportFrom)
    ]
    if not guarded:
        pytest.skip("imports its names as it is imported")
    told = {alias.asname: (node.module, alias.name) for node in guarded for alias in node.names}
    assert sorted(name for name in told if name) == sorted(module.__all__)
    for name, (place, held) in told.items():
        assert getattr(module, str(name)) is getattr(importlib.import_module(str(place)), held)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'dpaudit\.training' has no attribute 'dp_adam'"):
        getattr(dpaudit.training, "dp_adam")  # noqa: B009 - a type checker would see it
    assert set(dpaudit.training.__all__) <= set(dir(dpaudit.training))
    assert not hasattr(dpaudit, "auditor")


@pytest.mark.integration
def test_rooms_are_loaded_when_they_are_asked_for() -> None:
    program = (
        "import sys, dpaudit; before = 'jax' in sys.modules or 'dpaudit.training' in sys.modules; "
        "dpaudit.training.poisson(10, 2); print(before, 'dpaudit.training.sampling' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["False", "True"]


if __name__ == "__main__":
    SURFACE.write_text(surface())
