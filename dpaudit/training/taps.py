"""Finds where a loss uses each parameter once and linearly, and evaluates it with a tap there.

If a parameter p enters the loss only through one operation y = L_a(p), linear in p, with a the other operand, then its
gradient is L_a^T d, where d = dloss/dy is the gradient for a tap: a zero added to y. One backward pass for the taps of
a whole batch therefore holds the gradient of every example, as the pair (a, d).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpaudit._engine.programs import Step, Tape

_VIEWS = {"reshape", "transpose", "squeeze", "broadcast_in_dim", "convert_element_type", "copy"}  # same numbers, moved
_LINEAR = {
    "dot_general": (0, 1),
    "conv_general_dilated": (1,),
    "gather": (0,),
    "mul": (0, 1),
    "add": (0, 1),
    "sub": (0, 1),
    "div": (0,),
}


class Site(NamedTuple):
    """The only use of a parameter: step ``at`` takes it, seen through ``views``, as input ``operand``."""

    leaf: int  # which parameter
    at: int
    operand: int
    views: tuple[Step, ...]
    step: Step

    def seen(self, parameter: jax.Array) -> jax.Array:
        """Returns the parameter as the operation sees it, but in its own dtype."""
        for view in self.views:
            if view.primitive.name != "convert_element_type":
                (parameter,) = view.run([parameter])
        return parameter

    def without(self, inputs: list[Any]) -> list[Any]:
        """Returns the inputs of the step without the parameter."""
        return inputs[: self.operand] + inputs[self.operand + 1 :]

    def use(self, parameter: jax.Array, others: list[Any]) -> jax.Array:
        """Returns the output of the step."""
        (output,) = self.step.run([*others[: self.operand], self.seen(parameter), *others[self.operand :]])
        return output


def sites(tape: Tape, parameters: Sequence[Any]) -> dict[int, Site]:
    """Finds the site of every parameter (argument i of the tape) that has exactly one use, a linear one, of reals.

    JAX multiplies a real parameter by complex numbers as it is; the output is complex then, whose cotangent is too.
    """
    uses: dict[int, list[tuple[int, int]]] = {}
    for at, step in enumerate(tape.steps):
        for operand, slot in enumerate(step.inputs):
            if isinstance(slot, int):
                uses.setdefault(slot, []).append((at, operand))
    found = {}
    for leaf, parameter in enumerate(parameters):
        slot, views = leaf, []
        while len(uses.get(slot, ())) == 1 and slot != tape.result:
            ((at, operand),) = uses[slot]
            step = tape.steps[at]
            if operand in _LINEAR.get(step.primitive.name, ()) and step.params.get("batch_group_count", 1) == 1:
                if jnp.issubdtype(step.shapes[0].dtype, jnp.floating):
                    found[leaf] = Site(leaf, at, operand, tuple(views), step)
                break
            if step.primitive.name not in _VIEWS or not _keeps_numbers(step, parameter):
                break
            views.append(step)
            (slot,) = step.outputs
    return found


def _keeps_numbers(step: Step, parameter: Any) -> bool:
    (shape,) = step.shapes
    return len(step.inputs) == 1 and shape.size == parameter.size and jnp.issubdtype(shape.dtype, jnp.floating)


def zero_taps(found: dict[int, Site]) -> dict[int, jax.Array]:
    """Returns a zero for every step that is a site."""
    return {site.at: jnp.zeros(site.step.shapes[0].shape, site.step.shapes[0].dtype) for site in found.values()}


def tapped(
    tape: Tape, found: dict[int, Site], taps: dict[int, jax.Array], arguments: Sequence[Any]
) -> tuple[jax.Array, dict[int, list[Any]]]:
    """Evaluates the loss with the taps added to their steps' outputs; returns it and each site's other operands."""
    others: dict[int, list[Any]] = {}

    def each(at: int, step: Step, inputs: list[Any]) -> list[Any]:
        others.update({site.leaf: site.without(inputs) for site in found.values() if site.at == at})
        outputs = step.run(inputs)
        return [outputs[0] + taps[at]] if at in taps else outputs

    return tape.play(arguments, each), others
