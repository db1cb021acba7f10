import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpaudit import _validate
from dpaudit.kernels import philox
from dpaudit.training import models
from dpaudit.training.dropout import mc_dropout
from dpaudit.training.dropout.mc_dropout import Network, Statistics
from dpaudit.training.models import kept

KEY = jax.random.key(0)
PARAMS = jax.random.normal(jax.random.key(1), (64, 8)), jax.random.normal(jax.random.key(2), (10, 64)) / 8
IMAGES = jax.random.uniform(jax.random.key(3), (5, 8))
SMALL = 5e-3  # MiB: a few samples at a time
MODEL = models.CNN8(dropout_rate=0.5)


def network(params: Any, image: jax.Array, key: jax.Array | None = None) -> jax.Array:
    """Two dense layers with dropout between them; compiled sooner than a convolution."""
    hidden = jax.nn.relu(params[0] @ image)
    if key is not None:
        hidden = jnp.where(kept(key, hidden.shape, 0.5), 2 * hidden, 0)
    return jax.nn.softmax(params[1] @ hidden)


def linear(rate: float) -> Network:
    """W dropout(x), no softmax."""

    def network(params: jax.Array, x: jax.Array, key: jax.Array | None = None) -> jax.Array:
        return params @ (x if key is None else jnp.where(kept(key, x.shape, rate), x / (1 - rate), 0))

    return network


@pytest.mark.parametrize("rate", [0.3, 0.5])
def test_mean_and_variance_of_one_layer_are_the_closed_form(rate: float) -> None:
    weights = np.asarray(jax.random.normal(jax.random.key(3), (3, 40)))
    inputs = np.abs(np.asarray(jax.random.normal(jax.random.key(4), (4, 40))))  # skewed: a wrong sign would show
    samples = 4_000

    def deviations(rate_used: float) -> tuple[float, float]:
        """The largest z of the means and of the variances."""
        found = mc_dropout.statistics(KEY, linear(rate_used), weights, inputs, samples=samples)
        variance = rate / (1 - rate) * np.square(inputs) @ np.square(weights).T  # of W dropout(x), diagonal
        # A sample variance's own, from the fourth moment of a sum of independent terms: 3 v^2 and the excess of each.
        excess = (1 - 6 * rate * (1 - rate)) * rate / (1 - rate) ** 3 * inputs**4 @ (weights**4).T
        z_mean = (np.asarray(found.mean) - inputs @ weights.T) / np.sqrt(variance / samples)
        z_variance = (np.asarray(found.variance) - variance) / np.sqrt((2 * variance**2 + excess) / samples)
        return float(np.abs(z_mean).max()), float(np.abs(z_variance).max())

    assert max(deviations(rate)) < 4
    assert deviations(rate - 0.05)[1] > 4
    predicted = mc_dropout.predict(linear(rate), weights, inputs)
    np.testing.assert_allclose(predicted, inputs @ weights.T, rtol=1e-4, atol=1e-5)


def test_covariance_is_equation_4_to_the_letter() -> None:
    outputs = mc_dropout.sample(KEY, network, PARAMS, IMAGES, samples=7)
    y = np.asarray(outputs, np.float64)
    wanted = [
        0.1 * np.eye(10) + sum(np.outer(s, s) for s in y[:, i]) / 7 - np.outer(y[:, i].mean(0), y[:, i].mean(0))
        for i in range(len(IMAGES))
    ]
    np.testing.assert_allclose(mc_dropout.covariance(outputs, beta=0.1), wanted, atol=1e-6)
    diagonal = np.diagonal(mc_dropout.covariance(outputs), axis1=-2, axis2=-1)
    np.testing.assert_allclose(mc_dropout.summarise(outputs).variance, diagonal, atol=1e-7)


