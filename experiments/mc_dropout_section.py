"""The part of experiments/README.md that tells paper 003: tables and figures from its result rows."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from dpaudit.report.figures import save_png
from experiments import mc_dropout_figures as drawn
from experiments import mc_dropout_scale_section as one
from experiments import mc_dropout_verdicts as verdicts
from experiments.common import FIGURES
from experiments.markdown import number, select, table
from experiments.mc_dropout_bench import DELTA, EPSILON, SCALES
from experiments.mc_dropout_risk import QUICK
from experiments.mc_dropout_rows import CONFIDENCE, DETERMINISTIC, NULLS, TOGETHER
from experiments.mc_dropout_scale_section import ATTACKS

Rows = Sequence[dict[str, Any]]
RUN = {
    "shown": "data",
    "pixels": "pixels a side",
    "records": "records of D'",
    "shadow": "records of the shadow models",
    "batch_size": "batch",
    "epochs": "epochs",
    "steps": "steps",
    "noise": "noise multiplier",
    "network": "network",
    "models": "networks of an estimate",
    "repeats": "estimates of a data set",
    "samples": "T, where nothing else is said",
}
PAPER = SCALES["paper"]._asdict() | {
    "shown": "cifar10",
    "shadow": "of the test set",
    "steps": SCALES["paper"].steps,
    "network": "CNN32",
}


def section(rows: Rows) -> Iterable[str]:
    """Markdown blocks, in reading order."""
    return told(rows, FIGURES)


def told(rows: Rows, figures: Path) -> Iterable[str]:
    """The same; draws the figures into their folder."""
    figures.mkdir(exist_ok=True)
    each = {name: [row for row in rows if row["setting"]["scale"] == name] for name in SCALES if name != QUICK}
    scales: dict[str, Rows] = {name: own for name, own in each.items() if own}
    yield "## Paper 003: what a Bayesian network made by dropout gives away\n"
    yield "Command: `python -m experiments.mc_dropout_risk --scale NAME --work DIR`, then `make results`.\n"
    yield (
        "A network that was trained with dropout can be asked T times under dropout. Paper 003 asks whether the mean and the "
        "standard deviation of its answers, or all of them, tell more of who was in the training data than its one prediction "
        "without dropout does (RQ1), whether T matters (RQ2), and whether rounding what is published helps and keeps it useful "
        "(RQ3). D' has one record more than D; networks are trained on either by DP-SGD; the attacker sees what is published for "
        "that record. Its answers: samples leak more; from two samples on their number makes no clear difference; rounding lowers "
        "the risk and keeps the accuracy.\n"
    )
    yield from _overview(scales, figures)
    yield from _run(scales)
    yield from _earlier(scales)
    yield from _terms()
    yield from _answers(scales)
    yield from _beside_the_paper(scales)
    for name, own in scales.items():
        yield from one.section(name, own, figures)
    yield from _readings()


def _overview(scales: dict[str, Rows], figures: Path) -> Iterable[str]:
    title = "What was promised, what a white-box canary shows, and what the outputs show"
    save_png(drawn.overview(scales), figures / "mc_dropout_overview.png")
    yield f"![{title}](figures/mc_dropout_overview.png)\n"
    yield (
        f"*{title}. Triangles: lower bounds, each with confidence {CONFIDENCE:.0%} by itself; numbers are the paper's data sets. "
        "Circles: the paper's estimates, which are no bounds; crosses: their null, of networks that differ in nothing. \"Most "
        'possible" is the bound of an attack that is never wrong.*\n'
    )


def _run(scales: dict[str, Rows]) -> Iterable[str]:
    yield "**What was run**, beside the paper's own scale.\n"
    trained = [select(rows, "trained")[0] for rows in scales.values()]
    lines = [[text, *(_plain(run[name]) for run in (PAPER, *trained))] for name, text in RUN.items()]
    lines.append(["data sets", "4", *(str(len(one.targets(rows))) for rows in scales.values())])
    for accounting, stated in (("Renyi", number(EPSILON)), ("PLD", "–")):
        own = [number(select(rows, "accounted", accounting=accounting)[0]["ours"]) for rows in scales.values()]
        lines.append([f"promised ε at δ = {DELTA:g}, {accounting}", stated, *own])
    yield table(["", "paper", *scales], lines)
    yield (
        "The noise of smaller scales is set so that Renyi accounting promises the paper's ε there too. Fewer records and "
        "steps at the same ε are another mechanism all the same: what holds here is shown here, not at the paper's scale, which is "
        "the command's `--scale paper`. Where it says JPEG, the copy of the data at hand had gone through it; exact copies and such are "
        "never mixed.\n"
    )


def _earlier(scales: dict[str, Rows]) -> Iterable[str]:
    """Which scales' rows the command as it is now does not make."""
    earlier = [name for name, rows in scales.items() if any("sampler" in row["made_by"] for row in rows)]
    if earlier:
        yield (
            f"The rows of {' and '.join(earlier)} were made with an earlier sampler: the same networks, dropout masks of the same "
            "law, but other random words. The command now draws other samples and makes other rows; work folders of that sampler "
            "are refused.\n"
        )


