"""Speed of dropout samples beside their matrix products alone, a plain vmap and PyTorch; and of the threshold search.

    python -m experiments.bench.mc_dropout --torch-python PATH   # one that has torch and opacus; twenty minutes
    python -m experiments.bench.mc_dropout --quick --out DIR     # the small network, fewer samples: under a minute
    python -m experiments.bench.mc_dropout --torch-python PATH --part law  # is PyTorch's the same network? untimed

Expect, on two cores: T samples of the 932,170-parameter network in the time of their matrix products and the patches
that the convolution's is made of, and the thresholds of 1,000 models by all subsets of four statistics and both rules
in well under 5 seconds.
"""

import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpaudit import _validate
from dpaudit.kernels import philox
from dpaudit.training import models
from dpaudit.training.dropout import mc_dropout, membership
from dpaudit.training.dropout.threshold_search import KINDS
from experiments.bench import mc_dropout_sides as sides
from experiments.bench.training import in_turn, ratio
from experiments.bench.training_sides import NETWORKS, Batch, batch, differences, refuse_different, timed
from experiments.common import Rows, options

IMAGES, SAMPLES, QUICK = 16, 1_000, 100  # T, and T in a hurry
MODELS = 1_000
DELTA = 1e-5
SHIFTS = (0.0, 0.3, 1.0)  # of a member's mean logit, in standard deviations over models
PARTS = SPEED, LAW = "speed", "law"
SAME_LAW = 1.6  # standard errors, root mean square over 16 images of 10 classes: 1 and four of its own standard errors
SMALL = 60  # models on which all combinations of three thresholds can be tried
PRODUCTS, LAYERS = "matrix products alone", "with the convolution's patches"
STATISTICS, SAMPLE, VMAP = "statistics", "sample", "plain vmap"


class Laws(NamedTuple):
    """Of PyTorch's samples beside ours."""

    logits: float  # |theirs - ours| / |ours|, without dropout
    means: float  # root mean square of the differences of means of T samples, in standard errors


def sampling(rows: Rows, key: jax.Array, name: str, samples: int, rounds: int, torch_python: str | None) -> None:
    """The samples of some images and their statistics by every side."""
    network = mc_dropout.probabilities(NETWORKS[name].ours)
    given = batch(key, NETWORKS[name], IMAGES)
    plain = jax.jit(sides.by_vmap(network, samples, min(samples, sides.VMAPPED[name])))
    fast = philox.from_key(key)  # what ours draws from, so that the samples are the same

    def ours(call: Any) -> Any:
        return call(key, network, given.params, given.images, samples=samples)

    found, outputs = ours(mc_dropout.statistics), ours(mc_dropout.sample)
    apart = differences({SAMPLE: outputs, VMAP: plain(fast, given.params, given.images)})
    apart |= differences({SAMPLE: mc_dropout.summarise(outputs), STATISTICS: found})
    refuse_different(apart)
    runs = {
        PRODUCTS: timed(sides.multiplied(key, sides.PRODUCTS[name], IMAGES, samples)),
        LAYERS: timed(sides.convolved(key, name, IMAGES, samples)),
        STATISTICS: timed(ours, mc_dropout.statistics),
        SAMPLE: timed(ours, mc_dropout.sample),
        VMAP: timed(plain, fast, given.params, given.images),
    }
    with sides.torch(torch_python, name, given.params, given.images, samples) as peer:
        laws = of_laws(peer, name, given, found, samples)
        _, times = in_turn(runs | peer.sides, rounds)
    setting = {"network": name, "images": IMAGES, "samples": samples}
    scale, most = f"{rounds} rounds, all sides in turn", IMAGES * samples
    for side, values in times.items():
        how = setting | {"side": side} | peer.settings.get(side, {})
        rows.spread("sample_microseconds", how, np.multiply(values, 1e6 / most).tolist(), scale=scale)
    for side, to in itertools.product(times, (PRODUCTS, LAYERS, STATISTICS)):
        if side != to:
            ratio(rows, "sample_ratio", setting, times, side, to, scale)
    gflop = sides.gflop(name, IMAGES, samples)
    rows.add("products_gflop", setting, gflop, scale="counted")
    rows.spread("products_gflop_per_second", setting, np.divide(gflop, times[PRODUCTS]).tolist(), scale=scale)
    for side, difference in apart.items():
        rows.add("output_difference", setting | {"side": side}, difference, scale="L2, relative to sample's")
    compare_laws(rows, setting, laws)
    rows.finish_part(f"samples of {name}")


def of_laws(peer: sides.Torch, name: str, given: Batch, found: mc_dropout.Statistics, samples: int) -> Laws | None:
    """How far PyTorch's network is from ours, in its logits without dropout and in its samples; None without PyTorch.

    Raises:
      AssertionError: another network, or other samples.
    """
    if peer.logits is None:
        return None
    logits = jax.vmap(models.logits(NETWORKS[name].ours), (None, 0))(given.params, given.images)
    (_, apart) = differences({"ours": logits, "torch": peer.logits}).values()
    errors = (found.mean - peer.mean) / jnp.sqrt((found.variance + peer.variance) / samples)
    laws = Laws(apart, float(jnp.sqrt(jnp.mean(jnp.square(errors)))))
    refuse_different({"logits of torch": laws.logits})
    refuse_different({"means of torch, in standard errors": laws.means}, within=SAME_LAW)
    return laws


