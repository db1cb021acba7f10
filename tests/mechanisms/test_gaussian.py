import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from dpaudit import _validate
from dpaudit.mechanisms import gaussian


def hockey_stick(epsilon: float, distance: float, sigma: float) -> float:
    """integral of max(0, p - e^epsilon q) for N(distance, sigma^2) and N(0, sigma^2), numerically."""
    edge = epsilon * sigma**2 / distance + distance / 2  # p > e^epsilon q beyond it

    def gain(z: float) -> float:
        return math.exp(stats.norm.logpdf(z, distance, sigma)) - math.exp(epsilon + stats.norm.logpdf(z, 0, sigma))

    return integrate.quad(gain, edge, edge + 12 * sigma)[0]


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-3), (1.0, 1e-5), (8.0, 1e-7)])
def test_noise_std_spends_delta_and_no_more(epsilon: float, delta: float) -> None:
    sigma = gaussian.noise_std(epsilon=epsilon, delta=delta, clip_norm=0.7)
    np.testing.assert_allclose(hockey_stick(epsilon, 1.4, sigma), delta, rtol=1e-5)
    assert hockey_stick(epsilon, 1.4, 0.99 * sigma) > 1.01 * delta


def test_noise_std_known_answer() -> None:
    """Paper 002's (8, 1e-7)."""
    np.testing.assert_allclose(gaussian.noise_std(epsilon=8, delta=1e-7, clip_norm=1.0), 1.4042, atol=5e-5)


def test_release_is_clipped_input_plus_noise() -> None:
    mechanism = gaussian.mechanism(epsilon=1.0, delta=1e-3, clip_norm=1.0)
    x = jnp.array([[30.0, 0.0], [0.0, -40.0]])
    keys = jax.random.split(jax.random.key(0), 50_000)
    released = np.asarray(jax.jit(jax.vmap(mechanism.apply, (0, None)))(keys, x))
    noise = (released - [[0.6, 0], [0, -0.8]]).ravel()
    sigma = gaussian.noise_std(epsilon=1.0, delta=1e-3, clip_norm=1.0)
    assert stats.kstest(noise, stats.norm(0, sigma).cdf).pvalue > 1e-3
    # sqrt(n) D of the twins has mean 5.7 and 5.7 and deviation below 0.45, and 2.7 makes a p-value of 1e-6.
    assert stats.kstest(noise, stats.norm(0, 1.05 * sigma).cdf).pvalue < 1e-6
    assert stats.kstest(noise, stats.norm(0.03 * sigma, sigma).cdf).pvalue < 1e-6
    error = 1 / math.sqrt(2 * noise.size)
    assert abs(noise.std() / sigma - 1) < 4 * error < 0.03 - 5 * error  # 3% more or less would be seen


def test_a_clip_norm_from_numpy_adds_no_digits_to_the_release_that_the_noise_lacks() -> None:
    """Of noise in float32 on a release in float64, what is left of the right input is sigma times a float32 number."""
    x = jnp.array([0.3, 0.4], jnp.float32)
    with jax.enable_x64(True):
        plain, numpy = (
            gaussian.mechanism(epsilon=1.0, delta=1e-5, clip_norm=norm).apply(jax.random.key(0), x)
            for norm in (1.0, np.float64(1.0))
        )
    assert plain.dtype == numpy.dtype == jnp.float32
    np.testing.assert_array_equal(plain, numpy)


@pytest.mark.parametrize("delta", [0.0, 1.0, math.nan])
def test_refuses_bad_delta(delta: float) -> None:
    with pytest.raises(_validate.InputError, match=r"delta: expected a number in \(0, 1\)"):
        gaussian.mechanism(epsilon=1.0, delta=delta, clip_norm=1.0)


def test_refuses_noise_so_small_that_float32_flushes_a_part_of_it_to_zero() -> None:
    """At 2e-38 a third of the releases were the clipped input itself."""
    small = 2.0**-100 / gaussian.noise_std(epsilon=8.0, delta=1e-7, clip_norm=1.0)
    with pytest.raises(_validate.InputError, match="clip_norm: expected one whose noise float32 holds, of standard"):
        gaussian.mechanism(epsilon=8.0, delta=1e-7, clip_norm=0.99 * small)
    released = gaussian.mechanism(epsilon=8.0, delta=1e-7, clip_norm=1.01 * small).apply
    noise = np.asarray(jax.jit(released)(jax.random.key(0), jnp.zeros(100_000)), np.float64)
    assert noise.std() == pytest.approx(2.0**-100, rel=0.03)
    assert np.sum(noise == 0) == 0


def test_refuses_bad_clip_norm() -> None:
    with pytest.raises(_validate.InputError, match="clip_norm: expected a finite number > 0, got 0"):
        gaussian.mechanism(epsilon=1.0, delta=1e-5, clip_norm=0)


@pytest.mark.parametrize("clip_norm", [np.uint8(200), np.int8(100), np.float16(40_000), jnp.uint8(200)])
def test_a_clip_norm_of_a_narrow_type_has_the_noise_of_its_number(clip_norm: Any) -> None:
    """2 * np.uint8(200) is 144, and 2 * np.float16(40_000) infinite."""
    how = {"epsilon": 1.0, "delta": 1e-5}
    assert gaussian.noise_std(**how, clip_norm=clip_norm) == gaussian.noise_std(**how, clip_norm=float(clip_norm))
    sigma = gaussian.noise_std(**how, clip_norm=clip_norm)
    assert sigma / float(clip_norm) == pytest.approx(1492.25 / 200, rel=1e-5)
    narrow, plain = (gaussian.mechanism(**how, clip_norm=norm) for norm in (clip_norm, float(clip_norm)))
    x = jnp.array([3e4, -4e4])
    np.testing.assert_array_equal(narrow.apply(jax.random.key(0), x), plain.apply(jax.random.key(0), x))
