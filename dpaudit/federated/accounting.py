"""Accounts federated learning: the clients' messages, and the statistics that control the clip norm.

A message under local privacy is hidden only by its own noise. The server knows who takes part, so sampling does not
help, and a client's privacy loss depends on how often it was drawn: :func:`gaussian`, :func:`pure`, with
:func:`expected_clients`, :func:`most_participations` and :func:`counts`.

A statistic that a trusted aggregator releases (a count of bits, a histogram) is a DpEvent whose noise multiplier is
the noise over the change that adding or removing one client's report makes. Sampling amplifies its privacy against
observers who do not know who took part::

    fixed_size   one replaced      exactly m of the N clients take part, as simulated here
    poisson      added or removed  each takes part with probability m/N, independently
    renyi        added or removed  the same, looser: the accounting of paper 002

With a fixed m nobody can be added or removed, so the last two do not describe it. For observers who know
who took part, including the server, use rate 1 over the releases in which the client took part. A client's
total cost is the sum of the epsilons of its messages and of the statistic, at the sum of the deltas.
"""

import itertools
import math
from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import dp_accounting
import numpy as np
from dp_accounting import DpEvent, PrivacyAccountant
from dp_accounting.pld import PLDAccountant, common, pld_pmf, privacy_loss_distribution
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from dp_accounting.rdp import RdpAccountant
from numpy.typing import ArrayLike
from scipy.stats import binom

from dpaudit import _validate
from dpaudit.mechanisms.claim import NEIGHBOURING, Claim

INTERVALS = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7)  # grids of privacy losses, in nats, coarse to fine; each rounds upward
ROUNDING = 0.05, 1e-5  # accepted rounding of the last grid, sqrt(releases) intervals: relative to epsilon, or in nats
TAIL = 1e-20  # mass of the losses beyond a grid, counted as infinite loss
ORDERS = (*(1 + order / 10 for order in range(1, 100)), *range(11, 64), *range(64, 2048, 16))  # of Renyi divergences
LEAST = 0.5  # least noise multiplier; below it one release costs tens of nats, too many for a grid of fine steps


class Spent(NamedTuple):
    """One row of :func:`table`."""

    release: str  # "message" or "statistic"
    sample: str  # "known" or "secret": whether the observer knows who takes part
    accounting: str  # how epsilon was computed
    neighbouring: str  # "replace" or "add_remove", one client
    participations: int | None  # the participations that epsilon is for; None if it holds for every client
    clients: float | None  # the expected number of clients with exactly that many
    epsilon: float  # in nats
    delta: float


def expected_clients(participations: ArrayLike, *, clients: int, clients_per_round: int, rounds: int) -> np.ndarray:
    """Computes the expected number of clients that take part exactly k times: N Pr[Binomial(R, m/N) = k].

    Args:
      participations: k, whole numbers of any shape.
      clients: N in all.
      clients_per_round: m distinct clients, drawn uniformly in every round, independently of the others.
      rounds: R.

    Returns:
      Numbers of clients, float64, of the shape of ``participations``.

    Raises:
      InputError: a value out of range.
    """
    rate = _rate(clients, clients_per_round, rounds)
    return clients * np.asarray(binom.pmf(participations, rounds, rate))


def most_participations(*, clients: int, clients_per_round: int, rounds: int, confidence: float = 0.95) -> int:
    """Finds the least k that no client exceeds, by a union bound: N Pr[Binomial(R, m/N) > k] <= 1 - confidence.

    Args:
      clients, clients_per_round, rounds: as for :func:`expected_clients`.
      confidence: in (0, 1).

    Returns:
      A number of participations, at most ``rounds``.

    Raises:
      InputError: a value out of range.
    """
    rate = _rate(clients, clients_per_round, rounds)
    allowed = (1 - _validate.open_unit(confidence=confidence)) / clients
    return bisect_left(range(int(rounds)), True, key=lambda most: bool(binom.sf(most, rounds, rate) <= allowed))


def counts(drawn: ArrayLike, *, clients: int) -> np.ndarray:
    """Counts how many clients took part k times in a simulated run, in memory that does not grow with N.

    Args:
      drawn: whole numbers in [0, clients), [rounds, m]; those of one round are distinct.
      clients: N in all.

    Returns:
      int64 [1 + the largest number of participations]: entry k is the number of clients with exactly k.

    Raises:
      InputError: another shape or kind of array, a client out of range or twice in a round.
    """
    rounds, _ = np.asarray(drawn), _validate.at_least(1, clients=clients)
    if rounds.ndim != 2 or rounds.size == 0 or rounds.dtype.kind not in "iu":
        raise _validate.expected("drawn", "whole numbers of shape [rounds, m]", f"{rounds.dtype} {list(rounds.shape)}")
    rounds = np.sort(rounds, axis=1)
    outside = rounds[(rounds < 0) | (rounds >= clients)]
    if outside.size:
        raise _validate.expected("drawn", f"clients in [0, {clients})", int(outside[0]))
    twice = rounds[:, 1:][rounds[:, 1:] == rounds[:, :-1]]
    if twice.size:
        raise _validate.expected("drawn", "distinct clients in a round", f"client {twice[0]} twice")
    histogram = np.bincount(np.unique(rounds, return_counts=True)[1])
    histogram[0] = clients - histogram.sum()
    return histogram


