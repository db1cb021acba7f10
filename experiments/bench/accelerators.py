"""Compiles every program for accelerators that the machine lacks, and bounds what each would take there.

    make accelerators                                                  # the tests of the contract
    python -m experiments.bench.accelerators                           # all rows: an hour of two cores
    python -m experiments.bench.accelerators --on h100 --only full --out DIR     # some: seconds each

Nothing is run, so these rows are bounds from compiled programs and never times: bytes that a run reads and writes,
operations of the program as written, temporaries as XLA plans them, and the roofline that follows from them.
"""

import math
import sys
import time
from typing import Any

from dpaudit import _validate
from dpaudit._engine import topologies
from experiments.bench import hlo, operations
from experiments.bench.accelerator_forms import FORMS
from experiments.bench.accelerator_programs import PROGRAMS, Subject
from experiments.common import Rows, options

MACHINES = ("h100", "v5e", "v6e", "h100:1x2x4", "v5e:2x2", "h100:1x128x8", "v5p:8x16x16")
SCALE = "bound from the compiled program, not a time"
# bytes a second, operations a second in products of the widest type that a float32 product may take, and in the rest
PEAKS = {"v5e": (819e9, 197e12, 6.1e12), "h100": (3.35e12, 494e12, 33.5e12)}


def bound(count: operations.Count, program: hlo.Program, plan: Any) -> dict[str, float]:
    """Returns what one call takes on one device, by quantity."""
    return {
        "operations_in_products": count.products,
        "other_operations": count.others,
        "bytes_moved": hlo.moved(program),
        "bytes_of_temporaries": plan.temp_size_in_bytes,
        "kernels_launched": hlo.kernels(program),
        "loops": len(hlo.loops(program)),
        "longest_loop": max([loop.trips or 0 for loop in hlo.loops(program)], default=0),
        "collectives": sum(hlo.collectives(program).values()),
        "worst_padding": max([ratio for _, ratio in hlo.padding(program)], default=1.0),
    }


def roofline(chip: str, found: dict[str, float]) -> float:
    """Microseconds that a call takes at least, were nothing but bytes and operations in the way."""
    bandwidth, products, others = PEAKS[chip]
    return 1e6 * max(
        found["bytes_moved"] / bandwidth,
        found["operations_in_products"] / products,
        found["other_operations"] / others,
    )


def compiled(machine: topologies.Machine, subject: Subject) -> tuple[Any, operations.Count, hlo.Program, Any]:
    """Traces and compiles a program; returns it traced, its operations, its text as read, and XLA's plan of memory."""
    with machine.traced():
        traced = subject.trace(machine)
        executable = machine.compiled(traced.lower())
        counted = operations.count(traced.jaxpr)
    return traced, counted, hlo.read(executable.as_text()), executable.memory_analysis()


def measure(rows: Rows, name: str, subject: Subject, machine: topologies.Machine) -> None:
    began = time.perf_counter()
    traced, count, program, plan = compiled(machine, subject)
    took = time.perf_counter() - began
    found = bound(count, program, plan)
    if subject.trials:
        played = math.prod(traced.out_info.shape) / len(machine.devices)
        found["bytes_per_1024_trials"] = 1024 * found["bytes_moved"] / played
    if name.startswith("kernel") and machine.chip == "h100":  # its grid is not in the trace
        del found["operations_in_products"], found["other_operations"]
    elif machine.chip in PEAKS:
        found["roofline_microseconds"] = roofline(machine.chip, found)
    for quantity, value in found.items():
        rows.add(quantity, {"program": name, "machine": machine.name}, value, scale=SCALE, seconds=took)
    told = ", ".join(f"{quantity} {value:.4g}" for quantity, value in found.items())
    print(f"{name} on {machine.name} ({took:.0f} s to compile): {told}", flush=True)


def write(rows: Rows) -> None:
    """Writes the rows, beside those that stand in the file of programs that were not compiled this time."""
    places = {name: at for at, name in enumerate([*PROGRAMS, *FORMS])}

    def place(row: dict[str, Any]) -> tuple[int, int]:
        return MACHINES.index(row["setting"]["machine"]), places[row["setting"]["program"]]

    new = set(map(place, rows.rows))
    rows.write(sorted([row for row in rows.earlier if place(row) not in new] + rows.rows, key=place))


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--on", nargs="+", default=MACHINES, help="machines, such as h100 or v5e:2x2")
    parser.add_argument("--only", nargs="+", default=None, help="programs whose names begin so")
    chosen = parser.parse_args()
    rows = Rows("", "bench_accelerators", chosen.out, chosen.seed, keep=True)
    try:
        for name in chosen.on:
            machine = topologies.machine(name)
            for title, subject in {**PROGRAMS, **FORMS}.items():
                wanted = chosen.only is None or title.startswith(tuple(chosen.only))
                fits = machine.mesh is None or subject.scales
                if wanted and fits and subject.only in (None, machine.devices[0].platform):
                    measure(rows, title, subject, machine)
            write(rows)
    except _validate.InputError as error:
        print(f"bench_accelerators: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
