"""Makes the tables, figures and facts of this paper's page."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from dpaudit.report import figures as audit_figures
from dpaudit.report.rows import read_rows
from experiments import pages
from experiments.pages import Fact, Rows, fact, interval, number, only, ranged, select, table, values
from experiments.paper000 import figures
from experiments.paper000.claims import CLAIMS as CLAIMS
from experiments.paper000.claims import PROMISE, at_promise
from experiments.paper000.published import EPSILONS, PUBLISHED, QUOTED, TABLE_1

FILES = ("ldp_client_audit.json", "ldp_client_audit.sweep.json")
PLAIN = ("benign", "label_flip", "gradient_flip")
READINGS = {"likeliest_flip": "label_flip"}  # other readings of a setting of Table 1
LIKELIEST = ("benign", "label_flip, likeliest", "gradient_flip")


def draw(rows: Rows, folder: Path) -> None:
    audits = read_rows(folder / "ldp_client_audit_rows.json")
    first = [row for row in audits if row["dataset"] == audits[0]["dataset"]]
    drawn = {"summary": audit_figures.summary_figure(first), "guesses": audit_figures.guess_figure(first)}
    drawn |= {craft: audit_figures.setting_figure(audits, craft, PUBLISHED.get(craft)) for craft in TABLE_1}
    drawn |= {"game": figures.game(), "randomizer": figures.randomizer()}
    drawn |= {"worst_pair": figures.worst_pair(rows), "angles": figures.angles(rows), "sweep": figures.sweep(rows)}
    for name, figure in drawn.items():
        pages.save(figure, folder / f"ldp_{name}.png")


def promise(rows: Rows) -> str:
    del rows
    return f"{PROMISE:g}"


def setting(rows: Rows) -> Fact:
    row = only(rows, "accuracy_percent", dataset="mnist", craft="dummy", epsilon=PROMISE)
    at = row["setting"]
    return fact(
        True, scale=row["scale"], steps=at["pretraining_steps"], clip_norm=at["clip_norm"], engine=at["engine"]
    )


def table_1(rows: Rows) -> str:
    lines = []
    for craft in (*TABLE_1, *READINGS):
        own = [only(rows, "accuracy_percent", dataset="mnist", craft=craft, epsilon=epsilon) for epsilon in EPSILONS]
        stated = TABLE_1[READINGS.get(craft, craft)]
        cells = (
            f"{paper} / {row['ours']:.1f} ± {row['ours_high'] - row['ours']:.1f}"
            for paper, row in zip(stated, own, strict=True)
        )
        lines.append([craft, *cells])
    return table(["setting", *(f"ε = {epsilon:g}" for epsilon in EPSILONS)], lines)


def likeliest(rows: Rows) -> Fact:
    """Returns the likeliest wrong label comes closer to the paper's row than a random one, at every epsilon."""
    found = {
        craft: [only(rows, "accuracy_percent", dataset="mnist", craft=craft, epsilon=e)["ours"] for e in EPSILONS]
        for craft in ("label_flip", *READINGS)
    }
    off = {
        craft: [abs(a - b) for a, b in zip(own, TABLE_1["label_flip"], strict=True)] for craft, own in found.items()
    }
    drawn, chosen = off.values()
    closer = all(b < a for a, b in zip(drawn, chosen, strict=True))
    row = only(rows, "epsilon_hat", dataset="mnist", craft="likeliest_flip", epsilon=PROMISE)
    inside = row["ours_low"] <= QUOTED["label_flip"] <= row["ours_high"]
    told = {"promise": PROMISE, "shown": ranged(row), "quoted": QUOTED["label_flip"]}
    return fact(closer and inside, drawn=max(drawn), chosen=max(chosen), **told)


def quoted(rows: Rows) -> str:
    lines = []
    for craft, paper in QUOTED.items():
        row = only(rows, "epsilon_hat", dataset="mnist", craft=craft, epsilon=PROMISE)
        lines.append([craft, f"{paper}", ranged(row), number(symmetric(TABLE_1[craft][-1]))])
    return table(["setting", "paper", "ours [bounds]", "ε of a symmetric test with the paper's own accuracy"], lines)


def symmetric(percent: float) -> float:
    """Epsilon of a test whose error rates are equal."""
    return float(np.log(percent / (100 - percent)))


