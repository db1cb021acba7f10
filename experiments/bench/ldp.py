"""Measures speed and memory of LDP-SGD trials, beside a plain PyTorch loop and a plain vmap, in one run.

    python -m experiments.bench.ldp --torch-python PATH     # an interpreter that has torch; two minutes
    python -m experiments.bench.ldp --wide                  # 100,000 trials at d = 1,000,000 alone; half an hour

Expect, as ratios on two cores: `full` at d = 26,010 a little above the PyTorch loop and five times a plain vmap;
`plane` tens of millions of trials a second at any dimension.
"""

import math
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np

from dpaudit import data
from dpaudit.auditing.attacks.distinguish import cosine_direction
from dpaudit.audits import craft, engines, ldp_client, oracle
from dpaudit.mechanisms import ldp_sgd
from experiments.common import Rows, options, peak_gib, seconds

DIMENSION = 26_010
EPSILON = 4.0
PEER = Path(__file__).parent / "peers" / "torch_ldp_sgd.py"


def plane(rows: Rows, rounds: int) -> None:
    """Trials a second in the plane, one pair for all trials."""
    pair = oracle.Pair(np.array(1.0), np.array(0.7), np.array(2.0))
    trials, repeats = 250_000, 40

    def run() -> object:
        return engines.plane(jax.random.key(0), pair, trials, epsilons=[4.0], clip_norm=1.0, repeats=repeats)

    run()
    rates = [2 * trials * repeats / seconds(run) / 1e6 for _ in range(rounds)]
    scale = f"{2 * trials * repeats:,} trials a run"
    rows.spread("plane_million_trials_per_second", {"dimension": "any"}, rates, scale=scale)


def grid(rows: Rows, rounds: int) -> None:
    """Section 6 for one data set once the gradients' planes exist: 4 epsilons, 5 settings, 10 x 10,000 trials."""
    rng = np.random.default_rng(0)
    norms, angles = rng.uniform(0.1, 2, (5, 2, 5000)), rng.uniform(0, np.pi, (5, 5000))
    pairs = [oracle.Pair(norm[0], norm[1], angle) for norm, angle in zip(norms, angles, strict=True)]

    def run() -> None:
        for place, pair in enumerate(pairs):
            engines.plane(jax.random.key(place), pair, 5000, epsilons=[0.5, 1.0, 2.0, 4.0], clip_norm=1.0, repeats=10)

    scale = "2,000,000 trials with a pair each"
    run()
    rows.spread("plane_grid_seconds", {"with": "compiled program"}, [seconds(run) for _ in range(rounds)], scale=scale)


def full(rows: Rows, rounds: int, torch_python: str | None) -> None:
    """Times the mechanism as shipped, a plain vmap of it on JAX's default generator, and the PyTorch loop, in turn."""
    crafted = craft.dummy(DIMENSION, 1.0)
    g0, g1 = crafted(jax.random.key(0))
    direction = cosine_direction(g0, g1)

    def ours() -> np.ndarray:
        return engines.full(
            jax.random.key(0), crafted, 1024, epsilons=[4.0], clip_norm=1.0, repeats=8, pair_key=jax.random.key(1)
        )

    @jax.jit
    def naive(keys: jax.Array) -> jax.Array:
        release = jax.vmap(lambda key: ldp_sgd.randomize(key, g0, epsilon=4.0, clip_norm=1.0))
        return release(keys) @ direction > 0

    keys = jax.random.split(jax.random.key(0), 1024)
    refuse_wrong({"ours": (np.asarray(ours()) & engines.GUESS)[0] > 0, "vmap": np.asarray(naive(keys))})
    rates: dict[str, list[float]] = {"ours": [], "vmap": [], "torch": []}
    for _ in range(rounds):
        rates["ours"].append(2 * 1024 * 8 / seconds(ours))
        rates["vmap"].append(4 * 1024 / seconds(lambda: [naive(keys).block_until_ready() for _ in range(4)]))
        if torch_python is not None:
            rates["torch"].append(max(torch_rate(torch_python, threads) for threads in (1, 2)))
    scale = f"d = {DIMENSION:,}, medians of {rounds} rounds in turn"
    rows.spread("full_trials_per_second", {"engine": "full"}, rates["ours"], scale=scale)
    rows.spread("full_trials_per_second", {"engine": "vmap of the mechanism, threefry"}, rates["vmap"], scale=scale)
    rows.spread("full_ratio", {"against": "vmap"}, np.divide(rates["ours"], rates["vmap"]).tolist(), scale=scale)
    if rates["torch"]:
        setting = {"engine": "PyTorch loop, better of 1 and 2 threads"}
        rows.spread("full_trials_per_second", setting, rates["torch"], scale=scale)
        ratios = np.divide(rates["ours"], rates["torch"]).tolist()
        rows.spread("full_ratio", {"against": "PyTorch"}, ratios, scale=scale)
    else:
        print("full: no torch; name an interpreter that has it with --torch-python")


