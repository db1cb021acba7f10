"""Defines the noise of a noisy sum: its laws, their sampling and circuits, and the privacy that each spends."""

from typing import TYPE_CHECKING

from dpaudit._lazy import attach

if TYPE_CHECKING:
    from dpaudit.secure.noise import accounting as accounting
    from dpaudit.secure.noise import binomial as binomial
    from dpaudit.secure.noise import gaussian as gaussian
    from dpaudit.secure.noise import lookup as lookup

__getattr__, __dir__, __all__ = attach(__name__)
