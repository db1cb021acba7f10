"""Turns releases into scores by which an observer tells the two worlds apart.

:mod:`distinguish` holds the attacks that can be named one at a time, :mod:`learned` a neural network that is trained
on releases, and :func:`choose_rule` picks a threshold on trials set aside. An audit without a named attack plays the
whole portfolio.
"""

from typing import TYPE_CHECKING

from dpaudit._lazy import attach

if TYPE_CHECKING:
    from dpaudit.auditing.attacks import distinguish as distinguish
    from dpaudit.auditing.attacks import learned as learned
    from dpaudit.auditing.attacks.base import Distinguisher as Distinguisher
    from dpaudit.auditing.attacks.base import Score as Score
    from dpaudit.auditing.attacks.choose import Rule as Rule
    from dpaudit.auditing.attacks.choose import choose_rule as choose_rule

__getattr__, __dir__, __all__ = attach(__name__)
