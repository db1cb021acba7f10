from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpaudit.training import models
from dpaudit.training.dropout.mc_dropout import Part, cut

KEY = jax.random.key(0)
X = jax.random.normal(KEY, (5, 8))
WEIGHTS = jax.random.normal(jax.random.key(1), (8, 64)), jax.random.normal(jax.random.key(2), (64, 3))


def dense(weights: Any, image: jax.Array, x: jax.Array) -> jax.Array:
    """Some of it without x, some with nothing else."""
    return jnp.tanh((x + jnp.arange(8.0) + 2 * image) @ weights[0]) @ weights[1]


@pytest.mark.parametrize(
    "function",
    [
        dense,
        lambda weights, image, x: jnp.cos(x),
        lambda weights, image, x: jnp.sin(image),
        lambda weights, image, x: jnp.zeros(3),
        lambda weights, image, x: jnp.asarray(WEIGHTS[1]).T @ (image.sum() + x[0] * WEIGHTS[0][0]),  # closed over
    ],
)
def test_the_parts_make_the_function(function: Callable[..., jax.Array]) -> None:
    image = X[0]
    parts = cut(function, WEIGHTS, image, X[0])
    for few in (1, 2, 5):
        found = parts.outputs(parts.shared([*WEIGHTS, image]), X, few)
        wanted = jnp.stack([function(WEIGHTS, image, x) for x in X])
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def products(part: Part) -> list[tuple[int, ...]]:
    return [step.shapes[0].shape for step in part.steps if step.primitive.name == "dot_general"]


def test_convolutions_are_wide_and_dense_layers_narrow() -> None:
    model = models.CNN32()
    params = models.initial_parameters(KEY, model, (32, 32, 3))
    parts = cut(models.logits(model), params, jnp.zeros((32, 32, 3)), KEY)
    assert products(parts.before) == [(1, 28, 28, 64)]
    assert products(parts.wide) == [(1, 10, 10, 64)]
    assert products(parts.narrow) == [(512,), (10,)]
    kernels = [params[name]["kernel"].nbytes for name in ("Conv_1", "Dense_0", "Dense_1")]
    assert kernels[0] < parts.wide.weights < 2 * kernels[0]  # and the image behind the first convolution
    assert sum(kernels[1:]) < parts.narrow.weights < 1.01 * sum(kernels[1:])
    assert parts.wide.values > 4 * 10 * 10 * 1600 > 10 * parts.narrow.values


def test_what_depends_on_no_argument_is_made_where_it_is_read() -> None:
    parts = cut(dense, WEIGHTS, X[0], X[0])
    assert [step.primitive.name for step in parts.numbers.steps] == ["iota"]
    assert not any(step.primitive.name == "iota" for part in parts[1:4] for step in part.steps)
    assert set(parts.numbers.makes).isdisjoint(parts.wide.makes)
