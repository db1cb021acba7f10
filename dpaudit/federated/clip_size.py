"""Chooses the norm that clients clip their updates to: fixed, on a schedule, or adapted to what clients report.

    rule = adaptive_quantile(0.01, quantile=0.5)
    state = rule.init()                        # the clients of this round use state.clip_norm
    report = rule.report(state, norm)          # on each device: the only function that sees a norm
    released = rule.release(key, reports)      # in the trusted aggregator, which adds the noise: reports [m]
    state = rule.update(state, released)       # on the server

A schedule asks clients nothing: its ``report`` and ``release`` are None, and ``update(state, None)`` counts the round.
Updating the state from ``released`` costs no privacy beyond the release's event.

The number m of reports in a round is public. A rule's event is for one report added or removed while the divisor stays
m; replacing one report by another moves the statistic at most twice as far. A norm that is not finite is reported as
the largest possible one, so clip norms never become NaN.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import DpEvent

from dpaudit import _validate
from dpaudit.mechanisms.sampling import normal

SMALLEST, LARGEST = 2.0**-20, 2.0**20  # the range of an adaptive clip norm; at LARGEST it has diverged
EDGES = (0.0, 2.0**-7, 2.0**-6, 2.0**-5, 2.0**-4, 2.0**-3)  # the bins of paper 002, Section 4.5.2


class State(NamedTuple):
    """The state of a rule.

    Attributes:
      clip_norm: of the coming round, float32 scalar.
      round: of the coming round, int32; the first is 0.
    """

    clip_norm: jax.Array
    round: jax.Array


class Rule(NamedTuple):
    """A rule that chooses the clip norm, as pure functions that can be jitted, mapped and scanned.

    Attributes:
      init: ``init() -> state`` of round 0; any state with a ``clip_norm``.
      update: ``update(state, released) -> state`` of the next round, called after every round. Between two releases it
        ignores ``released``.
      report: ``report(state, norm) -> statistic`` of one client, from the L2 norm of its update before clipping.
      release: ``release(key, reports) -> released``, with noise; reports [m, ...].
      every: rounds from one release to the next: round t has one if (t + 1) mod every = 0.
      event: the event of one release, with respect to one client's report; None if nothing is released.
      watch: ``watch(state, mean) -> state``, called before ``update`` with the noisy mean of the round's messages. The
        server has the mean anyway, so using it costs no privacy. None for a rule that does not use it.
    """

    init: Callable[[], Any]
    update: Callable[[Any, Any], Any]
    report: Callable[[Any, Any], jax.Array] | None = None
    release: Callable[[jax.Array, jax.Array], jax.Array] | None = None
    every: int = 1
    event: DpEvent | None = None
    watch: Callable[[Any, Any], Any] | None = None


def schedule(clip_norm: Callable[[Any], Any]) -> Rule:
    """Makes a rule whose clip norm is a function of the round only.

    Args:
      clip_norm: ``clip_norm(round) -> C`` for an int32 scalar, jittable, such as an optax schedule.

    Returns:
      A :class:`Rule` that reports and releases nothing.
    """

    def at(round: Any) -> State:
        return State(jnp.asarray(clip_norm(round), jnp.float32), round)

    return Rule(init=lambda: at(jnp.int32(0)), update=lambda state, released: at(state.round + 1))


def fixed(c: Any) -> Rule:
    """Keeps the clip norm at C in every round.

    Args:
      c: L2 norm, > 0.

    Raises:
      InputError: a value out of range.
    """
    c = _validate.positive(c=c)
    return schedule(lambda t: c)


def switch(before: Any, after: Any, round: int) -> Rule:
    """Uses one clip norm in rounds 0..round - 1 and another from ``round`` on.

    Args:
      before, after: L2 norms, > 0.
      round: >= 1.

    Raises:
      InputError: a value out of range.

    Source: paper 002, Section 4.4.1.
    """
    before = _validate.positive(before=before)
    after = _validate.positive(after=after)
    first = _validate.at_least(1, round=round)
    return schedule(lambda t: jnp.where(t < first, before, after))


def polynomial(c0: Any, rounds: int, power: Any) -> Rule:
    """Lowers the clip norm by a polynomial, C_{t+1} = C_0 (1 - t/T)^power, so C_1 = C_0; it is 0 after round T.

    Args:
      c0: C_0, L2 norm, > 0.
      rounds: T, >= 1.
      power: > 0.

    Raises:
      InputError: a value out of range.

    Source: paper 002, Eq. (5).
    """
    c0 = _validate.positive(c0=c0)
    total = _validate.at_least(1, rounds=rounds)
    power = _validate.positive(power=power)

    def at(t: Any) -> jax.Array:
        before = jnp.clip(t - 1, 0, total)  # the t of Eq. (5): one less than that of the clip norm it gives
        return c0 * ((total - before) / total) ** power

    return schedule(at)


class BudgetState(NamedTuple):
    """The state of :func:`noise_budget`: as :class:`State`, and ``left``, the squared length of the noise to come."""

    clip_norm: jax.Array
    round: jax.Array
    left: jax.Array


def noise_budget(
    c0: Any,
    params: Any,
    *,
    rounds: int,
    noise_multiplier: Any,
    clients_per_round: int,
    share: Any = 2.0,
) -> Rule:
    """Chooses clip norms whose noise in the whole run is ``share`` times as long as the first model, for local DP.

    Under local DP an update is nearly always longer than C. A round then moves the model by at most C along the mean
    of the updates, and by C n, n = z sqrt(d/m), in a random direction, which is much further. C determines how far
    that random walk goes before training ends: sqrt(sum_t C_t^2) n. With R_t = (share |theta_0|)^2 - sum_{s<t}
    (n C_s)^2 left and T - t rounds to go,

        C_t = sqrt(6 R_t (T - t)/((T - t + 1)(2 (T - t) + 1)))/n,    C_0 at most the caller's.

    Without the caller's limit that is C_t = C_0 (1 - t/T), the schedule of Eq. (5) with power 1, and C_0 is close to
    share |theta_0| sqrt(3/T)/n: 0.046 at paper 002's scale, where 0.05 was found by hand. What earlier rounds do not
    use is left to later ones. The rule uses only public values, so it costs no privacy and asks clients nothing.

    The rule is for networks trained from a random start, where |theta_0| is the relevant length. A network that is
    already trained tolerates less noise: choose a smaller ``share``.

    Args:
      c0: the largest C of round 0, > 0; its value hardly matters.
      params: theta_0, the model before round 0, not zero.
      rounds: T, >= 1; from round T on C has its smallest value, 2^-20.
      noise_multiplier: z, the standard deviation of one message's noise over C, > 0.
      clients_per_round: m, >= 1.
      share: of |theta_0|, > 0. 2 was found on MNIST (experiments/README.md) and kept for all other data sets.

    Returns:
      A :class:`Rule` that reports and releases nothing.

    Raises:
      InputError: a value out of range.

    Source: none; an answer to the question that ends paper 002 (Section 6).
    """
    c0 = _validate.positive(c0=c0)
    total = _validate.at_least(1, rounds=rounds)
    noise_multiplier = _validate.positive(noise_multiplier=noise_multiplier)
    m = _validate.at_least(1, clients_per_round=clients_per_round)
    share = _validate.positive(share=share)
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(params)]
    length = float(np.sqrt(sum(np.sum(leaf**2) for leaf in leaves)))
    if not 0 < length < np.inf:
        raise _validate.expected("params", "a model of finite length above zero", f"one of length {length}")
    noise = noise_multiplier * np.sqrt(sum(leaf.size for leaf in leaves) / m)  # its length at C = 1

    def at(round: Any, left: Any) -> BudgetState:
        to_go = jnp.maximum(total - round, 0).astype(jnp.float32)
        clip_norm = jnp.sqrt(6 * left * to_go / ((to_go + 1) * (2 * to_go + 1))) / noise
        return BudgetState(jnp.float32(jnp.maximum(clip_norm, SMALLEST)), round, jnp.float32(left))

    def init() -> BudgetState:
        state = at(jnp.int32(0), jnp.float32((share * length) ** 2))
        return state._replace(clip_norm=jnp.float32(jnp.minimum(state.clip_norm, c0)))

    def update(state: BudgetState, released: Any) -> BudgetState:
        return at(state.round + 1, jnp.maximum(state.left - (noise * state.clip_norm) ** 2, 0))

    return Rule(init, update)


def adaptive_quantile(c0: Any, *, quantile: Any, learning_rate: Any = 0.2, noise_std: float = 5.0) -> Rule:
    """Moves C towards a quantile of the norms: C <- C exp(-eta (b - gamma)), b a noisy share of unclipped updates.

    C converges to where that share is gamma. A client reports the bit |update| <= C. The aggregator releases
    b = 1/2 + (sum_i (bit_i - 1/2) + N(0, sigma^2))/m. A centred bit added moves the sum by 1/2 (a plain one: by up to
    1), so the event's noise multiplier is 2 sigma; one replaced moves it by 1. Over paper 002's 10,000 rounds, at
    delta 1e-7, that spends epsilon 0.0034 with Poisson sampling at rate 1e-4 (a plain bit 0.0072; the paper's 0.006
    holds for the centred one), and 0.0077 if rounds have exactly 1,000 clients and one is replaced by another
    (:mod:`dpaudit.federated.accounting`).

    If learning diverges, updates grow without limit and C with them. C is kept in [2^-20, 2^20], including c0, so that
    the run finishes and its clip norms show the first round at ``LARGEST``.

    Args:
      c0: L2 norm of round 0, > 0.
      quantile: gamma in [0, 1].
      learning_rate: eta_C, > 0.
      noise_std: sigma, in clients, > 0.

    Returns:
      A :class:`Rule` that releases a scalar in every round.

    Raises:
      InputError: a value out of range.

    Source: paper 002, Eq. (4); Andrew et al. 2021, Algorithm 1 and Theorem 1.
    """
    c0 = _validate.positive(c0=c0)
    _validate.probability(one_allowed=True, quantile=quantile)
    learning_rate = _validate.positive(learning_rate=learning_rate)
    noise_std = _validate.positive(noise_std=noise_std)

    def at(clip_norm: Any, round: Any) -> State:
        return State(jnp.clip(jnp.asarray(clip_norm, jnp.float32), SMALLEST, LARGEST), round)

    def report(state: State, norm: Any) -> jax.Array:
        return norm <= state.clip_norm  # False for NaN

    def release(key: jax.Array, reports: jax.Array) -> jax.Array:
        centred = jnp.sum(reports.astype(jnp.float32) - 0.5)
        share = 0.5 + (centred + noise_std * normal(key)) / len(reports)
        return share.astype(jnp.float32)  # no digits that the noise lacks

    def update(state: State, released: jax.Array) -> State:
        return at(state.clip_norm * jnp.exp(-learning_rate * (released - quantile)), state.round + 1)

    event = dp_accounting.GaussianDpEvent(noise_std / 0.5)
    return Rule(lambda: at(c0, jnp.int32(0)), update, report, release, event=event)


def adaptive_median(
    c0: Any, *, epsilon: float = 0.8, delta: float = 1e-8, every: int = 1000, edges: Sequence[float] = EDGES
) -> Rule:
    """Sets C to the middle of the bin that holds the median norm, found by a differentially private histogram.

    A client reports the number of its bin (a, b]; norms beyond the outer edges are in the outer bins. The aggregator
    releases the bins' shares, (counts + N(0, sigma^2 I))/m. A report added moves one count by 1, which is the
    sensitivity in L1 and in L2 (one replaced: 2 and sqrt(2)), and sigma is the smallest for (epsilon, delta): 6.30 for
    the paper's, which does not name its noise; its delta above 0 suggests the Gaussian. The server takes the first bin
    up to which the shares add up to more than 1/2, otherwise the last one. The middle of the lowest default bin is
    2^-8 = 0.0039, not a tenth of 0.01 as the paper says.

    Args:
      c0: L2 norm until the first release, > 0.
      epsilon, delta: of one release, among the m clients of its round, in nats and in (0, 1).
      every: rounds from one release to the next, >= 1; the first new clip norm is that of round ``every``.
      edges: the bins' edges, increasing from 0 or more; one more than bins.

    Returns:
      A :class:`Rule` that releases [bins].

    Raises:
      InputError: a value out of range.

    Source: paper 002, Sections 3.4 and 4.5.2; sigma: Balle and Wang 2018, Theorem 8, solved by dp-accounting.
    """
    c0 = _validate.positive(c0=c0)
    epsilon = _validate.positive(epsilon=epsilon)
    delta = _validate.open_unit(delta=delta)
    _validate.at_least(1, every=every)
    bounds = np.atleast_1d(np.asarray(_validate.finite(edges=edges), np.float32))
    if bounds.ndim != 1 or len(bounds) < 2 or bounds[0] < 0 or (np.diff(bounds) <= 0).any():
        raise _validate.expected("edges", "two or more increasing numbers >= 0", edges)
    bins = len(bounds) - 1
    inner, middles = bounds[1:-1], (bounds[1:] + bounds[:-1]) / 2
    noise_std = dp_accounting.get_sigma_gaussian(epsilon, delta)

    def report(state: State, norm: Any) -> jax.Array:
        return jnp.sum(~(norm <= inner), dtype=jnp.int32)  # NaN is in the last bin

    def release(key: jax.Array, reports: jax.Array) -> jax.Array:
        counts = jnp.bincount(reports, length=bins)
        return (counts + noise_std * normal(key, (bins,))) / len(reports)

    def update(state: State, released: jax.Array) -> State:
        beyond_half = jnp.append(jnp.cumsum(released)[:-1] > 0.5, True)
        median = jnp.asarray(middles)[jnp.argmax(beyond_half)]
        return State(jnp.where((state.round + 1) % every == 0, median, state.clip_norm), state.round + 1)

    def init() -> State:
        return State(jnp.asarray(c0, jnp.float32), jnp.int32(0))

    return Rule(init, update, report, release, every, dp_accounting.GaussianDpEvent(noise_std))
