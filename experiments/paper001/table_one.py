"""Measures every cell of the paper's Table 1: hours of computing and of communicating, by epsilon and by scheme.

    python -m experiments.paper001.table_one                    # ten minutes on a machine with nothing else to do
    python -m experiments.paper001.table_one --quick --out DIR  # Cancer at one epsilon: under a minute

Computing is what an owner does in a step before it sends anything: gradients, clipping, rounding or LDP's noise.
Communicating is the rest: for SPGC and MPC only, from the owners' integers to the sum at every owner, through two
server processes; for LDP and no privacy, one server that adds up three owners' numbers and answers with the sum. All
are seconds of a step times the steps that the paper's bytes imply (paper001.cost).

Expect hours that do not move with epsilon, and SPGC many times LDP, whose communication costs next to nothing.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import jax
import numpy as np

from dpaudit.secure.crypto.randomness import system
from dpaudit.secure.noise import gaussian
from dpaudit.secure.protocol import agreement, schemes
from dpaudit.secure.protocol.schemes import Step
from experiments.common import Rows, options
from experiments.paper001.cost import OWNERS, SMALL, TRAININGS, WARM, Training, steps, whole_steps
from experiments.paper001.published import BY_EPSILON, COSTED, LDP_BY_EPSILON, MPC_ONLY, NON_PRIVATE, Hours
from experiments.paper001.runs import contributions, learner
from experiments.paper001.tasks import CLIP_NORM, DELTA, TASKS, load

_METHOD = "/dpaudit.experiments.Plain/Add"


@contextmanager
def plain_server(owners: int) -> Iterator[str]:
    """Runs a server that adds up float64 numbers of all owners of a step, and answers each with the sum."""
    barrier, held = threading.Barrier(owners), []

    def add(request: bytes, context: grpc.ServicerContext) -> bytes:
        held.append(np.frombuffer(request, np.float64))
        barrier.wait()
        total = np.sum(held, axis=0)
        if barrier.wait() == 0:
            held.clear()
        barrier.wait()
        return total.tobytes()

    limit = [("grpc.max_receive_message_length", 1 << 26), ("grpc.max_send_message_length", 1 << 26)]
    server = grpc.server(ThreadPoolExecutor(owners), options=limit)
    handler = grpc.unary_unary_rpc_method_handler(add)
    service, method = _METHOD[1:].split("/")
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


def plain_steps(dimension: int, count: int) -> list[float]:
    """Seconds of each step with one server and three owners, after the first few."""
    values, took = np.random.default_rng(0).standard_normal((len(OWNERS), dimension)), []
    limit = [("grpc.max_receive_message_length", 1 << 26), ("grpc.max_send_message_length", 1 << 26)]
    with plain_server(len(OWNERS)) as address, ThreadPoolExecutor(len(OWNERS)) as pool:
        channels = [grpc.insecure_channel(address, limit) for _ in OWNERS]
        calls = [channel.unary_unary(_METHOD) for channel in channels]
        for _ in range(WARM + count):
            began = time.perf_counter()
            told = list(pool.map(lambda call, own: call(own.tobytes(), timeout=60), calls, values))
            took.append(time.perf_counter() - began)
            if not np.allclose(np.frombuffer(told[0], np.float64), values.sum(axis=0)):
                raise RuntimeError("the server added up other numbers")
        for channel in channels:
            channel.close()
    return took[WARM:]


def computing(
    training: Training, make: Callable[[Step], schemes.Scheme], epsilon: float | None, count: int
) -> list[float]:
    """Seconds of one owner's part of each step before it sends anything, after the first few."""
    task, (train, _) = TASKS[training.data], load(training.data, None, 0)
    multiplier = gaussian.classical(epsilon=epsilon, delta=DELTA) if epsilon else 0.0
    scheme = make(Step(len(OWNERS), task.examples, CLIP_NORM, multiplier))
    learn, took = learner(training.data, train.inputs.shape[1:]), []
    params = learn.first(jax.random.key(0))
    rows = np.arange(task.examples // len(OWNERS))
    for _ in range(WARM + count):
        began = time.perf_counter()
        own = sum(contributions(scheme, learn, params, train, rows))
        if scheme.scale is None and epsilon:
            own = own + scheme.noise(params.size, system) / np.sqrt(len(OWNERS))
        took.append(time.perf_counter() - began)
    return took[WARM:]


def add(
    rows: Rows, training: Training, scheme: str, epsilon: float | None, paper: Hours, parts: Sequence[Any]
) -> None:
    """Adds the hours of computing, of communicating and of both."""
    setting = {"data": training.data, "scheme": scheme, "epsilon": epsilon}
    middle = [float(np.median(part)) for part in parts]
    count = steps(training)
    timed = f"{len(parts[0])} and {len(parts[1])} were timed after {WARM}"
    scale = f"{count:,} steps; {timed}, load {os.getloadavg()[0]:.1f}"
    for name, seconds, printed in zip(("computing", "communicating"), middle, paper[:2], strict=True):
        row = rows.add(f"{name}_hours", setting, count * seconds / 3600, scale=scale, paper_value=printed)
        row["step_seconds"] = seconds
    rows.add("training_hours", setting, count * sum(middle) / 3600, scale=scale, paper_value=paper.training)
    print(setting, [f"{each:.4f}" for each in middle], flush=True)


def measure(rows: Rows, training: Training, epsilons: Sequence[float], count: int) -> None:
    """Every scheme of one data set."""
    often = 4 * count if training.parameters < SMALL else count
    size: dict[str, Any] = {"owners": OWNERS, "protocol": "circuit", "dimension": training.parameters}
    size |= {"examples": TASKS[training.data].examples}
    for place, epsilon in enumerate(COSTED):
        if epsilon not in epsilons:
            continue
        multiplier = gaussian.classical(epsilon=epsilon, delta=DELTA)
        terms = agreement.terms(noise_multiplier=multiplier, **size)
        spgc = computing(training, schemes.spgc, epsilon, often), whole_steps(terms, multiplier, None, often)
        add(rows, training, "SPGC", epsilon, BY_EPSILON[training.data][place], spgc)
        ldp = computing(training, schemes.ldp, epsilon, often), plain_steps(training.parameters, often)
        add(rows, training, "LDP", epsilon, LDP_BY_EPSILON[training.data][place], ldp)
    terms = agreement.terms(mode="plain", **size)
    mpc = computing(training, schemes.mpc_only, None, often), whole_steps(terms, None, None, often)
    add(rows, training, "MPC only", None, MPC_ONLY[training.data], mpc)
    none = computing(training, schemes.non_private, None, often), plain_steps(training.parameters, often)
    add(rows, training, "non-private", None, NON_PRIVATE[training.data], none)
    rows.finish_part(training.data)


def main() -> None:
    chosen = options(__doc__ or "").parse_args()
    rows = Rows("001", "spgc_table", chosen.out, chosen.seed)
    if chosen.quick:
        measure(rows, TRAININGS[0], (8.0,), 5)
        return
    for training in TRAININGS[:3]:
        measure(rows, training, COSTED, 5)


if __name__ == "__main__":
    main()
