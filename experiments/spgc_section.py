"""The part of experiments/README.md that tells of the trainings of paper 001."""

from collections.abc import Iterable, Sequence
from typing import Any

from experiments.common import FIGURES
from experiments.markdown import number, ranged, select, table
from experiments.spgc_figures import owners_figure, paper_figure
from experiments.spgc_tasks import EPSILONS, OWNERS, TASKS

Rows = Sequence[dict[str, Any]]
FIRST = ("non-private", "MPC only", "SPGC", "LDP")
RULES = {"classical": "the paper's", "add_remove": "exact, added or removed", "replace": "exact, replaced"}


def section(rows: Rows) -> Iterable[str]:
    """Markdown blocks, in reading order; the figures are drawn on the way."""
    for name, draw in (("spgc_accuracy.png", paper_figure), ("spgc_owners.png", owners_figure)):
        draw(rows).savefig(FIGURES / name, dpi=110)
    yield from blocks(rows)


def blocks(rows: Rows) -> Iterable[str]:
    """The text and its tables."""
    yield "## Paper 001: secure aggregation with noise (SPGC)\n"
    yield "Command: `python -m experiments.spgc --work DIR`, then `make results`.\n"
    yield (
        "Trained on the plaintext simulation of the two servers' whole-number arithmetic, bit for bit theirs. Accuracies in percent "
        "after the last epoch, mean [smallest, largest] over the trials; ε is one step's, by the paper's rule, δ = 0.001. Not in "
        "the paper's text, and so ours: epochs, learning rates, which records are tested on (each trial splits Cancer and Diabetes "
        "anew, stratified by class and in the paper's sizes; what one split says is a matter of luck, as the range shows), how "
        "Cancer's features become 90 bits (which third of the training records a value lies in) and that Diabetes' are "
        "standardised. "
        "Non-private training clips as well, as the paper's must: on Diabetes it says that its curve is that of MPC alone.\n"
    )
    yield "![Accuracy by epoch](figures/spgc_accuracy.png)\n"
    for name in TASKS:
        own = select(rows, "accuracy", data=name)
        if own:
            yield from _accuracies(rows, name, own)
    yield from _owners(rows)
    yield from _outside(select(rows, "outside"))
    yield from _spent(rows)


def _accuracies(rows: Rows, name: str, own: Rows) -> Iterable[str]:
    one = own[0]
    setting = one["setting"]
    yield (
        f"**{name}**: {setting['parameters']:,} parameters, {setting['epochs']} epochs, {one['scale']}, "
        f"{OWNERS} owners.\n"
    )
    lines = []
    for row in own:
        at = row["setting"]
        if at["owners"] != OWNERS:
            continue
        same = {key: at[key] for key in ("data", "scheme", "epsilon", "rule", "owners")}
        others = [ranged(select(rows, measure, **same)[0], 1) for measure in ("balanced_accuracy", "auc")]
        cells = [number(at["epsilon"], 1), RULES.get(at["rule"], "–"), ranged(row, 1), number(row["paper_value"], 1)]
        lines.append([at["scheme"], *cells, *others])
    yield table(["scheme", "ε", "rule", "accuracy", "paper", "balanced accuracy", "AUC"], lines)


def _owners(rows: Rows) -> Iterable[str]:
    lines = []
    for row in select(rows, "accuracy", scheme="SPGC", rule="classical", owners=100):
        at = row["setting"]
        for scheme in ("SPGC", "reduced noise", "LDP"):
            same = {"data": at["data"], "epsilon": at["epsilon"], "scheme": scheme, "rule": "classical"}
            found = [select(rows, "accuracy", owners=k, **same) for k in (OWNERS, 10, 100)]
            lines.append(
                [f"{at['data']}, {scheme}", f"{at['epsilon']:g}", *(ranged(f[0], 1) if f else "–" for f in found)]
            )
    if lines:
        yield (
            "**Against the number of owners.** The records are shared out among k owners; a batch keeps its size, but for at "
            "least one record of each owner (with 100 owners, Cancer's and Diabetes' batches are of 100). SPGC's noise does not "
            "grow with k and LDP's does, as √k. Reduced noise is as accurate as SPGC, and private no more: see the audit.\n"
        )
        yield "![Accuracy by owners](figures/spgc_owners.png)\n"
        yield table(["data, scheme", "ε", "k = 3", "k = 10", "k = 100"], lines)


def _outside(rows: Rows) -> Iterable[str]:
    yield (
        "**Room for the noise.** By the paper's scale, m clip norms fill the ring, which corrects Chase et al., where a sum of +mC "
        "and one of −mC are one value, but leaves the noise no room: the share of coordinates whose noise alone is outside, and "
        "comes back with the wrong sign. Ours is chosen so that the binomial never is.\n"
    )
    epsilons = list(dict.fromkeys(row["setting"]["epsilon"] for row in rows))
    lines = [
        [f"m = {m:,}", *(f"{row['ours']:.1e}" for row in rows if row["setting"]["examples"] == m)]
        for m in dict.fromkeys(row["setting"]["examples"] for row in rows)
    ]
    yield table(["batch", *(f"ε = {epsilon:g}" for epsilon in epsilons)], lines)


def _spent(rows: Rows) -> Iterable[str]:
    found = select(rows, "epsilon", scheme="SPGC", rule="classical")
    if not found:
        return
    yield (
        "**What SPGC spends**, by its exact probabilities (an upper bound), under the paper's rule: one step, and all epochs "
        "together on a record that is in one batch of each.\n"
    )
    lines = []
    for name in dict.fromkeys(row["setting"]["data"] for row in found):
        for epsilon in EPSILONS:
            own = select(found, "epsilon", data=name, epsilon=epsilon)
            lines.append([name, f"{epsilon:g}", *(number(row["ours"]) for row in own)])
    releases = sorted({row["setting"]["releases"] for row in found})
    several = " or ".join(f"{count}" for count in releases[1:])
    header = [
        f"{relation}, {count}"
        for relation in ("replaced", "added or removed")
        for count in ("1 step", f"{several} epochs")
    ]
    yield table(["data", "ε of a step", *header], lines)
