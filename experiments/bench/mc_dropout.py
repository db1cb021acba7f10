"""Times dropout samples beside their matrix products alone, a plain vmap and PyTorch; and the threshold search.

    python -m experiments.bench.mc_dropout --torch-python PATH   # one that has torch and opacus; twenty minutes
    python -m experiments.bench.mc_dropout --quick --out DIR     # the small network, fewer samples: under a minute

Expect, on two cores: T samples of the 932,170-parameter network in the time of their matrix products and the patches
that the convolution's is made of, and the thresholds of 1,000 models by all subsets of four statistics and both rules
in well under 5 seconds.
"""

import itertools
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from dpaudit.kernels import philox
from dpaudit.training import models
from dpaudit.training.dropout import mc_dropout, membership
from dpaudit.training.forms import quick
from experiments.bench import sides
from experiments.bench.sides import (
    DROPOUT_RATE,
    NETWORKS,
    Batch,
    as_torch,
    batch,
    channels_first,
    differences,
    in_turn,
    ratio,
    refuse_different,
    timed,
)
from experiments.common import Rows, options

IMAGES, SAMPLES, QUICK = 16, 1_000, 100  # T, and T in a hurry
MODELS = 1_000
DELTA = 1e-5
SAME_LAW = 1.6  # standard errors, root mean square over 16 images of 10 classes: 1 and four of its own standard errors
ALONE, LAYERS = "matrix products alone", "with the convolution's patches"
STATISTICS, SAMPLE, VMAP = "statistics", "sample", "plain vmap"
CACHED = 8 << 20  # bytes of the left operand of a product that is timed
FEW = 4  # convolutions whose patches are made and multiplied at a time
VMAPPED = {"CNN8": 1_000, "CNN32": 10}  # samples that a plain vmap has memory for

Product = tuple[int, int, int]  # [m, k] @ [k, n]


class Products(NamedTuple):
    """A network's matrix products, convolutions as patches times weights."""

    before: tuple[Product, ...]  # the first dropout, for an image
    behind: tuple[Product, ...]  # it, for a sample


PRODUCTS = {
    "CNN8": Products(((64, 9, 8),), ((4, 72, 16), (1, 64, 10))),
    "CNN32": Products(((784, 75, 64),), ((100, 1_600, 64), (1, 1_600, 512), (1, 512, 10))),
}
CONVOLVED = {"CNN8": (4, 4, 8), "CNN32": (14, 14, 64)}  # what the first product behind has patches of


class Laws(NamedTuple):
    """Of PyTorch's samples beside ours."""

    logits: float  # |theirs - ours| / |ours|, without dropout
    means: float  # root mean square of the differences of means of T samples, in standard errors


def sampling(rows: Rows, key: jax.Array, name: str, samples: int, rounds: int, torch_python: str | None) -> None:
    """Times the samples of some images and their statistics by every side."""
    network = mc_dropout.probabilities(NETWORKS[name].ours)
    given = batch(key, NETWORKS[name], IMAGES)
    plain = jax.jit(by_vmap(network, samples, min(samples, VMAPPED[name])))
    fast = philox.from_key(key)  # what ours draws from, so that the samples are the same

    def ours(call: Any) -> Any:
        return call(key, network, given.params, given.images, samples=samples)

    found, outputs = ours(mc_dropout.statistics), ours(mc_dropout.sample)
    apart = differences({SAMPLE: outputs, VMAP: plain(fast, given.params, given.images)})
    apart |= differences({SAMPLE: mc_dropout.summarise(outputs), STATISTICS: found})
    refuse_different(apart)
    runs = {
        ALONE: timed(multiplied(key, PRODUCTS[name], IMAGES, samples)),
        LAYERS: timed(convolved(key, name, IMAGES, samples)),
        STATISTICS: timed(ours, mc_dropout.statistics),
        SAMPLE: timed(ours, mc_dropout.sample),
        VMAP: timed(plain, fast, given.params, given.images),
    }
    asked = {"network": name, "weights": as_torch(given.params, NETWORKS[name]).tolist(), "samples": samples}
    asked |= {"images": channels_first(given.images), "dropout_rate": DROPOUT_RATE, "threads": [1, 2]}
    with sides.peer(sides.torch(torch_python, "torch_mc_dropout.py"), asked) as peer:
        laws = of_laws(peer.told, name, given, found, samples)
        _, times = in_turn(runs | peer.sides, rounds)
    setting = {"network": name, "images": IMAGES, "samples": samples}
    scale, most = f"{rounds} rounds, all sides in turn", IMAGES * samples
    for side, values in times.items():
        how = setting | {"side": side} | peer.settings.get(side, {})
        rows.spread("sample_microseconds", how, np.multiply(values, 1e6 / most).tolist(), scale=scale)
    for side in times:
        if side != STATISTICS:
            ratio(rows, "sample_ratio", setting, times, side, STATISTICS, scale)
    if laws is not None:
        rows.add("torch_logits_difference", setting, laws.logits, scale="L2, relative to ours, without dropout")
        rows.add("torch_difference", setting, laws.means, scale="of means, in their standard error: about 1")
    rows.finish_part(f"samples of {name}")


