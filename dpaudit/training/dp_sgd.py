"""Trains by DP-SGD: clips every example's gradient, sums, adds Gaussian noise, steps (Abadi et al. 2016, Algorithm 1).

    trainer = dp_sgd(loss_fn, clip_norm=1.0, noise_multiplier=1.1, batch_size=256, optimizer=optax.adam(1e-3))
    sampling = poisson(examples=60_000, batch_size=256)
    state, info = train(key, trainer, trainer.init(params), (images, labels), sampling, steps=1000)

:func:`train` is one program, pure in its key: ``jax.vmap`` over keys, data sets or clip norms trains many networks at
once. :func:`fit` is the loop around it on the host, with progress, evaluation and a checkpoint to resume from::

    fitted = fit(key, trainer, params, data, sampling, 1_000, every=100, checkpoint="run", progress=print)
"""

import inspect
import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpaudit import _platform, _validate
from dpaudit._engine import sharding
from dpaudit._engine.fingerprint import Identity, of_run
from dpaudit._engine.long_run import Parts, in_parts
from dpaudit.kernels import philox
from dpaudit.mechanisms.clipping import wide
from dpaudit.mechanisms.sampling import normal
from dpaudit.training import per_example
from dpaudit.training.sampling import Sampling


class State(NamedTuple):
    """The state that a step passes to the next.

    Attributes:
      params: of the network.
      opt_state: of the optimiser.
      step: steps taken, int32.
      noise: state of the noise; empty for DP-SGD, whose noise is independent.
    """

    params: Any
    opt_state: Any
    step: jax.Array
    noise: Any


class Info(NamedTuple):
    """Diagnostics of a step; computed from the data without noise, so not for release.

    Attributes:
      loss: mean loss of the examples that took part; NaN where none did.
      examples: number that took part.
      clipped: number of gradients longer than the clip norm.
      dropped: number of gradients that were not finite, and counted as zero.
    """

    loss: jax.Array
    examples: jax.Array
    clipped: jax.Array
    dropped: jax.Array


class Rows(NamedTuple):
    """Examples that are gathered where they are used, so that an accelerator holds those of a microbatch alone.

    Attributes:
      indices: [b], of the examples in the data.
      flat: pytree, leaves [examples, numbers of one]: the last axis of an image, which a TPU pads, is short.
      like: pytree of the shapes of one example.
    """

    indices: jax.Array
    flat: Any
    like: Any

    def example(self, row: jax.Array) -> Any:
        """Returns one example."""
        return jax.tree.map(lambda leaf, like: leaf[row].reshape(like.shape), self.flat, self.like)


class Noise(NamedTuple):
    """Makes a sum of gradients private, step after step.

    Attributes:
      init: ``init(params) -> memory``.
      add: ``add(key, total, memory) -> (noisy, memory)``, with a fresh key every step.
    """

    init: Callable[[Any], Any]
    add: Callable[[jax.Array, Any, Any], tuple[Any, Any]]


class Trainer(NamedTuple):
    """A training algorithm, in the manner of optax.

    Attributes:
      init: ``init(params) -> State``.
      step: ``step(key, state, batch, weights) -> (State, Info)``: batch is a pytree with leaves [b, ...], weights [b]
        is 1 for the examples that take part, in front, and 0 for padding. Every call needs a fresh key,
        as :func:`train` derives it from the number of the step: noise that is drawn twice hides nothing.
      batch_size: by which sums are divided, that of the sampling; None for a trainer that does not divide.
      gathers: whether ``step`` also takes :class:`Rows` as its batch.
      refuse: ``refuse(sampling)`` raises InputError for a sampling that its noise is not made for; None for any.
    """

    init: Callable[[Any], State]
    step: Callable[[jax.Array, State, Any, jax.Array], tuple[State, Info]]
    batch_size: int | None = None
    gathers: bool = False
    refuse: Callable[[Sampling], None] | None = None


def dp_sgd(
    loss_fn: Callable[..., jax.Array],
    *,
    clip_norm: Any,
    noise_multiplier: Any,
    batch_size: int,
    optimizer: optax.GradientTransformation,
    microbatch: int | None = None,
    dropout: bool = False,
    clipping: per_example.Clipping = per_example.flat,
) -> Trainer:
    """Returns a trainer whose every step releases (sum_i clip(g_i) + clip_norm noise_multiplier N(0, I)) / batch_size.

    Args:
      loss_fn: ``loss_fn(params, example) -> scalar`` of ONE example, or ``loss_fn(params, example, key)`` with
        ``dropout``.
      clip_norm: largest L2 norm of an example's gradient, > 0.
      noise_multiplier: standard deviation of the noise on the sum over clip_norm, > 0.
      batch_size: the expected size of a batch, a constant: dividing by the true size would reveal it.
      optimizer: any optax optimiser; what it does to a noisy gradient costs no privacy.
      microbatch: the most gradients computed at a time; fewer need less memory and less padding. None for a quarter of
        batch_size.
      dropout: whether the loss takes a key, a fresh one for every example.
      clipping: how gradients are clipped, as for :func:`dpaudit.training.per_example.clipped_sum`.

    Returns:
      A :class:`Trainer`. An empty batch is a step with noise alone.

    Raises:
      InputError: a value out of range; a loss that is no function; an optimizer that is not of optax.

    Source: Abadi et al. 2016, Algorithm 1; paper 003, Eq. (6), which prints the noise outside of the mean.
    """
    clip_norm = _validate.positive(clip_norm=clip_norm)
    noise_multiplier = _validate.positive(noise_multiplier=noise_multiplier)

    def add(key: jax.Array, total: Any, memory: tuple[()]) -> tuple[Any, tuple[()]]:
        return add_noise(key, total, clip_norm * noise_multiplier), memory

    return noisy_sums(
        loss_fn,
        Noise(lambda params: (), add),
        clip_norm=clip_norm,
        batch_size=batch_size,
        optimizer=optimizer,
        microbatch=microbatch,
        dropout=dropout,
        clipping=clipping,
    )