def gaussian(participations: int, *, noise_multiplier: float, delta: float) -> float:
    """Computes the epsilon that k noisy gradients of Algorithm 3 cost their client.

    Two clipped gradients are up to 2 C apart, so k of them with noise of standard deviation z C are one Gaussian
    release with mu = 2 sqrt(k)/z::

        Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu) = delta

    Args:
      participations: k >= 0.
      noise_multiplier: z > 0, the noise's standard deviation over the clip norm C: twice the sigma of (epsilon, delta)
        at sensitivity 1; Algorithm 3 prints it without the 2.
      delta: in (0, 1).

    Returns:
      epsilon in nats, of one client's data replaced.

    Raises:
      InputError: a value out of range.

    Source: Balle and Wang 2018, Theorem 8; composition: Dong, Roth and Su 2022.
    """
    noise_multiplier = _validate.positive(noise_multiplier=noise_multiplier)
    delta = _validate.open_unit(delta=delta)
    if _validate.at_least(0, participations=participations) == 0:
        return 0.0
    return float(dp_accounting.get_epsilon_gaussian(noise_multiplier / (2 * math.sqrt(participations)), delta))


def pure(participations: int, *, epsilon: float, delta: float = 0.0) -> float:
    """Computes the epsilon that k messages, each epsilon-LDP like those of LDP-SGD, cost their client.

    It is k epsilon for delta = 0, and otherwise that of k binary randomised responses, the worst such messages, whose
    privacy loss is (2 B - k) epsilon with B ~ Binomial(k, e^epsilon/(1 + e^epsilon)).

    Args:
      participations: k >= 0.
      epsilon: of one message, in nats, > 0.
      delta: in [0, 1).

    Returns:
      epsilon in nats, of one client's data replaced; at most k epsilon.

    Raises:
      InputError: a value out of range.

    Source: Kairouz, Oh and Viswanath 2015, on a grid of at most 1e-4 nats, exact at epsilon.
    """
    epsilon = _validate.positive(epsilon=epsilon)
    delta = _validate.probability(delta=delta)
    added = _validate.at_least(0, participations=participations) * float(epsilon)
    if not added or not delta:
        return added
    return min(added, float(_responses(epsilon, participations).get_epsilon_for_delta(delta)))


def fixed_size(event: DpEvent, *, rate: float, releases: int, delta: float, replacement: float = 2.0) -> float:
    """Computes the epsilon of repeated releases of a statistic, each computed from m distinct clients out of N.

    With q = m/N and delta_1 the privacy profile of one release of given clients, each release is
    (epsilon, q delta_1(ln(1 + (e^epsilon - 1)/q)))-private for every epsilon >= 0, in both directions. The
    composition is that of the pair with this profile in both, since an adversary may alternate between them.

    Args:
      event: one release, Gaussian or Laplace, of a noise multiplier >= 0.5.
      rate: q, in (0, 1]; 1 towards those who know that the client took part.
      releases: >= 0.
      delta: in (0, 1).
      replacement: the change that replacing a report makes over the one that adding or removing it makes, in (0, 2].
        2 holds for everything and is attained by a centred bit; a bit in {0, 1} has 1, a histogram's counts sqrt(2).

    Returns:
      epsilon in nats, of one client's report replaced; an upper bound; the grid adds about 1% or 1e-5.

    Raises:
      InputError: a value out of range; an event without such an accounting.

    Source: Balle, Barthe and Gaboardi 2018; composition: Zhu, Dong and Wang 2022, Lebeda et al. 2024.
    """
    releases = _checked(rate, releases, delta)
    whole = _losses(event, replacement)

    if releases == 0:
        return 0.0
    return _refined(
        lambda grid: _sampled(whole, rate, grid).self_compose(releases).get_epsilon_for_delta(delta), releases
    )


def poisson(event: DpEvent, *, rate: float, releases: int, delta: float) -> float:
    """Computes the epsilon of a statistic released repeatedly, if every client is drawn independently at ``rate``.

    Arguments and errors are those of :func:`fixed_size`. The epsilon is that of one client added or removed, an upper
    bound to which the grid adds about 1% or 1e-5.

    Source: privacy loss distributions, Doroshenko et al. 2022 (connect the dots).
    """
    releases = _checked(rate, releases, delta)

    def spent(interval: float) -> float:
        return _accounted(PLDAccountant(value_discretization_interval=interval), event, rate, releases, delta)

    return _refined(spent, releases)


