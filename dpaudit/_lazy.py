"""Loads the public names of a package when they are first asked for, so that importing the package stays quick."""

import importlib
import sys
from collections.abc import Callable
from typing import Any


def attach(package: str, names: dict[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Returns the ``__getattr__``, ``__dir__`` and ``__all__`` of a package whose names are loaded on first use.

    Args:
      package: the package's ``__name__``.
      names: public name -> the module that holds it, relative to the package, such as ``"dropout.membership"``. A name
        that is the module's own stands for the module, unless a function of that name lies in a room further down
        (``"audit": "auditing.audit"`` is the function).
    """

    def load(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        place = names[name]
        module = importlib.import_module(f"{package}.{place}")
        is_module = place.rpartition(".")[2] == name and not ("." in place and hasattr(module, name))
        value = module if is_module else getattr(module, name)
        setattr(sys.modules[package], name, value)  # the next use finds it without this function
        return value

    return load, lambda: sorted({*vars(sys.modules[package]), *names}), sorted(names)