def mixed_up(rows: Rows) -> Fact:
    """Gradient flip's quoted epsilon is what collusion's accuracy means, and far from its own."""
    told, own, other = QUOTED["gradient_flip"], TABLE_1["gradient_flip"][-1], TABLE_1["collusion"][-1]
    holds = abs(symmetric(other) - told) < 0.05 < 1 < told - symmetric(own)
    return fact(holds, quoted=told, own=own, means=symmetric(own), other=other, other_means=symmetric(other))


def optimal(rows: Rows) -> str:
    lines = []
    for cosine in select(rows, "epsilon_hat", epsilon=PROMISE):
        at = cosine["setting"]
        same = {"epsilon": PROMISE, "dataset": at["dataset"], "craft": at["craft"]}
        best, right = only(rows, "epsilon_optimal", **same), only(rows, "accuracy_percent", **same)
        cells = [f"`{at['engine']}`", f"{right['ours']:.1f}", ranged(cosine), number(best["ours"]), interval(best)]
        runs = {
            row["seed"]: row["seconds"]
            for row in select(rows, "epsilon_hat", dataset=at["dataset"], craft=at["craft"])
        }
        hours = sum(runs.values()) / 3600
        lines.append([f"{at['dataset']}, {at['craft']}", *cells, f"{hours:.2f}" if hours > 0.01 else "< 0.01"])
    return table(["data, setting", "engine", "right %", "ε cosine", "ε optimal, exact", "measured", "hours"], lines)


def longer_training(rows: Rows) -> Fact:
    """At the table's L, training that goes on takes both readings of label flip further below the paper's row."""
    at = only(rows, "accuracy_percent", dataset="mnist", craft="dummy", epsilon=PROMISE)["setting"]
    found = [
        {
            row["setting"]["steps"]: row
            for row in select(rows, "sweep_accuracy_percent", craft=craft, clip_norm=at["clip_norm"])
            if row["setting"]["steps"] >= at["pretraining_steps"]
        }
        for craft in ("label_flip", "label_flip, likeliest")
    ]
    steps = sorted(found[0])
    falls = all(own[late]["ours"] < own[early]["ours"] for own in found for early, late in pairwise(steps))
    drawn, chosen = ([own[step]["ours"] for step in steps] for own in found)
    first, last = (found[0][step]["setting"]["test_accuracy"] for step in (steps[0], steps[-1]))
    told = {"first": 100 * first, "last": 100 * last, "steps": steps[-1], "paper": TABLE_1["label_flip"][-1]}
    below = max(drawn[0], chosen[0]) < told["paper"]
    return fact(falls and below, drawn=drawn[-1], chosen=chosen[-1], promise=PROMISE, **told)


def benign_gap(rows: Rows) -> Fact:
    """On photos the optimal test attains the promise on benign pairs, where the cosine rule shows a quarter of it."""
    _, name = cifar10(rows)
    cosine, best = (
        only(rows, q, dataset=name, craft="benign", epsilon=PROMISE) for q in ("epsilon_hat", "epsilon_optimal")
    )
    holds = cosine["ours_high"] < PROMISE / 3 and best["ours_low"] <= PROMISE <= best["ours_high"]
    return fact(holds, data=name, cosine=ranged(cosine), best=interval(best), promise=PROMISE)


def short_of_l(rows: Rows) -> Fact:
    """On MNIST no test shows the promise of benign pairs, as the paper says; the cosine rule shows still less."""
    cosine, best = (
        only(rows, q, dataset="mnist", craft="benign", epsilon=PROMISE) for q in ("epsilon_hat", "epsilon_optimal")
    )
    holds = cosine["ours_high"] < best["ours_low"] and best["ours_high"] < PROMISE
    return fact(holds, best=best["ours"], cosine=cosine["ours"], promise=PROMISE)


def cifar10(rows: Rows) -> tuple[str, str]:
    """Returns the copies of CIFAR-10 that were audited: the exact images, and those that went through JPEG."""
    names = values(at_promise(rows, "epsilon_hat", "benign"), "dataset")
    exact, lossy = sorted((name for name in names if "cifar10" in name), key=lambda name: "JPEG" in name)
    return exact, lossy


