"""Loads the public names of a package when they are first asked for, so that importing the package stays quick."""

import ast
import importlib
import pkgutil
import sys
from collections.abc import Callable
from typing import Any


def attach(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Returns the ``__getattr__``, ``__dir__`` and ``__all__`` of a package whose names are loaded on first use.

    The names are those that the package imports under ``if TYPE_CHECKING:``, so that type checkers and users see the
    same ones.

    Args:
      package: the package's ``__name__``.
    """
    source = ast.parse(pkgutil.get_data(package, "__init__.py") or b"")
    guarded = next(node for node in source.body if isinstance(node, ast.If))
    places = {one.name: node.module for node in guarded.body if isinstance(node, ast.ImportFrom) for one in node.names}

    def load(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        place = places[name]
        submodule = place == package
        value = importlib.import_module(f"{package}.{name}" if submodule else str(place))
        value = value if submodule else getattr(value, name)
        setattr(sys.modules[package], name, value)  # the next use finds it without this function
        return value

    return load, lambda: sorted({*vars(sys.modules[package]), *places}), sorted(places)
