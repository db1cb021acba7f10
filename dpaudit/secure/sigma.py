"""How much Gaussian noise a step gets: the paper's rule, the exact one, and what a noise multiplier really spends.

A step releases the sum of clipped gradients, of a batch whose size is public, plus noise of standard deviation
``noise_multiplier`` clip norms. The paper leaves its neighbouring relation open. Replacing one record moves the sum by
up to 2 clip norms, adding or removing one (it counts as zero, the batch size stays) by 1. Nothing is gained here from
how batches are drawn: these numbers hold for a record that is in the batch.

The noise of this room is whole numbers, not Gaussian: what it spends is computed in :mod:`noise_accounting`.
"""

import math

import dp_accounting

from dpaudit import check
from dpaudit.mechanisms.claim import Claim

SENSITIVITY = {"replace": 2, "add_remove": 1}  # L2, in clip norms


def classical(*, epsilon: float, delta: float) -> float:
    """The paper's noise multiplier, sqrt(2 ln(1.25 / delta)) / epsilon, whatever the relation.

    A theorem for sensitivity 1 and epsilon < 1 only: :func:`epsilon` says what it spends otherwise.

    Args:
      epsilon: wanted privacy loss of one step, nats.
      delta: in (0, 1).

    Returns:
      Standard deviation of the noise over the clip norm.

    Raises:
      InputError: a value out of range.

    Source: paper 001, section 5.2.3; Dwork and Roth 2014, Theorem A.1.
    """
    return math.sqrt(2 * math.log(1.25 / check.open_unit(delta=delta))) / check.positive(epsilon=epsilon)


def analytic(*, epsilon: float, delta: float, neighbouring: str) -> float:
    """The least noise multiplier of Gaussian noise with which one step is (epsilon, delta)-DP.

    Args:
      epsilon: privacy loss of one step, nats.
      delta: in (0, 1).
      neighbouring: "replace" or "add_remove".

    Returns:
      Standard deviation of the noise over the clip norm.

    Raises:
      InputError: a value out of range.

    Source: Balle and Wang 2018, Theorem 8, solved by dp-accounting.
    """
    check.positive(epsilon=epsilon)
    check.open_unit(delta=delta)
    return _sensitivity(neighbouring) * dp_accounting.get_sigma_gaussian(epsilon, delta)


def epsilon(noise_multiplier: float, *, delta: float, neighbouring: str, steps: int = 1) -> float:
    """The epsilon that ``steps`` steps with Gaussian noise spend on a record that is in every batch, exactly.

    T steps are one Gaussian release of sensitivity s sqrt(T), s = 2 or 1 clip norms.

    Args:
      noise_multiplier: standard deviation of each step's noise over the clip norm.
      delta: in (0, 1), of all steps together.
      neighbouring: "replace" or "add_remove".
      steps: T >= 1.

    Returns:
      epsilon in nats.

    Raises:
      InputError: a value out of range.

    Source: Balle and Wang 2018, Theorem 8; Dong, Roth and Su 2022, Corollary 3.3, for the composition.
    """
    check.positive(noise_multiplier=noise_multiplier)
    check.open_unit(delta=delta)
    moved = _sensitivity(neighbouring) * math.sqrt(check.at_least(1, steps=steps))
    return float(dp_accounting.get_epsilon_gaussian(noise_multiplier / moved, delta))


def claim(noise_multiplier: float, *, neighbouring: str, steps: int = 1) -> Claim:
    """What ``steps`` steps with Gaussian noise promise, at every delta: mu = s sqrt(T)/noise_multiplier.

    Args:
      noise_multiplier, neighbouring, steps: as for :func:`epsilon`.

    Raises:
      InputError: a value out of range.

    Source: Dong, Roth and Su 2022, Corollary 3.3.
    """
    check.positive(noise_multiplier=noise_multiplier)
    shift = _sensitivity(neighbouring) * math.sqrt(check.at_least(1, steps=steps))
    return Claim.gaussian(shift / noise_multiplier, neighbouring=neighbouring)


def _sensitivity(neighbouring: str) -> int:
    return SENSITIVITY[check.one_of(SENSITIVITY, neighbouring=neighbouring)]
