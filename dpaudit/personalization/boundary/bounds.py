"""How far one user moves a total: clipped by the aggregator, whatever their device sends.

    clipped(1.0)                        # all numbers of a message together have an L2 norm of at most 1
    bounded(0.0, 100.0)                 # every number lies in [0, 100]
    bounded(0.0, 1.0, clip_norm=1.0)    # a count in one bin, or a little in several

A message with NaN in it counts as nothing, and so does an infinite one that no range makes finite. Sums are of float32
or wider, whatever devices send.
"""

import math
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun
from jax.flatten_util import ravel_pytree

from dpaudit import _validate
from dpaudit.mechanisms.clipping import clip
from dpaudit.personalization.boundary.processes import Memory, Process, memoryless

MARGIN = 2.0**-16  # part of a clip norm that is left for rounding


class Bound(NamedTuple):
    """What is left of one message: ``bound(message) -> message``.

    Attributes:
      low, high: of every number; infinite for no range.
      clip_norm: L2 norm of all numbers together; infinite for none.
    """

    low: float
    high: float
    clip_norm: float

    def __call__(self, message: Any) -> Any:
        wide = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.promote_types(leaf.dtype, jnp.float32)), message)
        numbers, restored = ravel_pytree(wide)
        within = jnp.clip(numbers, self.low, self.high)
        sound = jnp.where(jnp.all(jnp.isfinite(within)), within, 0)
        return restored(sound if math.isinf(self.clip_norm) else clip(sound, self.clip_norm * (1 - MARGIN)))

    def sensitivity(self, like: Any) -> float:
        """The largest L2 norm of what is left of a message of these shapes."""
        size = sum(math.prod(jnp.shape(leaf)) for leaf in jax.tree.leaves(like))
        return min(self.clip_norm, max(abs(self.low), abs(self.high)) * math.sqrt(size) * (1 + MARGIN))


class Bounded(NamedTuple):
    """The aggregator's sum, ``bounded(total, messages) -> total``: every message is bounded before it is added.

    Attributes:
      bounds: one for the whole message, or one for each of its parts.
      names: of the parts, in order; none where there is one bound for all.
    """

    bounds: tuple[Bound, ...]
    names: tuple[str, ...] = ()

    def __call__(self, total: Any, messages: Any) -> Any:
        sums = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), jax.vmap(self._one)(messages))
        return sums if total is None else jax.tree.map(jnp.add, total, sums)

    def parts(self, tree: Any) -> list[tuple[Bound, Any]]:
        """Every bound, and the part of a message or total that it is of.

        Raises:
          InputError: a message of other parts.
        """
        if not self.names:
            return [(self.bounds[0], tree)]
        if not isinstance(tree, dict) or sorted(tree) != list(self.names):
            found = sorted(tree) if isinstance(tree, dict) else type(tree).__name__
            raise _validate.expected("compute", f"a message of the parts that have bounds, {list(self.names)}", found)
        return [(bound, tree[name]) for bound, name in zip(self.bounds, self.names, strict=True)]

    def _one(self, message: Any) -> Any:
        within = [bound(part) for bound, part in self.parts(message)]
        return dict(zip(self.names, within, strict=True)) if self.names else within[0]


def clipped(clip_norm: float) -> Bound:
    """Messages shortened to an L2 norm of ``clip_norm`` > 0, all their numbers together.

    Raises:
      InputError: clip_norm out of range.
    """
    return Bound(-math.inf, math.inf, float(_validate.positive(clip_norm=clip_norm)))


def bounded(low: float, high: float, *, clip_norm: float | None = None) -> Bound:
    """Messages whose every number is moved into [low, high]: ratings, ages, counts.

    Args:
      low, high: low < high.
      clip_norm: L2 norm of all numbers together besides, > 0; None for what the range allows.

    Raises:
      InputError: an empty range; clip_norm out of range.
    """
    if not _validate.finite(low=low) < _validate.finite(high=high):
        raise _validate.expected("high", f"a number > {low:g}", high)
    norm = math.inf if clip_norm is None else _validate.positive(clip_norm=clip_norm)
    return Bound(float(low), float(high), float(norm))


# The aggregator's exit where it bounds what users add: totals with noise for its own bounds.


class Noised(NamedTuple):
    """The aggregator's exit: every total with its process's noise, ``noised(key, total, memory)``.

    Attributes:
      processes: one for the whole total, or one for each of its parts, by name.
      add: of the devices, which bounds what one user adds.
    """

    processes: tuple[Process, ...]
    add: Bounded

    def __call__(self, key: jax.Array, total: Any, memory: tuple[Memory, ...]) -> Any:
        if not isinstance(memory, tuple) or len(memory) != len(self.processes):
            raise _validate.expected(
                "memory", f"one of each of {len(self.processes)} processes, or None to begin", memory
            )
        pairs = [
            process.release(key, part, own, sensitivity=bound.sensitivity(part))
            for process, (bound, part), own in zip(self.processes, self.add.parts(total), memory, strict=True)
        ]
        releases, after = zip(*pairs, strict=True)
        return releases, after

    def init(self) -> tuple[Memory, ...]:
        """The memory before the first release."""
        return tuple(memoryless() for _ in self.processes)


# Traces a party's function by itself, and refuses one that would tell the host what it computes on.
#
# A developer's function runs on raw data inside the boundary as a program, never as Python: traced where no other
# party's values exist, and only if nothing in it reaches out (callbacks, prints, foreign functions, references to arrays
# that somebody else holds), however deep in calls, loops and branches.

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
        raise _validate.expected(name, "a function without effects, for it runs on raw data", found)
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
