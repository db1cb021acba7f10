"""Defines the papers' networks in Flax Linen, the loss and gradient of one example, and training without privacy.

Every module maps one image [h, w, c] to logits [num_classes]; use ``vmap`` for a batch. ``params`` is what
:func:`initial_parameters` returns: a nested dict of float32 arrays. Every ReLU is followed by dropout of
``dropout_rate`` in [0, 1), active only in ``apply(..., dropout=True, rngs={"dropout": key})``; with
``channel_dropout`` that of a convolution drops whole channels (Tompson et al. 2015; PyTorch's ``Dropout2d``).
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.core import Tracer
from jax.flatten_util import ravel_pytree

from dpaudit import _validate
from dpaudit.training.forms import quick

DIGITS = 24  # binary digits of a dropout rate, as fine as a float32 uniform


class Dropout(nn.Module):
    """Drops elements as ``flax.linen.Dropout`` does, but with one random bit for each binary digit of the rate.

    An element is 0 with probability ``rate``, else x / (1 - rate).

    Attributes:
      rate: in [0, 1), to 24 binary digits.
      broadcast_dims: dimensions whose elements are dropped together.
    """

    rate: float
    broadcast_dims: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _validate.probability(rate=self.rate)
        super().__post_init__()

    def __call__(self, x: jax.Array, active: bool) -> jax.Array:
        """Masks x [...] with bits from the generator ``dropout`` if ``active``, else returns it.

        Raises:
          InputError: x lacks one of ``broadcast_dims``.
        """
        if not active or self.rate == 0:
            return x
        shape = list(x.shape)
        for dim in self.broadcast_dims:
            if not -x.ndim <= dim < x.ndim:
                raise _validate.expected("broadcast_dims", f"dimensions of {list(x.shape)}", self.broadcast_dims)
            shape[dim] = 1
        return jnp.where(kept(self.make_rng("dropout"), tuple(shape), self.rate), x / (1 - self.rate), 0)


def kept(key: jax.Array, shape: tuple[int, ...], rate: float) -> jax.Array:
    """Draws a mask of ``shape``, every element True with probability 1 - ``rate``, independently.

    With 1 - rate = 0.d_1 d_2 ... d_k in binary and fair bits r_i, m_i = r_i or m_{i+1} where d_i = 1, r_i and m_{i+1}
    where d_i = 0, and m_{k+1} = 0, m_1 is 1 with probability 1 - rate: P(m_i) = (d_i + P(m_{i+1})) / 2.
    """
    whole = min(max(round((1 - rate) * 2**DIGITS), 1), 2**DIGITS - 1)
    digits = f"{whole:0{DIGITS}b}".rstrip("0")
    size = math.prod(shape)
    words = jax.random.bits(key, (len(digits), -(-size // 32)), jnp.uint32)
    mask = jnp.zeros_like(words[0])
    for digit, fair in zip(reversed(digits), reversed(words), strict=True):
        mask = fair | mask if digit == "1" else fair & mask
    bits = (_once(mask)[:, None] >> jnp.arange(32, dtype=jnp.uint32)) & 1
    return bits.ravel()[:size].reshape(shape) == 1


def _once(words: jax.Array) -> jax.Array:
    """Returns the same words as a reduction (x | 0), which XLA's CPU compiler does not recompute for every element."""
    return lax.reduce(jnp.stack([words, jnp.zeros_like(words)]), np.uint32(0), lax.bitwise_or, (0,))


class _Network(nn.Module):
    num_classes: int = 10
    dropout_rate: float = 0.0
    channel_dropout: bool = False

    def __post_init__(self) -> None:
        _validate.probability(dropout_rate=self.dropout_rate)
        super().__post_init__()

    @property
    def together(self) -> tuple[int, ...]:
        """Dimensions of what a convolution gives, [h, w, c], whose elements dropout drops together."""
        return (0, 1) if self.channel_dropout else ()


