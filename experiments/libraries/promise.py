"""Defines what a library promises of one of its mechanisms, with a pair of inputs on which to try it."""

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dpaudit import Claim, distinguish


class Promise(NamedTuple):
    """A row of the table: the plain call audits ``release`` on ``x0`` and ``x1`` against ``claim``.

    Attributes:
      name: of the mechanism, as its library calls it.
      claim: what the library says, computed by the library itself where it computes it.
      release: ``release(rng, x)``, for :func:`dpaudit.on_host`; None where the claim is broken in a way that no public
        issue names, and its authors come first.
      x0, x1: neighbours in the sense of the claim.
      trials: of the audit, half of them in each world.
      issue: the public issue that names a fault; None for a mechanism that is believed to be sound.
      attacks: beside the plain call's own, only for what it leaves out on purpose: the last bits of floats.
    """

    name: str
    claim: Claim
    release: Callable[[np.random.Generator, Any], Any] | None = None
    x0: Any = None
    x1: Any = None
    trials: int = 10_000
    issue: str | None = None
    attacks: tuple[distinguish.Distinguisher, ...] = ()


def seed_globals(rng: np.random.Generator) -> None:
    """Seeds Python's and NumPy's global generators, from which many libraries draw."""
    seed = int(rng.integers(2**32))
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 (the generator that they draw from)
