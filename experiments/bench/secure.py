"""Measures speed, bytes and memory of two servers that open noisy sums: between processes, and parts on one core.

    python -m experiments.bench.secure                      # about a minute
    python -m experiments.bench.secure --quick --out DIR    # few coordinates: under a minute

A step is all that the servers do for one sum, owners apart: agree on it, transfer, garble, evaluate, and keep the
result on disk. Asked of it (n = 127, gRPC on loopback, no certificates): at most 0.75 s at d = 30,000, 35 ms at 642
and 25 ms at 182, 9.4 kB a coordinate with IKNP and 7.2 kB with SoftSpoken, and never more than 1 GiB. Asked of one
core at d = 30,000: 25 million AND gates a second garbled, 45 million evaluated, 32 bytes each, 20 million transfers.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from dpaudit.secure.channel import Channel
from dpaudit.secure.circuits import garbling
from dpaudit.secure.circuits.garbling import BLOCK, GateKeys
from dpaudit.secure.crypto import correlated_transfers, randomness, shares
from dpaudit.secure.protocol import agreement, in_process
from dpaudit.secure.protocol.agreement import Terms
from dpaudit.secure.service import certificates, grpc_wire
from dpaudit.secure.service.grpc_wire import Listener
from dpaudit.secure.service.records import Records
from dpaudit.secure.service.session import Session
from experiments.bench.secure_noise import moved, noises
from experiments.common import Rows, answering, options, peak_gib

DIMENSIONS = (182, 642, 30_000)  # of SPGC's networks: two outputs from 90 inputs; three small layers; images
DEPTHS = {1: "IKNP", 4: "SoftSpoken, depth 4"}
AHEAD = "ahead"  # a step opens what was made before, which is not timed
TABLE = "table"  # the paper's noise in the paper's ring, a reproduction
TRANSFERS = "transfers"  # the noise from oblivious transfers alone, which is the default; other modes have the circuit
WARM = 2  # steps before those that count
PEER = "peer"  # a line that both processes are told to start with


def terms(mode: str, dimension: int, depth: int) -> Terms:
    """Returns the terms of a training like the paper's: three owners, batches of 3,000, n = 127, noise of the size of
    a clip norm."""
    how: dict[str, Any] = {"mode": "plain"} if mode == "plain" else {"noise_multiplier": 1.0}
    how |= {AHEAD: {"ahead": 1}, TABLE: {"noise": "table", "ring_bits": 17}}.get(mode, {})
    names = ("one", "two", "three")
    how["protocol"] = TRANSFERS if mode == TRANSFERS else "circuit"
    return agreement.terms(owners=names, dimension=dimension, examples=3_000, depth=depth, **how)


def serve(role: str) -> None:
    """Runs as a separate process of :func:`between`: answers a line, ``mode d depth steps``, with what it took."""
    server = grpc.server(ThreadPoolExecutor(4), options=certificates.options())
    listener = Listener(server, None, print)
    port = certificates.listen(server, "127.0.0.1:0", None)
    server.start()
    peer = sys.stdin.readline().removeprefix(PEER).strip()
    print(port, flush=True)
    for line in sys.stdin:
        mode, *numbers = line.split()
        dimension, depth, steps = map(int, numbers)
        wire = grpc_wire.connect(f"127.0.0.1:{peer}", None) if role == "h1" else listener.next(60.0)
        assert wire is not None
        channel = Channel(wire, 600.0)
        with tempfile.TemporaryDirectory() as state:
            print(json.dumps(timed(channel, role, state, terms(mode, dimension, depth), steps)), flush=True)
        wire.close()


def timed(channel: Channel, role: str, state: str, mine: Terms, steps: int) -> dict[str, Any]:
    """Seconds of the session's beginning and of each step, bytes of all, and this process's peak of memory so far."""
    began = time.perf_counter()
    records = Records(state, role, mine)
    session = Session(channel, role, mine, records)
    took = [time.perf_counter() - began]
    share = shares.split(np.zeros(mine.dimension, np.int64), ring_bits=mine.ring_bits)[0]
    before = moved(channel)
    for step in range(1, steps + 1):
        began = time.perf_counter()
        session.prepare(600.0)
        if mine.ahead:
            began = time.perf_counter()
        owners, _ = session.agree(step, dict.fromkeys(mine.owners, bytes(16)))
        session.open(step, owners, share)
        took.append(time.perf_counter() - began)
    records.close()
    return {"start": took[0], "steps": took[1:], "bytes": (moved(channel) - before) / steps, "peak": peak_gib()}


@contextmanager
def both(tree: Path | None = None) -> Iterator[Callable[[str], dict[str, Any]]]:
    """Starts the two processes, of this tree of files or of another.

    Yields:
      ``ask(line)``, which both answer: what each was told, by role.
    """
    command = [sys.executable, "-P", "-m", "experiments.bench.secure", "--side"]
    command = ["env", f"PYTHONPATH={tree or Path(__file__).parents[2]}", *command]
    with answering([*command, "h2"]) as second, answering([*command, "h1"]) as first, ThreadPoolExecutor(2) as pool:
        first(f"{PEER} {second(PEER)}")
        yield lambda line: dict(
            zip(certificates.SERVERS, pool.map(lambda ask: ask(line), (first, second)), strict=True)
        )


def slower(told: dict[str, Any]) -> list[float]:
    """Returns the seconds of each step but the first :data:`WARM`, of the slower server."""
    return list(np.maximum(told["h1"]["steps"], told["h2"]["steps"])[WARM:])


def between(rows: Rows, dimensions: tuple[int, ...], steps: int) -> None:
    """Steps between two processes over gRPC on loopback."""
    peaks: dict[str, float] = {}
    noisy = [(mode, depth) for mode in (TRANSFERS, "noisy") for depth in DEPTHS]
    with both() as ask:
        for mode, depth in [*noisy, (AHEAD, 1), ("plain", 1), (TABLE, 1)]:
            for dimension in dimensions if mode != TABLE else dimensions[:2]:  # beyond, a step takes seconds
                told = ask(f"{mode} {dimension} {depth} {steps + WARM}")
                coins = 0 if mode in ("plain", TABLE) else 127
                setting = {"d": dimension, "mode": mode, "transfers": DEPTHS[depth], "n": coins}
                scale = f"{steps} steps after {WARM}, slower of the two servers"
                rows.spread("step_seconds", setting, slower(told), scale=scale)
                each = told["h1"]["bytes"] / dimension
                rows.spread("bytes_a_coordinate", setting, [each], scale="both directions, all messages of a step")
                scale = "128 base transfers, once a session"
                rows.spread("session_seconds", setting, [told["h1"]["start"]], scale=scale)
                peaks = {role: one["peak"] for role, one in told.items()}
    for role, peak in peaks.items():
        rows.spread("peak_gib", {"server": role, "d": max(dimensions)}, [peak], scale="whole process, all settings")
    rows.finish_part("two processes")


def gates(rows: Rows, dimension: int, rounds: int) -> None:
    """Garbling and evaluating the noise's circuit, and transfers, each by one thread."""
    opening = terms("noisy", dimension, 1).opening()
    circuit = opening.gates
    draw = np.random.default_rng(0)
    zeros = draw.integers(0, 256, (circuit.inputs, dimension, BLOCK), np.uint8)
    delta = draw.integers(0, 256, BLOCK, np.uint8) | np.uint8(1)
    ands = circuit.ands * dimension
    speeds: dict[str, list[float]] = {"garbled": [], "evaluated": []}
    tables: list[np.ndarray] = []
    for _ in range(rounds):
        began = time.perf_counter()
        tables = [part.tables for part in garbling.garble(circuit, garbling.chunks(zeros), delta, GateKeys(bytes(16)))]
        speeds["garbled"].append(ands / (time.perf_counter() - began))
        began = time.perf_counter()
        list(garbling.evaluate(circuit, garbling.chunks(zeros), tables, GateKeys(bytes(16))))
        speeds["evaluated"].append(ands / (time.perf_counter() - began))
    setting, scale = {"d": dimension, "n": 127}, f"{rounds} runs, one thread"
    for what, values in speeds.items():
        rows.spread("ands_per_second", setting | {"what": what}, values, scale=scale)
    rows.spread("bytes_an_and", setting, [sum(table.nbytes for table in tables) / ands], scale="tables")
    for depth, name in DEPTHS.items():
        transfers(rows, opening.mixed * dimension, depth, name, rounds)
    rows.finish_part("one core")


