"""What one unit moves the clipped sum by, in every type and with the worst of roundings: never more than C, or 2 C."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from dpaudit import InputError
from dpaudit.mechanisms import clipping
from dpaudit.personalization import user_level
from dpaudit.training import dp_sgd, per_example, unit_gradients

C = 1.37
TYPES = {"bfloat16": jnp.bfloat16, "float16": jnp.float16, "float32": jnp.float32}


def inner(params: Any, x: jax.Array) -> jax.Array:
    """Its gradient is the example, in the parameters' type."""
    return jnp.sum(params["w"] * x.astype(params["w"].dtype)).astype(jnp.float32)


def inputs(n: int, dtype: Any, clip_norm: float) -> Iterator[np.ndarray]:
    """[n]: all alike, of all sizes, and half of them near what a sum of the others rounds off."""
    rng = np.random.default_rng(n)
    yield np.full(n, 5 * clip_norm)
    yield np.abs(rng.normal(size=n)) * clip_norm
    yield rng.normal(size=n) * 3 * clip_norm
    first = int(n / 2 * (1 + per_example._slack(jnp.zeros(1), n))) + 1  # add up to a power of two and a little more
    for lost in (0.49, 0.74, 1.51, 1.51 / per_example.TOGETHER):
        x = np.full(n, 5 * clip_norm)
        x[first:] = lost * float(jnp.finfo(dtype).eps) * n / 2 * clip_norm
        yield x


def moved(
    clipped: Callable[[jax.Array, jax.Array], jax.Array], n: int, dtype: Any, clip_norm: float = C
) -> tuple[float, float]:
    """How far a unit moves ``clipped(x [n, 1], weights)``, in clip norms: (removed, replaced by its negative)."""
    call = jax.jit(lambda x, weights: jnp.ravel(clipped(x, weights)))
    removed, replaced = 0.0, 0.0
    for x in inputs(n, dtype, clip_norm):
        rows, ones = np.asarray(x[:, None], np.float32), np.ones(n, np.float32)
        whole = np.asarray(call(rows, ones), np.float64)
        for i in (0, n // 2 - 1, n - 1):
            here = np.arange(n) == i
            without = np.asarray(call(rows, np.where(here, 0, ones)), np.float64)
            other = np.asarray(call(np.where(here[:, None], np.float32(-5 * clip_norm), rows), ones), np.float64)
            removed = max(removed, float(np.linalg.norm(whole - without)))
            replaced = max(replaced, float(np.linalg.norm(whole - other)))
    return removed / clip_norm, replaced / clip_norm


def ours(
    dtype: Any, microbatch: int | None = None, clip_norm: float = C
) -> Callable[[jax.Array, jax.Array], jax.Array]:
    params = {"w": jnp.zeros(1, dtype)}

    def clipped(x: jax.Array, weights: jax.Array) -> jax.Array:
        total, _ = per_example.clipped_sum(
            inner, params, x, clip_norm=clip_norm, weights=weights, microbatch=microbatch
        )
        assert total["w"].dtype == jnp.promote_types(dtype, jnp.float32)
        return total["w"]

    return clipped


def narrow(dtype: Any) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """The fault: added up in the parameters' type."""

    def clipped(x: jax.Array, weights: jax.Array) -> jax.Array:
        factors = weights * jnp.minimum(1, C / jnp.abs(x[:, 0]))
        return jnp.tensordot(factors.astype(dtype), x.astype(dtype), axes=1)

    return clipped


@pytest.mark.parametrize("n", [2, 64, 512, 4_096])
@pytest.mark.parametrize("name", TYPES)
def test_no_unit_moves_the_sum_by_more_than_the_clip_norm(name: str, n: int) -> None:
    removed, replaced = moved(ours(TYPES[name]), n, TYPES[name])
    assert 0.999 < removed <= 1
    assert 1.998 < replaced <= 2


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_a_sum_in_the_parameters_type_moves_by_more(name: str) -> None:
    removed, replaced = moved(narrow(TYPES[name]), 2_048, TYPES[name])
    assert removed > 1.4 or replaced > 2.4


@pytest.mark.parametrize("name", TYPES)
def test_what_a_trainer_adds_noise_to_has_the_bound(name: str) -> None:
    def kept(key: jax.Array, total: Any, memory: Any) -> tuple[Any, Any]:
        return total, total

    noise = dp_sgd.Noise(clipping.wide, kept)
    trainer = dp_sgd.noisy_sums(inner, noise, clip_norm=C, batch_size=2_048, optimizer=optax.sgd(0.1))
    state = trainer.init({"w": jnp.zeros(1, TYPES[name])})

    def clipped(x: jax.Array, weights: jax.Array) -> jax.Array:
        return trainer.step(jax.random.key(0), state, x, weights)[0].noise["w"]

    removed, replaced = moved(clipped, 2_048, TYPES[name])
    assert 0.999 < removed <= 1
    assert 1.998 < replaced <= 2


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_sums_of_wide_numbers_in_64_bits(dtype: Any) -> None:
    with jax.enable_x64(True):
        removed, replaced = moved(ours(dtype), 512, dtype)
    assert 0.999 < removed <= 1
    assert 1.998 < replaced <= 2


def test_one_at_a_time_float32_would_drift_and_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """2,048 clipped gradients and as many of half a rounding error, each of which a running sum takes for a whole."""
    removed, replaced = moved(ours(jnp.float32, 1, 1.0), 4_096, jnp.float32, 1.0)
    assert removed <= 1
    assert replaced <= 2
    with monkeypatch.context() as plain:
        plain.setattr(clipping, "plus", lambda total, x: (jax.tree.map(jnp.add, total[0], x), total[1]))
        removed, _ = moved(ours(jnp.float32, 1, 1.0), 4_096, jnp.float32, 1.0)
        assert removed > 1.001
    slack = per_example._slack(jnp.zeros(1), 4_096)
    monkeypatch.setattr(per_example, "_slack", lambda params, units: slack)
    monkeypatch.setattr(per_example, "TOGETHER", 4_096)
    removed, _ = moved(ours(jnp.float32, 1, 1.0), 4_096, jnp.float32, 1.0)
    assert removed > 1.05


def test_without_room_for_rounding_the_bound_is_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(per_example, "_slack", lambda params, units: 0.0)
    removed, _ = moved(ours(jnp.float32), 4_096, jnp.float32)
    assert removed > 1 + 5e-5


class Embedded(nn.Module):
    """An embedding, a dense layer with more positions than one, a convolution and a parameter that is used twice."""

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = nn.Embed(7, 4, param_dtype=jnp.bfloat16, dtype=jnp.bfloat16)(tokens)
        x = nn.Dense(40, param_dtype=jnp.bfloat16, dtype=jnp.bfloat16)(x)
        x = nn.Conv(3, (2,), param_dtype=jnp.bfloat16, dtype=jnp.bfloat16)(x)
        scale = self.param("scale", nn.initializers.ones, (3,), jnp.bfloat16)
        return jnp.sum(jnp.sin(x * scale**2).astype(jnp.float32))


@pytest.mark.integration
@pytest.mark.parametrize("group", [1, 4])
def test_every_form_of_a_gradient_is_bounded_in_bfloat16(group: int) -> None:
    net, n = Embedded(), 512
    tokens = jnp.broadcast_to(jnp.array([1, 1, 2, 5, 1]), (n * group, 5))
    params = net.init(jax.random.key(0), tokens[0])["params"]

    def clipped(weights: jax.Array) -> jax.Array:
        weights = jnp.repeat(weights, group)
        total, _ = per_example.clipped_sum(
            lambda params, x: 1e3 * jnp.asarray(net.apply({"params": params}, x)),
            params,
            tokens,
            clip_norm=C,
            group_size=group,
            weights=weights,
        )
        assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(total))
        return ravel_pytree(total)[0]

    clipped = jax.jit(clipped)
    whole = np.asarray(clipped(jnp.ones(n)), np.float64)
    for i in (0, n - 1):
        without = np.asarray(clipped(jnp.ones(n).at[i].set(0)), np.float64)
        assert 0.999 * C < np.linalg.norm(whole - without) <= C
        rounded = [np.asarray(jnp.asarray(x, jnp.bfloat16), np.float64) for x in (whole, without)]
        assert np.linalg.norm(rounded[0] - rounded[1]) > 1.05 * C  # cast back, the bound would be gone


