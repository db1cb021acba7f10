"""The part of experiments/README.md that tells the coverage study: tables and a figure from its result rows."""

from collections.abc import Iterable, Sequence
from typing import Any

from dpaudit.report.figures import save_png
from experiments import coverage_figure
from experiments.common import FIGURES
from experiments.coverage import CONTROL, LEVEL, NO_GAUSSIAN, OTHER_TRUTHS, PROMISED
from experiments.coverage_peers import PART
from experiments.markdown import select, table

Rows = Sequence[dict[str, Any]]


def section(rows: Rows) -> Iterable[str]:
    """Markdown blocks, in reading order."""
    FIGURES.mkdir(exist_ok=True)
    save_png(coverage_figure.coverage(rows), FIGURES / "coverage.png")
    yield "## The auditor audited\n"
    yield "Command: `python -m experiments.coverage --peers-python PATH`, then `make results`.\n"
    yield from _verdict(rows)
    yield "![False-violation rate and tightness of the estimators](figures/coverage.png)\n"
    yield from _summary(rows)
    yield from _every_cell(rows)
    yield from _others(rows)
    yield from _peers(rows)


def names(rows: Rows, field: str = "estimator", **setting: Any) -> list[Any]:
    """The different values of a field of the setting, in order of appearance."""
    return list(dict.fromkeys(row["setting"][field] for row in select(rows, "false_violation_rate", **setting)))


def sizes_of(rows: Rows) -> list[int]:
    """Trials of an audit."""
    return sorted(names(rows, "trials", part=PROMISED))


def percent(row: dict[str, Any], digits: int = 2) -> str:
    return f"{100 * row['ours']:.{digits}f}"


def largest(found: Rows, digits: int = 2) -> str:
    """The largest of these rates in percent, if there are any."""
    return percent(max(found, key=lambda row: row["ours"]), digits) if found else ""


def rejected(cell: dict[str, Any]) -> bool:
    """Whether the study finds that the estimator errs more often than nominal here."""
    return cell["holm_p"] <= LEVEL


def _verdict(rows: Rows) -> Iterable[str]:
    promised, controls = (select(rows, "false_violation_rate", part=part) for part in (PROMISED, CONTROL))
    (scale,) = select(rows, "study_seconds")
    found = f"smallest adjusted p {min(cell['holm_p'] for cell in promised):.3g}: none exceeds its nominal error"
    if wrong := list(filter(rejected, promised)):
        cells = "; ".join(
            f"{cell['setting']['estimator']} on {cell['setting']['pair']} ({cell['false']} false of {cell['scale']})"
            for cell in wrong
        )
        found = f"**{len(wrong)} exceed their nominal error**: {cells}"
    yield (
        "Complete audits of mechanisms whose trade-off curve is known: releases of the mechanism as shipped, scored by "
        "their likelihood ratio, bounded by each estimator. A false violation is a lower bound above the epsilon that the "
        "rule used really attains, which the mechanism's own is never below (so this is the stricter test). Pairs and "
        'fixed rules attain the mechanism\'s epsilon in full. One-sided binomial tests of "more often than nominal", '
        f"Holm-corrected over all {len(promised)} cells in which the estimator's guarantee applies, at {100 * LEVEL:.0f}%: "
        f"{found}. The same tests reject {sum(map(rejected, controls))} of {len(controls)} cells of the negative controls, "
        "so the study can find a bad estimator. The guarantee of a credible bound (Jeffreys, joint beta) is one over rates drawn "
        "from its prior, that of a Gaussian-DP bound one for Gaussian curves: their other cells are not among these, and stand "
        "further down.\n"
    )
    setting = scale["setting"]
    yield (
        f"At scale: {scale['scale']} of {setting['trials']:,} trials each ({setting['pair']}; {setting['estimator']}) took "
        f"{scale['ours']:.0f} s, {scale['ours_low']:.0f} s of them for the trials.\n"
    )


