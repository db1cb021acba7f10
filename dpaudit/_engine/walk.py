"""Interprets a JAX program operation by operation, on values of the caller's choice.

The values may be arrays (evaluation), names (a program as text), slots of a tape (inlining) or arrays with a label
(taint); the caller passes the function that carries out each operation.
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
    """Interprets a program and returns the values of its results.

    Args:
      program: closed, or a Jaxpr with ``constants``.
      arguments: values of its inputs.
      step: ``step(equation, inputs) -> outputs``, called for each operation in order; it decides whether to enter the
        programs inside the operation.
      constants: values of the arrays that the program closes over, in order; None: ``constant`` of each.
      constant: makes the value of an array that the program closes over.
      literal: makes the value of a number written into the program.
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
