from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpaudit import _validate
from dpaudit.mechanisms.clipping import clip, factor, norm_and_direction

EXTREME = [[3.0, 4.0], [3e38, -3e38], [1e38, 0.0], [3e-30, -4e-30], [3e-38, 4e-38], [1e30, 1e-30], [-2e-38, 0.0]]


@pytest.mark.parametrize("values", EXTREME)
@pytest.mark.parametrize("ord", [1, 2])
def test_norm_and_direction_of_extreme_entries(values: list[float], ord: int) -> None:
    exact = np.asarray(values, np.float64)
    norm, direction = jax.jit(norm_and_direction, static_argnums=1)(jnp.array(values), ord)
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(norm, np.float32(np.linalg.norm(exact, ord)), rtol=1e-6)
    np.testing.assert_allclose(direction, exact / np.linalg.norm(exact, ord), rtol=1e-6, atol=1e-30)


def test_zero_has_no_direction() -> None:
    norm, direction = norm_and_direction(jnp.zeros((2, 3)))
    assert norm == 0
    np.testing.assert_array_equal(direction, np.zeros((2, 3)))
    np.testing.assert_array_equal(clip(jnp.zeros(3), 1.0), np.zeros(3))


@pytest.mark.parametrize("ord", [1, 2])
def test_clip_against_the_definition(ord: int) -> None:
    for x in np.random.default_rng(0).normal(size=(20, 7)).astype(np.float32) * 3:
        wanted = x * min(1, 2.5 / np.linalg.norm(x, ord))
        np.testing.assert_allclose(clip(x, 2.5, ord), wanted, rtol=1e-5)


def test_clip_leaves_the_inside_untouched() -> None:
    x = jnp.array([0.1, -0.7, 0.3])
    np.testing.assert_array_equal(clip(x, 1.0), x)


def test_clip_takes_any_shape_and_is_never_narrow() -> None:
    np.testing.assert_allclose(clip(jnp.full((2, 2), 3, jnp.bfloat16), 1.0), np.full((2, 2), 0.5), rtol=1e-6)
    assert clip(jnp.ones(3, jnp.bfloat16), 1.0).dtype == jnp.float32
    assert clip(jnp.array([3, 4]), 1.0).dtype == jnp.float32


def test_clip_refuses_another_norm() -> None:
    with pytest.raises(_validate.InputError, match="ord: expected 1 or 2, got 3"):
        clip(jnp.ones(2), 1.0, ord=3)


def test_the_factor_brings_a_norm_to_the_clip_norm_and_never_above() -> None:
    norms = np.concatenate([np.geomspace(1e-6, 1e6, 2001), [0.3]]).astype(np.float32)
    found = np.asarray(factor(norms, 0.3), np.float64)
    np.testing.assert_allclose(found, np.minimum(1, 0.3 / norms.astype(np.float64)), rtol=1e-6)
    assert (norms * found).max() <= 0.3


@pytest.mark.parametrize("clip_norm", [float("nan"), -1.0, 0, np.float32("nan"), jnp.float32(-2)])
def test_clip_refuses_a_clip_norm_that_would_clip_nothing_or_turn_it_round(clip_norm: Any) -> None:
    for call in (lambda: clip(jnp.ones(2), clip_norm), lambda: jax.jit(lambda x: clip(x, clip_norm))(jnp.ones(2))):
        with pytest.raises(_validate.InputError, match=r"clip_norm: expected a number > 0, got "):
            call()


def test_clip_takes_numbers_of_any_type_and_infinity() -> None:
    x = jnp.array([300.0, 400.0])
    for clip_norm in (np.uint8(250), jnp.uint8(250), np.float16(250)):
        np.testing.assert_array_equal(clip(x, clip_norm), clip(x, 250.0))
    np.testing.assert_array_equal(clip(x, float("inf")), x)