def _terms() -> Iterable[str]:
    yield (
        "*Estimate*: the paper's. Eq. (7), under the thresholds that make it largest on the very networks that it counts, the better "
        "of types 1 and 2; mean ± standard deviation over the repeats. *Null*: the same after the coins were shuffled, so that "
        f'the networks of "D" and "D\'" differ in nothing, a mean of at least {NULLS}; in tables it stands in brackets. *Honest*: a lower bound on ε with '
        f"confidence {CONFIDENCE:.0%}, from thresholds that were chosen on half of all networks and errors that were counted on the "
        "other. *Likelihood ratio*: the same of a stronger attacker, who knows how the statistics are distributed in both "
        "worlds. *Advantage*: 1 - FPR - FNR of guesses, every network's by a rule that was chosen on others; it bounds no ε, and says "
        "which of two outputs tells more. Its intervals are approximate, and hold together with the same confidence for all comparisons of a "
        "question, at a scale, for an attack.\n"
    )


def _answers(scales: dict[str, Rows]) -> Iterable[str]:
    yield "### Which answers hold\n"
    yield (
        "In brackets: comparisons (of data sets and outputs) that speak for the answer / for its opposite / that are open. By "
        f"estimates a comparison is open where both are within {verdicts.ERRORS} standard errors over the repeats, so a single repeat "
        "settles none; by advantages where the simultaneous interval includes zero. Risks are called equal where the whole "
        f"interval lies within {verdicts.SAME['estimate']:g} nats or an advantage of {verdicts.SAME['advantage']:g}. The two columns of "
        "advantages are what holds with confidence; open does not mean equal.\n"
    )
    lines = []
    for claim in verdicts.CLAIMS:
        for name, rows in scales.items():
            estimates = [verdicts.by_estimate(claim, rows, above_null=above) for above in (False, True)]
            advantages = [verdicts.by_advantage(claim, rows, attack) for attack in ATTACKS]
            lines.append([f"{claim.question}: {claim.text}", name, *map(str, estimates), *map(_bold, advantages)])
    header = ["answer of the paper", "scale", "estimates", "estimates less null"]
    yield table([*header, *(f"advantages, {name}" for name in ATTACKS.values())], lines)
    seen = "; ".join(f"{name}: {verdicts.above_null_alone(rows)}" for name, rows in scales.items())
    room = "; ".join(f"{name}: {_room(rows):.2f}" for name, rows in scales.items())
    yield f"RQ1's intervals leave room for samples to tell more than one prediction by an advantage of up to {room}.\n"
    yield f"Estimates of Fig. 5, one statistic or several, that exceed their null: {seen}.\n"
    for name, rows in scales.items():
        lost, undecided = _lost(rows)
        kept = "holds" if lost < verdicts.LOSS else "fails"
        yield (
            f"RQ3, utility, {name}: rounding to {verdicts.UNIT} costs {100 * lost:.1f} points of accuracy, and {100 * undecided:.1f}% "
            f"of the records get no label (paper: less than {100 * verdicts.LOSS:g} point): **{kept}**.\n"
        )


