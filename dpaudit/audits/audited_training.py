"""Trains a network by DP-SGD to a target epsilon, and audits it by canaries in the same run.

Source: Abadi et al. 2016, Algorithm 1 (training); Steinke, Nasr and Jagielski 2023, Algorithm 1 (audit).
"""

import os
from collections.abc import Callable
from typing import Any

import jax
import optax

from dpaudit import _validate
from dpaudit.auditing.bounds import one_run
from dpaudit.auditing.one_training import underpowered
from dpaudit.audits import training_canary
from dpaudit.data import Dataset
from dpaudit.training import accounting, models
from dpaudit.training.dp_sgd import Trainer, dp_sgd
from dpaudit.training.models import accuracy
from dpaudit.training.sampling import poisson

GUESSED = (0.025, 0.05, 0.1, 0.25)  # share of the canaries that each plan guesses as "in", and as many as "out"
GUESSED_IN = 0.05  # share that one more plan guesses as "in", with none "out", for steps that rarely take a canary


def train_audited(
    key: jax.Array,
    train_data: Dataset,
    test_data: Dataset,
    *,
    epsilon: float,
    delta: float,
    steps: int,
    batch_size: int,
    clip_norm: float,
    optimizer: optax.GradientTransformation,
    neighbouring: str = "add_remove",
    canaries: int = 1000,
    confidence: float = 0.95,
    make: Callable[..., Trainer] = dp_sgd,
    every: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Callable[[int, Callable[[], float]], None] | None = None,
) -> tuple[dict[str, Any], Any]:
    """Trains the data set's network with Poisson batches of records and canaries, and audits the accounted epsilon.

    The accounting covers the n + m rows that are trained on: each takes part in a step with probability
    batch_size/(n + m). An absent canary has no gradient, so the two data sets are neighbours under either relation.

    Args:
      key: JAX random key, consumed.
      train_data: n images to train on.
      test_data: images to test on.
      epsilon: the target, in nats, > 0; the noise multiplier is the least that meets it.
      delta: in (0, 1).
      steps, batch_size, clip_norm, optimizer: of the training.
      neighbouring: "add_remove" or "replace".
      canaries: m >= 2, each included by a fair coin.
      confidence: of the lower bound.
      make: as for :class:`dpaudit.audits.training_canary.Recipe`.
      every, checkpoint: as for :func:`dpaudit.training.fit`; all steps in one call by default.
      progress: ``progress(step, spent)``, ``spent()`` the epsilon of the steps so far.

    Returns:
      (row, params): what was promised, spent and found, as a flat dictionary of JSON values; and the network. The
      verdict is "violation" if epsilon_lower exceeds the accounted epsilon; "underpowered" if not even a perfect
      attack would find twice that with probability 0.8, or if the canaries that were included were not told from the
      others, for the ``reason`` given; else "consistent".

    Raises:
      InputError: a value out of range, a target that cannot be reached, images of a shape that has no network.
    """
    epsilon = _validate.positive(epsilon=epsilon)
    clip_norm = _validate.positive(clip_norm=clip_norm)
    confidence = _validate.open_unit(confidence=confidence)
    _validate.at_least(2, canaries=canaries)
    model = models.model_for(train_data.inputs.shape[1:], train_data.num_classes)
    sampling = poisson(len(train_data.inputs) + canaries, batch_size)
    noise_multiplier = accounting.noise_multiplier(sampling, epsilon, steps, delta=delta, neighbouring=neighbouring)

    def spent(step: int) -> float:
        return accounting.epsilon(sampling, noise_multiplier, step, delta=delta, neighbouring=neighbouring)

    loss = models.cross_entropy(model)
    init_key, run_key = jax.random.split(_validate.key(key=key))
    recipe = training_canary.Recipe(
        lambda params, example: loss(params, *example),
        models.initial_parameters(init_key, model, train_data.inputs.shape[1:]),
        (train_data.inputs, train_data.labels),
        steps,
        clip_norm,
        noise_multiplier,
        batch_size,
        optimizer,
        make,
    )
    found, params = training_canary.one_run(
        run_key,
        recipe,
        canaries=canaries,
        every=every,
        checkpoint=checkpoint,
        progress=None if progress is None else lambda step: progress(step, lambda: spent(step)),
    )
    made = plans(canaries)
    shown = one_run.audit(found.scores, found.included, made, delta=delta, confidence=confidence)
    ceiling = one_run.ceiling(canaries, made, delta=delta, confidence=confidence)
    accounted = spent(steps)
    settings: dict[str, Any] = {"delta": delta, "confidence": confidence}
    reason = underpowered(found.scores, found.included, made, lower=shown.epsilon_lower, epsilon=accounted, **settings)
    row = {
        "dataset": train_data.label,
        "examples": len(train_data.inputs),
        "network": type(model).__name__,
        "accuracy": accuracy(model, params, test_data.inputs, test_data.labels),
        "tested": len(test_data.inputs),
        "epsilon_target": epsilon,
        "epsilon_accounted": accounted,
        "epsilon_lower": shown.epsilon_lower,
        "verdict": "violation" if shown.epsilon_lower > accounted else "underpowered" if reason else "consistent",
        "reason": reason,
        "ceiling": ceiling,
        "canaries": canaries,
        "included": int(found.included.sum()),
        "guesses": sum(shown.plan),
        "correct": shown.correct,
        "noise_multiplier": noise_multiplier,
        "clip_norm": clip_norm,
        "batch_size": batch_size,
        "steps": steps,
        "delta": delta,
        "neighbouring": neighbouring,
        "confidence": confidence,
    }
    return row, params


def plans(canaries: int) -> list[one_run.Plan]:
    """Lists the numbers of guesses among which :func:`train_audited` chooses the best."""
    counts = sorted({max(1, int(share * canaries)) for share in GUESSED})
    return [*(one_run.Plan(count, count) for count in counts), one_run.Plan(max(1, int(GUESSED_IN * canaries)))]
