"""Audits a training as shipped, by gradient canaries in its noisy sums or by the loss of one record.

:func:`white_box` runs many trainings and reads their every step, :func:`one_run` trains once with many canaries,
:func:`per_step` includes them anew in every step of one training, and :func:`black_box` reads one record's final loss.

A gradient canary is a record whose loss depends only on a parameter of its own. Its gradient is as long as needed and
orthogonal to all others, which makes it the record that is hardest to hide. It goes through the same sampling,
clipping, summing and noise as the data, so a fault in any of them shows. Noise that steps share, which no evidence
that adds up steps can show, is refused.

    recipe = Recipe(loss_fn, params, data, steps=100, clip_norm=1.0, noise_multiplier=1.0, batch_size=64,
                    optimizer=optax.sgd(0.1))
    dpaudit.audit(white_box(recipe, delta=1e-2), ABSENT, PRESENT, key=key, trials=2_000)

In clip norms, a canary's coordinate x of a noisy sum is N(0, z^2) without it and (1 - q) N(0, z^2) + q N(1, z^2) with
it, where z is the noise multiplier and q the probability that a step takes it. The evidence of a step is therefore the
likelihood ratio ln(1 - q + q exp((2 x - 1)/(2 z^2))), and that of a training the sum over its steps.
"""

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpaudit import _validate
from dpaudit.auditing.bounds import gdp
from dpaudit.audits.fresh_noise import refuse_repeated
from dpaudit.mechanisms.claim import Claim, Mechanism
from dpaudit.training import accounting
from dpaudit.training.dp_sgd import State, Trainer, dp_sgd, fit, train
from dpaudit.training.neighbouring import weighted, with_target, world
from dpaudit.training.sampling import poisson

ABSENT, PRESENT = 0.0, 1.0  # the two inputs of an audit: whether the canary is in the data
STRETCH = 100.0  # a canary's gradient before clipping, in clip norms
WITNESSES = 64  # canaries that are absent from all steps, whose noise tells whether steps share it
LEAST = 0.9  # of the clip norm, by which a canary moves a sum; one that moves it less would hide a fault
MEDIAN = 0.6745  # of |x|, x ~ N(0, 1)

Loss = Callable[..., jax.Array]


class Recipe(NamedTuple):
    """The settings of a training with Poisson batches; every audit of this module takes them.

    Attributes:
      loss_fn: as for :func:`dpaudit.training.dp_sgd.dp_sgd`. If ``make`` has ``dropout=True`` bound, it is
        ``loss_fn(params, example, key=None)``: training gives it a key, the final loss of :func:`black_box` does not.
      params: where training starts.
      data: pytree with leaves [n, ...]; an audit adds further rows. Canaries are copies of the first one, whose
        gradient has to be finite.
      steps, clip_norm, noise_multiplier, batch_size, optimizer: of the training.
      make: a function like :func:`dpaudit.training.dp_sgd.dp_sgd`; bind further settings by ``functools.partial``. One
        that clips by layer shortens a canary, whose gradient lies in a layer of its own, and is refused, as is one
        that clips the sum of a batch.
    """

    loss_fn: Loss
    params: Any
    data: Any
    steps: int
    clip_norm: float
    noise_multiplier: float
    batch_size: int
    optimizer: optax.GradientTransformation
    make: Callable[..., Trainer] = dp_sgd


class Planted(NamedTuple):
    """The records followed by the canaries; every leaf has a leading axis of n + m."""

    records: Any  # those of canaries are copies of the first record, and unused
    canary: jax.Array  # [n + m], which canary a row is, -1 for a record
    present: jax.Array  # [n + m], 1 or 0: a row that is absent has no gradient


class Canaries(NamedTuple):
    """The scores of the canaries of one run."""

    scores: np.ndarray  # [m], in nats: the evidence that each was included
    included: np.ndarray  # [m] booleans, fair coins


