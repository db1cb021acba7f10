"""Counts the arithmetic of a traced program: products of matrices, and all other operations on numbers.

A product of [m, k] and [k, n] is 2 m k n operations; any other operation is one for each number of its result,
whatever it is. Random words are Philox's, in the form of the platform. A loop counts once per trip, of a branch the
longer one, and a loop of unknown length once.
"""

import math
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import jaxprs_in_params

from dpaudit.kernels import philox

MOVES = {"reshape", "transpose", "broadcast_in_dim", "slice", "squeeze", "concatenate", "copy", "gather", "pad", "rev"}
MOVES |= {"dynamic_slice", "dynamic_update_slice", "convert_element_type", "bitcast_convert_type", "iota", "split"}


class Count(NamedTuple):
    """Operations in products, and all others."""

    products: float
    others: float

    def plus(self, more: "Count", times: float = 1) -> "Count":
        return Count(self.products + times * more.products, self.others + times * more.others)


def count(jaxpr: Any) -> Count:
    """Counts the operations of a program (a Jaxpr, closed or not) on one device."""
    total = Count(0, 0)
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        total = total.plus(_of(equation))
    return total


def _of_word() -> float:
    """Returns the operations of one random word on the platform that programs are traced for."""
    many = 1 << 10
    drawn = jax.make_jaxpr(lambda key: philox.random_bits(key, 32, (many,)))(jax.ShapeDtypeStruct((4,), np.uint32))
    return count(drawn).others / many


def _of(equation: Any) -> Count:
    name, out = equation.primitive.name, sum(math.prod(getattr(v.aval, "shape", ())) for v in equation.outvars)
    inner = [count(program) for program in jaxprs_in_params(equation.params)]
    if name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        return Count(2 * out * math.prod(equation.invars[0].aval.shape[axis] for axis in contracted), 0)
    if name == "conv_general_dilated":
        kernel, numbers = equation.invars[1].aval.shape, equation.params["dimension_numbers"]
        return Count(2 * out * math.prod(kernel) / kernel[numbers.rhs_spec[0]], 0)
    if name == "random_bits":
        return Count(0, out * _of_word())
    if name == "cond":
        return max(inner)
    if name == "pallas_call":
        return Count(0, 0).plus(inner[0], math.prod(equation.params["grid_mapping"].grid))
    if name.startswith(("reduce", "cum", "arg")):
        return Count(0, sum(math.prod(getattr(v.aval, "shape", ())) for v in equation.invars))
    if inner:
        whole = Count(0, 0)
        for one in inner:
            whole = whole.plus(one, equation.params.get("length", 1) if name == "scan" else 1)
        return whole
    return Count(0, 0 if name in MOVES else out)