def renyi(event: DpEvent, *, rate: float, releases: int, delta: float) -> float:
    """Computes the epsilon of :func:`poisson` by Renyi divergences, as paper 002 does (its footnote 2).

    The event has to be Gaussian. The upper bound is looser than that of :func:`poisson`.

    Source: Mironov, Talwar and Zhang 2019.
    """
    releases = _checked(rate, releases, delta)
    return _accounted(RdpAccountant(ORDERS), event, rate, releases, delta)


def gaussian_claim(participations: int, *, noise_multiplier: float) -> Claim:
    """Makes the claim of k >= 1 noisy gradients at every delta: the curve whose points :func:`gaussian` computes,
    which names the errors."""
    noise_multiplier = _validate.positive(noise_multiplier=noise_multiplier)
    return Claim.gaussian(2 * math.sqrt(_validate.at_least(1, participations=participations)) / noise_multiplier)


def pure_claim(participations: int, *, epsilon: float) -> Claim:
    """Makes the claim of k >= 1 epsilon-LDP messages at every delta: the curve whose points :func:`pure` computes,
    which names the errors."""
    count = _validate.at_least(1, participations=participations)
    return Claim.pld(_responses(_validate.positive(epsilon=epsilon), count), neighbouring="replace")


def statistic_claim(event: DpEvent, *, rate: float, releases: int, neighbouring: str) -> Claim:
    """Makes the claim of a statistic at every delta: :func:`fixed_size` for "replace", else :func:`poisson`.

    Args:
      releases: >= 1.
      neighbouring: "replace" or "add_remove".
      event, rate: as for :func:`fixed_size`; replacing a report changes twice what adding one does.

    Raises:
      InputError: a value out of range; an event without such an accounting.
    """
    releases = _validate.at_least(1, releases=_checked(rate, releases))
    if _validate.one_of(NEIGHBOURING, neighbouring=neighbouring) == "replace":
        sampled = _sampled(_losses(event, 2.0), rate, INTERVALS[1])
        return Claim.pld(sampled.self_compose(releases), neighbouring="replace")
    accountant = PLDAccountant(value_discretization_interval=INTERVALS[1])
    return Claim.accounted(accountant.compose(_composed(accountant, event, rate, releases)))


def table(
    message: Callable[..., float],
    event: DpEvent | None,
    *,
    clients: int,
    clients_per_round: int,
    rounds: int,
    delta: float,
    every: int = 1,
    replacement: float = 2.0,
    confidence: float = 0.95,
) -> list[dict[str, Any]]:
    """Lists what a run spends on messages, by participations, and on the statistic, by the observer's knowledge.

    Args:
      message: ``message(participations, delta=delta) -> epsilon``, as ``partial(gaussian, noise_multiplier=1.4)``.
      event: one release of the statistic; None for a rule without.
      clients, clients_per_round, rounds: as for :func:`expected_clients`.
      delta: of every row, in (0, 1); one above 1/clients draws a warning.
      every: rounds from one release of the statistic to the next.
      replacement: as for :func:`fixed_size`.
      confidence: of the bounds on how often any client takes part, for messages and for the statistic.

    Returns:
      The fields of :class:`Spent`, a dict a row.

    Raises:
      InputError: a value out of range; an event without an accounting.
    """
    _validate.delta(_validate.at_least(1, clients=clients), "clients", delta=delta)
    releases = rounds // _validate.at_least(1, every=every)
    drawn = {"clients": clients, "clients_per_round": clients_per_round}
    most = most_participations(rounds=rounds, confidence=confidence, **drawn)
    shares = expected_clients(range(most + 1), rounds=rounds, **drawn).tolist()
    rows = [
        Spent("message", "known", "composition", "replace", k, share, message(k, delta=delta), delta)
        for k, share in enumerate(shares)
    ]
    if event is not None and releases:
        replaced = partial(fixed_size, event, delta=delta, replacement=replacement)
        most = most_participations(rounds=releases, confidence=confidence, **drawn)
        share = float(expected_clients(most, rounds=releases, **drawn))
        epsilon = replaced(rate=1.0, releases=most)
        rows.append(Spent("statistic", "known", "composition", "replace", most, share, epsilon, delta))
        secret = [("fixed size", "replace", replaced), ("Poisson", "add_remove", partial(poisson, event, delta=delta))]
        if isinstance(event, dp_accounting.GaussianDpEvent):
            secret.append(("Poisson, Renyi", "add_remove", partial(renyi, event, delta=delta)))
        for accounting, neighbouring, spent in secret:
            epsilon = spent(rate=clients_per_round / clients, releases=releases)
            rows.append(Spent("statistic", "secret", accounting, neighbouring, None, None, epsilon, delta))
    return [row._asdict() for row in rows]