def _beside_the_paper(scales: dict[str, Rows]) -> Iterable[str]:
    yield "### The paper's numbers beside ours\n"
    yield (
        "In brackets: the null. Ratios are of estimates on data set 1, to that of one "
        "prediction. Accuracies are means over networks, on records that no network was trained on.\n"
    )
    rounded, loss = " → ".join(map(str, verdicts.ROUNDED)), f"less than {100 * verdicts.LOSS:g} point"
    told: list[tuple[str, str, Callable[[Rows], str]]] = [
        ("largest mean estimate", f"about {verdicts.LARGEST:g}", _largest),
        *((f"ratio, {seen}", number(ratio, 1), _ratio_of(seen)) for seen, ratio in verdicts.RATIOS.items()),
        (f"mean std, data set 1, rounded to {verdicts.UNIT}", rounded, _rounded),
        ("accuracy lost by that", loss, lambda rows: f"{100 * _lost(rows)[0]:.1f} points"),
        ("accuracy, one prediction", number(verdicts.PLAIN_ACCURACY), _accuracy_of(published=DETERMINISTIC)),
        *(
            (f"accuracy, mean of T = {count}", number(stated), _accuracy_of(published="mean", samples=count))
            for count, stated in verdicts.ACCURACY.items()
        ),
    ]
    lines = [[text, stated, *(of(rows) for rows in scales.values())] for text, stated, of in told]
    yield table(["", "paper", *scales], lines)
    yield "The paper prints its other estimates as figures only.\n"


def _readings() -> Iterable[str]:
    yield "### What the paper leaves open, and how it is taken here\n"
    yield (
        "The scalar of a prediction that is scored is the probability of the target's true class. β of Eq. (4) is 0. At T = 1, "
        "and wherever all samples agree, 1/std is infinite, the largest value that there is. A count of zero errors is taken for one "
        'half. Eq. (6) prints the noise outside of 1/|B|; it is inside here, as in Opacus, which the paper used. "Variance 0.5" is '
        "the noise multiplier, which is what the promised ε fits. Batches are Poisson samples, as the accounting takes them to be. Shadow models are "
        "trained on other records of the pool of training and test data, and the accuracy is that on records which are in neither. The "
        "pictures of the targets are shown for the bundled digits only: those of other data sets are not ours to give away, and "
        "the command draws them into its folder.\n"
    )


def _largest(rows: Rows) -> str:
    found = [row for row in select(rows, "epsilon", part=1) if row["setting"]["seen"] in (DETERMINISTIC, *TOGETHER)]
    best = max(found, key=lambda row: row["ours"])
    return f"{one.with_null(best)}, data set {best['setting']['target']}, {best['setting']['seen']}"


def _ratio_of(seen: str) -> Callable[[Rows], str]:
    def said(rows: Rows) -> str:
        one, more = (select(rows, "epsilon", part=1, target=1, seen=name)[0] for name in (DETERMINISTIC, seen))
        return f"{more['ours'] / one['ours']:.1f} ({more['null'] / one['null']:.1f})"

    return said


def _rounded(rows: Rows) -> str:
    (before,) = select(rows, "epsilon", part=1, target=1, seen="mean std")
    (after,) = select(rows, "epsilon", part=3, target=1, unit=verdicts.UNIT)
    return f"{one.with_null(before)} → {one.with_null(after)}"


def _lost(rows: Rows) -> tuple[float, float]:
    """Accuracy, and records without a label, that rounding costs."""
    (before,) = select(rows, "utility", published="mean std", temperature=1.0)
    (after,) = select(rows, "utility", published="mean std", unit=verdicts.UNIT)
    return before["ours"] - after["ours"], after["undecided"]


def _accuracy_of(**setting: Any) -> Callable[[Rows], str]:
    return lambda rows: number(select(rows, "utility", **setting)[0]["ours"])


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:,}" if isinstance(value, int) else number(value)


def _bold(tally: verdicts.Tally) -> str:
    return f"**{tally}**" if tally.holds or tally.opposite else str(tally)


def _room(rows: Rows) -> float:
    """The largest difference of advantages that RQ1's intervals do not exclude."""
    return max(row["high"] for row in select(rows, "advantage", part=1))