def test_the_same_room_on_one_device_and_on_many() -> None:
    """Four parts of 128 users are clipped as 512: their sum has the bound of the whole."""
    x, weights = np.full((512, 1, 1), 5 * C, np.float32), np.ones((512, 1), np.float32)
    params = {"w": jnp.zeros(1)}

    def total(x: np.ndarray, weights: np.ndarray, **more: Any) -> jax.Array:
        of = partial(user_level.clipped_sum, inner, clip_norm=C, mean=True, most=512, **more)
        return jax.jit(of)(params, x, weights)["w"]

    whole, part = total(x, weights), total(x[:128], weights[:128], part_of=512)
    np.testing.assert_allclose(4 * part, whole, rtol=1e-6)
    alone = total(x[:128], weights[:128])
    assert abs(4 * float(alone[0]) / float(whole[0]) - 1) > 1e-5


FUNCTIONS: dict[str, per_example.Clipping] = {
    "flat": per_example.flat,
    "per_layer": per_example.per_layer,
    "automatic": per_example.automatic,
    "automatic, hardly stabilised": partial(per_example.automatic, stability=1e-12),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [*TYPES.values(), jnp.float64])
def test_a_factor_times_its_norm_is_never_above_the_clip_norm(name: str, dtype: Any) -> None:
    """Norms of three layers, and clip norms, as they are in their type."""
    with jax.enable_x64(True) if dtype == jnp.float64 else contextlib.nullcontext():
        draws = np.random.default_rng(3).normal(size=(3, 20_000))
        norms = jnp.asarray(np.exp(2 * draws) * C, dtype)
        for clip_norm in (C, 0.3, jnp.asarray(C, dtype)):
            factors = np.asarray(FUNCTIONS[name](norms, clip_norm), np.float64)
            lengths = np.linalg.norm(factors * np.asarray(norms, np.float64), axis=0)
            assert lengths.max() <= float(clip_norm)
            assert lengths.max() > 0.99 * float(clip_norm)