def compare_laws(rows: Rows, setting: dict[str, Any], laws: Laws | None) -> None:
    if laws is not None:
        rows.add("torch_logits_difference", setting, laws.logits, scale="L2, relative to ours, without dropout")
        rows.add("torch_difference", setting, laws.means, scale="of means, in their standard error: about 1")


def law(rows: Rows, key: jax.Array, name: str, samples: int, torch_python: str | None) -> None:
    """Whether PyTorch's network is ours, with nothing timed."""
    network, given = mc_dropout.probabilities(NETWORKS[name].ours), batch(key, NETWORKS[name], IMAGES)
    found = mc_dropout.statistics(key, network, given.params, given.images, samples=samples)
    with sides.torch(torch_python, name, given.params, given.images, samples, threads=()) as peer:
        laws = of_laws(peer, name, given, found, samples)
    compare_laws(rows, {"network": name, "images": IMAGES, "samples": samples}, laws)
    rows.finish_part(f"the law of {name}: {laws}")


def search(rows: Rows, models: int, samples: int, rounds: int) -> None:
    """From samples to the best thresholds by every subset and rule: of many models; of few, also by trying all."""
    rng = np.random.default_rng(rows.seed)
    setting, scale = {"models": models, "samples": samples, "statistics": 4}, f"{rounds} draws of predictions"
    for shift in SHIFTS:
        drawn = [predictions(rng, models, samples, shift) for _ in range(rounds)]
        times = [timed(attack, *given, 4)() for given in drawn]
        rows.spread("attack_seconds", setting | {"shift": shift}, times, scale=scale)
    drawn = [predictions(rng, SMALL, samples, SHIFTS[1]) for _ in range(rounds)]
    assert all(attack(*given, 3) == try_all(*given, 3) for given in drawn)
    few = {"search": attack, "all combinations": try_all}
    found = {side: [timed(run, *given, 3)() for given in drawn] for side, run in few.items()}
    setting |= {"models": SMALL, "statistics": 3, "shift": SHIFTS[1]}
    for side, values in found.items():
        rows.spread("small_attack_seconds", setting | {"side": side}, values, scale=scale)
    ratio(rows, "small_attack_ratio", setting, found, "all combinations", "search", scale)
    rows.finish_part("threshold search")


def predictions(rng: np.random.Generator, models: int, samples: int, shift: float) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of the true class [models, T], of logits normal over models and samples; who is a member."""
    member = np.arange(models) % 2 == 1
    logits = (rng.normal(size=models) + shift * member)[:, None] + rng.normal(size=(models, samples))
    return 1 / (1 + np.exp(-logits)), member


def attack(p: np.ndarray, member: np.ndarray, width: int) -> dict[Any, float]:
    """Algorithm 2's estimate by every subset of the first statistics and both rules."""
    found = membership.estimates(statistics(p, width), member, delta=DELTA, subsets=subsets(width))
    return {case: best.value for case, best in found.items()}


def try_all(p: np.ndarray, member: np.ndarray, width: int) -> dict[Any, float]:
    """The same by all combinations of thresholds."""
    columns, cases = statistics(p, width), itertools.product(subsets(width), KINDS)
    return {case: sides.brute_force(columns, member, *case, DELTA) for case in cases}


def statistics(p: np.ndarray, width: int) -> np.ndarray:
    """[models, width]"""
    return membership.statistics(p.mean(axis=1), p.std(axis=1), p.min(axis=1), p.max(axis=1))[:, :width]


def subsets(width: int) -> list[tuple[int, ...]]:
    """All but the empty one."""
    return [subset for k in range(1, width + 1) for subset in itertools.combinations(range(width), k)]


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--torch-python", default=None, help="an interpreter that has torch and opacus")
    parser.add_argument("--rounds", type=int, default=None, help="how often each side is timed; default 8, quick 3")
    parser.add_argument("--part", choices=PARTS, default=SPEED, help="law: compare with PyTorch and time nothing")
    chosen = parser.parse_args()
    names, samples = (["CNN8"], QUICK) if chosen.quick else (["CNN8", "CNN32"], SAMPLES)
    rounds = chosen.rounds or (3 if chosen.quick else 8)
    rows = Rows("003", "bench_mc_dropout", chosen.out, chosen.seed, keep=chosen.part == LAW)
    key = jax.random.key(chosen.seed)
    if chosen.part == LAW:
        if chosen.torch_python is None:
            raise _validate.expected("--torch-python", "an interpreter that has torch and opacus", "none")
        for name in names:
            law(rows, key, name, samples, chosen.torch_python)
        return
    for name in names:
        sampling(rows, key, name, samples, rounds, chosen.torch_python)
    search(rows, MODELS, SAMPLES, rounds)


if __name__ == "__main__":
    main()
