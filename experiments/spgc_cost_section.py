"""The part of experiments/README.md that tells what a training by SPGC costs: Table 1 of paper 001."""

from collections.abc import Iterable, Sequence
from typing import Any

from experiments.markdown import number, ranged, select, table
from experiments.spgc_cost import EPSILONS, LINKS, RING_BITS, general_bytes, plain_bytes

Rows = Sequence[dict[str, Any]]
SIDES = {("noisy", 1): "SPGC, IKNP", ("noisy", 4): "SPGC, SoftSpoken", ("plain", 1): "MPC only, IKNP"}


def section(rows: Rows) -> Iterable[str]:
    """Markdown blocks, in reading order."""
    yield "## Paper 001: what a training costs\n"
    yield "Command: `python -m experiments.spgc_cost`, then `make results`.\n"
    yield from _trainings(rows)
    yield from _links(rows)
    if select(rows, "epsilon_hours"):
        yield from _epsilons(rows)
    yield from _tables(rows)


def _trainings(rows: Rows) -> Iterable[str]:
    yield (
        "**Table 1, whole trainings.** The paper does not say how many steps it took. Its bytes without noise do, if a coordinate "
        f"cost it what our circuit and transfers cost for its ring of {RING_BITS} bits ({plain_bytes():,.0f} bytes). That is the "
        "most steps it can have been, and least to our favour: with general transfers, which send both labels encrypted, a "
        f"coordinate costs {general_bytes():,.0f} bytes, so there are {general_bytes() / plain_bytes():.1f} times fewer steps and "
        "all our hours and GB go down by as much. Hours "
        "are measured seconds of a step on loopback, two server processes and three owners on this machine, "
        "times the steps; they hold all that is done for the sum, nothing being prepared ahead, and not the gradients (0.07 to "
        "1.7 hours in the paper). The paper's are whole, at ε = 2. GB are between the servers.\n"
    )
    lines = []
    for steps in select(rows, "steps"):
        at = steps["setting"]
        same = {name: at[name] for name in ("data", "reading")}
        for (mode, depth), side in SIDES.items():
            how = same | {"mode": mode, "depth": depth}
            (hours,), (gigabytes,) = select(rows, "hours", **how), select(rows, "gigabytes", **how)
            (step,) = select(rows, "step_seconds", link="loopback", **how)
            name = f"{at['data']}{', ' + at['reading'] if at['reading'] else ''}: {side}"
            cells = [f"{at['d']:,}", f"{steps['ours']:,.0f} ({steps['epochs']:,})", ranged(step, 3)]
            cells += [number(hours["ours"]), number(hours["paper_value"]), number(hours["times_as_fast"], 1)]
            lines.append([name, *cells, number(gigabytes["ours"], 1), number(gigabytes["paper_value"], 1)])
    header = ["training", "d", "steps (epochs)", "s a step", "hours", "paper", "times as fast", "GB", "paper"]
    yield table(header, lines)


def _links(rows: Rows) -> Iterable[str]:
    yield (
        "**Slower links between the servers.** Seconds of a step, median [smallest, largest] of 20, or of 5 for MNIST; a link delays each direction by "
        "what it is called after (the plain 1 Gbit/s by 0.1 ms), shaped by a process in the middle.\n"
    )
    lines = []
    for steps in select(rows, "steps"):
        at = steps["setting"]
        for (mode, depth), side in SIDES.items():
            how = {"data": at["data"], "reading": at["reading"], "mode": mode, "depth": depth}
            found = [select(rows, "step_seconds", link=link, **how) for link in LINKS]
            name = f"{at['data']}, d = {at['d']:,}: {side}"
            lines.append([name, *(ranged(row[0], 3) if row else "–" for row in found)])
    yield table(["training", *LINKS], lines)


def _epsilons(rows: Rows) -> Iterable[str]:
    yield (
        "**Time against ε.** Table 1's rows, on loopback, with the noise of the paper's rule. Our circuit hardly "
        "grows with the noise, as the bytes below show, and so the time does not depend on ε, up to how exactly a step can be "
        "timed. Seconds of a step, median [smallest, largest]; hours of the "
        "training, the paper's in brackets.\n"
    )
    lines = []
    for data in dict.fromkeys(row["setting"]["data"] for row in select(rows, "epsilon_hours")):
        for quantity, unit in (("epsilon_seconds", "s a step"), ("epsilon_hours", "hours (paper)")):
            found = [select(rows, quantity, data=data, epsilon=epsilon) for epsilon in EPSILONS]
            lines.append([f"{data}, {unit}", *(_timed(*of) if of else "–" for of in found)])
    yield table(["training", *(f"ε = {epsilon:g}" for epsilon in EPSILONS)], lines)


def _timed(row: dict[str, Any]) -> str:
    if row["quantity"] == "epsilon_hours":
        return f"{number(row['ours'])} ({number(row['paper_value'])})"
    return ranged(row, 3)


def _tables(rows: Rows) -> Iterable[str]:
    yield (
        "**Bytes against ε.** The paper's bytes rise as ε falls, and it takes that for a law of noise in circuits. It is one of "
        "tables: the wider the noise, the more of the 65,536 entries differ. Counted: bytes of AND gates that a coordinate "
        f"takes with the paper's table in our circuit (a ring of {RING_BITS} bits, or wider where the noise needs it: with 30 "
        "records it leaves the paper's own), and with binomial noise, where a step twice as wide takes one gate more: 32 bytes, whatever the table does.\n"
    )
    lines = []
    for data in dict.fromkeys(row["setting"]["data"] for row in select(rows, "table_bytes")):
        for circuit in ("table", "binomial"):
            found = [select(rows, "table_bytes", data=data, circuit=circuit, epsilon=epsilon) for epsilon in EPSILONS]
            lines.append([f"{data}, {circuit}", *(f"{row[0]['ours']:,.0f}" if row else "–" for row in found)])
    yield table(["data, noise", *(f"ε = {epsilon:g}" for epsilon in EPSILONS)], lines)
