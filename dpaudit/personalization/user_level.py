"""Trains any model by user-level DP-SGD or DP-FTRL, which clip all of a user's examples as one, as a protocol.

    cohorts = spaced(key, len(everyone.weights), batch_size=100, rounds=500, separation=40)
    training = dp_ftrl(loss_fn, strategy=blt(cohorts.participation(500)), sampling=cohorts, clip_norm=0.3,
                       noise_multiplier=1.0, optimizer=optax.sgd(0.5))
    state, _, transcript = run(key, training.protocol, *training.init(params), everyone, rounds=500)
    transcript.epsilon(delta=1e-5)

Round t releases sum_u clip(g_u) + noise over the users u of its cohort, g_u the mean or the sum of the gradients of
u's examples. Cohorts are formed inside the boundary: by secret random sampling (:func:`dp_sgd`), or in an order that
may be public and respects the participation for which the noise is made (:func:`dp_ftrl`). The server names the round
it asks for, and the aggregator counts rounds: it releases NaN to a server that does not ask for the next one.

Source: paper 004, "Factored models and DP alternating minimisation" (general algorithms); McMahan, Ramage, Talwar and
Zhang 2018 (users clipped as one); Kairouz et al. 2021 (DP-FTRL).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from dp_accounting import NeighboringRelation
from jax.sharding import Mesh

from dpaudit import _validate
from dpaudit._engine import sharding
from dpaudit._engine.sharding import ALIKE, CUT
from dpaudit.mechanisms.clipping import wide
from dpaudit.personalization.boundary.processes import Memory, Process, Release, correlated, gaussian
from dpaudit.personalization.boundary.protocol import Protocol
from dpaudit.training import per_example
from dpaudit.training.dp_ftrl import refuse_more
from dpaudit.training.sampling import Sampling

if TYPE_CHECKING:
    from dpaudit.training.matrix_noise import Strategy

NAME = "gradients"  # the name of the process that releases once a round
ADD_REMOVE = NeighboringRelation.ADD_OR_REMOVE_ONE

Loss = Callable[[Any, Any], jax.Array]


class Users(NamedTuple):
    """All users and the key of their cohorts: the ``users`` of a run, which stay inside the boundary.

    Attributes:
      examples: pytree, leaves [n, w, ...]: up to w examples of each of n users.
      weights: [n, w]; 1 for an example, 0 for padding. A user without examples takes part and adds zero.
      cohorts: JAX random key that cohorts are drawn with, the same in all rounds. If privacy relies on random
        sampling, it is secret and must serve one training only: another one on the same users needs its own key
        (``users._replace(cohorts=...)``), or both draw the same cohorts, and sampling does not amplify both.
    """

    examples: Any
    weights: jax.Array
    cohorts: jax.Array


class State(NamedTuple):
    """The state of the untrusted server.

    Attributes:
      params: of the model.
      opt_state: of its optimiser.
      round: the next one, int32.
    """

    params: Any
    opt_state: Any
    round: jax.Array


class Training(NamedTuple):
    """A private training.

    Attributes:
      protocol: of one round; its users are :class:`Users`.
      init: ``init(params) -> (state, memory)``, for :func:`dpaudit.personalization.boundary.aggregator.run`.
    """

    protocol: Protocol
    init: Callable[[Any], tuple[State, Memory]]


def users(key: jax.Array, examples: Any, owners: Any, *, count: int | None = None) -> Users:
    """Arranges examples by user, in rows as long as the longest user's.

    Args:
      key: JAX random key that cohorts are drawn with, consumed.
      examples: pytree, leaves [e, ...].
      owners: [e], the user that each example belongs to, from 0; a user's examples keep their order.
      count: how many users there are, those without an example included; None for the largest owner and all below.

    Returns:
      :class:`Users`.

    Raises:
      InputError: leaves of different lengths; owners that are not users.
    """
    key, owners = _validate.key(key=key), np.asarray(owners)
    lengths = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(examples)}
    if owners.ndim != 1 or not owners.size or owners.dtype.kind not in "iu" or lengths != {owners.shape}:
        raise _validate.expected(
            "owners", "a whole number for each example, [e]", f"{owners.dtype}{list(owners.shape)}"
        )
    count = int(owners.max()) + 1 if count is None else _validate.at_least(1, count=count)
    if owners.min() < 0 or owners.max() >= count:
        strange = owners.min() if owners.min() < 0 else owners.max()
        raise _validate.expected("owners", f"users in 0..{count - 1}", int(strange))
    have = np.bincount(owners, minlength=count)
    order = np.argsort(owners, kind="stable")
    at = owners[order], np.arange(len(order)) - (np.cumsum(have) - have)[owners[order]]

    def rows(leaf: Any) -> jax.Array:
        leaf = np.asarray(leaf)
        arranged = np.zeros((count, have.max(), *leaf.shape[1:]), leaf.dtype)
        arranged[at] = leaf[order]
        return jnp.asarray(arranged)

    return Users(jax.tree.map(rows, examples), rows(np.ones(len(owners), np.float32)), key)


def dp_sgd(
    loss_fn: Loss,
    *,
    sampling: Sampling,
    clip_norm: float,
    noise_multiplier: float,
    optimizer: optax.GradientTransformation,
    mean: bool = True,
    mesh: Mesh | None = None,
) -> Training:
    """Makes a training by DP-SGD: amplifying Poisson sampling of users, and fresh noise in every round.

    Args:
      loss_fn: ``loss_fn(params, example) -> scalar`` of ONE example.
      sampling: of users, as :func:`dpaudit.training.sampling.poisson` makes it. For a sampling without accounting for
        users added or removed (orders, fixed sizes) use :func:`dp_ftrl` with
        :func:`dpaudit.training.matrix_noise.independent`.
      clip_norm: the largest L2 norm that one user adds to a round, > 0.
      noise_multiplier: > 0.
      optimizer: the server's; it gets noisy sums divided by the constant ``sampling.batch_size``.
      mean: whether a user's gradient is the mean over their examples, else the sum.
      mesh: a mesh whose devices, also those of several processes (``jax.distributed``), share a round's cohort. The
        noise is the same, and sums are equal up to rounding.

    Returns:
      A :class:`Training`. A round without users releases noise only; a user whose gradient is not finite adds zero.

    Raises:
      InputError: a value out of range or of another kind; a sampling that does not amplify.
    """
    _refuse_others(loss_fn, sampling, optimizer)
    noise_multiplier = _validate.positive(noise_multiplier=noise_multiplier)
    sampling.event(noise_multiplier, 1, ADD_REMOVE)

    process = gaussian(NAME, noise_multiplier=noise_multiplier)._replace(
        event=lambda rounds: sampling.event(noise_multiplier, rounds, ADD_REMOVE)
    )
    return _training(loss_fn, process, sampling, clip_norm, optimizer, mean, mesh)


def dp_ftrl(
    loss_fn: Loss,
    *,
    strategy: "Strategy",
    sampling: Sampling,
    clip_norm: float,
    noise_multiplier: float,
    optimizer: optax.GradientTransformation,
    mean: bool = True,
    mesh: Mesh | None = None,
) -> Training:
    """Makes a training by DP-FTRL: the noise of round t is clip_norm noise_multiplier sens(C) (C^-1 z)_t.

    Its privacy does not depend on random sampling. Neighbours differ by one user, whose examples are present or not,
    in an order that stays the same ("zero_out").

    Args:
      strategy: C, from :mod:`dpaudit.training.matrix_noise`; rounds after its last one release NaN.
      sampling: of users, such as :func:`dpaudit.training.sampling.spaced`, :func:`dpaudit.training.sampling.scheduled`
        or :func:`dpaudit.training.sampling.cyclic`.
      noise_multiplier: relative to the sensitivity of all rounds together, > 0: they have mu = 1/noise_multiplier.
      loss_fn, clip_norm, optimizer, mean, mesh: as for :func:`dp_sgd`.

    Returns:
      A :class:`Training`, as of :func:`dp_sgd`.

    Raises:
      InputError: a value out of range or of another kind; a sampling in which users take part more often, or with
        fewer rounds between, than the strategy is made for.

    Source: Denisov et al. 2022; several participations: Choquette-Choo et al. 2023a.
    """
    _refuse_others(loss_fn, sampling, optimizer)
    refuse_more(strategy, sampling)
    process = correlated(NAME, strategy, noise_multiplier)
    return _training(loss_fn, process, sampling, clip_norm, optimizer, mean, mesh)


def clipped_sum(
    loss_fn: Loss,
    params: Any,
    examples: Any,
    weights: jax.Array,
    *,
    clip_norm: float,
    mean: bool,
    most: int,
    part_of: int | None = None,
) -> Any:
    """Computes sum_u clip(g_u), g_u the mean or sum of the gradients of the examples of user u.

    Args:
      loss_fn, clip_norm, mean: as for :func:`dp_sgd`.
      params: of the model.
      examples: pytree, leaves [m, w, ...].
      weights: [m, w], 1 or 0; rows of zeros at the end are not computed.
      most: users that are differentiated at a time, at most.
      part_of: users in all, where several such sums are added up; None for m.

    Returns:
      A pytree like params, in float32 or wider.
    """
    m, width = weights.shape
    share = weights / jnp.maximum(jnp.sum(weights, axis=1, keepdims=True), 1) if mean else weights
    total, _ = per_example.clipped_sum(
        loss_fn,
        params,
        jax.tree.map(lambda leaf: leaf.reshape(m * width, *leaf.shape[2:]), examples),
        clip_norm=clip_norm,
        group_size=width,
        weights=share.ravel(),
        microbatch=most * width,
        part_of=part_of,
    )
    return total


class Cohorts(NamedTuple):
    """Adds up the messages of the devices in a round's cohort: ``cohorts(key, model, everyone) -> total``.

    Attributes:
      loss_fn, sampling, clip_norm, mean: as for :func:`dp_sgd`.
      chunk: users that are differentiated at a time on one device, at most.
      mesh: over whose devices the cohort is shared out, or None for one.
    """

    loss_fn: Loss
    sampling: Sampling
    clip_norm: float
    mean: bool
    chunk: int
    mesh: Mesh | None

    def __call__(self, key: jax.Array, model: tuple[Any, jax.Array], everyone: Users) -> tuple[Any, jax.Array]:
        params, round = model
        if len(everyone.weights) != self.sampling.examples:
            raise _validate.expected("users", f"the {self.sampling.examples} of the sampling", len(everyone.weights))

        def own(params: Any, everyone: Users, drawn: jax.Array, present: jax.Array) -> Any:
            examples, weights = jax.tree.map(lambda leaf: leaf[drawn], (everyone.examples, everyone.weights))
            total = clipped_sum(
                self.loss_fn,
                params,
                examples,
                weights * present[:, None],
                clip_norm=self.clip_norm,
                mean=self.mean,
                most=self.chunk,
                part_of=len(drawn) * sharding.devices(self.mesh),
            )
            return sharding.added(total, self.mesh)

        cohort = map(self._dealt, self.sampling.draw(everyone.cohorts, round))
        everywhere = sharding.shared_out(own, self.mesh, (ALIKE, ALIKE, CUT, CUT), ALIKE)
        return everywhere(params, everyone, *cohort), round

    def in_chunks(self, chunk: int) -> "Cohorts":
        """Returns the same cohorts, with at most ``chunk`` users differentiated at a time."""
        return self._replace(chunk=chunk)

    def _dealt(self, places: jax.Array) -> jax.Array:
        """Deals the cohort to the devices in turn, padded to equal numbers, with those present in front."""
        parts = sharding.devices(self.mesh)
        return jnp.pad(places, (0, -len(places) % parts)).reshape(-1, parts).T.ravel()


def _refuse_others(loss_fn: Any, sampling: Any, optimizer: Any) -> None:
    """Refuses what is no loss, sampling or optimiser, before a run would stumble over it."""
    _validate.function(loss_fn=loss_fn)
    if not isinstance(sampling, Sampling):
        raise _validate.expected("sampling", "a Sampling of dpaudit.training.sampling", sampling)
    _validate.optimizer(optimizer=optimizer)


def _training(
    loss_fn: Loss,
    process: Process,
    sampling: Sampling,
    clip_norm: float,
    optimizer: optax.GradientTransformation,
    mean: bool,
    mesh: Mesh | None,
) -> Training:
    clip_norm = _validate.positive(clip_norm=clip_norm)
    chunk = -(-sampling.batch_size // (4 * sharding.devices(mesh)))
    devices = Cohorts(loss_fn, sampling, clip_norm, mean, chunk, sharding.flat(mesh))

    def init(params: Any) -> tuple[State, Memory]:
        own = wide(params)
        return State(params, optimizer.init(own), jnp.int32(0)), process.init(own)

    def broadcast(state: State) -> tuple[Any, jax.Array]:
        return state.params, state.round

    def release(key: jax.Array, inside: tuple[Any, jax.Array], memory: Memory) -> tuple[tuple[Release], Memory]:
        total, round = inside
        agreed = jax.tree.map(lambda leaf: jnp.where(round == memory.number, leaf, jnp.nan), total)
        out, memory = process.release(key, agreed, memory, sensitivity=clip_norm)
        return (out,), memory

    def update(state: State, releases: tuple[Release, ...]) -> State:
        gradient = jax.tree.map(lambda leaf: leaf / sampling.batch_size, releases[0].value)
        updates, opt_state = optimizer.update(gradient, state.opt_state, state.params)
        return State(optax.apply_updates(state.params, updates), opt_state, state.round + 1)

    return Training(Protocol(broadcast, devices, release, update), init)
