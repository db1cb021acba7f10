"""Reads the text of a compiled program: its loops, collectives, host calls, types, precisions, kernels and bytes.

    program = read(compiled.as_text())
    loops(program)         # with their trip counts
    collectives(program)   # {"all-reduce": 1}

The text is XLA's HLO after optimisation, in which a computation is a list of instructions, and fusions, loops and
branches call computations. Bytes and kernels are counted per run: what is inside a loop counts once per trip.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

BYTES = {"pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "bf16": 2, "f16": 2, "s64": 8, "u64": 8, "f64": 8}
NO_WORK = {"parameter", "tuple", "get-tuple-element", "bitcast", "constant", "after-all", "partition-id", "replica-id"}
CONTROL = {"while", "conditional", "call", "opt-barrier", "async-start", "async-done", "async-update"}
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "ragged-all-to-all")
SLICES = {"slice", "dynamic-slice", "gather"}
HOST = {"infeed", "outfeed", "send", "recv"}

NAME = r"%?([\w.\-]+)"
ARRAY = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\](?:\{([\d,]*)(?::([^}]*))?\})?")


class Array(NamedTuple):
    """Type of one array.

    Attributes:
      kind: such as "f32".
      shape: its lengths.
      order: its axes from the one whose numbers are adjacent to the slowest.
      tile: the block that the last axes are padded to on a TPU; empty elsewhere.
    """

    kind: str
    shape: tuple[int, ...]
    order: tuple[int, ...]
    tile: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * BYTES.get(self.kind, 4)

    @property
    def padded(self) -> int:
        """Returns the bytes that it takes in memory, with a TPU's padding."""
        lengths = [self.shape[axis] for axis in reversed(self.order)] or list(self.shape)
        for at, block in enumerate(reversed(self.tile), start=1):
            if at <= len(lengths):
                lengths[-at] = -(-lengths[-at] // block) * block
        return math.prod(lengths) * BYTES.get(self.kind, 4)


class Instruction(NamedTuple):
    """One operation: its name, the types of its results, its operands' names, and the rest of the line."""

    name: str
    opcode: str
    arrays: tuple[Array, ...]
    operands: tuple[str, ...]
    rest: str
    root: bool

    def called(self, what: str) -> str | None:
        found = re.search(rf"\b{what}={NAME}", self.rest)
        return None if found is None else found[1]


class Program(NamedTuple):
    """Computations by name, and the name of the one that a run begins with."""

    computations: dict[str, dict[str, Instruction]]
    entry: str
    text: str


class Loop(NamedTuple):
    """A loop: its trips, None where they are not known before it runs, and where the program wrote it."""

    trips: int | None
    source: str


def read(text: str) -> Program:
    """Reads the text of an executable."""
    computations: dict[str, dict[str, Instruction]] = {}
    entry, own = "", {}
    for line in text.splitlines():
        if head := re.match(rf"(ENTRY )?{NAME} \(.*\) -> .* \{{$", line):
            own = computations[head[2]] = {}
            entry = head[2] if head[1] else entry
        elif found := re.match(rf"\s+(ROOT )?{NAME} = (.*)$", line):
            kinds, rest = _type(found[3])
            if call := re.match(r"([\w\-]+)\(", rest):
                inside, behind = _brackets(rest[call.end() - 1 :])
                arrays = tuple(map(_array, ARRAY.finditer(kinds)))
                operands = tuple(re.findall(r"%([\w.\-]+)", inside)) or (inside,)
                own[found[2]] = Instruction(found[2], call[1], arrays, operands, behind, bool(found[1]))
    return Program(computations, entry, text)


def _type(text: str) -> tuple[str, str]:
    """Splits a result's type from what follows."""
    if text.startswith("("):
        inside, rest = _brackets(text)
        return inside, rest.strip()
    kind, _, rest = text.partition(" ")
    return kind, rest


def _brackets(text: str) -> tuple[str, str]:
    """Splits off what stands in the brackets that a text begins with."""
    depth = 0
    for at, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if not depth:
            return text[1:at], text[at + 1 :]
    return text[1:], ""


def _array(found: re.Match[str]) -> Array:
    def numbers(text: str | None) -> tuple[int, ...]:
        return tuple(int(n) for n in (text or "").split(",") if n)

    tile = re.match(r"T\(([\d,]+)\)", found[4] or "")
    return Array(found[1], numbers(found[2]), numbers(found[3]), numbers(tile and tile[1]))


def runs(program: Program) -> Iterator[tuple[Instruction, dict[str, Instruction], float]]:
    """Yields every instruction that a run launches, its computation, and how often; a loop of unknown length once."""

    def inside(name: str, times: float) -> Iterator[tuple[Instruction, dict[str, Instruction], float]]:
        own = program.computations[name]
        for one in own.values():
            yield one, own, times
            if one.opcode == "while":
                yield from inside(str(one.called("body")), times * (_trips(program, one) or 1))
            elif one.opcode == "conditional":
                branches = re.search(r"branch_computations=\{([^}]*)\}", one.rest)
                names = re.findall(r"[\w.\-]+", branches[1]) if branches else []
                names += [found for what in ("true_computation", "false_computation") if (found := one.called(what))]
                for branch in names:
                    yield from inside(branch, times)
            elif one.opcode in ("call", "async-start") and (callee := one.called("to_apply") or one.called("calls")):
                yield from inside(callee, times)

    yield from inside(program.entry, 1)


def loops(program: Program) -> list[Loop]:
    """Returns every loop of the program."""
    return [
        Loop(_trips(program, one), (re.search(r'op_name="([^"]*)"', one.rest) or ["", ""])[1])
        for own in program.computations.values()
        for one in own.values()
        if one.opcode == "while"
    ]


def _trips(program: Program, loop: Instruction) -> int | None:
    """Returns the trips that XLA knows, or those of a condition ``number < constant``."""
    if known := re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.rest):
        return int(known[1])
    condition = program.computations[str(loop.called("condition"))]
    if any(one.opcode == "fusion" for one in condition.values()):
        called = [one.called("calls") for one in condition.values() if one.opcode == "fusion"]
        condition = condition | {k: v for name in called if name for k, v in program.computations[name].items()}
    compared = [one for one in condition.values() if one.opcode == "compare" and "direction=LT" in one.rest]
    constants = [one for one in condition.values() if one.opcode == "constant" and one.operands[0].isdecimal()]
    return int(constants[0].operands[0]) if len(compared) == len(constants) == 1 else None


