"""Measures speed and memory of federated rounds: 1,000 clients of 5 images each, beside a plain vmap and PyTorch.

    python -m experiments.bench.federated --torch-python PATH   # an interpreter that has torch and opacus; minutes
    python -m experiments.bench.federated --quick --out DIR     # few clients, the small network: under a minute

Expect, on two cores with a device each and one draw of noise: a round of the 26,010-parameter network about 4 times as
fast as torch.func's vmap and 10 times as fast as a loop over clients; memory that
neither they nor the population change. On an accelerator, 10,000 rounds are timed instead of memory and what runs on
the CPU.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.tree_util import Partial

from dpaudit._engine import sharding
from dpaudit.federated import clients, clip_size, population, rounds
from dpaudit.federated.population import Population
from dpaudit.federated.rounds import simulate
from dpaudit.training import models
from experiments.bench import sides
from experiments.bench.sides import NETWORKS, SILENT, Network, as_torch, differences, in_turn, ratio, timed
from experiments.common import Rows, growth_gib, options

MODULE = [sys.executable, "-m", "experiments.bench.federated"]
DATA = 60_000  # rows that a population draws from, as many as MNIST has
MESH = "mesh"
SIZES = {  # what memory is measured of: the clients of a round, and all there are
    "1,000 of 10,000": (1_000, 10_000),
    "1,000 of 10,000,000": (1_000, 10_000_000),
    "100,000 of 10,000,000": (100_000, 10_000_000),
}
EXAMPLES = 5  # of a client
CLIP_NORM = 0.05
NOISE_MULTIPLIER = 1.4042  # (8, 1e-7)-LDP: twice the analytic Gaussian's 0.7021
LEARNING_RATE = 1.0

# run(key, given, noise_multiplier) -> (params, noisy mean)
Round = Callable[[jax.Array, "Given", Any], tuple[Any, Any]]


class Given(NamedTuple):
    """What every side starts from."""

    params: Any
    images: jax.Array  # [rows, h, w, c]
    labels: jax.Array  # [rows]


def drawn(seed: int, network: Network, rows: int) -> Given:
    """Initial parameters, images of noise and random labels, as the PyTorch peer draws them."""
    rng = np.random.default_rng(seed)
    params = models.initial_parameters(jax.random.key(seed), network.ours, network.image_shape)
    images = rng.random((rows, *network.image_shape), np.float32)
    return Given(params, jnp.asarray(images), jnp.asarray(rng.integers(0, 10, rows), jnp.int32))


def server(
    network: Network, m: int, noise_multiplier: Any, *, each: bool, mesh: Mesh | None, clip_norm: Any = CLIP_NORM
) -> rounds.Server:
    """Ours; its optimiser, without momentum, keeps the mean it was given."""
    loss = models.cross_entropy(network.ours)
    update = clients.gradients(lambda params, example: loss(params, *example))
    return rounds.federated(
        clients.gaussian(update, noise_multiplier=noise_multiplier, each=each),
        clip_size.fixed(clip_norm),
        clients_per_round=m,
        optimizer=optax.sgd(LEARNING_RATE, momentum=0.0),
        mesh=mesh,
    )


def ours(
    network: Network,
    m: int,
    everyone: Population,
    *,
    each: bool = False,
    mesh: Mesh | None = None,
    clip_norm: Any = CLIP_NORM,
) -> Round:
    """Makes one round of m clients drawn from a population."""

    def run(key: jax.Array, given: Given, noise_multiplier: Any) -> tuple[Any, Any]:
        own = server(network, m, noise_multiplier, each=each, mesh=mesh, clip_norm=clip_norm)
        state, _ = rounds.run(key, own, own.init(given.params), everyone, (given.images, given.labels), 1)
        return state.params, optax.tree.get(state.opt_state, "trace")

    return run


def by_vmap(network: Network, *, each: bool = False, clip_norm: Any = CLIP_NORM) -> Round:
    """Makes the round that one would write in JAX: the gradients of all clients at once, of as many as there are rows
    for."""
    loss = models.cross_entropy(network.ours)

    def of_client(params: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
        return jnp.mean(jax.vmap(loss, (None, 0, 0))(params, images, labels))

    def run(key: jax.Array, given: Given, noise_multiplier: Any) -> tuple[Any, Any]:
        images, labels = (leaf.reshape(-1, EXAMPLES, *leaf.shape[1:]) for leaf in (given.images, given.labels))
        total, unflat = ravel_pytree(sides.by_vmap(of_client, clip_norm)(given.params, images, labels))
        m = len(labels)
        if each:
            noise = jax.random.normal(key, (m, total.size)).sum(axis=0)
        else:
            noise = jnp.sqrt(m) * jax.random.normal(key, total.shape)
        mean = unflat((total + clip_norm * noise_multiplier * noise) / m)
        return jax.tree.map(lambda p, g: p - LEARNING_RATE * g, given.params, mean), mean

    return run


def own_rows(m: int) -> Population:
    """m clients, of whom the first holds the first rows, the next the next, and no two a row in common."""
    return Population(m, Partial(_own_rows), Partial(_own_rows))


def _own_rows(client: jax.Array) -> jax.Array:
    return client * EXAMPLES + jnp.arange(EXAMPLES)


def a_round(rows: Rows, name: str, m: int, rounds: int, torch_python: str | None) -> None:
    """Times one round of the same clients by every side."""
    network, key = NETWORKS[name], jax.random.key(rows.seed)
    given, everyone = drawn(rows.seed, network, m * EXAMPLES), own_rows(m)
    asked = {"network": name, "clients": m, "examples": EXAMPLES, "seed": rows.seed, "clip_norm": CLIP_NORM}
    asked |= {"noise_multiplier": NOISE_MULTIPLIER, "learning_rate": LEARNING_RATE}
    asked |= {"weights": as_torch(given.params, network).tolist(), "devices": devices(m)}
    on_mesh = [*MODULE, "--part", MESH] if asked["devices"] > 1 else None
    torch = sides.torch(torch_python, "torch_federated.py")
    runs = {
        "vmap(grad)": jax.jit(by_vmap(network, each=True)),
        "vmap(grad), one draw": jax.jit(by_vmap(network)),
        "ours": jax.jit(ours(network, m, everyone, each=True)),
        "ours, one draw": jax.jit(ours(network, m, everyone)),
    }
    means = {side: as_torch(run(key, given, SILENT)[1], network) for side, run in runs.items()}
    timings = {side: timed(run, key, given, NOISE_MULTIPLIER) for side, run in runs.items()}
    with sides.peer(on_mesh, asked) as many, sides.peer(torch, asked, "PyTorch ") as peer:
        apart = differences(means | many.computed | peer.computed)
        sides.refuse_different(apart, within=3e-4)
        _, times = in_turn(timings | many.sides | peer.sides, rounds)
    setting, scale = {"network": name, "clients_per_round": m}, f"{rounds} rounds, all sides in turn"
    for side, values in times.items():
        how = (many.settings | peer.settings).get(side, {})
        rows.spread("round_seconds", setting | {"side": side} | how, values, scale=scale)
    for own in times:
        for side in times:
            if own.startswith("ours") and not side.startswith("ours"):
                ratio(rows, "round_ratio", setting, times, side, own, scale)
    rows.finish_part("a round")


def devices(m: int) -> int:
    """Returns as many CPU devices as there are cores, or fewer that share m clients out evenly; 1 where JAX has no
    CPU."""
    cores = sharding.cores()
    return max(n for n in range(1, cores + 1) if m % n == 0) if jax.default_backend() == "cpu" else 1


def on_mesh() -> None:
    """Runs as a separate process of :func:`a_round`, a CPU device a core: answers as the PyTorch peer does."""
    asked = json.loads(sys.stdin.readline())
    count, m, network = asked["devices"], asked["clients"], NETWORKS[asked["network"]]
    jax.config.update("jax_num_cpu_devices", count)
    mesh, key = Mesh(jax.devices(), ("clients",)), jax.random.key(asked["seed"])
    given, everyone = drawn(asked["seed"], network, m * EXAMPLES), own_rows(m)
    given = jax.device_put(given, NamedSharding(mesh, PartitionSpec()))
    runs = {
        f"ours, {count} devices": jax.jit(ours(network, m, everyone, each=True, mesh=mesh)),
        f"ours, one draw, {count} devices": jax.jit(ours(network, m, everyone, mesh=mesh)),
    }
    means = {side: as_torch(run(key, given, SILENT)[1], network).tolist() for side, run in runs.items()}
    timings = {side: timed(run, key, given, NOISE_MULTIPLIER) for side, run in runs.items()}
    told = {"parameters": len(asked["weights"]), "settings": {side: {} for side in runs}, "computed": means}
    print(json.dumps(told), flush=True)
    for line in sys.stdin:
        print(timings[line.strip()](), flush=True)


def memory(rows: Rows, repeats: int) -> None:
    """Measures the peak of a round above what its process held before, the program being compiled; a process each."""
    for part in SIZES:
        command = [*MODULE, "--part", part]
        runs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(repeats)]
        rows.spread("peak_mib", {"clients": part}, [float(run.split()[-1]) for run in runs], scale=f"{repeats} runs")
    rows.finish_part("memory")


def peak(m: int, clients: int, seed: int) -> None:
    """Runs as a separate process of :func:`memory`: prints the peak in MiB."""
    network, key = NETWORKS["CNN28"], jax.random.key(seed)
    given = drawn(seed, network, DATA)
    run = ours(network, m, population.iid(key, DATA, clients=clients))
    program = jax.jit(run).lower(key, given, NOISE_MULTIPLIER).compile()
    print(1024 * growth_gib(lambda: [jax.block_until_ready(program(key, given, NOISE_MULTIPLIER)) for _ in range(2)]))


def long(rows: Rows, name: str, m: int, rounds: int) -> None:
    """Times a whole federation, round after round, as a user would simulate it."""
    network, key = NETWORKS[name], jax.random.key(rows.seed)
    given = drawn(rows.seed, network, DATA)
    own = server(network, m, NOISE_MULTIPLIER, each=False, mesh=None)
    everyone, data = population.iid(key, DATA), (given.images, given.labels)
    simulate(key, own, given.params, everyone, data, 100)
    ends = [time.perf_counter()]
    simulate(key, own, given.params, everyone, data, rounds, progress=lambda done: ends.append(time.perf_counter()))
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
    if chosen.quick:
        a_round(rows, "CNN8", 100, chosen.rounds or 3, None)
        return
    a_round(rows, "CNN28", 1_000, chosen.rounds or 6, torch_python)
    if cpu:
        memory(rows, 3)
    else:
        long(rows, "CNN28", 1_000, 10_000)


if __name__ == "__main__":
    main()
