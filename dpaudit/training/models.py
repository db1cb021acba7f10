"""The networks of the papers, in Flax Linen, and the loss and gradient of one example.

Every module maps one image [h, w, c] to logits [num_classes]; a batch is a vmap over it. ``params`` is what
:func:`initial_parameters` returns: a nested dict of float32 arrays. Behind every ReLU lies dropout of ``dropout_rate``
in [0, 1), active only in ``apply(..., dropout=True, rngs={"dropout": key})``.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from dpaudit import check
from dpaudit.training.convolution import Conv
from dpaudit.training.dropout import Dropout
from dpaudit.training.windows import max_pool


class _Network(nn.Module):
    num_classes: int = 10
    dropout_rate: float = 0.0

    def __post_init__(self) -> None:
        check.probability(dropout_rate=self.dropout_rate)
        super().__post_init__()


class CNN8(_Network):
    """A small network for 8 x 8 images: 1,898 parameters for one channel and ten classes."""

    @nn.compact
    def __call__(self, image: jax.Array, dropout: bool = False) -> jax.Array:
        x = nn.relu(Conv(8, (3, 3), padding="SAME")(image))
        x = Dropout(self.dropout_rate)(x, dropout)
        x = max_pool(x, (2, 2), strides=(2, 2), once=dropout)
        x = nn.relu(Conv(16, (3, 3), padding="VALID")(x))
        x = Dropout(self.dropout_rate)(x, dropout)
        return nn.Dense(self.num_classes)(x.ravel())


class CNN28(_Network):
    """The usual private MNIST network: 26,010 parameters for one channel and ten classes.

    Source: the d = 26,010 of paper 000; the network of paper 002's reference.
    """

    @nn.compact
    def __call__(self, image: jax.Array, dropout: bool = False) -> jax.Array:
        x = nn.relu(Conv(16, (8, 8), strides=(2, 2), padding="SAME")(image))
        x = Dropout(self.dropout_rate)(x, dropout)
        x = max_pool(x, (2, 2), strides=(1, 1))
        x = nn.relu(Conv(32, (4, 4), strides=(2, 2), padding="VALID")(x))
        x = Dropout(self.dropout_rate)(x, dropout)
        x = max_pool(x, (2, 2), strides=(1, 1))
        x = nn.relu(nn.Dense(32)(x.ravel()))
        x = Dropout(self.dropout_rate)(x, dropout)
        return nn.Dense(self.num_classes)(x)


class CNN32(_Network):
    """The CIFAR-10 network of paper 003: 932,170 parameters for three channels and ten classes.

    Source: paper 003, Table 1.
    """

    dropout_rate: float = 0.5

    @nn.compact
    def __call__(self, image: jax.Array, dropout: bool = False) -> jax.Array:
        x = image
        for _ in range(2):
            x = nn.relu(Conv(64, (5, 5), padding="VALID")(x))
            x = Dropout(self.dropout_rate)(x, dropout)
            x = max_pool(x, (2, 2), strides=(2, 2), once=dropout)
        x = nn.relu(nn.Dense(512)(x.ravel()))
        x = Dropout(self.dropout_rate)(x, dropout)
        return nn.Dense(self.num_classes)(x)


def model_for(image_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """The network for images [h, w, c] of 8 x 8, 28 x 28 or 32 x 32 pixels.

    Raises:
      InputError: another shape; fewer than two classes.
    """
    check.at_least(2, num_classes=num_classes)
    networks: dict[tuple[int, ...], type[CNN8 | CNN28 | CNN32]] = {(8, 8): CNN8, (28, 28): CNN28, (32, 32): CNN32}
    pixels = tuple(image_shape[:2])
    if len(image_shape) != 3 or pixels not in networks:
        wanted = "images [h, w, channels] of 8 x 8, 28 x 28 or 32 x 32 pixels"
        raise check.expected("image_shape", wanted, list(image_shape))
    return networks[pixels](num_classes)


def initial_parameters(key: jax.Array, model: nn.Module, image_shape: tuple[int, ...]) -> Any:
    """Fresh parameters (Flax's defaults: LeCun normal weights, zero biases) for images [h, w, c]."""
    return _initial(key, model=model, image_shape=tuple(image_shape))


@partial(jax.jit, static_argnames=("model", "image_shape"))
def _initial(key: jax.Array, *, model: nn.Module, image_shape: tuple[int, ...]) -> Any:
    return model.init(key, jnp.zeros(image_shape))["params"]


def logits(model: nn.Module) -> Callable[..., jax.Array]:
    """``logits(params, image, key=None) -> [num_classes]`` of ONE image; with a key dropout is active."""

    def network(params: Any, image: jax.Array, key: jax.Array | None = None) -> jax.Array:
        active: Any = {} if key is None else {"dropout": True, "rngs": {"dropout": key}}
        return jnp.asarray(model.apply({"params": params}, image, **active))

    return network


def cross_entropy(model: nn.Module) -> Callable[..., jax.Array]:
    """``loss(params, image, label, key=None) -> scalar``: -log softmax(logits)[label] of ONE example, in nats.

    With a key dropout is active, so that ``lambda params, example, key: loss(params, *example, key)`` is what
    ``dp_sgd(..., dropout=True)`` trains. A label that is no class gives NaN, and so does its gradient: no other class
    takes its place.
    """
    network = logits(model)

    def loss(params: Any, image: jax.Array, label: jax.Array, key: jax.Array | None = None) -> jax.Array:
        found = network(params, image, key)
        known = (label >= 0) & (label < found.size)
        return optax.softmax_cross_entropy_with_integer_labels(found + jnp.where(known, 0.0, jnp.nan), label)

    return loss


def gradient(model: nn.Module) -> Callable[[Any, jax.Array, jax.Array], jax.Array]:
    """``gradient(params, image, label) -> [d]``: the gradient of :func:`cross_entropy`, all parameters in one vector.

    The order is that of ``jax.flatten_util.ravel_pytree``.
    """
    derivative = jax.grad(cross_entropy(model))

    def flat(params: Any, image: jax.Array, label: jax.Array) -> jax.Array:
        return ravel_pytree(derivative(params, image, label))[0]

    return flat
