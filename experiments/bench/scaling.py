"""Times growth: with trials, their dimension, a round's clients, networks trained together, emulated devices.

    python -m experiments.bench.scaling                    # a quarter of an hour
    python -m experiments.bench.scaling --only clients     # one curve; the rows of the others stay
    python -m experiments.bench.scaling --quick --out DIR  # tiny sizes: a minute

The exponent is the slope of log seconds against log size, by rounds in which all sizes were timed in turn; the end's
is that between the two largest. Expect 1 at the end of the first four. Devices are emulated on one CPU, whose cores
they share, and do the same work together: expect nothing beyond as many devices as cores, and see what more cost.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dpaudit.audits import craft, engines
from dpaudit.federated import population
from dpaudit.training.many import train_many
from experiments.bench import federated_sides as bench_federated_sides
from experiments.bench import training as bench_training
from experiments.bench.training_sides import NETWORKS, differences, refuse_different, timed, training
from experiments.common import Rows, options

REPEATS = 8  # trials of a pair, as in bench_ldp
SCALES = {  # the sizes of each curve, and what stays the same in it
    "trials": ((256, 512, 1_024, 2_048, 4_096), 26_010),
    "dimension": ((100, 1_000, 10_000, 100_000), 512),
    "clients": ((100, 300, 1_000, 3_000), "CNN28"),
    "networks": ((8, 16, 32, 64, 128), 20),
    "devices, trials": ((1, 2, 4, 8), 512),
    "devices, a round": ((1, 2, 4, 8), 1_000),
}
QUICK = {
    "trials": ((8, 32), 1_000),
    "dimension": ((100, 1_000), 16),
    "clients": ((10, 40), "CNN8"),
    "networks": ((2, 4), 2),
    "devices, trials": ((1, 2), 16),
    "devices, a round": ((1, 2), 40),
}
EMULATED = "devices"
PARTS = {"all": slice(None), "end": slice(-2, None)}  # of a curve, that exponents are given of


Run = Callable[[], Any]


def trials(pairs: int, dimension: int, mesh: Mesh | None = None) -> Run:
    """Of LDP-SGD as shipped, ``2 * REPEATS`` for each pair."""
    how = {"epsilons": [4.0], "clip_norm": 1.0, "repeats": REPEATS, "mesh": mesh}
    key, crafted = jax.random.key(0), craft.dummy(dimension, 1.0)
    return lambda: engines.full(key, crafted, pairs, pair_key=jax.random.key(1), **how)


def a_round(clients: int, name: str, mesh: Mesh | None = None) -> Run:
    """Of so many clients, one draw of noise."""
    network, key = NETWORKS[name], jax.random.key(0)
    given = bench_federated_sides.given(0, network, 60_000)
    if mesh is not None:
        given = jax.device_put(given, NamedSharding(mesh, PartitionSpec()))
    run = jax.jit(bench_federated_sides.ours(network, clients, population.iid(key, 60_000), mesh=mesh))
    return partial(run, key, given, bench_federated_sides.NOISE_MULTIPLIER)


def networks(count: int, steps: int) -> Run:
    """Small ones, trained together."""
    _, images, labels = bench_training.examples(jax.random.key(0), "CNN8")
    run = training(NETWORKS["CNN8"], images, labels, batch_size=64, steps=steps)
    return partial(train_many, run, (jax.random.split(jax.random.key(0), count),))


def first(count: int) -> Mesh:
    """So many devices, no fewer."""
    return Mesh(np.reshape(jax.devices()[:count], count), ("devices",))


SIDES: Mapping[str, Callable[..., Run]] = {
    "trials": trials,
    "dimension": lambda dimension, pairs: trials(pairs, dimension),
    "clients": a_round,
    "networks": networks,
    "devices, trials": lambda n, pairs: trials(pairs, 26_010, first(n)),
    "devices, a round": lambda n, clients: a_round(clients, "CNN28", first(n)),
}


def measured(name: str, sizes: Sequence[int], same: object, rounds: int) -> list[list[float]]:
    """Seconds, [sizes, rounds]."""
    runs = {str(size): SIDES[name](size, same) for size in sizes}
    if name.startswith(EMULATED):
        refuse_other_results(runs)
    _, times = bench_training.in_turn({size: timed(run) for size, run in runs.items()}, rounds)
    return list(times.values())


def refuse_other_results(runs: Mapping[str, Run]) -> None:
    """Ends the benchmark where the same work is not the same on another number of devices."""
    found = {size: jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), run()) for size, run in runs.items()}
    refuse_different(differences(found))


def emulated(name: str, sizes: Sequence[int], *how: str) -> list[list[float]]:
    """The same, in a process of its own that sees as many CPU devices as the largest size."""
    command = [sys.executable, "-m", "experiments.bench.scaling", "--only", name, "--emulate", str(max(sizes)), *how]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[-1])


def exponents(sizes: Sequence[int], times: Sequence[Sequence[float]]) -> dict[str, list[float]]:
    """Slopes of log seconds against log size, of every round: over all sizes, and between the two largest."""
    logs = np.log(sizes), np.log(times)
    return {part: np.polyfit(logs[0][cut], logs[1][cut], 1)[0].tolist() for part, cut in PARTS.items()}


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--only", nargs="+", choices=SCALES, default=list(SCALES), help="curves; default: all")
    parser.add_argument("--rounds", type=int, default=None, help="how often each size is timed; default 5, quick 2")
    parser.add_argument("--emulate", type=int, default=None, help="be so many devices and print one curve's seconds")
    chosen = parser.parse_args()
    rounds = chosen.rounds or (2 if chosen.quick else 5)
    scales = QUICK if chosen.quick else SCALES
    if chosen.emulate is not None:
        jax.config.update("jax_num_cpu_devices", chosen.emulate)
        sizes, same = scales[chosen.only[0]]
        print(json.dumps(measured(chosen.only[0], sizes, same, rounds)))
        return
    rows = Rows("", "bench_scaling", chosen.out, chosen.seed, keep=True)
    for name in chosen.only:
        sizes, same = scales[name]
        if name.startswith(EMULATED):
            times = emulated(name, sizes, "--rounds", str(rounds), *["--quick"] * chosen.quick)
        else:
            times = measured(name, sizes, same, rounds)
        for size, values in zip(sizes, times, strict=True):
            rows.spread(f"{name}: seconds", {"size": size, "same": same}, values, scale=f"{rounds} rounds, in turn")
        for part, slopes in exponents(sizes, times).items():
            rows.spread(f"{name}: exponent", {"sizes": part}, slopes, scale="slope of log seconds, by round")
        rows.finish_part(name)


if __name__ == "__main__":
    main()
