"""Defines the privacy claim of a mechanism, and the mechanism together with its claim."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from dpaudit import _validate
from dpaudit.mechanisms import trade_off as curves
from dpaudit.mechanisms.trade_off import TradeOff

NEIGHBOURING = ("replace", "add_remove")
RELATIONS = {"ADD_OR_REMOVE_ONE": "add_remove", "REPLACE_ONE": "replace"}  # dp-accounting's names


class _ClaimFields(NamedTuple):
    epsilon: float
    delta: float = 0.0
    neighbouring: str = "replace"


class Claim(_ClaimFields):
    """An (epsilon, delta) promise: Pr[M(x) in S] <= e^epsilon Pr[M(x') in S] + delta for all neighbours x, x'.

    A promise may be a whole curve instead: :meth:`gaussian`, :meth:`renyi`, :meth:`pld`, :meth:`trade_off`. Then
    (epsilon, delta) is only the curve's promise at delta 0, often infinity.

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
        _validate.positive(epsilon=epsilon)
        _validate.probability(delta=delta)
        _validate.one_of(NEIGHBOURING, neighbouring=neighbouring)
        return super().__new__(cls, float(epsilon), float(delta), neighbouring)

    @staticmethod
    def gaussian(mu: float, *, neighbouring: str = "replace") -> "CurveClaim":
        """Claims Gaussian noise: no test does better than N(0, 1) against N(mu, 1).

        Args:
          mu: sensitivity over the noise's standard deviation, > 0.
          neighbouring: as of :class:`Claim`.

        Raises:
          InputError: a value out of range.

        Source: Dong, Roth and Su 2022, Definition 2.6.
        """
        return CurveClaim({"mu": float(_validate.positive(mu=mu))}, neighbouring)

    @staticmethod
    def renyi(orders: ArrayLike, epsilons: ArrayLike, *, neighbouring: str = "replace") -> "CurveClaim":
        """Claims bounds on the Renyi divergences of these orders, in both directions.

        Args:
          orders: > 1.
          epsilons: nats, >= 0, one for each order; infinite where nothing is promised.
          neighbouring: as of :class:`Claim`.

        Raises:
          InputError: a value out of range.

        Source: Mironov 2017, Definition 4.
        """
        fpr, fnr = curves.renyi(orders, epsilons)
        return CurveClaim({"fpr": fpr.tolist(), "fnr": fnr.tolist()}, neighbouring)

    @staticmethod
    def pld(pld: Any, *, neighbouring: str = "add_remove") -> "CurveClaim":
        """Claims a privacy loss distribution, as dp-accounting computes it.

        Args:
          pld: a ``dp_accounting.pld.privacy_loss_distribution.PrivacyLossDistribution``, pessimistic. Its two
            directions are "remove" (from the data with the record to those without) and "add".
          neighbouring: of the accounting.

        Raises:
          InputError: another type; one that rounds losses down.
        """
        removed, added = getattr(pld, "_pmf_remove", None), getattr(pld, "_pmf_add", None)
        if removed is None or added is None:
            raise _validate.expected("pld", "a PrivacyLossDistribution of dp-accounting", pld)
        if not removed._pessimistic_estimate:
            raise _validate.expected("pld", "a distribution whose losses are rounded up", "an optimistic one")
        # delta_remove bounds Pr[with the record] - e^epsilon Pr[without]: false positives are those without it
        terms: dict[str, Any] = _vertices(removed)
        if added is not removed:
            terms["present_first"] = _vertices(added)
        return CurveClaim(terms, neighbouring)

    @staticmethod
    def accounted(accountant: Any) -> "CurveClaim":
        """Claims all that a dp-accounting accountant has composed, for its own neighbouring relation.

        Args:
          accountant: a ``PLDAccountant`` or an ``RdpAccountant``. One that has composed nothing would promise that
            both worlds are equal, and one of a release without noise would promise nothing: both are refused.

        Raises:
          InputError: another accountant or relation; a composition that makes no claim.
        """
        relation = RELATIONS.get(getattr(getattr(accountant, "neighboring_relation", None), "name", ""))
        if relation is None:
            raise _validate.expected("accountant", "one of adding, removing or replacing a record", accountant)
        if not math.isfinite(accountant.get_epsilon(0.999)):  # a PLDAccountant's own distribution does not say so
            raise _validate.expected("accountant", "one whose releases have noise", accountant)
        if hasattr(accountant, "_pld"):
            made = Claim.pld(accountant._pld, neighbouring=relation)
        elif hasattr(accountant, "_rdp"):
            made = Claim.renyi(accountant._orders, accountant._rdp, neighbouring=relation)
        else:
            raise _validate.expected("accountant", "a PLDAccountant or an RdpAccountant", accountant)
        if made.fnr(0.5) >= 0.5:
            raise _validate.expected("accountant", "one that has composed a release", accountant)
        return made

    @staticmethod
    def trade_off(fpr: ArrayLike, fnr: ArrayLike, *, neighbouring: str = "replace") -> "CurveClaim":
        """Claims that no test is below a curve, linear between its points and the same in both directions.

        Args:
          fpr: rising from 0 to 1.
          fnr: the lowest false negative rate at each: convex, never rising, at most 1 - fpr.
          neighbouring: as of :class:`Claim`.

        Raises:
          InputError: points that are no trade-off curve.

        Source: Dong, Roth and Su 2022, Definition 2.3.
        """
        x, y = curves.vertices(fpr, fnr)
        return CurveClaim({"fpr": x.tolist(), "fnr": y.tolist()}, neighbouring)

    @staticmethod
    def from_terms(terms: dict[str, Any], neighbouring: str) -> "Claim":
        """Returns the claim with these :attr:`terms`, as read from JSON."""
        if "epsilon" in terms:
            return Claim(terms["epsilon"], terms["delta"], neighbouring)
        return CurveClaim(terms, neighbouring)

    @property
    def terms(self) -> dict[str, Any]:
        """Returns the promise in numbers that JSON can hold."""
        return {"epsilon": self.epsilon, "delta": self.delta}

    @property
    def is_curve(self) -> bool:
        """Tells whether more is promised than one (epsilon, delta)."""
        return False

    @property
    def directions(self) -> tuple[TradeOff, TradeOff]:
        """Returns the promises to pairs whose world 1, and whose world 0, has the record; often they are equal."""
        both = curves.approximate(self.epsilon, self.delta)
        return both, both

    def fnr(self, fpr: Any) -> Any:
        """Returns the lowest false negative rate allowed at a false positive rate, whichever world has the record."""
        first, second = self.directions
        return np.minimum(first.fnr(fpr), second.fnr(fpr))

    def epsilon_at(self, delta: float) -> float:
        """Returns the least epsilon promised at this delta in [0, 1), in both directions, or infinity.

        Raises:
          InputError: a delta out of range.
        """
        _validate.probability(delta=delta)
        return max(direction.epsilon(float(delta)) for direction in self.directions)

    def delta_at(self, epsilon: float) -> float:
        """Returns the least delta promised at this epsilon >= 0, in both directions.

        Raises:
          InputError: an epsilon out of range.
        """
        _validate.non_negative(epsilon=epsilon)
        return max(direction.delta(float(epsilon)) for direction in self.directions)

    def at(self, delta: float) -> "Claim":
        """Returns the promise at one delta as an (epsilon, delta) claim.

        Raises:
          InputError: nothing is promised at this delta.
        """
        epsilon = self.epsilon_at(delta)
        if not math.isfinite(epsilon):
            raise _validate.expected("delta", "one at which the claim promises an epsilon", delta)
        return Claim(max(epsilon, TINY), delta, self.neighbouring)


TINY = 1e-12  # in place of 0, which is not a valid epsilon


class CurveClaim(Claim):
    """A promise that is a curve, made by the methods of :class:`Claim`."""

    _terms: dict[str, Any]
    _directions: tuple[TradeOff, TradeOff]

    def __new__(cls, terms: Any, neighbouring: Any, *field: str) -> "CurveClaim":
        # dataclasses.asdict rebuilds a named tuple from its three fields; without its curve it is not a claim.
        if field:
            return _ClaimFields(terms, neighbouring, *field)  # pyright: ignore[reportReturnType]
        _validate.one_of(NEIGHBOURING, neighbouring=neighbouring)
        first = _curve(terms)
        second = _curve(terms["present_first"]) if "present_first" in terms else first
        made = tuple.__new__(cls, (max(first.epsilon(0.0), second.epsilon(0.0)), 0.0, neighbouring))
        made._terms, made._directions = terms, (first, second)
        return made

    @property
    def terms(self) -> dict[str, Any]:
        return self._terms

    @property
    def is_curve(self) -> bool:
        return True

    @property
    def directions(self) -> tuple[TradeOff, TradeOff]:
        return self._directions

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CurveClaim):
            return False
        return self.neighbouring == other.neighbouring and self._terms == other._terms

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((repr(self._terms), self.neighbouring))

    def __repr__(self) -> str:
        shown = f"mu={self._terms['mu']:g}" if "mu" in self._terms else f"a curve of {len(self._terms['fpr'])} points"
        return f"Claim({shown}, neighbouring={self.neighbouring!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return CurveClaim, (self._terms, self.neighbouring)

    def _replace(self, **_: Any) -> "CurveClaim":  # the inherited one would lose the curve
        raise _validate.InputError("claim: expected a claim of epsilon and delta to replace a value of, got a curve")


def _curve(terms: dict[str, Any]) -> TradeOff:
    if "mu" in terms:
        return curves.gaussian(_validate.positive(mu=terms["mu"]))
    return curves.polygon(*curves.vertices(terms["fpr"], terms["fnr"]))


def _vertices(pmf: Any) -> dict[str, Any]:
    """Returns the vertices of one direction of a privacy loss distribution."""
    dense = pmf.to_dense_pmf()
    losses = (dense._lower_loss + np.arange(dense.size)) * dense._discretization
    fpr, fnr = curves.of_losses(losses, dense._probs, dense._infinity_mass)
    return {"fpr": fpr.tolist(), "fnr": fnr.tolist()}


class Mechanism(NamedTuple):
    """A pure randomised function and its claim.

    Attributes:
      apply: ``apply(key, x) -> release``, jittable; the key is consumed.
      claim: the promise, or None.
      log_prob: ``log_prob(release, x)``, the log density of the release up to a constant that does not depend on
        x, or None if it is not known.
    """

    apply: Callable[[Any, Any], Any]
    claim: Claim | None = None
    log_prob: Callable[[Any, Any], Any] | None = None
