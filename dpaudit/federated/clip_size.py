"""How long an update may be before clients clip it: fixed, on a schedule, or steered by what clients report.

    rule = adaptive_quantile(0.01, quantile=0.5)
    state = rule.init()                        # state.clip_norm is what the clients of this round use
    report = rule.report(state, norm)          # on each device: the only function that sees a norm
    released = rule.release(key, reports)      # in the trusted aggregator, which adds the noise: reports [m]
    state = rule.update(state, released)       # on the server

A schedule asks nothing: its ``report`` and ``release`` are None, and ``update(state, None)`` counts the round. What
the server makes of ``released`` costs no privacy beyond the release's event.

The number m of reports in a round is public. A rule's event is that of one report added or removed, m remaining the
divisor; one replaced by another moves the statistic further, at most twice as far. A norm that is not finite is
reported as the largest there is, so nothing here becomes NaN.
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

SMALLEST, LARGEST = 2.0**-20, 2.0**20  # between which an adaptive clip norm is held; at LARGEST it has run away
EDGES = (0.0, 2.0**-7, 2.0**-6, 2.0**-5, 2.0**-4, 2.0**-3)  # of the bins of paper 002, Section 4.5.2


class State(NamedTuple):
    """What the server knows of the clip norm.

    Attributes:
      clip_norm: of the coming round, float32 scalar.
      round: of the coming round, int32; the first is 0.
    """

    clip_norm: jax.Array
    round: jax.Array


class Rule(NamedTuple):
    """A way to choose the clip norm; all functions are pure and can be jitted, mapped and scanned.

    Attributes:
      init: ``init() -> state`` of round 0; a state of any kind that has ``clip_norm``.
      update: ``update(state, released) -> state`` of the next round, called after every round. Between two releases it
        ignores ``released``.
      report: ``report(state, norm) -> statistic`` of one client, from the L2 norm of its update before clipping.
      release: ``release(key, reports) -> released``, with noise; reports [m, ...].
      every: rounds from one release to the next: there is one in round t where (t + 1) mod every = 0.
      event: of one release, with respect to one client's report; None where nothing is released.
      watch: ``watch(state, mean) -> state``, called before ``update`` with the noisy mean of the round's messages. The
        server has it in any case, so to learn from it costs no privacy. None for a rule that does not look.
    """

    init: Callable[[], Any]
    update: Callable[[Any, Any], Any]
    report: Callable[[Any, Any], jax.Array] | None = None
    release: Callable[[jax.Array, jax.Array], jax.Array] | None = None
    every: int = 1
    event: DpEvent | None = None
    watch: Callable[[Any, Any], Any] | None = None


def schedule(clip_norm: Callable[[Any], Any]) -> Rule:
    """The clip norm is a function of the round alone.

    Args:
      clip_norm: ``clip_norm(round) -> C`` for an int32 scalar, jittable; any optax schedule will do.

    Returns:
      A :class:`Rule` that reports and releases nothing.
    """

    def at(round: Any) -> State:
        return State(jnp.asarray(clip_norm(round), jnp.float32), round)

    return Rule(init=lambda: at(jnp.int32(0)), update=lambda state, released: at(state.round + 1))


def fixed(c: Any) -> Rule:
    """C in every round.

    Args:
      c: L2 norm, > 0.

    Raises:
      InputError: a value out of range.
    """
    _validate.positive(c=c)
    return schedule(lambda t: c)


def switch(before: Any, after: Any, round: int) -> Rule:
    """One clip norm in rounds 0..round - 1, another from ``round`` on.

    Args:
      before, after: L2 norms, > 0.
      round: >= 1.

    Raises:
      InputError: a value out of range.

    Source: paper 002, Section 4.4.1.
    """
    _validate.positive(before=before)
    _validate.positive(after=after)
    first = _validate.at_least(1, round=round)
    return schedule(lambda t: jnp.where(t < first, before, after))


def polynomial(c0: Any, rounds: int, power: Any) -> Rule:
    """C_{t+1} = C_0 (1 - t/T)^power, so C_1 = C_0; nothing is left after round T.

    Args:
      c0: C_0, L2 norm, > 0.
      rounds: T, >= 1.
      power: > 0.

    Raises:
      InputError: a value out of range.

    Source: paper 002, Eq. (5).
    """
    _validate.positive(c0=c0)
    total = _validate.at_least(1, rounds=rounds)
    _validate.positive(power=power)

    def at(t: Any) -> jax.Array:
        before = jnp.clip(t - 1, 0, total)  # the t of Eq. (5): one less than that of the clip norm it gives
        return c0 * ((total - before) / total) ** power

    return schedule(at)


class BudgetState(NamedTuple):
    """What the server knows under :func:`noise_budget`: as :class:`State`, and ``left``, the square of the length of
    the noise that is still to come, float32 scalar."""

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
    """The clip norm whose noise, over the whole run, is ``share`` times as long as the first model: made for local DP.

    Under local DP an update is nearly always longer than C. A round then moves the model by at most C along the mean
    of the updates, and by C n, n = z sqrt(d/m), at random: many times as far. What C decides is how far that random
    walk goes before training ends, sqrt(sum_t C_t^2) n. With R_t = (share |theta_0|)^2 - sum_{s<t} (n C_s)^2 left and
    T - t rounds to go,

        C_t = sqrt(6 R_t (T - t)/((T - t + 1)(2 (T - t) + 1)))/n,    C_0 at most the caller's.

    Where nothing intervenes that is C_t = C_0 (1 - t/T), the schedule of Eq. (5) with power 1, and C_0 is close to
    share |theta_0| sqrt(3/T)/n: 0.046 at paper 002's scale, where 0.05 was found by hand. What a round did not
    spend, later ones do. All of it is public, so it costs no privacy and asks clients nothing.

    It is for networks that are trained from a random start, where |theta_0| is the length that matters; one that is
    trained already can bear less: choose a smaller ``share``.

    Args:
      c0: the largest C of round 0, > 0; what one begins with hardly matters.
      params: theta_0, the model before round 0, not zero.
      rounds: T, >= 1; from round T on C is the smallest there is, 2^-20.
      noise_multiplier: z, the standard deviation of one message's noise over C, > 0.
      clients_per_round: m, >= 1.
      share: of |theta_0|, > 0. 2 was found on MNIST (experiments/README.md) and kept for all other data sets.

    Returns:
      A :class:`Rule` that reports and releases nothing.

    Raises:
      InputError: a value out of range.

    Source: none; an answer to the question that ends paper 002 (Section 6).
    """
    _validate.positive(c0=c0)
    total = _validate.at_least(1, rounds=rounds)
    _validate.positive(noise_multiplier=noise_multiplier)
    m = _validate.at_least(1, clients_per_round=clients_per_round)
    _validate.positive(share=share)
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(params)]
    length = float(np.sqrt(sum(np.sum(leaf**2) for leaf in leaves)))
    if not 0 < length < np.inf:
        raise _validate.expected("params", "a model of finite length above zero", f"one of length {length}")
    noise = noise_multiplier * np.sqrt(sum(leaf.size for leaf in leaves) / m)  # its length at C = 1

    def at(round: Any, left: Any) -> BudgetState:
        to_go = jnp.maximum(total - round, 0).astype(jnp.float32)
        clip_norm = jnp.sqrt(6 * left * to_go / ((to_go + 1) * (2 * to_go + 1))) / noise
        return BudgetState(jnp.maximum(clip_norm, SMALLEST), round, left)

    def init() -> BudgetState:
        state = at(jnp.int32(0), jnp.float32((share * length) ** 2))
        return state._replace(clip_norm=jnp.minimum(state.clip_norm, c0))

    def update(state: BudgetState, released: Any) -> BudgetState:
        return at(state.round + 1, jnp.maximum(state.left - (noise * state.clip_norm) ** 2, 0))

    return Rule(init, update)


def adaptive_quantile(c0: Any, *, quantile: Any, learning_rate: Any = 0.2, noise_std: float = 5.0) -> Rule:
    """C <- C exp(-eta (b - gamma)), b the noisy share of clients whose update was not clipped.

    It comes to rest where that share is gamma. A client reports the bit |update| <= C. The aggregator releases
    b = 1/2 + (sum_i (bit_i - 1/2) + N(0, sigma^2))/m. A centred bit added moves the sum by 1/2 (a plain one: by up to
    1), so the event's noise multiplier is 2 sigma; one replaced moves it by 1. Over paper 002's 10,000 rounds, at
    delta 1e-7, that spends epsilon 0.0034 by Poisson sampling at rate 1e-4 (a plain bit 0.0072: the paper's 0.006 is
    true of the centred one), and 0.0077 where rounds have exactly 1,000 clients and one is replaced by another
    (:mod:`dpaudit.federated.accounting`).

    Where learning fails, updates grow without end and C with them. It is held in [2^-20, 2^20], c0 included, so that
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
    _validate.positive(c0=c0)
    _validate.probability(one_allowed=True, quantile=quantile)
    _validate.positive(learning_rate=learning_rate)
    _validate.positive(noise_std=noise_std)

    def at(clip_norm: Any, round: Any) -> State:
        return State(jnp.clip(jnp.asarray(clip_norm, jnp.float32), SMALLEST, LARGEST), round)

    def report(state: State, norm: Any) -> jax.Array:
        return norm <= state.clip_norm  # False for NaN

    def release(key: jax.Array, reports: jax.Array) -> jax.Array:
        centred = jnp.sum(reports.astype(jnp.float32) - 0.5)
        return 0.5 + (centred + noise_std * normal(key)) / len(reports)

    def update(state: State, released: jax.Array) -> State:
        return at(state.clip_norm * jnp.exp(-learning_rate * (released - quantile)), state.round + 1)

    event = dp_accounting.GaussianDpEvent(noise_std / 0.5)
    return Rule(lambda: at(c0, jnp.int32(0)), update, report, release, event=event)


