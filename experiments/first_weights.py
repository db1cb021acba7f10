"""Draws first weights as other libraries do, which a paper that names no law leaves to its library."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax.linen import initializers

Law = Callable[[jax.Array, tuple[int, ...], int], jax.Array]  # of a key, a shape and how many inputs a neuron has


def pytorch(key: jax.Array, shape: tuple[int, ...], inputs: int) -> jax.Array:
    """Draws uniformly from +-1/sqrt(inputs), as PyTorch does for weights and biases of linear and convolution
    layers."""
    return jax.random.uniform(key, shape, minval=-1, maxval=1) / np.sqrt(inputs)


def lecun(key: jax.Array, shape: tuple[int, ...], inputs: int) -> jax.Array:
    """Draws as Flax does: truncated normal, with variance 1/inputs."""
    return initializers.lecun_normal()(key, shape)


def glorot(key: jax.Array, shape: tuple[int, ...], inputs: int) -> jax.Array:
    """Draws as Keras does: uniformly, with variance 2/(inputs + outputs)."""
    return initializers.glorot_uniform()(key, shape)


def redrawn(key: jax.Array, params: Any, kernel: Law | None = None, bias: Law | None = None) -> Any:
    """Returns a network's parameters {layer: {kernel, bias}}, with those that there is a law for drawn by it."""
    drawn = {}
    for layer, name in enumerate(params):
        inputs = int(np.prod(params[name]["kernel"].shape[:-1]))
        keys = jax.random.split(jax.random.fold_in(key, layer), 2)
        drawn[name] = {
            part: params[name][part] if law is None else law(own, params[name][part].shape, inputs)
            for part, law, own in zip(("kernel", "bias"), (kernel, bias), keys, strict=True)
        }
    return drawn
