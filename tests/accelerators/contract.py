"""States the contract of a compiled program, and tells what a program breaks of it."""

from collections.abc import Collection, Mapping

from experiments.bench import hlo

PADDING = 4.0  # planned bytes over real ones
# A round adds up what its devices send once, and gathers norms and losses together; on a TPU that is one operation.
EXCHANGED = {"all-reduce": 1, "all-gather": 1}


def breaches(
    program: hlo.Program,
    *,
    counts: Collection[int] = (),
    padding: float = PADDING,
    decides: bool = False,
    exchanged: Mapping[str, int] | None = None,
    known: bool = False,
) -> list[str]:
    """Returns what a program breaks of the contract, in words.

    Args:
      program: as :func:`hlo.read` returns it.
      counts: trip counts that no loop may have: of examples, clients, users or networks.
      padding: the most bytes that an array may take over those of its numbers.
      decides: whether all of its products decide a bound, and so have to be in full precision.
      exchanged: the operations between devices that a program has at most, by kind; None where they are not counted.
      known: whether the length of every loop has to be known, because a GPU would ask the host before each iteration.
    """
    found = []
    if "f64" in hlo.kinds(program):
        found.append("float64")
    found += [f"a call to the host: {name}" for name in hlo.host_calls(program)]
    for loop in hlo.loops(program):
        if loop.trips in counts:
            found.append(f"a loop of {loop.trips} trips: {loop.source}")
        if known and loop.trips is None:
            found.append(f"a loop of unknown length: {loop.source}")
    found += [f"{ratio:.0f} times padded: {name}" for name, ratio in hlo.padding(program) if ratio > padding]
    if decides:
        found += [f"a product that is not in full precision: {name}" for name in hlo.loose_products(program)]
    if exchanged is not None:
        done = hlo.collectives(program)
        found += [f"{n} operations of kind {kind}" for kind, n in done.items() if n > exchanged.get(kind, 0)]
    return found