def adaptive_median(
    c0: Any, *, epsilon: float = 0.8, delta: float = 1e-8, every: int = 1000, edges: Sequence[float] = EDGES
) -> Rule:
    """C <- the middle of the bin that holds the median norm, by a differentially private histogram.

    A client reports the number of its bin (a, b]; norms beyond the outer edges are in the outer bins. The aggregator
    releases the bins' shares, (counts + N(0, sigma^2 I))/m. A report added moves one count by 1, which is the
    sensitivity in L1 and in L2 (one replaced: 2 and sqrt(2)), and sigma is the smallest for (epsilon, delta): 6.30 for
    the paper's, which names no noise; its delta above 0 suggests the Gaussian. The server takes the first bin up to
    which the shares add up to more than 1/2, or else the last one. The lowest default bin's middle is 2^-8 = 0.0039,
    not the tenth of 0.01 that the paper says.

    Args:
      c0: L2 norm until the first release, > 0.
      epsilon, delta: of one release, among the m clients of its round, in nats and in (0, 1).
      every: rounds from one release to the next, >= 1: the first new clip norm is that of round ``every``.
      edges: of the bins, increasing from 0 or more; one more than there are bins.

    Returns:
      A :class:`Rule` that releases [bins].

    Raises:
      InputError: a value out of range.

    Source: paper 002, Sections 3.4 and 4.5.2; sigma: Balle and Wang 2018, Theorem 8, solved by dp-accounting.
    """
    _validate.positive(c0=c0)
    _validate.positive(epsilon=epsilon)
    _validate.open_unit(delta=delta)
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
