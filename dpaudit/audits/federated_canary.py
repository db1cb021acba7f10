"""Audits federated learning as seen on the wire, in the transcript of all rounds, and in the final model.

    claim = dpaudit.Claim(8.0, 1e-7)
    result = message(key, client, params, claim, clip_norm=0.05, trials=1_000)    # one message of your own client

    found, params = one_run(key, federation, canaries=500)                        # a whole run, with canaries
    transcript(found, 10, delta=1e-7, confidence=0.95).epsilon_lower              # for those who see every round
    final_model(found, 10, delta=1e-7, confidence=0.95).epsilon_lower             # for those who see the final model
    accounted(10, noise_multiplier=1.4042, clients_per_round=200, delta=1e-7)     # what the noise allows

``client`` is ``client(update) -> Client``, such as ``partial(clients.gaussian, noise_multiplier=1.4042)``.

Local privacy claims that one message reveals little about its sender. The server uses sums of m messages, in which the
noise of all hides each one much better. Both claims are audited here by clients with a linear loss, <theta, x>, whose
gradient is the x that they choose. It goes through the same clipping, sampling, summing, noise and server step as any
other, so a fault in any of these shows.

A canary client sends the same direction c_j, uniform on the sphere of all D parameters, whenever it is drawn. Anything
independent of c_j has a cosine N(0, 1/D) with it, for any model and any data, so sqrt(D) times the cosine is a score
N(0, 1) for a client that was absent. Its mean over clients that were present is the mu of Gaussian differential
privacy, because nearly all of a sum's length is noise. Its standard error after a single run is 1/sqrt(canaries).
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jax.tree_util import Partial
from scipy.special import ndtri

from dpaudit import _validate
from dpaudit.auditing.audit import audit
from dpaudit.auditing.bounds import gdp
from dpaudit.auditing.result import AuditResult
from dpaudit.audits.fresh_noise import refuse_alike
from dpaudit.federated import accounting, clients
from dpaudit.federated.clients import Client, Loss, Sent, Update
from dpaudit.federated.clip_size import Rule
from dpaudit.federated.population import Population
from dpaudit.federated.rounds import Server, federated, participants, refuse_missing_rows, run
from dpaudit.mechanisms.claim import Claim
from dpaudit.mechanisms.sampling import sphere

STRETCH = 100.0  # a canary's gradient before clipping, in clip norms


class Federation(NamedTuple):
    """The settings of a federated run to audit.

    Attributes:
      loss_fn: ``loss_fn(params, example) -> scalar`` of ONE example.
      params: the server's first model.
      population, data, clients_per_round, rounds: as for :func:`dpaudit.federated.rounds.run`; without canaries.
      rule: of the clip norm. An adaptive one also sees the canaries' gradients, 100 times as long as its first norm.
      optimizer: the server's; for :func:`final_model`, ``optax.sgd`` with a constant rate.
      client: ``client(update) -> Client``.
      update: ``update(loss_fn) -> Update``.
      make: a function like :func:`dpaudit.federated.rounds.federated`; bind further settings, such as a mesh, by
        ``functools.partial``.
    """

    loss_fn: Loss
    params: Any
    population: Population
    data: Any
    clients_per_round: int
    rounds: int
    rule: Rule
    optimizer: optax.GradientTransformation
    client: Callable[[Update], Client]
    update: Callable[[Loss], Update] = clients.gradients
    make: Callable[..., Server] = federated


class Canaries(NamedTuple):
    """The scores of k canaries in one run, each N(0, 1) for a direction that had no part in it.

    Attributes:
      final: [k], sqrt(D) cos(c_j, theta_0 - theta_T).
      rounds: [rounds, k], sqrt(D) cos(c_j, g_t), g_t the noisy mean of round t.
      overlap: [rounds, rounds], cos(g_s, g_t): the covariance of an absent canary's scores.
      taken: [rounds, k], 1 where canary j took part in round t, else 0.
    """

    final: np.ndarray
    rounds: np.ndarray
    overlap: np.ndarray
    taken: np.ndarray


class Estimate(NamedTuple):
    """How well a client's presence can be detected; each bound holds with the stated confidence.

    Attributes:
      mu, mu_lower, mu_upper: in standard deviations, never below 0.
      epsilon, epsilon_lower, epsilon_upper: the corresponding epsilons, in nats at the stated delta.
    """

    mu: float
    mu_lower: float
    mu_upper: float
    epsilon: float
    epsilon_lower: float
    epsilon_upper: float


def message(
    key: jax.Array,
    client: Callable[[Update], Client],
    params: Any,
    claim: Claim,
    *,
    clip_norm: float,
    update: Callable[[Loss], Update] = clients.gradients,
    **settings: Any,
) -> AuditResult:
    """Audits one message of a client at the worst pair: opposite updates, longer than the clip norm.

    The score is the projection on their difference. It is a monotone function of the likelihood ratio of Gaussian
    noise, and its sign is one for LDP-SGD.

    Args:
      key: a jax.random key, consumed.
      client: ``client(update) -> Client``.
      params: a pytree like the model's parameters; their values do not matter. Fewer of them make faster trials.
      claim: the promise of one message, "replace".
      clip_norm: C.
      update: ``update(loss_fn) -> Update``.
      settings: further arguments of :func:`dpaudit.audit`, such as ``trials`` and ``confidence``.

    Returns:
      An :class:`dpaudit.AuditResult`, which assumes nothing about the noise. With a delta as small as 1e-7 it depends
      on events nearly as rare; for a Gaussian message, :func:`as_gaussian` uses common ones.

    Raises:
      InputError: as :func:`dpaudit.audit`; a value out of range.
    """
    direction_key, audit_key = jax.random.split(_validate.key(key=key))
    mechanism = clients.message(client(update(linear)), params, clip_norm, claim)
    x = jax.tree.map(lambda leaf: STRETCH * clip_norm * leaf, random_directions(direction_key, params, 1))
    opposite = jax.tree.map(jnp.negative, x)
    return audit(mechanism, opposite, x, key=audit_key, **settings)


def as_gaussian(result: AuditResult) -> tuple[float, float]:
    """Bounds epsilon from the error rates of an audit, **assuming the message is Gaussian**.

    Args:
      result: as from :func:`message`, whose threshold was fixed, or chosen on trials that are not counted.

    Returns:
      (lower, upper) in nats at the result's delta, each with its confidence.
    """
    errors = round(result.fpr * result.negatives), round(result.fnr * result.positives)
    found = gdp.epsilon_bounds(
        *errors, result.negatives, result.positives, delta=result.delta, confidence=result.confidence
    )
    return float(found[0]), float(found[1])


def one_run(key: jax.Array, federation: Federation, *, canaries: int) -> tuple[Canaries, Any]:
    """Runs a federation once, with k canary clients among its clients, and scores them.

    Scores are N(mu, 1) for canaries that are present if there are far fewer of them than D/mu^2: their sum must be
    short compared with the noise, or mu is underestimated. The transcript takes the memory of rounds x D numbers, and
    the directions that of k x D.

    Args:
      key: JAX random key, consumed.
      federation: to be audited.
      canaries: k >= 1.

    Returns:
      (canaries, params): :class:`Canaries`, and the final model.

    Raises:
      InputError: a value out of range; a run in which no canary took part; rounds that share their noise, or sums
        of which less than a fifth is noise.

    Source: Andrew et al. 2023, "One-shot Empirical Privacy Estimation for Federated Learning", Algorithm 1. The scores
    of an absent canary are known here; estimating them, as there, biases mu upward.
    """
    _validate.at_least(1, rounds=federation.rounds)
    direction_key, run_key = jax.random.split(_validate.key(key=key))
    directions = random_directions(direction_key, federation.params, _validate.at_least(1, canaries=canaries))
    server = federation.make(
        federation.client(_planted(federation, directions)),
        federation.rule,
        clients_per_round=federation.clients_per_round,
        optimizer=optax.chain(_recorded(federation.rounds), federation.optimizer),
    )
    population, data = _with_clients(federation, canaries)
    drawn = np.asarray(participants(run_key, server, population.clients, federation.rounds))
    taken = (drawn[:, :, None] - federation.population.clients == np.arange(canaries)).sum(axis=1)
    if not taken.any():
        raise _validate.expected("canaries", "enough of them that some are drawn", canaries)
    state, _ = run(run_key, server, server.init(federation.params), population, data, federation.rounds)
    moved = jax.tree.map(jnp.subtract, federation.params, state.params)
    means = state.opt_state[0].means
    found = Canaries(*_scores(directions, moved, means), taken)
    refuse_alike(found.overlap, means.shape[1])
    return found, state.params


def final_model(found: Canaries, participations: int, *, delta: float, confidence: float) -> Estimate:
    """Estimates what the final model alone reveals about a client that took part r times: mu = r times a round's.

    The sum of T rounds hides a client better than the separate rounds, by a factor of sqrt(r/T), and the rest of the
    model's movement hides it further. **It assumes a server that adds up means at a constant rate, Gaussian noise, and
    an adversary who knows only the direction.**

    Args:
      found: as from :func:`one_run`.
      participations: r >= 1, at most the rounds of the run.
      delta: in (0, 1), of the epsilons.
      confidence: in (0, 1), of each bound.

    Returns:
      An :class:`Estimate`, of one client added or removed. The standard error of mu is 1/sqrt(k) if all canaries took
      part r times.

    Raises:
      InputError: a value out of range.
    """
    times = found.taken.sum(axis=0).astype(np.float64)
    weight = np.sum(times**2)
    one = float(np.sum(times * found.final) / weight)
    r = _participations(found, participations)
    return estimate(r * one, r / math.sqrt(weight), delta, confidence)


def transcript(found: Canaries, participations: int, *, delta: float, confidence: float) -> Estimate:
    """Estimates what all noisy means reveal about a client that took part r times: mu = sqrt(r) times a round's.

    **It assumes that the noise is Gaussian with the same scale in every round, and that the adversary knows in which
    rounds the client took part**: then rounds compose as Gaussian releases do. The scores of one canary in two rounds
    have the two means' cosine as covariance, which is small but adds up.

    Args:
      found, participations, delta, confidence: as for :func:`final_model`.

    Returns:
      An :class:`Estimate`, of one client added or removed.

    Raises:
      InputError: a value out of range.

    Source: composition: Dong, Roth and Su 2022, Corollary 3.3.
    """
    taken = found.taken.astype(np.float64)
    count = taken.sum()
    one = float(np.sum(taken * found.rounds) / count)
    error = math.sqrt(np.sum(taken * (found.overlap @ taken))) / count
    root = math.sqrt(_participations(found, participations))
    return estimate(root * one, root * error, delta, confidence)


def accounted(participations: int, *, noise_multiplier: float, clients_per_round: int, delta: float) -> float:
    """Computes the privacy loss of a client that takes part r times in sums of m noisy messages, if only sums are
    seen.

    The client moves r sums by C, each with noise of standard deviation z C sqrt(m): mu = sqrt(r/m)/z. An absent client
    still sends noise, so m stays the same. The claim does not cover single messages, clients who reveal their noise,
    nor the statistic of an adaptive rule, a further release (:func:`dpaudit.federated.accounting.statistic_claim`).

    Args:
      participations: r >= 0.
      noise_multiplier: z, of one message, > 0.
      clients_per_round: m >= 1.
      delta: in (0, 1).

    Returns:
      epsilon in nats, of one client added or removed.

    Raises:
      InputError: a value out of range.
    """
    m = _validate.at_least(1, clients_per_round=clients_per_round)
    half = 2 * _validate.positive(noise_multiplier=noise_multiplier)  # replacing a client moves a sum by 2 C
    return accounting.gaussian(participations, noise_multiplier=half * math.sqrt(m), delta=delta)


class _Row(NamedTuple):
    record: Any
    canary: jax.Array  # which canary a row is, -1 for a record


def _planted(federation: Federation, directions: Any) -> Update:
    """Makes an update that comes from a client's records, or from its direction if it is a canary."""
    length = STRETCH * federation.rule.init().clip_norm

    def of_record(params: Any, row: _Row) -> jax.Array:
        return (row.canary < 0) * federation.loss_fn(params, row.record)

    def of_canary(params: Any, given: tuple[jax.Array, Any]) -> jax.Array:
        return given[0] * linear(params, given[1])

    real, planted = federation.update(of_record), federation.update(of_canary)

    def canaries(batch: _Row) -> tuple[jax.Array, Any]:
        own = batch.canary[:, :1]
        return jnp.where(own < 0, 0.0, length), jax.tree.map(lambda leaf: leaf[own], directions)

    def clipped_sum(params: Any, batch: _Row, clip_norm: Any) -> Sent:
        parts = real.clipped_sum(params, batch, clip_norm), planted.clipped_sum(params, canaries(batch), clip_norm)
        return jax.tree.map(jnp.add, *parts)

    def each(params: Any, batch: _Row) -> tuple[jax.Array, jax.Array]:
        return jax.tree.map(jnp.add, real.each(params, batch), planted.each(params, canaries(batch)))

    return Update(clipped_sum, each)


