"""Measures whether a kernel of our own is worth keeping: the randomised trial by a kernel and by XLA.

    python -m experiments.bench.kernels                    # on a GPU or TPU times and a verdict; on a CPU counts
    python -m experiments.bench.kernels --quick --out DIR # fewer trials: a minute

A kernel stays where it is at least 1.3 times as fast as XLA's best on a device that was measured, or where memory
needs it. Expect on a CPU: memory needs none. XLA's program of the shipped trial moves about 80 bytes a coordinate and
holds 12; plain JAX in one loop, like the kernel, moves and holds none. These are counts of the program of the device
that runs this; :mod:`experiments.bench.accelerators` has those compiled for an H100 and a TPU.
"""

import itertools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpaudit._engine import game
from dpaudit.auditing.attacks.distinguish import cosine_direction
from dpaudit.audits import craft, engines
from dpaudit.kernels import philox, randomized_trial
from dpaudit.mechanisms import ldp_sgd
from experiments.bench.sides import refuse_different
from experiments.common import Rows, options, seconds

DIMENSION, EPSILON, CLIP_NORM = 26_010, 4.0, 1.0
FLOAT = 4  # bytes
KEEP = 1.3  # times as fast as XLA's best
MEMORY = 80e9  # bytes of a large accelerator
TRIALS, QUICK = 1 << 14, 1 << 12  # timed at a time
SHIPPED, LOOP, KERNEL, ENGINE = "the mechanism, vmap", "plain JAX, one loop", "kernel", "engine full"

Side = Callable[[jax.Array], jax.Array]  # keys [n] -> [n, 2], cosines of a release with both gradients


class Counted(NamedTuple):
    """Of one program, or of what each of its units adds."""

    moved: float  # bytes that its steps, as XLA fused them, read and write
    held: float  # bytes of temporaries
    operations: float  # before XLA optimises


def counted(run: Callable[..., Any], *arguments: Any) -> Counted:
    """Returns XLA's counts; the body of a loop once, so these programs have none."""
    lowered = jax.jit(run).lower(*arguments)
    compiled, before = lowered.compile(), lowered.cost_analysis()
    cost, plan = compiled.cost_analysis(), compiled.memory_analysis()
    assert isinstance(before, dict)
    assert cost is not None
    assert plan is not None
    return Counted(cost["bytes accessed"], plan.temp_size_in_bytes, before["flops"])


def slope(run: Callable[..., Any], of: Callable[[int], tuple[Any, ...]], few: int, many: int) -> Counted:
    """Returns what one more of n adds, for ``run(*of(n))``."""
    ends = [counted(run, *of(n)) for n in (few, many)]
    return Counted(*[(b - a) / (many - few) for a, b in zip(*ends, strict=True)])


