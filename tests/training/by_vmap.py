"""The long way: one gradient per example by vmap(grad) in float64, clipped by a Python loop in NumPy."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree


def gradients(loss: Callable[..., Any], params: Any, batch: Any, keys: Any = None) -> np.ndarray:
    """[n, d], in float64; with keys in float32, because dropout draws other bits in float64."""

    def one(params: Any, example: Any, *key: Any) -> jax.Array:
        return ravel_pytree(jax.grad(loss)(params, example, *key))[0]

    if keys is not None:
        return np.asarray(jax.jit(jax.vmap(one, in_axes=(None, 0, 0)))(params, batch, keys), np.float64)
    with jax.enable_x64(True):
        params, batch = jax.tree.map(_double, (params, batch))
        return np.asarray(jax.jit(jax.vmap(one, in_axes=(None, 0)))(params, batch))


def some_parameters(seed: int, net: nn.Module, example: Any) -> Any:
    """Random numbers in the shape of the network's parameters: no compilation, no bias that is zero."""
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(net.init, jax.random.key(0), example)["params"]
    return jax.tree.map(lambda s: jnp.asarray(0.4 * rng.normal(size=s.shape) + 0.1, s.dtype), shapes)


def clipped_sum(
    each: np.ndarray, clip_norm: float, group_size: int = 1, weights: Any = None
) -> tuple[np.ndarray, np.ndarray]:
    """(the sum [d], the norms [u]) of flat clipping."""
    weights = np.ones(len(each)) if weights is None else np.asarray(weights, np.float64)
    total, norms = np.zeros(each.shape[1]), []
    for start in range(0, len(each), group_size):
        unit = np.zeros(each.shape[1])
        for i in range(start, start + group_size):
            if weights[i] != 0:
                unit = unit + weights[i] * each[i]
        norms.append(np.sqrt(np.sum(unit**2)))
        total += unit * min(1.0, clip_norm / norms[-1]) if norms[-1] > 0 else 0
    return total, np.array(norms)


def relative_error(ours: Any, wanted: np.ndarray) -> float:
    """|ours - wanted| / |wanted| of whole vectors."""
    flat = np.asarray(ravel_pytree(ours)[0], np.float64)
    return float(np.linalg.norm(flat - wanted) / np.linalg.norm(wanted))


def _double(x: Any) -> Any:
    x = np.asarray(x)
    return jnp.asarray(x.astype(np.float64) if x.dtype.kind == "f" else x)