class CNN8(_Network):
    """Classifies 8 x 8 images with 1,898 parameters for one channel and ten classes."""

    @nn.compact
    def __call__(self, image: jax.Array, dropout: bool = False) -> jax.Array:
        x = nn.relu(nn.Conv(8, (3, 3), padding="SAME")(image))
        x = Dropout(self.dropout_rate, self.together)(x, dropout)
        x = nn.max_pool(x, (2, 2), strides=(2, 2))
        x = nn.relu(nn.Conv(16, (3, 3), padding="VALID")(x))
        x = Dropout(self.dropout_rate, self.together)(x, dropout)
        return nn.Dense(self.num_classes)(x.ravel())


class CNN28(_Network):
    """Classifies 28 x 28 images, the usual private MNIST network: 26,010 parameters for one channel and ten classes.

    Source: the network of paper 002's reference [8], Table XIII, also of the tutorials of TensorFlow Privacy and
    Opacus. Paper 000 names no network, so it is run on this one.
    """

    @nn.compact
    def __call__(self, image: jax.Array, dropout: bool = False) -> jax.Array:
        x = nn.relu(nn.Conv(16, (8, 8), strides=(2, 2), padding="SAME")(image))
        x = Dropout(self.dropout_rate, self.together)(x, dropout)
        x = nn.max_pool(x, (2, 2), strides=(1, 1))
        x = nn.relu(nn.Conv(32, (4, 4), strides=(2, 2), padding="VALID")(x))
        x = Dropout(self.dropout_rate, self.together)(x, dropout)
        x = nn.max_pool(x, (2, 2), strides=(1, 1))
        x = nn.relu(nn.Dense(32)(x.ravel()))
        x = Dropout(self.dropout_rate)(x, dropout)
        return nn.Dense(self.num_classes)(x)


class CNN32(_Network):
    """Classifies 32 x 32 images, the CIFAR-10 network of paper 003: 932,170 parameters at 3 channels, 10 classes.

    Source: paper 003, Table 1.
    """

    dropout_rate: float = 0.5

    @nn.compact
    def __call__(self, image: jax.Array, dropout: bool = False) -> jax.Array:
        x = image
        for _ in range(2):
            x = nn.relu(nn.Conv(64, (5, 5), padding="VALID")(x))
            x = Dropout(self.dropout_rate, self.together)(x, dropout)
            x = nn.max_pool(x, (2, 2), strides=(2, 2))
        x = nn.relu(nn.Dense(512)(x.ravel()))
        x = Dropout(self.dropout_rate)(x, dropout)
        return nn.Dense(self.num_classes)(x)


