"""Measures what a service of many owners costs: a step of a thousand, the check of norms, and a sampler of others.

    python -m experiments.paper001.service                      # some minutes
    python -m experiments.paper001.service --quick --out DIR    # ten owners: under a minute
    PYTHONPATH=FOLDER python -m experiments.paper001.service --part samplers    # with opendp installed in FOLDER

Processor seconds, which other programs on the machine change little, beside wall-clock times, which they do. Every
owner is a :class:`dpaudit.secure.Owner` with a certificate and two connections of its own, all of them in one process;
what they compute before they submit is not counted.

Expect a thousandth of a second of a server's processor for an owner of 642 coordinates, and a check of its norm that
costs about as much as the noise of a step does.
"""

import gc
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from dpaudit.secure.channel import Channel
from dpaudit.secure.crypto import shares
from dpaudit.secure.noise import gaussian
from dpaudit.secure.noise.binomial import Binomial
from dpaudit.secure.protocol import agreement, in_process, norm_check
from dpaudit.secure.protocol.agreement import SERVERS, Terms
from dpaudit.secure.service import certificates
from dpaudit.secure.service.owner import Owner
from experiments.bench.secure_noise import moved
from experiments.common import Rows, options

PARTS = (OWNERS, NORMS, SAMPLERS) = ("owners", "norms", "samplers")
DIMENSIONS = (182, 642)
AT_ONCE = 48  # owners that call at a time
SIGMA, DRAWS = 5_000, 20_000  # of the samplers: a clip norm of 5,000 units, and noise as wide
WARM = 2  # steps before those that count


def terms(count: int, dimension: int) -> Terms:
    """Returns the terms of a training of so many owners."""
    names = [f"owner-{number:05}" for number in range(count)]
    return agreement.terms(owners=names, dimension=dimension, examples=count, noise_multiplier=1.0)


# Many owners.


@contextmanager
def servers(mine: Terms, keys: Path) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    """Starts both servers; yields their addresses and those of their metrics."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())

        def start(role: str, *more: str) -> tuple[str, str]:
            command = [sys.executable, "-m", "dpaudit.cli.main", "secure", "server", "--role", role, "--wait", "600"]
            command += ["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--state", str(Path(folder, role))]
            command += ["--owners", *mine.owners, "--dimension", str(mine.dimension), "--noise-multiplier", "1", *more]
            command += ["--examples", str(mine.examples), "--deadline", "600", "--keys", str(keys / role)]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            assert process.stdout is not None
            port, metrics = (process.stdout.readline().rpartition(sign)[2].strip() for sign in ":\x20")
            return f"127.0.0.1:{port}", f"http://127.0.0.1:{metrics}/metrics"

        second, told_second = start("h2")
        first, told_first = start("h1", "--peer", second)
        yield (first, second), (told_first, told_second)


def cpu_seconds(metrics: str) -> float:
    """Returns the processor seconds of a server so far."""
    with urllib.request.urlopen(metrics, timeout=60) as answer:
        lines = dict(line.split() for line in answer.read().decode().splitlines())
    return float(lines["dpaudit_secure_cpu_seconds"])


@contextmanager
def connected(mine: Terms, keys: Path, addresses: tuple[str, str]) -> Iterator[list[Owner]]:
    """Connects all owners, each with its own certificate."""
    with ExitStack() as stack:
        made = []
        for name in mine.owners:
            made.append(Owner(name, mine, addresses, own=certificates.read(keys / name, name=name)))
            stack.callback(made[-1].close)
        yield made


def many(rows: Rows, count: int, dimension: int, steps: int) -> None:
    """Steps of many owners: processor seconds of each server, and seconds from the first share to the last answer."""
    mine, rng = terms(count, dimension), np.random.default_rng(rows.seed)
    law = mine.opening().noise
    assert isinstance(law, Binomial)
    spent, took = {name: [] for name in SERVERS}, []
    with ExitStack() as stack:
        keys = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        certificates.make(keys, mine.owners)
        addresses, metrics = stack.enter_context(servers(mine, keys))
        owners = stack.enter_context(connected(mine, keys, addresses))
        gc.freeze()  # or each collection looks through all owners, who would have a process each
        stack.callback(gc.unfreeze)
        pool = stack.enter_context(ThreadPoolExecutor(AT_ONCE))
        for step in range(1, WARM + steps + 1):
            integers = rng.integers(-1, 2, (count, dimension))
            before, began = [cpu_seconds(one) for one in metrics], time.perf_counter()
            list(pool.map(lambda owner, own, step=step: owner.submit(step, own, seconds=600), owners, integers))
            told = list(pool.map(lambda owner, step=step: owner.result(step, seconds=600), owners))
            took.append(time.perf_counter() - began)
            for name, one, earlier in zip(SERVERS, metrics, before, strict=True):
                spent[name].append(cpu_seconds(one) - earlier)
            assert all(np.array_equal(answer.values, told[0].values) for answer in told)
            opened = told[0].values - integers.sum(axis=0)
            assert np.abs(opened).max() <= law.reach, "the servers opened another sum"
    setting, scale = {"owners": count, "d": dimension}, f"{steps} steps after {WARM}"
    for name, values in spent.items():
        rows.spread("many_cpu_seconds", setting | {"server": name}, values[WARM:], scale=scale)
    rows.spread("many_seconds", setting, took[WARM:], scale=f"{scale}, owners and both servers on one machine, TLS")
    rows.finish_part("many owners")


# The check of norms.


def norms(rows: Rows, dimensions: Sequence[int], owners: Sequence[int], rounds: int) -> None:
    """Bytes between the servers, and processor seconds of both together, for an owner's check."""
    for dimension in dimensions:
        for count in owners:
            mine = agreement.terms(
                owners=[f"owner-{number:05}" for number in range(count)],
                dimension=dimension,
                examples=count,
                owner_examples=1,
                noise_multiplier=1.0,
            )
            integers = np.zeros((count, dimension), np.int64)
            integers[:, 0] = mine.levels + np.arange(count) % 2  # every other one is too long by one unit
            pair, spent = shares.split(integers, ring_bits=mine.ring_bits), []

            def side(channel: Channel, kind: Any, share: np.ndarray, mine: Terms = mine, spent: Any = spent) -> int:
                party, took = kind(channel), []
                before = moved(channel)
                for _ in range(rounds):
                    began = time.thread_time()
                    how = {"bound": mine.bound, "ring_bits": mine.ring_bits, "seconds": 600.0}
                    found = party.longer(list(share), **how)
                    took.append((time.thread_time() - began) / len(share))
                    assert (found == np.arange(len(share)) % 2).all(), "the check refused others"
                spent.append(took)
                return moved(channel) - before

            first, second = norm_check.First, norm_check.Second
            payload, _ = in_process.together(
                in_process.channels(600.0),
                lambda channel, share=pair[0], side=side, kind=first: side(channel, kind, share),
                lambda channel, share=pair[1], side=side, kind=second: side(channel, kind, share),
            )
            setting = {"d": dimension, "owners": count}
            scale = f"an owner; {rounds} checks of all owners, both servers' threads"
            rows.spread("norm_cpu_seconds", setting, np.sum(spent, axis=0).tolist(), scale=scale)
            rows.add("norm_bytes", setting, payload / rounds / count, scale="an owner, between the servers")
    rows.finish_part("the check of norms")


