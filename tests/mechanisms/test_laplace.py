from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpaudit import _validate
from dpaudit.mechanisms import laplace


def test_release_is_l1_clipped_input_plus_noise() -> None:
    mechanism = laplace.mechanism(epsilon=0.5, clip_norm=2.0)
    keys = jax.random.split(jax.random.key(0), 100_000)
    released = np.asarray(jax.jit(jax.vmap(mechanism.apply, (0, None)))(keys, jnp.array([30.0, -10.0])))
    noise = (released - [1.5, -0.5]).ravel()
    scale = 2 * 2.0 / 0.5
    assert stats.kstest(noise, stats.laplace(0, scale).cdf).pvalue > 1e-3
    # sqrt(n) D of the twins has mean 5.2 and 6.8 and deviation below 0.45, and 2.7 makes a p-value of 1e-6.
    assert stats.kstest(noise, stats.laplace(0, 1.06 * scale).cdf).pvalue < 1e-6
    assert stats.kstest(noise, stats.laplace(0.03 * scale, scale).cdf).pvalue < 1e-6
    error = 1 / np.sqrt(noise.size)  # of the mean of |noise|/scale, which has deviation 1
    assert abs(np.abs(noise).mean() / scale - 1) < 4 * error < 0.03 - 5 * error  # 3% more or less would be seen


def test_log_prob_against_scipy() -> None:
    mechanism = laplace.mechanism(epsilon=3.0, clip_norm=2.0)
    x0, x1, release = np.array([1.5, -0.5]), np.array([0.0, 0.25]), np.array([0.75, -9.0])
    assert mechanism.log_prob is not None
    ours = mechanism.log_prob(release, x0) - mechanism.log_prob(release, x1)
    exact = stats.laplace.logpdf(release, x0, 4 / 3) - stats.laplace.logpdf(release, x1, 4 / 3)
    np.testing.assert_allclose(ours, exact.sum(), rtol=1e-5)


def test_every_release_of_every_input_lies_on_one_grid_with_the_discrete_law() -> None:
    mechanism = laplace.mechanism(epsilon=0.5, clip_norm=2.0)
    scale, step = 8.0, 2.0**-5
    keys = jax.random.split(jax.random.key(3), 200_000)
    release = jax.jit(jax.vmap(mechanism.apply, (0, None)))
    for x in (0.3, -1.7):  # neither is a multiple of the step
        released = np.asarray(release(keys, jnp.array([x])), np.float64)[:, 0]
        assert (released / step == np.rint(released / step)).all()
        noise = np.rint(released / step - np.trunc(x / step)).astype(int)
        values = np.arange(-60, 61)
        chance = np.tanh(step / scale / 2) * np.exp(-np.abs(values) * step / scale)  # of the whole law
        seen = np.bincount(noise[np.abs(noise) <= 60] + 60, minlength=121)
        assert stats.chisquare(seen, chance / chance.sum() * seen.sum()).pvalue > 1e-3
        assert abs(seen.sum() - chance.sum() * len(keys)) < 5 * np.sqrt(chance.sum() * len(keys))


@pytest.mark.parametrize("count", [1, 2, 255, 1000])
def test_no_two_inputs_are_further_apart_than_the_noise_is_made_for(count: int) -> None:
    """Under one key the noise is the same, and differences of releases are exact: brute force, many coordinates."""
    mechanism = laplace.mechanism(epsilon=1.0, clip_norm=1.0)
    step = 2.0**-7
    rng = np.random.default_rng(count)
    level = np.full((1, count), 1 / count)  # at 255 entries each lies just above half a step
    inputs = np.concatenate([level, rng.dirichlet(np.ones(count), 4), rng.normal(size=(4, count)), 0 * level])
    inputs = np.concatenate([inputs, -inputs]).astype(np.float32)
    released = jax.jit(jax.vmap(mechanism.apply, (None, 0)))(jax.random.key(1), inputs)
    centers = np.asarray(released, np.float64) - np.asarray(released[9], np.float64)  # less that of zero
    assert np.abs(centers / step - np.rint(centers / step)).max() == 0
    assert np.abs(centers).sum(axis=1).max() <= 1
    assert np.abs(centers[:, None] - centers).sum(axis=2).max() <= 2
    clipped = inputs / np.maximum(np.abs(inputs).sum(axis=1, keepdims=True), 1)
    assert np.abs(centers - clipped).max() < step + 1e-6
    rounded = np.abs(np.rint(clipped / step) * step).sum(axis=1)  # the twin: to the nearest multiple
    assert count != 255 or rounded.max() > 1.99


def test_refuses_bad_clip_norm() -> None:
    with pytest.raises(_validate.InputError, match="clip_norm: expected a finite number > 0, got -1"):
        laplace.mechanism(epsilon=1.0, clip_norm=-1)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("clip_norm", [1.0, 0.3, 1.7])
def test_an_input_on_the_grid_is_never_longer_than_the_clip_norm(clip_norm: float, dtype: Any) -> None:
    made = laplace.mechanism(epsilon=1.5, clip_norm=clip_norm)
    key, rng = jax.random.key(0), np.random.default_rng(1)
    moved = jax.jit(lambda x: made.apply(key, x) - made.apply(key, jnp.zeros_like(x)))  # the same noise in both
    longest = 0.0
    for size in (1, 2, 7, 255):
        for x in (np.full(size, 9.0), np.full(size, clip_norm / size), *rng.laplace(size=(5, size))):
            longest = max(longest, float(np.abs(np.asarray(moved(jnp.asarray(x, dtype)), np.float64)).sum()))
    assert 0.99 * clip_norm < longest <= clip_norm


@pytest.mark.parametrize("clip_norm", [np.uint8(200), np.int8(100), np.float16(40_000), jnp.uint8(200)])
def test_numbers_of_narrow_types_have_the_noise_of_their_numbers(clip_norm: Any) -> None:
    """2 * np.uint8(200) is 144, and 2 * np.float16(40_000) infinite."""
    epsilons: list[Any] = [1.0, np.float16(0.3), jnp.int8(3)]
    for epsilon in epsilons:
        narrow = laplace.mechanism(epsilon=epsilon, clip_norm=clip_norm)
        plain = laplace.mechanism(epsilon=float(epsilon), clip_norm=float(clip_norm))
        x = jnp.array([3e4, -4e4])
        np.testing.assert_array_equal(narrow.apply(jax.random.key(0), x), plain.apply(jax.random.key(0), x))
