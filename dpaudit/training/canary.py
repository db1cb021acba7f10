"""Audits of a training as it ships, from three seats: every step's noisy sum, one run with many canaries, one loss.

A gradient canary is a record whose loss moves a parameter of its own and nothing else: its gradient is as long as one
likes and at right angles to everybody else's, the worst record that differential privacy has to hide. It goes through
the same sampling, clipping, summing and noise as the data, so a fault in any of them shows.

    mechanism = white_box(loss_fn, params, data, steps=100, clip_norm=1.0, noise_multiplier=1.0, batch_size=64, ...)
    dpaudit.audit(mechanism, ABSENT, PRESENT, key=key, trials=2_000)
"""

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpaudit import check
from dpaudit.mechanisms.claim import Claim, Mechanism
from dpaudit.training.accounting import epsilon
from dpaudit.training.dp_sgd import Trainer, dp_sgd, train
from dpaudit.training.fit import fit
from dpaudit.training.sampling import poisson

ABSENT, PRESENT = 0.0, 1.0  # the two inputs of an audit: is the canary in the data?
STRETCH = 100.0  # a canary's gradient before clipping, in clip norms

Loss = Callable[..., jax.Array]


class Planted(NamedTuple):
    """Data with canaries behind the records; every leaf has a leading axis of n + m."""

    records: Any  # the canaries' own are copies of the first record, and unused
    canary: jax.Array  # [n + m], which canary a row is, -1 for a record
    present: jax.Array  # [n + m], 1 or 0: a row that is absent has no gradient


class Canaries(NamedTuple):
    """What one run says of its canaries, for :func:`dpaudit.auditing.one_run.audit`."""

    scores: np.ndarray  # [m], larger means "was included"
    included: np.ndarray  # [m] booleans, fair coins


def white_box(
    loss_fn: Loss,
    params: Any,
    data: Any,
    *,
    steps: int,
    clip_norm: float,
    noise_multiplier: float,
    batch_size: int,
    optimizer: optax.GradientTransformation,
    delta: float,
    make: Callable[..., Trainer] = dp_sgd,
    **settings: Any,
) -> Mechanism:
    """A whole training as a mechanism of "is the canary in the data?", seen by an adversary who reads every step.

    Every step includes the canary with probability q = batch_size/(n + 1). It moves its own coordinate by the clip
    norm, so that coordinate of the noisy sum over the clip norm is N(0, z^2) without it, and with it
    (1 - q) N(0, z^2) + q N(1, z^2): the pair that the accounting of Poisson sampling is tight for.

    Args:
      loss_fn: as for :func:`dpaudit.training.dp_sgd.dp_sgd`, without dropout.
      params: where training starts.
      data: pytree with leaves [n, ...]; the canary is one record more.
      steps, clip_norm, noise_multiplier, batch_size, optimizer: of the training.
      delta: of the claim.
      make: what is audited: a function like :func:`dpaudit.training.dp_sgd.dp_sgd`.
      settings: passed on to ``make``.

    Returns:
      A :class:`dpaudit.Mechanism` for the inputs ``ABSENT`` and ``PRESENT``: releases [steps], the canary's coordinate
      of every noisy sum in clip norms; with the log density that a sound training gives them, and the accounted claim
      ("add_remove").

    Raises:
      InputError: a value out of range.

    Source: Nasr et al. 2021, "Adversary Instantiation", Section 4.6 (the gradient canary).
    """
    check.at_least(1, steps=steps)
    planted = _plant(data, 1)
    sampling = poisson(len(planted.canary), batch_size)
    rate = batch_size / sampling.examples
    trainer = make(
        _with_canaries(loss_fn, STRETCH * clip_norm),
        clip_norm=clip_norm,
        noise_multiplier=noise_multiplier,
        batch_size=batch_size,
        optimizer=optax.chain(_recorded(steps), optimizer),
        **settings,
    )

    def apply(key: jax.Array, present: Any) -> jax.Array:
        state = trainer.init({"network": params, "canary": jnp.zeros(1)})
        given = planted._replace(present=planted.present.at[-1].set(present))
        state, _ = train(key, trainer, state, given, sampling, steps)
        return state.opt_state[0].gradients * batch_size / clip_norm

    def log_prob(release: jax.Array, present: Any) -> jax.Array:
        moved = jnp.logaddexp(jnp.log1p(-rate), jnp.log(rate) + (release - 0.5) / noise_multiplier**2)
        return jnp.sum(jnp.where(present, moved, 0.0) - 0.5 * (release / noise_multiplier) ** 2)

    spent = epsilon(sampling, noise_multiplier, steps, delta=delta)
    return Mechanism(apply, Claim(spent, delta, "add_remove"), log_prob)


