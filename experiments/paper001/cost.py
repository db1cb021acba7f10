"""Measures what a training by SPGC costs (Table 1): hours and bytes, on this machine and through slower links.

    python -m experiments.paper001.cost                      # a quarter of an hour
    python -m experiments.paper001.cost --quick --out DIR    # Cancer and the loopback alone: under a minute

Two server processes and three owners take real steps. The paper does not say how many steps its trainings took; they
follow from its bytes: without noise, a coordinate of a step costs a known number. Links are between the two servers.

Expect trainings 8 to 50 times as fast as the paper's, with half the bytes; and bytes that hardly move with epsilon,
where the paper's table of noise in the circuit makes them rise as epsilon falls.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from dpaudit.secure.circuits.garbling import BLOCK
from dpaudit.secure.noise import gaussian, lookup
from dpaudit.secure.noise.binomial import Binomial
from dpaudit.secure.protocol import agreement, two_server_sum
from dpaudit.secure.protocol.agreement import Terms
from dpaudit.secure.service.owner import Owner
from dpaudit.training import models
from experiments.common import Rows, options
from experiments.paper001.link import shaped
from experiments.paper001.networks import MNISTNetwork
from experiments.paper001.published import COSTED as EPSILONS
from experiments.paper001.published import GIGABYTES, HOURS
from experiments.paper001.tasks import CLIP_NORM, DELTA, TASKS

OWNERS = ("one", "two", "three")
WARM = 5  # steps before those that are timed
SMALL = 10_000  # coordinates, up to which four times as many steps are timed
RING_BITS = 17  # the paper's: shares modulo 2^(N + 1), N = 16
PARTS = (TIMES, BY_EPSILON, TABLES) = ("times", "by-epsilon", "tables")
TYPICAL = EPSILONS.index(2.0)  # of which Table 1's hours and bytes are compared
MODES = (("noisy", 1), ("noisy", 4), ("plain", 1))  # and the depth of the transfers: IKNP, SoftSpoken
LINKS: dict[str, tuple[float, float] | None] = {  # megabits a second and milliseconds, each way
    "loopback": None,
    "1 Gbit/s": (1_000, 0.1),
    "1 Gbit/s, 50 ms": (1_000, 50),
}


class Training(NamedTuple):
    """One of the paper's trainings.

    Attributes:
      data: of TASKS.
      reading: of its network.
      model: the network.
      shape: of its input.
      paper_hours: at each of EPSILONS, communication and computation together.
      paper_gb: at epsilon 2, between the servers.
      paper_plain_gb: without noise.
    """

    data: str
    reading: str
    model: Any
    shape: tuple[int, ...]
    paper_hours: tuple[float, ...]
    paper_gb: float
    paper_plain_gb: float

    @property
    def parameters(self) -> int:
        leaves = jax.eval_shape(lambda: models.initial_parameters(jax.random.key(0), self.model, self.shape))
        return sum(leaf.size for leaf in jax.tree.leaves(leaves))


def _training(data: str, reading: str, model: Any, shape: tuple[int, ...]) -> Training:
    return Training(data, reading, model, shape, HOURS[data], *GIGABYTES[data])


TRAININGS = (
    _training("Cancer", "", TASKS["Cancer"].model, (90,)),
    _training("Diabetes", "", TASKS["Diabetes"].model, (8,)),
    _training("MNIST", "channels together", TASKS["MNIST"].model, (28, 28, 1)),
    _training("MNIST", "channels apart", MNISTNetwork(apart=True), (28, 28, 1)),
)


def plain_bytes() -> float:
    """Returns what a coordinate of a step without noise costs between the servers, with the paper's ring."""
    return sum(two_server_sum.plain(ring_bits=RING_BITS).payload_bytes(1).values())


def general_bytes() -> float:
    """Returns the same if both labels of each of H2's bits are sent encrypted, as general transfers do."""
    return plain_bytes() + 2 * BLOCK * RING_BITS


def steps(training: Training) -> int:
    """Returns how many steps the paper's training took, if a coordinate cost it without noise what it costs us."""
    return round(training.paper_plain_gb * 1e9 / (plain_bytes() * training.parameters))