def collectives(program: Program) -> dict[str, int]:
    """Counts the operations between devices that the text holds, each once."""
    found = Counter(
        one.opcode.removesuffix("-start")
        for own in program.computations.values()
        for one in own.values()
        if one.opcode.removesuffix("-start") in COLLECTIVES
    )
    return dict(found)


def host_calls(program: Program) -> list[str]:
    """Returns the names of instructions that wait for the host."""
    found = []
    for own in program.computations.values():
        for one in own.values():
            target = re.search(r'custom_call_target="([^"]*)"', one.rest)
            called = target is not None and re.search("callback|Host|host_", target[1])
            if one.opcode in HOST or called:
                found.append(one.name)
    return found


def kinds(program: Program) -> set[str]:
    """Returns the types of all arrays."""
    return {array.kind for own in program.computations.values() for one in own.values() for array in one.arrays}


def loose_products(program: Program) -> list[str]:
    """Returns the products of float32 numbers that do not say HIGHEST.

    A convolution that a GPU leaves to cuDNN does not tell its precision, and is left out: it is a network's own.
    """
    found = []
    for own in program.computations.values():
        for one in own.values():
            gemm = one.opcode == "custom-call" and re.search(r'custom_call_target="__cublas', one.rest)
            if not (gemm or one.opcode in ("dot", "convolution")):
                continue
            if one.arrays[0].kind != "f32":
                continue
            said = re.search(r'operand_precision"?[=:][{\[]([^}\]]*)', one.rest)
            if said is None or set(re.findall(r"\w+", said[1].lower())) != {"highest"}:
                found.append(one.name)
    return found


def kernels(program: Program) -> int:
    """Counts what a run launches: every instruction outside fusions that computes or copies."""
    return int(sum(times for one, _, times in runs(program) if _works(one)))


def moved(program: Program) -> float:
    """Adds up the bytes that a run reads and writes; of an operand that is only sliced, the slice."""
    return sum(times * _moved(program, one, own) for one, own, times in runs(program) if _works(one))


def _works(one: Instruction) -> bool:
    return one.opcode not in NO_WORK | CONTROL and not one.opcode.endswith("-done")


def _moved(program: Program, one: Instruction, own: dict[str, Instruction]) -> float:
    if re.search(r'custom_call_target="__cu', one.rest):
        one = one._replace(arrays=one.arrays[:1])  # the other result is room to work in
    operands = [own[name].arrays for name in one.operands if name in own]
    sizes = [sum(array.padded for array in arrays) for arrays in operands]
    written = sum(array.padded for array in one.arrays)
    if one.opcode in SLICES:
        return 2.0 * written
    if one.opcode == "dynamic-update-slice":
        return 2.0 * sizes[1]
    callee = one.called("calls") if one.opcode == "fusion" else None
    if callee is None:
        return float(sum(sizes) + written)
    return _moved_by_fusion(program.computations[callee], sizes, written)


def _moved_by_fusion(inner: dict[str, Instruction], sizes: list[int], written: int) -> float:
    """Adds up a fusion's bytes: an operand that is only sliced counts as its slices, an update in place as itself."""
    total = 0.0
    for one in inner.values():
        if one.opcode != "parameter":
            continue
        size = sizes[int(one.operands[0])]
        seen = {one.name}  # and what only names the same bytes
        for other in inner.values():
            if other.opcode == "bitcast" and other.operands[0] in seen:
                seen.add(other.name)
        users = [user for user in inner.values() if user.name not in seen and not seen.isdisjoint(user.operands)]
        if users and all(user.opcode in SLICES and user.operands[0] in seen for user in users):
            size = min(size, sum(array.padded for user in users for array in user.arrays))
        elif users and all(user.opcode == "dynamic-update-slice" and user.operands[0] in seen for user in users):
            size = 0
        total += size
    roots = [one for one in inner.values() if one.root]
    ends = [inner[name] for name in roots[0].operands if name in inner] if roots[0].opcode == "tuple" else roots
    updates = [end for end in ends if end.opcode == "dynamic-update-slice"]
    for end in updates:
        update = inner[end.operands[1]]
        written -= sum(array.padded for array in end.arrays) - sum(array.padded for array in update.arrays)
    return total + max(0, written)


def padding(program: Program, least: float = 16e6) -> list[tuple[str, float]]:
    """Returns (name, padded bytes over real ones) of the arrays of at least so many padded bytes, worst first."""
    fused = {one.called("calls") for own in program.computations.values() for one in own.values()}
    found = {
        one.name: array.padded / array.bytes
        for name, own in program.computations.items()
        if name not in fused
        for one in own.values()
        for array in one.arrays
        if array.padded >= least and array.bytes
    }
    return sorted(found.items(), key=lambda item: -item[1])
