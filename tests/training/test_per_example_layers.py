"""Every layer against float64 vmap(grad): which way each parameter went, and that the numbers are the same."""

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpaudit import _platform
from dpaudit._engine.programs import record
from dpaudit._validate import InputError
from dpaudit.training import per_example, taps, unit_gradients
from tests.training import by_vmap

N = 6


class Then(nn.Module):
    """Layers one after another, and a head that makes every coordinate of the output matter differently."""

    layers: tuple[Callable[..., Any], ...]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers:
            x = layer(x)
        return jnp.sum(jnp.sin(x.ravel() * (1 + jnp.arange(x.size) % 7)))


class Shared(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        twice = nn.Dense(4)
        return jnp.sum(jnp.sin(nn.Dense(3)(twice(jnp.tanh(twice(x))))))


class Tied(nn.Module):
    """An embedding that is also the output layer, as language models have."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        table = nn.Embed(7, 4)
        return jnp.sum(jnp.sin(table.attend(nn.Dense(4)(table(x)))))


class Own(nn.Module):
    """A layer of its own making: the weights enter by their square."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        kernel = self.param("kernel", nn.initializers.normal(), (x.shape[-1], 3))
        return jnp.sum(jnp.sin(nn.Dense(4)(x @ kernel**2)))


def compiled_inside(net: nn.Module) -> Any:
    """The same network behind jit and remat."""
    return lambda params, x: jax.jit(jax.checkpoint(lambda p, x: net.apply({"params": p}, x)))(params, x)


MAX = partial(nn.max_pool, window_shape=(3, 2), strides=(1, 2), padding="SAME")
AVERAGE = partial(nn.avg_pool, window_shape=(2, 1))
VECTOR, SEQUENCE, IMAGE, TOKENS = (5,), (6, 4), (7, 6, 4), (9,)
# name: (network, shape of one example, parameters that go the long way)
CASES: dict[str, tuple[nn.Module, tuple[int, ...], int]] = {
    "dense": (Then((nn.Dense(4), nn.tanh, nn.Dense(3, use_bias=False))), VECTOR, 0),
    "dense on positions, written out": (Then((nn.Dense(3), nn.tanh, nn.Dense(2))), SEQUENCE, 0),
    "dense on positions, gram": (Then((nn.Dense(40), nn.tanh, nn.Dense(40))), SEQUENCE, 0),
    "dense general": (Then((nn.DenseGeneral((2, 3), axis=(0, -1)), nn.DenseGeneral(3, axis=0))), IMAGE, 0),
    "dense general, batched": (Then((nn.DenseGeneral(3, axis=-1, batch_dims=(0,)),)), SEQUENCE, 0),
    "einsum": (Then((nn.Einsum((4, 2, 3), "ta,abc->btc"),)), SEQUENCE, 0),
    "attention": (Then((nn.MultiHeadDotProductAttention(2, qkv_features=4),)), SEQUENCE, 0),
    "conv": (Then((nn.Conv(3, (3, 2)), nn.tanh, nn.Conv(2, (2, 2), padding="VALID"))), IMAGE, 0),
    "conv, strides and dilation": (Then((nn.Conv(3, (2, 3), strides=(2, 1), kernel_dilation=(1, 2)),)), IMAGE, 0),
    "conv, input dilation": (Then((nn.Conv(3, (3, 3), input_dilation=2, padding=((0, 2), (1, 0))),)), IMAGE, 0),
    "conv, groups": (Then((nn.Conv(6, (3, 3), feature_group_count=2),)), IMAGE, 0),
    "conv, depth-wise": (Then((nn.Conv(8, (2, 2), feature_group_count=4, padding="CIRCULAR"),)), IMAGE, 0),
    "conv, gram": (Then((nn.Conv(40, (3, 3), strides=3),)), IMAGE, 0),
    "conv, causal": (Then((nn.Conv(3, (3,), padding="CAUSAL"),)), SEQUENCE, 0),
    "conv, local": (Then((nn.ConvLocal(3, (2, 2)),)), IMAGE, 0),
    "conv, transposed": (Then((nn.ConvTranspose(3, (3, 3), strides=(2, 2)),)), IMAGE, 0),
    "pools": (Then((nn.Conv(3, (3, 3)), MAX, nn.Conv(4, (2, 2), 2), AVERAGE)), IMAGE, 0),
    "norms": (Then((nn.LayerNorm(), nn.GroupNorm(2), nn.RMSNorm(), nn.InstanceNorm())), IMAGE, 0),
    "embedding": (Then((nn.Embed(5, 4), nn.Dense(3))), TOKENS, 0),
    "shared": (Shared(), (4,), 2),
    "tied": (Tied(), TOKENS, 1),
    "own": (Own(), SEQUENCE, 1),
}

ONE_BY_ONE = {"dense", "dense on positions, gram", "conv", "conv, groups", "norms", "embedding", "own"}


def prepared(net: nn.Module, shape: tuple[int, ...]) -> tuple[Any, jax.Array]:
    rng = np.random.default_rng(7)
    numbers = rng.integers(0, 5, (N, *shape)) if shape == TOKENS else rng.normal(size=(N, *shape)).astype(np.float32)
    return by_vmap.some_parameters(8, net, numbers[0]), jnp.asarray(numbers)


RAGGED = 3, jnp.array([1, 0.5, 0, 2, 1, 3])


def assert_as_by_vmap(loss: Any, params: Any, batch: Any, units: Any = (RAGGED,)) -> None:
    each = by_vmap.gradients(loss, params, batch)
    for group_size, weights in units:
        clip_norm = float(by_vmap.clipped_sum(each, 1.0, group_size, weights)[1].mean())  # clips about a half
        wanted, norms = by_vmap.clipped_sum(each, clip_norm, group_size, weights)
        call = partial(per_example.clipped_sum, loss, clip_norm=clip_norm, group_size=group_size, weights=weights)
        total, info = jax.jit(call)(params, batch)
        assert by_vmap.relative_error(total, wanted) < 1e-5
        assert by_vmap.relative_error(info.norms, norms) < 1e-5


def found(loss: Any, params: Any, batch: Any) -> dict[int, taps.Site]:
    return taps.sites(record(loss, params, batch[0]), jax.tree.leaves(params))


@pytest.mark.integration
@pytest.mark.parametrize("name", CASES)
def test_layer(name: str) -> None:
    net, shape, long_way = CASES[name]
    params, batch = prepared(net, shape)

    def loss(params: Any, x: jax.Array) -> Any:
        return net.apply({"params": params}, x)

    assert len(jax.tree.leaves(params)) - len(found(loss, params, batch)) == long_way
    assert_as_by_vmap(loss, params, batch, ((1, None), RAGGED) if name in ONE_BY_ONE else (RAGGED,))


def test_calls_are_looked_into() -> None:
    net, shape, _ = CASES["conv"]
    params, batch = prepared(net, shape)
    assert len(found(compiled_inside(net), params, batch)) == 4
    assert_as_by_vmap(compiled_inside(net), params, batch)


def test_a_layer_used_elsewhere_too() -> None:
    """A penalty on one kernel: that kernel alone goes the long way."""
    net, shape, _ = CASES["dense"]
    params, batch = prepared(net, shape)

    def loss(params: Any, x: jax.Array) -> Any:
        return jnp.asarray(net.apply({"params": params}, x)) + jnp.sum(params["layers_0"]["kernel"] ** 3)

    assert len(jax.tree.leaves(params)) - len(found(loss, params, batch)) == 1
    assert_as_by_vmap(loss, params, batch)


@pytest.mark.parametrize("mode", ["clip", "fill"])
def test_rows_out_of_range_are_read_and_moved_as_jax_does(mode: str) -> None:
    """-1 is the last of 7 rows; 7 and -9 are none, or the nearest."""
    index, scales = jnp.tile(jnp.array([0, 6, 7, -1, -9, 3]), (N, 1)), jnp.arange(1.0, N + 1)

    def loss(params: Any, example: Any) -> Any:
        index, scale = example
        rows = params["table"].at[index].get(mode=mode, fill_value=0.0)
        return jnp.sum(jnp.sin(scale * rows * jnp.arange(1.0, 7.0)[:, None]))

    assert_as_by_vmap(loss, {"table": jax.random.normal(jax.random.key(2), (7, 3))}, (index, scales))


@pytest.mark.parametrize("mode", ["clip", "fill"])
@pytest.mark.parametrize(("dtype", "rows"), [(np.uint8, 256), (np.uint8, 260), (np.int8, 130), (np.int16, 40_000)])
def test_bytes_look_up_rows_of_tables_with_more_rows_than_their_type_counts(mode: str, dtype: Any, rows: int) -> None:
    """As of a model of bytes, whose tokens are uint8."""
    index = jnp.asarray(np.random.default_rng(0).integers(0, 128, (N, 5)), dtype)

    def loss(params: Any, index: jax.Array) -> Any:
        return jnp.sum(jnp.sin(jnp.take(params["table"], index, axis=0, mode=mode) * jnp.arange(1.0, 6.0)[:, None]))

    params = {"table": jax.random.normal(jax.random.key(2), (rows, 3))}
    few, many = (
        per_example.clipped_sum(loss, params, each, clip_norm=1.0) for each in (index, index.astype(jnp.int32))
    )
    jax.tree.map(np.testing.assert_array_equal, few, many)  # XLA's own gradient is wrong where it does not optimise
    assert_as_by_vmap(loss, params, index.astype(jnp.int32))


@pytest.mark.parametrize(("dtype", "most"), [(np.uint8, 255), (np.int8, 127), (np.int32, 70_000), (np.bool_, 1)])
@pytest.mark.parametrize("positions", [1, 2])
def test_whole_numbers_are_clipped_as_the_same_numbers_with_a_point(dtype: Any, most: int, positions: int) -> None:
    """Features that nothing has converted; squares of bytes would be 0 for 16."""
    x = np.random.default_rng(0).integers(0, most, (N, positions, 40), endpoint=True)
    x[0, 0] = min(16, most)

    def loss(params: Any, x: jax.Array) -> Any:
        return jnp.sum((x @ params["w"]) * jnp.arange(1.0, 41.0))

    whole, pointed = (
        per_example.clipped_sum(loss, {"w": jnp.zeros((40, 40))}, jnp.asarray(x, kind), clip_norm=1.0)
        for kind in (dtype, np.float32)
    )
    jax.tree.map(np.testing.assert_array_equal, whole, pointed)
    alone, _ = per_example.clipped_sum(loss, {"w": jnp.zeros((40, 40))}, jnp.asarray(x[:1], dtype), clip_norm=1.0)
    assert 0.999 < np.linalg.norm(np.asarray(alone["w"], np.float64)) <= 1


CONV = partial(
    st.builds,
    partial(nn.Conv, use_bias=True),
    features=st.sampled_from([2, 4]),
    kernel_size=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    strides=st.integers(1, 2),
    kernel_dilation=st.integers(1, 2),
    feature_group_count=st.sampled_from([1, 2]),
)
LAYERS = st.one_of(
    CONV(padding=st.just("SAME")),
    CONV(padding=st.just(2), input_dilation=st.integers(1, 2)),  # JAX has no "SAME" here
    st.builds(nn.Dense, features=st.sampled_from([2, 6]), use_bias=st.booleans()),
    st.builds(nn.GroupNorm, num_groups=st.just(2), epsilon=st.just(0.1), use_scale=st.booleans()),
)


@pytest.mark.integration
@settings(max_examples=4)
@given(layers=st.lists(LAYERS, min_size=1, max_size=3), repeated=st.booleans())
def test_random_networks(layers: list[nn.Module], repeated: bool) -> None:
    shared = nn.Dense(4)
    net = Then((nn.Dense(4), nn.tanh, *layers, *((nn.Dense(4), shared, nn.tanh, shared) if repeated else ())))
    params, batch = prepared(net, (4, 3, 2))
    assert_as_by_vmap(lambda params, x: net.apply({"params": params}, x), params, batch)


@pytest.mark.parametrize("name", ["conv", "conv, strides and dilation", "conv, groups", "conv, causal"])
def test_convolutions_for_accelerators_are_the_same_sum(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU from rows of patches and shifts where these are fewer, on a TPU without joining a unit's examples."""
    net, shape, _ = CASES[name]
    params, batch = prepared(net, shape)
    by_both_sides, rows = [], unit_gradients._both_sides

    def loss(params: Any, x: jax.Array) -> Any:
        return net.apply({"params": params}, x)

    def seen(*arguments: Any) -> Any:
        by_both_sides.append(rows(*arguments) is not None)
        return rows(*arguments)

    monkeypatch.setattr(unit_gradients, "_both_sides", seen)
    found = []
    for kind in ("cpu", "gpu", "tpu"):
        with _platform.named(kind):
            call = partial(per_example.clipped_sum, loss, clip_norm=0.5, group_size=3, weights=RAGGED[1])
            found.append(jax.jit(call)(params, batch))
    for other in found[1:]:
        for own, wanted in zip(jax.tree.leaves(other), jax.tree.leaves(found[0]), strict=True):
            np.testing.assert_allclose(own, wanted, rtol=1e-5, atol=1e-6)
    assert any(by_both_sides) == (name == "conv")


def test_a_parameter_that_the_data_divide_keeps_its_unit_beside_padding() -> None:
    """Padding is no divisor of zero: its NaN would drop the unit."""

    def loss(params: Any, x: jax.Array) -> jax.Array:
        return jnp.sum(params["w"] / (1 + x**2))

    params, batch = {"w": jnp.ones(3)}, jnp.asarray(np.random.default_rng(5).normal(size=(6, 3)), jnp.float32)
    weights = jnp.array([1, 0, 0.5, 2, 0, 0])
    wanted, norms = by_vmap.clipped_sum(by_vmap.gradients(loss, params, batch), 0.9, 2, weights)
    total, info = per_example.clipped_sum(loss, params, batch, clip_norm=0.9, group_size=2, weights=weights)
    assert int(info.dropped) == 0
    np.testing.assert_allclose(info.norms, norms, rtol=1e-5)
    assert by_vmap.relative_error(total, wanted) < 1e-5


def test_weights_may_be_a_list() -> None:
    inputs = jax.random.normal(jax.random.key(0), (3, 2))

    def total(weights: Any) -> Any:
        return per_example.clipped_sum(
            lambda p, x: jnp.sum(p * x), jnp.ones(2), inputs, clip_norm=9.0, weights=weights
        )

    np.testing.assert_array_equal(total([1, 0, 2])[0], total(jnp.array([1.0, 0.0, 2.0]))[0])
    with pytest.raises(InputError, match=r"weights: expected shape \[3\], one per example, got shape \[2\]"):
        total([1, 0])


COMPLEX: dict[str, Any] = {
    "product": lambda p, x: jnp.abs(x @ p) ** 2,
    "from the left": lambda p, x: jnp.abs(p @ x) ** 2,
    "the real part": lambda p, x: jnp.real(x @ p) ** 3,
    "beside reals": lambda p, x: jnp.abs(x @ p) ** 2 + jnp.sum(jnp.sin(jnp.imag(x))),
    "each": lambda p, x: jnp.sum(jnp.abs(x * p) ** 2),
}


@pytest.mark.parametrize("name", COMPLEX)
def test_a_real_parameter_that_meets_complex_numbers_has_the_gradient_of_jax(name: str) -> None:
    """Their imaginary parts were dropped."""
    loss, p = COMPLEX[name], jnp.array([0.5, -0.25])
    x = jnp.array([[1 + 2j, 3 - 1j], [2j, -1j]])
    wanted = np.stack([jax.grad(loss)(p, one) for one in x])
    for one, gradient in zip(x, wanted, strict=True):
        total, info = per_example.clipped_sum(loss, p, one[None], clip_norm=1e6)
        np.testing.assert_allclose(total, gradient, rtol=2e-6)
        assert float(info.norms[0]) == pytest.approx(np.linalg.norm(gradient), rel=1e-6)
    total, _ = per_example.clipped_sum(loss, p, x, clip_norm=1e6)
    np.testing.assert_allclose(total, wanted.sum(axis=0), rtol=2e-6)
    assert np.abs(wanted).max() > 0.1
