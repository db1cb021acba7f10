"""Tests Proposition 2 where its proof holds: a network of two classes, and Eqs. (4) and (5) beside its true gradients.

With p the probability of the true label y = 1, z+ and z- the two logits and L = -log p, the paper writes
dL/dW = (p - 1) dz+/dW under y = 1 (Eq. 4) and -p dz-/dW under y = 0 (Eq. 5), and expects w+ = -w- of a trained model.
The whole chain rule gives (p - 1) d(z+ - z-)/dW and p d(z+ - z-)/dW: opposite at every stage of training, of norms
(1 - p) G and p G. The loss of two classes is computed as log(1 + exp(-(z+ - z-))), which keeps 1 - p apart from 0; a
client's softmax does not, so its gradients are told beside.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.tree_util import Partial

from dpaudit import data, oracle
from dpaudit.audits import craft, engines
from dpaudit.audits.ldp_client import CLIP_NORM
from dpaudit.data import Dataset
from dpaudit.training import models
from experiments.common import Rows

DIGITS = (0, 1)  # the two classes
EPSILON = 4.0


def two_classes(rows: Rows, name: str, counts: Sequence[int], count: int) -> None:
    """Angles between the two labels' gradients, their norms, and right guesses, after each pre-training."""
    train, test = (_two(data.load(name, split=split, data_dir=rows.data_dir)) for split in ("train", "test"))
    model = models.model_for(train.inputs.shape[1:], 2)
    gradient, logits = models.gradient(model), models.logits(model)

    def loss(params: Any, image: jax.Array, label: jax.Array) -> jax.Array:
        found = logits(params, image)
        return jax.nn.softplus(found[1 - label] - found[label])

    images, labels = test.inputs[:count], test.labels[:count]
    scale = f"{len(images):,} images of the digits {DIGITS[0]} and {DIGITS[1]}"
    for steps in counts:
        params = models.pretrain(jax.random.key(rows.seed), model, train.inputs, train.labels, steps=steps)

        def angles(params: Any, image: jax.Array, label: jax.Array) -> dict[str, jax.Array]:
            own, other = (ravel_pytree(jax.grad(loss)(params, image, y))[0] for y in (label, 1 - label))
            client = gradient(params, image, label), gradient(params, image, 1 - label)
            plus, minus = (
                ravel_pytree(jax.grad(lambda p, z=z: logits(p, image)[z])(params))[0] for z in (label, 1 - label)
            )
            p = jax.nn.softmax(logits(params, image))[label]
            found = {
                "true": oracle.geometry(own, other),
                "client": oracle.geometry(*client),
                "equations": oracle.geometry((p - 1) * plus, -p * minus),
                "equation 4": oracle.geometry((p - 1) * plus, own),
                "equation 5": oracle.geometry(-p * minus, other),
            }
            return {of: angle for of, (_, _, angle) in found.items()} | {"norms": found["true"][0] / found["true"][1]}

        found = jax.jit(jax.vmap(angles, in_axes=(None, 0, 0)))(params, images, labels)
        shared = {"dataset": train.label, "steps": steps}
        for of in ("true", "client", "equations", "equation 4", "equation 5"):
            middle, low, high = np.degrees(np.quantile(found[of], [0.5, 0.1, 0.9]))
            rows.add("two_class_angle_degrees", shared | {"between": of}, middle, (low, high), scale=scale)
        middle, low, high = np.quantile(found["norms"], [0.5, 0.1, 0.9])
        rows.add("two_class_norm_ratio", shared, middle, (low, high), scale=scale)
        (last,) = (leaf for leaf in jax.tree.leaves(params) if leaf.ndim == 2 and leaf.shape[1] == 2)
        weights = float(np.degrees(oracle.geometry(last[:, 0], last[:, 1])[2]))
        rows.add("two_class_angle_degrees", shared | {"between": "weights"}, weights, scale="w+ and w-")
        flips = craft.label_flip(Partial(gradient, params), images, labels, 2)
        pairs = engines.pairs(jax.random.key(rows.seed + 1), flips, count)
        fpr, fnr = oracle.cosine_rates(pairs, epsilon=EPSILON, clip_norm=CLIP_NORM)
        each = 100 * (1 - (fpr + fnr) / 2)
        setting = shared | {"clip_norm": CLIP_NORM, "epsilon": EPSILON}
        spread = np.quantile(each, [0.1, 0.9]).tolist()
        rows.add("two_class_accuracy_percent", setting, each.mean(), spread, scale=f"closed form over {count:,} pairs")
    rows.finish_part("two classes")


def _two(found: Dataset) -> Dataset:
    """Keeps the records of ``DIGITS``, labelled 0 and 1."""
    kept = np.isin(found.labels, DIGITS)
    labels = (found.labels[kept] == DIGITS[1]).astype(np.int32)
    return dataclasses.replace(found, inputs=found.inputs[kept], labels=labels, num_classes=2)
