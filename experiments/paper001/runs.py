"""Runs the trainings on the plaintext simulation of the servers' arithmetic, and keeps a record of each."""

import hashlib
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from dpaudit._engine.fingerprint import Identity
from dpaudit.secure.crypto.randomness import SEED_BYTES, Stream
from dpaudit.secure.noise import gaussian
from dpaudit.secure.protocol import schemes
from dpaudit.secure.protocol.schemes import Scheme, Step
from dpaudit.training import models, per_example
from experiments import fingerprint
from experiments.common import kept_records
from experiments.paper001.tasks import CLIP_NORM, DELTA, EPSILONS, OWNERS, TASKS, Records, load

TOGETHER = 125  # examples whose gradients are held at a time, at most: of MNIST's network they still fit in a cache
RULES: dict[str, Callable[[float], float]] = {  # per-step epsilon -> noise multiplier
    "classical": lambda epsilon: gaussian.classical(epsilon=epsilon, delta=DELTA),
    "add_remove": lambda epsilon: gaussian.analytic(epsilon=epsilon, delta=DELTA, neighbouring="add_remove"),
    "replace": lambda epsilon: gaussian.analytic(epsilon=epsilon, delta=DELTA, neighbouring="replace"),
}
NOISELESS = {"non-private": schemes.non_private, "MPC only": schemes.mpc_only}
SCHEMES: dict[str, Callable[[Step], Scheme]] = {
    **NOISELESS,
    "SPGC": schemes.spgc,
    "LDP": schemes.ldp,
    "reduced noise": schemes.reduced,
    "own noise of each server": schemes.own_noise,
    "SPGC, noise from a table": schemes.spgc_table,
}


class Run(NamedTuple):
    """One training."""

    data: str  # of TASKS
    scheme: str  # of SCHEMES
    epsilon: float | None  # of a step; None without noise
    rule: str | None  # of RULES; None without noise
    owners: int  # k
    epochs: int  # how many
    trial: int  # from 0


def runs(tasks: Sequence[str], trials: int, *, epochs: int | None = None) -> list[Run]:
    """Fig. 1 (three owners, the paper's rule), the exact rules, the other ways to noise, and more owners."""
    noisy = [("classical", name, OWNERS) for name in SCHEMES if name not in NOISELESS]
    noisy += [(rule, "SPGC", OWNERS) for rule in RULES if rule != "classical"]
    noisy += [("classical", name, k) for k in (10, 100) for name in ("SPGC", "LDP", "reduced noise")]
    settings = [(name, None, None, OWNERS) for name in NOISELESS]
    settings += [(name, epsilon, rule, k) for rule, name, k in noisy for epsilon in EPSILONS]
    return [
        Run(task, *setting, epochs or TASKS[task].epochs, trial)
        for trial in range(trials)
        for task in tasks
        for setting in settings
    ]


