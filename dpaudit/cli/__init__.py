"""Runs the command line ``dpaudit``. Each command is a dataclass of options and a function that runs it."""

from typing import TYPE_CHECKING

from dpaudit._lazy import attach

if TYPE_CHECKING:
    from dpaudit.cli import main as main

__getattr__, __dir__, __all__ = attach(__name__)
