"""Times audits of mechanisms on the host beside a plain loop over the same function, in turns.

    python -m experiments.bench.host --only numpy                # a minute
    python -m experiments.bench.host --only opendp               # in an environment that has it; so the others

A plain loop calls the function as it is, in as many processes of one thread as the audit has workers; of NumPy, one
call draws a million. Rates of an audit are taken between its first and its last report of progress, so without the
start of its processes, which ``seconds`` includes. Expect 0.8 of the plain loop and more, and of NumPy 0.12.
"""

import argparse
import multiprocessing
import time
from typing import Any

import jax
import numpy as np

import dpaudit
from experiments.bench.host_sides import SIDES, Side
from experiments.common import Rows, options

AT_ONCE = 1_000_000
LOOP_SECONDS = 4.0


def main() -> None:
    parser: argparse.ArgumentParser = options(__doc__ or "")
    parser.add_argument("--only", nargs="+", choices=SIDES, default=["numpy"])
    arguments = parser.parse_args()
    rows = Rows("", "bench_host", arguments.out, arguments.seed, keep=True)
    for name in arguments.only:
        measure(rows, name, SIDES[name], 1 if arguments.quick else 3, arguments.seed)


def measure(rows: Rows, name: str, side: Side, rounds: int, seed: int) -> None:
    """Adds the rows of one library."""
    audits, loops, wholes = [], [], []
    for turn in range(rounds):
        loops.append(plain(name, side))
        rate, whole = audited(side, jax.random.key(seed + turn))
        audits.append(rate)
        wholes.append(whole)
    ratios = [one / other for one, other in zip(audits, loops, strict=True)]
    setting = {"library": name, "processes": max(1, side.workers)}
    scale = f"{rounds} turns of an audit of {side.trials:,} trials and a plain loop"
    rows.spread(f"{name}_audit_trials_per_second", setting, audits, scale=scale)
    rows.spread(f"{name}_loop_calls_per_second", setting, loops, scale=scale)
    rows.spread(f"{name}_audit_over_loop", setting, ratios, scale=scale)
    rows.spread(f"{name}_audit_seconds", setting, wholes, scale=scale)
    rows.finish_part(name)


def audited(side: Side, key: jax.Array) -> tuple[float, float]:
    """Returns trials a second of an audit, and the seconds of the whole."""
    reports: list[tuple[float, int]] = []

    def progress(done: int) -> None:
        reports.append((time.perf_counter(), done))

    mechanism = dpaudit.on_host(side.release, workers=side.workers, setup=side.setup)
    began = time.perf_counter()
    dpaudit.audit(mechanism, 0.0, 1.0, key=key, trials=side.trials, claim=dpaudit.Claim(1.0), progress=progress)
    ended = time.perf_counter()
    (first, none), (last, done) = reports[1], reports[-1]
    return (done - none) / (last - first), ended - began


def plain(name: str, side: Side) -> float:
    """Returns calls a second of plain loops in as many processes."""
    if not side.workers:
        rng, began = np.random.default_rng(0), time.perf_counter()
        calls = 0
        while time.perf_counter() - began < LOOP_SECONDS:
            side.release(rng, 1.0, AT_ONCE)
            calls += AT_ONCE
        return calls / (time.perf_counter() - began)
    context = multiprocessing.get_context("spawn")
    gate, answers = context.Barrier(side.workers), context.Queue()
    processes = [context.Process(target=loop, args=(name, gate, answers)) for _ in range(side.workers)]
    for process in processes:
        process.start()
    found = [answers.get(timeout=600) for _ in processes]
    for process in processes:
        process.join()
    return sum(found)


def loop(name: str, gate: Any, answers: Any) -> None:
    """Calls the function for some seconds; sends calls a second."""
    side = SIDES[name]
    state = {} if side.setup is None else {"state": side.setup()}
    rng = np.random.default_rng()
    side.release(rng, 1.0, **state)
    gate.wait()
    calls, began = 0, time.perf_counter()
    while time.perf_counter() - began < LOOP_SECONDS:
        for _ in range(10):
            side.release(rng, 1.0, **state)
        calls += 10
    answers.put(calls / (time.perf_counter() - began))


if __name__ == "__main__":
    main()
