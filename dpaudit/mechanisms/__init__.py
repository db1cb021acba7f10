"""Randomised mechanisms, (key, x) -> release, each with the claim it makes."""

from dpaudit.mechanisms import gaussian, laplace, ldp_sgd, privunit, randomized_response
from dpaudit.mechanisms.claim import Claim, Mechanism

__all__ = ["Claim", "Mechanism", "gaussian", "laplace", "ldp_sgd", "privunit", "randomized_response"]