def noisy_sums(
    loss_fn: Callable[..., jax.Array],
    noise: Noise,
    *,
    clip_norm: Any,
    batch_size: int,
    optimizer: optax.GradientTransformation,
    microbatch: int | None = None,
    dropout: bool = False,
    clipping: per_example.Clipping = per_example.flat,
) -> Trainer:
    """Returns a trainer that steps along noise(sum_i clip(g_i)) / batch_size, the common part of private trainings.

    Args:
      noise: makes the sum private, which one example moves by at most clip_norm.
      loss_fn, clip_norm, batch_size, optimizer, microbatch, dropout, clipping: as for :func:`dp_sgd`.

    Returns:
      A :class:`Trainer`.

    Raises:
      InputError: a value out of range; a loss that is no function; an optimizer that is not of optax.
    """
    _validate.function(loss_fn=loss_fn)
    clip_norm = _validate.positive(clip_norm=clip_norm)
    batch_size = _validate.at_least(1, batch_size=batch_size)
    _validate.optimizer(optimizer=optimizer)
    size = -(-batch_size // 4) if microbatch is None else _validate.at_least(1, microbatch=microbatch)

    def init(params: Any) -> State:
        per_example.refuse_other_leaves(params)
        params = jax.tree.map(jnp.asarray, params)
        return State(params, optimizer.init(wide(params)), jnp.int32(0), noise.init(params))

    @sharding.by_compiler
    def step(key: jax.Array, state: State, batch: Any, weights: jax.Array) -> tuple[State, Info]:
        dropout_key, noise_key = jax.random.split(key)
        loss_of, examples = loss_fn, batch
        if isinstance(batch, Rows):
            examples = batch.indices

            def loss_of(params: Any, row: jax.Array, *key: jax.Array) -> jax.Array:
                return loss_fn(params, batch.example(row), *key)

        total, info = per_example.clipped_sum(
            loss_of,
            state.params,
            examples,
            clip_norm=clip_norm,
            weights=weights,
            key=dropout_key if dropout else None,
            clipping=clipping,
            microbatch=size,
        )
        taken, finite = weights > 0, jnp.isfinite(info.norms)
        loss = jnp.sum(jnp.where(taken, info.losses, 0.0)) / jnp.sum(taken)
        counts = (taken, taken & finite & (info.norms > clip_norm), taken & ~finite)
        noised, memory = noise.add(noise_key, total, state.noise)
        chex.assert_trees_all_equal_shapes(noised, total)  # noise that broadcast would be the same for several numbers
        gradient = jax.tree.map(lambda noisy: noisy / batch_size, noised)
        updates, opt_state = optimizer.update(gradient, state.opt_state, wide(state.params))  # as for init
        after = State(optax.apply_updates(state.params, updates), opt_state, state.step + 1, memory)
        return after, Info(loss, *(jnp.sum(count) for count in counts))

    return Trainer(init, step, batch_size, gathers=True)


def add_noise(key: jax.Array, tree: Any, stddev: Any) -> Any:
    """Adds N(0, stddev^2) to every number of ``tree``, drawn and added in float32 or wider.

    Args:
      key: JAX random key, consumed.
      tree: pytree of arrays.
      stddev: standard deviation, >= 0.
    """
    leaves, structure = jax.tree.flatten(tree)
    sizes = [leaf.size for leaf in leaves]
    draws = jnp.split(normal(key, (sum(sizes),), jnp.result_type(*map(_wide, leaves))), np.cumsum(sizes[:-1]))
    noisy = [
        leaf.astype(_wide(leaf)) + (stddev * draw).reshape(leaf.shape).astype(_wide(leaf))
        for leaf, draw in zip(leaves, draws, strict=True)
    ]
    return jax.tree.unflatten(structure, noisy)


def _wide(leaf: jax.Array) -> Any:
    """Returns the leaf's type, or float32 if that is wider."""
    return jnp.promote_types(leaf.dtype, jnp.float32)


@partial(jax.jit, static_argnames=("trainer", "sampling", "steps"))
@sharding.by_compiler
def train(
    key: jax.Array, trainer: Trainer, state: State, data: Any, sampling: Sampling, steps: int
) -> tuple[State, Info]:
    """Takes ``steps`` steps from ``state`` on, as one program.

    Step t draws its batch and its noise from (key, t) alone, so a training that is cut into calls of any length with
    the same key gives the same parameters, bit for bit.

    Args:
      key: JAX random key, the same for every call of one training, and used for nothing else.
      trainer: as from :func:`dp_sgd`.
      state: ``trainer.init(params)``, or that of an earlier call.
      data: pytree with leaves [examples, ...].
      sampling: how batches are formed.
      steps: >= 0.

    Returns:
      (state, info), info with leaves [steps].

    Raises:
      InputError: no state; data that is not of the sampling's size; a trainer whose batch size differs from the
        sampling's, which would scale its steps by their ratio; a sampling in which examples take part more often than
        the noise of :func:`dpaudit.training.dp_ftrl.dp_ftrl` is made for; a negative number of steps.
    """
    steps = _validate.at_least(0, steps=steps)
    if not isinstance(state, State):
        raise _validate.expected(
            "state", "trainer.init(params), or the state of an earlier call", type(state).__name__
        )
    if trainer.batch_size not in (None, sampling.batch_size):
        wanted = f"a sampling of batch size {trainer.batch_size}, as the trainer's"
        raise _validate.expected("sampling", wanted, sampling.batch_size)
    if trainer.refuse is not None:
        trainer.refuse(sampling)
    sizes = {leaf.shape[0] if leaf.ndim else None for leaf in jax.tree.leaves(data)}
    if sizes != {sampling.examples}:
        raise _validate.expected(
            "data", f"leaves of {sampling.examples} examples, as the sampling", sorted(map(str, sizes))
        )
    draw_key, step_key = jax.random.split(philox.from_key(_validate.key(key=key)))

    later = trainer.gathers and not _platform.on_cpu()
    flat = jax.tree.map(lambda leaf: jnp.reshape(leaf, (sampling.examples, -1)), data)
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf)[1:], jnp.result_type(leaf)), data)

    def step(state: State, _: None) -> tuple[State, Info]:
        indices, weights = sampling.draw(draw_key, state.step)
        batch = Rows(indices, flat, like) if later else jax.tree.map(lambda leaf: leaf[indices], data)
        return trainer.step(jax.random.fold_in(step_key, state.step), state, batch, weights)

    return jax.lax.scan(step, state, None, length=steps)