def _with_clients(federation: Federation, canaries: int) -> tuple[Population, _Row]:
    """Adds canary clients to the population, each with one row appended to the data."""
    refuse_missing_rows(federation.population, federation.data)
    rows = len(jax.tree.leaves(federation.data)[0])
    records = jax.tree.map(
        lambda leaf: jnp.concatenate([leaf, jnp.repeat(jnp.asarray(leaf)[:1], canaries, axis=0)]), federation.data
    )
    everyone = federation.population
    train = Partial(_rows_of, everyone.train, everyone.clients, rows)
    numbers = jnp.concatenate([jnp.full(rows, -1, jnp.int32), jnp.arange(canaries, dtype=jnp.int32)])
    more = everyone._replace(clients=everyone.clients + canaries, train=train, rows=rows + canaries)
    return more, _Row(records, numbers)


def _rows_of(train: Partial, clients: Any, rows: Any, client: jax.Array) -> jax.Array:
    own = train(jnp.minimum(client, clients - 1))
    return jnp.where(client < clients, own, rows + client - clients)


def linear(params: Any, direction: Any) -> jax.Array:
    """Computes <theta, x>, a loss whose gradient is x."""
    parts = jax.tree.map(jnp.vdot, params, direction)
    return jnp.stack(jax.tree.leaves(parts)).sum()


