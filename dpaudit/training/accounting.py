"""Computes what a private training has spent, and how much noise a target needs, by dp-accounting.

The noise multiplier is the noise's standard deviation over the clip norm for every relation: replacing an example can
move a sum by twice the clip norm, which the accounting of "replace" includes.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial

import dp_accounting
from dp_accounting import (
    DpEvent,
    NeighboringRelation,
    PoissonSampledDpEvent,
    PrivacyAccountant,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
    TruncatedSubsampledGaussianDpEvent,
)
from dp_accounting import rdp as _rdp
from dp_accounting.mechanism_calibration import (
    BracketInterval,
    ExplicitBracketInterval,
    LowerEndpointAndGuess,
    NoBracketIntervalFoundError,
)

from dpaudit import _validate
from dpaudit.mechanisms.claim import Claim
from dpaudit.training.loss_grid import INTERVAL, LossAccountant
from dpaudit.training.sampling import Sampling

RELATIONS = {"add_remove": NeighboringRelation.ADD_OR_REMOVE_ONE, "replace": NeighboringRelation.REPLACE_ONE}
TOLERANCE = 1e-4  # of a calibrated noise multiplier, always on the private side
COARSE = 1e-3  # discretisation of the first search for the noise
NEAR = 5e-4  # relative distance from its result within which the second search looks

Accounting = Callable[[Sampling, NeighboringRelation], tuple[PrivacyAccountant, Callable[[float, int], DpEvent]]]


def pld(
    sampling: Sampling, relation: NeighboringRelation, interval: float = INTERVAL
) -> tuple[PrivacyAccountant, Callable[[float, int], DpEvent]]:
    """Accounts by privacy loss distributions: tight up to the discretisation by ``interval``, which rounds upward.

    It is coarser where the noise is so small that the losses would take too much memory, and still rounds upward.

    Source: Doroshenko et al. 2022 (connect the dots).
    """
    accountant = LossAccountant(relation, interval)
    return accountant, lambda multiplier, steps: sampling.event(multiplier, steps, relation)


def rdp(
    sampling: Sampling, relation: NeighboringRelation
) -> tuple[PrivacyAccountant, Callable[[float, int], DpEvent]]:
    """Accounts by Renyi divergences: a quick upper bound.

    Source: Mironov, Talwar and Zhang 2019; Wang et al. 2019 without replacement.
    """
    accountant = _rdp.RdpAccountant(neighboring_relation=relation)
    return accountant, lambda multiplier, steps: sampling.renyi_event(multiplier, steps, relation)


def epsilon(
    sampling: Sampling,
    noise_multiplier: float,
    steps: int,
    *,
    delta: float,
    neighbouring: str = "add_remove",
    accounting: Accounting = pld,
) -> float:
    """Returns the epsilon that ``steps`` steps of DP-SGD have spent.

    Args:
      sampling: how batches are formed.
      noise_multiplier: standard deviation of the noise on a sum over the clip norm, > 0.
      steps: >= 0; nothing is spent before the first.
      delta: in (0, 1); above one over the number of examples with a warning.
      neighbouring: "add_remove" or "replace".
      accounting: :func:`pld` or :func:`rdp`.

    Returns:
      epsilon in nats.

    Raises:
      InputError: a value out of range; a relation or accounting that does not hold for this way of sampling.
    """
    noise_multiplier = _validate.positive(noise_multiplier=noise_multiplier)
    steps = _validate.at_least(0, steps=steps)
    accountant, event = _opened(sampling, delta, neighbouring, accounting)
    if steps == 0:
        return 0.0
    return float(_composed(accountant, event(float(noise_multiplier), steps), accounting).get_epsilon(delta))


def claim(
    sampling: Sampling,
    noise_multiplier: float,
    steps: int,
    *,
    neighbouring: str = "add_remove",
    accounting: Accounting = pld,
) -> Claim:
    """Returns what ``steps`` steps of DP-SGD promise at every delta: a curve with :func:`epsilon` as its points.

    Args:
      steps: >= 1.
      sampling, noise_multiplier, neighbouring, accounting: as for :func:`epsilon`.

    Returns:
      A curve of :class:`dpaudit.Claim`.

    Raises:
      InputError: as for :func:`epsilon`; steps below 1.
    """
    noise_multiplier = _validate.positive(noise_multiplier=noise_multiplier)
    steps = _validate.at_least(1, steps=steps)
    accountant, event = accounting(sampling, RELATIONS[_validate.one_of(RELATIONS, neighbouring=neighbouring)])
    return Claim.accounted(_composed(accountant, event(float(noise_multiplier), steps), accounting))


def noise_multiplier(
    sampling: Sampling,
    target: float,
    steps: int,
    *,
    delta: float,
    neighbouring: str = "add_remove",
    accounting: Accounting = pld,
) -> float:
    """Finds the least noise multiplier, to 1e-4, with which ``steps`` steps spend at most ``target``.

    Args:
      target: epsilon in nats, > 0.
      sampling, steps, delta, neighbouring, accounting: as for :func:`epsilon`; steps >= 1.

    Returns:
      The noise multiplier, rounded toward more noise.

    Raises:
      InputError: a value out of range; a target that no amount of noise reaches; a delta that is not below the chance
        that an example takes part at all, with which any epsilon is kept without noise.
    """
    target = _validate.positive(target=target)
    steps = _validate.at_least(1, steps=steps)
    relation = RELATIONS[_validate.one_of(RELATIONS, neighbouring=neighbouring)]
    chance = _taking_part(accounting(sampling, relation)[1](1.0, steps))
    if _validate.open_unit(delta=delta) >= chance:
        wanted = f"a number below {chance:.3g}, the chance that an example takes part: else no noise is needed"
        raise _validate.expected("delta", wanted, delta)
    _validate.delta(sampling.examples, "examples", delta=delta)

    def search(accounting: Accounting, bracket: BracketInterval) -> float:
        fresh = partial(accounting, sampling, relation)
        found = dp_accounting.calibrate_dp_mechanism(
            lambda: fresh()[0], lambda noise: fresh()[1](noise, steps), target, delta, bracket, tol=TOLERANCE
        )
        return float(found)

    anywhere = LowerEndpointAndGuess(0.0, 1.0)
    try:
        if accounting is pld:
            with suppress(ValueError, NoBracketIntervalFoundError):  # the coarse search may end too far away
                guess = search(partial(pld, interval=COARSE), anywhere)
                return search(pld, ExplicitBracketInterval((1 - NEAR) * guess, (1 + NEAR) * guess))
        return search(accounting, anywhere)
    except NoBracketIntervalFoundError:
        wanted = f"an epsilon that {steps} steps can keep at delta {delta:g}"
        raise _validate.expected("target", wanted, target) from None


def _taking_part(event: DpEvent) -> float:
    """Returns the chance that an example takes part in any step, 1 where that is not left to chance."""
    if not isinstance(event, SelfComposedDpEvent):
        return 1.0
    match event.event:
        case (
            PoissonSampledDpEvent(sampling_probability=rate)
            | TruncatedSubsampledGaussianDpEvent(sampling_probability=rate)
        ):
            pass
        case SampledWithoutReplacementDpEvent(source_dataset_size=examples, sample_size=size):
            rate = size / examples
        case _:
            return 1.0
    return -math.expm1(event.count * math.log1p(-rate)) if rate < 1 else 1.0


def _composed(accountant: PrivacyAccountant, event: DpEvent, accounting: Accounting) -> PrivacyAccountant:
    """Returns the accountant after the event; distributions take a second, and are kept for other deltas."""
    if accounting is not pld:
        return accountant.compose(event)
    return _distribution(accountant.neighboring_relation, event)


@lru_cache(maxsize=16)
def _distribution(relation: NeighboringRelation, event: DpEvent) -> PrivacyAccountant:
    return LossAccountant(relation).compose(event)


def _opened(
    sampling: Sampling, delta: float, neighbouring: str, accounting: Accounting
) -> tuple[PrivacyAccountant, Callable[[float, int], DpEvent]]:
    _validate.delta(sampling.examples, "examples", delta=delta)
    return accounting(sampling, RELATIONS[_validate.one_of(RELATIONS, neighbouring=neighbouring)])
