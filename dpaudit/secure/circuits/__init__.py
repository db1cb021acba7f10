"""Builds Boolean circuits, evaluates them in the clear, and garbles them."""

from typing import TYPE_CHECKING

from dpaudit._lazy import attach

if TYPE_CHECKING:
    from dpaudit.secure.circuits import circuit as circuit
    from dpaudit.secure.circuits import garbling as garbling

__getattr__, __dir__, __all__ = attach(__name__)
