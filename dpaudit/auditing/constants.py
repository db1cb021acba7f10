"""What a function closes over travels to the devices like any data, and its compiled program serves other values too.

Compiled into the program, large arrays take long; and a compiler that sees values simplifies sums with them in another
order for several devices than for one, so that the last bits of scores would be others. Python's own numbers are part
of the program: with another one it is another program, so that no call plays what an earlier one has seen.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun
from jax.tree_util import Partial

from dpaudit import identity


@dataclass(frozen=True)
class Opened:
    """A function whose constants are arguments; equal to another one of the same program and types of constants, and
    so one compiled program with it, whatever functions they were traced from.

    Attributes:
      program: its digest, with what programs inside it still close over.
      objects: in it that no text tells whole (:func:`dpaudit.identity.spelled`).
      types: of the constants.
      run: (*constants, *leaves, trial) -> [result].
    """

    program: str
    objects: tuple[Any, ...] = field(hash=False)
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
    flat = without_calls(traced)
    program = flat.jaxpr
    opened = program.replace(constvars=[], invars=[*program.constvars, *program.invars], debug_info=None)
    run = ClosedJaxpr(opened, ())
    types = tuple(var.aval for var in program.constvars)
    words, objects = identity.spelled(run)
    alike = Opened(identity.digest(words), objects, types, jaxpr_as_fun(run))
    return Partial(alike, list(flat.consts), jax.tree.leaves(one))


def without_calls(traced: ClosedJaxpr) -> ClosedJaxpr:
    """The same program, without calls of jitted functions that close over arrays: these are its own constants then.

    Those inside loops stay as they are.
    """
    if not any(map(_holds_constants, traced.jaxpr.eqns)):
        return traced
    return jax.make_jaxpr(lambda *arguments: _evaluated(traced, arguments))(*traced.in_avals)


def _evaluated(traced: ClosedJaxpr, arguments: Any) -> list[Any]:
    jaxpr = traced.jaxpr
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*traced.consts, *arguments], strict=True))

    def read(atoms: Any) -> list[Any]:
        return [atom.val if isinstance(atom, Literal) else values[atom] for atom in atoms]

    for eqn in jaxpr.eqns:
        inputs = read(eqn.invars)
        if _holds_constants(eqn):
            results = _evaluated(eqn.params["jaxpr"], inputs)
        else:
            with eqn.ctx.manager:  # the settings under which it was written
                results = eqn.primitive.bind(*inputs, **eqn.primitive.get_bind_params(eqn.params))
        values.update(zip(eqn.outvars, results if eqn.primitive.multiple_results else [results], strict=True))
    return read(jaxpr.outvars)


def _holds_constants(eqn: Any) -> bool:
    """Whether an operation calls a jitted function that closes over arrays."""
    return eqn.primitive.name == "jit" and bool(identity.closed_over(eqn.params["jaxpr"]))
