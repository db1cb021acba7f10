"""Audits LDP-SGD from a client's side: what its promise means, and whether the randomiser keeps it.

    python -m experiments.ldp_client_audit                     # the image sets that are found: half an hour
    python -m experiments.ldp_client_audit --only mnist        # the audits of one, beside the rows that are there
    python -m experiments.ldp_client_audit --quick --out DIR   # bundled digits: under a minute
    python -m experiments.ldp_client_audit --only cifar10_exact_subset --epsilons 1 --seed 2 --work DIR

The last, one promise of one set beside those that are there, takes a core over an hour. Its own seed keeps its
draws apart from those of the other promises: one seed would give all the same.

Expect on MNIST at epsilon 4: dummy and collusion 98.2% right guesses and an audited epsilon of 4.0 +- 0.1, as in the
paper; gradient flip, label flip and benign move with the clip norm and the pre-training, which the paper does not
state: the sweep shows where its rows lie.
"""

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.tree_util import Partial

from dpaudit import data, oracle
from dpaudit._engine import hosts
from dpaudit._validate import expected
from dpaudit.auditing.bounds.estimate import epsilon_from_rates
from dpaudit.audits import craft, engines, ldp_client
from dpaudit.audits.ldp_client import CLIP_NORM, PRETRAINING_STEPS
from dpaudit.mechanisms.ldp_sgd import far_side_probability
from dpaudit.report.rows import read_rows
from dpaudit.training import models
from dpaudit.training.models import accuracy, pretrain
from experiments.common import Rows, options
from experiments.paper000.published import EPSILONS, QUOTED, TABLE_1
from experiments.paper000.two_classes import two_classes

SETS = ("mnist", "fashion_mnist", "cifar10", "svhn")
EXACT = "cifar10_exact_subset"  # by name alone: to draw every number takes a core over an hour for each epsilon
AUDITED = ("accuracy_percent", "epsilon_hat", "epsilon_optimal", "epsilon_at_equal_accuracy")
SWEEP_STEPS = (0, 10, 30, 100, 300, 1000, 3000)
SWEEP_CLIP_NORMS = (0.001, 0.01, 0.03, 0.1, 0.2, 0.3, 1.0, 3.0, 10.0, 30.0)


def grid(rows: Rows, datasets: list[str], options: Any) -> list[dict[str, Any]]:
    """Section 6: every setting and epsilon, 10 x 10,000 trials; Table 1 and Figs. 1(b), 3 to 7."""
    audits = []
    for name in datasets:
        train, test = (data.load(name, split=split, data_dir=options.data_dir) for split in ("train", "test"))
        large = train.inputs.shape[1] >= 32 and name != EXACT
        engine = "plane" if options.quick or large else "full"
        settings = {
            "pretraining_steps": PRETRAINING_STEPS,
            "clip_norm": CLIP_NORM,
            "epsilons": options.epsilons,
            "engine": engine,
            "checkpoint": None if options.work is None else Path(options.work) / name,
        }
        settings |= {"crafts": options.crafts, "trials": 1000 if options.quick else 10_000}
        key = jax.random.fold_in(jax.random.key(options.seed), zlib.crc32(name.encode()))
        for part in ldp_client.audit_client(key, train, test, mesh=hosts.mesh("trials"), **settings):
            for row in part:
                compare(rows, row, *(published(row["craft"], row["epsilon"]) if name == "mnist" else (None, None)))
            audits += [row | {"seed": options.seed} for row in part]
            rows.finish_part(f"{name}, {part[0]['craft']}")
    return audits


def published(setting: str, epsilon: float) -> tuple[float | None, float | None]:
    """Returns the paper's accuracy, and its empirical epsilon where it quotes one."""
    if setting not in TABLE_1 or epsilon not in EPSILONS:
        return None, None
    return TABLE_1[setting][EPSILONS.index(epsilon)], QUOTED.get(setting) if epsilon == 4 else None


def compare(rows: Rows, row: dict[str, Any], accuracy_percent: float | None, epsilon: float | None) -> None:
    """Adds one audit row as three comparisons: right guesses, cosine epsilon, optimal-test epsilon."""
    labels = {
        field: row[field] for field in ("dataset", "craft", "epsilon", "engine", "pretraining_steps", "clip_norm")
    }
    scale = f"{row['repeats']} x {row['trials']:,} trials, d = {row['dimension']:,}"
    ours, spread = 100 * row["accuracy"], 200 * (row["accuracy_std"] or 0)
    bounds = (ours - spread, ours + spread)
    rows.add("accuracy_percent", labels, ours, bounds, scale=scale, paper_value=accuracy_percent)
    bounds = (row["epsilon_lower"], row["epsilon_upper"])
    rows.add("epsilon_hat", labels, row["epsilon_hat"], bounds, scale=scale, paper_value=epsilon)
    bounds = (row["epsilon_optimal_lower"], row["epsilon_optimal_upper"])
    rows.add("epsilon_optimal", labels, row["epsilon_optimal"], bounds, scale=scale)


