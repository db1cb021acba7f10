"""Measures speed and memory of clipped gradients and of many private trainings, beside plain ones, jax-privacy and
Opacus.

    python -m experiments.bench.training --torch-python PATH   # one that has torch and opacus; a quarter of an hour
    python -m experiments.bench.training --quick --out DIR     # the small network, without its memory: under a minute
    python -m experiments.bench.training --part many           # one part alone; the rows of the others stay

Expect, on two cores: the clipped sum of the 932,170-parameter network in about the time and memory of its plain
gradient, and many small networks trained together, with dropout, several times as fast as one after another.
"""

import subprocess
import sys
from collections.abc import Collection
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp

from dpaudit import data
from dpaudit.training.many import train_many
from experiments.bench import products, sides
from experiments.bench.sides import in_turn, ratio
from experiments.common import Rows, growth_gib, options

BATCH = 256
TRAINED = 0.05  # how far what rounding makes of a training may be from another order of its sums
PLAIN, CLIPPED = "ours, plain", "ours, clipped"
KEPT = (PLAIN, CLIPPED)  # the sides whose memory is measured
PARTS = GRADIENTS, MEMORY, MANY = "gradients", "memory", "many"


def sums(
    rows: Rows,
    key: jax.Array,
    name: str,
    rounds: int,
    torch_python: str | None,
    *,
    size: int = BATCH,
    only: Collection[str] | None = None,
) -> None:
    """Times one batch's gradient, plain or clipped, by every library; ``only`` by these sides and PyTorch's."""
    network = sides.NETWORKS[name]
    batch = sides.batch(key, network, size)

    def compiled(runs: dict[str, Any]) -> dict[str, Any]:
        return {side: jax.jit(run) for side, run in runs.items() if only is None or side in only}

    plain, clipped = compiled(sides.plain_gradients(network)), compiled(sides.clipped_sums(network))
    computed = {side: sides.as_torch(run(*batch), network) for side, run in (plain | clipped).items()}
    with opacus(torch_python, "sums", name, batch, batch_size=size) as peer:
        computed |= peer.computed
        means = {side: of for side, of in computed.items() if "plain" in side}
        apart = sides.differences({side: of for side, of in computed.items() if side not in means})
        for differences in (sides.differences(means), apart):
            sides.refuse_different(differences, within=tolerance())
        ours = {side: sides.timed(run, *batch) for side, run in (plain | clipped).items()}
        if name == "CNN32" and jax.default_backend() == "cpu":
            run, operands = products.alone(key, size)
            ours[products.ALONE] = sides.timed(run, *operands)
        _, times = in_turn(ours | peer.sides, rounds)
    setting, scale = {"network": name, "batch": size}, f"{rounds} rounds, all sides in turn"
    for side, values in times.items():
        rows.spread("gradient_seconds", setting | {"side": side}, values, scale=scale)
    for side in times:
        if side != CLIPPED:
            ratio(rows, "gradient_ratio", setting, times, side, CLIPPED, scale)
    rows.finish_part("gradients")


def memory(rows: Rows, name: str, repeats: int) -> None:
    """Measures the peak of a side's calls above what its process held before, the program being compiled; a process
    each."""
    setting, scale = {"network": name, "batch": BATCH}, f"{repeats} runs"
    for side in KEPT:
        command = [sys.executable, "-m", "experiments.bench.training", "--network", name, "--memory-of", side]
        runs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(repeats)]
        rows.spread("peak_gib", setting | {"side": side}, [float(run.split()[-1]) for run in runs], scale=scale)
    rows.finish_part("memory")


def memory_of(side: str, name: str) -> None:
    """Runs as a separate process of :func:`memory`: prints the peak in GiB."""
    network = sides.NETWORKS[name]
    batch = sides.batch(jax.random.key(0), network, BATCH)
    run = (sides.plain_gradients(network) | sides.clipped_sums(network))[side]
    program = jax.jit(run).lower(*batch).compile()
    print(growth_gib(lambda: [jax.block_until_ready(program(*batch)) for _ in range(3)]))


