"""LDP-SGD against its text: the client's law, the server's constant, trees and optimizers, bad input."""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import integrate

from dpaudit import _validate
from dpaudit.mechanisms import ldp_sgd, sampling
from tests import by_hand

KEY = jax.random.key(20)


@partial(jax.jit, static_argnames="n")
def releases(key, x, *, n, epsilon, clip_norm):  # everything but n is traced: one program for many tests
    randomize = partial(ldp_sgd.randomize, epsilon=epsilon, clip_norm=clip_norm)
    return jax.vmap(randomize, (0, None))(jax.random.split(key, n), x)


def direction(seed: int, dimension: int) -> np.ndarray:
    x = np.random.default_rng(seed).normal(size=dimension)
    return x / np.linalg.norm(x)


# --- client and server together ---------------------------------------------------------------------------------


def unbiased(factor: float, sample: np.ndarray, clipped: np.ndarray) -> bool:
    """Is factor * mean(sample) the clipped gradient, within 5 standard errors, along it and in all coordinates?"""
    n, d = sample.shape
    estimate = factor * sample.mean(axis=0)
    along = clipped / np.linalg.norm(clipped)
    standard_error = factor * (sample @ along).std() / math.sqrt(n)
    straight = abs((estimate - clipped) @ along) <= 5 * standard_error
    expected_square = (factor**2 - clipped @ clipped) / n  # of the whole error; its spread is sqrt(2/d) of it
    square = np.sum((estimate - clipped) ** 2)
    return bool(straight and square <= expected_square * (1 + 5 * math.sqrt(2 / d) + 25 / d))


@pytest.mark.parametrize("dimension, n", [(2, 40_000), (3, 40_000), (10, 40_000), (1000, 3_000)])
def test_client_and_server_are_unbiased_for_the_clipped_gradient(dimension, n):
    epsilon, clip_norm = 2.0, 0.5
    printed = ldp_sgd.unbiasing_factor(dimension, epsilon=epsilon, clip_norm=clip_norm) / dimension  # as in the paper
    for seed, norm in ((1, 0.3), (2, 4.0)):  # below and above clip_norm
        x = norm * direction(seed, dimension)
        clipped = x * min(1, clip_norm / norm)
        sample = releases(jax.random.fold_in(KEY, seed), jnp.asarray(x), n=n, epsilon=epsilon, clip_norm=clip_norm)
        estimate = np.asarray(ldp_sgd.aggregate(sample, epsilon=epsilon, clip_norm=clip_norm), np.float64)
        sample = np.asarray(sample, np.float64)
        factor = ldp_sgd.unbiasing_factor(dimension, epsilon=epsilon, clip_norm=clip_norm)
        np.testing.assert_allclose(estimate, factor * sample.mean(axis=0), rtol=1e-3, atol=1e-4 * clip_norm)
        assert unbiased(factor, sample, clipped)
        assert not unbiased(printed, sample, clipped)
        assert not unbiased(factor, sample, x * clip_norm / norm if norm < clip_norm else x)  # it is clipping's mean
        assert not unbiased(factor, sample, -clipped)


@pytest.mark.parametrize("dimension", [2, 3, 7, 100])
def test_unbiasing_factor_by_integration(dimension):
    """E|v_1| on the sphere is the mean of |t| under the density (1 - t^2)^((d - 3)/2); here t = sin a."""
    top = integrate.quad(lambda a: math.sin(a) * math.cos(a) ** (dimension - 2), 0, math.pi / 2)[0]
    bottom = integrate.quad(lambda a: math.cos(a) ** (dimension - 2), 0, math.pi / 2)[0]
    epsilon = 1.3
    by_integral = 0.7 * (bottom / top) * (math.exp(epsilon) + 1) / (math.exp(epsilon) - 1)
    assert ldp_sgd.unbiasing_factor(dimension, epsilon=epsilon, clip_norm=0.7) == pytest.approx(by_integral, rel=1e-9)


@pytest.mark.parametrize("dimension", [10**5, 10**7, 10**9])
def test_unbiasing_factor_is_finite_and_asymptotic_in_large_dimensions(dimension):
    factor = ldp_sgd.unbiasing_factor(dimension, epsilon=20.0, clip_norm=2.0)
    asymptotic = 2.0 * math.sqrt(math.pi * dimension / 2) * (1 - 1 / (4 * dimension))
    assert factor == pytest.approx(asymptotic, rel=1e-6)