def sweep(rows: Rows, name: str, counts: Sequence[int], count: int) -> None:
    """Benign, label flip and gradient flip against pre-training and L: exact accuracies at epsilon 4, and angles.

    Beside the paper's settings stand three readings of what it leaves open: the other label is the likeliest wrong
    one; both images have one label; one fixed pair for all trials (its 10% and 90% quantiles over pairs).
    """
    train, test = (data.load(name, split=split, data_dir=rows.data_dir) for split in ("train", "test"))
    model = models.model_for(train.inputs.shape[1:], train.num_classes)
    one_label = test.labels == 3
    gradient = models.gradient(model)
    for steps in counts:
        params = pretrain(jax.random.key(rows.seed), model, train.inputs, train.labels, steps=steps)
        g, other = Partial(gradient, params), craft.likeliest_other(Partial(models.logits(model), params))
        records = (test.inputs, test.labels)
        settings = {
            "benign": craft.benign(g, *records),
            "benign, one label": craft.benign(g, test.inputs[one_label], test.labels[one_label]),
            "label_flip": craft.label_flip(g, *records, train.num_classes),
            "label_flip, likeliest": craft.label_flip(g, *records, train.num_classes, choose=other),
            "gradient_flip": craft.gradient_flip(g, *records),
        }
        right = accuracy(model, params, test.inputs, test.labels)
        shared = {"dataset": train.label, "steps": steps, "test_accuracy": round(right, 3)}
        for setting, crafted in settings.items():
            pairs = engines.pairs(jax.random.key(rows.seed + 1), crafted, count, mesh=hosts.mesh("trials"))
            scale = f"closed form over {count:,} pairs"
            angle = np.degrees(np.quantile(pairs.angle, [0.5, 0.1, 0.9]))
            rows.add("angle_degrees", shared | {"craft": setting}, angle[0], angle[1:].tolist(), scale=scale)
            for clip_norm in SWEEP_CLIP_NORMS:
                fpr, fnr = oracle.cosine_rates(pairs, epsilon=4.0, clip_norm=clip_norm)
                each = 100 * (1 - (fpr + fnr) / 2)
                labels = shared | {"craft": setting, "clip_norm": clip_norm, "epsilon": 4.0}
                published = TABLE_1[setting.split(",")[0]][3] if name == "mnist" else None
                spread = np.quantile(each, [0.1, 0.9]).tolist()
                rows.add("sweep_accuracy_percent", labels, each.mean(), spread, scale=scale, paper_value=published)
    rows.finish_part("sweep of pre-training and L")


def worst_pair(rows: Rows) -> None:
    """Proposition 1 by optimisation: gradient ascent on both vectors of a pair, from random starts."""
    epsilon, clip_norm, starts = 4.0, 1.0, 64
    begin = jax.random.normal(jax.random.key(rows.seed), (starts, 2, 20)) * 0.1

    def right_guesses(pair: jax.Array) -> jax.Array:
        norm0, norm1, angle = oracle.geometry(pair[0], pair[1])
        kept = (jnp.minimum(norm0, clip_norm) + jnp.minimum(norm1, clip_norm)) / (2 * clip_norm)
        return 0.5 + 0.5 * jnp.tanh(epsilon / 2) * kept * angle / jnp.pi

    optimizer = optax.adam(0.01)

    def climb(state: tuple[Any, Any], _: None) -> tuple[tuple[Any, Any], None]:
        pairs, memory = state
        updates, memory = optimizer.update(-jax.vmap(jax.grad(right_guesses))(pairs), memory)
        return (optax.apply_updates(pairs, updates), memory), None

    (ends, _), _ = jax.lax.scan(climb, (begin, optimizer.init(begin)), length=2000)
    found = oracle.pair(ends[:, 0], ends[:, 1])
    fpr, fnr = oracle.cosine_rates(found, epsilon=epsilon, clip_norm=clip_norm)
    reached = 100 * (1 - (fpr + fnr) / 2)
    limit = 100 * (1 - far_side_probability(clip_norm, epsilon=epsilon, clip_norm=clip_norm))
    scale = f"{starts} random starts, 2,000 steps of Adam, d = 20"
    setting = {"epsilon": epsilon, "clip_norm": clip_norm}
    rows.add("worst_pair_accuracy_percent", setting, reached.max(), (reached.min(), limit), scale=scale)
    angles = np.degrees(found.angle)
    rows.add("worst_pair_angle_degrees", setting, angles.max(), (angles.min(), 180.0), scale=scale)
    rows.add("worst_pair_norm", setting, min(found.norm0.min(), found.norm1.min()), (clip_norm, None), scale=scale)
    for degrees in (0, 1, 30, 60, 90, 120, 150, 180):
        for norm in (0.25, 0.5, 1.0):
            pair = oracle.Pair(np.array([norm]), np.array([norm]), np.radians([float(degrees)]))
            labels = setting | {"angle_degrees": degrees, "norm": norm}
            fpr, fnr = oracle.cosine_rates(pair, epsilon=epsilon, clip_norm=clip_norm)
            rows.add("pair_accuracy_percent", labels, 100 * float(1 - (fpr + fnr)[0] / 2), scale="closed form")
            rows.add("pair_epsilon_cosine", labels, float(epsilon_from_rates(fpr, fnr)[0]), scale="closed form")
            best = oracle.optimal_test(pair, epsilon=epsilon, clip_norm=clip_norm)
            rows.add("pair_epsilon_optimal", labels, best.epsilon, scale="closed form")
    rows.finish_part("worst pair")