def many(
    rows: Rows, key: jax.Array, name: str, networks: int, steps: int, rounds: int, torch_python: str | None
) -> None:
    """Times the same trainings with dropout one after another, together, and as one plain vmap; and Opacus's."""
    batch_size = 64
    network, given = sides.NETWORKS[name], examples(key, name)
    keys = jax.random.split(key, networks)
    run = sides.training(network, given.images, given.labels, batch_size=batch_size, steps=steps)
    one, mapped = jax.jit(run), jax.jit(jax.vmap(run))

    def in_sequence() -> list[Any]:
        return [jax.block_until_ready(one(key)) for key in keys]

    def together() -> Any:
        return train_many(run, (keys,))

    ours = {
        "one after another": sides.timed(in_sequence),
        "together": sides.timed(together),
        "plain vmap": sides.timed(mapped, keys),
    }
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *in_sequence())
    apart = sides.differences({"one after another": stacked, "together": together(), "plain vmap": mapped(keys)})
    sides.refuse_different(apart, within=TRAINED)
    with opacus(torch_python, "trainings", name, given, batch_size=batch_size, steps=steps) as peer:
        start = sides.as_torch(given.params, network)
        ends = {"ours": sides.as_torch(sides.trained(network, given, batch_size=batch_size), network)} | peer.computed
        moved = {side: end - start for side, end in ends.items()}
        sides.refuse_different(sides.differences(moved), within=tolerance())
        _, times = in_turn(ours | peer.sides, rounds)
    rates = {side: [3600 * (networks if side in ours else 1) / took for took in times[side]] for side in times}
    setting = {"network": name, "batch": batch_size, "steps": steps, "dropout": sides.DROPOUT_RATE}
    scale = f"{networks} networks (Opacus: one) a round, {rounds} rounds, all sides in turn"
    for side, values in rates.items():
        rows.spread("networks_per_hour", setting | {"side": side}, values, scale=scale)
    for side in rates:
        if side != "together":
            ratio(rows, "networks_ratio", setting, rates, "together", side, scale)
    rows.finish_part(f"{networks} networks")


def opacus(
    python: str | None, what: str, network: str, given: sides.Batch, *, batch_size: int, steps: int = 0
) -> AbstractContextManager[sides.Peer]:
    """Starts the peer in PyTorch and Opacus, on a CPU if JAX is: "sums" of all images, or "trainings" of so many
    steps."""
    asked = {"clip_norm": sides.CLIP_NORM, "noise_multiplier": sides.NOISE_MULTIPLIER}
    asked |= {"learning_rate": sides.LEARNING_RATE, "dropout_rate": sides.DROPOUT_RATE, "check": sides.CHECKED}
    asked |= {"what": what, "network": network, "batch_size": batch_size, "steps": steps}
    asked |= {"images": sides.channels_first(given.images), "labels": given.labels.tolist()}
    asked |= {"weights": sides.as_torch(given.params, sides.NETWORKS[network]).tolist()}
    asked |= {"device": "cpu" if jax.default_backend() == "cpu" else "cuda"}
    return sides.peer(sides.torch(python, "torch_dp_sgd.py"), asked)


def examples(key: jax.Array, name: str) -> sides.Batch:
    """Returns the bundled digits for the small network, noise for the large one; and parameters to begin with."""
    given = sides.batch(key, sides.NETWORKS[name], 1_024)
    if name != "CNN8":
        return given
    digits = data.load("digits")
    return given._replace(images=jnp.asarray(digits.inputs), labels=jnp.asarray(digits.labels))


def tolerance() -> float:
    """Returns how far sums may be apart in float32; on accelerators, in whose products it is rounded to fewer bits.

    A pool whose two largest inputs differ by rounding alone hands its gradient to either. Of the 3.6 million pools of
    CNN32 in a batch of 256 about one does; it moved one example's gradient by 1.7%, and the sum by 4e-4.
    """
    return 1e-3 if jax.default_backend() == "cpu" else 1e-2


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--torch-python", default=None, help="an interpreter that has torch and opacus")
    parser.add_argument("--rounds", type=int, default=None, help="how often each side is timed; default 8, quick 3")
    parser.add_argument("--network", choices=sides.NETWORKS, default=None, help="default CNN32, quick CNN8")
    parser.add_argument("--part", choices=PARTS, default=None, help="measure one part; rows of the others stay")
    parser.add_argument("--memory-of", choices=KEPT, default=None, help="run one side and print its memory in GiB")
    chosen = parser.parse_args()
    name = chosen.network or ("CNN8" if chosen.quick else "CNN32")
    if chosen.memory_of is not None:
        memory_of(chosen.memory_of, name)
        return
    parts = [chosen.part] if chosen.part else [part for part in PARTS if part != MEMORY or not chosen.quick]
    rounds, torch_python = chosen.rounds or (3 if chosen.quick else 8), chosen.torch_python
    rows = Rows("", "bench_training", chosen.out, chosen.seed, keep=chosen.part is not None)
    key = jax.random.key(chosen.seed)
    if GRADIENTS in parts:
        for network in (name,) if chosen.quick else (name, "CNN28"):
            sums(rows, key, network, rounds, torch_python)
    if MEMORY in parts:
        memory(rows, name, 3)
    if MANY in parts:
        for network, count, steps in [("CNN8", 8, 20)] if chosen.quick else [("CNN8", 64, 100), ("CNN32", 4, 5)]:
            many(rows, key, network, count, steps, rounds, torch_python)


if __name__ == "__main__":
    main()