def transfers(rows: Rows, count: int, depth: int, name: str, rounds: int) -> None:
    """Correlated transfers a second of each party's own processor time, on a channel in memory."""
    speeds: dict[str, list[float]] = {"sender": [], "receiver": []}
    choices = np.random.default_rng(0).random(count) < 0.5
    delta = np.frombuffer(randomness.system(BLOCK), np.uint8)

    def sender(channel: Channel) -> None:
        party = correlated_transfers.Sender(channel, delta, depth=depth)
        for _ in range(rounds):
            began = time.thread_time()
            party.extend(count)
            speeds["sender"].append(count / (time.thread_time() - began))

    def receiver(channel: Channel) -> None:
        party = correlated_transfers.Receiver(channel, depth=depth)
        for _ in range(rounds):
            began = time.thread_time()
            party.extend(choices)
            speeds["receiver"].append(count / (time.thread_time() - began))

    in_process.together(in_process.channels(600.0), sender, receiver)
    for party, values in speeds.items():
        setting = {"transfers": name, "party": party}
        rows.spread("cots_per_second", setting, values, scale=f"{rounds} times {count}, processor time of its thread")


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--steps", type=int, default=None, help="steps a setting; default 10, quick 3")
    parser.add_argument("--side", choices=certificates.SERVERS, default=None, help="be one of the two processes")
    chosen = parser.parse_args()
    if chosen.side:
        serve(chosen.side)
        return
    steps = chosen.steps or (3 if chosen.quick else 10)
    rows = Rows("001", "bench_secure", chosen.out, chosen.seed)
    between(rows, DIMENSIONS[:2] if chosen.quick else DIMENSIONS, steps)
    gates(rows, 3_000 if chosen.quick else 30_000, steps)
    noises(rows, terms("noisy", 3_000 if chosen.quick else 30_000, 1), DEPTHS, steps)


if __name__ == "__main__":
    main()
