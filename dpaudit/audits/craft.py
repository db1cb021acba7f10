"""Crafts the pairs of gradients that a client can produce, by level of access.

Each function returns ``craft(key) -> (g0, g1)``, jittable and a pytree (``jax.tree_util.Partial``), so that its data
are arguments of the compiled program. A gradient function is ``gradient(image, label) -> [d]``, a ``Partial`` if it
holds parameters. Records are drawn uniformly with replacement; a pair never holds one record twice.

Source: paper 000, Section 5.4; the two counter-examples from Section 4.1.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from dpaudit import _validate

Gradient = Callable[[Any, Any], jax.Array]
Gradients = tuple[jax.Array, jax.Array]


def benign(gradient: Gradient, images: Any, labels: Any) -> Partial:
    """Crafts two records' own gradients without manipulation: g0 = grad(x1), g1 = grad(x2) (Section 5.4.1).

    Args:
      gradient: of the model that the server sent.
      images: [n, ...], n >= 2.
      labels: [n].

    Raises:
      InputError: too few records; another number of labels.
    """
    return Partial(_benign, _as_partial(gradient), *_records(2, images, labels))


def _benign(gradient: Partial, images: jax.Array, labels: jax.Array, key: jax.Array) -> Gradients:
    first_key, second_key = jax.random.split(key)
    n = len(labels)
    first = jax.random.randint(first_key, (), 0, n)
    second = (first + jax.random.randint(second_key, (), 1, n)) % n
    return gradient(images[first], labels[first]), gradient(images[second], labels[second])


def label_flip(
    gradient: Gradient,
    images: Any,
    labels: Any,
    num_classes: int,
    *,
    choose: Callable[[jax.Array, Any, Any], Any] | None = None,
) -> Partial:
    """Crafts the gradients of one image under its own label and under another one (Section 5.4.2).

    Args:
      gradient: of the model that the server sent.
      images: [n, ...].
      labels: [n], in 0 .. num_classes - 1.
      num_classes: >= 2.
      choose: ``choose(key, image, label) -> other label``; None draws it uniformly. A client who can run the model may
        choose the likeliest wrong label (:func:`likeliest_other`), whose gradient has the largest angle.

    Raises:
      InputError: as for :func:`benign`; fewer than two classes.
    """
    _validate.at_least(2, num_classes=num_classes)
    if choose is None:
        choose = Partial(_another_label, num_classes)
    return Partial(_label_flip, _as_partial(gradient), _as_partial(choose), *_records(1, images, labels))


def _another_label(num_classes: jax.Array, key: jax.Array, image: jax.Array, label: jax.Array) -> jax.Array:
    del image
    return (label + jax.random.randint(key, (), 1, num_classes)) % num_classes


def likeliest_other(logits: Callable[[Any], jax.Array]) -> Partial:
    """Returns the ``choose`` of :func:`label_flip` that takes the model's likeliest wrong label.

    Args:
      logits: of the model that the server sent, ``logits(image) -> [num_classes]``.
    """
    return Partial(_likeliest_other, _as_partial(logits))


def _likeliest_other(logits: Partial, key: jax.Array, image: jax.Array, label: jax.Array) -> jax.Array:
    del key
    return jnp.argmax(logits(image).at[label].set(-jnp.inf))


def _label_flip(gradient: Partial, choose: Partial, images: jax.Array, labels: jax.Array, key: jax.Array) -> Gradients:
    record_key, label_key = jax.random.split(key)
    record = jax.random.randint(record_key, (), 0, len(labels))
    image, label = images[record], labels[record]
    return gradient(image, label), gradient(image, choose(label_key, image, label))


def gradient_flip(gradient: Gradient, images: Any, labels: Any) -> Partial:
    """Crafts a record's gradient and its negative (Section 5.4.3).

    Args:
      gradient: of the model that the server sent.
      images: [n, ...].
      labels: [n].

    Raises:
      InputError: as for :func:`benign`.
    """
    return Partial(_gradient_flip, _as_partial(gradient), *_records(1, images, labels))


def _gradient_flip(gradient: Partial, images: jax.Array, labels: jax.Array, key: jax.Array) -> Gradients:
    record = jax.random.randint(key, (), 0, len(labels))
    g = gradient(images[record], labels[record])
    return g, -g


def collusion(gradient: Gradient, images: Any, labels: Any, trained_label: int) -> Partial:
    """Crafts :func:`gradient_flip` on a model that the server trained on one label only (Section 5.4.4).

    The images have other labels. The model is sure of the wrong answer, so gradients are long.

    Args:
      gradient: of the model trained on ``trained_label`` alone.
      images: [n, ...]; those of ``trained_label`` are left out.
      labels: [n].
      trained_label: the only label that the model has seen.

    Raises:
      InputError: no image of another label; otherwise as for :func:`benign`.
    """
    others = np.flatnonzero(np.asarray(labels) != trained_label)
    if len(others) == 0:
        raise _validate.expected("labels", f"some that differ from trained_label {trained_label}", "none")
    return gradient_flip(gradient, np.asarray(images)[others], np.asarray(labels)[others])


def dummy(dimension: int, clip_norm: float) -> Partial:
    """Crafts lambda = L/sqrt(d) in every coordinate, and its negative, without any data (Section 5.4.5).

    Lambda is increased by a millionth, so that rounding cannot make the norm smaller than L.

    Raises:
      InputError: a dimension below 1; clip_norm not positive.
    """
    value = (
        (1 + 1e-6) * _validate.positive(clip_norm=clip_norm) / math.sqrt(_validate.at_least(1, dimension=dimension))
    )
    g = jnp.full(dimension, value, jnp.float32)
    return Partial(_fixed, g, -g)


def zero_against_large(dimension: int, clip_norm: float) -> Partial:
    """Crafts (0, ..., 0) against (lambda, ..., lambda), lambda = 10 L: the first counter-example of Section 4.1.

    Norm projection sends zero to either direction with probability 1/2, and shortens the other one to L.

    Raises:
      InputError: a dimension below 1; clip_norm not positive.
    """
    _validate.at_least(1, dimension=dimension)
    clip_norm = _validate.positive(clip_norm=clip_norm)
    return Partial(_fixed, jnp.zeros(dimension), jnp.full(dimension, 10 * clip_norm, jnp.float32))


def watermark(dimension: int, clip_norm: float) -> Partial:
    """Crafts (0, ..., 0) against (0, lambda, 0, ..., 0), lambda = 10 L: the second counter-example of Section 4.1.

    Raises:
      InputError: a dimension below 2; clip_norm not positive.
    """
    _validate.at_least(2, dimension=dimension)
    clip_norm = _validate.positive(clip_norm=clip_norm)
    zero = jnp.zeros(dimension)
    return Partial(_fixed, zero, zero.at[1].set(10 * clip_norm))


def _fixed(g0: jax.Array, g1: jax.Array, key: jax.Array) -> Gradients:
    del key
    return g0, g1


def _records(least: int, images: Any, labels: Any) -> tuple[jax.Array, jax.Array]:
    _validate.at_least(least, records=len(images))
    if len(labels) != len(images):
        raise _validate.expected("labels", f"one for each of {len(images)} images", len(labels))
    return jnp.asarray(images), jnp.asarray(labels)


def _as_partial(function: Callable[..., Any]) -> Partial:
    return function if isinstance(function, Partial) else Partial(function)
