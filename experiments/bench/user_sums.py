"""Clips users for the benchmark of personalization: all of a user's examples as one, ours beside jax-privacy's."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax_privacy import clipping

from dpaudit.personalization.user_level import clipped_sum
from dpaudit.training import models
from experiments.bench.sides import FlaxCNN28, FlaxCNN32, by_vmap, differences, in_turn, ratio, refuse_different, timed
from experiments.common import Rows

EXAMPLES = 5  # of a user, as in "clip size"
CLIP_NORM = 0.5
OURS = "ours"
MICROBATCHES = (1, 16)  # users


class MLP(nn.Module):
    """784 - 128 - 10: 101,770 parameters."""

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        x = nn.relu(nn.Dense(128)(images.reshape(*images.shape[:-3], -1)))
        return nn.Dense(10)(x)


NETWORKS = {  # with the shape of an image; all of Flax's own layers, the same model for every side
    "MLP": (MLP(), (28, 28, 1)),
    "FlaxCNN28": (FlaxCNN28(), (28, 28, 1)),
    "FlaxCNN32": (FlaxCNN32(), (32, 32, 3)),
}


def sums(rows: Rows, key: jax.Array, name: str, users: int, rounds: int) -> None:
    """Times one cohort's sum of clipped means by every side; they are asserted to agree."""
    model, shape = NETWORKS[name]
    init_key, image_key, label_key = jax.random.split(key, 3)
    params = models.initial_parameters(init_key, model, shape)
    images = jax.random.uniform(image_key, (users, EXAMPLES, *shape))
    labels = jax.random.randint(label_key, (users, EXAMPLES), 0, 10)
    runs = {side: jax.jit(total) for side, total in totals(model).items()}
    apart = differences({side: total(params, images, labels) for side, total in runs.items()})
    refuse_different(apart, within=3e-4)
    _, times = in_turn({side: timed(total, params, images, labels) for side, total in runs.items()}, rounds)
    setting = {"network": name, "users": users, "examples": EXAMPLES}
    scale = f"{rounds} rounds, all sides in turn"
    for side, values in times.items():
        rows.spread("user_sum_seconds", setting | {"side": side}, values, scale=scale)
        if side != OURS:
            ratio(rows, "user_sum_ratio", setting, times, side, OURS, scale)
    rows.finish_part(f"user-level sums, {name}")


def totals(model: nn.Module) -> dict[str, Callable[..., Any]]:
    """``total(params, images [m, w, ...], labels [m, w])`` of every side."""
    loss = models.cross_entropy(model)

    def ours(params: Any, images: jax.Array, labels: jax.Array) -> Any:
        return clipped_sum(
            lambda params, example: loss(params, *example),
            params,
            (images, labels),
            jnp.ones(labels.shape),
            clip_norm=CLIP_NORM,
            mean=True,
            most=len(labels),
        )

    def of_user(params: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
        logits: Any = model.apply({"params": params}, images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    def jax_privacy(**how: Any) -> Callable[..., Any]:
        return clipping.clipped_grad(
            of_user, l2_clip_norm=CLIP_NORM, batch_argnums=(1, 2), keep_batch_dim=False, **how
        )

    return {
        OURS: ours,
        "vmap(grad) and clip": by_vmap(of_user, CLIP_NORM),
        "jax-privacy, all users": jax_privacy(),
        **{f"jax-privacy, microbatches of {size}": jax_privacy(microbatch_size=size) for size in MICROBATCHES},
    }