def test_one_dimension_is_randomised_response():
    """d = 1: the release is a sign, kept with probability q, so the factor is L/tanh(eps/2)."""
    assert ldp_sgd.unbiasing_factor(1, epsilon=1.0, clip_norm=3.0) == pytest.approx(3 / math.tanh(0.5), rel=1e-12)
    sample = np.asarray(releases(KEY, jnp.array([-9.0]), n=40_000, epsilon=1.0, clip_norm=3.0))
    assert set(sample.ravel().tolist()) == {-1.0, 1.0}
    q = math.e / (1 + math.e)
    assert abs((sample < 0).mean() - q) <= 5 * math.sqrt(q * (1 - q) / 40_000)


@pytest.mark.parametrize("radius", [100.0, 0.5])
def test_server_update_by_hand(radius):
    """Lines 4 and 5 of Algorithm 2 in plain arithmetic, d = 3, where the corrected constant is 2 L/tanh(eps/2)."""
    epsilon, clip_norm = 1.0, 0.25
    theta = np.array([0.2, -0.1, 0.4])
    sample = np.array([[1.0, 0, 0], [0, 0, -1.0], [0.6, 0.8, 0], [0, 1.0, 0]])
    gain = (math.e + 1) / (math.e - 1)
    gradient = 2 * clip_norm * gain * np.array([0.4, 0.45, -0.25])
    step = radius * math.sqrt(4) / (clip_norm * math.sqrt(3)) / gain
    moved = theta - step * gradient
    length = math.sqrt(float(moved @ moved))
    expected = moved * radius / length if length > radius else moved
    found = ldp_sgd.server_update(
        jnp.asarray(theta), jnp.asarray(sample), epsilon=epsilon, clip_norm=clip_norm, radius=radius
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5)


# --- the client's law -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dimension", [2, 3])
def test_log_prob_is_the_density_on_the_sphere(dimension):
    epsilon, clip_norm = 1.7, 0.4
    log_prob = ldp_sgd.mechanism(epsilon=epsilon, clip_norm=clip_norm).log_prob
    assert log_prob is not None
    every = jax.jit(jax.vmap(log_prob, (0, None)))
    points = by_hand.sphere_points(dimension, 997)
    for norm in (0.0, 1e-3, 0.5, 1.0, 7.0):  # in units of clip_norm
        x = norm * clip_norm * direction(3, dimension)
        found = np.asarray(every(jnp.asarray(points), jnp.asarray(x)))
        by_text = np.log(by_hand.density(points, x, epsilon=epsilon, clip_norm=clip_norm))
        np.testing.assert_allclose(found, by_text, atol=2e-6)
        assert np.exp(found.astype(np.float64)).mean() == pytest.approx(1, abs=5e-3)


def test_density_ratios_stay_within_epsilon_and_reach_it():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 4)) * 10 ** rng.uniform(-2, 2, size=(300, 1))
    x[:3] = 0
    w = rng.normal(size=(200, 4))
    for epsilon in (0.1, 4.0, 16.0):
        log_prob = ldp_sgd.mechanism(epsilon=epsilon, clip_norm=1.0).log_prob
        assert log_prob is not None
        every = jax.jit(jax.vmap(jax.vmap(log_prob, (None, 0)), (0, None)))
        table = np.asarray(every(jnp.asarray(w), jnp.asarray(x)))
        loss = table.max(axis=1) - table.min(axis=1)  # over all pairs of inputs, for each release
        assert loss.max() <= epsilon * (1 + 1e-5)
        assert loss.max() == pytest.approx(epsilon, rel=1e-4)


