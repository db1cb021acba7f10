"""Limits the privacy loss of releases by a budget, and computes the noise that stays within it.

budget = Budget(epsilon=1.0, delta=1e-6)
z = noise_for(1.0, 1e-6, rounds=100)                      # every user in all 100 rounds
z = noise_for(1.0, 1e-6, rounds=100, participation=5)     # every user in at most 5, as a Ledger enforces
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import dp_accounting
from dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    SelfComposedDpEvent,
)

from dpaudit import _validate
from dpaudit.training.loss_grid import LossAccountant

SLACK = 1e-9  # relative tolerance, so that a budget pays for noise calibrated to it in spite of rounding


@dataclass(frozen=True)
class Budget:
    """The most that one user, added or removed, may cost.

    Attributes:
      epsilon: in nats, > 0.
      delta: in (0, 1), below one over the number of users.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        _validate.positive(epsilon=self.epsilon)
        _validate.open_unit(delta=self.delta)

    def pays(self, event: DpEvent) -> bool:
        """Tells whether the budget pays for an event."""
        return spent(event, self.delta) <= self.epsilon * (1 + SLACK)


def spent(event: DpEvent, delta: float) -> float:
    """Computes the epsilon of an event: exactly if all of it is Gaussian, else by privacy loss distributions.

    Args:
      event: of releases, composed.
      delta: in (0, 1).

    Returns:
      epsilon in nats.

    Raises:
      InputError: delta out of range.

    Source: Balle and Wang 2018, Theorem 8; Doroshenko et al. 2022 (connect the dots).
    """
    _validate.open_unit(delta=delta)
    squared = mu_squared(event)
    if squared is None:
        return float(LossAccountant().compose(event).get_epsilon(delta))
    if squared in (0, math.inf):
        return squared
    return float(dp_accounting.get_epsilon_gaussian(1 / math.sqrt(squared), delta))


def mu_squared(event: DpEvent) -> float | None:
    """Computes mu^2 of a composition of Gaussian events; None if there is another event.

    Source: Dong, Roth and Su 2022, Corollary 3.3.
    """
    match event:
        case GaussianDpEvent():
            return event.noise_multiplier**-2 if event.noise_multiplier else math.inf
        case NoOpDpEvent():
            return 0.0
        case NonPrivateDpEvent():
            return math.inf
        case SelfComposedDpEvent():
            one = mu_squared(event.event)
            return None if one is None else event.count * one
        case ComposedDpEvent():
            each = [mu_squared(part) for part in event.events]
            return None if None in each else math.fsum(part for part in each if part is not None)
    return None


def noise_for(epsilon: float, delta: float, *, rounds: int, participation: int | None = None) -> float:
    """Computes the least noise multiplier of a Gaussian process that stays within a budget.

    A user who takes part k times moves k releases by one sensitivity each: mu = sqrt(k)/z.

    Args:
      epsilon: in nats, > 0.
      delta: in (0, 1).
      rounds: of one release each, >= 1.
      participation: the most rounds in which one user takes part, <= rounds; None for all. It has to be enforced, for
        instance by a :class:`dpaudit.personalization.boundary.ledger.Ledger` with this budget.

    Returns:
      z.

    Raises:
      InputError: a value out of range.

    Source: Balle and Wang 2018, Theorem 8, solved by dp-accounting.
    """
    budget, rounds = Budget(epsilon, delta), _validate.at_least(1, rounds=rounds)
    most = rounds if participation is None else _validate.at_least(1, participation=participation)
    if most > rounds:
        raise _validate.expected("participation", f"at most the {rounds} rounds", most)
    return math.sqrt(most) * float(dp_accounting.get_sigma_gaussian(budget.epsilon, budget.delta))


def affordable(pays: Callable[[int], bool], most: int) -> int:
    """Finds the largest r <= most with ``pays(r)``, which must be monotone; 0 if there is none."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if pays(middle) else (low, middle - 1)
    return low
