"""Computes squared norms and weighted sums of many units' gradients for one parameter, written out only where cheap.

A unit is a run of consecutive examples (one, or those of a client or user) whose gradients are added. Every form below
is a NamedTuple with ``squared()``, the squared L2 norm per unit [u], and ``total(factors)``, the sum over units of
factor times gradient. The caller gives a unit whose square is not finite the factor 0; it then adds exactly nothing,
so that NaN never spreads. Everything is in float32 or wider, with products in full precision, because these numbers
decide how much a clipped unit weighs.

The gradients come from taps (:mod:`dpaudit.training.taps`): of each example the operand a that meets a parameter, and
the cotangent d of the output.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax import lax

from dpaudit import _platform
from dpaudit.mechanisms.clipping import HIGHEST, einsum, wide
from dpaudit.training.taps import Site
from dpaudit.training.windows import patches

WRITTEN = 1 << 29  # bytes of gradients that an accelerator writes out at a time, only to square them

MORE = 4  # times the numbers of a and d: so many a CPU writes out, in caches, rather than compute them twice

UnitGradients = Any  # Explicit | Product | Lookup | Moved


class Explicit(NamedTuple):
    """Gradients written out, one per unit."""

    gradients: jax.Array  # [u, ...]

    def squared(self) -> jax.Array:
        return jnp.sum(jnp.square(self.gradients), axis=range(1, self.gradients.ndim))

    def total(self, factors: jax.Array) -> jax.Array:
        sound = jnp.isfinite(self.squared())

        def add(gradients: jax.Array) -> jax.Array:
            return jnp.tensordot(factors, gradients, axes=1, precision=HIGHEST)

        def add_sound(gradients: jax.Array) -> jax.Array:
            return add(jnp.where(_like(sound, gradients), gradients, 0))

        if not _platform.on_cpu():
            return add_sound(self.gradients)  # fused into the sum, where a branch would ask the host
        # The second costs a copy of the gradients. Under vmap, for networks side by side, both are computed.
        return lax.cond(sound.all(), add, add_sound, self.gradients)


class Product(NamedTuple):
    """Gradient of unit u: sum over its positions t of the outer product a_t d_t, for every block b of the weights.

    Squared norm: |a|^2 |d|^2 where there is one position.
    """

    a: jax.Array  # [u, t, b, k]
    d: jax.Array  # [u, t, b, o]

    def squared(self) -> jax.Array:
        if self.a.shape[1] == 1:
            return jnp.sum(_at_least(self.a) * _at_least(self.d), axis=(1, 2))
        rows = jnp.sum(jnp.square(self.a), -1) * jnp.sum(jnp.square(self.d), -1)  # [u, t, b]

        def one(unit: tuple[jax.Array, jax.Array]) -> jax.Array:
            return jnp.sum(jnp.square(einsum("tbo,tbk->bok", unit[1], unit[0])))

        # Written out, because the inner products of positions that cancel would be only rounding: on a CPU one unit
        # at a time, which stays in its caches; on an accelerator, which would wait for each, as many as there is room.
        written = self.a[0, 0].size * self.d.shape[-1] * self.d.dtype.itemsize
        at_once = 1 if _platform.on_cpu() else max(1, WRITTEN // written)
        every = lax.map(one, (self.a, self.d)) if at_once == 1 else _in_parts(one, (self.a, self.d), at_once)
        return _rounded_up(every, jnp.sum(jnp.sqrt(rows), axis=(1, 2)))

    def total(self, factors: jax.Array) -> jax.Array:
        a = jnp.where(_like(factors, self.a) == 0, 0, self.a)
        return einsum("utbo,utbk->bok", _scaled(self.d, factors), a).swapaxes(1, 2)


def _in_parts(one: Callable[[Any], jax.Array], units: Any, size: int) -> jax.Array:
    """Maps ``one`` over units, ``size`` of them at a time: in one product where there are no more."""
    if len(units[0]) <= size:
        return jax.vmap(one)(units)
    return lax.map(one, units, batch_size=size)


class Lookup(NamedTuple):
    """Gradient of unit u: row d_t added to row index_t of a table, for every position t."""

    index: jax.Array  # [u, t]
    d: jax.Array  # [u, t, o]
    rows: int

    def squared(self) -> jax.Array:
        same = (self.index[:, :, None] == self.index[:, None, :]).astype(self.d.dtype)
        merged = einsum("uts,uso->uto", same, self.d)  # a row's sum, once for each of its positions
        squared = jnp.sum(jnp.sum(jnp.square(merged), -1) / jnp.sum(same, -1), axis=1)
        return _rounded_up(squared, jnp.sum(jnp.linalg.norm(self.d, axis=-1), axis=1))

    def total(self, factors: jax.Array) -> jax.Array:
        table = jnp.zeros((self.rows, self.d.shape[-1]), self.d.dtype)
        return table.at[self.index.ravel()].add(_scaled(self.d, factors).reshape(-1, self.d.shape[-1]), mode="drop")


class Moved(NamedTuple):
    """Unit gradients for a rearranged parameter; ``back`` undoes the rearrangement."""

    inner: UnitGradients
    back: Callable[[jax.Array], jax.Array]

    def squared(self) -> jax.Array:
        return self.inner.squared()

    def total(self, factors: jax.Array) -> jax.Array:
        return self.back(self.inner.total(factors))


def unit_gradients(
    site: Site, parameter: jax.Array, others: list[jax.Array], d: jax.Array, group: int
) -> UnitGradients:
    """Returns the gradients for one tapped parameter, in the cheapest form.

    Args:
      site: where the parameter is used.
      parameter: its value.
      others: the other operands of that step, [n, ...] each.
      d: [n, ...], the cotangent of the step's output, weights of the examples included.
      group: consecutive examples per unit.
    """
    parameter = wide(parameter)
    others = [x.astype(parameter.dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x for x in others]
    d = d.astype(parameter.dtype)
    name = site.step.primitive.name
    if name == "dot_general":
        return _dot(site, parameter, others[0], d, group)
    if name == "conv_general_dilated":
        return _convolution(site, parameter, others[0], d, group)
    if name == "gather" and _takes_rows(site, parameter):
        return _lookup(site, parameter, others[0], d, group)

    def one(others: list[jax.Array], d: jax.Array) -> jax.Array:
        return jax.vjp(lambda p: site.use(p, others), parameter)[1](d)[0]

    return explicit(jax.vmap(one)(others, d), group)


def explicit(gradients: jax.Array, group: int) -> Explicit:
    """Builds unit gradients from one gradient per example, [n, ...]."""
    gradients = wide(gradients)
    return Explicit(_units(gradients, group).sum(axis=1) if group > 1 else gradients)


def _dot(site: Site, parameter: jax.Array, a: jax.Array, d: jax.Array, group: int) -> UnitGradients:
    a = a.astype(parameter.dtype)  # whole numbers too, whose squares would overflow
    contract, batch = site.step.params["dimension_numbers"]
    mine, other = site.operand, 1 - site.operand
    shape = jax.eval_shape(site.seen, parameter).shape
    free = _rest(len(shape), [*contract[mine], *batch[mine]])
    positions = _rest(a.ndim - 1, [*contract[other], *batch[other]])
    n, b, k, o = len(a), *(math.prod(shape[i] for i in axes) for axes in (batch[mine], contract[mine], free))
    a = a.transpose(0, *(1 + i for i in (*positions, *batch[other], *contract[other]))).reshape(n, -1, b, k)
    # The output's axes: batch, then what is free of the left operand, then of the right.
    left, right = (free, positions) if mine == 0 else (positions, free)
    axes = list(range(1, d.ndim))
    blocks, lefts, rights = _cut(axes, len(batch[0]), len(left), len(right))
    ours, theirs = (lefts, rights) if mine == 0 else (rights, lefts)
    d = d.transpose(0, *theirs, *blocks, *ours).reshape(n, -1, b, o)
    order = (*batch[mine], *contract[mine], *free)

    def rearranged(weights: jax.Array) -> jax.Array:
        return weights.transpose(order).reshape(b, k, o)

    return _product(site, parameter, a, d, group, rearranged)


def _convolution(site: Site, parameter: jax.Array, x: jax.Array, d: jax.Array, group: int) -> UnitGradients:
    params = site.step.params
    lhs, rhs, out = params["dimension_numbers"]
    blocks = params["feature_group_count"]
    shape = jax.eval_shape(site.seen, parameter).shape
    features, channels, *window = (shape[i] for i in rhs)
    batch, channel, *space = (1 + i for i in lhs)
    x = x.transpose(0, batch, *space, channel)
    n, many = x.shape[:2]
    if _platform.current() == "gpu" and (both := _both_sides(site, parameter, x, d, group)) is not None:
        return both
    seen = patches(
        x.reshape(n * many, *x.shape[2:]),
        window,
        params["window_strides"],
        params["padding"],
        input_dilation=params["lhs_dilation"],
        kernel_dilation=params["rhs_dilation"],
    )
    k, o = math.prod(window) * channels, features // blocks
    a = seen.reshape(n, -1, math.prod(window), blocks, channels).swapaxes(2, 3).reshape(n, -1, blocks, k)
    batch, channel, *space = (1 + i for i in out)
    d = d.transpose(0, batch, *space, channel).reshape(n, -1, blocks, o)

    def rearranged(weights: jax.Array) -> jax.Array:
        weights = weights.transpose(*rhs[2:], rhs[1], rhs[0]).reshape(k, blocks, o)
        return weights.swapaxes(0, 1)

    return _product(site, parameter, a, d, group, rearranged)


def _both_sides(site: Site, parameter: jax.Array, x: jax.Array, d: jax.Array, group: int) -> UnitGradients | None:
    """Writes out a convolution's gradients from rows of patches and rows of shifted cotangents, where these are fewer.

    With h rows of a window, a patch of h w c numbers for each position takes h times the numbers of x rows with w c;
    the h shifts of d, side by side, stand for the other rows. The operands of CNN32's second convolution are half.
    """
    params = site.step.params
    _, rhs, out = params["dimension_numbers"]
    shape = jax.eval_shape(site.seen, parameter).shape
    features, channels, high, *window = (shape[i] for i in rhs)
    simple = {*params["window_strides"], *params["lhs_dilation"], *params["rhs_dilation"], x.shape[1]} == {1}
    if not simple or params["feature_group_count"] != 1:
        return None
    d = d.transpose(0, *(1 + i for i in (out[0], *out[2:], out[1])))[:, 0]  # [n, *out, o]
    n, rows, t = len(d), d.shape[1] + high - 1, math.prod(d.shape[1:-1])
    k, o = math.prod(window) * channels, high * features
    if rows * (t // d.shape[1]) * (k + o) > t * high * k or high * k * features > group * t * (high * k + features):
        return None
    ones = (1,) * (1 + len(window))
    a = patches(x[:, 0], (1, *window), ones, params["padding"], input_dilation=ones, kernel_dilation=ones)
    shifts = [jnp.pad(d, [(0, 0), (i, high - 1 - i)] + [(0, 0)] * (d.ndim - 2)) for i in range(high)]
    a, d = a.reshape(n // group, -1, 1, k), jnp.concatenate(shifts, axis=-1).reshape(n // group, -1, 1, o)

    def rearranged(p: jax.Array) -> jax.Array:
        weights = site.seen(p).transpose(*rhs[3:], rhs[1], rhs[2], rhs[0])
        return weights.reshape(1, k, o)

    back = jax.linear_transpose(rearranged, parameter)
    return Moved(Explicit(_written(a, d, group)), lambda total: back(total.swapaxes(1, 2))[0])


def _product(
    site: Site,
    parameter: jax.Array,
    a: jax.Array,
    d: jax.Array,
    group: int,
    rearranged: Callable[[jax.Array], jax.Array],
) -> UnitGradients:
    """Combines a [n, t, b, k] and d [n, t, b, o]; the examples of a unit count as more positions."""
    chex.assert_rank([a, d], 4)
    chex.assert_equal_shape_prefix([a, d], 3)
    a, d = (_units(x, group).reshape(len(x) // group, group * x.shape[1], *x.shape[2:]) for x in (a, d))
    t, k, o = a.shape[1], a.shape[-1], d.shape[-1]
    small = k * o <= (MORE if _platform.on_cpu() else 1) * t * (k + o)
    back = jax.linear_transpose(lambda p: rearranged(site.seen(p)), parameter)
    if t > 1 and small:
        return Moved(Explicit(_written(a, d, group)), lambda total: back(total.swapaxes(1, 2))[0])
    return Moved(Product(a, d), lambda total: back(total)[0])


def _written(a: jax.Array, d: jax.Array, group: int) -> jax.Array:
    """Returns the gradients of units from a [u, t, b, k] and d [u, t, b, o], written out: [u, b, o, k].

    On a TPU those of a unit's examples are added up afterwards: a and d of all its examples as one axis of positions
    would be two more copies, in which the few numbers of a position are padded to 128.
    """
    if _platform.on_cpu():
        return einsum("utbo,utbk->ubok", d, a)
    units = len(a)
    if _platform.current() == "tpu" and group > 1:
        a, d = (x.reshape(units * group, -1, *x.shape[2:]) for x in (a, d))
    if a.shape[2] == 1:  # an axis of one block would keep XLA from reading d where it lies
        written = einsum("uto,utk->uok", d[:, :, 0], a[:, :, 0])[:, None]
    else:
        written = einsum("utbo,utbk->ubok", d, a)
    return written if len(written) == units else _units(written, group).sum(axis=1)


def _lookup(site: Site, parameter: jax.Array, index: jax.Array, d: jax.Array, group: int) -> UnitGradients:
    rows, *row = jax.eval_shape(site.seen, parameter).shape
    if index.dtype.itemsize < 4:  # whose type may not hold the number of rows: 256 is 0 in uint8
        index = index.astype(jnp.int32)
    if site.step.params["mode"] == lax.GatherScatterMode.CLIP:
        index = jnp.clip(index, 0, rows - 1)
    index = _units(index, group).reshape(len(index) // group, -1)
    d = _units(d, group).reshape(*index.shape, math.prod(row))
    d = jnp.where(((index >= 0) & (index < rows))[..., None], d, 0)  # reads out of range belong to no row
    back = jax.linear_transpose(site.seen, parameter)
    return Moved(Lookup(index, d, rows), lambda total: back(total.reshape(rows, *row))[0])


def _takes_rows(site: Site, parameter: jax.Array) -> bool:
    """Tells whether a gather reads whole rows, table[index]."""
    _, *row = jax.eval_shape(site.seen, parameter).shape
    numbers, out = site.step.params["dimension_numbers"], len(site.step.shapes[0].shape)
    return (
        tuple(numbers.start_index_map) == tuple(numbers.collapsed_slice_dims) == (0,)
        and not numbers.operand_batching_dims
        and tuple(numbers.offset_dims) == tuple(range(out - len(row), out))
        and tuple(site.step.params["slice_sizes"]) == (1, *row)
    )


def _units(x: jax.Array, group: int) -> jax.Array:
    return x.reshape(len(x) // group, group, *x.shape[1:])


def _like(factors: jax.Array, x: jax.Array) -> jax.Array:
    return factors.reshape(factors.shape + (1,) * (x.ndim - factors.ndim))


def _scaled(x: jax.Array, factors: jax.Array) -> jax.Array:
    factors = _like(factors, x)
    return jnp.where(factors == 0, 0, factors * x)


def _at_least(x: jax.Array) -> jax.Array:
    """Bounds |x|^2 from above by counting a square that vanishes, of a number under 1e-19, as the smallest one.

    The other factor of an outer product can be 1e19, and would make of nothing what is much.
    """
    return jnp.sum(jnp.square(x) + jnp.where(x != 0, jnp.finfo(x.dtype).tiny, 0), axis=-1)


def _rounded_up(squared: jax.Array, length: jax.Array) -> jax.Array:
    """Bounds the square of a norm whose parts, of ``length`` in all, cancel up to rounding."""
    return jnp.square(jnp.sqrt(squared) + jnp.finfo(squared.dtype).eps * length)


def _rest(count: int, used: list[int]) -> list[int]:
    return [i for i in range(count) if i not in used]


def _cut(axes: list[int], *lengths: int) -> list[list[int]]:
    ends = list(itertools.accumulate(lengths))
    return [axes[end - length : end] for end, length in zip(ends, lengths, strict=True)]