def in_both(rows: Rows) -> list[tuple[str, float]]:
    """Returns the settings of Table 1, and promises, in which both copies of CIFAR-10 were audited."""
    found = [
        {(row["setting"]["craft"], row["setting"]["epsilon"]) for row in select(rows, "epsilon_hat", dataset=name)}
        for name in cifar10(rows)
    ]
    return [(craft, e) for craft in TABLE_1 for e in EPSILONS if all((craft, e) in of_copy for of_copy in found)]


def copies(rows: Rows) -> str:
    """Sets the exact images of CIFAR-10 beside those that went through JPEG, setting by setting."""
    lines, names = [], cifar10(rows)
    for craft, epsilon in in_both(rows):
        right, cosine, best = (
            [only(rows, quantity, dataset=name, craft=craft, epsilon=epsilon) for name in names]
            for quantity in ("accuracy_percent", "epsilon_hat", "epsilon_optimal")
        )
        cells = [ranged(row, 1) for row in right] + [ranged(row) for row in cosine]
        cells += [f"{number(row['ours'])} {interval(row)}" for row in best]
        lines.append([f"{craft}, ε = {epsilon:g}", *cells, f"{right[0]['seconds'] / 3600:.2f}"])
    heads = [f"{of}, {copy}" for of in ("right %", "ε cosine", "ε optimal") for copy in ("exact", "JPEG")]
    return table(["setting", *heads, "hours, exact"], lines)


def alike(rows: Rows) -> Fact:
    """In every setting of Table 1, at every promise, the intervals of the exact and of the lossy copy overlap."""
    found = {
        quantity: [
            [only(rows, quantity, dataset=name, craft=craft, epsilon=epsilon) for name in cifar10(rows)]
            for craft, epsilon in in_both(rows)
        ]
        for quantity in ("accuracy_percent", "epsilon_hat", "epsilon_optimal")
    }
    overlap = all(
        max(row["ours_low"] for row in pair) <= min(row["ours_high"] for row in pair)
        for pairs in found.values() for pair in pairs
    )  # fmt: skip
    most = max(abs(a["ours"] - b["ours"]) for a, b in found["accuracy_percent"])
    return fact(overlap, count=len(found["accuracy_percent"]), most=most)


def own_draws(rows: Rows) -> Fact:
    """Each promise of the exact images has its own seed, and so its own model, pairs and releases."""
    drawn = {(row["setting"]["epsilon"], row["seed"]) for row in select(rows, "epsilon_hat", dataset=cifar10(rows)[0])}
    promises, seeds = (set(own) for own in zip(*drawn, strict=True))
    return fact(len(drawn) == len(promises) == len(seeds))


def closest(rows: Rows) -> str:
    found = select(rows, "sweep_accuracy_percent")
    lines = []
    for craft in values(found, "craft"):
        own = select(found, "sweep_accuracy_percent", craft=craft)
        paper = TABLE_1[craft.split(",")[0]][-1]
        best = min(own, key=lambda row: abs(row["ours"] - paper))
        highest = max(own, key=lambda row: row["ours"])
        where = f"{best['setting']['steps']} steps, L = {best['setting']['clip_norm']:g}"
        lines.append([craft, f"{paper}", ranged(best, 1), where, f"{highest['ours']:.1f}"])
    return table(["setting", "paper", "closest [10%, 90% of pairs]", "at", "highest anywhere"], lines)


def swept(rows: Rows) -> Fact:
    row = select(rows, "sweep_accuracy_percent")[0]
    return fact(True, data=row["setting"]["dataset"], scale=row["scale"], promise=PROMISE)


def together(rows: Rows, names: Sequence[str]) -> tuple[float, Fact]:
    """Returns how far the best one (steps, L) stays from all three rows of Table 1 at once."""
    cells: dict[tuple[int, float], dict[str, float]] = {}
    for row in select(rows, "sweep_accuracy_percent"):
        at = row["setting"]
        cells.setdefault((at["steps"], at["clip_norm"]), {})[at["craft"]] = row["ours"]
    wanted = {name: TABLE_1[name.split(",")[0]][-1] for name in names}
    off = {cell: max(abs(of[name] - value) for name, value in wanted.items()) for cell, of in cells.items()}
    best = min(off, key=lambda cell: off[cell])
    told = ", ".join(f"{name} {cells[best][name]:.1f}" for name in names)
    return off[best], fact(off[best] > 1, steps=best[0], clip_norm=best[1], told=told, off=off[best])


