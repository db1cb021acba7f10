"""Compiles other forms of a clipped sum beside the one that is shipped, to show what they would move.

None is offered: each falls short in a way that bytes do not show, as docs/accelerators.md says. Of every convolution
with more than ``LARGE`` weights:

* ``grouped``: per-example gradients by one convolution with a feature group per example.
* ``second``: the sum by a second convolution with scaled cotangents, in place of the gradients written out.
* ``grouped_second``: norms as ``grouped``, and the sum as ``second``: per-example gradients are read once.
* ``ghost``: norms from inner products of positions (Goodfellow 2015; Li et al. 2022), and the sum as ``second``.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp

from dpaudit._engine.topologies import Machine
from dpaudit.mechanisms.clipping import einsum
from dpaudit.training import forms, per_example, unit_gradients
from dpaudit.training.taps import Site
from dpaudit.training.unit_gradients import UnitGradients, explicit
from experiments.bench.accelerator_programs import NETWORKS_TOGETHER, Subject, batch, clipped, loss_of

LARGE = 10_000
MICROBATCH = 15
SHIPPED = unit_gradients._convolution
Convolution = Callable[[Site, jax.Array, jax.Array, jax.Array, int], UnitGradients]


class Second(NamedTuple):
    """Unit gradients of a convolution whose sum is one more convolution."""

    inner: UnitGradients
    x: jax.Array
    d: jax.Array
    again: Callable[[jax.Array, jax.Array], jax.Array]  # the weights' gradient of a batch

    def squared(self) -> jax.Array:
        return self.inner.squared()

    def total(self, factors: jax.Array) -> jax.Array:
        return self.again(self.x, unit_gradients._scaled(self.d, factors))


class Ghost(NamedTuple):
    """Squared norms of a convolution of stride 1, without padding, from inner products of its positions."""

    x: jax.Array  # [n, 1, h, w, c]
    d: jax.Array  # [n, 1, i, j, o]
    window: tuple[int, ...]

    def squared(self) -> jax.Array:
        x, d = self.x[:, 0], self.d[:, 0]
        rows, columns = d.shape[1:3]
        of_x, of_d = einsum("nijc,nklc->nijkl", x, x), einsum("nijc,nklc->nijkl", d, d)
        starts = [(i, j) for i in range(self.window[0]) for j in range(self.window[1])]
        of_patches = sum(of_x[:, i : i + rows, j : j + columns, i : i + rows, j : j + columns] for i, j in starts)
        return jnp.sum(of_patches * of_d, axis=(1, 2, 3, 4))


def grouped(site: Site, parameter: jax.Array, x: jax.Array, d: jax.Array, group: int) -> UnitGradients:
    def one(x: jax.Array, d: jax.Array) -> jax.Array:
        return jax.vjp(lambda p: site.use(p, [x]), parameter)[1](d)[0]

    return explicit(jax.vmap(one)(x, d), group)


def summed_again(inner: UnitGradients, site: Site, parameter: jax.Array, x: jax.Array, d: jax.Array) -> Second:
    def again(x: jax.Array, d: jax.Array) -> jax.Array:
        return jax.vjp(lambda p: jax.vmap(lambda x: site.use(p, [x]))(x), parameter)[1](d)[0]

    return Second(inner, x, d, again)


def second(site: Site, parameter: jax.Array, x: jax.Array, d: jax.Array, group: int) -> UnitGradients:
    return summed_again(SHIPPED(site, parameter, x, d, group), site, parameter, x, d)


def grouped_second(site: Site, parameter: jax.Array, x: jax.Array, d: jax.Array, group: int) -> UnitGradients:
    return summed_again(grouped(site, parameter, x, d, group), site, parameter, x, d)


def ghost(site: Site, parameter: jax.Array, x: jax.Array, d: jax.Array, group: int) -> UnitGradients:
    return summed_again(Ghost(x, d, parameter.shape[:2]), site, parameter, x, d)


def clipped_by(other: Convolution, trace: Callable[[Machine], Any], machine: Machine) -> Any:
    """Traces a clipped sum whose large convolutions take another form."""

    def chosen(site: Site, parameter: jax.Array, *given: Any) -> UnitGradients:
        return (other if math.prod(parameter.shape) > LARGE else SHIPPED)(site, parameter, *given)

    with mock.patch.object(unit_gradients, "_convolution", chosen):
        return trace(machine)


def beside(machine: Machine, *, patches: bool) -> Any:
    """Traces the clipped sums of a microbatch of 64 networks side by side."""

    def many(leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((NETWORKS_TOGETHER, *leaf.shape), leaf.dtype)

    def run(params: Any, images: Any, labels: Any) -> Any:
        return per_example.clipped_sum(loss_of("CNN28"), params, (images, labels), clip_norm=1.0)

    shapes = machine.shapes(jax.tree.map(many, batch("CNN28", MICROBATCH)))
    with forms._SIDE_BY_SIDE(patches):
        return jax.jit(jax.vmap(run)).trace(*shapes)


def of_large(other: Convolution) -> Subject:
    return Subject(partial(clipped_by, other, partial(clipped, n=1_024)), (), math.inf, only="gpu")


FORMS = {
    "grouped convolutions": of_large(grouped),
    "a second convolution": of_large(second),
    "grouped, and a second convolution": of_large(grouped_second),
    "inner products of positions": of_large(ghost),
    "64 networks, convolutions": Subject(partial(beside, patches=False), (), math.inf),
    "64 networks, patches": Subject(partial(beside, patches=True), (), math.inf),
}
