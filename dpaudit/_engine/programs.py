"""Turns programs of JAX into other forms: the arrays they close over into arguments, and functions into tapes.

An array that a function closes over becomes an argument, so that one compiled program serves all its values
(:func:`as_data`). Large arrays take long to compile into a program; and a compiler that sees values may simplify sums
in a different order for several devices than for one, which changes the last bits of scores. Python numbers stay part
of the program: a different number is a different program, so that no call reuses a program compiled for another one.

A tape (:func:`record`) is a function as a flat list of primitive operations: JAX's trace with the calls inside it
inlined and its values as numbered slots. It makes it easy to follow a value through its views and uses, whether the
function was written with Flax, with another library or by hand.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, NamedTuple

import jax
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun
from jax.interpreters.partial_eval import dce_jaxpr
from jax.tree_util import Partial

from dpaudit._engine import fingerprint
from dpaudit._engine.walk import walk

_QUICKLY = {"xla_backend_optimization_level": 0}  # of a CPU, whose compiler knows it
_CALLS = {"jit", "remat2"}  # calls that only cache or rematerialise their contents


@dataclass(frozen=True)
class Opened:
    """A function whose constants are arguments.

    Two with the same program and types of constants are equal, and so share one compiled program, whichever functions
    they were traced from.

    Attributes:
      program: its digest, which includes the constants that programs inside it still close over.
      objects: parts of it that text does not describe completely (:func:`dpaudit._engine.fingerprint.spelled`).
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
    """Returns ``one`` with everything that it closes over as arguments.

    Args:
      one: trial -> an array.
      traced: its program, whose arguments are the leaves of ``one`` and the trial.
    """
    flat = without_calls(traced)
    program = flat.jaxpr
    opened = program.replace(constvars=[], invars=[*program.constvars, *program.invars])
    run = ClosedJaxpr(opened, ())
    types = tuple(var.aval for var in program.constvars)
    words, objects = fingerprint.spelled(run)
    alike = Opened(fingerprint.digest(words), objects, types, jaxpr_as_fun(run))
    return Partial(alike, list(flat.consts), jax.tree.leaves(one))


