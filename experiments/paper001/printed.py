"""Trains with the paper's parameters as printed, beside ours: what the differences are worth.

    python -m experiments.paper001.printed                      # Cancer, ten trials, and MNIST in part
    python -m experiments.paper001.printed --part mnist         # this part: 20 steps, and thirty epochs
    python -m experiments.paper001.printed --part truncation    # and the owner's sum truncated
    python -m experiments.paper001.printed --quick --out DIR    # one trial of ten epochs of Cancer

As printed: N = 16, so shares of 17 bits; line 6 of Algorithm 1, which rounds the owner's sum once; noise from a table
of normal values, added after the reduction (line 5 of Algorithm 2), so that a release needs more bits than the ring
has. A circuit that adds it within the ring is beside it. Line 6 does not say how; Section 5.4.1 speaks of bits cut
off, so beside rounding to the nearest whole number are truncation toward zero and bits dropped, which rounds down in
two's complement. Ours: 25 bits; every example rounded toward zero, without
which one example moves the sum by more than its clip norm; binomial noise. The owner's sum rounded once is not private
as accounted (paper001.audit shows it).

The text calls the ninety bits of Cancer its own and names TAPAS, whose public code cuts each feature into three bins
of equal width; ours are thirds of the training records. Of the network it says ninety inputs, a dense layer and two
outputs: 182 parameters in one reading, 8,372 with a hidden layer of ninety, which TAPAS's code has.

Expect on MNIST that the owner's sum at 17 bits loses nothing where it is rounded to the nearest, tenths of a point
where it is truncated toward zero and anything from a few to tens of points, by the trial, where bits are dropped, and
that examples rounded at 17 bits lose most within the few steps that they are trained for.
"""

import hashlib
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from sklearn.preprocessing import KBinsDiscretizer

from dpaudit import data
from dpaudit.secure.crypto.randomness import SEED_BYTES, Source, Stream
from dpaudit.secure.crypto.shares import smod
from dpaudit.secure.noise import gaussian, lookup
from dpaudit.secure.protocol import schemes
from dpaudit.secure.protocol.schemes import Scheme, Step
from experiments.common import Rows, options
from experiments.paper001 import tasks
from experiments.paper001.networks import CancerNetwork, sign
from experiments.paper001.runs import TOGETHER, learner_of, worth
from experiments.paper001.tasks import CLIP_NORM, DELTA, EPSILONS, OWNERS, TASKS, Records

PAPER_BITS, OUR_BITS = 17, 25
TRIALS = 10
SHORT, WHOLE = 20, 3  # steps of MNIST; trials of its whole training
MEASURES = ("accuracy", "balanced_accuracy")

# The owners' clipped gradients [n, d], or their sums [1, d] -> the noisy sum of all.
Release = Callable[[list[np.ndarray], Source], np.ndarray]


class HiddenCancerNetwork(nn.Module):
    """Ninety bits, ninety signs, two classes: 8,372 parameters, the other reading of Section 5.2.4."""

    @nn.compact
    def __call__(self, bits: jax.Array) -> jax.Array:
        return nn.Dense(2)(sign(nn.Dense(90)(bits)))


class Arm(NamedTuple):
    """One setting."""

    data: str  # of TASKS
    bins: str  # of BINS; "" for MNIST
    parameters: int  # which reading of the network
    arithmetic: str  # of ARITHMETIC
    scheme: str  # "non-private", "MPC only", "SPGC" or "LDP"
    epsilon: float | None  # of a step by the paper's rule


