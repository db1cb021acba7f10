"""Trains networks at the paper's own scale, each with 1,000 targets that are in its data by a coin of their own.

The paper has a network for each decision about one target. Here one network decides about all of its targets: a tenth
of the trainings of one data set then gives ten times as many decisions, each for a coin that nothing else depends on.
Whoever looks sees what the network publishes, Section 3.3: one prediction, or T samples.
"""

import json
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy import stats

from dpaudit._engine.fingerprint import Identity, digest, of_run, raw
from dpaudit.training.dp_sgd import fit
from dpaudit.training.dropout import mc_dropout, publishing
from dpaudit.training.dropout.publishing import MeanStd
from dpaudit.training.neighbouring import Rows, adversarial, losses
from dpaudit.training.sampling import poisson
from experiments.common import refuse_stale
from experiments.paper003.bench import COUNTS, Bench
from experiments.paper003.questions import UNITS
from experiments.paper003.runs import Shadows, kept

NETWORKS = 10
TARGETS = 1_000  # of a network
KINDS = ("random", "random, perturbed", "hardest", "hardest, perturbed")  # data sets 1 to 4, as many targets each
SHADOWS = 2  # on other records; the paper has ten
FEW = 50  # samples of each of all other records, for the accuracy at up to so many
WHOLE = 1_000  # of the other records, with all T samples
EVERY = 500  # steps from one checkpoint to the next
SHADOW_SAMPLES = 100  # of each target by each shadow model
LOOK = 100  # records at a time
DIGITS = 4  # of a statistic, after the point
ERRORS = 1.96  # standard errors


class Targets(NamedTuple):
    """The records of D' whose membership a coin decides."""

    places: np.ndarray  # [m], in D'
    images: np.ndarray  # [m, ...], half of them perturbed
    kinds: np.ndarray  # [m], indices of KINDS


def shadows(bench: Bench) -> Any:
    """Returns the parameters of shadow models, leaves [SHADOWS, ...], trained one after the other and kept."""
    learn, rows = bench.learner(len(bench.rows.shadow), steps_of_shadows(bench)), bench.all_of(bench.rows.shadow)
    identity = of_run(learn, key=bench.shadow_key, start=rows.present, data=rows, scale=bench.scale)

    def train_one(key: jax.Array) -> np.ndarray:
        return np.asarray(ravel_pytree(jax.jit(learn)(key, rows.present, rows))[0])

    def train_all() -> Shadows:
        return Shadows(np.stack([train_one(key) for key in jax.random.split(bench.shadow_key, SHADOWS)]))

    flat = kept(bench.work / "shadows.npz", identity, train_all, Shadows).params
    return jax.vmap(ravel_pytree(bench.first(bench.key))[1])(jnp.asarray(flat))


def steps_of_shadows(bench: Bench) -> int:
    """Returns as many epochs as the networks have, of fewer records."""
    return bench.scale.epochs * len(bench.rows.shadow) // bench.scale.batch_size


def choose(bench: Bench, shadows: Any, targets: int = TARGETS) -> Targets:
    """Returns the targets of all networks, kept: on an accelerator another process would round their losses
    differently, and so perturb other pixels."""
    members = bench.rows.members

    def step(_: jax.Array, shadows: Any, records: tuple[jax.Array, jax.Array]) -> jax.Array:
        return adversarial(bench.loss, shadows, records[0][0], records[1][0])

    records = jnp.asarray(bench.images[members]), jnp.asarray(bench.labels[members])
    identity = of_run(step, key=bench.target_key, start=shadows, data=records, targets=targets)
    return kept(bench.work / "targets.npz", identity, lambda: chosen(bench, shadows, targets), Targets)