@pytest.mark.integration
@pytest.mark.parametrize("samples", [1, 13, 64])
def test_streamed_statistics_are_those_of_all_samples(samples: int) -> None:
    outputs = mc_dropout.sample(KEY, network, PARAMS, IMAGES, samples=samples)
    assert outputs.shape == (samples, len(IMAGES), 10)
    y = np.asarray(outputs, np.float64)
    for memory in (SMALL, 64.0):
        found = mc_dropout.statistics(KEY, network, PARAMS, IMAGES, samples=samples, memory_mib=memory)
        wanted = Statistics(y.mean(0), y.var(0), y.min(0), y.max(0))
        jax.tree.map(
            lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=1e-7), found, wanted
        )
    np.testing.assert_allclose(found.std, y.std(0), rtol=2e-3, atol=1e-5)


def test_no_digits_cancel_where_the_mean_is_far_from_zero() -> None:
    def far(params: Any, image: jax.Array, key: jax.Array) -> jax.Array:
        return 1_000 + jax.random.normal(key, (1,))

    outputs = mc_dropout.sample(KEY, far, PARAMS, IMAGES, samples=5_000)
    found = mc_dropout.statistics(KEY, far, PARAMS, IMAGES, samples=5_000, memory_mib=1e-3)
    np.testing.assert_allclose(found.variance, np.asarray(outputs, np.float64).var(axis=0), rtol=1e-3)


@pytest.mark.integration
def test_masks_differ_between_samples_and_images_and_are_the_same_however_cut() -> None:
    same = jnp.broadcast_to(IMAGES[0], IMAGES.shape)
    whole = np.asarray(mc_dropout.sample(KEY, network, PARAMS, same, samples=9))
    assert len(np.unique(whole.reshape(-1, 10), axis=0)) == 9 * len(IMAGES)
    for images, samples, memory in ((same, 9, SMALL), (same, 4, 64.0), (same[:2], 9, 64.0)):
        part = mc_dropout.sample(KEY, network, PARAMS, images, samples=samples, memory_mib=memory)
        np.testing.assert_allclose(part, whole[:samples, : len(images)], rtol=1e-5)
    assert (np.asarray(mc_dropout.sample(jax.random.key(9), network, PARAMS, same, samples=9)) != whole).all()


@pytest.mark.integration
def test_a_sample_is_one_pass_with_dropout_and_many_networks_are_a_vmap() -> None:
    cold, images = mc_dropout.probabilities(MODEL, temperature=0.5), jax.random.uniform(KEY, (2, 8, 8, 1))
    params = jax.vmap(lambda key: models.initial_parameters(key, MODEL, (8, 8, 1)))(jax.random.split(KEY, 2))
    keys = jax.random.split(jax.random.key(5), 2)

    @jax.jit
    def by_hand(key: jax.Array, params: Any) -> list[jax.Array]:
        """Logits of image 1, without dropout and of its sample 3."""
        rngs = {"dropout": jax.random.fold_in(jax.random.fold_in(philox.from_key(key), 1), 3)}
        logits = [MODEL.apply({"params": params}, images[1], dropout=active, rngs=rngs) for active in (False, True)]
        return [jnp.asarray(x) for x in logits]

    sampled = jax.vmap(lambda key, params: mc_dropout.sample(key, cold, params, images, samples=4))(keys, params)
    predicted = jax.vmap(lambda params: mc_dropout.predict(cold, params, images))(params)
    for i in range(2):
        alone = jax.tree.map(lambda leaf, i=i: leaf[i], params)
        for found, logits in zip((predicted[i, 1], sampled[i, 3, 1]), by_hand(keys[i], alone), strict=True):
            exponents = np.exp(2 * np.asarray(logits, np.float64))
            np.testing.assert_allclose(found, exponents / exponents.sum(), rtol=1e-4)