def of_laws(
    told: Mapping[str, Any], name: str, given: Batch, found: mc_dropout.Statistics, samples: int
) -> Laws | None:
    """Returns how far PyTorch's network is from ours, in its logits without dropout and in its samples; None without
    PyTorch.

    Raises:
      AssertionError: another network, or other samples.
    """
    if not told:
        return None
    theirs, mean, variance = (jnp.asarray(told[what]) for what in ("logits", "mean", "variance"))
    logits = jax.vmap(models.logits(NETWORKS[name].ours), (None, 0))(given.params, given.images)
    (_, apart) = differences({"ours": logits, "torch": theirs}).values()
    errors = (found.mean - mean) / jnp.sqrt((found.variance + variance) / samples)
    laws = Laws(apart, float(jnp.sqrt(jnp.mean(jnp.square(errors)))))
    refuse_different({"logits of torch": laws.logits})
    refuse_different({"means of torch, in standard errors": laws.means}, within=SAME_LAW)
    return laws


def search(rows: Rows, models: int, samples: int, rounds: int) -> None:
    """From samples to the best thresholds by every subset and rule, of many models."""
    rng = np.random.default_rng(rows.seed)
    setting, scale = {"models": models, "samples": samples, "statistics": 4}, f"{rounds} draws of predictions"
    times = [timed(attack, *predictions(rng, models, samples))() for _ in range(rounds)]
    rows.spread("attack_seconds", setting | {"shift": 0.0}, times, scale=scale)
    rows.finish_part("threshold search")


def predictions(rng: np.random.Generator, models: int, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of the true class [models, T], of logits normal over models and samples; who is a member."""
    logits = rng.normal(size=models)[:, None] + rng.normal(size=(models, samples))
    return 1 / (1 + np.exp(-logits)), np.arange(models) % 2 == 1


def attack(p: np.ndarray, member: np.ndarray) -> dict[Any, float]:
    """Algorithm 2's estimate by every subset of the statistics and both rules."""
    columns = membership.statistics(p.mean(axis=1), p.std(axis=1), p.min(axis=1), p.max(axis=1))
    subsets = [subset for k in range(1, 5) for subset in itertools.combinations(range(4), k)]
    found = membership.estimates(columns, member, delta=DELTA, subsets=subsets)
    return {case: best.value for case, best in found.items()}


def multiplied(key: jax.Array, wanted: Products, images: int, samples: int) -> Callable[[], list[jax.Array]]:
    """``run()``: the matrix products of T samples of n images and nothing else, those before the first dropout once.

    Each is done for as many samples at a time as keep its operands, always the same, in the caches.
    """
    calls, multiply = [], jax.jit(jnp.matmul)
    for times, group in ((images, wanted.before), (images * samples, wanted.behind)):
        for m, k, n in group:
            left_key, right_key, key = jax.random.split(key, 3)
            at_once = _at_once(times, 4 * m * k)
            operands = jax.random.normal(left_key, (at_once * m, k)), jax.random.normal(right_key, (k, n))
            calls.append((times // at_once, operands))
    return lambda: [multiply(*operands) for times, operands in calls for _ in range(times)]


def convolved(key: jax.Array, name: str, images: int, samples: int) -> Callable[[], list[jax.Array]]:
    """``run()``: the same, and the patches of the convolution behind the first dropout, made for a few at a time."""
    (m, k, n), *others = PRODUCTS[name].behind
    *_, channels = shape = CONVOLVED[name]
    layer = nn.Conv(n, (math.isqrt(k // channels),) * 2, padding="VALID")
    times, (init_key, input_key, key) = images * samples, jax.random.split(key, 3)
    at_once = _at_once(times, 4 * m * k)
    inputs = jax.random.normal(input_key, (at_once, *shape))
    params = layer.init(init_key, inputs[0])
    convolve = jax.jit(lambda params, inputs: jax.lax.map(quick(partial(layer.apply, params)), inputs, batch_size=FEW))
    rest = multiplied(key, Products(PRODUCTS[name].before, tuple(others)), images, samples)
    return lambda: rest() + [convolve(params, inputs) for _ in range(times // at_once)]


def _at_once(times: int, bytes_of_one: int) -> int:
    """Returns a divisor of ``times``, so that they fit into the caches."""
    return max(part for part in range(1, max(1, CACHED // bytes_of_one) + 1) if times % part == 0)


def by_vmap(network: mc_dropout.Network, samples: int, at_once: int) -> Callable[..., jax.Array]:
    """``run(key, params, images) -> [T, n, k]``: the whole network for every image and key, as one would write it."""

    def run(key: jax.Array, params: Any, images: jax.Array) -> jax.Array:
        def once(t: jax.Array) -> jax.Array:
            def output(i: jax.Array, image: jax.Array) -> jax.Array:
                return network(params, image, jax.random.fold_in(jax.random.fold_in(key, i), t))

            return jax.vmap(output)(jnp.arange(len(images)), images)

        return jax.lax.map(once, jnp.arange(samples), batch_size=at_once)

    return run


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--torch-python", default=None, help="an interpreter that has torch and opacus")
    parser.add_argument("--rounds", type=int, default=None, help="how often each side is timed; default 8, quick 3")
    chosen = parser.parse_args()
    names, samples = (["CNN8"], QUICK) if chosen.quick else (["CNN8", "CNN32"], SAMPLES)
    rounds = chosen.rounds or (3 if chosen.quick else 8)
    rows = Rows("003", "bench_mc_dropout", chosen.out, chosen.seed)
    key = jax.random.key(chosen.seed)
    for name in names:
        sampling(rows, key, name, samples, rounds, chosen.torch_python)
    search(rows, MODELS, SAMPLES, rounds)


if __name__ == "__main__":
    main()
