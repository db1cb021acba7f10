"""What a function closes over travels to the devices like any data, and its compiled program serves other values too.

Compiled into the program, large arrays take long; and a compiler that sees values simplifies sums with them in another
order for several devices than for one, so that the last bits of scores would be others. Python's own numbers are part
of the program: with another one it is another program, so that no call plays what an earlier one has seen.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun
from jax.tree_util import Partial

from dpaudit._engine import fingerprint


@dataclass(frozen=True)
class Opened:
    """A function whose constants are arguments; equal to another one of the same program and types of constants, and
    so one compiled program with it, whatever functions they were traced from.

    Attributes:
      program: its digest, with what programs inside it still close over.
      objects: in it that no text tells whole (:func:`dpaudit._engine.fingerprint.spelled`).
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
    words, objects = fingerprint.spelled(run)
    alike = Opened(fingerprint.digest(words), objects, types, jaxpr_as_fun(run))
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
    return eqn.primitive.name == "jit" and bool(fingerprint.closed_over(eqn.params["jaxpr"]))


# A function as a flat list of primitive operations: JAX's own trace of it, with the calls inside it inlined.
#
# Values are numbered slots. What follows a value through the list (its views, its uses) is then plain bookkeeping, for a
# function written with Flax, with another library or by hand.

_CALLS = {"jit", "remat2"}  # calls that only cache or rematerialise what is inside them


class Step(NamedTuple):
    """One operation: ``outputs = primitive(inputs)``; an input is a slot or a JAX literal."""

    primitive: Any
    params: dict[str, Any]
    inputs: tuple[int | Literal, ...]
    outputs: tuple[int, ...]
    shapes: tuple[jax.ShapeDtypeStruct, ...]  # of the outputs

    def run(self, inputs: Iterable[Any]) -> list[Any]:
        """The values of the outputs."""
        value = self.primitive.bind(*inputs, **self.primitive.get_bind_params(self.params))
        return list(value) if self.primitive.multiple_results else [value]


class Tape(NamedTuple):
    """A recorded function: slots 0, 1, ... are its flat arguments."""

    steps: tuple[Step, ...]  # only those that the result depends on
    constants: dict[int, Any]  # slot -> value that the function closed over
    result: int | Literal  # the slot of its one result

    def used(self) -> set[int]:
        """The slots that the result depends on."""
        return {slot for step in self.steps for slot in step.inputs if isinstance(slot, int)} | {
            slot for slot in [self.result] if isinstance(slot, int)
        }

    def size(self) -> int:
        """Bytes of all values that the steps compute."""
        return sum(math.prod(shape.shape) * shape.dtype.itemsize for step in self.steps for shape in step.shapes)

    def play(self, arguments: Iterable[Any], each: Callable[[int, Step, list[Any]], list[Any]]) -> Any:
        """The result for flat ``arguments``, every step i taken by ``each(i, step, inputs) -> outputs``."""
        values = {**self.constants, **dict(enumerate(arguments))}
        for i, step in enumerate(self.steps):
            inputs = [read(values, slot) for slot in step.inputs]
            values.update(zip(step.outputs, each(i, step, inputs), strict=True))
        return read(values, self.result)


def read(values: Mapping[int, Any], slot: int | Literal) -> Any:
    """The value in a slot, or that of a literal."""
    return values[slot] if isinstance(slot, int) else slot.val


def record(function: Callable[..., Any], *arguments: Any) -> Tape:
    """The tape of ``function(*arguments)``, which returns one array; arguments may be shapes."""
    program = jax.make_jaxpr(function)(*arguments)
    recorder = _Recorder()
    slots = [recorder.slot() for _ in program.jaxpr.invars]
    results = recorder.inline(program.jaxpr, [recorder.constant(value) for value in program.consts], slots)
    return Tape(_live(recorder.steps, results[0]), recorder.constants, results[0])


class _Recorder:
    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.constants: dict[int, Any] = {}
        self._slots = 0

    def slot(self) -> int:
        self._slots += 1
        return self._slots - 1

    def constant(self, value: Any) -> int:
        slot = self.slot()
        self.constants[slot] = value
        return slot

    def inline(self, jaxpr: Any, constants: list[Any], arguments: list[Any]) -> list[Any]:
        """Appends the steps of ``jaxpr``; the slots of its results."""
        names = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *arguments], strict=True))

        def slots(atoms: Iterable[Any]) -> list[Any]:
            return [atom if isinstance(atom, Literal) else names[atom] for atom in atoms]

        for equation in jaxpr.eqns:
            inputs = slots(equation.invars)
            if equation.primitive.name in _CALLS:
                body = equation.params["jaxpr"]
                inner = [self.constant(value) for value in getattr(body, "consts", ())]
                outputs = self.inline(getattr(body, "jaxpr", body), inner, inputs)
            else:
                outputs = [self.slot() for _ in equation.outvars]
                shapes = tuple(jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in equation.outvars)
                self.steps.append(Step(equation.primitive, equation.params, tuple(inputs), tuple(outputs), shapes))
            names.update(zip(equation.outvars, outputs, strict=True))
        return slots(jaxpr.outvars)


def _live(steps: list[Step], result: int | Literal) -> tuple[Step, ...]:
    wanted, kept = {result} if isinstance(result, int) else set(), []
    for step in reversed(steps):
        if wanted.intersection(step.outputs):
            wanted.update(slot for slot in step.inputs if isinstance(slot, int))
            kept.append(step)
    return tuple(reversed(kept))
