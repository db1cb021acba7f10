"""Traces a party's function by itself, and refuses one that would tell the host what it computes on.

A developer's function runs on raw data inside the boundary as a program, never as Python: traced where no other
party's values exist, and only if nothing in it reaches out (callbacks, prints, foreign functions, references to arrays
that somebody else holds), however deep in calls, loops and branches.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun

from dpaudit import check

JAX_FOLDER = os.path.dirname(jax.__file__) + os.sep
TELLING = ("callback", "print", "infeed", "outfeed", "ffi_call")  # in the names of primitives that reach the host
OWN_ARRAYS = "InternalMutableArrayEffect"  # of a reference that a program makes for itself


def alone(function: Callable[..., Any], *like: Any) -> Callable[..., Any]:
    """``function`` as a program of its arguments, traced where no other party's values exist."""
    return _program(function, like)[1]


def silent(name: str, function: Callable[..., Any], *like: Any) -> Callable[..., Any]:
    """:func:`alone`, for a function that runs on raw data.

    Args:
      name: of the function, for the message.
      function: pure and jittable.
      *like: its arguments, or pytrees of ``jax.ShapeDtypeStruct``.

    Raises:
      InputError: a program that reaches the host, or has any other effect.
    """
    program, call = _program(function, like)
    found = next(_telling(program.jaxpr, set()), None)
    outward = [type(effect).__name__ for effect in program.effects]
    outward = sorted(name for name in outward if name != OWN_ARRAYS)
    if found is None and outward:
        found = ", ".join(outward)
    if found is not None:
        raise check.expected(name, "a function without effects, for it runs on raw data", found)
    return call


def _program(function: Callable[..., Any], like: tuple[Any, ...]) -> tuple[ClosedJaxpr, Callable[..., Any]]:
    program, shape = jax.make_jaxpr(function, return_shape=True)(*like)
    structure = jax.tree.structure(shape)

    def call(*arguments: Any) -> Any:
        return jax.tree.unflatten(structure, jaxpr_as_fun(program)(*jax.tree.leaves(arguments)))

    return program, call


def _telling(jaxpr: Jaxpr, seen: set[int]) -> Iterator[str]:
    """What reaches the host in a program and those inside it, each with its line."""
    seen.add(id(jaxpr))
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if any(part in name for part in TELLING):
            yield name + _line(equation)
        for leaf in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_program):
            body = getattr(leaf, "jaxpr", leaf) if _is_program(leaf) else None
            if body is not None and id(body) not in seen:
                yield from _telling(body, seen)


def _is_program(leaf: Any) -> bool:
    return isinstance(leaf, (ClosedJaxpr, Jaxpr))


def _line(equation: Any) -> str:
    """ " at file:line" of the innermost frame outside JAX, or nothing."""
    traceback = equation.source_info.traceback
    frames = traceback.frames if traceback is not None else ()
    return next((f" at {f.file_name}:{f.line_num}" for f in frames if not f.file_name.startswith(JAX_FOLDER)), "")