@contextmanager
def servers(terms: Terms, multiplier: float | None, link: tuple[float, float] | None) -> Iterator[tuple[str, str]]:
    """Starts two server processes of these terms, which follow from this noise multiplier."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())

        def start(role: str, *more: str) -> int:
            command = [sys.executable, "-m", "dpaudit.cli.main", "secure", "server", "--role", role, "--wait", "600"]
            command += ["--listen", "127.0.0.1:0", "--state", str(Path(folder, role)), "--deadline", "600", *more]
            command += ["--owners", *terms.owners, "--dimension", str(terms.dimension), "--mode", terms.mode]
            command += ["--protocol", terms.protocol]
            command += ["--examples", str(terms.examples), "--depth", str(terms.depth)]
            if multiplier is not None:
                command += ["--noise-multiplier", str(multiplier)]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            assert process.stdout is not None
            return int(process.stdout.readline().rpartition(":")[2])

        second = start("h2")
        called = stack.enter_context(nullcontext(second) if link is None else shaped(second, *link))
        yield f"127.0.0.1:{start('h1', '--peer', f'127.0.0.1:{called}')}", f"127.0.0.1:{second}"


def whole_steps(terms: Terms, multiplier: float | None, link: tuple[float, float] | None, count: int) -> list[float]:
    """Seconds of each step after the first few, from the owners' integers to what all of them are told."""
    rng, took, noise = np.random.default_rng(0), [], terms.opening().noise
    reach = noise.reach if isinstance(noise, Binomial) else 0
    integers = rng.integers(-min(1000, terms.levels), min(1000, terms.levels) + 1, (len(OWNERS), terms.dimension))

    def take_part(owner: Owner, values: np.ndarray, step: int) -> np.ndarray:
        owner.submit(step, values, seconds=600)
        return owner.result(step, seconds=600).values

    with servers(terms, multiplier, link) as addresses, ThreadPoolExecutor(len(OWNERS)) as pool:
        owners = [Owner(name, terms, addresses) for name in OWNERS]
        for step in range(1, WARM + count + 1):
            began = time.perf_counter()
            told = list(pool.map(take_part, owners, integers, [step] * len(owners)))
            took.append(time.perf_counter() - began)
            off = told[0] - integers.sum(axis=0)
            assert np.abs(off).max() <= reach, "the servers opened another sum"
        for owner in owners:
            owner.close()
    return took[WARM:]


def trainings(rows: Rows, chosen: tuple[Training, ...], links: tuple[str, ...], count: int) -> None:
    """Seconds a step, and hours and bytes of the whole training."""
    for training in chosen:
        dimension, examples = training.parameters, TASKS[training.data].examples
        setting: dict[str, Any] = {"data": training.data, "reading": training.reading, "d": dimension}
        epochs = {"Cancer": 13, "Diabetes": 20, "MNIST": 20}[training.data]
        row = rows.add("steps", setting, steps(training), scale="from the paper's bytes without noise")
        row["epochs"] = round(steps(training) / epochs)
        for link in links:
            for mode, depth in MODES:
                multiplier = 1.0 if mode == "noisy" else None
                terms = agreement.terms(
                    owners=OWNERS,
                    protocol="circuit",
                    dimension=dimension,
                    examples=examples,
                    noise_multiplier=multiplier,
                    mode=mode,
                    depth=depth,
                )
                timed = 4 * count if dimension < SMALL else count
                took = whole_steps(terms, multiplier, LINKS[link], timed)
                how = setting | {"link": link, "mode": mode, "depth": depth}
                rows.spread("step_seconds", how, took, scale=f"{timed} steps after {WARM}, owners and servers")
                if link == "loopback":
                    costs(rows, how, training, terms, float(np.median(took)))
        rows.finish_part(f"{training.data} {training.reading}")


