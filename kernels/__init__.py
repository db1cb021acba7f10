"""Holds Pallas kernels for computations that are slow in XLA, each beside a reference in plain JAX."""

from typing import TYPE_CHECKING

from dpaudit._lazy import attach

if TYPE_CHECKING:
    from dpaudit.kernels import philox as philox
    from dpaudit.kernels import randomized_trial as randomized_trial

__getattr__, __dir__, __all__ = attach(__name__)
