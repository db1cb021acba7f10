"""What bench_kernels counts: bytes that XLA's programs move and hold, their operations, and the least of each."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpaudit.kernels import philox
from dpaudit.kernels import randomized_trial as trial
from dpaudit.training import models, per_example
from dpaudit.training.dp_sgd import add_noise
from dpaudit.training.dropout import mc_dropout
from dpaudit.training.dropout.mc_dropout import cut
from experiments.bench_federated_sides import EXAMPLES
from experiments.bench_training_sides import CLIP_NORM, NETWORKS, batch
from experiments.common import Rows

BANDWIDTH, ARITHMETIC = 3.35e12, 60e12  # of an H100: bytes, float32 operations a second
ROOFLINE = "roofline: 3.35 TB/s, 60 TFLOP/s"
EXAMPLES_AT_ONCE = {"CNN28": 8, "CNN32": 2}  # and twice as many, which a CPU still takes as one part
SAMPLES_AT_ONCE = 4
FLOAT = 4  # bytes


class Counted(NamedTuple):
    """Of one program, or of what each of its units adds."""

    moved: float  # bytes that its steps, as XLA fused them, read and write
    held: float  # bytes of temporaries
    operations: float  # before XLA optimises

    def microseconds(self) -> float:
        """On the roofline of an H100."""
        return 1e6 * max(self.moved / BANDWIDTH, self.operations / ARITHMETIC)


def counted(run: Callable[..., Any], *arguments: Any) -> Counted:
    """As XLA counts; the body of a loop once, so these programs have none."""
    lowered = jax.jit(run).lower(*arguments)
    compiled, before = lowered.compile(), lowered.cost_analysis()
    cost, plan = compiled.cost_analysis(), compiled.memory_analysis()
    assert isinstance(before, dict)
    assert cost is not None
    assert plan is not None
    return Counted(cost["bytes accessed"], plan.temp_size_in_bytes, before["flops"])


def slope(run: Callable[..., Any], of: Callable[[int], tuple[Any, ...]], few: int, many: int) -> Counted:
    """What one more of n adds, for ``run(*of(n))``."""
    ends = [counted(run, *of(n)) for n in (few, many)]
    return Counted(*[(b - a) / (many - few) for a, b in zip(*ends, strict=True)])


def held_by_kernel(sums: int, dimension: int) -> float:
    """Bytes of a trial's key, and of the parts of its sums before they are added."""
    tiles = -(-dimension // (2 * trial.WORDS * trial.LANES * trial.GPU_ROWS))
    return FLOAT * (4 + sums * (tiles + 1))


def candidates(rows: Rows, key: jax.Array, *, quick: bool) -> None:
    """For every other kernel that was thought of: the program now, and with that part at its least."""
    for name in ["CNN28"] if quick else ["CNN28", "CNN32"]:
        now, least = clipped(key, name)
        _add(rows, "clip and accumulate", name, "example", now, least, "at least the plain gradient's")
    now, least = client_noise(key)
    _add(
        rows, "per-client noise and mean", "CNN28", f"client of {EXAMPLES} examples", now, least, "noise never written"
    )
    for name in ["CNN8"] if quick else ["CNN8", "CNN32"]:
        now, least = last_layers(key, name)
        _add(
            rows, "last dense layers of dropout samples", name, "sample", now, least, "dense layers that cost nothing"
        )
    rows.finish_part("candidates")


def clipped(key: jax.Array, name: str) -> tuple[Counted, Counted]:
    """Of one example: the clipped sum; the plain gradient, of which no clipping is rid."""
    network, n = NETWORKS[name], EXAMPLES_AT_ONCE[name]
    given, loss = batch(key, network, 2 * n), models.cross_entropy(network.ours)

    def plain(params: Any, images: Any, labels: Any) -> Any:
        return jax.grad(lambda p: jnp.sum(jax.vmap(loss, (None, 0, 0))(p, images, labels)))(params)

    def of(n: int) -> tuple[Any, ...]:
        return given.params, given.images[:n], given.labels[:n]

    return slope(partial(_clipped, loss, 1), of, n, 2 * n), slope(plain, of, n, 2 * n)


def client_noise(key: jax.Array) -> tuple[Counted, Counted]:
    """Of one client: its clipped gradient and noise of its own; the same with noise that is added as it is drawn."""
    network = NETWORKS["CNN28"]
    given, loss = batch(key, network, 4 * EXAMPLES), models.cross_entropy(network.ours)

    def of(n: int) -> tuple[Any, ...]:
        return given.params, given.images[: n * EXAMPLES], given.labels[: n * EXAMPLES]

    gradient = slope(partial(_clipped, loss, EXAMPLES), of, 2, 4)
    noise = counted(lambda key, total: add_noise(key, total, 1.0), philox.from_key(key), given.params)
    together = gradient.operations + noise.operations
    summed = gradient.moved + 2 * FLOAT * network.parameters  # the running total, read and written
    return Counted(gradient.moved + noise.moved, noise.held, together), Counted(summed, 0, together)


def last_layers(key: jax.Array, name: str) -> tuple[Counted, Counted]:
    """Of one sample: all behind the first dropout; its wide part alone, without the one that has the dense layers."""
    network = NETWORKS[name]
    given = batch(key, network, 1)
    predict = mc_dropout.probabilities(network.ours)
    parts = cut(predict, given.params, given.images[0], key)
    shared = parts.shared([*jax.tree.leaves(given.params), given.images[0]])
    keys = jax.random.split(key, 2 * SAMPLES_AT_ONCE)

    def wide(shared: Any, keys: jax.Array) -> Any:
        return jax.vmap(lambda one: parts.wide.run(shared | {parts.x: one}))(keys)

    def all_of(shared: Any, keys: jax.Array) -> Any:
        return parts.outputs(shared, keys, len(keys))

    ends = SAMPLES_AT_ONCE, 2 * SAMPLES_AT_ONCE
    whole, before = (slope(run, lambda n: (shared, keys[:n]), *ends) for run in (all_of, wide))
    return whole, before


def _clipped(loss: Callable[..., Any], group: int, params: Any, images: Any, labels: Any) -> Any:
    return per_example.clipped_sum(
        lambda p, e: loss(p, *e), params, (images, labels), clip_norm=CLIP_NORM, group_size=group
    )[0]


def _add(rows: Rows, kernel: str, network: str, unit: str, now: Counted, least: Counted, what: str) -> None:
    setting = {"kernel": kernel, "network": network, "unit": unit}
    for side, found in (("XLA", now), (what, least)):
        own = setting | {"side": side}
        rows.add("bytes_moved", own, found.moved, scale="counted by XLA for this device")
        rows.add("operations", own, found.operations, scale="counted by XLA, unoptimised")
        rows.add("h100_microseconds", own, found.microseconds(), scale=ROOFLINE)
    gain = now.microseconds() / least.microseconds()
    rows.add("most_gain", setting | {"least": what}, gain, scale=ROOFLINE)
    print(f"{kernel}, {network}: at most {gain:.2f} times as fast, {what}", flush=True)
