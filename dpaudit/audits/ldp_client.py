"""Audits the randomizer of a client of federated learning: every craft setting and epsilon (paper 000, Section 6)."""

import importlib.metadata
import os
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh
from jax.tree_util import Partial

from dpaudit import _validate
from dpaudit._engine.checkpoint import Checkpoint
from dpaudit._engine.fingerprint import digest, raw, text
from dpaudit._engine.sharding import several_processes
from dpaudit._version import __version__
from dpaudit.auditing.result import json_number
from dpaudit.audits import client_row, craft, engines, randomizers
from dpaudit.audits.randomizers import Randomizer
from dpaudit.data import Dataset
from dpaudit.training import models

ACCESS = {
    "benign": "nothing: two of the client's own images",
    "label_flip": "the labels of the client's images",
    "gradient_flip": "the client's gradient",
    "collusion": "the client's gradient and the server's model",
    "dummy": "the client's gradient, made up without data",
}
VARIANTS = {"likeliest_flip": "the labels of the client's images, chosen by the server's model"}
COUNTER_EXAMPLES = {
    "zero_against_large": "a zero gradient against a large one (Section 4.1)",
    "watermark": "a zero gradient against one marked coordinate (Section 4.1)",
}
CRAFTS = (*ACCESS, *VARIANTS, *COUNTER_EXAMPLES)
WITHOUT_DATA = ("dummy", *COUNTER_EXAMPLES)
ENGINES = ("full", "plane", "exact", "kernel")
READINGS = ("fresh", "fixed")
COLLUSION_STEPS, TRAINED_LABEL = 200, 0  # steps and the only label of the malicious server's training
PRETRAINING_STEPS, CLIP_NORM = 100, 0.2  # not in the paper; values at which a sweep came closest to Table 1

Progress = Callable[[str, int], Callable[[int], None]]


class Client(NamedTuple):
    """The models and data of a client and its server.

    Attributes:
      gradient: of the server's model, ``gradient(image, label) -> [d]``.
      colluding_gradient: of the model that a colluding server trained on ``TRAINED_LABEL`` alone.
      likeliest_other: ``(key, image, label) -> label``, the server's model's likeliest wrong label.
      images, labels: the records that pairs are drawn from.
      num_classes: of the labels.
      dimension: d.
      clip_norm: L.
    """

    gradient: Partial
    colluding_gradient: Partial
    likeliest_other: Partial
    images: np.ndarray
    labels: np.ndarray
    num_classes: int
    dimension: int
    clip_norm: float


def client(
    key: jax.Array,
    server_data: Dataset,
    client_data: Dataset,
    *,
    pretraining_steps: int,
    clip_norm: float,
    crafts: Sequence[str] = CRAFTS,
    mesh: Mesh | None = None,
    checkpoint: Path | None = None,
) -> Client:
    """Trains the server's models and returns the client that receives them.

    Args:
      key: a jax.random key, consumed.
      server_data: what the server trains on.
      client_data: the client's records, not seen by the server.
      pretraining_steps: Adam steps of the honest model; 0 leaves it as initialised.
      clip_norm: L.
      crafts: settings to be audited; a model that none of them uses is not trained.
      mesh: device mesh on which the models will be used; every process receives those of the first one.
      checkpoint: a file that stores the models.

    Raises:
      InputError: a value out of range; a checkpoint that is damaged or of other models.
    """
    _validate.at_least(0, pretraining_steps=pretraining_steps)
    clip_norm = _validate.positive(clip_norm=clip_norm)
    model = models.model_for(server_data.inputs.shape[1:], server_data.num_classes)
    gradient = models.gradient(model)
    inputs, labels = server_data.inputs, server_data.labels
    one_label = labels == TRAINED_LABEL
    steps = 0 if {"collusion", *WITHOUT_DATA}.issuperset(crafts) else pretraining_steps
    collusion_steps = COLLUSION_STEPS if "collusion" in crafts else 0

    def train(key: jax.Array) -> Any:
        honest_key, colluding_key = jax.random.split(key)
        labelled = inputs[one_label], labels[one_label]
        honest = models.pretrain(honest_key, model, inputs, labels, steps=steps)
        return honest, models.pretrain(colluding_key, model, *labelled, steps=collusion_steps)

    shared = several_processes(mesh)
    if checkpoint is None:
        trained = train(key)
    else:
        parts = {"key": [raw(key)], "data": [raw(inputs), raw(labels)], "setting": [text((steps, collusion_steps))]}
        file = Checkpoint(checkpoint, {name: digest(part) for name, part in parts.items()}, shared)
        trained = file.made_once(partial(train, key))
    if shared:
        trained = multihost_utils.broadcast_one_to_all(trained)
    honest, colluding = jax.tree.map(jnp.asarray, trained)
    return Client(
        gradient=Partial(gradient, honest),
        colluding_gradient=Partial(gradient, colluding),
        likeliest_other=craft.likeliest_other(Partial(models.logits(model), honest)),
        images=client_data.inputs,
        labels=client_data.labels,
        num_classes=server_data.num_classes,
        dimension=sum(leaf.size for leaf in jax.tree.leaves(honest)),
        clip_norm=clip_norm,
    )


