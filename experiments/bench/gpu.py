"""Times LDP-SGD trials, clipped gradients, federated rounds and a slice of MC-dropout risk on one accelerator.

    python -m experiments.bench.gpu --torch-python PATH             # PyTorch for CUDA, opacus; 3 minutes on an H200
    python -m experiments.bench.gpu --quick --any-device --out DIR  # tiny sizes on any device: under a minute

Asked of one H200: at least 2 million `full` trials a second at d = 26,010; the clipped gradient sum of the network of
932,170 parameters, batch 1,024, in at most 3.3 times the plain gradient's time (its bytes: docs/accelerators.md)
and at least 3 times as fast as Opacus on the same card; 10,000 federated rounds in 60 s. The 4,000 trainings
of "MC-dropout risk" are estimated from a slice, on images of noise of CIFAR-10's size. Without an accelerator nothing
is measured, and the exit status is 2.
"""

import sys
import tempfile
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from dpaudit.audits import craft, engines
from dpaudit.training.many import train_many
from experiments.bench import federated as bench_federated
from experiments.bench import ldp as bench_ldp
from experiments.bench.sides import in_turn, timed
from experiments.bench.training import CLIPPED, PLAIN, sums
from experiments.common import Rows, options, seconds
from experiments.paper003.bench import SCALES, SHADOWS, Bench

SIDES = (PLAIN, CLIPPED, "flax.linen, plain")
REPEATS = 8  # trials of a pair, as in bench_ldp
FILES = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
RECORDS = 10_000  # in each


def trials(rows: Rows, dimension: int, pairs: int, rounds: int) -> None:
    """LDP-SGD trials of the mechanism as shipped, a second."""
    crafted = craft.dummy(dimension, 1.0)

    def run() -> object:
        return engines.full(
            jax.random.key(0),
            crafted,
            pairs,
            epsilons=[4.0],
            clip_norm=1.0,
            repeats=REPEATS,
            pair_key=jax.random.key(1),
        )

    run()
    rates = [2 * pairs * REPEATS / seconds(run) for _ in range(rounds)]
    scale = f"{2 * pairs * REPEATS:,} trials a run, {rounds} runs"
    rows.spread("full_trials_per_second", {"engine": "full", "d": dimension}, rates, scale=scale)
    rows.finish_part("trials")


def trainings(rows: Rows, name: str, networks: int, probes: tuple[int, int], rounds: int) -> None:
    """Networks of "MC-dropout risk" trained together for a few steps and for more: a step costs the difference."""
    with tempfile.TemporaryDirectory() as folder:
        on_files = SCALES[name].data == "cifar10"  # else bundled
        if on_files:
            noise_images(Path(folder), rows.seed)
        bench = Bench(SCALES[name]._replace(noise=0.5), rows.seed, Path(folder), folder if on_files else None)
    records, steps = bench.scale.records, bench.scale.steps
    arguments = jax.random.split(bench.key, networks), jnp.ones((networks, records))
    shared = (bench.all_of(bench.rows.members),)
    runs = {
        str(probe): timed(partial(train_many, bench.learner(records, probe), arguments, shared=shared))
        for probe in probes
    }
    _, times = in_turn(runs, rounds)
    step, whole = extrapolated(probes, [np.array(times[str(probe)]) for probe in probes], steps)
    setting = {"scale": name, "steps": steps, "batch": bench.scale.batch_size, "records": records}
    scale = f"{networks} networks together, from {probes[0]} and {probes[1]} of their steps, {rounds} rounds"
    rows.spread("paper_step_milliseconds", setting, (1e3 * step / networks).tolist(), scale=scale + ", each")
    rows.spread("paper_networks_per_hour", setting, (3600 * networks / whole).tolist(), scale=scale)
    count = 4 * bench.scale.trainings + SHADOWS
    rows.spread("paper_hours", setting, (count * whole / networks / 3600).tolist(), scale=f"{count:,} trainings")
    rows.finish_part("paper 003")


def extrapolated(probes: tuple[int, int], times: list[np.ndarray], steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of a step, and of so many steps with what begins and ends a training, from two numbers of steps."""
    step = (times[1] - times[0]) / (probes[1] - probes[0])
    return step, times[0] + (steps - probes[0]) * step


def noise_images(folder: Path, seed: int) -> None:
    """CIFAR-10's files with noise in place of images: a training takes as long whatever they show."""
    draw = np.random.default_rng(seed)
    for name in FILES:
        labels = draw.integers(0, 10, (RECORDS, 1), np.uint8)
        pixels = draw.integers(0, 256, (RECORDS, 3 * 32 * 32), np.uint8)
        (folder / name).write_bytes(np.hstack([labels, pixels]).tobytes())


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--torch-python", default=None, help="an interpreter that has torch for CUDA, and opacus")
    parser.add_argument("--rounds", type=int, default=None, help="how often each side is timed; default 5, quick 2")
    parser.add_argument("--any-device", action="store_true", help="with --quick: on a CPU as well")
    chosen = parser.parse_args()
    if jax.default_backend() == "cpu" and not (chosen.quick and chosen.any_device):
        print("bench_gpu: expected an accelerator that JAX can use, got a CPU alone", file=sys.stderr)
        raise SystemExit(2)
    rows = Rows("", "bench_gpu", chosen.out, chosen.seed)
    key, rounds = jax.random.key(chosen.seed), chosen.rounds or (2 if chosen.quick else 5)
    if chosen.quick:
        trials(rows, 1_000, 64, rounds)
        sums(rows, key, "CNN8", rounds, chosen.torch_python, size=64, only=SIDES)
        bench_federated.long(rows, "CNN8", 20, 100)
        trainings(rows, "quick", 2, (1, 61), rounds)  # so far apart that no pause of the machine is longer
        return
    trials(rows, bench_ldp.DIMENSION, 1 << 17, rounds)
    bench_federated.long(rows, "CNN28", 1_000, 10_000)
    sums(rows, key, "CNN32", rounds, chosen.torch_python, size=1_024, only=SIDES)
    trainings(rows, "paper", 32, (4, 24), rounds)


if __name__ == "__main__":
    main()
