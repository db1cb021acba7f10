import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from dpaudit import _validate
from dpaudit.training import models
from dpaudit.training.per_example import clipped_sum
from tests.training import by_vmap

SHAPES = {(8, 8, 1): 1_898, (28, 28, 1): 26_010, (32, 32, 3): 932_170}


@pytest.mark.integration
@pytest.mark.parametrize(("shape", "size"), SHAPES.items())
def test_parameters_logits_loss_and_gradient(shape: tuple[int, ...], size: int) -> None:
    model = models.model_for(shape, 10)
    params = models.initial_parameters(jax.random.key(0), model, shape)
    assert ravel_pytree(params)[0].size == size
    image = jax.random.uniform(jax.random.key(1), shape)
    logits = np.asarray(jax.jit(model.apply)({"params": params}, image), np.float64)
    assert logits.shape == (10,)
    loss = jax.jit(models.cross_entropy(model))(params, image, jnp.int32(3))
    np.testing.assert_allclose(loss, math.log(np.exp(logits).sum()) - logits[3], rtol=1e-5)
    flat = jax.jit(models.gradient(model))(params, image, jnp.int32(3))
    assert flat.shape == (size,)
    # The last layer's bias receives softmax(logits) - one_hot(label).
    head = max((name for name in params if name.startswith("Dense")), key=lambda name: int(name.split("_")[1]))
    wanted = np.exp(logits) / np.exp(logits).sum() - np.eye(10)[3]
    np.testing.assert_allclose(ravel_pytree(params)[1](flat)[head]["bias"], wanted, atol=1e-5)


def test_gradient_is_the_slope_of_the_loss() -> None:
    model = models.CNN8()
    params = models.initial_parameters(jax.random.key(0), model, (8, 8, 1))
    flat, unravel = ravel_pytree(params)
    image, label = jax.random.uniform(jax.random.key(1), (8, 8, 1)), jnp.int32(7)
    gradient = np.asarray(jax.jit(models.gradient(model))(params, image, label))
    step = 1e-3 * gradient / np.linalg.norm(gradient)
    loss = jax.jit(models.cross_entropy(model))
    ahead, behind = (float(loss(unravel(moved), image, label)) for moved in (flat + step, flat - step))
    np.testing.assert_allclose((ahead - behind) / 2e-3, np.linalg.norm(gradient), rtol=1e-2)


@pytest.mark.parametrize("label", [-1, 10])
def test_a_label_that_is_no_class_adds_nothing_and_is_counted(label: int) -> None:
    model = models.CNN8()
    params = models.initial_parameters(jax.random.key(0), model, (8, 8, 1))
    images, loss = jax.random.uniform(jax.random.key(1), (3, 8, 8, 1)), models.cross_entropy(model)

    def total(labels: list[int], weights: list[float]) -> tuple[jax.Array, jax.Array]:
        batch = images, jnp.array(labels)
        summed = jax.jit(
            lambda batch, weights: clipped_sum(lambda p, e: loss(p, *e), params, batch, clip_norm=1.0, weights=weights)
        )
        found, info = summed(batch, jnp.array(weights))
        return ravel_pytree(found)[0], info.dropped

    found, dropped = total([4, label, 7], [1.0, 1.0, 1.0])
    np.testing.assert_array_equal(found, total([4, 4, 7], [1.0, 0.0, 1.0])[0])
    assert dropped == 1


def test_dropout_only_when_asked_for() -> None:
    model = models.CNN32()
    params = models.initial_parameters(jax.random.key(0), model, (32, 32, 3))
    image = jax.random.uniform(jax.random.key(1), (32, 32, 3))

    @partial(jax.jit, static_argnames="dropout")
    def logits(seed: int, dropout: bool) -> Any:
        return model.apply({"params": params}, image, dropout=dropout, rngs={"dropout": jax.random.key(seed)})

    assert (np.asarray(logits(0, True)) != logits(1, True)).any()
    np.testing.assert_array_equal(logits(0, True), logits(0, True))
    np.testing.assert_array_equal(logits(0, False), logits(1, False))


@pytest.mark.integration
@pytest.mark.parametrize("channels", [False, True])
def test_the_loss_with_a_key_trains_with_dropout_of_every_example(channels: bool) -> None:
    model = models.CNN8(dropout_rate=0.5, channel_dropout=channels)
    params, loss = models.initial_parameters(jax.random.key(0), model, (8, 8, 1)), models.cross_entropy(model)
    batch = jax.random.uniform(jax.random.key(1), (4, 8, 8, 1)), jnp.array([3, 1, 4, 1])
    key = jax.random.key(2)

    def with_dropout(params: Any, example: Any, key: jax.Array) -> jax.Array:
        return loss(params, *example, key)

    total, info = jax.jit(lambda p, b: clipped_sum(with_dropout, p, b, clip_norm=1.0, key=key))(params, batch)
    keys = jnp.stack([jax.random.fold_in(key, i) for i in range(4)])
    wanted, norms = by_vmap.clipped_sum(by_vmap.gradients(with_dropout, params, batch, keys), 1.0)
    assert by_vmap.relative_error(total, wanted) < 1e-5
    np.testing.assert_allclose(info.norms, norms, rtol=1e-5)
    without, _ = by_vmap.clipped_sum(by_vmap.gradients(lambda p, e: loss(p, *e), params, batch), 1.0)
    assert by_vmap.relative_error(total, without) > 0.1


def test_num_classes() -> None:
    model = models.model_for((28, 28, 3), 7)

    def logits() -> Any:
        params = models.initial_parameters(jax.random.key(0), model, (28, 28, 3))
        return model.apply({"params": params}, jnp.zeros((28, 28, 3)))

    assert jax.eval_shape(logits).shape == (7,)


@pytest.mark.parametrize("shape", [(30,), (28, 28), (16, 16, 1)])
def test_refuses_another_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(
        _validate.InputError, match=r"image_shape: expected images \[h, w, channels\] of 8 x 8, .* got \["
    ):
        models.model_for(shape, 10)


def test_refuses_one_class() -> None:
    with pytest.raises(_validate.InputError, match="num_classes: expected a whole number >= 2, got 1"):
        models.model_for((8, 8, 1), 1)