def crafted(client: Client, name: str) -> Partial:
    """Returns the ``craft(key) -> (g0, g1)`` of a setting in ``CRAFTS`` for this client.

    Raises:
      InputError: another name.
    """
    records = (client.images, client.labels)
    label_flip = partial(craft.label_flip, client.gradient, *records, client.num_classes)
    settings: dict[str, Callable[[], Partial]] = {
        "benign": lambda: craft.benign(client.gradient, *records),
        "label_flip": label_flip,
        "likeliest_flip": lambda: label_flip(choose=client.likeliest_other),
        "gradient_flip": lambda: craft.gradient_flip(client.gradient, *records),
        "collusion": lambda: craft.collusion(client.colluding_gradient, *records, TRAINED_LABEL),
        "dummy": lambda: craft.dummy(client.dimension, client.clip_norm),
        "zero_against_large": lambda: craft.zero_against_large(client.dimension, client.clip_norm),
        "watermark": lambda: craft.watermark(client.dimension, client.clip_norm),
    }
    return settings[_validate.one_of(CRAFTS, craft=name)]()


def audit_client(
    key: jax.Array,
    server_data: Dataset,
    client_data: Dataset,
    *,
    crafts: Sequence[str] = tuple(ACCESS),
    clip_norm: float = CLIP_NORM,
    pretraining_steps: int = PRETRAINING_STEPS,
    epsilons: Sequence[float] = (0.5, 1.0, 2.0, 4.0),
    confidence: float = 0.95,
    datasets: int = 1,
    mesh: Mesh | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    **games: Any,
) -> Iterator[list[dict[str, Any]]]:
    """Audits one data set: trains the server's models, then audits one craft setting after the other.

    Args:
      key: a jax.random key, consumed; a setting's rows do not depend on which other settings are audited.
      server_data: what the server trains on.
      client_data: the client's records, not seen by the server.
      crafts: names in ``CRAFTS``.
      clip_norm: L.
      pretraining_steps: Adam steps of the honest model.
      epsilons: promised losses, one row each.
      confidence: with which all bounds of the table hold together; each bound gets an equal share of the error
        (Bonferroni).
      datasets: how many such calls make the table.
      mesh: a device mesh, possibly of several processes, over which pairs and trials are split; rows do not depend on
        it.
      checkpoint: a folder for the models, pairs and trials, made if necessary, from which the same test resumes on
        any devices. Of several processes, the first one writes it.
      progress: ``progress(stage, total) -> advance(done)``.
      **games: trials, repeats, engine, pair, randomizer, as for :func:`audit_craft`.

    Yields:
      The rows of one setting, complete except for the seed of ``key``.

    Raises:
      InputError: a value out of range; a checkpoint that is damaged or of another test.
    """
    for name in crafts:
        _validate.one_of(CRAFTS, craft=name)
    _validate.at_least(1, number_of_crafts=len(crafts))
    confidence = _validate.open_unit(confidence=confidence)
    _validate.at_least(1, datasets=datasets)
    _playable(mesh, epsilons, **games)
    bounds = 2 * datasets * len(crafts) * len(epsilons)  # bounds of the cosine rule and of the optimal test
    games |= {"epsilons": epsilons, "confidence": 1 - (1 - confidence) / bounds}
    training = None if progress is None else progress("the server trains", 1)
    folder = None if checkpoint is None else Path(checkpoint)
    if folder is not None and jax.process_index() == 0:
        folder.mkdir(parents=True, exist_ok=True)
    found = client(
        key,
        server_data,
        client_data,
        pretraining_steps=pretraining_steps,
        clip_norm=clip_norm,
        crafts=crafts,
        mesh=mesh,
        checkpoint=folder and folder / "models.npz",
    )
    if training is not None:
        training(1)
    shared = {"dataset": server_data.label, "dimension": found.dimension, "pretraining_steps": pretraining_steps}
    shared |= {"versions": versions(), "device": jax.devices()[0].device_kind, "confidence_of_table": confidence}
    for name in crafts:
        craft_key = jax.random.fold_in(key, zlib.crc32(name.encode()))
        stages = None if progress is None else lambda stage, total, of=name: progress(f"{of}, {stage}", total)
        how = {"mesh": mesh, "checkpoint": folder and folder / name, "progress": stages}
        rows = audit_craft(craft_key, crafted(found, name), clip_norm=clip_norm, **how, **games)
        yield [shared | {"craft": name} | row for row in rows]


