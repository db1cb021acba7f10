"""Times audits of mechanisms on the host beside a plain loop over the same function, in turns, on as many cores.

    taskset -c 1 python -m experiments.bench.host --only numpy       # a minute
    taskset -c 0,1 python -m experiments.bench.host --only opendp diffprivlib pure_ldp opacus     # where all four are

Both sides have the cores that the command may use: an audit with a worker for each, and a loop in a process for each,
of one thread, which calls the function as it is; of NumPy, one call draws a million, in one process. An audit's
figures are those of the second half of its trials; ``seconds`` is the whole, which includes the start of the
processes, the pilot and one compilation. ``by_cpu`` compares the CPU time of a trial, of all processes together, with
that of a call, and so depends little on what else the machine does; its load stands in each row. Expect 0.8 of the
plain loop and more, and of NumPy 0.12.
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
CORES = len(os.sched_getaffinity(0))
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
    cores = CORES if side.workers else 1
    of = f"{name}_on_{cores}_cores" if cores > 1 else name
    setting = {"library": name, "cores": cores, "load": round(os.getloadavg()[0], 1)}
    scale = f"{rounds} turns of an audit of {side.trials:,} trials and a plain loop"

    def add(quantity: str, values: list[float]) -> None:
        rows.spread(f"{of}_{quantity}", setting, values, scale=scale)

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

    mechanism = dpaudit.on_host(side.release, workers=CORES if side.workers else 0, setup=side.setup)
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
    """Times a plain loop, in as many processes as the audit has workers."""
    if not side.workers:
        rng = np.random.default_rng(0)
        return timed(lambda: side.release(rng, 1.0, AT_ONCE), AT_ONCE)
    context = multiprocessing.get_context("spawn")
    answers, together = context.Queue(), context.Barrier(CORES)
    processes = [context.Process(target=loop, args=(name, answers, together)) for _ in range(CORES)]
    for process in processes:
        process.start()
    found = [answers.get(timeout=600) for _ in processes]
    for process in processes:
        process.join()
    cpu, seconds = (float(np.mean([one[at] for one in found])) for at in (1, 2))
    return Timed(sum(one.rate for one in found), cpu, seconds)


def loop(name: str, answers: Any, together: Any) -> None:
    """Calls the function for some seconds, at the same time as the other processes."""
    side, rng = SIDES[name], np.random.default_rng()
    state = {} if side.setup is None else {"state": side.setup()}
    side.release(rng, 1.0, **state)
    together.wait()
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
