"""What is read from a program's text: every fault is seen in a program that has it, and none in its twin."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from experiments.bench import hlo, operations
from tests.accelerators.contract import breaches

ROWS = jnp.ones((60, 8))


def program(function: Callable[..., Any], *arguments: Any) -> hlo.Program:
    return hlo.read(str(jax.jit(function).lower(*arguments).compile().as_text()))


def one(row: jax.Array) -> jax.Array:
    return jnp.sum(jnp.sort(row) ** 2)


def product(precision: Any) -> Callable[[jax.Array], jax.Array]:
    return lambda x: jnp.einsum("ij,kj->ik", jnp.sin(x), x, precision=precision)


def twice(x: Any) -> np.ndarray:
    return np.asarray(2 * x)


def asks_the_host(x: jax.Array) -> jax.Array:
    return jax.pure_callback(twice, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


@pytest.mark.parametrize(
    ("good", "bad", "told"),
    [
        (jax.vmap(one), lambda x: lax.map(one, x), "a loop of 60 trips"),
        (lambda x: jnp.sin(x), asks_the_host, "a call to the host"),
        (product(lax.Precision.HIGHEST), product(None), "a product that is not in full precision"),
    ],
)
def test_a_fault_is_seen(good: Callable[..., Any], bad: Callable[..., Any], told: str) -> None:
    asked: dict[str, Any] = {"counts": (60,), "decides": True}
    assert breaches(program(good, ROWS), **asked) == []
    (found,) = breaches(program(bad, ROWS), **asked)
    assert found.startswith(told)


def test_float64_is_seen() -> None:
    with jax.enable_x64(True):
        assert breaches(program(jnp.cumsum, jnp.ones(9, jnp.float64))) == ["float64"]
        assert breaches(program(jnp.cumsum, jnp.ones(9, jnp.float32))) == []


@pytest.mark.parametrize("loop", [lax.fori_loop, None])
def test_a_loop_of_unknown_length_is_one_without_a_count(loop: Any) -> None:
    def run(n: jax.Array, x: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 7 if loop is None else n, lambda i, x: jnp.sin(x) + x[::-1], x)

    (found,) = hlo.loops(program(run, 7, jnp.ones(5)))
    assert found.trips == (7 if loop is None else None)


def test_kernels_and_bytes_count_once_per_trip() -> None:
    def run(x: jax.Array, trips: int) -> jax.Array:
        return lax.fori_loop(0, trips, lambda i, x: jnp.sort(x * i), x)

    few, many = (program(lambda x, n=n: run(x, n), jnp.ones(1000)) for n in (10, 30))
    per_trip = (hlo.moved(many) - hlo.moved(few)) / 20
    assert 8_000 <= per_trip < 40_000  # at least 4,000 bytes read and as many written
    assert (hlo.kernels(many) - hlo.kernels(few)) % 20 == 0
    assert hlo.kernels(many) > hlo.kernels(few)


def test_a_slice_of_an_operand_is_what_is_read() -> None:
    whole = jnp.ones((1000, 1000))
    rows = program(lambda x, i: jnp.sin(lax.dynamic_index_in_dim(x, i)), whole, 3)
    assert hlo.moved(rows) < 20_000
    assert hlo.moved(program(jnp.sin, whole)) == 8e6


# As XLA writes them for a TPU and a GPU.
TPU = """
%body.1 (p.1: (s32[], f32[64,4])) -> (s32[], f32[64,4]) {
  %p.1 = (s32[]{:T(128)}, f32[64,4]{1,0:T(8,128)}) parameter(0)
  ROOT %t.1 = (s32[]{:T(128)}, f32[64,4]{1,0:T(8,128)}) tuple(%p.1)
}

%condition.1 (p.2: (s32[], f32[64,4])) -> pred[] {
  %constant.1 = s32[]{:T(128)} constant(1000)
  %p.2 = (s32[]{:T(128)}, f32[64,4]{1,0:T(8,128)}) parameter(0)
  %number.1 = s32[]{:T(128)} get-tuple-element(%p.2), index=0
  ROOT %less.1 = pred[]{:T(512)} compare(%number.1, %constant.1), direction=LT
}

ENTRY %main.1 (x.1: f32[64,4]) -> f32[64,4] {
  %x.1 = f32[64,4]{1,0:T(8,128)} parameter(0)
  %y.1 = f32[64,4]{0,1:T(4,128)} convolution(%x.1, %x.1), dim_labels=bf_io->bf, operand_precision={highest,highest}
  %sum.1 = f32[64,4]{1,0:T(8,128)} all-reduce-start(%x.1), channel_id=1, to_apply=%add
  %sum.2 = f32[64,4]{1,0:T(8,128)} all-reduce-done(%sum.1)
  %w.1 = (s32[]{:T(128)}, f32[64,4]{1,0:T(8,128)}) while(%x.1), condition=%condition.1, body=%body.1
  ROOT %z.1 = f32[64,4]{1,0:T(8,128)} get-tuple-element(%w.1), index=1
}
"""
GEMM = (
    "ENTRY %main.1 (x.1: f32[8,8]) -> f32[8,8] {{\n  %x.1 = f32[8,8]{{1,0}} parameter(0)\n"
    '  %y.1 = (f32[8,8]{{1,0}}, s8[4096]{{0}}) custom-call(%x.1, %x.1), custom_call_target="__cublas$lt$matmul", '
    'backend_config={{"gemm_backend_config":{{"precision_config":{{"operand_precision":["{0}","{0}"]}}}}}}\n}}\n'
)


def test_a_tpu_s_text() -> None:
    found = hlo.read(TPU)
    assert [loop.trips for loop in hlo.loops(found)] == [1000]
    assert hlo.collectives(found) == {"all-reduce": 1}
    assert hlo.loose_products(found) == []
    assert hlo.loose_products(hlo.read(TPU.replace(", operand_precision={highest,highest}", ""))) == ["y.1"]
    arrays = found.computations["main.1"]["x.1"].arrays[0], found.computations["main.1"]["y.1"].arrays[0]
    assert [(array.bytes, array.padded) for array in arrays] == [(1024, 32768), (1024, 2048)]
    assert dict(hlo.padding(found, least=1))["x.1"] == 32
    assert len(breaches(found, counts=(1000,))) == 1  # small arrays may be padded


def test_a_gpu_s_text() -> None:
    assert hlo.loose_products(hlo.read(GEMM.format("HIGHEST"))) == []
    assert hlo.loose_products(hlo.read(GEMM.format("DEFAULT"))) == ["y.1"]
    assert hlo.moved(hlo.read(GEMM.format("HIGHEST"))) == 3 * 256  # not the room to work in


def test_operations_are_counted() -> None:
    def run(x: jax.Array) -> jax.Array:
        return lax.scan(lambda total, row: (total + x @ row, None), jnp.zeros(4), jnp.ones((5, 3)))[0]

    assert operations.count(jax.make_jaxpr(run)(jnp.ones((4, 3)))) == operations.Count(5 * 2 * 4 * 3, 5 * 4)
    image, kernel = jnp.ones((2, 9, 9, 3)), jnp.ones((3, 3, 3, 7))
    convolved = jax.make_jaxpr(
        lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    )(image, kernel)
    assert operations.count(convolved).products == 2 * (2 * 7 * 7 * 7) * (3 * 3 * 3)