def audit_craft(
    key: jax.Array,
    crafted: Callable[[jax.Array], tuple[jax.Array, jax.Array]],
    *,
    epsilons: Sequence[float] = (0.5, 1.0, 2.0, 4.0),
    clip_norm: float,
    trials: int = 10_000,
    repeats: int = 10,
    engine: str = "full",
    pair: str = "fresh",
    confidence: float = 0.95,
    randomizer: Randomizer | None = None,
    randomize: Callable[..., jax.Array] | None = None,
    mesh: Mesh | None = None,
    checkpoint: Path | None = None,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """Runs Algorithm 3 for one setting; returns rows with the measured values beside the exact ones.

    Args:
      key: a jax.random key, consumed; pairs and trials depend on it alone.
      crafted: ``craft(key) -> (g0, g1)`` of :mod:`dpaudit.audits.craft`.
      epsilons: promised losses, one row each.
      clip_norm: L.
      trials: K per repeat, half of them in each world.
      repeats: tests to average; all of them use the same pairs with new randomness, and their pooled counts give
        the bounds.
      engine: "full", "plane", "exact" or "kernel" (:mod:`dpaudit.audits.engines`).
      pair: "fresh" for a new pair in every trial (used once in each world and repeat), "fixed" for one pair.
      confidence: of each bound.
      randomizer: what the client promises to run, and how its releases are judged
        (:mod:`dpaudit.audits.randomizers`); None for LDP-SGD.
      randomize: the program that ``full`` runs in its place, ``randomize(key, x, *, epsilon, clip_norm) -> release``;
        None for the shipped one.
      mesh: as for :func:`audit_client`.
      checkpoint: prefix of the names of the two files that store pairs and trials.
      progress: ``progress(stage, total) -> advance(done)``.

    Returns:
      Flat rows of JSON values, including the fields of an :class:`AuditResult`. The cosine rule gives ``accuracy``,
      ``fpr``, ``fnr`` (pooled), ``epsilon_hat`` and its ``_std`` (over repeats), ``epsilon_lower``, ``epsilon_upper``
      (pooled) and ``epsilon_exact``; the optimal test of the same trials gives ``epsilon_optimal`` (exact)
      with ``epsilon_optimal_lower``, ``epsilon_optimal_upper`` (pooled). The verdict is "violation" if either lower
      bound exceeds the promise, and "underpowered" if not even twice the promise would have been called a violation
      with probability 0.8 (``detectable``), or if both tests gave one answer in all trials.

    Raises:
      InputError: a value out of range; an engine that does not play these games; a checkpoint of another test.
    """
    clip_norm = _validate.positive(clip_norm=clip_norm)
    confidence = _validate.open_unit(confidence=confidence)
    randomizer = _playable(mesh, epsilons, trials, repeats, engine, pair, randomizer, randomize)
    half = int(trials) // 2
    began = time.perf_counter()
    pair_key, play_key = jax.random.split(key)
    count = half if pair == "fresh" else 1

    def how(stage: str, total: int) -> dict[str, Any]:
        file = None if checkpoint is None else checkpoint.with_name(f"{checkpoint.name}-{stage}.npz")
        advance = None if progress is None else progress(stage, total)
        return {"mesh": mesh, "checkpoint": file, "progress": advance}

    dimension = jax.eval_shape(crafted, pair_key)[0].shape[-1]
    planes = engines.pairs(pair_key, crafted, count, **how("pairs", count))
    games = {"epsilons": epsilons, "clip_norm": clip_norm, "repeats": repeats}
    codes = None
    if engine == "plane":
        codes = engines.plane(play_key, planes, half, **games, **how("trials", repeats))
    elif engine == "kernel":
        units = -(-half // engines.TOGETHER)
        codes = engines.kernel(play_key, crafted, half, **games, pair_key=pair_key, **how("trials", units))
    elif engine == "full":
        codes = engines.full(
            play_key, crafted, half, **games, pair_key=pair_key, fresh=pair == "fresh",
            randomize=randomize or randomizer.randomize, observe=randomizer.observe,
            **how("trials", half),
        )  # fmt: skip
    seconds = (time.perf_counter() - began) / len(epsilons)
    shared = {"engine": engine, "pair": pair, "clip_norm": clip_norm, "trials": 2 * half, "repeats": repeats}
    shared |= {"confidence": confidence, "delta": randomizer.delta, "neighbouring": "replace", "seconds": seconds}
    rows = []
    for place, epsilon in enumerate(epsilons):
        played = None if codes is None else codes[:, place]
        at = {"epsilon": epsilon, "clip_norm": clip_norm, "dimension": dimension}
        found = client_row.columns(randomizer, played, planes, confidence=confidence, **at)
        rows.append({name: json_number(value) for name, value in (shared | {"epsilon": epsilon} | found).items()})
    return rows


def _playable(
    mesh: Mesh | None,
    epsilons: Sequence[float],
    trials: int = 10_000,
    repeats: int = 10,
    engine: str = "full",
    pair: str = "fresh",
    randomizer: Randomizer | None = None,
    randomize: Callable[..., jax.Array] | None = None,
) -> Randomizer:
    """Returns the randomizer, or LDP-SGD for None, after refusing games that cannot be played."""
    _validate.at_least(1, number_of_epsilons=len(epsilons))
    for epsilon in epsilons:
        epsilon = _validate.positive(epsilon=epsilon)
    _validate.at_least(2, trials=trials)
    _validate.at_least(1, repeats=repeats)
    randomizer = randomizers.ldp_sgd() if randomizer is None else randomizer
    _validate.one_of(ENGINES, engine=engine)
    if engine not in randomizer.offers:
        raise _validate.expected("engine", f"{' or '.join(randomizer.offers)} for {randomizer.name}", engine)
    if engine != "full" and randomize not in (None, randomizer.randomize):
        raise _validate.expected("engine", "full, the only one that runs a mechanism of your own", engine)
    _validate.one_of(READINGS, pair=pair)
    if engine == "kernel" and pair != "fixed":
        raise _validate.expected("pair", "fixed, the only one that the engine kernel plays", pair)
    if engine == "kernel":
        engines.refuse_device(mesh)
    return randomizer


def versions() -> str:
    """Returns the versions that a row was made with, e.g. "dpaudit 0.2.0, jax 0.10.2"."""
    others = (f"{name} {importlib.metadata.version(name)}" for name in ("jax", "jaxlib", "numpy", "scipy"))
    return ", ".join([f"dpaudit {__version__}", *others])