@pytest.mark.parametrize(
    "norm, dtype",
    [(0.0, jnp.float32), (0.6, jnp.float32), (1.0, jnp.float32), (5.0, jnp.bfloat16), (1e30, jnp.float32)],
)
def test_a_release_is_on_its_gradients_side_with_probability_q(norm, dtype):
    """Over the whole sphere the two halves get Q and 1 - Q; within a half the law is uniform."""
    epsilon, n = 1.0, 40_000
    x = jnp.asarray(norm * direction(5, 3), dtype)
    u = direction(5, 3) if norm == 0 else np.asarray(x, np.float64) / np.linalg.norm(np.asarray(x, np.float64))
    sample = np.asarray(releases(KEY, x, n=n, epsilon=epsilon, clip_norm=1.0))
    assert sample.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(sample, axis=1), 1, rtol=1e-5)

    def consistent(on_side: float, share: float) -> bool:
        q = 0.5 + (math.e / (1 + math.e) - 0.5) * share
        return abs(on_side - q) <= 5 * math.sqrt(q * (1 - q) / n)

    on_side = (sample @ u > 0).mean()
    assert consistent(on_side, min(norm, 1.0))
    if norm == 0.6:
        assert not consistent(on_side, 1.0)  # without norm projection
        assert not consistent(on_side, 0.0)
    height = np.abs(sample @ u)  # Archimedes: uniform on [0, 1]; and the directions across are even
    assert abs(height.mean() - 0.5) <= 5 * math.sqrt(1 / 12 / n)
    assert abs(np.mean(height**2) - 1 / 3) <= 5 * math.sqrt(4 / 45 / n)
    across = np.cross(u, [1.0, 0, 0])
    assert abs((sample @ across > 0).mean() - 0.5) <= 5 * 0.5 / math.sqrt(n)


def test_zero_gradient_is_released_as_a_uniform_direction():
    n = 40_000
    sample = np.asarray(releases(KEY, jnp.zeros(3), n=n, epsilon=5.0, clip_norm=1.0), np.float64)
    assert (np.abs(sample.mean(axis=0)) <= 5 * math.sqrt(1 / 3 / n)).all()
    second = sample.T @ sample / n  # identity/3; the entries' variances are 4/45 and 1/15
    assert (np.abs(second - np.eye(3) / 3) <= 5 * math.sqrt(4 / 45 / n)).all()
    signs = (sample > 0) @ np.array([4, 2, 1])
    assert (np.abs(np.bincount(signs, minlength=8) - n / 8) <= 5 * math.sqrt(n * 7 / 64)).all()
    log_prob = ldp_sgd.mechanism(epsilon=5.0, clip_norm=1.0).log_prob
    assert log_prob is not None
    assert float(jax.jit(log_prob)(jnp.asarray(sample[0]), jnp.zeros(3))) == pytest.approx(0, abs=1e-6)


def test_noise_is_float32_whatever_the_gradients_type():
    """bfloat16 normals have 128 distinct values; a narrow draw would show here."""
    release = jax.jit(partial(ldp_sgd.randomize, epsilon=1.0, clip_norm=1.0))(KEY, jnp.ones(20_000, jnp.bfloat16))
    assert release.dtype == jnp.float32
    assert len(np.unique(np.abs(np.asarray(release)))) > 19_000


# --- trees and optimizers ---------------------------------------------------------------------------------------

TREE = {
    "conv": jnp.full((3, 4), 0.5, jnp.float32),
    "bias": [jnp.arange(5, dtype=jnp.float32), jnp.ones((), jnp.bfloat16)],
}


def test_tree_keeps_structure_shapes_and_types_and_is_one_unit_vector():
    released = jax.jit(partial(ldp_sgd.randomize_tree, epsilon=1.0, clip_norm=1.0))(KEY, TREE)
    assert jax.tree.structure(released) == jax.tree.structure(TREE)
    for given, leaf in zip(jax.tree.leaves(TREE), jax.tree.leaves(released), strict=True):
        assert (leaf.shape, leaf.dtype) == (given.shape, given.dtype)
    squares = [np.sum(np.asarray(leaf, np.float64) ** 2) for leaf in jax.tree.leaves(released)]
    assert math.sqrt(sum(squares)) == pytest.approx(1, abs=1e-3)


def test_a_tree_is_randomised_as_one_vector_not_leaf_by_leaf():
    tree = {"a": jnp.array([3.0, -1.0]), "b": jnp.array([[2.0], [0.5]])}
    how = {"epsilon": 0.5, "clip_norm": 2.0}
    flat = jax.jit(partial(ldp_sgd.randomize, **how))(KEY, jnp.array([3.0, -1.0, 2.0, 0.5]))
    released = jax.jit(partial(ldp_sgd.randomize_tree, **how))(KEY, tree)
    np.testing.assert_array_equal(np.concatenate([released["a"], released["b"].ravel()]), flat)