def test_any_number_of_images_is_predicted_whatever_fits() -> None:
    """Also five of which three fit at once: two even groups of three would hold six."""
    classes, memory = mc_dropout.probabilities(MODEL), 0.08
    params = models.initial_parameters(KEY, MODEL, (8, 8, 1))
    images = jax.random.uniform(KEY, (13, 8, 8, 1))
    alone = jax.jit(jax.vmap(classes, (None, 0)))(params, images)
    for count in range(1, 14):
        told = jax.eval_shape(
            lambda some: mc_dropout.predict(classes, params, some, memory_mib=memory), images[:count]
        )
        assert told.shape == (count, 10)
    for count, room in ((5, memory), (13, 0.03)):  # in one group; in a first one of 6 and one of 7
        found = mc_dropout.predict(classes, params, images[:count], memory_mib=room)
        np.testing.assert_allclose(found, alone[:count], rtol=1e-4)


def products(jaxpr: Any) -> int:
    """Multiplications in all matrix products of a program, loops counted as often as they run."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            total += math.prod(equation.outvars[0].aval.shape) * math.prod(left[i] for i in contracted)
        times = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        for inner in jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")):
            if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                total += times * products(getattr(inner, "jaxpr", inner))
    return total


@pytest.mark.parametrize("call", [mc_dropout.sample, mc_dropout.statistics])
def test_a_network_without_dropout_is_refused(call: Callable[..., Any]) -> None:
    """Its samples would all be one, and their standard deviation 0, as if it were sure."""
    message = "^network: expected a network whose output depends on its key, by dropout, got one that draws nothing: "
    without = mc_dropout.probabilities(models.CNN8(dropout_rate=0.0))
    params = models.CNN8().init(KEY, jnp.ones((8, 8, 1)))["params"]
    for given in ((without, params, jnp.ones((2, 8, 8, 1))), (lambda p, x, key=None: p @ x, jnp.ones((3, 8)), IMAGES)):
        with pytest.raises(_validate.InputError, match=message + "its 7 samples would all be one"):
            call(KEY, *given, samples=7)


@pytest.mark.parametrize("call", [mc_dropout.sample, mc_dropout.statistics])
def test_what_lies_before_the_first_dropout_is_computed_once(call: Callable[..., Any]) -> None:
    """The network of paper 003: 7.5 of its 29.6 million multiplications and additions are the first convolution's."""
    model, samples = models.CNN32(), 40
    image = jax.ShapeDtypeStruct((2, 32, 32, 3), jnp.float32)
    params = jax.eval_shape(lambda: models.initial_parameters(KEY, model, (32, 32, 3)))
    cnn = mc_dropout.probabilities(model)
    once, behind = 28 * 28 * 64 * 75, 10 * 10 * 64 * 1600 + 1600 * 512 + 512 * 10
    for memory in (1e4, 40.0):
        traced = jax.make_jaxpr(lambda p, x, m=memory: call(KEY, cnn, p, x, samples=samples, memory_mib=m))
        found = products(traced(params, jnp.zeros(image.shape)).jaxpr)
        assert found == 2 * (once + samples * behind)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: mc_dropout.sample(KEY, network, PARAMS, IMAGES, samples=0),
            "samples: expected a whole .* >= 1, got 0",
        ),
        (
            lambda: mc_dropout.statistics(KEY, network, PARAMS, IMAGES[:0], samples=1),
            r"images: .* n >= 1, got shape \[0",
        ),
        (lambda: mc_dropout.predict(network, PARAMS, IMAGES, memory_mib=0), "memory_mib: expected a finite .* got 0"),
        (
            lambda: mc_dropout.probabilities(MODEL, temperature=0.0),
            "temperature: expected a finite number > 0, got 0.0",
        ),
        (lambda: mc_dropout.covariance(IMAGES, beta=-1.0), "beta: expected a finite number > 0, got -1.0"),
        (lambda: models.CNN32(dropout_rate=1.0), r"dropout_rate: expected a number in \[0, 1\), got 1.0"),
        (lambda: models.CNN8(dropout_rate=-0.1), r"dropout_rate: expected a number in \[0, 1\), got -0.1"),
    ],
)
def test_refuses(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(_validate.InputError, match=message):
        call()
