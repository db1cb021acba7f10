"""Holds the network of :mod:`learned` and trains it, apart, because most audits need neither Flax nor Optax."""

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

RATE = 1e-2  # of Adam at the first step; a cosine takes it to 0


class Classifier(nn.Module):
    """Features [..., m] -> logits [...] of world 1; without hidden layers, logistic regression."""

    layers: int
    hidden: int

    @nn.compact
    def __call__(self, features: jax.Array) -> jax.Array:
        for _ in range(self.layers):
            features = nn.relu(nn.Dense(self.hidden)(features))
        return nn.Dense(1)(features)[..., 0]


@partial(jax.jit, static_argnames=("network", "steps", "batch"))
def fitted(key: jax.Array, releases: jax.Array, reading: Any, *, network: Classifier, steps: int, batch: int) -> Any:
    """Trains the network on releases [2, trials, d], one row per world, and returns its parameters."""
    optimizer = optax.adam(optax.cosine_decay_schedule(RATE, steps))
    init_key, batch_key = jax.random.split(key)
    worlds = jnp.arange(2)[:, None]

    def loss(parameters: Any, features: jax.Array) -> jax.Array:
        logits = jnp.asarray(network.apply(parameters, features))  # [2, batch]
        return optax.sigmoid_binary_cross_entropy(logits, jnp.broadcast_to(worlds, logits.shape)).mean()

    def step(state: tuple[Any, Any], key: jax.Array) -> tuple[tuple[Any, Any], None]:
        parameters, moments = state
        chosen = jax.random.randint(key, (2, batch), 0, releases.shape[1])
        features = reading.features(releases[worlds, chosen])
        updates, moments = optimizer.update(jax.grad(loss)(parameters, features), moments)
        return (optax.apply_updates(parameters, updates), moments), None

    parameters = network.init(init_key, reading.features(releases[0, 0]))
    (parameters, _), _ = jax.lax.scan(
        step, (parameters, optimizer.init(parameters)), jax.random.split(batch_key, steps)
    )
    return parameters
