"""Plays mechanisms that are no JAX: Python functions, of any library, that release anything Python can hold.

:func:`on_host` wraps such a function. :mod:`chunks` plays its trials, :mod:`pool` spreads them over processes,
:mod:`reader` and :mod:`encoder` turn releases into numbers, :mod:`game` makes a game of them, and :mod:`prepare` fits
the family of attacks.
"""

from typing import TYPE_CHECKING

from dpaudit._lazy import attach

if TYPE_CHECKING:
    from dpaudit.auditing.host.mechanism import HostMechanism as HostMechanism
    from dpaudit.auditing.host.mechanism import on_host as on_host

__getattr__, __dir__, __all__ = attach(__name__, {"HostMechanism": "mechanism", "on_host": "mechanism"})