def test_privatize_in_an_optax_chain_is_the_unbiased_release_and_fresh_each_step():
    gradients = {"w": jnp.array([[0.3, -0.4], [0.0, 1.0]]), "b": jnp.array([2.0])}
    chain = optax.chain(ldp_sgd.privatize(KEY, epsilon=2.0, clip_norm=1.5), optax.sgd(0.1))
    update = jax.jit(chain.update)
    state, steps = chain.init(gradients), []
    for _ in range(2):
        updates, state = update(gradients, state)
        assert jax.tree.structure(updates) == jax.tree.structure(gradients)
        steps.append(np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(updates)]))
    factor = ldp_sgd.unbiasing_factor(5, epsilon=2.0, clip_norm=1.5)
    for step in steps:
        assert np.linalg.norm(step) == pytest.approx(0.1 * factor, rel=1e-5)
    assert not np.allclose(steps[0], steps[1])
    again, _ = update(gradients, chain.init(gradients))
    np.testing.assert_array_equal(again["b"], steps[0][:1])


def test_randomize_maps_over_epsilon_and_clip_norm():
    """Traced parameters pass: one program for a whole grid, the same as one call each."""
    x = jnp.array([0.2, 0.1, -0.4])
    losses, norms = jnp.array([0.5, 1.0, 4.0]), jnp.array([0.1, 1.0, 2.0])
    one = jax.jit(lambda e, c: ldp_sgd.randomize(KEY, x, epsilon=e, clip_norm=c))
    grid = jax.vmap(one)(losses, norms)
    for e, c, row in zip(losses, norms, grid, strict=True):
        np.testing.assert_allclose(row, one(e, c), rtol=1e-6)


def test_mechanism_claims_local_privacy_for_any_two_inputs():
    claim = ldp_sgd.mechanism(epsilon=3.0, clip_norm=1.0).claim
    assert claim == (3.0, 0.0, "replace")


# --- bad input --------------------------------------------------------------------------------------------------

ONES = jnp.ones(3)


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda: ldp_sgd.randomize(KEY, ONES, epsilon=0.0, clip_norm=1.0),
            "^epsilon: expected a finite number > 0, got 0",
        ),
        (lambda: ldp_sgd.randomize(KEY, ONES, epsilon=math.nan, clip_norm=1.0), "^epsilon: expected .*, got nan$"),
        (lambda: ldp_sgd.randomize(KEY, ONES, epsilon=math.inf, clip_norm=1.0), "^epsilon: expected .*, got inf$"),
        (
            lambda: ldp_sgd.randomize(KEY, ONES, epsilon=1.0, clip_norm=0),
            "^clip_norm: expected a finite number > 0, got 0$",
        ),
        (lambda: ldp_sgd.randomize(KEY, ONES, epsilon=1.0, clip_norm=-2.0), "^clip_norm: expected .*, got -2.0$"),
        (
            lambda: ldp_sgd.randomize(KEY, ONES.at[1].set(jnp.nan), epsilon=1.0, clip_norm=1.0),
            "^x: expected finite .* 1 NaN",
        ),
        (
            lambda: ldp_sgd.randomize(KEY, ONES / 0, epsilon=1.0, clip_norm=1.0),
            "^x: expected finite numbers, got 3 NaN or inf",
        ),
        (
            lambda: ldp_sgd.randomize(KEY, jnp.ones((2, 2)), epsilon=1.0, clip_norm=1.0),
            r"^x: expected .*\[d\].*\[2, 2\]$",
        ),
        (
            lambda: ldp_sgd.randomize(KEY, jnp.ones(0), epsilon=1.0, clip_norm=1.0),
            r"^x: expected .*d >= 1, got shape \[0\]$",
        ),
        (lambda: ldp_sgd.mechanism(epsilon=-1.0, clip_norm=1.0), "^epsilon: expected .*, got -1.0$"),
        (lambda: ldp_sgd.mechanism(epsilon=1.0, clip_norm=math.nan), "^clip_norm: expected .*, got nan$"),
        (lambda: ldp_sgd.privatize(KEY, epsilon=1.0, clip_norm=0.0), "^clip_norm: expected .*, got 0.0$"),
        (
            lambda: ldp_sgd.unbiasing_factor(0, epsilon=1.0, clip_norm=1.0),
            "^dimension: expected a whole number >= 1, got 0$",
        ),
        (
            lambda: ldp_sgd.aggregate(ONES, epsilon=1.0, clip_norm=1.0),
            r"^releases: expected .*\[n, d\].* got shape \[3\]$",
        ),
        (lambda: ldp_sgd.aggregate(jnp.ones((0, 3)), epsilon=1.0, clip_norm=1.0), r"^releases: .*got shape \[0, 3\]$"),
        (
            lambda: ldp_sgd.server_update(ONES, jnp.ones((2, 3)), epsilon=1.0, clip_norm=1.0, radius=0.0),
            "^radius: expected a finite number > 0, got 0.0$",
        ),
    ],
)
def test_bad_input_is_refused_with_its_name_and_value(call, message):
    with pytest.raises(_validate.InputError, match=message):
        call()


