"""Sums clipped per-example gradients, for about the cost of one plain gradient.

One backward pass for the whole batch gives, for every parameter that the loss uses once and linearly (the weights and
biases of dense layers, convolutions and embeddings, scale and offset of normalisations), the operation's input a and
the cotangent d of its output. These give each example's norm and the weighted sum of gradients, usually without
writing out a gradient per example. Only a parameter that is used in another way (shared, or in a formula of its own)
is differentiated per example. Both are exact.

Uses are found in JAX's trace of the loss, not by the names of layers, so a network needs no rewriting. A batch is
added up in parts, which takes less memory and, on a CPU, less time.
"""

import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from dpaudit import _platform, _validate
from dpaudit._engine import sharding
from dpaudit._engine.programs import Tape, record
from dpaudit.mechanisms import clipping
from dpaudit.mechanisms.clipping import at_most, factor, wide
from dpaudit.training import _batch_norm, taps
from dpaudit.training.forms import quick
from dpaudit.training.microbatches import in_microbatches, microbatch_size
from dpaudit.training.unit_gradients import UnitGradients, explicit, unit_gradients

Clipping = Callable[[jax.Array, Any], jax.Array]

ROWS = 20 << 20  # the most bytes that are kept of a dense layer, from which its sum is made after the last part
TOGETHER = 64  # the most units whose gradients are added plainly; sums of these are added with compensation


class Info(NamedTuple):
    """Norms and losses of the units before clipping; u = n / group_size."""

    norms: jax.Array  # [u], L2 norm over all parameters; NaN or infinite where the gradient is
    losses: jax.Array  # [u], weighted sum of the unit's losses
    dropped: jax.Array  # scalar: number of units whose gradient is not finite, which add zero


def flat(norms: jax.Array, clip_norm: Any) -> jax.Array:
    """Clips all layers together: min(1, C / |g|), with |g| the norm over all layers."""
    return jnp.broadcast_to(factor(_whole(norms), clip_norm), norms.shape)


def per_layer(norms: jax.Array, clip_norm: Any) -> jax.Array:
    """Clips each layer l: min(1, c / |g_l|) with c = C / sqrt(layers), so that the whole stays within C.

    Source: McMahan, Ramage, Talwar and Zhang 2018, "Learning Differentially Private Recurrent Language Models".
    """
    return factor(norms, wide(clip_norm) / math.sqrt(len(norms)))


def automatic(norms: jax.Array, clip_norm: Any, *, stability: float = 0.01) -> jax.Array:
    """Normalises every gradient: C / (|g| + stability), so that C acts like a learning rate.

    Source: Bu, Wang, Zha and Karypis 2023, "Automatic Clipping", AUTO-S.
    """
    return jnp.broadcast_to(at_most(clip_norm, norms.dtype) / (_whole(norms) + stability), norms.shape)


def _whole(norms: jax.Array) -> jax.Array:
    return jnp.sqrt(jnp.sum(jnp.square(wide(norms)), axis=0))