@partial(jax.jit, static_argnames="count")
def random_directions(key: jax.Array, params: Any, count: int) -> Any:
    """Draws uniform directions in the space of the parameters, leaves [count, ...]."""
    flat, unravel = ravel_pytree(clients.wide(params))
    return jax.vmap(lambda key: unravel(sphere(key, flat.size)))(jax.random.split(key, count))


class _Record(NamedTuple):
    means: jax.Array  # [rounds, D]
    round: jax.Array


def _recorded(count: int) -> optax.GradientTransformation:
    """Records the noisy mean of every round; changes nothing."""

    def init(params: Any) -> _Record:
        return _Record(jnp.zeros((count, ravel_pytree(params)[0].size)), jnp.int32(0))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, _Record]:
        return updates, _Record(state.means.at[state.round].set(ravel_pytree(updates)[0]), state.round + 1)

    return optax.GradientTransformation(init, update)


@jax.jit
def _cosines(directions: Any, moved: Any, means: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Computes the cosines of directions with the model's movement [k] and with the means [rounds, k], and the cosines
    between the means."""
    c = jax.vmap(lambda tree: ravel_pytree(tree)[0])(directions)
    moved, means = (x / jnp.linalg.norm(x, axis=-1, keepdims=True) for x in (ravel_pytree(moved)[0], means))
    return c @ moved, means @ c.T, means @ means.T


def _scores(directions: Any, moved: Any, means: jax.Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    final, each, overlap = (np.asarray(x, np.float64) for x in _cosines(directions, moved, means))
    root = math.sqrt(means.shape[1])
    return root * final, root * each, overlap


def _participations(found: Canaries, participations: int) -> int:
    if _validate.at_least(1, participations=participations) > len(found.taken):
        raise _validate.expected("participations", f"at most the {len(found.taken)} rounds of the run", participations)
    return int(participations)


def estimate(mu: float, error: float, delta: float, confidence: float) -> Estimate:
    """Makes an estimate from mu and its standard error, assuming that mu's error is normally distributed; InputError
    where one of the two is not finite."""
    _validate.open_unit(delta=delta)
    reach = float(ndtri(_validate.open_unit(confidence=confidence))) * error
    if not math.isfinite(mu) or not math.isfinite(error):
        raise _validate.expected("found", "scores of a model that moved, and of finite releases", f"mu {mu:g}")
    mus = np.maximum([mu, mu - reach, mu + reach], 0.0)
    return Estimate(*mus.tolist(), *gdp.epsilon_from_mu(mus, delta).tolist())