@pytest.mark.parametrize("epsilon", [36.0, 45.0, 100.0])
def test_a_release_on_the_far_side_is_never_rarer_than_epsilon_allows(
    monkeypatch: pytest.MonkeyPatch, epsilon: float
) -> None:
    """The coin compares 64 bits with its probability: rounded down, it never turned a release above epsilon 44.4."""
    asked: list[jax.Array] = []
    monkeypatch.setattr(ldp_sgd, "bernoulli", lambda _, p, shape: asked.append(p) or jnp.zeros(shape, bool))
    ldp_sgd.turns(KEY, jnp.float32(1.0), epsilon=epsilon, clip_norm=1.0)
    high, low = sampling._fixed_point(asked[0][1])
    counted = (int(high) << 32) + int(low)  # of 2^64 values of the bits
    assert counted >= 1
    assert math.log((2**64 - counted) / counted) <= epsilon


@pytest.mark.parametrize("clip_norm", [np.uint8(200), np.int8(100), np.float16(40_000), jnp.uint8(200)])
def test_numbers_of_narrow_types_are_the_numbers(monkeypatch: pytest.MonkeyPatch, clip_norm: Any) -> None:
    """2 * np.uint8(200) is 144, which made 0.5 - 150/144, a negative probability, of a norm of 150."""
    asked: list[jax.Array] = []
    monkeypatch.setattr(ldp_sgd, "bernoulli", lambda _, p, shape: asked.append(p) or jnp.zeros(shape, bool))
    plain = float(clip_norm)
    for given in (clip_norm, plain):
        ldp_sgd.turns(KEY, jnp.float32(90), epsilon=np.float16(1.5), clip_norm=given)
    jax.make_jaxpr(lambda c: ldp_sgd.turns(KEY, jnp.float32(90), epsilon=1.5, clip_norm=c))(clip_norm)
    np.testing.assert_array_equal(asked[0], asked[1])
    assert float(asked[0][0]) == pytest.approx(0.5 - 90 / (2 * plain), abs=1e-6)
    assert asked[2].dtype == jnp.float32
    how: dict[str, Any] = {"epsilon": np.float16(0.01), "clip_norm": clip_norm}
    few: Any = np.int8(127)
    wanted = ldp_sgd.unbiasing_factor(127, epsilon=float(np.float16(0.01)), clip_norm=plain)
    assert ldp_sgd.unbiasing_factor(few, **how) == wanted
    radius: Any = np.float16(60_000)
    narrow, wide = (
        ldp_sgd.server_update(ONES, jnp.eye(3), epsilon=1.0, clip_norm=norm, radius=length)
        for norm, length in ((clip_norm, radius), (plain, float(radius)))
    )
    np.testing.assert_array_equal(narrow, wide)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_privatize_multiplies_in_float32_whatever_the_updates_type(dtype: Any) -> None:
    """The factor alone, 8e4, is infinite in float16, and has 8 bits in bfloat16."""
    d, how = 25_000, {"epsilon": 0.005, "clip_norm": 1.0}
    transformation = ldp_sgd.privatize(KEY, **how)
    given = jnp.full(d, d**-0.5, dtype)
    update, _ = transformation.update(given, transformation.init(given))
    released = ldp_sgd.randomize_tree(jax.random.split(KEY)[1], given, **how)
    factor = ldp_sgd.unbiasing_factor(d, **how)
    assert factor > 65_504  # the largest of float16
    assert jnp.asarray(update).dtype == dtype
    np.testing.assert_array_equal(update, (factor * released.astype(jnp.float32)).astype(dtype))
    assert np.linalg.norm(np.asarray(update, np.float64)) == pytest.approx(factor, rel=1e-3)