# Gives the memory of the state that it is called with to the state that it returns.
_train_on = partial(jax.jit, static_argnames=("trainer", "sampling", "steps"), donate_argnames=("state",))(
    inspect.unwrap(train)
)


def fit(
    key: jax.Array,
    trainer: Trainer,
    params: Any,
    data: Any,
    sampling: Sampling,
    steps: int,
    *,
    every: int = 100,
    checkpoint: str | os.PathLike[str] | None = None,
    evaluate: Callable[[Any], dict[str, float]] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Parts:
    """Trains to step ``steps`` in calls of :func:`train` that end at the multiples of ``every``.

    Parameters and info are those of one call, bit for bit, however the training is cut, killed and resumed. Where
    ``every`` does not divide ``steps``, the last call is shorter and compiled separately.

    Args:
      key, trainer, data, sampling: as for :func:`train`.
      params: where training starts.
      steps: >= 1. A finished run resumes from its checkpoint when given more steps.
      every: steps from one evaluation and checkpoint to the next, >= 1.
      checkpoint: a folder that keeps the whole state after each call; the same training resumes from it. It holds info
        that is computed from the data without noise, so it is not for release.
      evaluate: ``evaluate(params) -> dict of floats``, of the same names each time, after each call.
      progress: called with the number of steps taken after each call and, of a checkpoint, before the first.

    Returns:
      :class:`dpaudit._engine.long_run.Parts` with the last :class:`State`, and every step's ``Info``, not for release.

    Raises:
      InputError: a value out of range; a checkpoint that is torn, further on than ``steps``, or of another training:
        another key, start, program (network, clipping, noise, optimiser), data or sampling.
    """
    key = _validate.key(key=key)
    start = trainer.init(params)

    def identity() -> Identity:
        step = partial(inspect.unwrap(train), trainer=trainer, sampling=sampling, steps=1)
        sizes = sampling.examples, sampling.batch_size, sampling.capacity
        return of_run(
            lambda key, state, data: step(key, state=state, data=data), key=key, start=start, data=data, sampling=sizes
        )

    # Copies for the caller, who may keep what it is shown; all other states are seen by nobody.
    return in_parts(
        lambda state, part: _train_on(key, trainer, state, data, sampling, part),
        _copied(start),
        steps,
        every=every,
        identity=identity,
        checkpoint=checkpoint,
        evaluate=None if evaluate is None else lambda state: evaluate(_copied(state.params)),
        progress=progress,
    )


def _copied(tree: Any) -> Any:
    return jax.tree.map(jnp.copy, tree)
