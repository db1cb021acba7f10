"""Computes with Pallas kernels what XLA alone computes slowly, each beside a reference in plain JAX.

Nothing here is imported until it is asked for.
"""

from typing import TYPE_CHECKING

from dpaudit._lazy import attach

if TYPE_CHECKING:
    from dpaudit.kernels import philox as philox
    from dpaudit.kernels import randomized_trial as randomized_trial

__getattr__, __dir__, __all__ = attach(__name__, {"philox": "philox", "randomized_trial": "randomized_trial"})