def step_of(run: Run) -> Step:
    """Returns the step that the run's scheme is made for; at least one example of every owner is in a batch."""
    each = max(1, TASKS[run.data].examples // run.owners)
    multiplier = 0.0 if run.rule is None or run.epsilon is None else RULES[run.rule](run.epsilon)
    return Step(run.owners, each * run.owners, CLIP_NORM, multiplier)


class Learner(NamedTuple):
    """A task's network as functions of one flat vector of parameters."""

    first: Callable[[jax.Array], jax.Array]  # ``first(key) -> [d]``
    clipped: Callable[
        ..., jax.Array
    ]  # ``clipped(params, (inputs, labels)) -> [n, d]``, each example's clipped gradient
    total: Callable[..., jax.Array]  # ``total(params, (inputs, labels)) -> [d]``, their sum, in real numbers
    update: Callable[..., tuple[jax.Array, Any]]  # ``update(params, moments, gradient) -> (params, moments)``, Adam's
    moments: Callable[[jax.Array], Any]  # ``moments(params)``, at the start
    probabilities: Callable[[jax.Array, jax.Array], jax.Array]  # ``probabilities(params, inputs) -> [n, classes]``


def learner(name: str, shape: tuple[int, ...]) -> Learner:
    """Returns the learner of a task, for records of this shape."""
    return learner_of(TASKS[name].model, TASKS[name].learning_rate, shape)


@cache
def learner_of(model: nn.Module, learning_rate: float, shape: tuple[int, ...]) -> Learner:
    """Returns the learner of a network, by Adam, for records of this shape."""
    loss, network = models.cross_entropy(model), models.logits(model)
    start = models.initial_parameters(jax.random.key(0), model, shape)
    _, restore = ravel_pytree(start)
    adam = optax.adam(learning_rate)

    def total(params: jax.Array, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
        found, _ = per_example.clipped_sum(lambda p, e: loss(p, *e), restore(params), batch, clip_norm=CLIP_NORM)
        return ravel_pytree(found)[0]

    def clipped(params: jax.Array, example: tuple[jax.Array, jax.Array]) -> jax.Array:
        return total(params, jax.tree.map(lambda leaf: leaf[None], example))

    def update(params: jax.Array, moments: Any, gradient: jax.Array) -> tuple[jax.Array, Any]:
        change, moments = adam.update(gradient, moments)
        return params + jnp.asarray(change), moments

    def first(key: jax.Array) -> jax.Array:
        return ravel_pytree(models.initial_parameters(key, model, shape))[0]

    def probabilities(params: jax.Array, inputs: jax.Array) -> jax.Array:
        return jax.nn.softmax(jax.lax.map(lambda x: network(restore(params), x), inputs, batch_size=TOGETHER))

    every = jax.vmap(clipped, in_axes=(None, 0))
    return Learner(first, jax.jit(every), jax.jit(total), jax.jit(update), adam.init, jax.jit(probabilities))


def play(
    run: Run, train: Records, test: Records, seed: int, progress: Callable[[int], None] = lambda done: None
) -> dict[str, Any]:
    """Returns the whole run; its record, with what the network is worth after every epoch."""
    step, learn = step_of(run), learner(run.data, train.inputs.shape[1:])
    scheme = SCHEMES[run.scheme](step)
    rng = np.random.default_rng([seed, run.trial])
    rows = len(train.labels) // run.owners
    owned = rng.permutation(len(train.labels))[: rows * run.owners].reshape(run.owners, rows)
    params = learn.first(jax.random.fold_in(jax.random.key(seed), run.trial))
    moments, curve, began = learn.moments(params), [], time.perf_counter()
    each = step.examples // step.owners
    for epoch in range(run.epochs):
        owned = rng.permuted(owned, axis=1)
        for at in range(0, rows - each + 1, each):
            sums = contributions(scheme, learn, params, train, owned[:, at : at + each].ravel())
            source = _secrets(seed, run, epoch, at)
            released = schemes.release(scheme, sums, scheme.noise(params.size, source)) / step.examples
            params, moments = learn.update(params, moments, jnp.asarray(released, jnp.float32))
        curve.append(worth(np.asarray(learn.probabilities(params, jnp.asarray(test.inputs)), np.float64), test.labels))
        progress(epoch + 1)
    steps = run.epochs * (rows // each)
    return {
        **run._asdict(),
        **{name: [round(look[name], 5) for look in curve] for name in curve[0]},
        "examples": step.examples,
        "steps": steps,
        "parameters": params.size,
        "noise_multiplier": scheme.std,
        "levels": None if scheme.scale is None else scheme.scale.levels,
        "seconds_per_step": round((time.perf_counter() - began) / steps, 5),
        "device": jax.devices()[0].device_kind,
    }


def contributions(
    scheme: Scheme, learn: Learner, params: jax.Array, train: Records, batch: np.ndarray
) -> list[np.ndarray]:
    """Returns what the batch adds to the owners' sums, part by part: whole numbers add up to the same in any parts.

    Where no number is rounded to a whole one, the sum of a part is found without each example's gradient.
    """
    size = next(n for n in range(min(TOGETHER, len(batch)), 0, -1) if len(batch) % n == 0)
    parts = batch.reshape(-1, size)
    batches = [(train.inputs[part], train.labels[part]) for part in parts]
    if scheme.scale is None:
        return [np.asarray(learn.total(params, part), np.float64) for part in batches]
    return [schemes.contribution(scheme, np.asarray(learn.clipped(params, part))) for part in batches]


def worth(probabilities: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Accuracy, balanced accuracy and area under the ROC curve; of many classes, the mean of each against the rest."""
    guessed = probabilities.argmax(axis=1)
    shares = probabilities / probabilities.sum(axis=1, keepdims=True)  # of float64
    score = shares[:, 1] if shares.shape[1] == 2 else shares
    return {
        "accuracy": float((guessed == labels).mean()),
        "balanced_accuracy": float(balanced_accuracy_score(labels, guessed)),
        "auc": float(roc_auc_score(labels, score, multi_class="ovr")),
    }


def _secrets(seed: int, run: Run, *at: int) -> Callable[[int], bytes]:
    """Returns the servers' bits of a step, for this run alone."""
    return Stream(hashlib.sha256(repr((seed, run, at)).encode()).digest()[:SEED_BYTES]).draw


def play_all(wanted: Sequence[Run], work: Path, seed: int, data_dir: str | None) -> list[dict[str, Any]]:
    """Returns the record of every run, found in ``work`` or made and kept there."""
    identity: Identity = {"program": str(fingerprint.of_module("paper001.runs"))}
    return kept_records(
        wanted,
        lambda run, shown: play(run, *load(run.data, data_dir, run.trial), seed, shown) | {"identity": identity},
        lambda run: work / f"seed{seed}" / ("-".join(map(str, run)).replace(" ", "_") + ".json"),
        lambda run: identity,
        lambda record: f"{record['accuracy'][-1]:.1%}, {record['seconds_per_step']} s",
        max((run.epochs for run in wanted), default=0),
    )