def equal_width(train: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    """Which of three bins of equal width of the training records' range each feature lies in, one-hot, as TAPAS."""
    bins: Any = KBinsDiscretizer(3, encode="onehot-dense", strategy="uniform")
    return np.asarray(bins.fit(train).transform(inputs), np.float32)


BINS = {"equal width": equal_width, "thirds": tasks.thirds}
NETWORKS = {182: CancerNetwork(), 8_372: HiddenCancerNetwork()}


def as_printed(
    step: Step, noisy: bool, *, within: bool = False, whole: Callable[[np.ndarray], np.ndarray] = np.rint
) -> Release:
    """Algorithms 1 and 2 with N = 16: the owner's sum rounded once, reduced modulo 2^17, and noise from a table.

    Line 5 of Algorithm 2 adds the noise to what is reduced; ``within`` reduces the noisy sum instead, as a circuit
    does that has no more bits than the ring. ``whole`` makes the owner's sum whole, in units of its last bit.
    """
    half = 1 << (PAPER_BITS - 1)
    unit = step.examples * step.clip_norm / (half - 1)
    values = lookup.table(step.noise_multiplier * step.clip_norm / unit) if noisy else np.zeros(1 << 16, np.int64)

    def release(owners: list[np.ndarray], source: Source) -> np.ndarray:
        total = sum(whole(own.sum(axis=0, dtype=np.float64) / unit).astype(np.int64) for own in owners)
        seeds = np.frombuffer(source(4 * owners[0].shape[1]), np.uint16).reshape(2, -1)
        noise = lookup.from_seeds(values, *seeds)
        return unit * (smod(total + noise, half) if within else smod(total, half) + noise)  # pyright: ignore

    return release


def of_chase(step: Step) -> Release:
    """Chase et al.: sums modulo twice m C, not scaled to whole numbers, so that +m C and -m C are one value."""
    half = step.examples * step.clip_norm
    std = step.noise_multiplier * step.clip_norm

    def release(owners: list[np.ndarray], source: Source) -> np.ndarray:
        total = np.sum([own.sum(axis=0, dtype=np.float64) for own in owners], axis=0)
        rng = np.random.Generator(np.random.Philox(key=np.frombuffer(source(16), np.uint64)))
        return (total + half) % (2 * half) - half + std * rng.standard_normal(total.shape)

    return release


def of_scheme(scheme: Scheme) -> Release:
    """A scheme of :mod:`dpaudit.secure.protocol.schemes`, whose examples are rounded one by one."""

    def release(owners: list[np.ndarray], source: Source) -> np.ndarray:
        sums = [schemes.contribution(scheme, own) for own in owners]
        return schemes.release(scheme, sums, scheme.noise(len(sums[0]), source))

    return release


def release_of(arm: Arm, step: Step) -> Release:
    """Returns how an arm releases the sum of a step."""
    if arm.scheme in ("non-private", "LDP"):
        return of_scheme((schemes.ldp if arm.scheme == "LDP" else schemes.non_private)(step))
    if arm.arithmetic == CHASE:
        return of_chase(step)
    if arm.arithmetic in ("as printed", WITHIN, *TRUNCATING):
        whole = TRUNCATING.get(arm.arithmetic, np.rint)
        return as_printed(step, arm.scheme == "SPGC", within=arm.arithmetic == WITHIN, whole=whole)
    bits = PAPER_BITS if arm.arithmetic == "examples rounded, 17 bits" else OUR_BITS
    make = schemes.spgc if arm.scheme == "SPGC" else schemes.mpc_only
    return of_scheme(make(step._replace(ring_bits=bits)))


def records(arm: Arm, data_dir: str | None, trial: int) -> tuple[Records, Records]:
    """Returns training and test records of a trial."""
    if not arm.bins:
        return tasks.load(arm.data, data_dir, trial)
    raw = _raw(data_dir, trial)
    return tuple(Records(BINS[arm.bins](raw[0].inputs, each.inputs), each.labels) for each in raw)  # pyright: ignore


def _raw(data_dir: str | None, trial: int) -> tuple[Records, Records]:
    """Cancer's features as they are, split as for :func:`tasks.load`."""
    from sklearn.model_selection import train_test_split

    sets = [data.load("breast_cancer", split=split, data_dir=data_dir) for split in data.SPLITS]
    train, test = (Records(each.inputs, each.labels) for each in sets)
    if trial:
        rows, labels = (np.concatenate(both) for both in zip(train, test, strict=True))
        split: Any = train_test_split(rows, labels, train_size=len(train.labels), stratify=labels, random_state=trial)
        train, test = Records(split[0], split[2]), Records(split[1], split[3])
    return train, test


def play(arm: Arm, trial: int, epochs: int, steps: int | None, data_dir: str | None, seed: int) -> dict[str, float]:
    """Trains once; returns what the network is worth at the end, in percent."""
    task, (train, test) = TASKS[arm.data], records(arm, data_dir, trial)
    model = NETWORKS[arm.parameters] if arm.bins else task.model
    learn = learner_of(model, task.learning_rate, train.inputs.shape[1:])
    multiplier = gaussian.classical(epsilon=arm.epsilon, delta=DELTA) if arm.epsilon else 0.0
    release = release_of(arm, Step(OWNERS, task.examples, CLIP_NORM, multiplier))
    found_by = _gradients if arm.arithmetic in EACH_ROUNDED else _sums
    rng = np.random.default_rng([seed, trial])
    rows = len(train.labels) // OWNERS
    owned = rng.permutation(len(train.labels))[: rows * OWNERS].reshape(OWNERS, rows)
    params = learn.first(jax.random.fold_in(jax.random.key(seed), trial))
    moments, each, done = learn.moments(params), task.examples // OWNERS, 0
    for epoch in range(epochs):
        owned = rng.permuted(owned, axis=1)
        for at in range(0, rows - each + 1, each):
            gradients = [found_by(learn, params, train, own[at : at + each]) for own in owned]
            secret = hashlib.sha256(repr((seed, trial, arm, epoch, at)).encode()).digest()[:SEED_BYTES]
            mean = release(gradients, Stream(secret).draw) / task.examples
            params, moments = learn.update(params, moments, jnp.asarray(mean, jnp.float32))
            done += 1
            if done == steps:
                break
        if done == steps:
            break
    found = worth(np.asarray(learn.probabilities(params, jnp.asarray(test.inputs)), np.float64), test.labels)
    prior = np.bincount(test.labels).max() / len(test.labels)
    return {name: 100 * found[name] for name in MEASURES} | {"prior": 100 * float(prior), "steps": float(done)}


def _gradients(learn: Any, params: jax.Array, train: Records, rows: np.ndarray) -> np.ndarray:
    size = next(n for n in range(min(TOGETHER, len(rows)), 0, -1) if len(rows) % n == 0)
    parts = rows.reshape(-1, size)
    return np.concatenate(
        [np.asarray(learn.clipped(params, (train.inputs[part], train.labels[part]))) for part in parts]
    )


def _sums(learn: Any, params: jax.Array, train: Records, rows: np.ndarray) -> np.ndarray:
    return np.asarray(learn.total(params, (train.inputs[rows], train.labels[rows])))[None]


EACH_ROUNDED = ("examples rounded, 17 bits", "ours")  # needs every example's gradient; the others only their sums
REAL = "real numbers"  # the arithmetic of schemes without shares
CHASE = "Chase et al."
WITHIN = "noise within the ring"
TRUNCATING = {"as printed, toward zero": np.trunc, "as printed, bits dropped": np.floor}


def arms_of_cancer() -> list[Arm]:
    """Every scheme with equal width, both readings of the network; what thirds and our arithmetic change."""
    noisy = [(scheme, epsilon) for scheme in ("SPGC", "LDP") for epsilon in EPSILONS]
    every, shared = [("non-private", None), ("MPC only", None), *noisy], [("MPC only", None), *noisy[:3]]

    def of(bins: str, parameters: int, arithmetic: str, schemes: list[tuple[str, float | None]]) -> list[Arm]:
        return [
            Arm("Cancer", bins, parameters, arithmetic if (name, epsilon) in shared else REAL, name, epsilon)
            for name, epsilon in schemes
        ]

    found = of("equal width", 182, "as printed", every) + of("thirds", 182, "as printed", every)
    found += of("equal width", 182, "ours", shared) + of("thirds", 182, "ours", shared)
    return found + of("equal width", 8_372, "as printed", every) + of("thirds", 8_372, "as printed", every)


def arms_of_chase() -> list[Arm]:
    """The scheme whose flaw the paper finds: without noise, and with the widest of Table 1."""
    return [
        Arm("Cancer", "equal width", 182, CHASE, *each) for each in (("MPC only", None), ("SPGC", 8.0), ("SPGC", 0.01))
    ] + [Arm("Cancer", "equal width", 182, how, "SPGC", 0.01) for how in ("as printed", WITHIN, "ours")]


def flaw(rows: Rows) -> None:
    """Adds what a coordinate decodes to on which all examples of a batch agree: +m C, or the opposite."""
    step = Step(OWNERS, 30, CLIP_NORM, 0.0)
    all_agree = [np.full((10, 1), CLIP_NORM) for _ in range(OWNERS)]
    for name, release in ((CHASE, of_chase(step)), ("as printed", as_printed(step, False))):
        found = float(release(all_agree, Stream(bytes(SEED_BYTES)).draw)[0])
        rows.add("flaw", {"arithmetic": name, "examples": 30}, found, scale="computed: 30 gradients of +1 each")
    rows.finish_part("flaw")


def arms_of_mnist() -> list[Arm]:
    """What rounding costs without noise."""
    mnist = partial(Arm, "MNIST", "", 21_258)
    how = ("as printed", "examples rounded, 17 bits", "ours")
    return [mnist(REAL, "non-private", None), *(mnist(each, "MPC only", None) for each in how)]


def arms_of_truncation() -> list[Arm]:
    """The same as printed with the owner's sum truncated, in both readings of what cutting bits off means."""
    return [Arm("MNIST", "", 21_258, each, "MPC only", None) for each in TRUNCATING]


def add(rows: Rows, arms: list[Arm], trials: int, epochs: int, steps: int | None, data_dir: str | None) -> None:
    """Adds the rows of these arms."""
    for arm in arms:
        found = [play(arm, trial, epochs, steps, data_dir, rows.seed) for trial in range(trials)]
        scale = f"{found[0]['steps']:,.0f} steps of {TASKS[arm.data].examples:,} records, {trials} trials"
        setting = arm._asdict() | {"steps": int(found[0]["steps"])}
        for name in MEASURES:
            values = [each[name] for each in found]
            row = rows.add(f"printed_{name}", setting, float(np.mean(values)), (min(values), max(values)), scale=scale)
            row["prior"] = float(np.mean([each["prior"] for each in found]))
        print(f"{arm}: {np.mean([each['accuracy'] for each in found]):.1f}", flush=True)
        rows.finish_part(arm.data)


def priors(rows: Rows, data_dir: str | None) -> None:
    """Adds the share of the largest class among the test records of each data set."""
    for name in TASKS:
        shares = [100 * np.bincount(labels).max() / len(labels) for labels in _tested(name, data_dir)]
        scale = f"the test records of {len(shares)} trials"
        rows.add("prior", {"data": name}, float(np.mean(shares)), (min(shares), max(shares)), scale=scale)


def _tested(name: str, data_dir: str | None) -> list[np.ndarray]:
    return [tasks.load(name, data_dir, trial)[1].labels for trial in range(1 if name == "MNIST" else TRIALS)]


def arguments(given: list[str] | None = None) -> Namespace:
    """Parses the command line, or ``given``."""
    parser = options(__doc__ or "")
    parser.add_argument("--part", choices=list(PARTS), default=None, help="one part; rows of the others stay")
    parser.add_argument("--trials", type=int, default=TRIALS, help="of Cancer")
    return parser.parse_args(given)


REPRODUCIBLE = {"flaw": flaw}


def _of_part(part: str, row: dict[str, Any]) -> bool:
    if part in ("mnist", "truncation"):
        truncating = row["setting"].get("arithmetic") in TRUNCATING
        return row["setting"].get("data") == "MNIST" and row["quantity"] != "prior" and truncating == (part != "mnist")
    chase = [arm._asdict().items() for arm in arms_of_chase()]
    if part == "chase":
        return row["quantity"] == "flaw" or any(arm <= row["setting"].items() for arm in chase)
    return row["quantity"] == "prior" or any(
        arm._asdict().items() <= row["setting"].items() for arm in arms_of_cancer()
    )


def add_cancer(rows: Rows, chosen: Namespace) -> None:
    priors(rows, chosen.data_dir)
    add(rows, arms_of_cancer(), chosen.trials, TASKS["Cancer"].epochs, None, chosen.data_dir)


def add_chase(rows: Rows, chosen: Namespace) -> None:
    rows.run(flaw)
    add(rows, arms_of_chase(), chosen.trials, TASKS["Cancer"].epochs, None, chosen.data_dir)


def add_mnist(rows: Rows, chosen: Namespace) -> None:
    """Twenty steps of every way to round, then whole trainings of the two that the paper compares."""
    add(rows, arms_of_mnist(), 1, 1, SHORT, chosen.data_dir)
    add(rows, arms_of_mnist()[:2], WHOLE, TASKS["MNIST"].epochs, None, chosen.data_dir)


def add_truncation(rows: Rows, chosen: Namespace) -> None:
    add(rows, arms_of_truncation(), 1, 1, SHORT, chosen.data_dir)
    add(rows, arms_of_truncation(), WHOLE, TASKS["MNIST"].epochs, None, chosen.data_dir)


PARTS = {"cancer": add_cancer, "chase": add_chase, "mnist": add_mnist, "truncation": add_truncation}


def main() -> None:
    chosen = arguments()
    rows = Rows(
        "001",
        "spgc_printed",
        chosen.out,
        chosen.seed,
        keep=chosen.part is not None and (lambda row: not _of_part(chosen.part, row)),
    )
    if chosen.quick:
        add(rows, arms_of_cancer()[:5], 1, 10, None, chosen.data_dir)
        return
    for name, part in PARTS.items():
        if chosen.part in (None, name):
            part(rows, chosen)


if __name__ == "__main__":
    main()
