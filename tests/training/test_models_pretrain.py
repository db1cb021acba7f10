from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.datasets import load_digits

from dpaudit import _validate
from dpaudit.training.models import CNN8, accuracy, initial_parameters, pretrain

PIXELS, TARGETS = load_digits(return_X_y=True)
IMAGES = np.asarray(PIXELS, np.float32).reshape(-1, 8, 8, 1) / 16
LABELS = np.asarray(TARGETS, np.int32)
TRAIN, TEST = slice(0, 1400), slice(1400, None)
MODEL = CNN8()


def trained(seed: int, steps: int) -> dict:
    return pretrain(jax.random.key(seed), MODEL, IMAGES[TRAIN], LABELS[TRAIN], steps=steps, learning_rate=3e-3)


def same(left: dict, right: dict) -> bool:
    return jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), left, right))


@pytest.mark.integration
def test_learns_digits() -> None:
    assert accuracy(MODEL, trained(0, 0), IMAGES[TEST], LABELS[TEST]) < 0.5
    assert accuracy(MODEL, trained(0, 300), IMAGES[TEST], LABELS[TEST]) > 0.9


def test_no_steps_is_the_initial_network() -> None:
    init_key = jax.random.split(jax.random.key(4))[0]
    assert same(trained(4, 0), initial_parameters(init_key, MODEL, (8, 8, 1)))


def test_a_function_of_the_key() -> None:
    assert same(trained(1, 20), trained(1, 20))
    assert not same(trained(1, 20), trained(2, 20))
    assert not same(trained(1, 20), trained(1, 21))


def test_accuracy_is_independent_of_the_batch() -> None:
    params = trained(0, 50)
    logits = jnp.stack([jnp.asarray(MODEL.apply({"params": params}, image)) for image in IMAGES[:50]])
    wanted = float((logits.argmax(axis=1) == LABELS[:50]).mean())
    assert 0 < wanted < 1
    for batch_size in (1, 7, 50, 1000):
        assert accuracy(MODEL, params, IMAGES[:50], LABELS[:50], batch_size=batch_size) == pytest.approx(wanted)


def test_a_network_of_nan_has_no_image_right() -> None:
    """Of NaN the largest is the first, which would be right for every image of class 0."""
    diverged = jax.tree.map(lambda leaf: leaf * jnp.nan, trained(0, 0))
    assert accuracy(MODEL, diverged, IMAGES[:50], np.zeros(50, np.int32)) == 0


def test_whole_numbers_may_be_floats() -> None:
    floats: dict = {"steps": 2.0, "batch_size": 8.0}
    found, same_again = (
        pretrain(jax.random.key(0), MODEL, IMAGES, LABELS, **numbers)
        for numbers in (floats, {name: int(number) for name, number in floats.items()})
    )
    assert same(found, same_again)
    batches: dict = {"batch_size": 25.0}
    assert accuracy(MODEL, found, IMAGES[:50], LABELS[:50], **batches) == accuracy(
        MODEL, found, IMAGES[:50], LABELS[:50]
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": -1}, "steps: expected a whole number >= 0, got -1"),
        ({"batch_size": 0}, "batch_size: expected a whole number >= 1, got 0"),
        ({"learning_rate": 0.0}, "learning_rate: expected a finite number > 0, got 0.0"),
        ({"images": IMAGES[0]}, r"images: expected an array of shape \[n, h, w, c\] .*, got shape \[8, 8, 1\]"),
        ({"labels": LABELS[:3]}, r"labels: expected shape \[1797\], one per image, got shape \[3\]"),
        ({"labels": np.where(LABELS == 9, 10, LABELS)}, "labels: expected classes from 0 to 9, got 10"),
        ({"labels": np.where(LABELS == 9, -1, LABELS)}, "labels: expected classes from 0 to 9, got -1"),
    ],
)
def test_refuses_bad_input(change: dict, message: str) -> None:
    arguments = {"images": IMAGES, "labels": LABELS, "steps": 1} | change
    with pytest.raises(_validate.InputError, match=message):
        pretrain(jax.random.key(0), MODEL, **arguments)


def test_labels_that_are_known_are_looked_at_while_jax_traces() -> None:
    """As a checkpoint does for the shapes of what it holds; those that are traced themselves have no numbers yet."""

    def shapes(images: Any, labels: Any) -> Any:
        return jax.eval_shape(lambda key: pretrain(key, MODEL, images, labels, steps=0), jax.random.key(0))

    wanted = jax.tree.map(jnp.shape, pretrain(jax.random.key(0), MODEL, IMAGES, LABELS, steps=0))
    assert jax.tree.map(jnp.shape, shapes(IMAGES, LABELS)) == wanted
    assert jax.tree.map(jnp.shape, jax.eval_shape(partial(shapes, IMAGES), LABELS)) == wanted
    with pytest.raises(_validate.InputError, match="labels: expected classes from 0 to 9, got 10"):
        shapes(IMAGES, np.where(LABELS == 9, 10, LABELS))