def relaxation(rows: Rows, audits: list[dict[str, Any]]) -> None:
    """Section 6.2.2: the epsilon at which a restricted adversary would guess as well as the worst case does at
    epsilon.

    tanh(epsilon'/2) share = tanh(epsilon/2), with share = (accuracy - 1/2)/(q - 1/2) of the restricted setting. The
    optimal test is not restricted: for it the loss would be epsilon' in full.
    """
    for row in audits:
        target = np.tanh(row["epsilon"] / 2)
        share = (row["accuracy_exact"] - 0.5) / (target / 2)
        allowed = 2 * np.arctanh(target / share) if target < share else np.inf
        labels = {name: row[name] for name in ("dataset", "craft", "epsilon", "clip_norm")} | {
            "steps": PRETRAINING_STEPS
        }
        rows.add("epsilon_at_equal_accuracy", labels, float(allowed), scale="closed form over the grid's pairs")
    rows.finish_part("relaxation")


REPRODUCIBLE = {"worst_pair": worst_pair, "sweep": sweep, "two_classes": two_classes}


def main() -> None:
    parser = options(__doc__ or "", work="models, pairs and trials")
    parser.add_argument("--only", nargs="+", choices=(*SETS, EXACT), help="data sets to audit again; other rows stay")
    parser.add_argument("--epsilons", type=float, nargs="+", default=EPSILONS, help="promises; default: the paper's")
    parser.add_argument("--crafts", nargs="+", default=ldp_client.CRAFTS, choices=ldp_client.CRAFTS, help="settings")
    chosen = parser.parse_args()
    all_of_them = (tuple(chosen.epsilons), tuple(chosen.crafts)) == (EPSILONS, ldp_client.CRAFTS)
    if chosen.only is None and not chosen.quick and not all_of_them:
        raise expected("--only", "the data sets to audit in these settings alone; other rows stay", "none")
    keep = chosen.only is not None and (lambda row: stands(row, rows.rows))
    rows = Rows(
        "000", "ldp_client_audit", chosen.out, chosen.seed, keep=keep, data_dir=chosen.data_dir,
        beside=lambda row: "sweep" * (row["made_by"]["part"] == "sweep"),
    )  # fmt: skip
    datasets = ["digits"]
    if not chosen.quick:
        found = {row.name for row in data.available(chosen.data_dir) if row.contents != "not found"}
        datasets = [name for name in chosen.only or SETS if name in found]
    if not datasets:
        raise SystemExit(
            "ldp_client_audit: no image data set found; name their folder with --data-dir, or use --quick"
        )
    if chosen.only is None:
        rows.run(worst_pair)
        counts, pairs = ((0, PRETRAINING_STEPS), 256) if chosen.quick else (SWEEP_STEPS, 2_000)
        for steps in counts:
            rows.run(sweep, datasets[0], [steps], pairs)
        rows.run(two_classes, datasets[0], list(counts), pairs)
    audits = grid(rows, datasets, chosen)
    relaxation(rows, audits)
    before = rows.file.with_name(f"{rows.file.stem}_rows.json")
    earlier = read_rows(before) if rows.earlier else []
    again = {audited(row) for row in audits}
    kept = [row for row in earlier if audited(row) not in again]
    rows.write(kept + [row | rows.signature() for row in audits], "_rows")


def audited(row: dict[str, Any]) -> tuple[str, str, float]:
    """Returns what one audit is of: a data set, a setting and a promise."""
    return row["dataset"], row["craft"], row["epsilon"]


def stands(row: dict[str, Any], made: Sequence[dict[str, Any]]) -> bool:
    """Tells whether a comparison from before is of no audit that was made again, so that one not reached keeps its."""
    if row["quantity"] not in AUDITED:
        return True
    again = {(other["quantity"], *audited(other["setting"])) for other in made if other["quantity"] in AUDITED}
    return (row["quantity"], *audited(row["setting"])) not in again