def as_worded(rows: Rows) -> Fact:
    return together(rows, PLAIN)[1]


def likeliest_label(rows: Rows) -> Fact:
    """Returns the likeliest wrong label comes closer to the paper's row than a random one."""
    (plain, _), (other, found) = together(rows, PLAIN), together(rows, LIKELIEST)
    return fact(found.holds and other < plain, **found.values)


def benign_angle(rows: Rows) -> Fact:
    """Returns the angle at which benign pairs would have to lie, below the medians of all stages of training."""
    benign, flip = (TABLE_1[name][-1] - 50 for name in ("benign", "gradient_flip"))
    needed = 180 * benign / flip
    least = min(row["ours"] for row in select(rows, "angle_degrees", craft="benign"))
    return fact(needed < least, needed=needed, least=least)


def two_classes(rows: Rows) -> str:
    """Angles, norms and right guesses of the two-class network, a line for each pre-training."""
    lines = []
    for steps in values(select(rows, "two_class_norm_ratio"), "steps"):
        angles = [
            only(rows, "two_class_angle_degrees", steps=steps, between=of)
            for of in ("true", "client", "equations", "equation 4", "equation 5", "weights")
        ]
        ratio, right = (only(rows, f"two_class_{name}", steps=steps) for name in ("norm_ratio", "accuracy_percent"))
        lines.append(
            [f"{steps:,}", *(number(row["ours"], 0) for row in angles), f"{ratio['ours']:.2g}", ranged(right, 1)]
        )
    headers = [
        "steps",
        "both labels",
        "as a client computes",
        "Eq. (4), Eq. (5)",
        "Eq. (4), true",
        "Eq. (5), true",
        "w+, w-",
    ]
    return table([*headers, "norm, own label / other", f"right % at ε = {PROMISE:g}"], lines)


def two_class_setting(rows: Rows) -> Fact:
    row = only(rows, "two_class_norm_ratio", steps=0)
    right = select(rows, "two_class_accuracy_percent")[0]["setting"]
    return fact(True, scale=row["scale"], data=row["setting"]["dataset"], clip_norm=right["clip_norm"])


def opposite_from_the_start(rows: Rows) -> Fact:
    """Returns the true gradients are opposite before any training, and the equations' are not."""
    true, written = (
        only(rows, "two_class_angle_degrees", steps=0, between=of)["ours"] for of in ("true", "equations")
    )
    return fact(true > 179 and written < 120, true=true, written=written)


def ascent(rows: Rows) -> Fact:
    right, angle = only(rows, "worst_pair_accuracy_percent"), only(rows, "worst_pair_angle_degrees")
    norm = only(rows, "worst_pair_norm")["ours"]
    holds = right["ours"] <= right["ours_high"] and norm >= 1
    return fact(
        holds, scale=right["scale"], best=right["ours"], limit=right["ours_high"], worst=right["ours_low"],
        low=angle["ours_low"], high=angle["ours"], norm=norm,
    )  # fmt: skip


def right_angle(rows: Rows) -> Fact:
    """At a right angle the cosine rule shows a quarter of the promise, and the optimal test all of it."""
    at = {"angle_degrees": 90, "norm": 1.0}
    cosine, best = only(rows, "pair_epsilon_cosine", **at)["ours"], only(rows, "pair_epsilon_optimal", **at)["ours"]
    return fact(cosine < PROMISE / 3 and abs(best - PROMISE) < 1e-6, cosine=cosine, best=best)


def relaxed(rows: Rows) -> str:
    found = select(rows, "epsilon_at_equal_accuracy")
    names = dict.fromkeys((row["setting"]["dataset"], row["setting"]["craft"]) for row in found)
    lines = []
    for dataset, craft in names:
        own = {
            row["setting"]["epsilon"]: number(row["ours"])
            for row in select(found, "epsilon_at_equal_accuracy", dataset=dataset, craft=craft)
        }
        lines.append([f"{dataset}, {craft}", *(own.get(epsilon, "–") for epsilon in EPSILONS)])
    return table(["data, setting", *(f"ε = {epsilon:g}" for epsilon in EPSILONS)], lines)
