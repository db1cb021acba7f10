"""What a function closes over travels to the devices like any data, and its compiled program serves other values too.

Compiled into the program, large arrays take long; and a compiler that sees values simplifies sums with them in another
order for several devices than for one, so that the last bits of scores would be others.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.tree_util import Partial


@dataclass(frozen=True)
class Opened:
    """A function whose constants are arguments; equal to another one of the same function and of constants of the
    same types, and so one compiled program with it.

    Attributes:
      of: what it is of, the structure of a Partial.
      types: of the constants.
      run: (*constants, *leaves of the Partial, trial) -> [result].
    """

    of: Any
    types: tuple[Any, ...]
    run: Callable[..., list[jax.Array]] = field(compare=False)

    def __call__(self, constants: list[Any], leaves: list[Any], trial: jax.Array) -> jax.Array:
        return self.run(*constants, *leaves, trial)[0]


def as_data(one: Partial, traced: ClosedJaxpr) -> Partial:
    """``one`` with all that it closes over as arguments.

    Args:
      one: trial -> an array.
      traced: its program, whose arguments are the leaves of ``one`` and the trial.
    """
    if not traced.consts:
        return one
    program = traced.jaxpr
    opened = program.replace(constvars=[], invars=[*program.constvars, *program.invars], debug_info=None)
    types = tuple(var.aval for var in program.constvars)
    run = jaxpr_as_fun(ClosedJaxpr(opened, ()))
    return Partial(Opened(jax.tree.structure(one), types, run), list(traced.consts), jax.tree.leaves(one))
