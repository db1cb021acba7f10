"""Defines randomised mechanisms, (key, x) -> release, each with the claim that it makes.

A mechanism of your own is built from the same parts: :mod:`clipping` bounds what goes in, :mod:`sampling` draws noise.
"""

from typing import TYPE_CHECKING

from dpaudit._lazy import attach

if TYPE_CHECKING:
    from dpaudit.mechanisms import clipping as clipping
    from dpaudit.mechanisms import gaussian as gaussian
    from dpaudit.mechanisms import laplace as laplace
    from dpaudit.mechanisms import ldp_sgd as ldp_sgd
    from dpaudit.mechanisms import privunit as privunit
    from dpaudit.mechanisms import randomized_response as randomized_response
    from dpaudit.mechanisms import sampling as sampling
    from dpaudit.mechanisms.claim import Claim as Claim
    from dpaudit.mechanisms.claim import Mechanism as Mechanism

_MODULES = ("clipping", "gaussian", "laplace", "ldp_sgd", "privunit", "randomized_response", "sampling")

__getattr__, __dir__, __all__ = attach(__name__)
