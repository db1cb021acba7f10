"""Defines the paper's trainings for ``dpaudit secure train``: ``experiments/paper001/learned.py:cancer`` and others.

The owners are called one, two and three. Each has a third of the training records of the data set's own split.
"""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpaudit.training import models
from dpaudit.training.two_servers import Task
from experiments.paper001.tasks import OWNERS, TASKS, Records, load

NAMES = {"cancer": "Cancer", "diabetes": "Diabetes", "mnist": "MNIST"}
PLAYERS = ("one", "two", "three")


def owned(train: Records, owner: str) -> np.ndarray:
    """Returns which training records an owner has."""
    each = len(train.labels) // OWNERS
    order = np.random.default_rng(0).permutation(len(train.labels))[: each * OWNERS]
    return order.reshape(OWNERS, each)[PLAYERS.index(owner)]


@cache
def task(name: str) -> Task:
    """Returns a training of TASKS."""
    task, (train, test) = TASKS[name], load(name, None, 0)
    loss, network = models.cross_entropy(task.model), models.logits(task.model)

    def records(owner: str) -> tuple[np.ndarray, np.ndarray]:
        rows = owned(train, owner)
        return train.inputs[rows], train.labels[rows]

    @jax.jit
    def accuracy(params: Any, inputs: jax.Array, labels: jax.Array) -> jax.Array:
        guessed = jax.lax.map(lambda x: network(params, x).argmax(), inputs, batch_size=250)
        return 100 * jnp.mean(guessed == labels)

    def measure(params: Any) -> dict[str, float]:
        return {"accuracy": float(accuracy(params, test.inputs, test.labels))}

    initial = models.initial_parameters(jax.random.fold_in(jax.random.key(0), 0), task.model, train.inputs.shape[1:])
    adam = optax.adam(task.learning_rate)
    return Task(lambda params, example: loss(params, *example), initial, records, adam, measure)


def __getattr__(name: str) -> Task:
    """Makes the task of this name when it is asked for, so that only its data are read."""
    if name in NAMES:
        return task(NAMES[name])
    raise AttributeError(name)