def white_box(recipe: Recipe, *, delta: float | None = None) -> Mechanism:
    """Makes a whole training a mechanism of "is the canary in the data?", for an adversary who reads every step.

    Every step takes the canary with probability q = batch_size/(n + 1). The accounting of Poisson sampling is tight
    for this pair, so an audit falls short of the accounted epsilon only for lack of trials: with delta 1e-5 the events
    that reveal the most have a probability of that order. If batches are full, the trade-off curve is Gaussian and
    :mod:`dpaudit.auditing.bounds.gdp` estimates it from common events.

    Args:
      recipe: of the training; the canary is an additional record.
      delta: of the claim; None claims the whole accounted curve, against which fewer trials suffice to show a fault.

    Returns:
      A :class:`dpaudit.Mechanism` for the inputs ``ABSENT`` and ``PRESENT``: releases [steps], the canary's coordinate
      of every noisy sum in clip norms; with the log density that a sound training gives them, and the accounted claim
      ("add_remove").

    Raises:
      InputError: a value out of range; noise that steps share.

    Source: Nasr et al. 2021, "Adversary Instantiation", Section 4.6 (the gradient canary).
    """
    planted, trainer, start = _planted(recipe, 1)
    _refuse_shared(recipe)
    sampling = poisson(len(planted.present), recipe.batch_size)

    def apply(key: jax.Array, present: Any) -> jax.Array:
        given = planted._replace(present=planted.present.at[-1].set(present))
        state, _ = train(key, trainer, trainer.init(start), given, sampling, recipe.steps)
        return _coordinates(recipe, state)[:, 0]

    def log_prob(release: jax.Array, present: Any) -> jax.Array:
        evidence = _evidence(release, recipe.batch_size / sampling.examples, recipe.noise_multiplier)
        return jnp.sum(jnp.where(present, evidence, 0.0) - 0.5 * (release / recipe.noise_multiplier) ** 2)

    return Mechanism(apply, _claim(sampling, recipe, delta), log_prob)


def _claim(sampling: Any, recipe: Recipe, delta: float | None) -> Claim:
    """Returns the accounted claim, at one delta or as a whole curve."""
    spent = sampling, recipe.noise_multiplier, recipe.steps
    if delta is None:
        return accounting.claim(*spent)
    return Claim(accounting.epsilon(*spent, delta=delta), delta, "add_remove")


def one_run(
    key: jax.Array,
    recipe: Recipe,
    *,
    canaries: int,
    every: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Callable[[int], None] | None = None,
) -> tuple[Canaries, Any]:
    """Trains once, with each of m canaries included by a fair coin, and scores them all.

    The scores estimate z from the median size of the coordinates instead of using the recipe's z. This detects too
    little noise with far fewer canaries, and hardly changes the scores of a sound training.

    Args:
      key: JAX random key, consumed.
      recipe: of the training.
      canaries: m >= 1; the data become n + m rows, of which about m/2 stay empty, and each takes part in a step with
        probability batch_size/(n + m).
      every, checkpoint, progress: as for :func:`dpaudit.training.fit`; all steps in one call by default. The
        checkpoint reveals which canaries were included.

    Returns:
      (canaries, params): :class:`Canaries` for :func:`dpaudit.auditing.bounds.one_run.audit`, and the trained network.

    Raises:
      InputError: a value out of range; noise that steps share.

    Source: Steinke, Nasr and Jagielski 2023, Algorithm 1.
    """
    planted, trainer, start = _planted(recipe, _validate.at_least(1, canaries=canaries))
    coin_key, train_key = jax.random.split(_validate.key(key=key))
    included = jax.random.bernoulli(coin_key, 0.5, (canaries,))
    sampling = poisson(len(planted.present), recipe.batch_size)
    state, *_ = fit(
        train_key,
        trainer,
        start,
        planted._replace(present=planted.present.at[-canaries:].set(included)),
        sampling,
        recipe.steps,
        every=recipe.steps if every is None else every,
        checkpoint=checkpoint,
        progress=progress,
    )
    x = _coordinates(recipe, state)
    refuse_repeated(x, np.broadcast_to(~np.asarray(included), x.shape))
    evidence = _evidence(x, recipe.batch_size / sampling.examples, jnp.maximum(jnp.median(jnp.abs(x)) / MEDIAN, 1e-3))
    return Canaries(np.asarray(evidence.sum(axis=0)), np.asarray(included)), state.params["network"]