def model_for(image_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Returns the network for images [h, w, c] of 8 x 8, 28 x 28 or 32 x 32 pixels.

    Raises:
      InputError: another shape; fewer than two classes.
    """
    _validate.at_least(2, num_classes=num_classes)
    networks: dict[tuple[int, ...], type[CNN8 | CNN28 | CNN32]] = {(8, 8): CNN8, (28, 28): CNN28, (32, 32): CNN32}
    pixels = tuple(image_shape[:2])
    if len(image_shape) != 3 or pixels not in networks:
        wanted = "images [h, w, channels] of 8 x 8, 28 x 28 or 32 x 32 pixels"
        raise _validate.expected("image_shape", wanted, list(image_shape))
    return networks[pixels](num_classes)


def initial_parameters(key: jax.Array, model: nn.Module, image_shape: tuple[int, ...]) -> Any:
    """Draws fresh parameters (Flax's defaults: LeCun normal weights, zero biases) for images [h, w, c]."""
    return _initial(key, model=model, image_shape=tuple(image_shape))


@partial(jax.jit, static_argnames=("model", "image_shape"))
def _initial(key: jax.Array, *, model: nn.Module, image_shape: tuple[int, ...]) -> Any:
    return model.init(key, jnp.zeros(image_shape))["params"]


def logits(model: nn.Module) -> Callable[..., jax.Array]:
    """Returns ``logits(params, image, key=None) -> [num_classes]`` of ONE image; with a key dropout is active.

    In the forms of :func:`dpaudit.training.forms.quick`, as all that is made from it.
    """

    def network(params: Any, image: jax.Array, key: jax.Array | None = None) -> jax.Array:
        active: Any = {} if key is None else {"dropout": True, "rngs": {"dropout": key}}
        return jnp.asarray(model.apply({"params": params}, image, **active))

    return quick(network)


def cross_entropy(model: nn.Module) -> Callable[..., jax.Array]:
    """Returns ``loss(params, image, label, key=None) -> scalar``: -log softmax(logits)[label] of ONE example, in nats.

    With a key dropout is active, so that ``lambda params, example, key: loss(params, *example, key)`` is what
    ``dp_sgd(..., dropout=True)`` trains. A label that is no class gives NaN, for the loss and its gradient.
    """
    network = logits(model)

    def loss(params: Any, image: jax.Array, label: jax.Array, key: jax.Array | None = None) -> jax.Array:
        found = network(params, image, key)
        known = (label >= 0) & (label < found.size)
        return optax.softmax_cross_entropy_with_integer_labels(found + jnp.where(known, 0.0, jnp.nan), label)

    return loss


def gradient(model: nn.Module) -> Callable[[Any, jax.Array, jax.Array], jax.Array]:
    """Returns ``gradient(params, image, label) -> [d]``, the gradient of :func:`cross_entropy` as one vector.

    The order is that of ``jax.flatten_util.ravel_pytree``.
    """
    derivative = jax.grad(cross_entropy(model))

    def flat(params: Any, image: jax.Array, label: jax.Array) -> jax.Array:
        return ravel_pytree(derivative(params, image, label))[0]

    return flat


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
    """Trains without privacy: Adam on the mean cross-entropy of batches drawn with replacement.

    Step t draws its batch from ``fold_in(key, t)`` alone, so a longer run passes through the shorter one's
    parameters. The loop is Python's, around one compiled step: inside a compiled loop a CPU's convolutions are several
    times slower.

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
      InputError: a value out of range; no example, not one label per image, or a label that is no class.
    """
    steps, batch_size = _validate.at_least(0, steps=steps), _validate.at_least(1, batch_size=batch_size)
    _validate.positive(learning_rate=learning_rate)
    given = labels
    images, labels = _examples(images, labels)
    init_key, batch_key = jax.random.split(key)
    params = initial_parameters(init_key, model, images.shape[1:])
    classes = jax.eval_shape(logits(model), params, images[0]).size
    known = np.zeros(1, int) if isinstance(given, Tracer) else np.asarray(given)  # also where JAX traces what is known
    outside = known[(known < 0) | (known >= classes)]
    if outside.size:
        raise _validate.expected("labels", f"classes from 0 to {classes - 1}", int(outside[0]))
    state = params, optax.adam(learning_rate).init(params)
    for t in range(steps):
        state = _step(batch_key, t, state, images, labels, learning_rate, model=model, batch_size=batch_size)
    return state[0]


def accuracy(model: nn.Module, params: Any, images: Any, labels: Any, *, batch_size: int = 1000) -> float:
    """Returns the share of images whose largest logit is their label's; one with a NaN among its logits has none.

    Args:
      model: maps one image to logits.
      params: its parameters.
      images: [n, h, w, c], float.
      labels: [n], integer.
      batch_size: images on the device at a time.

    Raises:
      InputError: a value out of range; no example, or not one label per image.
    """
    batch_size = _validate.at_least(1, batch_size=batch_size)
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
    found = jax.vmap(logits(model), (None, 0))(params, images)
    numbers = ~jnp.isnan(found).any(axis=-1)  # the largest of NaN would be the first
    return jnp.sum((jnp.argmax(found, axis=-1) == labels) & numbers)


def _examples(images: Any, labels: Any) -> tuple[jax.Array, jax.Array]:
    images, labels = jnp.asarray(images), jnp.asarray(labels)
    if images.ndim != 4 or images.shape[0] < 1:
        raise _validate.expected("images", "an array of shape [n, h, w, c] with n >= 1", f"shape {list(images.shape)}")
    if labels.shape != images.shape[:1]:
        raise _validate.expected("labels", f"shape [{images.shape[0]}], one per image", f"shape {list(labels.shape)}")
    return images, labels