def shared(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns ``function`` compiled: functions that compute the same share a program, whatever they close over.

    :func:`jax.jit` of a function that is made anew for each call compiles anew for each call. This one traces it for
    each kind of arguments, and compiles only a program that it has not seen.

    Args:
      function: pure and jittable, of arrays or pytrees to a pytree of arrays.
    """
    known: dict[Any, tuple[Partial, Any]] = {}

    def call(*arguments: Any) -> Any:
        leaves, structure = jax.tree.flatten(arguments)
        kind = structure, tuple(map(jax.typeof, leaves))
        if kind not in known:
            traced, result = jax.make_jaxpr(function, return_shape=True)(*arguments)
            known[kind] = as_data(Partial(function), traced), jax.tree.structure(result)
        held, structure = known[kind]
        return jax.tree.unflatten(structure, _carried_out(held.func, held.args[0], leaves))

    return call


def needed(function: Callable[..., Any], wanted: Callable[[Any], Any], *arguments: Any) -> Any:
    """Computes some of the arrays of ``function(*arguments)``, and nothing that they do not depend on.

    Programs that are the same without the rest are compiled once, whichever functions they were traced from. Whole
    numbers are those of the function, to the bit; the last bits of others may differ, as in any other program.

    Args:
      function: pure and jittable, of arrays or pytrees to a pytree of arrays.
      wanted: of the pytree that the function returns, with shapes for arrays: a pytree like it of bools.
      arguments: of the function.

    Returns:
      What the function returns, with None in place of arrays that are not wanted.
    """
    traced, result = jax.make_jaxpr(function, return_shape=True)(*arguments)
    chosen, program = jax.tree.leaves(wanted(result)), traced.jaxpr
    opened = program.replace(constvars=[], invars=[*program.constvars, *program.invars])
    slim, used = dce_jaxpr(opened, chosen)
    given = [leaf for leaf, use in zip([*traced.consts, *jax.tree.leaves(arguments)], used, strict=True) if use]
    held = as_data(Partial(function, *given), ClosedJaxpr(slim, ()))
    found = iter(_carried_out(held.func, *held.args))
    return jax.tree.unflatten(jax.tree.structure(result), [next(found) if use else None for use in chosen])


@partial(jax.jit, static_argnums=0)
def _carried_out(opened: Opened, constants: list[Any], leaves: list[Any]) -> list[jax.Array]:
    return opened.run(*constants, *leaves)


def quickly(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns ``function`` compiled in half the time, for programs that run once: a CPU leaves LLVM's passes out.

    It cannot be called within another compiled function.
    """

    @cache
    def compiled() -> Callable[..., Any]:
        """Asks for the backend on the first call: at import, it would start before processes have joined."""
        return jax.jit(function, compiler_options=_QUICKLY if jax.default_backend() == "cpu" else {})

    return lambda *arguments: compiled()(*arguments)


def without_calls(traced: ClosedJaxpr) -> ClosedJaxpr:
    """Inlines calls of jitted functions that close over arrays, so that the arrays are the program's own constants.

    Calls inside loops stay as they are.
    """
    if not any(map(_holds_constants, traced.jaxpr.eqns)):
        return traced
    return jax.make_jaxpr(lambda *arguments: walk(traced, arguments, _inlined))(*traced.in_avals)


def _inlined(equation: Any, inputs: list[Any]) -> list[Any]:
    """Carries out one operation, or all of a call that holds constants."""
    if _holds_constants(equation):
        return walk(equation.params["jaxpr"], inputs, _inlined)
    with equation.ctx.manager:  # the settings under which it was traced
        results = equation.primitive.bind(*inputs, **equation.primitive.get_bind_params(equation.params))
    return results if equation.primitive.multiple_results else [results]


def _holds_constants(equation: Any) -> bool:
    """Tells whether an operation calls a jitted function that closes over arrays."""
    return equation.primitive.name == "jit" and bool(fingerprint.closed_over(equation.params["jaxpr"]))


class Step(NamedTuple):
    """One operation: ``outputs = primitive(inputs)``; an input is a slot or a JAX literal."""

    primitive: Any
    params: dict[str, Any]
    inputs: tuple[int | Literal, ...]
    outputs: tuple[int, ...]
    shapes: tuple[jax.ShapeDtypeStruct, ...]  # of the outputs
    context: Any  # the settings under which it was traced

    def run(self, inputs: Iterable[Any]) -> list[Any]:
        """Returns the values of the outputs."""
        with self.context.manager:
            value = self.primitive.bind(*inputs, **self.primitive.get_bind_params(self.params))
        return list(value) if self.primitive.multiple_results else [value]


def run_step(number: int, step: Step, inputs: list[Any]) -> list[Any]:
    """Evaluates a step as it was recorded."""
    return step.run(inputs)


def played(
    steps: Iterable[Step],
    values: Mapping[int, Any],
    each: Callable[[int, Step, list[Any]], list[Any]] = run_step,
) -> dict[int, Any]:
    """Returns values by slot, including all that the steps compute, step i by ``each(i, step, inputs)``."""
    known = dict(values)
    for i, step in enumerate(steps):
        inputs = [read(known, slot) for slot in step.inputs]
        known.update(zip(step.outputs, each(i, step, inputs), strict=True))
    return known


class Tape(NamedTuple):
    """A recorded function: slots 0, 1, ... are its flat arguments."""

    steps: tuple[Step, ...]  # only those that the result depends on
    constants: dict[int, Any]  # slot -> value that the function closed over
    result: int | Literal  # the slot of its one result

    def used(self) -> set[int]:
        """Returns the slots that the result depends on."""
        return {slot for step in self.steps for slot in step.inputs if isinstance(slot, int)} | {
            slot for slot in [self.result] if isinstance(slot, int)
        }

    def size(self) -> int:
        """Returns the bytes of all values that the steps compute."""
        return sum(math.prod(shape.shape) * shape.dtype.itemsize for step in self.steps for shape in step.shapes)

    def play(self, arguments: Iterable[Any], each: Callable[[int, Step, list[Any]], list[Any]] = run_step) -> Any:
        """Returns the result for flat ``arguments``, as :func:`played` finds it."""
        return read(played(self.steps, {**self.constants, **dict(enumerate(arguments))}, each), self.result)


def read(values: Mapping[int, Any], slot: int | Literal) -> Any:
    """Returns the value in a slot, or that of a literal."""
    return values[slot] if isinstance(slot, int) else slot.val


def record(function: Callable[..., Any], *arguments: Any) -> Tape:
    """Records ``function(*arguments)``, which returns one array; arguments may be shapes."""
    program = jax.make_jaxpr(function)(*arguments)
    recorder = _Recorder()
    (result,) = recorder.inline(program, [recorder.slot() for _ in program.jaxpr.invars])
    return Tape(_live(recorder.steps, result), recorder.constants, result)


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

    def inline(self, program: Any, arguments: list[Any]) -> list[Any]:
        """Appends the steps of a program and returns the slots of its results."""
        return walk(program, arguments, self._step, constant=self.constant, literal=lambda atom: atom)

    def _step(self, equation: Any, inputs: list[Any]) -> list[Any]:
        if equation.primitive.name in _CALLS:
            return self.inline(equation.params["jaxpr"], inputs)
        outputs = [self.slot() for _ in equation.outvars]
        shapes = tuple(jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in equation.outvars)
        step = Step(equation.primitive, equation.params, tuple(inputs), tuple(outputs), shapes, equation.ctx)
        self.steps.append(step)
        return outputs


def _live(steps: list[Step], result: int | Literal) -> tuple[Step, ...]:
    """Returns the steps that the result depends on."""
    wanted, kept = {result} if isinstance(result, int) else set(), []
    for step in reversed(steps):
        if wanted.intersection(step.outputs):
            wanted.update(slot for slot in step.inputs if isinstance(slot, int))
            kept.append(step)
    return tuple(reversed(kept))