@sharding.by_compiler
def clipped_sum(
    loss_fn: Callable[..., Any],
    params: Any,
    batch: Any,
    *,
    clip_norm: Any,
    group_size: int = 1,
    weights: Any = None,
    key: jax.Array | None = None,
    clipping: Clipping = flat,
    microbatch: int | None = None,
    part_of: int | None = None,
) -> tuple[Any, Info]:
    """Sums clipped gradients: sum_u f_u g_u with g_u = sum_{i in u} w_i grad loss_i and |f_u g_u| <= clip_norm.

    f_u is the clipping factor of unit u.

    Pure in its arguments, for use under ``jit`` and ``vmap`` (many networks: over ``params`` and ``key``). A unit
    whose gradient is not finite adds zero and is counted. Squares beyond the range of float32 (norms above 1e19), or
    a gradient beyond that of the parameters' dtype, count as not finite. A number of a gradient under 1e-19, whose
    square is below its range, may count as zero, so the bound needs a clip norm far above 1e-19 sqrt(d) for d
    parameters.

    Gradients are computed in the dtype of the loss and its parameters; everything after them is in float32 or wider:
    norms, factors, the sum, and the result. The bound holds for the result: with one unit
    removed the sum moves by at most clip_norm, with one replaced by at most twice as much, rounding included. A
    float32 sum of n gradients that all point one way is rounded by up to n 2^-24 C, so units are clipped to
    C (1 - s), s = 2^-24 (16 + 2 n + m^2/4), where m = min(n, 64) are added plainly: 1e-6 for one unit, 9e-5 for
    256, 6e-4 for 4,096. The bound is tested up to 4,096 units of one position each, with inputs made to round one way;
    with t positions 64 t numbers are added plainly, and such inputs could pass it by rounding t times as large.

    Args:
      loss_fn: ``loss_fn(params, example) -> scalar`` for ONE example, as for ``jax.grad``; with ``key``,
        ``loss_fn(params, example, key)``.
      params: pytree of floating-point arrays.
      batch: pytree whose leaves have a leading axis of n examples.
      clip_norm: C > 0, the largest L2 norm that one unit may add.
      group_size: consecutive examples that make one unit; divides n.
      weights: [n], multiplies each example's gradient before clipping; an example of weight 0 is padding and adds
        exactly nothing. Default: 1 each.
      key: example i gets ``fold_in(key, i)`` (dropout).
      clipping: ``clipping(norms [layers, u], clip_norm) -> factors [layers, u]``: :func:`flat`, :func:`per_layer`,
        :func:`automatic` or your own. A layer is the parameters under one parent in ``params``.
      microbatch: the most examples differentiated at a time, a multiple of ``group_size``; only a GPU computes the
        parts behind the last example of nonzero weight. Default: all. A CPU takes fewer where its caches hold fewer.
      part_of: number of units in all, where the caller adds several sums and one unit may move all of them together by
        at most clip_norm. Default: those of ``batch``.

    Returns:
      (total, info): a pytree like ``params``, in float32 or wider, and :class:`Info`. Do not cast the total to a
      narrower type before noise has been added: in bfloat16 one unit of 512 could move it by up to 3 clip norms.

    Raises:
      InputError: a value out of range; sizes that do not divide; leaves of ``batch`` of different lengths; a loss
        that is not one floating-point number per example; factors that are not one per layer and unit; a parameter
        that the loss does not use; a BatchNorm in training mode.

    Source: the ghost norm of Goodfellow 2015, "Efficient Per-Example Gradient Computations"; for positions, Li,
    Tramer, Liang and Hashimoto 2022, "Large Language Models Can Be Strong Differentially Private Learners".
    """
    clip_norm = _validate.positive(clip_norm=clip_norm)
    n = _length(batch)
    group_size = _validate.at_least(1, group_size=group_size)
    if n % group_size:
        raise _validate.expected("group_size", f"a divisor of the {n} examples", group_size)
    if microbatch is not None and _validate.at_least(1, microbatch=microbatch) % group_size:
        raise _validate.expected("microbatch", f"a multiple of group_size={group_size}", microbatch)
    weights = None if weights is None else jnp.asarray(weights)  # a list too, which would be a tree of numbers
    if weights is not None and weights.shape != (n,):
        raise _validate.expected("weights", f"shape [{n}], one per example", f"shape {list(weights.shape)}")
    if key is not None:
        _validate.key(key=key)
    refuse_other_leaves(params)
    params, batch = jax.tree.map(jnp.asarray, (params, batch))
    tape = _record(loss_fn, params, batch, key)
    units = n // group_size
    slack = _slack(params, units if part_of is None else _validate.at_least(units, part_of=part_of))
    if slack > 0.5:
        name, given = ("batch", units) if part_of is None else ("part_of", part_of)
        wanted = "so few units that rounding adds at most half a clip norm (4,193,784 in float32)"
        raise _validate.expected(name, wanted, f"{given} units")
    most = wide(clip_norm) * (1 - slack)

    found = taps.sites(tape, jax.tree.leaves(params))
    shared = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    size = microbatch_size(tape.size(), n, shared=shared, most=microbatch, multiple=group_size)
    late = _late(found, params, n) if size < n else set()

    def part(first: Any, batch: Any, weights: Any) -> tuple[dict[int, jax.Array], tuple[Info, dict[int, Any]]]:
        examples = batch, _keys(key, first, batch)
        return _clipped_part(tape, found, late, params, examples, weights, most, group_size, clipping)

    run = max(1, TOGETHER * group_size // size)
    sums, ((norms, losses, dropped), kept) = in_microbatches(part, batch, weights, size, run=run)
    sums |= _late_sums(found, params, kept, group_size)
    total = jax.tree.unflatten(jax.tree.structure(params), [sums[i] for i in range(len(sums))])
    chex.assert_trees_all_equal_shapes(total, params)
    return total, Info(norms.ravel()[:units], losses.ravel()[:units], dropped.sum())


def _keys(key: jax.Array | None, first: Any, batch: Any) -> jax.Array | None:
    """Returns a key for each example of a batch whose first one has number ``first``."""
    if key is None:
        return None
    return jax.vmap(lambda i: jax.random.fold_in(key, i))(first + jnp.arange(_length(batch)))


def _late(found: dict[int, taps.Site], params: Any, n: int) -> set[int]:
    """Returns the parameters of dense layers whose sums wait for the last of n examples.

    Their gradients are outer products, and what makes these is small. Were they added up part by part, a CPU would
    read and write the whole parameter for every few examples, a twentieth of CNN32's time.
    """
    late = set()
    for i, leaf in enumerate(jax.tree.leaves(params)):
        if i in found and found[i].step.primitive.name == "dot_general" and _platform.on_cpu():
            site = found[i]
            contracted = site.step.params["dimension_numbers"][0][site.operand]
            shape = jax.eval_shape(site.seen, leaf).shape
            inputs, outputs = math.prod(shape[axis] for axis in contracted), math.prod(site.step.shapes[0].shape)
            if inputs * outputs == leaf.size and n * (inputs + outputs) * leaf.dtype.itemsize <= ROWS:
                late.add(i)
    return late


def _late_sums(found: dict[int, taps.Site], params: Any, kept: dict[int, Any], group: int) -> dict[int, jax.Array]:
    """Sums factor times gradient over all units for the parameters that waited."""
    leaves = jax.tree.leaves(params)
    sums = {}
    for i, parts in kept.items():
        others, d, factors = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), parts)
        (sums[i],) = _total([unit_gradients(found[i], leaves[i], others, d, group)], [factors])
    return sums