def chosen(bench: Bench, shadows: Any, targets: int) -> Targets:
    """Draws random targets and takes the hardest ones by the shadow models' losses; half of each are perturbed."""
    each, members = targets // len(KINDS), bench.rows.members
    found = losses(bench.loss, shadows, bench.images, bench.labels, members).mean(axis=0)
    hardest = np.argsort(-found, kind="stable")[: 2 * each]
    others = np.setdiff1d(np.arange(len(members)), hardest)
    draw_key, order_key = jax.random.split(bench.target_key)
    drawn = np.asarray(jax.random.choice(draw_key, others, (2 * each,), replace=False))
    places = np.concatenate([drawn, np.asarray(jax.random.permutation(order_key, hardest))])
    kinds = np.repeat(np.arange(len(KINDS)), each)
    images = bench.images[members[places]].copy()
    moved = kinds % 2 == 1

    def perturb(given: tuple[jax.Array, jax.Array]) -> jax.Array:
        return adversarial(bench.loss, shadows, *given)

    labels = jnp.asarray(bench.labels[members[places]])
    images[moved] = np.asarray(jax.lax.map(perturb, (jnp.asarray(images[moved]), labels[moved])))
    return Targets(places, images, kinds)


def network(bench: Bench, number: int, targets: Targets, progress: Callable[[int], None]) -> dict[str, Any]:
    """Returns what one network says, from its file or trained; a killed training goes on from its checkpoint."""
    coin_key, init_key, train_key, look_key = jax.random.split(jax.random.fold_in(bench.key, number), 4)
    member = np.asarray(jax.random.bernoulli(coin_key, 0.5, targets.places.shape))
    rows, identity = rows_of(bench, targets, member), identity_of(bench, targets)
    file = bench.work / f"network-{number}.json"
    if file.exists():
        record = json.loads(file.read_text())
        refuse_stale(record, identity, file)
        return record
    params, hours = trained(bench, init_key, train_key, rows, f"network-{number}", progress)
    record = {"network": number, "identity": identity, "member": "".join("01"[int(coin)] for coin in member)}
    record |= {"targets": seen(bench, look_key, params, targets, samples=bench.scale.samples)}
    record |= useful(bench, look_key, params) | {"cpu_hours": hours}
    file.write_text(json.dumps(record))
    return record


def trained(
    bench: Bench, init_key: jax.Array, train_key: jax.Array, rows: Rows, name: str, progress: Callable[[int], None]
) -> tuple[Any, float]:
    """Returns a network's parameters, and the CPU hours of its training, which goes on from its checkpoint."""
    scale, before = bench.scale, time.process_time()

    def spent(_: Any) -> dict[str, float]:
        nonlocal before
        before, since = time.process_time(), before
        return {"cpu_hours": (before - since) / 3600}

    fitted = fit(
        train_key, bench.trainer(), bench.first(init_key), rows, poisson(scale.records, scale.batch_size), scale.steps,
        every=EVERY, checkpoint=bench.work / name, evaluate=spent, progress=progress,
    )  # fmt: skip
    return fitted.state.params, float(f"{fitted.evaluations['cpu_hours'].sum():.3g}")


def rows_of(bench: Bench, targets: Targets, member: np.ndarray) -> Rows:
    """Returns D' with the targets' images in it and those absent whose coins are 0."""
    rows = bench.all_of(bench.rows.members)
    images, labels = rows.records
    images = images.at[targets.places].set(targets.images)
    return Rows((images, labels), rows.present.at[targets.places].set(member.astype(np.float32)))


def identity_of(bench: Bench, targets: Targets) -> Identity:
    """Identifies the program, the data and the targets of all networks, whatever their numbers."""
    learn, rows = bench.learner(bench.scale.records, bench.scale.steps), bench.all_of(bench.rows.members)
    found = of_run(learn, key=bench.key, start=rows.present, data=rows, scale=bench.scale)
    return found | {"targets": digest([*map(raw, targets)])}


def seen(bench: Bench, key: jax.Array, params: Any, targets: Targets, *, samples: int) -> dict[str, list[float]]:
    """Returns each target's probability of its class, without dropout and under it: the mean of the first samples, and
    standard deviation, minimum and maximum of all."""
    labels = bench.labels[bench.rows.members[targets.places]]
    images = jnp.asarray(targets.images)
    found: dict[str, list[np.ndarray]] = {}
    for part in parts_of(len(labels)):
        own = labels[part]
        own_key = jax.random.fold_in(key, part.start)
        drawn = mc_dropout.sample(own_key, bench.probabilities, params, images[part], samples=samples)
        p = np.asarray(drawn, np.float64)[:, np.arange(len(own)), own]
        told = {f"mean of {count}": p[:count].mean(axis=0) for count in COUNTS if count < samples}
        told["mean"] = p.mean(axis=0)
        told |= {"std": p.std(axis=0), "min": p.min(axis=0), "max": p.max(axis=0)}
        plain = np.asarray(mc_dropout.predict(bench.probabilities, params, images[part]), np.float64)
        told["deterministic"] = plain[np.arange(len(own)), own]
        for name, values in told.items():
            found.setdefault(name, []).append(values)
    return {name: _short(np.concatenate(values)) for name, values in found.items()}


