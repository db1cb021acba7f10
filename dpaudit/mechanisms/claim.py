"""What a mechanism promises, and the mechanism together with its promise."""

from collections.abc import Callable
from typing import Any, NamedTuple

from dpaudit import check

NEIGHBOURING = ("replace", "add_remove")


class _ClaimFields(NamedTuple):
    epsilon: float
    delta: float = 0.0
    neighbouring: str = "replace"


class Claim(_ClaimFields):
    """An (epsilon, delta) promise: Pr[M(x) in S] <= e^epsilon Pr[M(x') in S] + delta for all neighbours x, x'.

    Args:
      epsilon: privacy loss in nats, finite and > 0.
      delta: in [0, 1).
      neighbouring: ``"replace"`` (one record takes any other value; for a local mechanism, any two inputs) or
        ``"add_remove"`` (one record is present or absent).

    Raises:
      InputError: a value out of range.

    Source: paper 000, Definition 1 (delta = 0).
    """

    __slots__ = ()

    def __new__(cls, epsilon: float, delta: float = 0.0, neighbouring: str = "replace") -> "Claim":
        check.positive(epsilon=epsilon)
        check.probability(delta=delta)
        check.one_of(NEIGHBOURING, neighbouring=neighbouring)
        return super().__new__(cls, float(epsilon), float(delta), neighbouring)


class Mechanism(NamedTuple):
    """A pure randomised function and what it promises.

    Attributes:
      apply: ``apply(key, x) -> release``, jittable; the key is consumed.
      claim: the promise, or None where there is none.
      log_prob: ``log_prob(release, x)``, the log density of the release up to a constant that does not depend on
        x, or None where it is not known.
    """

    apply: Callable[[Any, Any], Any]
    claim: Claim | None = None
    log_prob: Callable[[Any, Any], Any] | None = None