def _clipped_part(
    tape: Tape,
    found: dict[int, taps.Site],
    late: set[int],
    params: Any,
    examples: Any,
    weights: Any,
    clip_norm: Any,
    group: int,
    clipping: Clipping,
) -> tuple[dict[int, jax.Array], tuple[Info, dict[int, Any]]]:
    """Returns a sum for every parameter by its number but those of ``late``: of these what it is made of."""
    leaves = jax.tree.leaves(params)
    free = {i: leaf for i, leaf in enumerate(leaves) if i not in found}

    def loss(wanted: tuple[dict, dict], example: Any) -> tuple[jax.Array, Any]:
        zeros, free = wanted
        known = [free.get(i, leaf) for i, leaf in enumerate(leaves)]
        value, others = taps.tapped(tape, found, zeros, [*known, *jax.tree.leaves(example)])
        return value, (value, others)

    per_example = jax.vmap(jax.grad(loss, has_aux=True), in_axes=(None, 0))
    (d, gradients), (losses, others) = per_example((taps.zero_taps(found), free), examples)
    d, gradients = wide((d, gradients))
    if weights is not None:
        d, gradients, losses = _weighted((d, gradients, losses), weights)
        others = others if group == 1 else {i: _without_padding(found[i], others[i], weights) for i in others}
    units: list[UnitGradients] = [
        unit_gradients(found[i], leaf, others[i], d[found[i].at], group)
        if i in found
        else explicit(gradients[i], group)
        for i, leaf in enumerate(leaves)
    ]
    losses = losses.reshape(-1, group).sum(axis=1)
    present = None if weights is None else (weights != 0).reshape(-1, group).any(axis=1)
    layers = _layers(params)
    squared = _by_layer([unit.squared() for unit in units], layers)
    if present is not None:
        squared = jnp.where(present, squared, 0)
    finite = jnp.isfinite(squared).all(axis=0)
    factors = clipping(jnp.sqrt(jnp.where(finite, squared, 0)), clip_norm)
    if jnp.shape(factors) != squared.shape:
        wanted = f"factors of shape {list(squared.shape)}, one per layer and unit, as its norms"
        raise _validate.expected("clipping", wanted, f"shape {list(jnp.shape(factors))}")
    if present is not None:
        factors = jnp.where(present, factors, 0)
    factors = jnp.where(finite, factors, 0)
    own = [factors[layer].astype(wide(leaf).dtype) for layer, leaf in zip(layers, leaves, strict=True)]
    now = [i for i in range(len(leaves)) if i not in late]
    sums = dict(zip(now, _total([units[i] for i in now], [own[i] for i in now]), strict=True)) if now else {}
    kept = {i: (others[i], d[found[i].at], own[i]) for i in late}
    whole = squared.sum(axis=0)
    norms = jnp.where(finite, jnp.sqrt(whole), whole)  # XLA turns sqrt(x^2) of one number into |x|, which is finite
    return sums, (Info(norms, losses, jnp.sum(~finite)), kept)


