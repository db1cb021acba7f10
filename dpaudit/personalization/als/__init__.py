"""Fits factored models by private alternating minimisation: recommenders, their steps, layout and metrics."""

from typing import TYPE_CHECKING

from dpaudit._lazy import attach

if TYPE_CHECKING:
    from dpaudit.personalization.als import biases as biases
    from dpaudit.personalization.als import factored as factored
    from dpaudit.personalization.als import layout as layout
    from dpaudit.personalization.als import least_squares as least_squares
    from dpaudit.personalization.als import metrics as metrics
    from dpaudit.personalization.als import recommender as recommender
    from dpaudit.personalization.als import solve as solve
    from dpaudit.personalization.als import spectral as spectral
    from dpaudit.personalization.als import steps as steps

_MODULES = ("biases", "factored", "layout", "least_squares", "metrics", "recommender", "solve", "spectral", "steps")

__getattr__, __dir__, __all__ = attach(__name__)
