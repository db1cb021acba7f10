"""Times sides in turn, and computes what they compare: a batch's gradient, plain or clipped, and a trained network."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpaudit.training import dp_sgd, models, per_example, sampling
from experiments.common import Rows, answering, seconds

PEERS = Path(__file__).parent / "peers"
CLIP_NORM = 1.0
NOISE_MULTIPLIER = 1.0
LEARNING_RATE = 0.1
DROPOUT_RATE = 0.5  # in trainings; gradients and sums are without dropout
MICROBATCH = 16
CHECKED = 2  # steps of a training in which nothing is drawn, that all sides must end alike
SILENT = 1e-9  # a noise multiplier of which float32 shows nothing

Side = Callable[[], float]  # one call, in seconds


class FlaxCNN8(nn.Module):
    """:class:`dpaudit.training.models.CNN8` as users write it, for images [..., 8, 8, 1]; same parameters."""

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        x = nn.max_pool(nn.relu(nn.Conv(8, (3, 3), padding="SAME")(images)), (2, 2), strides=(2, 2))
        x = nn.relu(nn.Conv(16, (3, 3), padding="VALID")(x))
        return nn.Dense(10)(x.reshape(*x.shape[:-3], -1))


class FlaxCNN28(nn.Module):
    """:class:`dpaudit.training.models.CNN28` as users write it, for images [..., 28, 28, 1]; same parameters."""

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        x = nn.relu(nn.Conv(16, (8, 8), strides=(2, 2), padding="SAME")(images))
        x = nn.max_pool(x, (2, 2), strides=(1, 1))
        x = nn.relu(nn.Conv(32, (4, 4), strides=(2, 2), padding="VALID")(x))
        x = nn.max_pool(x, (2, 2), strides=(1, 1))
        x = nn.relu(nn.Dense(32)(x.reshape(*x.shape[:-3], -1)))
        return nn.Dense(10)(x)


class FlaxCNN32(nn.Module):
    """:class:`dpaudit.training.models.CNN32` as users write it, for images [..., 32, 32, 3]; same parameters."""

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        x = images
        for _ in range(2):
            x = nn.max_pool(nn.relu(nn.Conv(64, (5, 5), padding="VALID")(x)), (2, 2), strides=(2, 2))
        x = nn.relu(nn.Dense(512)(x.reshape(*x.shape[:-3], -1)))
        return nn.Dense(10)(x)


class Network(NamedTuple):
    """One network, as ours and as users write it, without dropout."""

    ours: nn.Module
    flax: nn.Module
    image_shape: tuple[int, ...]
    parameters: int


NETWORKS = {
    "CNN8": Network(models.CNN8(dropout_rate=DROPOUT_RATE), FlaxCNN8(), (8, 8, 1), 1_898),
    "CNN28": Network(models.CNN28(dropout_rate=DROPOUT_RATE), FlaxCNN28(), (28, 28, 1), 26_010),
    "CNN32": Network(models.CNN32(dropout_rate=DROPOUT_RATE), FlaxCNN32(), (32, 32, 3), 932_170),
}


class Batch(NamedTuple):
    """What every side is given."""

    params: Any
    images: jax.Array  # [n, h, w, c]
    labels: jax.Array  # [n]


def batch(key: jax.Array, network: Network, size: int) -> Batch:
    """Initial parameters, images of noise and random labels."""
    init_key, image_key, label_key = jax.random.split(key, 3)
    params = models.initial_parameters(init_key, network.ours, network.image_shape)
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == network.parameters
    images = jax.random.uniform(image_key, (size, *network.image_shape))
    return Batch(params, images, jax.random.randint(label_key, (size,), 0, 10))


def plain_gradients(network: Network) -> dict[str, Callable[..., Any]]:
    """``gradient(params, images, labels)`` of the mean loss."""
    loss = models.cross_entropy(network.ours)

    def mean(params: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
        return jnp.mean(jax.vmap(loss, (None, 0, 0))(params, images, labels))

    def in_microbatches(params: Any, images: jax.Array, labels: jax.Array) -> Any:
        def add(total: Any, part: Any) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, jax.grad(mean)(params, *part)), None

        parts = jax.tree.map(lambda x: x.reshape(-1, MICROBATCH, *x.shape[1:]), (images, labels))
        total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), parts)
        return jax.tree.map(lambda leaf: leaf * MICROBATCH / len(images), total)

    return {
        "ours, plain": jax.grad(mean),
        f"ours, plain, microbatches of {MICROBATCH}": in_microbatches,
        "flax.linen, plain": jax.grad(_batch_loss(network.flax)),
    }


def by_vmap(loss: Callable[..., jax.Array], clip_norm: Any) -> Callable[..., Any]:
    """``total(params, images, labels)``: clipped gradients as one would write them, all of them held at once."""

    def total(params: Any, images: jax.Array, labels: jax.Array) -> Any:
        gradients = jax.vmap(jax.grad(loss), (None, 0, 0))(params, images, labels)
        factors = jnp.minimum(1, clip_norm / jax.vmap(optax.global_norm)(gradients))
        return jax.tree.map(lambda leaf: jnp.tensordot(factors, leaf, 1), gradients)

    return total


def clipped_sums(network: Network, clip_norm: float = CLIP_NORM) -> dict[str, Callable[..., Any]]:
    """``total(params, images, labels)``: the sum of clipped gradients, as each library's user would have it."""
    loss, batch_loss = models.cross_entropy(network.ours), _batch_loss(network.flax)

    def ours(loss: Callable) -> Callable:
        def total(params: Any, images: jax.Array, labels: jax.Array) -> Any:
            return per_example.clipped_sum(lambda p, e: loss(p, *e), params, (images, labels), clip_norm=clip_norm)[0]

        return total

    def jax_privacy(loss: Callable, **how: Any) -> Callable:
        from jax_privacy import clipping  # here, because the environment of accelerators lacks it

        return clipping.clipped_grad(loss, l2_clip_norm=clip_norm, batch_argnums=(1, 2), **how)

    return {
        "vmap(grad) and clip": by_vmap(loss, clip_norm),
        "ours, clipped": ours(loss),
        "ours, clipped, a user's network": ours(batch_loss),
        "jax-privacy, whole batch": jax_privacy(batch_loss),
        f"jax-privacy, microbatches of {MICROBATCH}": jax_privacy(batch_loss, microbatch_size=MICROBATCH),
        "jax-privacy, microbatches of 1": jax_privacy(batch_loss, microbatch_size=1),
        f"jax-privacy, our layers, microbatches of {MICROBATCH}": jax_privacy(
            loss, keep_batch_dim=False, microbatch_size=MICROBATCH
        ),
    }