# Samplers of the discrete Gaussian.


def samplers(rows: Rows, count: int, rounds: int) -> None:
    """Draws a second of processor time: this package's exact sampler, and OpenDP's, whose vectors have one scale."""
    import opendp.prelude as dp  # pyright: ignore[reportMissingImports]

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="f64")
    measured = dp.m.make_gaussian(*space, scale=float(SIGMA))
    zeros = [0] * count
    ways: dict[str, Callable[[], Any]] = {
        "dpaudit": lambda: gaussian.sample(SIGMA, count),
        "OpenDP": lambda: measured(zeros),
    }
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, draw in ways.items():
            began = time.process_time()
            drawn = np.asarray(draw())
            speeds[name].append(count / (time.process_time() - began))
            assert abs(drawn.std() / SIGMA - 1) < 6 / np.sqrt(2 * count), f"{name} draws from another law"
    for name, values in speeds.items():
        setting = {"sampler": name, "sigma": SIGMA}
        if name == "OpenDP":
            setting["version"] = version("opendp")
        rows.spread("gaussian_draws", setting, values, scale=f"{rounds} times {count}, a processor second")
    rows.finish_part("samplers")


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--part", choices=PARTS, default=None, help="measure one part; rows of the others stay")
    chosen = parser.parse_args()
    rows = Rows("001", "spgc_service", chosen.out, chosen.seed, keep=chosen.part is not None)
    wanted = (OWNERS, NORMS) if chosen.part is None else (chosen.part,)
    if OWNERS in wanted:
        many(rows, *((10, 182, 2) if chosen.quick else (1_000, 642, 5)))
    if NORMS in wanted:
        norms(rows, DIMENSIONS, (3,) if chosen.quick else (3, 100), 2 if chosen.quick else 5)
    if SAMPLERS in wanted:
        samplers(rows, DRAWS, 2 if chosen.quick else 5)


if __name__ == "__main__":
    main()
