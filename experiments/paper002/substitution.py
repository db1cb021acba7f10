"""Measures where a few clients in place of all are not like all: in the directions in which updates differ most."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dpaudit.mechanisms.clipping import clip
from dpaudit.training import models
from experiments.common import Rows
from experiments.paper002.published import CLIENTS_PER_ROUND
from experiments.paper002.runs import Bench, Run, Scale, noise_multiplier

SETTING, CLIP_NORM = "clip0.05", 0.05
IMAGES = 5  # of a client
DIRECTIONS = 10


def substitution(rows: Rows, dataset: str, rounds: int, simulated: int, clients: int) -> None:
    """Compares the error of a mean of ``simulated`` updates with the noise on the mean of all messages.

    The first half of the updates gives the directions, the other the variance v in each of them; the error's variance
    is v/simulated beside the noise's (z C)^2/m.
    """
    scale = Scale(rounds, CLIENTS_PER_ROUND, simulated)
    bench = Bench(dataset, scale, rows.seed, rows.data_dir)
    params = bench.play(Run(SETTING, 2, 0)).state.params
    found = updates(jax.random.key(rows.seed), bench, params, 2 * clients)
    variances, total = variances_of(found[:clients], found[clients:])
    told = (
        f"{clients:,} updates of {IMAGES} images after {rounds} rounds, {simulated} in place of {CLIENTS_PER_ROUND:,}"
    )
    for sensitivity in (1, 2):
        noise = (noise_multiplier(sensitivity) * CLIP_NORM) ** 2 / CLIENTS_PER_ROUND
        setting = {"sensitivity": sensitivity, "rounds_before": rounds, "played": simulated, "clip_norm": CLIP_NORM}
        each = 1 + variances / simulated / noise
        rows.add(
            "error_over_noise", setting | {"directions": DIRECTIONS}, each.mean(), (each.min(), each.max()), scale=told
        )
        everywhere = 1 + total / simulated / (noise * found.shape[1])
        rows.add("error_over_noise", setting | {"directions": found.shape[1]}, everywhere, scale=told)
    for count in (simulated, CLIENTS_PER_ROUND):
        rows.add("report_deviation", {"reports": count}, 0.5 / np.sqrt(count), scale="closed form")
    rows.finish_part("a few clients in place of all")


def updates(key: jax.Array, bench: Bench, params: Any, clients: int) -> np.ndarray:
    """Returns the clipped updates of as many clients, [clients, d]."""
    images, labels = bench.train
    loss, drawn = models.cross_entropy(bench.model), jax.random.randint(key, (clients, IMAGES), 0, len(labels))

    def of_client(params: Any, own: jax.Array) -> jax.Array:
        return jnp.mean(jax.vmap(lambda i: loss(params, images[i], labels[i]))(own))

    def one(own: jax.Array) -> jax.Array:
        return clip(ravel_pytree(jax.grad(of_client)(params, own))[0], CLIP_NORM)

    return np.asarray(jax.lax.map(one, drawn, batch_size=50), np.float64)


def variances_of(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, float]:
    """Returns the second half's variances along the first half's leading directions, and over all directions."""
    *_, directions = np.linalg.svd(first - first.mean(axis=0), full_matrices=False)
    apart = second - second.mean(axis=0)
    along = apart @ directions[:DIRECTIONS].T
    return along.var(axis=0, ddof=1), float((apart**2).sum() / (len(apart) - 1))
