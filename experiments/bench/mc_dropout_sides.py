"""Computes what mc_dropout compares: ways to T dropout samples, what they cost at least, and thresholds by trial."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpaudit.auditing.bounds.estimate import epsilon_from_rates
from dpaudit.training.dropout import mc_dropout, membership
from dpaudit.training.windows import Conv
from experiments.bench.training_sides import DROPOUT_RATE, NETWORKS, Side, as_torch
from experiments.common import answering

PEER = Path(__file__).parent / "peers" / "torch_mc_dropout.py"
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


def gflop(name: str, images: int, samples: int) -> float:
    """Multiplications and additions, in 10^9."""
    before, behind = (sum(map(math.prod, products)) for products in PRODUCTS[name])
    return 2e-9 * images * (before + samples * behind)


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
    layer = Conv(n, (math.isqrt(k // channels),) * 2, padding="VALID")
    times, (init_key, input_key, key) = images * samples, jax.random.split(key, 3)
    at_once = _at_once(times, 4 * m * k)
    inputs = jax.random.normal(input_key, (at_once, *shape))
    params = layer.init(init_key, inputs[0])
    convolve = jax.jit(lambda params, inputs: jax.lax.map(partial(layer.apply, params), inputs, batch_size=FEW))
    rest = multiplied(key, Products(PRODUCTS[name].before, tuple(others)), images, samples)
    return lambda: rest() + [convolve(params, inputs) for _ in range(times // at_once)]


def _at_once(times: int, bytes_of_one: int) -> int:
    """A divisor of ``times``, so that they fit into the caches."""
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


class Torch(NamedTuple):
    """What a PyTorch process offers."""

    sides: dict[str, Side]
    settings: dict[str, dict[str, Any]]  # of its sides
    logits: Any = None  # [n, k], without dropout
    mean: Any = None  # [n, k], of its samples, of T as well
    variance: Any = None


@contextmanager
def torch(
    python: str | None, name: str, params: Any, images: Any, samples: int, threads: Sequence[int] = (1, 2)
) -> Iterator[Torch]:
    """A process of the interpreter ``python`` that times T samples of all images for every line it is sent.

    Args:
      python: an interpreter that has torch and opacus; None offers no sides, and says so.
      name: in ``NETWORKS``.
      params: its parameters.
      images: [n, h, w, c].
      samples: T.
      threads: a side for each number of them.
    """
    if python is None:
        print(f"{name}: no torch; name an interpreter that has it and opacus with --torch-python")
        yield Torch({}, {})
        return
    given = {"network": name, "weights": as_torch(params, NETWORKS[name]).tolist(), "dropout_rate": DROPOUT_RATE}
    given |= {"samples": samples, "threads": list(threads)}
    given |= {"images": np.moveaxis(np.asarray(images), -1, 1).tolist()}
    with answering([python, str(PEER)]) as ask:
        hello = ask(json.dumps(given))
        assert hello["parameters"] == NETWORKS[name].parameters
        told = (jnp.asarray(hello[name]) for name in ("logits", "mean", "variance"))
        yield Torch({side: partial(ask, side) for side in hello["settings"]}, hello["settings"], *told)


def brute_force(statistics: np.ndarray, member: np.ndarray, subset: Sequence[int], kind: str, delta: float) -> float:
    """The largest estimate of Eq. (7) over all combinations of thresholds out of the observed values and infinity."""
    counts = np.sum(~member), np.sum(member)
    combine = np.logical_and if kind == "and" else np.logical_or
    guesses = np.full((1, len(member)), kind == "and")
    for column in statistics[:, subset].T:
        above = column > np.unique([-np.inf, *column, np.inf])[:, None]
        guesses = combine(guesses[:, None], above).reshape(-1, len(member))
    wrong = (guesses & ~member).sum(axis=1), (~guesses & member).sum(axis=1)
    fpr, fnr = (np.maximum(count, membership.HALF) / most for count, most in zip(wrong, counts, strict=True))
    return float(epsilon_from_rates(fpr, fnr, delta).max())
