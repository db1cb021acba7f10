"""Makes the tables and facts of the page about the paper's own scale."""

from experiments.pages import Fact, Rows, fact, number, only, ranged, select, table, values, verdicts
from experiments.paper003.bench import CLIP_NORM, DELTA, LEARNING_RATE, SCALES
from experiments.paper003.full_claims import FULL_CLAIMS, MORE_FULL, accuracy
from experiments.paper003.memberships import FPR
from experiments.paper003.networks import KINDS, NETWORKS, SHADOW_SAMPLES, SHADOWS
from experiments.paper003.published import STATED
from experiments.paper003.questions import CONFIDENCE
from experiments.paper003.unstated import OURS, PYTORCH


def full_verdicts(rows: Rows) -> str:
    return verdicts((*FULL_CLAIMS, *MORE_FULL), rows)


def full_setting(rows: Rows) -> Fact:
    found, paper = select(rows, "full_network"), SCALES["paper"]
    hours = [row["cpu_hours"] for row in found]
    return fact(
        True, networks=len(found), records=paper.records, batch=paper.batch_size, steps=paper.steps, noise=paper.noise,
        clip_norm=CLIP_NORM, rate=LEARNING_RATE, high=max(hours), samples=paper.samples, planned=NETWORKS,
        decisions=sum(len(row["member"]) for row in found), targets=len(found[0]["member"]),
    )  # fmt: skip


def full_targets(rows: Rows) -> Fact:
    count = len(select(rows, "full_network")[0]["member"])
    return fact(True, each=count // len(KINDS), shadows=SHADOWS, samples=SHADOW_SAMPLES)


def full_more_accurate(rows: Rows) -> Fact:
    found = [accuracy(rows, name) for name in STATED]
    off = [100 * (row["ours"] - row["paper_value"]) for row in found]
    return fact(all(row["ours_low"] > row["paper_value"] for row in found), low=min(off), high=max(off))


def full_accuracies(rows: Rows) -> str:
    names = [name for name in values(select(rows, "full_accuracy"), "published") if not name.endswith("no label")]
    lines = []
    for name in names:
        row, without = accuracy(rows, name), only(rows, "full_accuracy", published=f"{name}, no label")
        stated = number(row["paper_value"]) if name in STATED else "–"
        lines.append([name, stated, ranged(row, 3), f"{100 * without['ours']:.1f}", f"{row['records']:,}"])
    return table(["published", "paper", "accuracy [range]", "no label %", "records"], lines)


def full_first_weights(rows: Rows) -> Fact:
    """PyTorch's first weights cost accuracy, less than ours are above the paper's."""
    less, left, true = [], [], True
    for name in STATED:
        row = only(rows, "accuracy_of_choice", choice=PYTORCH, published=name)
        ours = [network["utility"][name] for network in select(rows, "full_network")]
        less.append(100 * (accuracy(rows, name)["ours"] - row["ours"]))
        left.append(100 * (row["ours"] - row["paper_value"]))
        true &= row["paper_value"] < row["ours_low"] and row["ours"] < min(ours)
    counts = {"networks": len(row["each"])}
    return fact(true, less=min(less), most=max(less), left=min(left), above=max(left), **counts)


def full_choices(rows: Rows) -> str:
    """Tabulates accuracies under what the paper leaves to its libraries, beside those of our own choice."""
    every, lines = values(select(rows, "accuracy_of_choice"), "choice"), []
    for name in STATED:
        cells = [ranged(only(rows, "accuracy_of_choice", choice=choice, published=name), 3) for choice in every]
        lines.append([name, number(STATED[name]), ranged(accuracy(rows, name), 3), *cells])
    return table(["published", "paper", OURS, *every], lines)


def full_revealed(rows: Rows) -> str:
    lines = []
    for row in select(rows, "full_bound"):
        at = {"seen": row["setting"]["seen"]}
        rate = only(rows, "full_true_positives", **at)
        told = [only(rows, "full_advantage", kind=kind, **at) for kind in ("all", *KINDS)]
        cells = [number(row["ours"]), number(row["ceiling"]), f"{100 * row['right']:.1f}", percent(rate)]
        lines.append([at["seen"], *cells, *map(ranged, told)])
    header = ["published", "ε at least", "most possible", "right %", f"TPR % at FPR {100 * FPR:g}%"]
    return table([*header, *(f"advantage, {kind}" for kind in ("all", *KINDS))], lines)


def percent(row: dict[str, float]) -> str:
    return f"{100 * row['ours']:.2f} [{100 * row['ours_low']:.2f}, {100 * row['ours_high']:.2f}]"


def full_terms(rows: Rows) -> Fact:
    row = select(rows, "full_bound")[0]
    return fact(True, confidence=CONFIDENCE, delta=DELTA, guesses=row["guesses"])


def full_differences(rows: Rows) -> str:
    lines = []
    for row in select(rows, "full_difference"):
        at = row["setting"]
        what = {1: at.get("kind"), 2: f"T = {at.get('samples'):,}" if "samples" in at else "", 3: at.get("unit")}
        against = {1: "one prediction", 2: "all samples", 3: "unrounded"}[at["question"]]
        lines.append([f"RQ{at['question']}", at["seen"], what[at["question"]], against, ranged(row, 3)])
    return table(["question", "published", "of, or at", "against", "difference of advantages"], lines)