def refuse_wrong(guesses: dict[str, np.ndarray]) -> None:
    """Ends the benchmark where a side's guesses of world 0 are not wrong as often as they should be.

    The pair is opposite, so that a guess is wrong where the sign was flipped; PyTorch's loop is held to the same.
    """
    wrong = 1 / (1 + math.exp(EPSILON))
    for side, guessed in guesses.items():
        error = math.sqrt(wrong * (1 - wrong) / guessed.size)
        if not abs(guessed.mean() - wrong) < 6 * error:
            raise AssertionError(f"{side} plays another game: {guessed.mean():.4f} guesses are wrong, not {wrong:.4f}")


def torch_rate(python: str, threads: int) -> float:
    command = [python, str(PEER), str(DIMENSION), "4000", str(threads)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def memory(rows: Rows, part: str, scale: str) -> None:
    """Measures one part in a separate process: its seconds and its peak memory."""
    command = [sys.executable, "-m", "experiments.bench.ldp", "--part", part]
    took, peak = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-2:]
    rows.spread(f"{part}_seconds", {}, [float(took)], scale=scale)
    rows.spread(f"{part}_peak_gib", {}, [float(peak)], scale=scale + ", whole process")


def wide() -> None:
    """10^5 trials at d = 10^6."""
    crafted = craft.dummy(1_000_000, 1.0)
    engines.full(jax.random.key(0), crafted, 50_000, epsilons=[4.0], clip_norm=1.0, pair_key=jax.random.key(1))


def gradients() -> None:
    """Computes the planes of 10,000 pairs of gradients of the 26,010-parameter network, on images of noise."""
    rng = np.random.default_rng(0)
    images, labels = rng.random((2000, 28, 28, 1), np.float32), rng.integers(0, 10, 2000).astype(np.int32)
    noise = data.Dataset("mnist", images, labels, 10, "noise")
    client = ldp_client.client(jax.random.key(0), noise, noise, pretraining_steps=0, clip_norm=1.0)
    engines.pairs(jax.random.key(1), ldp_client.crafted(client, "benign"), 10_000)


PARTS = {"wide": wide, "gradients": gradients}


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--torch-python", default=None, help="an interpreter that has torch")
    parser.add_argument("--part", choices=PARTS, default=None, help="run one part alone and print seconds, GiB")
    parser.add_argument("--wide", action="store_true", help="the widest trials alone; the rows of the others stay")
    chosen = parser.parse_args()
    if chosen.part is not None:
        took = seconds(PARTS[chosen.part])
        print(took, peak_gib())
        return
    rounds = 3 if chosen.quick else 7
    rows = Rows("000", "bench_ldp", chosen.out, chosen.seed, keep=True)
    if chosen.wide:
        memory(rows, "wide", "100,000 trials, d = 1,000,000")
        rows.finish_part("wide")
        return
    plane(rows, rounds)
    grid(rows, rounds)
    rows.finish_part("plane")
    full(rows, rounds, chosen.torch_python)
    rows.finish_part("full")
    memory(rows, "gradients", "10,000 pairs, d = 26,010")
    rows.finish_part("gradients")


if __name__ == "__main__":
    main()