def _rate(clients: int, clients_per_round: int, rounds: int) -> float:
    _validate.at_least(1, rounds=rounds)
    if _validate.at_least(1, clients_per_round=clients_per_round) > _validate.at_least(1, clients=clients):
        raise _validate.expected("clients_per_round", f"at most the {clients} clients", clients_per_round)
    return clients_per_round / clients


def _checked(rate: float, releases: int, delta: float = 0.5) -> int:
    delta = _validate.open_unit(delta=delta)
    if _validate.probability(rate=rate, one_allowed=True) == 0:
        raise _validate.expected("rate", "a number in (0, 1]", rate)
    return _validate.at_least(0, releases=releases)


def _noise(event: DpEvent) -> dp_accounting.GaussianDpEvent | dp_accounting.LaplaceDpEvent:
    if not isinstance(event, dp_accounting.GaussianDpEvent | dp_accounting.LaplaceDpEvent):
        raise _validate.expected("event", "a GaussianDpEvent or a LaplaceDpEvent", event)
    if not LEAST <= event.noise_multiplier < math.inf:
        raise _validate.expected("event", f"a finite noise multiplier >= {LEAST:g}", event)
    return event


def _responses(epsilon: float, count: int) -> PrivacyLossDistribution:
    """Returns the privacy losses of ``count`` binary randomised responses."""
    one = common.DifferentialPrivacyParameters(float(epsilon), 0.0)
    steps = next(n for n in itertools.count(math.ceil(epsilon / 1e-4)) if epsilon / (epsilon / n) == n)
    return privacy_loss_distribution.from_privacy_parameters(one, epsilon / steps).self_compose(count)


def _losses(event: DpEvent, sensitivity: float) -> PrivacyLossDistribution:
    """Returns the privacy losses of one release of given clients."""
    noise = _noise(event)
    if _validate.positive(replacement=sensitivity) > 2:
        raise _validate.expected("replacement", "a number in (0, 2]", sensitivity)
    if isinstance(noise, dp_accounting.GaussianDpEvent):
        return privacy_loss_distribution.from_gaussian_mechanism(noise.noise_multiplier, sensitivity)
    return privacy_loss_distribution.from_laplace_mechanism(noise.noise_multiplier, sensitivity)


def _sampled(whole: PrivacyLossDistribution, rate: float, interval: float) -> PrivacyLossDistribution:
    """Returns the privacy losses of one release of a sample of fixed size, given those of one of all clients."""
    infinite = float(whole.get_delta_for_epsilon(math.inf))  # of Laplace noise 1e-16, where its shares round below 1
    top = whole.get_epsilon_for_delta(max(TAIL, infinite))
    cells = math.ceil((top + math.log(rate + (1 - rate) * math.exp(-top))) / interval)
    losses = interval * np.arange(cells + 1)
    unsampled: Any = losses + np.log(np.exp(-losses) - np.expm1(-losses) / rate)  # ln(1 + (e^loss - 1)/rate)
    above = rate * np.asarray(whole.get_delta_for_epsilon(unsampled))
    below = -np.expm1(-losses) + np.exp(-losses) * above  # a pair and its reverse: h(-e) = 1 - e^-e + e^-e h(e)
    profile = np.concatenate([below[:0:-1], above])
    return PrivacyLossDistribution(
        pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, -cells, cells, profile)
    )


def _refined(spent: Callable[[float], float], releases: int) -> float:
    """Computes epsilon on finer and finer grids, until one is fine enough."""
    epsilon = 0.0
    for interval in INTERVALS:
        epsilon = float(spent(interval))
        if interval * math.sqrt(releases) <= max(ROUNDING[0] * epsilon, ROUNDING[1]):
            break
    return epsilon


def _accounted(accountant: PrivacyAccountant, event: DpEvent, rate: float, releases: int, delta: float) -> float:
    sampled = _composed(accountant, event, rate, releases)
    return float(accountant.compose(sampled).get_epsilon(delta)) if releases else 0.0


def _composed(accountant: PrivacyAccountant, event: DpEvent, rate: float, releases: int) -> DpEvent:
    """Returns the event of releases of Poisson samples, if this accountant can compose them."""
    sampled = dp_accounting.SelfComposedDpEvent(dp_accounting.PoissonSampledDpEvent(rate, _noise(event)), releases)
    if not accountant.supports(sampled):
        raise _validate.expected("event", f"one that dp-accounting's {type(accountant).__name__} can sample", event)
    return sampled
