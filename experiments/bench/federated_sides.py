"""Computes what federated compares: every way to one round of Federated LDP-SGD ("clip size", Algorithms 1 to 3)."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh
from jax.tree_util import Partial

from dpaudit.federated import clients, clip_size, rounds
from dpaudit.federated.population import Population
from dpaudit.training import models
from experiments.bench.training_sides import Network, Side
from experiments.common import answering

PEER = Path(__file__).parent / "peers" / "torch_federated.py"
EXAMPLES = 5  # of a client
CLIP_NORM = 0.05
NOISE_MULTIPLIER = 1.4042  # (8, 1e-7)-LDP: twice the analytic Gaussian's 0.7021
LEARNING_RATE = 1.0

Round = Callable[
    [jax.Array, "Given", Any], tuple[Any, Any]
]  # run(key, given, noise_multiplier) -> (params, noisy mean)


class Given(NamedTuple):
    """What every side starts from."""

    params: Any
    images: jax.Array  # [rows, h, w, c]
    labels: jax.Array  # [rows]


def given(seed: int, network: Network, rows: int) -> Given:
    """Initial parameters, images of noise and random labels, as the PyTorch peer draws them."""
    rng = np.random.default_rng(seed)
    params = models.initial_parameters(jax.random.key(seed), network.ours, network.image_shape)
    images = rng.random((rows, *network.image_shape), np.float32)
    return Given(params, jnp.asarray(images), jnp.asarray(rng.integers(0, 10, rows), jnp.int32))


def server(
    network: Network, m: int, noise_multiplier: Any, *, each: bool, mesh: Mesh | None, clip_norm: Any = CLIP_NORM
) -> rounds.Server:
    """Ours; its optimiser, without momentum, keeps the mean it was given."""
    loss = models.cross_entropy(network.ours)
    update = clients.gradients(lambda params, example: loss(params, *example))
    return rounds.federated(
        clients.gaussian(update, noise_multiplier=noise_multiplier, each=each),
        clip_size.fixed(clip_norm),
        clients_per_round=m,
        optimizer=optax.sgd(LEARNING_RATE, momentum=0.0),
        mesh=mesh,
    )


def ours(
    network: Network,
    m: int,
    everyone: Population,
    *,
    each: bool = False,
    mesh: Mesh | None = None,
    clip_norm: Any = CLIP_NORM,
) -> Round:
    """One round of m clients drawn from a population."""

    def run(key: jax.Array, given: Given, noise_multiplier: Any) -> tuple[Any, Any]:
        own = server(network, m, noise_multiplier, each=each, mesh=mesh, clip_norm=clip_norm)
        state, _ = rounds.run(key, own, own.init(given.params), everyone, (given.images, given.labels), 1)
        return state.params, optax.tree.get(state.opt_state, "trace")

    return run


def by_vmap(network: Network, *, each: bool = False, clip_norm: Any = CLIP_NORM) -> Round:
    """What one would write in JAX: the gradients of all clients at once, of as many as there are rows for."""
    loss = models.cross_entropy(network.ours)

    def of_client(params: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
        return jnp.mean(jax.vmap(loss, (None, 0, 0))(params, images, labels))

    def run(key: jax.Array, given: Given, noise_multiplier: Any) -> tuple[Any, Any]:
        batch = (leaf.reshape(-1, EXAMPLES, *leaf.shape[1:]) for leaf in (given.images, given.labels))
        gradients = jax.vmap(jax.grad(of_client), (None, 0, 0))(given.params, *batch)
        norms = jax.vmap(optax.global_norm)(gradients)
        factors, m = jnp.minimum(1, clip_norm / norms), len(norms)
        total, unflat = ravel_pytree(jax.tree.map(lambda leaf: jnp.tensordot(factors, leaf, 1), gradients))
        if each:
            noise = jax.random.normal(key, (m, total.size)).sum(axis=0)
        else:
            noise = jnp.sqrt(m) * jax.random.normal(key, total.shape)
        mean = unflat((total + clip_norm * noise_multiplier * noise) / m)
        return jax.tree.map(lambda p, g: p - LEARNING_RATE * g, given.params, mean), mean

    return run


def own_rows(m: int) -> Population:
    """m clients, of whom the first holds the first rows, the next the next, and no two a row in common."""
    return Population(m, Partial(_own_rows), Partial(_own_rows))


class Peer(NamedTuple):
    """What another process offers."""

    sides: dict[str, Side]
    settings: dict[str, dict[str, Any]]  # of its sides
    means: dict[str, np.ndarray]  # of its sides: the mean clipped gradient without noise


@contextmanager
def peer(command: Sequence[str] | None, asked: dict[str, Any], prefix: str = "") -> Iterator[Peer]:
    """A process that is told what is wanted and then times one round for every line; without a command, no sides."""
    if command is None:
        yield Peer({}, {}, {})
        return
    with answering(command) as ask:
        hello = ask(json.dumps(asked))
        names = {prefix + side: side for side in hello["settings"]}
        yield Peer(
            {name: partial(ask, side) for name, side in names.items()},
            {name: hello["settings"][side] for name, side in names.items()},
            {prefix + side: np.array(mean) for side, mean in hello["means"].items()},
        )


def _own_rows(client: jax.Array) -> jax.Array:
    return client * EXAMPLES + jnp.arange(EXAMPLES)
