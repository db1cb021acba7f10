import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from dpaudit.training import models, per_example
from experiments.paper001.networks import CancerNetwork, DiabetesNetwork, MNISTNetwork, sign

KEY = jax.random.key(0)


@pytest.mark.parametrize(
    ("model", "shape", "parameters"),
    [
        (MNISTNetwork(), (28, 28, 1), 21_258),
        (MNISTNetwork(apart=True), (28, 28, 1), 141_738),
        (CancerNetwork(), (90,), 182),
        (DiabetesNetwork(), (8,), 642),
    ],
    ids=["MNIST", "MNIST, channels apart", "Cancer", "Diabetes"],
)
def test_parameters_are_the_paper_s(model, shape, parameters):
    shapes = jax.eval_shape(lambda key: model.init(key, jnp.zeros(shape))["params"], KEY)
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == parameters


def test_channels_apart_share_no_weights():
    shapes = jax.eval_shape(lambda key: MNISTNetwork(apart=True).init(key, jnp.zeros((28, 28, 1)))["params"], KEY)
    assert (16, 5, 5, 1, 32) in [leaf.shape for leaf in jax.tree.leaves(shapes)]


def test_sign_and_its_derivative():
    x = jnp.array([-2.0, -0.5, 0.0, 0.5, 2.0])
    np.testing.assert_array_equal(sign(x), [-1, -1, 1, 1, 1])
    np.testing.assert_array_equal(jax.vmap(jax.grad(sign))(x), [0, 1, 1, 1, 0])


def test_straight_through_gradients_are_clipped_by_the_library():
    model = DiabetesNetwork()
    params, loss = models.initial_parameters(KEY, model, (8,)), models.cross_entropy(model)
    batch = 3 * jax.random.normal(KEY, (6, 8)), jnp.arange(6) % 2

    @jax.jit
    def both(params, batch):
        gradients = jax.vmap(models.gradient(model), (None, 0, 0))(params, *batch)
        total, info = per_example.clipped_sum(lambda p, e: loss(p, *e), params, batch, clip_norm=1.0)
        return gradients, ravel_pytree(total)[0], info.norms

    gradients, total, found = map(np.asarray, both(params, batch))
    norms = np.linalg.norm(gradients, axis=1)
    np.testing.assert_allclose(found, norms, rtol=1e-4)
    np.testing.assert_allclose(total, (gradients * np.minimum(1, 1 / norms)[:, None]).sum(axis=0), atol=1e-5)
    assert (norms > 1).any()
