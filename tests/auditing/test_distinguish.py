"""What an observer computes from a release: Eq. (3) with its ties, trees, and refusals that name the reason."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpaudit import Mechanism, _validate, distinguish
from dpaudit.mechanisms import ldp_sgd
from tests import by_hand

KEY = jax.random.key(0)
IDENTITY = Mechanism(lambda key, x: x)


def test_cosine_is_equation_3_and_gives_ties_to_the_first():
    rng = np.random.default_rng(0)
    for scale0, scale1 in ((1.0, 1.0), (1e-6, 50.0), (0.0, 2.0), (3.0, 0.0)):
        g0, g1, z = scale0 * rng.normal(size=3), scale1 * rng.normal(size=3), 7 * rng.normal(size=(200, 3))
        score = distinguish.cosine.fit(KEY, IDENTITY, jnp.asarray(g0), jnp.asarray(g1))
        found = np.asarray(jax.jit(jax.vmap(score))(jnp.asarray(z, jnp.float32)))
        by_text = (by_hand.cosines(z, g1) - by_hand.cosines(z, g0)) / np.linalg.norm(z, axis=1)
        np.testing.assert_allclose(found, by_text, atol=2e-6)
    assert distinguish.cosine.threshold == 0


@pytest.mark.parametrize("scale", [1.0, 3.0, 1e-4, 1e4])
def test_parallel_inputs_are_exact_ties_for_the_cosine(scale):
    x, z = np.random.default_rng(1).normal(size=(2, 10_000)).astype(np.float32)
    score = distinguish.cosine.fit(KEY, IDENTITY, jnp.asarray(x), jnp.asarray(np.float32(scale) * x))
    assert float(score(jnp.asarray(z))) == 0.0
    assert float(score(jnp.asarray(x))) == 0.0


def test_projection_reads_trees():
    x0, x1 = {"a": jnp.zeros(2), "b": jnp.ones(())}, {"a": jnp.array([1.0, 2.0]), "b": jnp.array(4.0)}
    score = distinguish.projection.fit(KEY, IDENTITY, x0, x1)
    assert float(score({"a": jnp.array([10.0, 100.0]), "b": jnp.array(1000.0)})) == 10 + 200 + 3000
    assert distinguish.projection.threshold is None


def test_scores_are_computed_in_float32_at_least():
    x0, x1 = jnp.zeros(3, jnp.bfloat16), jnp.ones(3, jnp.bfloat16)
    for attack in (distinguish.cosine, distinguish.projection):
        assert attack.fit(KEY, IDENTITY, x0, x1)(jnp.ones(3, jnp.bfloat16)).dtype == jnp.float32


def test_likelihood_ratio_of_ldp_sgd_takes_the_values_of_the_four_sign_patterns():
    epsilon = 2.0
    mechanism = ldp_sgd.mechanism(epsilon=epsilon, clip_norm=1.0)
    x0, x1 = jnp.array([3.0, 0.0]), jnp.array([0.0, 0.5])
    score = distinguish.likelihood_ratio.fit(KEY, mechanism, x0, x1)
    q0, q1 = 0.5 + math.tanh(1) / 2, 0.5 + math.tanh(1) / 4
    for z, ratio in (([0.6, 0.8], q1 / q0), ([-0.6, 0.8], q1 / (1 - q0)), ([0.6, -0.8], (1 - q1) / q0)):
        assert float(score(jnp.array(z))) == pytest.approx(math.log(ratio), abs=1e-5)


def test_likelihood_ratio_needs_a_density():
    with pytest.raises(
        _validate.InputError, match=r"^distinguisher: expected one that needs no density .*likelihood_ratio$"
    ):
        distinguish.likelihood_ratio.fit(KEY, IDENTITY, jnp.zeros(2), jnp.ones(2))


def test_cosine_refuses_releases_of_another_size():
    total = Mechanism(lambda key, x: jnp.sum(x))
    wanted = "^distinguisher: expected one that can read a release of 1 numbers for inputs of 3, got cosine$"
    with pytest.raises(_validate.InputError, match=wanted):
        distinguish.cosine.fit(KEY, total, jnp.zeros(3), jnp.ones(3))
    with pytest.raises(_validate.InputError, match=r"^x1: expected 3 numbers, as x0, got 1$"):
        distinguish.cosine.fit(KEY, IDENTITY, jnp.zeros(3), jnp.ones(1))


def test_projection_of_another_size_follows_the_mean_release():
    noisy = Mechanism(lambda key, x: jnp.sum(x) + jnp.array([1.0, -2.0]) * jnp.sum(x) + jax.random.normal(key, (2,)))
    score = distinguish.projection.fit(KEY, noisy, jnp.zeros(3), jnp.ones(3))
    direction = jnp.array([float(score(jnp.array([1.0, 0.0]))), float(score(jnp.array([0.0, 1.0])))])
    assert jnp.allclose(direction, jnp.array([6.0, -3.0]), atol=5 * (2 / distinguish.PILOT) ** 0.5)


def test_what_both_worlds_release_has_no_part_in_the_direction():
    """Means (50, 1) against (50, 2), a release of two numbers for an input of one: the first tells nothing."""

    def fn(key, x):
        return jnp.stack([50.0 + jax.random.normal(key), x[0] + 0.1 * jax.random.normal(key)])

    score = distinguish.projection.fit(jax.random.key(0), Mechanism(fn), jnp.ones(1), 2 * jnp.ones(1))
    assert score(jnp.array([1.0, 0.0])) == pytest.approx(0, abs=1e-3)
    assert score(jnp.array([0.0, 1.0])) == pytest.approx(1, abs=1e-3)