def held_by_kernel(sums: int, dimension: int) -> float:
    """Bytes of a trial's key, and of the parts of its sums before they are added."""
    tiles = -(-dimension // (2 * randomized_trial.WORDS * randomized_trial.LANES * randomized_trial.GPU_ROWS))
    return FLOAT * (4 + sums * (tiles + 1))


def sides(g0: jax.Array, g1: jax.Array) -> dict[str, Side]:
    """Trials of world 0, the very same in all."""
    how = {"epsilon": EPSILON, "clip_norm": CLIP_NORM}
    pair = jnp.stack([g0, g1])
    units = pair / jnp.linalg.norm(pair, axis=1, keepdims=True)

    def shipped(keys: jax.Array) -> jax.Array:
        release = jax.vmap(lambda key: ldp_sgd.randomize(key, g0, **how))(keys)
        return jnp.sum(release[:, None] * units, axis=-1)

    def summed(products: randomized_trial.Products) -> Side:
        return lambda keys: randomized_trial.cosines(keys, pair, 0, **how, products=products)

    return {
        SHIPPED: shipped,
        LOOP: summed(randomized_trial.products_reference),
        KERNEL: summed(randomized_trial.products),
    }


def memory(rows: Rows, own: dict[str, Side], keys: jax.Array) -> None:
    """Bytes that a trial moves and holds, as XLA plans them on this device; how many fit at a time."""
    setting = {"dimension": DIMENSION}
    found = {side: slope(run, lambda n: (keys[:n],), 8, 64) for side, run in own.items() if side != KERNEL}
    for side, of in found.items():
        rows.add("trial_bytes_moved", setting | {"side": side}, of.moved, scale="counted by XLA, from 8 to 64 trials")
        rows.add("trial_operations", setting | {"side": side}, of.operations, scale="counted by XLA, unoptimised")
    held = {side: of.held for side, of in found.items()} | {KERNEL: held_by_kernel(3, DIMENSION)}
    for side, much in held.items():
        scale = "its key and its parts of sums" if side == KERNEL else "planned by XLA, from 8 to 64 trials"
        rows.add("trial_bytes_held", setting | {"side": side}, much, scale=scale)
        rows.add("trials_in_80_gb", setting | {"side": side}, MEMORY / much, scale=scale)
        print(f"{side}: {much:,.0f} bytes held per trial", flush=True)
    for room, of in ((game.CPU, "a CPU"), (game.accelerator_room(MEMORY), "an accelerator of 80 GB")):
        at_once = game.block_size(2 * FLOAT * DIMENSION, room)  # of the largest array, both gradients
        how = setting | {"side": ENGINE, "device": of, "trials_at_once": at_once}
        rows.add("engine_bytes_held", how, at_once * held[SHIPPED], scale="one block, for any number of trials")
    rows.finish_part("memory")


def speed(rows: Rows, own: dict[str, Side], keys: jax.Array, rounds: int) -> None:
    """Trials a second of every side in turn, and the verdict."""
    crafted, trials = craft.dummy(DIMENSION, CLIP_NORM), len(keys)

    def engine() -> Any:
        how = {"epsilons": [EPSILON], "clip_norm": CLIP_NORM, "fresh": False, "pair_key": jax.random.key(1)}
        return engines.full(jax.random.key(0), crafted, trials // 2, **how)

    compiled = {side: jax.jit(run) for side, run in own.items()}
    runs = {side: (lambda run=run: run(keys)) for side, run in compiled.items()} | {ENGINE: engine}
    found = {}
    for side, run in runs.items():
        began = time.perf_counter()
        found[side] = np.asarray(run())
        print(f"{side}: compiled and ran {trials:,} trials in {time.perf_counter() - began:.1f} s", flush=True)
    apart = {side: float(np.max(np.abs(found[side] - found[SHIPPED]))) for side in own}
    refuse_different(apart)
    rates: dict[str, list[float]] = {side: [] for side in runs}
    for _, (side, run) in itertools.product(range(rounds), runs.items()):
        rates[side].append(trials / seconds(run))
    scale = f"{trials:,} trials, {rounds} rounds, all sides in turn"
    for side, values in rates.items():
        rows.spread("trials_per_second", {"side": side, "dimension": DIMENSION}, values, scale=scale)
    best = np.max([rates[side] for side in rates if side != KERNEL], axis=0)
    ratios = np.divide(rates[KERNEL], best).tolist()
    rows.spread("kernel_ratio", {"against": "XLA's best", "dimension": DIMENSION}, ratios, scale=scale)
    print(f"randomised trial: {'keep the kernel' if np.median(ratios) >= KEEP else 'delete the kernel'}")
    rows.finish_part("speed")


def main() -> None:
    parser = options(__doc__ or "")
    chosen = parser.parse_args()
    rows = Rows("000", "bench_kernels", chosen.out, chosen.seed, keep=True)
    g0, g1 = jax.random.normal(jax.random.key(chosen.seed), (2, DIMENSION))
    assert jnp.any(cosine_direction(g0, g1) != 0)
    keys = jax.random.split(philox.from_key(jax.random.key(chosen.seed + 1)), QUICK if chosen.quick else TRIALS)
    own = sides(g0, g1)
    if jax.default_backend() == "cpu":
        print("timing a kernel takes a GPU or TPU, and this is a CPU: memory and counts alone")
    else:
        speed(rows, own, keys, 3 if chosen.quick else 7)
    memory(rows, own, keys)


if __name__ == "__main__":
    main()