def per_step(key: jax.Array, recipe: Recipe, *, canaries: int = 1) -> tuple[Canaries, Any]:
    """Trains once, with each of m canaries included by its own fair coin in every step.

    The coins replace the sampling of the canaries, not of the records. The steps x m guesses between N(0, z^2) and
    N(1, z^2) measure the noise, and :func:`epsilon_lower` computes what a training with that much noise spends.

    Args:
      key: JAX random key, consumed.
      recipe: of the training.
      canaries: m >= 1, each with its own coordinate, so that they do not affect the network; they are additional rows
        of every batch.

    Returns:
      (canaries, params): :class:`Canaries` [steps m], ordered by step, and the trained network.

    Raises:
      InputError: a value out of range; noise that steps share.

    Source: Nasr et al. 2023, "Tight Auditing of Differentially Private Machine Learning" (white box, one training).
    """
    planted, trainer, start = _planted(recipe, _validate.at_least(1, canaries=canaries) + 1)
    records = len(planted.present) - canaries - 1
    coin_key, train_key = jax.random.split(_validate.key(key=key))
    included = jax.random.bernoulli(coin_key, 0.5, (recipe.steps, canaries))
    sampling = poisson(records, recipe.batch_size)

    def draw(key: jax.Array, step: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        indices, weights = sampling.draw(key, step)
        rows = records + jnp.where(included[step], jnp.arange(canaries), canaries)  # the last row is always absent
        return jnp.concatenate([rows, indices]), jnp.concatenate([jnp.ones(canaries), weights])

    state, _ = train(
        train_key,
        trainer,
        trainer.init(start),
        planted._replace(present=planted.present.at[-1].set(ABSENT)),
        sampling._replace(draw=draw, capacity=canaries + sampling.capacity, examples=len(planted.present)),
        recipe.steps,
    )
    x = _coordinates(recipe, state)[:, :-1]
    refuse_repeated(x, ~np.asarray(included))
    evidence = _evidence(x, 1.0, recipe.noise_multiplier)
    return Canaries(np.asarray(evidence).ravel(), np.asarray(included).ravel()), state.params["network"]


def epsilon_lower(found: Canaries, recipe: Recipe, *, delta: float, confidence: float) -> float:
    """Bounds the epsilon of a whole training from below, by the noise that :func:`per_step` measured.

    Guessing by the sign of the scores bounds a step's mu from below, and so the noise multiplier by 1/mu from above;
    the accounting of Poisson batches computes the epsilon of that much noise. **It assumes that the noise is Gaussian
    and the batches are as specified**: to find faults in the sampling, use :func:`white_box` or :func:`one_run`.

    Args:
      found: as from :func:`per_step`.
      recipe: of the training.
      delta: in (0, 1).
      confidence: in (0, 1), of the bound.

    Returns:
      epsilon in nats ("add_remove"); 0 if the guesses show nothing.

    Raises:
      InputError: a value out of range.
    """
    guessed, absent = found.scores > 0, ~found.included
    errors = int(np.sum(guessed & absent)), int(np.sum(~guessed & found.included))
    mu, _ = gdp.mu_bounds(*errors, int(absent.sum()), int(found.included.sum()), confidence=confidence)
    sampling = poisson(len(jax.tree.leaves(recipe.data)[0]), recipe.batch_size)
    return accounting.epsilon(sampling, 1 / float(mu), recipe.steps, delta=delta) if mu > 0 else 0.0


def black_box(recipe: Recipe, target: Any, *, delta: float | None = None) -> Mechanism:
    """Makes a whole training a mechanism of "is the target in the data?", seen only through the target's loss.

    Args:
      recipe: of the training; the target is an additional record.
      target: one example, of the form that ``loss_fn`` takes.
      delta: of the claim; None claims the whole accounted curve, against which fewer trials suffice to show a fault.

    Returns:
      A :class:`dpaudit.Mechanism` for the inputs ``ABSENT`` and ``PRESENT``: a release is minus the trained network's
      loss on the target, a scalar, larger for a target in the data; with the accounted claim ("add_remove").

    Raises:
      InputError: a value out of range.

    Source: paper 003, Algorithm 1 (the loss as the statistic).
    """
    _validate.at_least(1, steps=recipe.steps)
    rows = with_target(recipe.data, target)
    sampling = poisson(len(rows.present), recipe.batch_size)
    trainer = _trainer(recipe, weighted(recipe.loss_fn), recipe.optimizer)

    def apply(key: jax.Array, present: Any) -> jax.Array:
        given = world(rows, present)
        state, _ = train(key, trainer, trainer.init(recipe.params), given, sampling, recipe.steps)
        return -recipe.loss_fn(state.params, target)

    return Mechanism(apply, _claim(sampling, recipe, delta))


def _planted(recipe: Recipe, canaries: int) -> tuple[Planted, Trainer, Any]:
    """Returns the data with all canaries present, a trainer that records their coordinates, and its initial
    parameters."""
    _validate.at_least(1, steps=recipe.steps)
    n = {leaf.shape[0] if jnp.ndim(leaf) else 0 for leaf in jax.tree.leaves(recipe.data)}
    if len(n) != 1 or 0 in n:
        raise _validate.expected("data", "arrays with one leading axis of n >= 1 examples", f"lengths {sorted(n)}")
    size = n.pop()
    records = jax.tree.map(
        lambda leaf: jnp.concatenate([leaf, jnp.repeat(jnp.asarray(leaf)[:1], canaries, axis=0)]), recipe.data
    )
    number = jnp.concatenate([jnp.full(size, -1), jnp.arange(canaries)])
    trainer = _trainer(
        recipe,
        _with_canaries(recipe.loss_fn, STRETCH * recipe.clip_norm),
        optax.chain(_recorded(recipe.steps, canaries), recipe.optimizer),
    )
    start = {"network": recipe.params, "canary": jnp.zeros(canaries)}
    planted = Planted(records, number, jnp.ones(size + canaries))
    _refuse_blind(recipe, planted, trainer, start)
    return planted, trainer, start


def _refuse_blind(recipe: Recipe, planted: Planted, trainer: Trainer, start: Any) -> None:
    """Refuses a training in which a canary, twice in a step, moves the sum by less than 2 ``LEAST`` clip norms.

    Its gradient is dropped where that of its record, 0 times a derivative, is not a number. Clipping by layer leaves a
    gradient in one layer 1/sqrt(layers) of the clip norm, and clipping the sum leaves both canaries together one.
    """

    @jax.jit
    def coordinate(present: Any) -> jax.Array:
        rows = jax.tree.map(lambda leaf: jnp.repeat(leaf[-1:], 2, axis=0), planted)
        rows = rows._replace(present=present * rows.present)
        return _coordinates(recipe, trainer.step(jax.random.key(0), trainer.init(start), rows, jnp.ones(2))[0])[0, -1]

    moved = (float(coordinate(PRESENT)) - float(coordinate(ABSENT))) / 2  # by one key, so of one noise
    if moved == 0:
        wanted = "a first example with a finite gradient at params, of which canaries are copies"
        raise _validate.expected("data", wanted, "one whose gradient training drops, with that of any canary")
    if not moved >= LEAST:
        wanted = (
            "a training that clips every gradient by itself, all layers together, so that a canary moves a sum by C"
        )
        raise _validate.expected("make", wanted, f"{moved:.3g} C")


def _refuse_shared(recipe: Recipe) -> None:
    """Refuses a training whose steps share their noise, by one run with canaries that are absent from all of them."""
    planted, trainer, start = _planted(recipe, WITNESSES)
    absent = planted._replace(present=planted.present.at[-WITNESSES:].set(ABSENT))
    sampling = poisson(len(planted.present), recipe.batch_size)
    state, _ = train(jax.random.key(0), trainer, trainer.init(start), absent, sampling, recipe.steps)
    x = _coordinates(recipe, state)
    refuse_repeated(x, np.ones(x.shape, bool))


def _trainer(recipe: Recipe, loss_fn: Loss, optimizer: optax.GradientTransformation) -> Trainer:
    return recipe.make(
        loss_fn,
        clip_norm=recipe.clip_norm,
        noise_multiplier=recipe.noise_multiplier,
        batch_size=recipe.batch_size,
        optimizer=optimizer,
    )


def _with_canaries(loss_fn: Loss, length: float) -> Loss:
    """Returns the loss of a planted row: that of its record, or length w_j for canary j."""

    def loss(params: Any, row: Planted, *key: jax.Array) -> jax.Array:
        own = length * params["canary"][row.canary]
        return row.present * jnp.where(row.canary < 0, loss_fn(params["network"], row.records, *key), own)

    return loss


def _coordinates(recipe: Recipe, state: State) -> jax.Array:
    """Returns the canaries' coordinates of every step's noisy sum, in clip norms, [steps, m]."""
    return state.opt_state[0].gradients * (recipe.batch_size / recipe.clip_norm)


@jax.jit
def _evidence(x: jax.Array, rate: Any, noise_multiplier: Any) -> jax.Array:
    """Computes ln p(x | present) - ln p(x | absent) of a step that takes a canary with probability ``rate``."""
    return jnp.logaddexp(jnp.log1p(-rate), jnp.log(rate) + (x - 0.5) / noise_multiplier**2)


class _Record(NamedTuple):
    gradients: jax.Array  # [steps, m]
    step: jax.Array


def _recorded(steps: int, canaries: int) -> optax.GradientTransformation:
    """Records every step's noisy gradient of the canaries' parameters; changes nothing."""

    def init(params: Any) -> _Record:
        return _Record(jnp.zeros((steps, canaries)), jnp.int32(0))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, _Record]:
        return updates, _Record(state.gradients.at[state.step].set(updates["canary"]), state.step + 1)

    return optax.GradientTransformation(init, update)