def _total(units: list[UnitGradients], factors: list[jax.Array]) -> list[jax.Array]:
    """Sums factor times gradient over units for every parameter, at most ``TOGETHER`` units in one product."""
    leaves, treedef = jax.tree.flatten((units, factors))
    arrays = {at: leaf for at, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)}

    def part(first: Any, arrays: dict[int, jax.Array], weights: Any) -> tuple[list[jax.Array], tuple[()]]:
        units, factors = treedef.unflatten([arrays.get(at, leaf) for at, leaf in enumerate(leaves)])
        return [unit.total(own) for unit, own in zip(units, factors, strict=True)], ()

    count = len(factors[0])
    size = -(-count // -(-count // TOGETHER))
    if _platform.on_cpu():
        return in_microbatches(part, arrays, None, size)[0]
    # An accelerator adds all parts side by side; a unit that fills up the last one has a factor of 0.
    parts = -(-count // size)

    def cut(leaf: jax.Array) -> jax.Array:
        padding = [(0, parts * size - count)] + [(0, 0)] * (leaf.ndim - 1)
        return jnp.pad(leaf, padding).reshape(parts, size, *leaf.shape[1:])

    sums = jax.vmap(lambda own: part(0, own, None)[0])(jax.tree.map(cut, arrays))
    return clipping.total_of(sums)


def _slack(params: Any, units: int) -> float:
    """Bounds, in clip norms, how much rounding adds to the change that one unit makes to a sum of so many."""
    eps = max(float(jnp.finfo(leaf.dtype).eps) for leaf in jax.tree.leaves(wide(params)))
    return eps / 2 * (16 + 2 * units + min(units, TOGETHER) ** 2 / 4)


def _record(loss_fn: Callable[..., Any], params: Any, batch: Any, key: jax.Array | None) -> Tape:
    """Records the loss of one example: its arguments are the leaves of params, of the example, and the key."""
    example = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), batch)
    example = (example,) if key is None else (example, jax.ShapeDtypeStruct(key.shape, key.dtype))
    # A compiled function may have been traced before, where the interceptor below does not see it.
    plain: Any = inspect.unwrap(loss_fn, stop=lambda f: not isinstance(f, jax.stages.Wrapped))

    def scalar(params: Any, example: tuple[Any, ...]) -> jax.Array:
        value = plain(params, *example)  # example, and key where there is one
        shapes = [(list(jnp.shape(x)), jnp.result_type(x)) for x in jax.tree.leaves(value)]
        if len(shapes) != 1 or shapes[0][0] != [] or not jnp.issubdtype(shapes[0][1], jnp.floating):
            got = ", ".join(f"{dtype}{shape}" for shape, dtype in shapes) or "nothing"
            raise _validate.expected("loss_fn", "one floating-point number (shape []) for ONE example", got)
        return jnp.asarray(value)

    named = [
        (f"params{jax.tree_util.keystr(path)}", leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    ]
    if not named:
        raise _validate.expected("params", "at least one array", "none")
    for name, leaf in named:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise _validate.expected(name, "floating-point numbers", str(leaf.dtype))
    with _batch_norm.refused():
        tape = record(quick(scalar), params, example)
    used = tape.used()
    for i, (name, _) in enumerate(named):
        if i not in used:
            raise _validate.InputError(
                f"{name}: expected a parameter that the loss uses, got one that it never touches"
            )
    return tape


def refuse_other_leaves(params: Any) -> None:
    """Refuses what is no array, such as the functions that an Equinox module holds."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if not isinstance(leaf, (jax.Array, np.ndarray, np.generic, int, float)):
            wanted = "an array, the rest being apart (Equinox: eqx.partition(model, eqx.is_inexact_array))"
            raise _validate.expected(f"params{jax.tree_util.keystr(path)}", wanted, type(leaf).__name__)


def _length(batch: Any) -> int:
    lengths = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(batch)}
    if len(lengths) != 1 or lengths in ({()}, {(0,)}):
        got = "leading axes " + ", ".join(sorted(str(list(length)) for length in lengths))
        raise _validate.expected(
            "batch", "arrays with one leading axis of n >= 1 examples", got if lengths else "none"
        )
    return lengths.pop()[0]


def _weighted(tree: Any, weights: jax.Array) -> Any:
    def one(x: jax.Array) -> jax.Array:
        w = weights.reshape(-1, *(1,) * (x.ndim - 1)).astype(x.dtype)
        return jnp.where(w == 0, 0, w * x)

    return jax.tree.map(one, tree)


def _without_padding(site: taps.Site, others: list[jax.Array], weights: jax.Array) -> list[jax.Array]:
    """Puts numbers with which a cotangent of 0 gives a gradient of 0 in place of padding's operands."""
    harmless = 1 if site.step.primitive.name == "div" else 0  # of a divisor
    return [jnp.where(weights.reshape(-1, *(1,) * (x.ndim - 1)) == 0, harmless, x) for x in others]


def _layers(params: Any) -> list[int]:
    """Returns the number of each leaf's layer."""
    parents = [jax.tree_util.keystr(path[:-1]) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    numbers = {parent: number for number, parent in enumerate(dict.fromkeys(parents))}
    return [numbers[parent] for parent in parents]


def _by_layer(squared: list[jax.Array], layers: list[int]) -> jax.Array:
    """Adds [u] of each leaf up to [layers, u]."""
    return jnp.stack(
        [sum(s for s, of in zip(squared, layers, strict=True) if of == layer) for layer in range(max(layers) + 1)]
    )
