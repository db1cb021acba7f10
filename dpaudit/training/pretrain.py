"""Ordinary, non-private training: the networks whose gradients are audited."""

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from dpaudit import check
from dpaudit.training.models import cross_entropy, initial_parameters


def pretrain(
    key: jax.Array,
    model: nn.Module,
    images: Any,
    labels: Any,
    *,
    steps: int,
    batch_size: int = 128,
    learning_rate: float = 1e-3,
) -> Any:
    """Adam on the mean cross-entropy of batches drawn with replacement.

    Step t draws its batch from ``fold_in(key, t)`` alone, so a longer run passes through the shorter one's
    parameters. The loop is Python's around one compiled step: inside a compiled loop, a CPU's convolutions are
    several times slower.

    Args:
      key: JAX random key, consumed.
      model: maps one image to logits.
      images: [n, h, w, c], float.
      labels: [n], integer.
      steps: 0 returns the initial parameters.
      batch_size: examples per step.
      learning_rate: Adam's.

    Returns:
      params, as from :func:`dpaudit.training.models.initial_parameters`.

    Raises:
      InputError: a value out of range; no example, or not one label per image.
    """
    check.at_least(0, steps=steps)
    check.at_least(1, batch_size=batch_size)
    check.positive(learning_rate=learning_rate)
    images, labels = _examples(images, labels)
    init_key, batch_key = jax.random.split(key)
    params = initial_parameters(init_key, model, images.shape[1:])
    state = params, optax.adam(learning_rate).init(params)
    for t in range(steps):
        state = _step(batch_key, t, state, images, labels, learning_rate, model=model, batch_size=batch_size)
    return state[0]


def accuracy(model: nn.Module, params: Any, images: Any, labels: Any, *, batch_size: int = 1000) -> float:
    """The share of images whose largest logit is their label's.

    Args:
      model: maps one image to logits.
      params: its parameters.
      images: [n, h, w, c], float.
      labels: [n], integer.
      batch_size: images on the device at a time.

    Raises:
      InputError: a value out of range; no example, or not one label per image.
    """
    check.at_least(1, batch_size=batch_size)
    images, labels = _examples(images, labels)
    starts = range(0, len(images), batch_size)
    right = [_right(params, images[at : at + batch_size], labels[at : at + batch_size], model=model) for at in starts]
    return int(sum(right)) / len(images)


@partial(jax.jit, static_argnames=("model", "batch_size"))
def _step(
    key: jax.Array,
    t: Any,
    state: tuple[Any, optax.OptState],
    images: jax.Array,
    labels: jax.Array,
    learning_rate: Any,
    *,
    model: nn.Module,
    batch_size: int,
) -> tuple[Any, optax.OptState]:
    params, opt_state = state
    losses = jax.vmap(cross_entropy(model), in_axes=(None, 0, 0))
    chosen = jax.random.randint(jax.random.fold_in(key, t), (batch_size,), 0, labels.size)
    gradients = jax.grad(lambda params: losses(params, images[chosen], labels[chosen]).mean())(params)
    updates, opt_state = optax.adam(learning_rate).update(gradients, opt_state)
    return optax.apply_updates(params, updates), opt_state


@partial(jax.jit, static_argnames="model")
def _right(params: Any, images: jax.Array, labels: jax.Array, *, model: nn.Module) -> jax.Array:
    logits: Any = jax.vmap(lambda image: model.apply({"params": params}, image))(images)
    return jnp.sum(jnp.argmax(logits, axis=-1) == labels)


def _examples(images: Any, labels: Any) -> tuple[jax.Array, jax.Array]:
    images, labels = jnp.asarray(images), jnp.asarray(labels)
    if images.ndim != 4 or images.shape[0] < 1:
        raise check.expected("images", "an array of shape [n, h, w, c] with n >= 1", f"shape {list(images.shape)}")
    if labels.shape != images.shape[:1]:
        raise check.expected("labels", f"shape [{images.shape[0]}], one per image", f"shape {list(labels.shape)}")
    return images, labels
