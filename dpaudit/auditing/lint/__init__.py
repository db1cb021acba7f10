"""Finds faults of a mechanism's program without a statistical test.

:func:`dpaudit.inspect`, in :mod:`inspect`, traces a mechanism and replays its randomness: it reports keys that are
used twice, noise of low precision, noise that clients share, and sensitivity above what is declared.
"""

from typing import TYPE_CHECKING

from dpaudit._lazy import attach

if TYPE_CHECKING:
    from dpaudit.auditing.lint import inspect as inspect
    from dpaudit.auditing.lint.inspect import Finding as Finding
    from dpaudit.auditing.lint.inspect import Inspection as Inspection

__getattr__, __dir__, __all__ = attach(__name__)
