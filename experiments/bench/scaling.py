"""Times growth: with trials, their dimension, a round's clients, networks trained together.

    python -m experiments.bench.scaling                    # a quarter of an hour
    python -m experiments.bench.scaling --only clients     # one curve; the rows of the others stay
    python -m experiments.bench.scaling --quick --out DIR  # tiny sizes: a minute

The exponent is the slope of log seconds against log size, by rounds in which all sizes were timed in turn; the end's
is that between the two largest. Expect 1 at the end of all.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from dpaudit.audits import craft, engines
from dpaudit.federated import population
from dpaudit.training.many import train_many
from experiments.bench import federated
from experiments.bench.sides import NETWORKS, in_turn, timed, training
from experiments.bench.training import examples
from experiments.common import Rows, options

REPEATS = 8  # trials of a pair, as in bench_ldp
SCALES = {  # the sizes of each curve, and what stays the same in it
    "trials": ((256, 512, 1_024, 2_048, 4_096), 26_010),
    "dimension": ((100, 1_000, 10_000, 100_000), 512),
    "clients": ((100, 300, 1_000, 3_000), "CNN28"),
    "networks": ((8, 16, 32, 64, 128), 20),
}
QUICK = {
    "trials": ((8, 32), 1_000),
    "dimension": ((100, 1_000), 16),
    "clients": ((10, 40), "CNN8"),
    "networks": ((2, 4), 2),
}
PARTS = {"all": slice(None), "end": slice(-2, None)}  # of a curve, that exponents are given of


Run = Callable[[], Any]


def trials(pairs: int, dimension: int) -> Run:
    """Makes trials of LDP-SGD as shipped, ``2 * REPEATS`` for each pair."""
    how = {"epsilons": [4.0], "clip_norm": 1.0, "repeats": REPEATS}
    key, crafted = jax.random.key(0), craft.dummy(dimension, 1.0)
    return lambda: engines.full(key, crafted, pairs, pair_key=jax.random.key(1), **how)


def a_round(clients: int, name: str) -> Run:
    """Makes a round of so many clients, one draw of noise."""
    network, key = NETWORKS[name], jax.random.key(0)
    given = federated.drawn(0, network, 60_000)
    run = jax.jit(federated.ours(network, clients, population.iid(key, 60_000)))
    return partial(run, key, given, federated.NOISE_MULTIPLIER)


def networks(count: int, steps: int) -> Run:
    """Small ones, trained together."""
    _, images, labels = examples(jax.random.key(0), "CNN8")
    run = training(NETWORKS["CNN8"], images, labels, batch_size=64, steps=steps)
    return partial(train_many, run, (jax.random.split(jax.random.key(0), count),))


SIDES: Mapping[str, Callable[..., Run]] = {
    "trials": trials,
    "dimension": lambda dimension, pairs: trials(pairs, dimension),
    "clients": a_round,
    "networks": networks,
}


def measured(name: str, sizes: Sequence[int], same: object, rounds: int) -> list[list[float]]:
    """Seconds, [sizes, rounds]."""
    runs = {str(size): SIDES[name](size, same) for size in sizes}
    _, times = in_turn({size: timed(run) for size, run in runs.items()}, rounds)
    return list(times.values())


def exponents(sizes: Sequence[int], times: Sequence[Sequence[float]]) -> dict[str, list[float]]:
    """Slopes of log seconds against log size, of every round: over all sizes, and between the two largest."""
    logs = np.log(sizes), np.log(times)
    return {part: np.polyfit(logs[0][cut], logs[1][cut], 1)[0].tolist() for part, cut in PARTS.items()}


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--only", nargs="+", choices=SCALES, default=list(SCALES), help="curves; default: all")
    parser.add_argument("--rounds", type=int, default=None, help="how often each size is timed; default 5, quick 2")
    chosen = parser.parse_args()
    rounds = chosen.rounds or (2 if chosen.quick else 5)
    scales = QUICK if chosen.quick else SCALES
    rows = Rows("", "bench_scaling", chosen.out, chosen.seed, keep=True)
    for name in chosen.only:
        sizes, same = scales[name]
        times = measured(name, sizes, same, rounds)
        for size, values in zip(sizes, times, strict=True):
            rows.spread(f"{name}: seconds", {"size": size, "same": same}, values, scale=f"{rounds} rounds, in turn")
        for part, slopes in exponents(sizes, times).items():
            rows.spread(f"{name}: exponent", {"sizes": part}, slopes, scale="slope of log seconds, by round")
        rows.finish_part(name)


if __name__ == "__main__":
    main()
