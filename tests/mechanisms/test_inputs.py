"""Inputs and settings that would leave a mechanism's release without noise, or without anything of its input."""

import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpaudit._validate import InputError
from dpaudit.mechanisms import gaussian, laplace, ldp_sgd, privunit, randomized_response

KEY = jax.random.key(0)
OF_VECTORS = {
    "gaussian": gaussian.mechanism(epsilon=1.0, delta=1e-5, clip_norm=1.0),
    "laplace": laplace.mechanism(epsilon=1.0, clip_norm=1.0),
    "ldp_sgd": ldp_sgd.mechanism(epsilon=1.0, clip_norm=1.0),
    "privunit": privunit.mechanism(epsilon=1.0),
}


@pytest.mark.parametrize("name", OF_VECTORS)
def test_a_number_beyond_float32_is_refused_and_not_released_as_nan(name):
    """Its release was NaN in that place, which no other input's is: it had no noise."""
    apply = OF_VECTORS[name].apply
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(InputError, match="x: expected finite numbers, got 1 NaN or infinite of 2"):
            apply(KEY, np.array([1e300, 0.0]))
        assert np.isfinite(apply(KEY, np.array([3e38, -3e38]))).all()
        np.testing.assert_array_equal(apply(KEY, np.array([2**62, 0])), apply(KEY, np.array([2.0**62, 0.0])))
    with jax.enable_x64(True):
        assert np.isfinite(apply(KEY, np.array([1e300, 0.0]))).all()


@pytest.mark.parametrize("name", OF_VECTORS)
def test_a_list_is_refused_by_name(name):
    with pytest.raises(InputError, match=r"x: expected (one array|an array of shape \[d\] .*), got \[1.0, 2.0\]"):
        OF_VECTORS[name].apply(KEY, [1.0, 2.0])


def test_laplace_noise_on_a_grid_coarser_than_its_clip_norm_is_refused():
    """Every input would be rounded to zero, and the release would be noise alone."""
    for epsilon in (1e-3, 0.0039):
        with pytest.raises(InputError, match=f"epsilon: expected 1/128 or more, .* got {epsilon}"):
            laplace.mechanism(epsilon=epsilon, clip_norm=1.0)
    for clip_norm in (0.3, 0.5, 1.0, 7.0):
        apply = laplace.mechanism(epsilon=1 / 128, clip_norm=clip_norm).apply
        moved = apply(KEY, jnp.array([clip_norm])) - apply(KEY, jnp.array([-clip_norm]))
        assert moved[0] > 0.9 * clip_norm


def test_laplace_noise_whose_grid_float32_does_not_hold_is_refused():
    """All steps of the grid were zero, and every release was NaN."""
    for clip_norm, epsilon in ((1e-36, 1.0), (5e-324, 1.0), (1.0, 1e37), (1e300, 1.0), (1e37, 1.0)):
        with pytest.raises(InputError, match=r"clip_norm: expected 2 clip_norm / epsilon from .*, got "):
            laplace.mechanism(epsilon=epsilon, clip_norm=clip_norm)
    for clip_norm in (3.1e-36, 2.6e36):
        mechanism, x = laplace.mechanism(epsilon=1.0, clip_norm=clip_norm), jnp.full(4, clip_norm)
        release = mechanism.apply(KEY, x)
        assert (release != mechanism.apply(jax.random.key(8), x)).all()
        assert np.isfinite(release).all()


def test_categories_fit_into_the_type_of_a_release():
    release = randomized_response.mechanism(epsilon=1.0, num_categories=2**31 - 1).apply(KEY, 2**31 - 2)
    assert 0 <= int(release) < 2**31 - 1
    with pytest.raises(InputError, match=r"num_categories: expected at most 2147483647, .* got 2147483648"):
        randomized_response.mechanism(epsilon=math.log(2), num_categories=2**31)
