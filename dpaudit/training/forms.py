"""Replaces the convolutions and pools of any function by forms that are quicker where it runs.

XLA's own are several times slower on a CPU than products with patches, and than comparisons and sums of slices, above
all in the gradients. On a GPU it is the pools alone, whose gradient by XLA goes through memory; a TPU keeps both. They
are found in JAX's trace, so it does not matter whether a network was written with Flax, with Equinox or by hand, and
nobody needs to know.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr

from dpaudit import _platform
from dpaudit._engine.walk import walk
from dpaudit.training import pools, windows

# Part of the key of JAX's caches, so that a function that was traced alone is traced again.
_SIDE_BY_SIDE = jax.make_user_context(False)
MOST = 256  # elements of a window, each of which is a slice in the program; XLA's own form takes larger ones

_INSIDE = {"jit": "jaxpr", "remat2": "jaxpr", "scan": "jaxpr", "while": "body_jaxpr", "cond": "branches"}
_INLINED = {"jit", "remat2"}


def quick(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns ``function`` in the forms for the platform that it is traced for.

    Where a form was replaced, only reverse-mode derivatives of the result are defined (``jax.grad``, ``jax.vjp``);
    ``function`` itself may hold derivatives of any kind. Results are equal up to rounding.

    Args:
      function: of pytrees of arrays.
    """

    def run(*arguments: Any) -> Any:
        program, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
        if not _slow(program):
            return function(*arguments)
        return jax.tree.unflatten(jax.tree.structure(shapes), walk(program, jax.tree.leaves(arguments), _step))

    return run


def side_by_side() -> AbstractContextManager[Any]:
    """Returns a context in which functions are traced that ``jax.vmap`` runs for many kernels at once.

    Convolutions that differ in their kernels become one of as many feature groups, products with patches stay
    products, which move fewer bytes on a GPU. On a TPU they move more, although it computes such a convolution as if
    every group read the channels of all: there they stay (docs/accelerators.md).
    """
    return _SIDE_BY_SIDE(True) if _platform.current() == "gpu" else nullcontext()


def _step(equation: Any, inputs: list[Any]) -> Any:
    """Carries out one operation in its quick form."""
    name, params = equation.primitive.name, equation.params
    inside = any(map(_slow, _bodies(equation)))
    if inside and name in _INLINED:
        return walk(params["jaxpr"], inputs, _step)
    if inside:
        params = params | {_INSIDE[name]: jax.tree.map(_rewritten, params[_INSIDE[name]])}
    with equation.ctx.manager:  # the settings under which it was written
        if _has_form(equation):
            return [FORMS[name](*inputs, params)]
        results = equation.primitive.bind(*inputs, **equation.primitive.get_bind_params(params))
    return results if equation.primitive.multiple_results else [results]


def _rewritten(program: ClosedJaxpr) -> ClosedJaxpr:
    return jax.make_jaxpr(lambda *arguments: walk(program, arguments, _step))(*program.in_avals)


def _slow(program: Any) -> bool:
    """Tells whether a program holds an operation that has a quick form."""
    equations = getattr(program, "jaxpr", program).eqns
    return any(_has_form(equation) or any(map(_slow, _bodies(equation))) for equation in equations)


def _bodies(equation: Any) -> list[Any]:
    """Returns the programs inside an operation."""
    return jax.tree.leaves(equation.params.get(_INSIDE.get(equation.primitive.name)))


def _has_form(equation: Any) -> bool:
    name, params = equation.primitive.name, equation.params
    if name not in FORMS or not jnp.issubdtype(equation.outvars[0].aval.dtype, jnp.floating):
        return False
    if name != "conv_general_dilated":
        return _platform.current() != "tpu" and math.prod(params["window_dimensions"]) <= MOST
    window = [equation.invars[1].aval.shape[axis] for axis in params["dimension_numbers"].rhs_spec[2:]]
    wanted = _platform.on_cpu() or _SIDE_BY_SIDE.value
    return wanted and params["batch_group_count"] == 1 and math.prod(window) <= MOST


def _convolution(x: jax.Array, kernel: jax.Array, params: dict[str, Any]) -> jax.Array:
    """Multiplies the patches of images by the kernel: ``conv_general_dilated``."""
    numbers, groups = params["dimension_numbers"], params["feature_group_count"]
    batch, channel, *space = numbers.lhs_spec
    features, _, *window = numbers.rhs_spec
    kernel = kernel.transpose(*window, numbers.rhs_spec[1], features)  # [*window, channels of a group, features]
    seen = windows.patches(
        x.transpose(batch, *space, channel),
        kernel.shape[:-2],
        params["window_strides"],
        params["padding"],
        input_dilation=params["lhs_dilation"],
        kernel_dilation=params["rhs_dilation"],
    )
    outer = seen.shape[: 1 + len(space)]
    axes = len(outer)
    product = partial(
        lax.dot_general, precision=params["precision"], preferred_element_type=params["preferred_element_type"]
    )
    if groups == 1:
        y = product(seen.reshape(*outer, -1), kernel.reshape(-1, kernel.shape[-1]), (((axes,), (0,)), ((), ())))
    else:
        seen = seen.reshape(*outer, -1, groups, kernel.shape[-2])  # [n, *out, elements, groups, channels]
        kernel = kernel.reshape(-1, kernel.shape[-2], groups, kernel.shape[-1] // groups)
        y = product(seen, kernel, (((axes, axes + 2), (0, 1)), ((axes + 1,), (2,))))  # [groups, n, *out, features]
        y = jnp.moveaxis(y, 0, -2).reshape(*outer, -1)
    return y.transpose(np.argsort([numbers.out_spec[0], *numbers.out_spec[2:], numbers.out_spec[1]]))


def _windows(x: jax.Array, params: dict[str, Any], empty: float) -> tuple[jax.Array, tuple[windows.Along, ...]]:
    """Pads x with what an empty window holds; returns it and its windows."""
    edges = [
        (low, high, spread - 1) for (low, high), spread in zip(params["padding"], params["base_dilation"], strict=True)
    ]
    sizes = params["window_dimensions"], params["window_strides"], params["window_dilation"]
    if any(map(any, edges)):
        x = lax.pad(x, x.dtype.type(empty), edges)
    return x, tuple(zip(*sizes, strict=True))


def _largest(x: jax.Array, params: dict[str, Any]) -> jax.Array:
    return pools.largest(*_windows(x, params, -jnp.inf))


def _smallest(x: jax.Array, params: dict[str, Any]) -> jax.Array:
    return -pools.largest(*_windows(-x, params, -jnp.inf))


def _sum(x: jax.Array, params: dict[str, Any]) -> jax.Array:
    return pools.total(*_windows(x, params, 0))


FORMS: dict[str, Callable[..., jax.Array]] = {
    "conv_general_dilated": _convolution,
    "reduce_window_max": _largest,
    "reduce_window_min": _smallest,
    "reduce_window_sum": _sum,
}
