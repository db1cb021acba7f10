"""The benchmark of dropout samples compares like with like."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpaudit._engine.programs import record
from dpaudit.kernels import philox
from dpaudit.training import models
from dpaudit.training.dropout import mc_dropout
from dpaudit.training.models import kept
from experiments.bench import mc_dropout as bench
from experiments.bench.sides import NETWORKS, batch, differences

KEY = jax.random.key(0)


@pytest.mark.parametrize("name", bench.PRODUCTS)
def test_the_products_are_those_of_the_network(name):
    network = NETWORKS[name]
    params = jax.eval_shape(lambda: models.initial_parameters(KEY, network.ours, network.image_shape))
    arguments = params, jnp.zeros(network.image_shape), KEY
    tape = record(mc_dropout.probabilities(network.ours), *arguments)
    shapes: dict[Any, tuple[int, ...]] = {slot: np.shape(leaf) for slot, leaf in enumerate(jax.tree.leaves(arguments))}
    found = []
    for step in tape.steps:
        shapes.update((slot, shape.shape) for slot, shape in zip(step.outputs, step.shapes, strict=True))
        if step.primitive.name == "dot_general":
            (*rows, inner), (_, columns) = (shapes[slot] for slot in step.inputs)
            found.append((math.prod(rows), inner, columns))
    before, behind = bench.PRODUCTS[name]
    assert found == [*before, *behind]


def test_all_products_are_done_as_often_as_they_are_counted():
    images, samples = 2, 6
    before, behind = bench.PRODUCTS["CNN8"]
    wanted = [(images, shape) for shape in before] + [(images * samples, shape) for shape in behind]
    counted = {n: times * m for times, (m, _, n) in wanted}
    for run in (
        bench.multiplied(KEY, bench.PRODUCTS["CNN8"], images, samples),
        bench.convolved(KEY, "CNN8", images, samples),
    ):
        done = [product.reshape(-1, product.shape[-1]) for product in run()]
        assert {n: sum(len(rows) for rows in done if rows.shape[1] == n) for n in counted} == counted


def test_a_plain_vmap_makes_the_same_samples():
    def network(params, image, key=None):
        return params @ (image if key is None else jnp.where(kept(key, image.shape, 0.5), 2 * image, 0))

    params, images = jax.random.normal(KEY, (3, 8)), jax.random.normal(jax.random.key(1), (2, 8))
    plain = jax.jit(bench.by_vmap(network, 5, 2))
    runs = {"ours": mc_dropout.sample(KEY, network, params, images, samples=5)}
    for side, key in (("vmap", KEY), ("wrong", jax.random.key(2))):
        runs[side] = plain(philox.from_key(key), params, images)
    apart = differences(runs)
    assert apart["vmap"] < 1e-6
    assert apart["wrong"] > 0.1


def test_a_peer_that_is_another_network_or_draws_by_another_law_is_refused():
    given, name, samples = batch(KEY, NETWORKS["CNN8"], bench.IMAGES), "CNN8", 200
    network = mc_dropout.probabilities(NETWORKS[name].ours)
    logits = jax.vmap(models.logits(NETWORKS[name].ours), (None, 0))(given.params, given.images)
    found, other = (
        mc_dropout.statistics(jax.random.key(seed), network, given.params, given.images, samples=samples)
        for seed in (1, 2)
    )
    peer = {"logits": logits, "mean": other.mean, "variance": other.variance}
    laws = bench.of_laws(peer, name, given, found, samples)
    assert laws is not None
    assert laws.logits == 0
    assert 0.5 < laws.means < bench.SAME_LAW
    assert bench.of_laws({}, name, given, found, samples) is None
    with pytest.raises(AssertionError, match=r"different things: \{'logits of torch': "):
        bench.of_laws(peer | {"logits": logits[:, ::-1]}, name, given, found, samples)
    with pytest.raises(AssertionError, match=r"different things: \{'means of torch, in standard errors': "):
        bench.of_laws(peer | {"mean": jnp.roll(other.mean, 1, axis=1)}, name, given, found, samples)
