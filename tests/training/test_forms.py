"""Convolutions and pools in other forms: the numbers and gradients of XLA's own, and the platforms that take them."""

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.linen import pooling
from jax import lax

from dpaudit import _platform
from dpaudit.training import forms, per_example
from dpaudit.training.dropout import mc_dropout

SLOW = ("conv_general_dilated", "select_and_scatter", "reduce_window")
IMAGE = jax.random.normal(jax.random.key(0), (9, 8, 4))
Layer = Callable[..., Any]  # of what is added to its parameters, and an image


def numbers(*shape: int) -> jax.Array:
    return jnp.sin(jnp.arange(math.prod(shape), dtype=jnp.float32)).reshape(shape)


def convolution(**how: Any) -> Layer:
    layer = nn.Conv(4, (3, 2), **how)
    kernel = numbers(3, 2, 4 // how["feature_group_count"], 4)
    return lambda shift, x: layer.apply({"params": {"kernel": kernel + shift, "bias": jnp.ones(4)}}, x)


def window(how: Callable[..., Any]) -> Layer:
    return lambda shift, x: how(x * (1 + shift))


CONVOLUTIONS = {
    f"padding {padding}": [
        convolution(strides=strides, padding=padding, kernel_dilation=dilation, feature_group_count=groups)
        for strides, dilation, groups in itertools.product((1, (2, 3)), (1, (2, 3)), (1, 2, 4))
    ]
    for padding in ("SAME", "VALID", ((2, 0), (0, 1)))
}
POOLS = {
    name: [
        window(partial(pool, window_shape=shape, strides=strides, padding=padding))
        for shape, strides in [((2, 2), (2, 2)), ((3, 2), (2, 1)), ((2, 3), (3, 3))]
        for padding in ("SAME", "VALID")
    ]
    for name, pool in {"largest": nn.max_pool, "smallest": pooling.min_pool, "mean": nn.avg_pool}.items()
}
SAME = convolution(padding="SAME", feature_group_count=1)
HOLES = {"padding": ((0, 1), (1, 1), (0, 0)), "base_dilation": (1, 2, 1), "window_dilation": (2, 1, 1)}
OTHERS: dict[str, list[Layer]] = {
    "what Flax has no layer for": [
        lambda shift, x: lax.conv_general_dilated(  # channels first, images and windows with holes, cut edges
            x[None], numbers(6, 3, 3, 2) + shift, (1, 2), ((1, 1), (0, -1)), (2, 1), (1, 2), feature_group_count=3
        ),
        lambda shift, x: lax.conv_general_dilated(x[None, None], numbers(3, 1, 2, 2, 1) + shift, (1, 1, 2), "SAME"),
        window(lambda x: lax.reduce_window(x, 0.0, lax.add, (2, 3, 2), (1, 2, 1), **HOLES)),
        window(lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 3, 2), (1, 2, 1), ((0, 1), (1, 1), (1, 0)))),
    ],
    "inside loops and branches": [
        lambda shift, x: lax.scan(lambda x, _: (jnp.tanh(SAME(shift, x)), None), x, None, length=2)[0],
        lambda shift, x: lax.cond(shift < 1, lambda x: SAME(shift, x), jnp.zeros_like, x),
        lambda shift, x: jax.jit(jax.checkpoint(lambda x: SAME(shift, x)))(x),
    ],
}


def with_gradients(layers: list[Layer], form: Callable[..., Any]) -> Callable[..., Any]:
    """``run(shift, x)``: of every layer its output, and the gradient of a sum that weighs coordinates differently."""

    def run(shift: jax.Array, x: jax.Array) -> list[Any]:
        found = []
        for layer in layers:
            y, back = jax.vjp(form(layer), shift, x)
            found.append((y, back(numbers(*y.shape))))
        return found

    return run


CASES = CONVOLUTIONS | POOLS | OTHERS


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_xla(name: str) -> None:
    layers, given = CASES[name], (jnp.float32(0.1), IMAGE)
    runs = [with_gradients(layers, form) for form in (forms.quick, lambda layer: layer)]
    quick, xla = (str(jax.make_jaxpr(run)(*given)) for run in runs)
    assert any(word in xla for word in SLOW)
    assert not any(word in quick for word in SLOW)
    found, wanted = jax.jit(lambda *given: [run(*given) for run in runs])(*given)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), found, wanted)


def test_of_equal_values_the_first_takes_the_gradient_and_nan_stays() -> None:
    x = jnp.round(IMAGE).at[4, 4, 0].set(jnp.nan)  # with many ties

    def both(x: jax.Array) -> list[Any]:
        pools = [partial(nn.max_pool, window_shape=(2, 2), strides=strides) for strides in ((2, 2), (1, 1))]
        runs = [run for pool in pools for run in (forms.quick(pool), pool)]
        return [(run(x), jax.vjp(run, jnp.round(IMAGE))[1](numbers(*run(x).shape))[0]) for run in runs]

    apart, apart_by_xla, over, over_by_xla = jax.jit(both)(x)
    assert np.isnan(apart[0][2, 2, 0])
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-6), (apart, over), (apart_by_xla, over_by_xla))


def test_whole_numbers_and_very_large_windows_stay_as_they_are() -> None:
    large = partial(nn.max_pool, window_shape=(20, 20))
    whole = partial(lax.reduce_window, init_value=-(2**31), computation=lax.max, window_dimensions=(2, 2, 1))
    whole = partial(whole, window_strides=(2, 2, 1), padding="VALID")
    for function, x in ((large, jnp.ones((40, 40, 1))), (whole, IMAGE.astype(int))):
        assert "reduce_window_max" in str(jax.make_jaxpr(forms.quick(function))(x))


class Network(nn.Module):
    """What users write: with dropout where they ask for it."""

    @nn.compact
    def __call__(self, x: jax.Array, dropout: bool = False) -> jax.Array:
        x = nn.max_pool(nn.relu(nn.Conv(4, (3, 3))(x)), (2, 2), strides=(2, 2))
        x = nn.Dropout(0.5, deterministic=not dropout)(x)
        x = nn.avg_pool(nn.relu(nn.Conv(4, (2, 2), strides=2)(x)), (2, 2))
        return nn.Dense(3)(x.ravel())


SHAPES = jax.eval_shape(Network().init, jax.random.key(0), IMAGE)["params"]


def output(params: Any, x: jax.Array, key: jax.Array | None = None) -> Any:
    return Network().apply({"params": params}, x, key is not None, rngs=None if key is None else {"dropout": key})


def clipped(params: Any) -> Any:
    return per_example.clipped_sum(lambda p, x: jnp.sum(output(p, x) ** 2), params, IMAGE[None], clip_norm=1.0)


def samples(params: Any) -> Any:
    return mc_dropout.sample(jax.random.key(1), output, params, IMAGE[None], samples=3)


# The operations that stay on each platform: by the sum with its gradients, and by samples without.
STAY = {
    ("cpu", clipped): set[str](),
    ("gpu", clipped): {"conv_general_dilated"},
    ("tpu", clipped): set(SLOW),
    ("cpu", samples): set[str](),
    ("gpu", samples): {"conv_general_dilated"},
    ("tpu", samples): {"conv_general_dilated", "reduce_window"},
}


@pytest.mark.parametrize(("platform", "run"), STAY)
def test_a_users_network_takes_the_forms_of_its_platform(platform: str, run: Callable[..., Any]) -> None:
    with _platform.named(platform):
        program = str(jax.make_jaxpr(run)(SHAPES))
    assert {name for name in SLOW if name in program} == STAY[platform, run]
