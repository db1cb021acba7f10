"""Predicts with dropout, and measures what the predictions reveal of a target's membership.

Source: paper 003, on the privacy risk of networks with Monte Carlo dropout.
"""

from typing import TYPE_CHECKING

from dpaudit._lazy import attach

if TYPE_CHECKING:
    from dpaudit.training.dropout import mc_dropout as mc_dropout
    from dpaudit.training.dropout import membership as membership
    from dpaudit.training.dropout import publishing as publishing
    from dpaudit.training.dropout import threshold_search as threshold_search

_MODULES = ("mc_dropout", "membership", "publishing", "threshold_search")

__getattr__, __dir__, __all__ = attach(__name__)
