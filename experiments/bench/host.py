"""Times audits of mechanisms on the host beside a plain loop over the same function, in turns, on one core.

    taskset -c 1 python -m experiments.bench.host --only numpy       # a minute
    taskset -c 1 python -m experiments.bench.host --only opendp      # in an environment that has it; so the others

Both sides share one core: an audit with one worker, and a loop in one process of one thread, which calls the function
as it is; of NumPy, one call draws a million. An audit's figures are those of the second half of its trials;
``seconds`` is the whole, which includes the start of the process, the pilot and one compilation. ``by_cpu`` compares
the CPU time of a trial, of all processes together, with that of a call, and so depends little on what else the machine
does; its load stands in each row. Expect 0.8 of the plain loop and more, and of NumPy 0.12.
"""

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import dpaudit
from experiments.bench.host_sides import SIDES, Side
from experiments.common import Rows, options

AT_ONCE = 1_000_000
LOOP_SECONDS = 4.0
CALLS = 8  # of an audit, so that its second half can be timed


def main() -> None:
    parser: argparse.ArgumentParser = options(__doc__ or "")
    parser.add_argument("--only", nargs="+", choices=SIDES, default=["numpy"])
    arguments = parser.parse_args()
    rows = Rows("", "bench_host", arguments.out, arguments.seed, keep=True)
    for name in arguments.only:
        measure(rows, name, SIDES[name], 1 if arguments.quick else 3, arguments.seed)


def measure(rows: Rows, name: str, side: Side, rounds: int, seed: int) -> None:
    """Adds the rows of one library."""
    audits, loops = [], []
    for turn in range(rounds):
        loops.append(plain(name, side))
        audits.append(audited(side, jax.random.key(seed + turn)))
    setting = {"library": name, "cores": len(os.sched_getaffinity(0)), "load": round(os.getloadavg()[0], 1)}
    scale = f"{rounds} turns of an audit of {side.trials:,} trials and a plain loop"

    def add(quantity: str, values: list[float]) -> None:
        rows.spread(f"{name}_{quantity}", setting, values, scale=scale)

    add("audit_trials_per_second", [one.rate for one in audits])
    add("loop_calls_per_second", [one.rate for one in loops])
    add("audit_over_loop", [one.rate / other.rate for one, other in zip(audits, loops, strict=True)])
    add("audit_over_loop_by_cpu", [other.cpu / one.cpu for one, other in zip(audits, loops, strict=True)])
    add("audit_seconds", [one.seconds for one in audits])
    rows.finish_part(name)


class Timed(NamedTuple):
    """Calls a second, CPU seconds of a call in all processes together, and seconds of the whole."""

    rate: float
    cpu: float
    seconds: float


def audited(side: Side, key: jax.Array) -> Timed:
    """Times an audit."""
    reports: list[tuple[float, float, int]] = []

    def progress(done: int) -> None:
        children = sum(cpu_of(process.pid) for process in multiprocessing.active_children())
        reports.append((time.perf_counter(), time.process_time() + children, done))

    mechanism = dpaudit.on_host(side.release, workers=side.workers, setup=side.setup)
    settings = {"claim": dpaudit.Claim(1.0), "batch": max(32, side.trials // CALLS), "progress": progress}
    began = time.perf_counter()
    dpaudit.audit(mechanism, 0.0, 1.0, key=key, trials=side.trials, **settings)
    ended = time.perf_counter()
    last, busy, done = reports[-1]
    first, idle, none = next(report for report in reports if report[2] >= side.trials / 2)
    return Timed((done - none) / (last - first), (busy - idle) / (done - none), ended - began)


def cpu_of(process: int | None) -> float:
    """Returns the CPU seconds of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def plain(name: str, side: Side) -> Timed:
    """Times a plain loop, in a process of its own where the audit has a worker."""
    if not side.workers:
        rng = np.random.default_rng(0)
        return timed(lambda: side.release(rng, 1.0, AT_ONCE), AT_ONCE)
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=loop, args=(name, answers))
    process.start()
    found = answers.get(timeout=600)
    process.join()
    return found


def loop(name: str, answers: Any) -> None:
    """Calls the function for some seconds."""
    side, rng = SIDES[name], np.random.default_rng()
    state = {} if side.setup is None else {"state": side.setup()}
    side.release(rng, 1.0, **state)
    answers.put(timed(lambda: [side.release(rng, 1.0, **state) for _ in range(10)], 10))


def timed(call: Callable[[], object], calls: int) -> Timed:
    """Times a call again and again."""
    made, began, idle = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - began < LOOP_SECONDS:
        call()
        made += calls
    took = time.perf_counter() - began
    return Timed(made / took, (time.process_time() - idle) / made, took)


if __name__ == "__main__":
    main()