def references(bench: Bench, shadows: Any, targets: Targets) -> list[dict[str, list[float]]]:
    """Returns what each shadow model says about the targets, with fewer samples; kept in a file."""
    file, identity = bench.work / "references.json", identity_of(bench, targets)
    if file.exists():
        record = json.loads(file.read_text())
        refuse_stale(record, identity, file)
        return record["shadows"]
    keys = jax.random.split(jax.random.fold_in(bench.shadow_key, 1), SHADOWS)
    each = (jax.tree.map(lambda leaf, i=i: leaf[i], shadows) for i in range(SHADOWS))
    told = [seen(bench, key, own, targets, samples=SHADOW_SAMPLES) for key, own in zip(keys, each, strict=True)]
    file.write_text(json.dumps({"shadows": told, "identity": identity}))
    return told


def _short(values: np.ndarray) -> list[float]:
    """Significant digits, as a committed row holds them."""
    return [float(f"{value:.{DIGITS}g}") for value in values]


def interval(each: Sequence[float], judged: int) -> tuple[float, float, float]:
    """Returns the mean accuracy of networks, and the ends of its 95% interval: by the number of records judged and, of
    several networks, by how these differ, of which a few tell little (Student's law)."""
    values = np.array(each)
    middle = float(values.mean())
    error = ERRORS * math.sqrt(max(middle * (1 - middle), 0.0) / judged)
    if len(values) > 1:
        error = math.hypot(error, float(stats.t.ppf(0.975, len(values) - 1)) * values.std(ddof=1) / len(values) ** 0.5)
    return middle, middle - error, middle + error


def parts_of(count: int) -> list[slice]:
    return [slice(at, min(at + LOOK, count)) for at in range(0, count, LOOK)]


def useful(bench: Bench, key: jax.Array, params: Any) -> dict[str, Any]:
    """Returns the accuracy on records that the network was not trained on: of all of them for one prediction and the
    mean of few samples, and of ``WHOLE`` of them for all T, as it is and rounded."""
    others = np.setdiff1d(np.arange(len(bench.labels)), bench.rows.members)
    few = tuple(count for count in COUNTS if count <= FEW)
    right: dict[str, list[tuple[float, int]]] = {}

    def add(name: str, published: Any, labels: np.ndarray) -> None:
        judged = publishing.accuracy(published, labels)
        right.setdefault(name, []).append((judged.accuracy, len(labels)))
        right.setdefault(f"{name}, no label", []).append((judged.undecided, len(labels)))

    for part in parts_of(len(others)):
        rows = others[part]
        images, labels, own = jnp.asarray(bench.images[rows]), bench.labels[rows], jax.random.fold_in(key, part.start)
        add("deterministic", np.asarray(mc_dropout.predict(bench.probabilities, params, images)), labels)
        whole = part.start < WHOLE
        samples = mc_dropout.sample(
            own, bench.probabilities, params, images, samples=bench.scale.samples if whole else FEW
        )
        p = np.asarray(samples)
        for count in few:
            add(f"mean of {count}", p[:count].mean(axis=0), labels)
        if whole:
            published = MeanStd(p.mean(axis=0), p.std(axis=0))
            add("mean of all", published.mean, labels)
            for unit in UNITS:
                add(f"rounded to {unit}", publishing.quantise(published, unit).mean, labels)
    means = {name: sum(value * n for value, n in each) / sum(n for _, n in each) for name, each in right.items()}
    judged = {"judged": len(others), "judged_whole": min(WHOLE, len(others))}
    return {"utility": {name: float(f"{value:.6g}") for name, value in means.items()}} | judged
