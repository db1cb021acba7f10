"""The benchmark of federated rounds compares like with like."""

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpaudit.training import models
from experiments.bench import federated as bench
from experiments.bench.sides import SILENT, Network, as_torch, differences

M = 9  # clients


class Flat(nn.Module):
    """One dense layer."""

    @nn.compact
    def __call__(self, image: jax.Array) -> jax.Array:
        return nn.Dense(10)(image.ravel())


SMALL = Network(Flat(), Flat(), (8, 8, 1), 650)
GIVEN = bench.drawn(0, SMALL, M * bench.EXAMPLES)
SIDES = {
    "vmap(grad)": partial(bench.by_vmap, SMALL),
    "ours": partial(bench.ours, SMALL, M, bench.own_rows(M)),
}


@jax.jit
def gradients(given: bench.Given) -> Any:
    """One client after another, leaves [m, ...]."""
    loss = models.cross_entropy(SMALL.ours)

    def mean(params: Any, examples: Any) -> jax.Array:
        return jnp.mean(jax.lax.map(lambda example: loss(params, *example), examples))

    cut = jax.tree.map(lambda leaf: leaf.reshape(M, bench.EXAMPLES, *leaf.shape[1:]), (given.images, given.labels))
    return jax.lax.map(lambda examples: jax.grad(mean)(given.params, examples), cut)


@pytest.mark.parametrize("each", [True, False])
@pytest.mark.parametrize("side", SIDES)
def test_a_side_makes_the_round_of_a_loop_over_clients(side, each):
    @jax.jit
    def played(clip_norm: Any, noise_multiplier: Any) -> tuple[Any, Any]:
        return SIDES[side](each=each, clip_norm=clip_norm)(jax.random.key(1), GIVEN, noise_multiplier)

    found = gradients(GIVEN)
    found = np.stack([as_torch(jax.tree.map(lambda leaf, i=i: leaf[i], found), SMALL) for i in range(M)])
    norms = np.linalg.norm(found, axis=1)
    middle = float(np.median(norms))  # half of the clients are clipped
    params, mean = played(middle, SILENT)
    means = {"loop": np.minimum(1, middle / norms) @ found / M, side: as_torch(mean, SMALL)}
    means["wrong"] = as_torch(played(1.01 * middle, SILENT)[1], SMALL)
    apart = differences(means)
    assert apart[side] < 1e-5  # units are clipped a little below the clip norm
    assert 1e-3 < apart["wrong"] < 0.011
    step = jax.tree.map(lambda p, g: p - bench.LEARNING_RATE * g, GIVEN.params, mean)
    np.testing.assert_allclose(as_torch(params, SMALL), as_torch(step, SMALL), atol=1e-7)

    loud = 1e4  # a noise multiplier beside which no gradient is seen
    noise = as_torch(played(middle, loud)[1], SMALL) / (middle * loud / np.sqrt(M))
    assert abs(noise.std() - 1) < 4 / np.sqrt(2 * SMALL.parameters)  # four standard errors, 11%
