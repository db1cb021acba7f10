"""Audits mechanisms that are not JAX: Python functions of any library, whose releases may be any Python objects.

:func:`on_host` wraps such a function. :mod:`chunks` runs its trials, :mod:`pool` distributes them over processes,
:mod:`reader` and :mod:`encoder` turn releases into numbers, :mod:`game` presents them as a game, and :mod:`prepare`
fits the family of attacks.
"""

from typing import TYPE_CHECKING

from dpaudit._lazy import attach

if TYPE_CHECKING:
    from dpaudit.auditing.host.mechanism import HostMechanism as HostMechanism
    from dpaudit.auditing.host.mechanism import on_host as on_host

__getattr__, __dir__, __all__ = attach(__name__)
