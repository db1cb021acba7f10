"""Composes privacy loss distributions on a grid that is as wide as memory allows, and still rounds losses upward.

A grid of a fixed step has as many points as the losses are wide: at a noise multiplier of 0.001 they reach 500,000
nats, and a step of 1e-4 would take 76 GiB. The step grows where there would be too many points. What is computed stays
an upper bound, since any step rounds upward. Noise that would need a step of more than 100 nats counts as none.
"""

import math

from dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    NeighboringRelation,
    NonPrivateDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
    TruncatedSubsampledGaussianDpEvent,
)
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld import privacy_loss_distribution as pld

INTERVAL = 1e-4  # the step of the grid, in nats
POINTS = 1 << 23  # of a grid, at most: a minute or two and about 1.5 GiB
COARSEST = 100.0  # nats
TAILS = 20.0  # the width of a normal law in standard deviations, where tails of e^-50 are left out


class LossAccountant(PLDAccountant):
    """Accounts as ``PLDAccountant`` does, on a coarser grid where the first event would take too many points.

    Args:
      relation: of neighbours.
      interval: the step of the grid, in nats.
    """

    def __init__(
        self, relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE, interval: float = INTERVAL
    ):
        super().__init__(relation, interval)
        self._begun = False

    def compose(self, event: DpEvent, count: int = 1) -> "LossAccountant":
        """Composes an event; the first one decides on the step."""
        shift = 1 if self.neighboring_relation is NeighboringRelation.ADD_OR_REMOVE_ONE else 2
        step = width(SelfComposedDpEvent(event, count), shift) / POINTS
        if not self._begun and step > self._value_discretization_interval:
            if step > COARSEST:
                event = NonPrivateDpEvent()
            step = min(step, COARSEST)
            self._value_discretization_interval = step
            self._pld = pld.identity(value_discretization_interval=step)
        self._begun = True
        super().compose(event, count)
        return self


def width(event: DpEvent, shift: float, count: int = 1) -> float:
    """Estimates how wide the losses of an event are, in nats, ``count`` times over; 0 of one that is not Gaussian.

    Args:
      event: of a composition.
      shift: how far one record moves a release, in clip norms.
      count: >= 1.
    """
    match event:
        case SelfComposedDpEvent():
            return width(event.event, shift, count * event.count)
        case ComposedDpEvent():
            return sum(width(part, shift, count) for part in event.events)
        case GaussianDpEvent():
            return _normal(shift * math.sqrt(count) / event.noise_multiplier) if event.noise_multiplier else 0.0
        case PoissonSampledDpEvent(event=GaussianDpEvent() as one):
            return _sampled(event.sampling_probability, one.noise_multiplier, shift, count)
        case TruncatedSubsampledGaussianDpEvent():  # where a batch is full, one more record takes another's place
            return _sampled(event.sampling_probability, event.noise_multiplier, 2 * shift, count)
    return 0.0


def _normal(mu: float) -> float:
    return mu * mu + TAILS * mu


def _sampled(rate: float, multiplier: float, shift: float, count: int) -> float:
    """Estimates the width of ``count`` sampled releases: never wider than one alone times their number."""
    if not multiplier:
        return 0.0
    mu = shift / multiplier
    square = rate * mu * mu * (mu * mu / 4 + 1)  # of one loss: that of a release without sampling, at this rate
    if mu < 25:  # e^625 is a number
        square = min(square, rate**2 * math.expm1(mu * mu))
    return _normal(mu) + min((count - 1) * _normal(mu), TAILS * math.sqrt(count * square))