def _summary(rows: Rows) -> Iterable[str]:
    sizes = sizes_of(rows)
    yield (
        "**Where the guarantee applies, 95%.** For each number of trials (canaries of a one-run audit) the largest "
        "false-violation rate over all pairs, in percent (nominal: 5), and the lower bound as a share of the true epsilon: "
        "medians over audits, lowest to highest pair. Last: milliseconds an audit at the most trials, trials left out.\n"
    )
    lines = []
    for name in names(rows, part=PROMISED):
        own = {"part": PROMISED, "estimator": name, "confidence": 0.95}
        rates = [select(rows, "false_violation_rate", trials=n, **own) for n in sizes]
        shares = [[row["ours"] for row in select(rows, "tightness", trials=n, **own)] for n in sizes]
        ranges = [f"{min(share):.2f} to {max(share):.2f}" if share else "" for share in shares]
        timed = select(rows, "false_violation_rate", **own)
        longest = timed[-1]["setting"]["trials"]
        times = [row["milliseconds_per_audit"] for row in timed if row["setting"]["trials"] == longest]
        cells = [cell for pair in zip(map(largest, rates), ranges, strict=True) for cell in pair]
        lines.append([name, *cells, f"{max(times):.3g}"])
    header = [cell for n in sizes for cell in (f"{n:,}: false %", "bound / ε")]
    yield table(["estimator", *header, "ms"], lines)
    higher = [confidence for confidence in names(rows, "confidence", part=PROMISED) if confidence != 0.95]
    lines = []
    for name in names(rows, part=PROMISED, confidence=higher[0]):
        cells = []
        for confidence in higher:
            own = select(rows, "false_violation_rate", part=PROMISED, estimator=name, confidence=confidence)
            cells.append(largest(own, 3))
        lines.append([name, *cells])
    yield f"The same at higher confidence ({select(rows, 'false_violation_rate', confidence=higher[0])[0]['scale']} a cell).\n"
    yield table(["largest false %", *(f"nominal {100 * (1 - confidence):.2g}" for confidence in higher)], lines)


def _every_cell(rows: Rows) -> Iterable[str]:
    sizes = sizes_of(rows)
    lines = []
    for name in names(rows, part=PROMISED):
        for pair in names(rows, "pair", part=PROMISED, estimator=name):
            cells = []
            for n in sizes:
                own = {"part": PROMISED, "estimator": name, "pair": pair, "trials": n, "confidence": 0.95}
                rate, share = select(rows, "false_violation_rate", **own), select(rows, "tightness", **own)
                cells += [percent(rate[0]) if rate else "", f"{share[0]['ours']:.2f}" if share else ""]
            lines.append([f"{name}; {pair}", *cells])
    header = [cell for n in sizes for cell in (f"{n:,}: false %", "bound / ε")]
    yield "<details><summary>Every pair, 95%</summary>\n"
    yield table(["estimator; pair", *header], lines)
    yield "</details>\n"


def _others(rows: Rows) -> Iterable[str]:
    sizes = sizes_of(rows)
    yield (
        "**Where no guarantee applies, and estimators known to be wrong** (false violations in percent, nominal 5). "
        "Credible bounds promise their error over rates drawn from their prior (tested above), not at one fixed truth; no "
        "verdict of the library uses them. Gaussian-DP bounds assume a Gaussian trade-off curve: elsewhere they report "
        "far more than the truth. An asterisk: rejected by the same test, as one more cell of the table.\n"
    )
    lines = []
    for part in (OTHER_TRUTHS, NO_GAUSSIAN, CONTROL):
        for name in names(rows, part=part):
            for pair in names(rows, "pair", part=part, estimator=name):
                cells = []
                for n in sizes:
                    own = {"part": part, "estimator": name, "pair": pair, "trials": n, "confidence": 0.95}
                    rate = select(rows, "false_violation_rate", **own)
                    cells.append(percent(rate[0], 1) + "*" * rejected(rate[0]) if rate else "")
                lines.append([part, name, pair, *cells])
    yield table(["", "estimator", "pair", *(f"{n:,}" for n in sizes)], lines)


def _peers(rows: Rows) -> Iterable[str]:
    yield (
        "**Other tools on the same scores**, 95%: false violations in percent, the median bound as a share of the true "
        "epsilon, milliseconds an audit (ours in one call for all audits, the others one call an audit). TensorFlow "
        'Privacy\'s class returns its bounds over all thresholds in falling order: "best of all" is the first of them. '
        "With a fixed rule all tools' Clopper-Pearson bounds agree.\n"
    )
    found = select(rows, "false_violation_rate", part=PART)
    lines = []
    for where in dict.fromkeys((row["setting"]["pair"], row["setting"]["trials"]) for row in found):
        for row in found:
            setting = row["setting"]
            if (setting["pair"], setting["trials"]) == where:
                share, time = select(rows, "tightness", **setting), row["milliseconds_per_audit"]
                cells = [f"{share[0]['ours']:.2f}" if share else "", f"{time:.3g}", row["scale"]]
                lines.append([f"{where[0]}, {where[1]:,}", setting["estimator"], percent(row, 1), *cells])
    yield table(["pair, trials", "estimator", "false %", "bound / ε", "ms", "scale"], lines)
