"""Trains thousands of networks and keeps what each says in files, part by part."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dpaudit._engine.fingerprint import Identity, of_run, refuse_another
from dpaudit.cli.command import bars_on_terminal
from dpaudit.training.dropout import mc_dropout
from dpaudit.training.neighbouring import Neighbours
from experiments.paper003.bench import COUNTS, TEMPERATURES, Bench


class Arrays(Protocol):
    """A named tuple of arrays."""

    def _asdict(self) -> dict[str, Any]: ...


Kind = TypeVar("Kind", bound=Arrays)
BESIDE = ("identity", "seconds")  # what a file holds beside its arrays


class Shadows(NamedTuple):
    """Shadow models."""

    params: np.ndarray  # [n, d]


class Found(NamedTuple):
    """What the m networks of one data set say of its target."""

    member: np.ndarray  # [m] booleans, trained on D'
    deterministic: np.ndarray  # [m, k], logits without dropout
    samples: np.ndarray  # [m, T, k], logits under dropout
    params: np.ndarray  # [j, d], of the first networks


class Judged(NamedTuple):
    """The probabilities that j networks give n records which none was trained on."""

    deterministic: np.ndarray  # [j, n, k]
    first: np.ndarray  # [j, COUNTS, n, k], means of the first samples
    mean: np.ndarray  # [j, TEMPERATURES, n, k], of all T
    std: np.ndarray  # [j, TEMPERATURES, n, k]


def shadows(bench: Bench) -> Any:
    """Parameters of the shadow models, leaves [n, ...]."""
    start = bench.first(bench.key)
    run = bench.learner(len(bench.rows.shadow), bench.scale.steps)
    rows = bench.all_of(bench.rows.shadow)
    identity = of_run(run, key=bench.shadow_key, start=rows.present, data=rows, scale=bench.scale)
    file = bench.work / "shadows.npz"
    flat = kept(file, identity, lambda: Shadows(_flat(bench.shadows())), Shadows).params
    return jax.vmap(ravel_pytree(start)[1])(jnp.asarray(flat))


def found(bench: Bench, pair: Neighbours) -> Found:
    """Returns the networks' outputs of a data set; networks that are in a file are not trained again."""
    scale, run = bench.scale, bench.learner(bench.scale.records, bench.scale.steps)
    rows, image = pair.rows(bench.images, bench.labels), jnp.asarray(pair.image)
    own_key = jax.random.fold_in(bench.key, pair.number)
    coin_key, train_key, sample_key = jax.random.split(own_key, 3)
    coins = np.asarray(jax.random.bernoulli(coin_key, 0.5, (scale.trainings,)))
    train_keys, sample_keys = (jax.random.split(key, scale.trainings) for key in (train_key, sample_key))

    def whole(key: jax.Array, present: Any, given: Any) -> Any:
        """Trains one network and returns what it says: all that a file's content depends on."""
        _, train_key, sample_key = jax.random.split(key, 3)
        return bench.observe(sample_key, run(train_key, present, given[0]), given[1])

    identity = of_run(whole, key=own_key, start=rows.present, data=(rows, image), scale=scale)

    def train_some(some: slice) -> Found:
        present = jnp.ones((len(coins[some]), scale.records)).at[:, -1].set(coins[some])  # the target is the last row
        params = bench.together(run, (train_keys[some], present), shared=(rows,))
        deterministic, samples = bench.together(bench.observe, (sample_keys[some], params), shared=(image,))
        few = jax.tree.map(lambda leaf: leaf[: max(0, scale.judged - some.start)], params)
        return Found(*map(np.asarray, (coins[some], deterministic, samples, _flat(few))))

    parts = []
    with bars_on_terminal() as bars:
        task = None if bars is None else bars.add_task(f"data set {pair.number}", total=scale.trainings)
        for first in range(0, scale.trainings, scale.kept):
            some = slice(first, min(first + scale.kept, scale.trainings))
            file = bench.work / f"data-set-{pair.number}" / f"{first:05d}.npz"
            parts.append(kept(file, identity, lambda some=some: train_some(some), Found))
            if bars is not None and task is not None:
                bars.update(task, completed=some.stop)
    return Found(*map(np.concatenate, zip(*parts, strict=True)))


def judged(bench: Bench, params: np.ndarray) -> Judged:
    """Returns what the networks with these parameters say about the records that are left for it."""
    _, restore = ravel_pytree(bench.first(bench.key))
    images = jnp.asarray(bench.images[bench.evaluated])

    def look(key: jax.Array, flat: jax.Array, _: Any) -> tuple[jax.Array, ...]:
        own = restore(flat)
        plain = mc_dropout.predict(bench.network, own, images)
        logits = mc_dropout.sample(key, bench.network, own, images, samples=bench.scale.samples)
        probabilities = jax.nn.softmax(logits)
        first = jnp.stack([probabilities[:count].mean(axis=0) for count in COUNTS])
        cooled = [jax.nn.softmax(logits / temperature) for temperature in TEMPERATURES]
        mean, std = (jnp.stack([of(p, axis=0) for p in cooled]) for of in (jnp.mean, jnp.std))
        return jax.nn.softmax(plain), first, mean, std

    keys = jax.random.split(jax.random.fold_in(bench.key, 0), len(params))
    identity = of_run(look, key=keys[0], start=jnp.asarray(params[0]), data=(), scale=bench.scale)
    looked = jax.jit(look)

    def look_all() -> Judged:
        each = [looked(key, jnp.asarray(own), ()) for key, own in zip(keys, params, strict=True)]
        return Judged(*(np.stack(leaves) for leaves in zip(*each, strict=True)))

    return kept(bench.work / "judged.npz", identity, look_all, Judged)


def kept(file: Path, identity: Identity, make: Callable[[], Kind], kind: Callable[..., Kind]) -> Kind:
    """Returns what ``make`` returns, from the file if it exists; else it is made, and the file appears as a whole and
    tells how many ``seconds`` that took.

    Args:
      file: ``.npz``.
      identity: of what is made, kept beside it.
      make: returns a ``kind``.
      kind: a named tuple of arrays.

    Raises:
      InputError: a file of another run.
    """
    if file.exists():
        with np.load(file) as arrays:
            refuse_another(identity, json.loads(str(arrays["identity"])), "experiment", file.name)
            return kind(**{name: arrays[name] for name in arrays.files if name not in BESIDE})
    began = time.perf_counter()
    made = make()
    took = time.perf_counter() - began
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    with partial.open("wb") as stream:
        np.savez(stream, identity=json.dumps(identity), seconds=took, **made._asdict())
    os.replace(partial, file)
    return made


def spent(work: Path) -> float:
    """Returns how many seconds the files of a folder took to make; NaN where one does not tell."""
    total = 0.0
    for file in work.rglob("*.npz"):
        with np.load(file) as arrays:
            total += float(arrays["seconds"]) if "seconds" in arrays else np.nan
    return total


def _flat(params: Any) -> np.ndarray:
    """Leaves [n, ...] as [n, d]."""
    return np.asarray(jax.vmap(lambda own: ravel_pytree(own)[0])(params))