def test_a_factor_in_bfloat16_would_be_above() -> None:
    norms = jnp.asarray(np.exp(np.random.default_rng(3).normal(size=2_000)), jnp.bfloat16)
    factors = np.asarray(jnp.minimum(1, jnp.bfloat16(C) / norms), np.float64)
    assert (factors * np.asarray(norms, np.float64)).max() > 1.003 * float(jnp.bfloat16(C))


@pytest.mark.parametrize("ord", [1, 2])
@pytest.mark.parametrize("dtype", TYPES.values())
def test_a_clipped_vector_is_never_longer_than_the_clip_norm(ord: int, dtype: Any) -> None:
    rng = np.random.default_rng(4)
    for size in (1, 3, 100, 20_000):
        xs = jnp.asarray(rng.normal(size=(30, size)) * np.exp(rng.normal(size=(30, 1))), dtype)
        found = np.asarray(jax.jit(jax.vmap(lambda x: clipping.clip(x, C, ord)))(xs), np.float64)
        assert 0.999 * C < np.linalg.norm(found, ord, axis=1).max() <= C


@pytest.mark.parametrize("ord", [1, 2])
def test_nor_is_one_of_32_bits_where_jax_computes_in_64(ord: int) -> None:
    xs = np.random.default_rng(5).normal(size=(3_000, 7)).astype(np.float32)
    with jax.enable_x64(True):
        found = jax.vmap(lambda x: clipping.clip(x, 0.1, ord))(xs)
    assert found.dtype == jnp.float32
    assert 0.0999 < np.linalg.norm(np.asarray(found, np.float64), ord, axis=1).max() <= 0.1


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_factor_for_32_bits_may_be_rounded_to_them(name: str) -> None:
    norms = np.exp(np.random.default_rng(6).normal(size=(1, 5_000))).astype(np.float32)
    with jax.enable_x64(True):
        factors = np.asarray(FUNCTIONS[name](jnp.asarray(norms), 0.1), np.float32)
    assert 0.099 < (factors.astype(np.float64) * norms).max() <= 0.1


def of_outer_products(huge: float, small: float, examples: int, group: int = 1) -> float:
    """The largest clipped sum, in clip norms, of dense gradients huge * small in each of 1,000 numbers of a unit."""

    def loss(params: Any, x: jax.Array) -> jax.Array:
        return jnp.sum((x @ params["w"]) * jnp.float32(small))

    x = jnp.full((examples, 1), huge / group, jnp.float32)
    total, _ = per_example.clipped_sum(loss, {"w": jnp.zeros((1, 1_000))}, x, clip_norm=C, group_size=group)
    return float(np.linalg.norm(np.asarray(total["w"], np.float64))) / C / (examples // group)


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize(("huge", "small"), [(1.8e19, 8e-20), (1e18, 1.05e-19), (1e15, 1e-15), (8e-20, 1.8e19)])
def test_an_input_of_any_size_does_not_hide_a_small_cotangent(huge: float, small: float, group: int) -> None:
    assert of_outer_products(huge, small, examples=2 * group, group=group) <= 1


def test_squares_that_vanish_would_hide_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unit_gradients, "_at_least", lambda x: jnp.sum(jnp.square(x), axis=-1))
    assert of_outer_products(1.8e19, 8e-20, examples=2) > 30


@pytest.mark.parametrize("many", [4_193_785, 10**7, 10**8])
def test_so_many_units_that_rounding_takes_more_than_half_the_clip_norm_are_refused(many: int) -> None:
    """Of 8.4 million on, what is left of the clip norm was negative: gradients were turned round, and longer."""
    call = partial(per_example.clipped_sum, inner, {"w": jnp.zeros(1)}, clip_norm=C)
    with pytest.raises(InputError, match=rf"^part_of: expected so few units that .*4,193,784 .*, got {many} units$"):
        call(jnp.ones((2, 1)), part_of=many)
    with pytest.raises(InputError, match=rf"^batch: expected so few units that .*, got {many} units"):
        jax.eval_shape(call, jax.ShapeDtypeStruct((many, 1), jnp.float32))
    with jax.enable_x64(True):
        total, _ = per_example.clipped_sum(
            inner, {"w": jnp.zeros(1, jnp.float64)}, jnp.ones((1, 1)), clip_norm=C, part_of=many
        )
        assert float(total["w"][0]) == pytest.approx(1.0)


def test_as_many_units_as_are_taken_keep_half_the_clip_norm() -> None:
    x = jnp.array([[5 * C]])
    total, _ = per_example.clipped_sum(inner, {"w": jnp.zeros(1)}, x, clip_norm=C, part_of=4_193_784)
    assert 0.49 * C < float(total["w"][0]) <= C
