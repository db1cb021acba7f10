"""Speed and memory of federated rounds: 1,000 clients of 5 images each, beside a plain vmap and PyTorch.

    python -m experiments.bench.federated --torch-python PATH   # an interpreter that has torch and opacus; minutes
    python -m experiments.bench.federated --quick --out DIR     # few clients, the small network: under a minute

Expect, on two cores with a device each and one draw of noise: a round of the 26,010-parameter network about 4 times as
fast as torch.func's vmap and 10 times as fast as a loop over clients; seconds linear in the clients of a round; memory
that neither they nor the population change. On an accelerator, 10,000 rounds are timed instead of memory and what
runs on the CPU.
"""

import json
import subprocess
import sys
import time
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dpaudit._engine import sharding
from dpaudit.federated import population
from dpaudit.federated.rounds import simulate
from experiments.bench import federated_sides as sides
from experiments.bench.training import in_turn, ratio
from experiments.bench.training_sides import NETWORKS, SILENT, as_torch, differences, refuse_different, timed
from experiments.common import Rows, growth_gib, options

MODULE = [sys.executable, "-m", "experiments.bench.federated"]
DATA = 60_000  # rows that a population draws from, as many as MNIST has
MESH = "mesh"
SIZES = {  # what memory is measured of: the clients of a round, and all there are
    "1,000 of 10,000": (1_000, 10_000),
    "1,000 of 10,000,000": (1_000, 10_000_000),
    "100,000 of 10,000,000": (100_000, 10_000_000),
}


def a_round(rows: Rows, name: str, m: int, rounds: int, torch_python: str | None) -> None:
    """One round of the same clients by every side."""
    network, key = NETWORKS[name], jax.random.key(rows.seed)
    given, everyone = sides.given(rows.seed, network, m * sides.EXAMPLES), sides.own_rows(m)
    asked = {
        "network": name,
        "clients": m,
        "examples": sides.EXAMPLES,
        "seed": rows.seed,
        "clip_norm": sides.CLIP_NORM,
    }
    asked |= {"noise_multiplier": sides.NOISE_MULTIPLIER, "learning_rate": sides.LEARNING_RATE}
    asked |= {"weights": as_torch(given.params, network).tolist(), "devices": devices(m)}
    on_mesh = [*MODULE, "--part", MESH] if asked["devices"] > 1 else None
    torch = None if torch_python is None else [torch_python, str(sides.PEER)]
    runs = {
        "vmap(grad)": jax.jit(sides.by_vmap(network, each=True)),
        "vmap(grad), one draw": jax.jit(sides.by_vmap(network)),
        "ours": jax.jit(sides.ours(network, m, everyone, each=True)),
        "ours, one draw": jax.jit(sides.ours(network, m, everyone)),
    }
    means = {side: as_torch(run(key, given, SILENT)[1], network) for side, run in runs.items()}
    timings = {side: timed(run, key, given, sides.NOISE_MULTIPLIER) for side, run in runs.items()}
    with sides.peer(on_mesh, asked) as many, sides.peer(torch, asked, "PyTorch ") as peer:
        apart = differences(means | many.means | peer.means)
        refuse_different(apart, within=3e-4)
        _, times = in_turn(timings | many.sides | peer.sides, rounds)
    setting, scale = {"network": name, "clients_per_round": m}, f"{rounds} rounds, all sides in turn"
    for side, values in times.items():
        how = (many.settings | peer.settings).get(side, {})
        rows.spread("round_seconds", setting | {"side": side} | how, values, scale=scale)
    for own in times:
        for side in times:
            if own.startswith("ours") and not side.startswith("ours"):
                ratio(rows, "round_ratio", setting, times, side, own, scale)
    for side, difference in apart.items():
        rows.add("mean_difference", setting | {"side": side}, difference, scale="L2, relative to the first side's")
    rows.finish_part("a round")


def devices(m: int) -> int:
    """As many CPU devices as there are cores, or fewer that share m clients out evenly; 1 where JAX has no CPU."""
    cores = sharding.cores()
    return max(n for n in range(1, cores + 1) if m % n == 0) if jax.default_backend() == "cpu" else 1


def on_mesh() -> None:
    """What :func:`a_round` runs in a process of its own, a CPU device a core: answers as the PyTorch peer does."""
    asked = json.loads(sys.stdin.readline())
    count, m, network = asked["devices"], asked["clients"], NETWORKS[asked["network"]]
    jax.config.update("jax_num_cpu_devices", count)
    mesh, key = Mesh(jax.devices(), ("clients",)), jax.random.key(asked["seed"])
    given, everyone = sides.given(asked["seed"], network, m * sides.EXAMPLES), sides.own_rows(m)
    given = jax.device_put(given, NamedSharding(mesh, PartitionSpec()))
    runs = {
        f"ours, {count} devices": jax.jit(sides.ours(network, m, everyone, each=True, mesh=mesh)),
        f"ours, one draw, {count} devices": jax.jit(sides.ours(network, m, everyone, mesh=mesh)),
    }
    means = {side: as_torch(run(key, given, SILENT)[1], network).tolist() for side, run in runs.items()}
    timings = {side: timed(run, key, given, sides.NOISE_MULTIPLIER) for side, run in runs.items()}
    print(json.dumps({"settings": {side: {} for side in runs}, "means": means}), flush=True)
    for line in sys.stdin:
        print(timings[line.strip()](), flush=True)