def one_run(
    key: jax.Array,
    loss_fn: Loss,
    params: Any,
    data: Any,
    *,
    canaries: int,
    steps: int,
    clip_norm: float,
    noise_multiplier: float,
    batch_size: int,
    optimizer: optax.GradientTransformation,
    make: Callable[..., Trainer] = dp_sgd,
    every: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Callable[[int], None] | None = None,
    **settings: Any,
) -> tuple[Canaries, Any]:
    """Trains once, with every one of m canaries included by a fair coin, and scores them all.

    A canary's score is the sum over steps of its coordinate of the noisy sum.

    Args:
      key: JAX random key, consumed.
      canaries: m >= 1; the data become n + m rows, of which about m/2 stay empty.
      loss_fn, params, data, steps, clip_norm, noise_multiplier, batch_size, optimizer, make, settings: as for
        :func:`white_box`.
      every, checkpoint, progress: as for :func:`dpaudit.training.fit.fit`; all steps in one call by default. The
        checkpoint tells which canaries were included.

    Returns:
      (:class:`Canaries`, params): what to audit, and the trained network.

    Raises:
      InputError: a value out of range.

    Source: Steinke, Nasr and Jagielski 2023, Algorithm 1.
    """
    check.at_least(1, steps=steps)
    planted = _plant(data, check.at_least(1, canaries=canaries))
    coin_key, train_key = jax.random.split(check.key(key=key))
    included = jax.random.bernoulli(coin_key, 0.5, (canaries,))
    sampling = poisson(len(planted.canary), batch_size)
    trainer = make(
        _with_canaries(loss_fn, STRETCH * clip_norm),
        clip_norm=clip_norm,
        noise_multiplier=noise_multiplier,
        batch_size=batch_size,
        optimizer=optax.chain(_recorded(steps, canaries), optimizer),
        **settings,
    )
    state, *_ = fit(
        train_key,
        trainer,
        {"network": params, "canary": jnp.zeros(canaries)},
        planted._replace(present=planted.present.at[-canaries:].set(included)),
        sampling,
        steps,
        every=steps if every is None else every,
        checkpoint=checkpoint,
        progress=progress,
    )
    scores = np.asarray(state.opt_state[0].gradients).reshape(steps, canaries).sum(axis=0)
    return Canaries(scores, np.asarray(included)), state.params["network"]


def black_box(
    loss_fn: Loss,
    params: Any,
    data: Any,
    target: Any,
    *,
    steps: int,
    clip_norm: float,
    noise_multiplier: float,
    batch_size: int,
    optimizer: optax.GradientTransformation,
    delta: float,
    make: Callable[..., Trainer] = dp_sgd,
    **settings: Any,
) -> Mechanism:
    """A whole training as a mechanism of "is the target in the data?", seen through the target's loss alone.

    Args:
      target: one example, like those that ``loss_fn`` takes; for inputs ``ABSENT`` and ``PRESENT``.
      loss_fn, params, data, steps, clip_norm, noise_multiplier, batch_size, optimizer, delta, make, settings: as for
        :func:`white_box`.

    Returns:
      A :class:`dpaudit.Mechanism`: releases are minus the trained network's loss on the target, a scalar, larger for a
      target that it knows; with the accounted claim ("add_remove").

    Raises:
      InputError: a value out of range.

    Source: paper 003, Algorithm 1 (the loss as the statistic).
    """
    check.at_least(1, steps=steps)
    records = jax.tree.map(lambda leaf, own: jnp.concatenate([leaf, jnp.asarray(own)[None]]), data, target)
    size = len(jax.tree.leaves(records)[0])
    sampling = poisson(size, batch_size)
    trainer = make(
        lambda params, row: row[1] * loss_fn(params, row[0]),
        clip_norm=clip_norm,
        noise_multiplier=noise_multiplier,
        batch_size=batch_size,
        optimizer=optimizer,
        **settings,
    )

    def apply(key: jax.Array, present: Any) -> jax.Array:
        given = records, jnp.ones(size).at[-1].set(present)
        state, _ = train(key, trainer, trainer.init(params), given, sampling, steps)
        return -loss_fn(state.params, target)

    spent = epsilon(sampling, noise_multiplier, steps, delta=delta)
    return Mechanism(apply, Claim(spent, delta, "add_remove"))


def _plant(data: Any, canaries: int) -> Planted:
    n = {leaf.shape[0] if jnp.ndim(leaf) else 0 for leaf in jax.tree.leaves(data)}
    if len(n) != 1 or 0 in n:
        raise check.expected("data", "arrays with one leading axis of n >= 1 examples", f"lengths {sorted(n)}")
    size = n.pop()
    records = jax.tree.map(
        lambda leaf: jnp.concatenate([leaf, jnp.repeat(jnp.asarray(leaf)[:1], canaries, axis=0)]), data
    )
    number = jnp.concatenate([jnp.full(size, -1), jnp.arange(canaries)])
    return Planted(records, number, jnp.ones(size + canaries))


def _with_canaries(loss_fn: Loss, length: float) -> Loss:
    """The loss of a planted row: a record's own, or length w_j of canary j."""

    def loss(params: Any, row: Planted) -> jax.Array:
        own = length * params["canary"][row.canary]
        return row.present * jnp.where(row.canary < 0, loss_fn(params["network"], row.records), own)

    return loss


class _Record(NamedTuple):
    gradients: jax.Array  # [steps] or [steps, m]
    step: jax.Array


def _recorded(steps: int, canaries: int = 0) -> optax.GradientTransformation:
    """Keeps every step's noisy gradient of the canaries' own parameters; changes nothing."""

    def init(params: Any) -> _Record:
        return _Record(jnp.zeros((steps, canaries) if canaries else steps), jnp.int32(0))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, _Record]:
        seen = updates["canary"].reshape(state.gradients.shape[1:])
        return updates, _Record(state.gradients.at[state.step].set(seen), state.step + 1)

    return optax.GradientTransformation(init, update)