def differences(totals: dict[str, Any]) -> dict[str, float]:
    """|total - first| / |first| of every total, L2 over all parameters."""
    first = next(iter(totals.values()))
    whole = optax.global_norm(first)
    return {
        name: float(optax.global_norm(jax.tree.map(jnp.subtract, total, first)) / whole)
        for name, total in totals.items()
    }


def refuse_different(apart: dict[str, float], within: float = 1e-4) -> None:
    """Ends a benchmark, before anything is timed, whose sides do not compute the same thing.

    Args:
      apart: how far each side is from the first.
      within: what rounding explains.
    """
    if not all(difference < within for difference in apart.values()):  # NaN is below nothing
        raise AssertionError(f"sides that compute different things: {apart}")


def as_torch(params: Any, network: Network) -> np.ndarray:
    """Returns the weights in one vector, in the order of the same network in PyTorch, where channels come before
    pixels.

    Args:
      params: of layers in their order; kernels [h, w, in, out] of convolutions, [in, out] of dense layers.
      network: whose images have the channels that the first layer sees.
    """
    vectors, channels = [], network.image_shape[-1]
    for layer in params.values():
        kernel, bias = np.asarray(layer["kernel"]), np.asarray(layer["bias"])
        if kernel.ndim == 2:  # of a dense layer: the whole image, square, by its channels
            side = math.isqrt(len(kernel) // channels)
            kernel = kernel.reshape(side, side, channels, -1)
        assert kernel.shape[2] == channels, f"a kernel {kernel.shape} behind {channels} channels"
        vectors += [kernel.transpose(3, 2, 0, 1).ravel(), bias]
        channels = bias.size
    return np.concatenate(vectors)


def training(network: Network, images: Any, labels: Any, *, batch_size: int, steps: int) -> Callable[..., Any]:
    """``run(key) -> params``: DP-SGD with Poisson batches and dropout, from initial parameters of its own."""
    data = jnp.asarray(images), jnp.asarray(labels)
    trainer, batches = _trainer(network, len(labels), batch_size, NOISE_MULTIPLIER, dropout=True)

    def run(key: jax.Array) -> Any:
        init_key, train_key = jax.random.split(key)
        start = trainer.init(models.initial_parameters(init_key, network.ours, network.image_shape))
        return dp_sgd.train(train_key, trainer, start, data, batches, steps=steps)[0].params

    return run


def trained(network: Network, given: Batch, *, batch_size: int) -> Any:
    """Returns the parameters after :data:`CHECKED` steps on the first batch, all of it taken each time, with nothing
    drawn."""
    data = given.images[:batch_size], given.labels[:batch_size]
    trainer, batches = _trainer(network, batch_size, batch_size, SILENT, dropout=False)
    run = jax.jit(partial(dp_sgd.train, trainer=trainer, data=data, sampling=batches, steps=CHECKED))
    return run(jax.random.key(0), state=trainer.init(given.params))[0].params


def _trainer(
    network: Network, examples: int, batch_size: int, noise_multiplier: float, *, dropout: bool
) -> tuple[dp_sgd.Trainer, sampling.Sampling]:
    loss = models.cross_entropy(network.ours)

    def active(params: Any, example: Any, key: jax.Array) -> jax.Array:
        return loss(params, *example, key)

    def inactive(params: Any, example: Any) -> jax.Array:
        return loss(params, *example)

    trainer = dp_sgd.dp_sgd(
        active if dropout else inactive,
        clip_norm=CLIP_NORM,
        noise_multiplier=noise_multiplier,
        batch_size=batch_size,
        optimizer=optax.sgd(LEARNING_RATE),
        dropout=dropout,
    )
    return trainer, sampling.poisson(examples=examples, batch_size=batch_size)


def timed(run: Callable[..., Any], *arguments: Any) -> Side:
    return lambda: seconds(lambda: run(*arguments))


def in_turn(timed: dict[str, Side], rounds: int) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Seconds of every side's first call; and in each round of the second of two calls, the first warming it up."""
    first = {side: run() for side, run in timed.items()}
    each = [{side: (run(), run())[1] for side, run in timed.items()} for _ in range(rounds)]
    return first, {side: [times[side] for times in each] for side in timed}


def ratio(
    rows: Rows, quantity: str, setting: dict[str, Any], measured: dict[str, Any], over: str, under: str, scale: str
) -> None:
    """Of two sides, round by round."""
    values = np.divide(measured[over], measured[under])
    rows.spread(quantity, setting | {"of": over, "to": under}, values, scale=scale)


class Peer(NamedTuple):
    """What another process offers."""

    sides: dict[str, Side]  # by name
    settings: dict[str, dict[str, Any]]  # of its sides
    computed: dict[str, np.ndarray]  # by its sides, in the order of :func:`as_torch`
    told: dict[str, Any]  # all that it answered at first


@contextmanager
def peer(command: Sequence[str] | None, asked: dict[str, Any], prefix: str = "") -> Iterator[Peer]:
    """Starts a process that is told what is wanted and then times one call of a side for every line that names it.

    Args:
      command: that starts it; None offers no sides.
      asked: JSON, with the ``weights`` of a network in the order of :func:`as_torch`.
      prefix: of its sides' names.
    """
    if command is None:
        yield Peer({}, {}, {}, {})
        return
    with answering(command) as ask:
        told = ask(json.dumps(asked))
        assert told["parameters"] == len(asked["weights"])
        sides = {prefix + side: partial(ask, side) for side in told["settings"]}
        settings = {prefix + side: how for side, how in told["settings"].items()}
        computed = {prefix + side: np.array(vector) for side, vector in told.get("computed", {}).items()}
        yield Peer(sides, settings, computed, told)


def torch(python: str | None, script: str) -> list[str] | None:
    """Returns the command of a peer in PyTorch; None without an interpreter that has it, and says so."""
    if python is None:
        print(f"{script}: no torch; name an interpreter that has it and opacus with --torch-python")
        return None
    return [python, str(PEERS / script)]


def channels_first(images: Any) -> list[Any]:
    """Images [n, h, w, c] as PyTorch has them, in lists."""
    return np.moveaxis(np.asarray(images), -1, 1).tolist()


def _batch_loss(model: nn.Module) -> Callable[..., Any]:
    def loss(params: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
        logits: Any = model.apply({"params": params}, images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    return loss
