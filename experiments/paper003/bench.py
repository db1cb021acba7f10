"""Describes the trainings: what is trained, on which data, at which scale."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpaudit import data
from dpaudit._engine import hosts
from dpaudit.training import accounting, models
from dpaudit.training.dp_sgd import Trainer, dp_sgd, train
from dpaudit.training.dropout import mc_dropout
from dpaudit.training.many import train_many
from dpaudit.training.neighbouring import Neighbours, Rows, hardest_target, perturbed, random_target, split, weighted
from dpaudit.training.sampling import poisson
from experiments.common import seconds

EPSILON, DELTA, CLIP_NORM, LEARNING_RATE = 25.63, 1e-5, 1.0, 0.15  # Section 4.1
DROPOUT, SHADOWS = 0.5, 10
EVALUATED = 500  # records that no network is trained on, for the accuracy
COUNTS = (1, 2, 5, 10, 50, 100, 500, 1_000)  # of samples, research question 2
TEMPERATURES = (0.5, 1.0, 2.0, 5.0)
PROBED, PROBE = 32, 4  # networks and steps, to estimate the time of all


class Scale(NamedTuple):
    """Of the experiment."""

    data: str  # name of the data set
    pixels: int  # images are averaged down to so many a side
    records: int  # |D'|, and of the shadow models' data as well where there are so many
    batch_size: int
    epochs: int
    noise: float | None  # multiplier; None for that which promises the paper's epsilon here, by Renyi divergences
    models: int  # trainings of one estimate, each on D or on D' by a coin
    repeats: int  # estimates of a data set
    samples: int = 1_000  # T
    judged: int = 10  # of the first data set's networks, those whose predictions of other records are judged
    kept: int = 20  # trainings in a file; a killed run begins again behind its last file
    at_once: int | None = None  # networks in one program; None for as many as suit the machine

    @property
    def steps(self) -> int:
        return self.epochs * self.records // self.batch_size

    @property
    def trainings(self) -> int:
        """Counts the trainings of one data set."""
        return self.models * self.repeats


SCALES = {
    "quick": Scale("digits", 8, 400, 40, 15, None, 80, 1, judged=2, at_once=5),
    "digits": Scale("digits", 8, 600, 64, 60, None, 100, 10),
    "cifar10-8x8": Scale("cifar10", 8, 1_000, 64, 30, None, 100, 10),
    "cifar10": Scale("cifar10", 32, 1_000, 64, 6, None, 100, 1, judged=2, kept=4),
    "paper": Scale("cifar10", 32, 50_000, 256, 60, 0.5, 100, 10, kept=4),
}


class Bench:
    """The data, the targets, and the one training of all networks."""

    def __init__(self, scale: Scale, seed: int, work: Path, data_dir: str | None = None):
        self.scale, self.work = scale, work
        pool = data.pooled(*(data.load(scale.data, split=part, data_dir=data_dir) for part in data.SPLITS))
        self.name, self.labels = pool.label, pool.labels
        self.images = averaged(pool.inputs, scale.pixels)
        network = type(models.model_for(self.images.shape[1:], pool.num_classes))
        self.use(network(pool.num_classes, dropout_rate=DROPOUT))
        split_key, self.target_key, self.shadow_key, self.key = jax.random.split(jax.random.key(seed), 4)
        left = len(self.labels) - scale.records - EVALUATED
        self.rows = split(split_key, len(self.labels), members=scale.records, shadow=min(scale.records, left))
        self.sampling = poisson(scale.records, scale.batch_size)
        calibrated = partial(accounting.noise_multiplier, delta=DELTA, accounting=accounting.rdp)  # as in the paper
        self.noise = scale.noise or calibrated(self.sampling, EPSILON, scale.steps)
        self.learner, self.observe = cache(self._learner), self._observe  # the same functions are compiled once
        self.together: Callable[..., Any] = partial(train_many, at_once=scale.at_once, mesh=hosts.mesh("networks"))

    def use(self, model: Any) -> None:
        """Trains and asks this network."""
        self.model = model
        self.network, self.loss = models.logits(model), models.cross_entropy(model)
        self.probabilities = mc_dropout.probabilities(model)

    @property
    def evaluated(self) -> np.ndarray:
        """Rows of the data that no network is trained on."""
        used = np.concatenate([self.rows.members, self.rows.shadow])
        return np.setdiff1d(np.arange(len(self.labels)), used)[:EVALUATED]

    def epsilon(self) -> dict[str, float]:
        """Computes what the training promises, by both accountings."""
        spent = partial(accounting.epsilon, self.sampling, self.noise, self.scale.steps, delta=DELTA)
        return {"PLD": spent(accounting=accounting.pld), "Renyi": spent(accounting=accounting.rdp)}

    def first(self, key: jax.Array) -> Any:
        """Parameters that a training begins with."""
        return models.initial_parameters(key, self.model, self.images.shape[1:])

    def all_of(self, rows: np.ndarray) -> Rows:
        """Some rows of the data, all present."""
        return Rows((jnp.asarray(self.images[rows]), jnp.asarray(self.labels[rows])), jnp.ones(len(rows)))

    def trainer(self) -> Trainer:
        """DP-SGD with dropout; the mean of a batch is of clipped gradients and their noise, as Opacus has it."""
        return dp_sgd(
            weighted(lambda params, example, key: self.loss(params, *example, key)),
            clip_norm=CLIP_NORM,
            noise_multiplier=self.noise,
            batch_size=self.scale.batch_size,
            optimizer=optax.sgd(LEARNING_RATE),
            dropout=True,
        )

    def _learner(self, records: int, steps: int) -> Callable[[jax.Array, Any, Rows], Any]:
        """``run(key, present, rows) -> params``: one training of its own, on the rows that are present."""
        trainer, sampling = self.trainer(), poisson(records, self.scale.batch_size)

        def run(key: jax.Array, present: Any, rows: Rows) -> Any:
            init_key, train_key = jax.random.split(key)
            start = trainer.init(self.first(init_key))
            return train(train_key, trainer, start, rows._replace(present=present), sampling, steps)[0].params

        return run

    def _observe(self, key: jax.Array, params: Any, image: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns what one network says about one image: logits [k] without dropout, [T, k] under it."""
        samples = mc_dropout.sample(key, self.network, params, image[None], samples=self.scale.samples)
        return self.network(params, image), samples[:, 0]

    def targets(self, shadows: Any) -> list[Neighbours]:
        """Returns the paper's four pairs of D and D', by the parameters of shadow models."""
        first = random_target(self.target_key, self.images, self.labels, self.rows.members)
        third = hardest_target(self.loss, shadows, self.images, self.labels, self.rows.members)
        return [first, perturbed(self.loss, shadows, first), third, perturbed(self.loss, shadows, third)]

    def shadows(self) -> Any:
        """Networks trained as the others are, on other records."""
        run, shared = self.learner(len(self.rows.shadow), self.scale.steps), (self.all_of(self.rows.shadow),)
        everyone = jnp.ones((SHADOWS, len(self.rows.shadow)))
        return self.together(run, (jax.random.split(self.shadow_key, SHADOWS), everyone), shared=shared)

    def hours(self) -> float:
        """Estimates the hours of all trainings at the pace of a few steps of some networks, on this machine, in
        hours."""
        run, shared = self.learner(self.scale.records, PROBE), (self.all_of(self.rows.members),)
        arguments = jax.random.split(self.key, PROBED), jnp.ones((PROBED, self.scale.records))
        probe = partial(train_many, run, arguments, shared=shared, mesh=hosts.mesh("networks"))
        seconds(probe)  # compiles
        took = seconds(probe) / (PROBED * PROBE)
        return took * self.scale.steps * (4 * self.scale.trainings + SHADOWS) / 3600


def averaged(images: np.ndarray, pixels: int) -> np.ndarray:
    """Images [n, h, w, c] with h = w a multiple of ``pixels``, in blocks' means: [n, pixels, pixels, c]."""
    n, height, _, channels = images.shape
    block = height // pixels
    return images.reshape(n, pixels, block, pixels, block, channels).mean(axis=(2, 4))