def costs(rows: Rows, how: dict[str, Any], training: Training, terms: Terms, seconds: float) -> None:
    """Of the whole training, beside the paper's."""
    plain = terms.mode == "plain"
    count, each = steps(training), sum(terms.opening().payload_bytes(terms.depth).values())
    gigabytes = count * each * terms.dimension / 1e9
    paper = training.paper_plain_gb if plain else training.paper_gb
    rows.add("gigabytes", how, gigabytes, scale=f"{count:,} steps, between the servers", paper_value=paper)
    hours, paper_hours = count * seconds / 3600, training.paper_hours[TYPICAL]
    row = rows.add("hours", how, hours, scale=f"{count:,} steps", paper_value=None if plain else paper_hours)
    row["times_as_fast"] = None if plain else paper_hours / hours
    print(f"{training.data}: {hours:.3g} h and {gigabytes:.4g} GB for {count:,} steps", flush=True)


def by_epsilon(rows: Rows, chosen: tuple[Training, ...], epsilons: tuple[float, ...], count: int) -> None:
    """Seconds a step, and hours of the whole training, with the noise of the paper's rule for each epsilon."""
    for training in chosen:
        for epsilon, paper in zip(EPSILONS, training.paper_hours, strict=True):
            if epsilon not in epsilons:
                continue
            multiplier = gaussian.classical(epsilon=epsilon, delta=DELTA)
            terms = agreement.terms(
                owners=OWNERS,
                protocol="circuit",
                dimension=training.parameters,
                examples=TASKS[training.data].examples,
                noise_multiplier=multiplier,
            )
            timed = 4 * count if terms.dimension < SMALL else count
            took = whole_steps(terms, multiplier, None, timed)
            setting = {"data": training.data, "reading": training.reading, "epsilon": epsilon}
            rows.spread("epsilon_seconds", setting, took, scale=f"{timed} steps after {WARM}, owners and servers")
            hours = steps(training) * float(np.median(took)) / 3600
            rows.add("epsilon_hours", setting, hours, scale=f"{steps(training):,} steps", paper_value=paper)
    rows.finish_part("by epsilon")


def tables(rows: Rows, epsilons: Sequence[float], datasets: Sequence[str]) -> None:
    """Bytes a coordinate of the noise's circuit, the paper's and ours, by epsilon."""
    for data in datasets:
        for epsilon in epsilons:
            multiplier = gaussian.classical(epsilon=epsilon, delta=DELTA)
            std = (2 ** (RING_BITS - 1) - 1) / TASKS[data].examples * multiplier
            values = lookup.table(std)
            bits = max(RING_BITS, int(values.max()).bit_length() + 1)
            table = lookup.noisy_sum(values, bits=bits).ands
            ours = agreement.terms(
                owners=OWNERS,
                protocol="circuit",
                dimension=1,
                examples=TASKS[data].examples,
                noise_multiplier=multiplier,
                clip_norm=CLIP_NORM,
            ).opening()
            for circuit, ands in (("table", table), ("binomial", ours.gates.ands)):
                setting = {"data": data, "epsilon": epsilon, "circuit": circuit}
                row = rows.add("table_bytes", setting, 2 * BLOCK * ands, scale="counted: AND gates of a coordinate")
                row |= {"ands": ands, "std": std}
    rows.finish_part("circuits")


REPRODUCIBLE = {"tables": tables}


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--part", choices=PARTS, default=None, help="measure one part; rows of the others stay")
    chosen = parser.parse_args()
    rows = Rows("001", "spgc_cost", chosen.out, chosen.seed, keep=chosen.part is not None)
    wanted = PARTS if chosen.part is None else (chosen.part,)
    if chosen.quick:
        which, links, epsilons, data = TRAININGS[:1], ("loopback",), (8.0,), ("MNIST",)
    else:
        which, links, epsilons, data = TRAININGS, tuple(LINKS), EPSILONS, tuple(TASKS)
    if TIMES in wanted:
        trainings(rows, which, links, 5)
    if BY_EPSILON in wanted:
        by_epsilon(rows, which[:3], epsilons, 5)
    if TABLES in wanted:
        rows.run(tables, list(epsilons), list(data))


if __name__ == "__main__":
    main()
