"""Replays a program of JAX operation by operation, with whatever is to stand for its values.

The values may be arrays (evaluation), names (a program in words), slots of a tape (inlining) or arrays with a label
(taint): what is done at each operation is a function of the caller's.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, Literal


def walk(
    program: ClosedJaxpr | Jaxpr,
    arguments: Iterable[Any],
    step: Callable[[Any, list[Any]], Sequence[Any]],
    *,
    constants: Iterable[Any] | None = None,
    constant: Callable[[Any], Any] = lambda value: value,
    literal: Callable[[Literal], Any] = lambda atom: atom.val,
) -> list[Any]:
    """Replays a program and returns what stands for its results.

    Args:
      program: closed, or a Jaxpr with ``constants`` of the caller's.
      arguments: what stands for its inputs.
      step: ``step(equation, inputs) -> outputs``, called for each operation in order; it decides itself whether to go
        into the programs inside the operation.
      constants: what stands for the arrays that the program closes over, in order; None: ``constant`` of each.
      constant: what stands for an array that the program closes over.
      literal: what stands for a number written into the program.
    """
    jaxpr = getattr(program, "jaxpr", program)
    if constants is None:
        constants = [constant(value) for value in getattr(program, "consts", ())]
    known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *arguments], strict=True))

    def read(atoms: Iterable[Any]) -> list[Any]:
        return [literal(atom) if isinstance(atom, Literal) else known[atom] for atom in atoms]

    for equation in jaxpr.eqns:
        known.update(zip(equation.outvars, step(equation, read(equation.invars)), strict=True))
    return read(jaxpr.outvars)
