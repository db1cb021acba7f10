"""Trains by DP-FTRL on 28 x 28 images: test accuracy of every kind of noise at equal user-level epsilon."""

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from dpaudit import data
from dpaudit._engine import hosts
from dpaudit.personalization.boundary.aggregator import run
from dpaudit.personalization.user_level import Training, dp_ftrl, dp_sgd, users
from dpaudit.training import accounting, models
from dpaudit.training import dp_ftrl as ftrl
from dpaudit.training.matrix_noise import Strategy, banded, blt, independent, restarted, tree
from dpaudit.training.models import accuracy
from dpaudit.training.sampling import Participation, participation, poisson, spaced

EXAMPLES = 5  # of a user, as in "clip size"
LEARNING_RATES = (0.3, 1.0, 3.0)  # of which every variant has its best
POISSON = "DP-SGD, Poisson"
STRATEGIES: dict[str, Callable[[Participation], Strategy]] = {
    "independent": independent,
    "tree": lambda pattern: _trees(pattern),
    "banded": lambda pattern: banded(pattern, bands=min(16, pattern.separation)),
    "blt": lambda pattern: blt(pattern, buffers=2),
}
VARIANTS = (POISSON, *STRATEGIES)


class Scale(NamedTuple):
    """Of a training."""

    users_per_round: int  # m, of as many users as the training data has rows for, 5 each of their own
    epochs: int  # how often a user takes part


class Settings(NamedTuple):
    """The same for all kinds of noise."""

    clip_norm: float = 0.3  # clip_norm, learning_rate: of plain SGD
    learning_rate: float = 0.5
    delta: float = 1e-5  # of the promise


def accuracies(
    dataset: str,
    epsilons: Iterable[float],
    scale: Scale,
    settings: Settings,
    *,
    seed: int,
    data_dir: str | None = None,
) -> list[dict[str, Any]]:
    """Returns a row for every variant and epsilon: its noise, test accuracy, and what its transcript was accounted
    with.

    All variants begin with the same model, and all but DP-SGD see the same users in the same rounds.
    """
    train, test = (data.load(dataset, split=split, data_dir=data_dir) for split in data.SPLITS)
    model, shape = models.model_for(train.inputs.shape[1:], train.num_classes), train.inputs.shape[1:]
    init_key, cohort_key, order_key, run_key = jax.random.split(jax.random.key(seed), 4)
    count = len(train.labels) // EXAMPLES
    kept = np.arange(count * EXAMPLES)
    everyone = users(cohort_key, (train.inputs[kept], train.labels[kept]), kept // EXAMPLES)
    params, loss = models.initial_parameters(init_key, model, shape), models.cross_entropy(model)
    epoch = count // scale.users_per_round
    rounds = epoch * scale.epochs
    cohorts = spaced(order_key, count, scale.users_per_round, rounds, separation=epoch)
    coins, common = poisson(count, scale.users_per_round), _common(loss, settings)

    def trained(training: Training) -> tuple[float, float]:
        state, _, transcript = run(run_key, training.protocol, *training.init(params), everyone, rounds=rounds)
        return accuracy(model, state.params, test.inputs, test.labels), transcript.epsilon(settings.delta, users=count)

    rows = []
    for epsilon in epsilons:
        for variant in VARIANTS:
            if variant == POISSON:
                noise = accounting.noise_multiplier(coins, epsilon, rounds, delta=settings.delta)
                training = dp_sgd(sampling=coins, noise_multiplier=noise, **common)
            else:
                strategy = STRATEGIES[variant](cohorts.participation(rounds))
                noise = ftrl.noise_multiplier(strategy, epsilon, delta=settings.delta)
                training = dp_ftrl(strategy=strategy, sampling=cohorts, noise_multiplier=noise, **common)
            right, spent = trained(training)
            rows.append(
                {"variant": variant, "epsilon": epsilon, "accuracy": right, "accounted": spent, "rounds": rounds}
                | {"noise_multiplier": noise, "users": count}
                | scale._asdict()
                | settings._asdict()
            )
    return rows


def _common(loss: Callable[..., jax.Array], settings: Settings) -> dict[str, Any]:
    return {
        "loss_fn": lambda params, example: loss(params, *example),
        "clip_norm": settings.clip_norm,
        "optimizer": optax.sgd(settings.learning_rate),
        "mesh": hosts.mesh("users"),
    }


def _trees(pattern: Participation) -> Strategy:
    """Returns a tree for every epoch, which every user is in once: its sensitivity is exact."""
    epoch = pattern.separation
    return restarted(tree(participation(epoch, separation=epoch)), math.ceil(pattern.rounds / epoch))
