"""A network cut into parts, each of which runs for as many images, or samples of an image, at a time as suits it.

The network is a function of several arrays, called many times with another last one, x: an image or a dropout key.
What does not depend on x runs once. What does is cut in two, wide and narrow: of a CNN the convolutions, whose values
for a few samples fill the caches, and the dense layers, whose weights would have to be read again for every few.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
from jax import lax

from dpaudit.training.tape import Step, Tape, read, record


class Part(NamedTuple):
    """Steps that run together."""

    steps: tuple[Step, ...]
    makes: list[int]  # the slots that later parts read
    values: int  # bytes of what one x makes of them, and of what they are handed of it
    weights: int  # bytes of what they read that does not depend on x

    def run(self, values: Mapping[int, Any]) -> dict[int, Any]:
        """What it makes of values by slot."""
        known = dict(values)
        for step in self.steps:
            known.update(zip(step.outputs, step.run([read(known, slot) for slot in step.inputs]), strict=True))
        return {slot: known[slot] for slot in self.makes}


class Cut(NamedTuple):
    """The parts of a network, and where x goes."""

    numbers: Part  # what depends on no argument, such as 0, 1, 2, ...: faster made in a loop than read by it
    before: Part
    wide: Part
    narrow: Part
    x: int  # the slot
    constants: Mapping[int, Any]
    result: Any  # the slot
    depends: bool  # whether the result depends on x

    def shared(self, arguments: Iterable[Any]) -> dict[int, Any]:
        """What all outputs begin with, of all arguments but x."""
        given = {**self.constants, **dict(enumerate(arguments)), **self.numbers.run({})}
        return given | self.before.run(given)

    def outputs(self, shared: dict[int, Any], xs: jax.Array, few: int) -> jax.Array:
        """[n, ...] for n of x, the wide part ``few`` at a time."""

        def given(x: jax.Array) -> dict[int, Any]:
            return shared | self.numbers.run({}) | {self.x: x}

        def output(x: jax.Array, handed: dict[int, Any]) -> Any:
            known = given(x) | handed
            return read(known | self.narrow.run(known), self.result)

        handed = lax.map(lambda x: self.wide.run(given(x)), xs, batch_size=min(few, len(xs)))
        return jax.vmap(output)(xs, handed)


def cut(function: Callable[..., jax.Array], *arguments: Any) -> Cut:
    """``function(*arguments)``, the last argument being x, cut where the least is read that outputs have in common.

    In M bytes of cache a part with v bytes of values runs for M / v of x at a time, so that w bytes of weights are
    read M / v times less often: w v / M bytes for one x. The sum over both parts is made least.
    """
    leaves = jax.tree.leaves(arguments)
    tape, x = record(function, *arguments), len(leaves) - 1
    late, bound = _following(tape, {x}), _following(tape, {*range(x), *tape.constants})
    shapes = {slot: jax.typeof(value) for slot, value in [*enumerate(leaves), *tape.constants.items()]}
    for step in tape.steps:
        shapes.update(zip(step.outputs, step.shapes, strict=True))
    kinds = shapes.keys() - bound - late, bound - late, late
    numbers, before, behind = ([step for step in tape.steps if kind.issuperset(step.outputs)] for kind in kinds)

    def size(slots: Iterable[int]) -> int:
        return sum(math.prod(shapes[slot].shape) * shapes[slot].dtype.itemsize for slot in slots)

    def part(steps: list[Step], later: list[Step]) -> Part:
        made = {slot for step in steps for slot in step.outputs}
        handed = {slot for step in steps for slot in step.inputs if isinstance(slot, int)} - made
        makes = made & tape._replace(steps=tuple(later)).used()
        return Part(tuple(steps), sorted(makes), size(made | (handed & late)), size(handed & bound - late))

    def parts(at: int) -> tuple[Part, Part]:
        return part(behind[:at], behind[at:]), part(behind[at:], [])

    cuts = [parts(at) for at in range(max(1, len(behind)))]
    wide, narrow = min(cuts, key=lambda two: sum(part.values * part.weights for part in two))
    first = part(numbers, before + behind), part(before, behind)
    depends = isinstance(tape.result, int) and tape.result in late
    return Cut(*first, wide, narrow, x, tape.constants, tape.result, depends)


def _following(tape: Tape, slots: set[int]) -> set[int]:
    """The slots and all that depends on them."""
    found = set(slots)
    for step in tape.steps:
        if found.intersection(slot for slot in step.inputs if isinstance(slot, int)):
            found.update(step.outputs)
    return found