def growth(rows: Rows, name: str, sizes: list[int], rounds: int) -> None:
    """One round of ever more clients out of ten million."""
    network, key = NETWORKS[name], jax.random.key(rows.seed)
    given = sides.given(rows.seed, network, DATA)
    everyone = population.iid(key, DATA)
    runs = {str(m): jax.jit(sides.ours(network, m, everyone)) for m in sizes}
    _, times = in_turn({size: timed(run, key, given, sides.NOISE_MULTIPLIER) for size, run in runs.items()}, rounds)
    for size, values in times.items():
        setting, scale = {"network": name, "clients_per_round": int(size)}, f"{rounds} rounds, all sizes in turn"
        rows.spread("size_seconds", setting, values, scale=scale)
        rows.spread("client_microseconds", setting, np.multiply(values, 1e6 / int(size)).tolist(), scale=scale)
    rows.finish_part("ever more clients")


def memory(rows: Rows, repeats: int) -> None:
    """The peak of a round above what its process held before, the program being compiled; a process each."""
    for part in SIZES:
        command = [*MODULE, "--part", part]
        runs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(repeats)]
        peaks, planned = np.array([run.split()[-2:] for run in runs], np.float64).T
        rows.spread("peak_mib", {"clients": part}, peaks, scale=f"{repeats} runs")
        rows.spread("planned_mib", {"clients": part}, planned, scale="what XLA plans for temporaries")
    rows.finish_part("memory")


def peak(m: int, clients: int, seed: int) -> None:
    """What :func:`memory` runs in a process of its own: prints the peak and the plan, in MiB."""
    network, key = NETWORKS["CNN28"], jax.random.key(seed)
    given = sides.given(seed, network, DATA)
    run = sides.ours(network, m, population.iid(key, DATA, clients=clients))
    program = jax.jit(run).lower(key, given, sides.NOISE_MULTIPLIER).compile()
    growth = growth_gib(lambda: [jax.block_until_ready(program(key, given, sides.NOISE_MULTIPLIER)) for _ in range(2)])
    plan: Any = program.memory_analysis()
    print(1024 * growth, plan.temp_size_in_bytes / 2**20)


def long(rows: Rows, name: str, m: int, rounds: int) -> None:
    """A whole federation, round after round, as a user would simulate it."""
    network, key = NETWORKS[name], jax.random.key(rows.seed)
    given = sides.given(rows.seed, network, DATA)
    server = sides.server(network, m, sides.NOISE_MULTIPLIER, each=False, mesh=None)
    everyone, data = population.iid(key, DATA), (given.images, given.labels)
    simulate(key, server, given.params, everyone, data, 100)
    ends = [time.perf_counter()]
    simulate(key, server, given.params, everyone, data, rounds, progress=lambda done: ends.append(time.perf_counter()))
    setting = {"network": name, "clients_per_round": m, "rounds": rounds}
    rows.spread("rounds_per_second", setting, (100 / np.diff(ends)).tolist(), scale="in calls of 100 rounds")
    rows.add("run_seconds", setting, ends[-1] - ends[0], scale="measured from the first round to the last")
    rows.finish_part(f"{rounds:,} rounds")


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument(
        "--torch-python", default=None, help="an interpreter that has torch and opacus; not in --quick"
    )
    parser.add_argument("--rounds", type=int, default=None, help="how often each side is timed; default 6, quick 3")
    parser.add_argument("--part", choices=(MESH, *SIZES), default=None, help="run one side alone, as this one does")
    chosen = parser.parse_args()
    if chosen.part == MESH:
        on_mesh()
        return
    if chosen.part is not None:
        peak(*SIZES[chosen.part], chosen.seed)
        return
    rows = Rows("002", "bench_federated", chosen.out, chosen.seed)
    cpu = jax.default_backend() == "cpu"
    torch_python = chosen.torch_python if cpu and not chosen.quick else None
    if torch_python is None:
        print("no PyTorch: it is timed on the CPU, beside the large network, where --torch-python names it")
    if chosen.quick:
        a_round(rows, "CNN8", 100, chosen.rounds or 3, None)
        growth(rows, "CNN8", [100, 1_000], chosen.rounds or 3)
        return
    a_round(rows, "CNN28", 1_000, chosen.rounds or 6, torch_python)
    growth(rows, "CNN28", [100, 1_000, 10_000, 100_000], 3)
    if cpu:
        memory(rows, 3)
    else:
        long(rows, "CNN28", 1_000, 10_000)


if __name__ == "__main__":
    main()
