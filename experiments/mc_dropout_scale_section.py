"""What one scale of paper 003's experiment shows: the part of its section that is the same for all scales."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpaudit.auditing.bounds import plan
from dpaudit.report.figures import save_png
from experiments import mc_dropout_figures as drawn
from experiments.markdown import number, select, table
from experiments.mc_dropout_bench import DELTA, SCALES
from experiments.mc_dropout_rows import CONFIDENCE, DETERMINISTIC, SINGLES, TOGETHER

Rows = Sequence[dict[str, Any]]
ATTACKS = {"thresholds": "thresholds", "ratio": "likelihood ratio"}
ALL_FOUR = drawn.ALL_FOUR


def section(name: str, rows: Rows, figures: Path) -> Iterable[str]:
    """Markdown blocks, in reading order; draws the figures into their folder."""
    (run,), paper = select(rows, "trained"), SCALES["paper"]
    networks = run["models"] * run["repeats"]
    most = plan.ceiling(networks // 4, networks // 4, delta=DELTA, confidence=CONFIDENCE)
    yield f"### {name}: {run['shown']}, {run['records']:,} records of {run['pixels']} x {run['pixels']}\n"
    yield (
        f"{run['network']}, batch {run['batch_size']}, {run['epochs']} epochs ({run['steps']:,} steps), noise multiplier "
        f"{number(run['noise'])}, in place of {paper.records:,} records, batch {paper.batch_size}, {paper.epochs} epochs "
        f"({paper.steps:,} steps) and {paper.noise:g} in the paper; {run['repeats']} x {run['models']} networks a data set, in "
        f"place of {paper.repeats} x {paper.models}. An attack that is never wrong would get an honest bound of {number(most)} "
        "from so many.\n"
    )
    if (figures / f"mc_dropout_targets_{name}.png").exists():
        yield f"![Fig. 4: the targets](figures/mc_dropout_targets_{name}.png)\n"
    yield from _question_1(name, rows, figures)
    yield from _question_2(name, rows, figures)
    yield from _question_3(name, rows, figures)
    yield from _beyond(rows)


def _question_1(name: str, rows: Rows, figures: Path) -> Iterable[str]:
    yield "**RQ1: samples against one prediction.**\n"
    yield _figure(drawn.risks(rows), f"mc_dropout_{name}_risks.png", "Fig. 5: estimates and bounds", figures)
    yield from _risks(rows, (DETERMINISTIC, *TOGETHER))
    nulls = {seen: _mean(select(rows, "epsilon", part=1, seen=seen), "null") for seen in (DETERMINISTIC, *TOGETHER)}
    ratios = ", ".join(f"{seen} {nulls[seen] / nulls[DETERMINISTIC]:.1f}" for seen in TOGETHER)
    every = select(rows, "epsilon", part=1)
    (run,) = select(rows, "trained")
    networks = run["models"] * run["repeats"]
    yield (
        "How biased the estimate is: its null is "
        f"{', '.join(f'{number(null)} ({seen})' for seen, null in nulls.items())}, on average over the data sets. More statistics offer more "
        f"thresholds to choose from, so their nulls alone are these multiples of one prediction's: {ratios}. All {networks:,} networks at "
        f"once, in place of {run['models']}: {_all_at_once(every)}, means over everything in Fig. 5; the paper saw no large difference. Where an error rate is zero, Eq. (7) is infinite: that befalls "
        f"{100 * _mean(every, 'infinite'):.0f}% of the repeats' estimates. Here a count of zero is taken for one half; the paper's "
        "means are finite, so it must take it for something too, and does not say for what.\n"
    )
    lines = []
    for row in select(rows, "advantage", part=1, attack="thresholds"):
        setting = row["setting"]
        both = [select(rows, "advantage", **(setting | {"attack": attack}))[0] for attack in ATTACKS]
        lines.append([f"{setting['target']}: {setting['seen']}", *map(_apart, both)])
    yield "Advantages: one prediction's → this output's, and the difference with its simultaneous interval; bold without zero.\n"
    yield table(["data set: published", *ATTACKS.values()], lines)
    yield "<details><summary>One statistic at a time</summary>\n"
    yield from _risks(rows, SINGLES)
    yield "</details>\n"


def _risks(rows: Rows, shown: Iterable[str]) -> Iterable[str]:
    lines = []
    for target in targets(rows):
        (one,) = select(rows, "epsilon", part=1, target=target, seen=DETERMINISTIC)
        for seen in shown:
            (row,) = select(rows, "epsilon", part=1, target=target, seen=seen)
            times = [number(row[name] / one[name], 1) for name in ("ours", "null")]
            bounds = [number(row[name]) for name in ("honest", "likelihood_ratio")]
            everything = f"{number(row['of_all'])} ({number(row['null_of_all'])})"
            cells = [_spread(row), number(row["null"]), *times, everything, f"{100 * row['infinite']:.0f}", *bounds]
            lines.append([f"{target}: {seen}", *cells])
    header = ["data set: published", "estimate", "null", "ratio to one prediction", "ratio of nulls"]
    yield table([*header, "all networks", "infinite %", "honest", "likelihood ratio"], lines)


def _question_2(name: str, rows: Rows, figures: Path) -> Iterable[str]:
    yield "**RQ2: the number of samples.**\n"
    yield _figure(drawn.samples(rows), f"mc_dropout_{name}_samples.png", "Fig. 6: risk against T", figures)
    title = "Fig. 7: the mean over networks, T = 2 and all"
    yield _figure(drawn.distributions(rows), f"mc_dropout_{name}_distributions.png", title, figures)
    yield (
        "Estimates (null), means over the data sets. Last: how many simultaneous intervals for the advantage with so "
        "many samples less that with all of them lie below / above zero.\n"
    )
    lines = []
    for count in _counts(rows):
        found = {seen: select(rows, "epsilon", part=2, seen=seen, samples=count) for seen in SINGLES | TOGETHER}
        cells = [f"{number(_mean(own, 'ours'))} ({number(_mean(own, 'null'))})" for own in found.values()]
        apart = [_signs(select(rows, "advantage", part=2, samples=count, attack=attack)) for attack in ATTACKS]
        lines.append([f"{count:,}", *cells, *apart])
    yield table(["T", *SINGLES, *TOGETHER, *ATTACKS.values()], lines)
    yield (
        "With one sample its standard deviation is 0 in every network and 1/std infinite, so that it tells nothing; the mean, the "
        "minimum and the maximum are the same number.\n"
    )


def _question_3(name: str, rows: Rows, figures: Path) -> Iterable[str]:
    yield "**RQ3: defences, utility against risk.**\n"
    yield _figure(drawn.rounding(rows), f"mc_dropout_{name}_rounding.png", "Fig. 8: rounding", figures)
    first = select(rows, "utility")[0]
    (run,) = select(rows, "trained")
    yield (
        f"Utility: means over {first['networks']} networks and {run['evaluated']} records that they were not trained on; "
        "*error AUROC*: how well the entropy of the mean, or the standard deviation of the predicted class, tells wrong predictions from right "
        "ones. Risk: the estimate (null), a mean over the data sets, and the bounds of every data set. Last: "
        "simultaneous intervals for the advantage less that of unrounded outputs below / above zero.\n"
    )
    useful = ["accuracy %", "no label %", "calibration error", "error AUROC, entropy", "error AUROC, std"]
    intervals = [f"intervals, {name}" for name in ATTACKS.values()]
    yield table(["published", *useful, "estimate", "honest", "likelihood ratio", *intervals], _defences(rows))
    hot = max(row["setting"].get("temperature", 1.0) for row in select(rows, "utility"))
    sides = [_at_temperature(rows, temperature) for temperature in (1.0, hot)]
    yield (
        "Temperature divides the logits of every sample. The paper rejects it because it changes the posterior that is "
        f"published: from 1 to {hot:g} the calibration error goes from {sides[0][0]} to {sides[1][0]}, the estimate from "
        f"{sides[0][1]} to {sides[1][1]}. Rounding keeps what it publishes within half a unit. A label alone is one bit for the "
        "attacker: right or wrong.\n"
    )


def _defences(rows: Rows) -> Iterable[list[str]]:
    last = _counts(rows)[-1]
    for row in select(rows, "utility"):
        setting = {name: value for name, value in row["setting"].items() if name not in ("scale", "published")}
        published = row["setting"]["published"]
        part = 1 if published == DETERMINISTIC else 2 if published == "mean" else 3
        named = ", ".join(f"{'T' if name == 'samples' else name} = {value:,}" for name, value in setting.items())
        cells = [f"{100 * row[name]:.1f}" for name in ("ours", "undecided")]
        cells += [number(row.get(name)) for name in ("calibration_error", "auroc_entropy", "auroc_std")]
        name = f"{published}, {named}" if named else published
        yield [name, *cells, *_risk_cells(rows, part=part, seen=published, **setting)]
    (plain,) = select(rows, "utility", published="mean", samples=last)
    accuracy = [f"{100 * plain['ours']:.1f}", f"{100 * plain['undecided']:.1f}", "–", "–", "–"]
    yield ["label of the mean", *accuracy, *_risk_cells(rows, part=3, seen="label")]
    yield [f"{ALL_FOUR}, T = {last:,}", *accuracy, *_risk_cells(rows, part=1, seen=ALL_FOUR)]


def _risk_cells(rows: Rows, **setting: Any) -> list[str]:
    own = select(rows, "epsilon", **setting)
    bounds = [" / ".join(number(row[name]) for row in own) for name in ("honest", "likelihood_ratio")]
    apart = [_signs(select(rows, "advantage", **setting, attack=attack)) for attack in ATTACKS]
    apart = apart if "unit" in setting else ["–", "–"]
    return [f"{number(_mean(own, 'ours'))} ({number(_mean(own, 'null'))})", *bounds, *apart]


def _at_temperature(rows: Rows, temperature: float) -> tuple[str, str]:
    (useful,) = select(rows, "utility", temperature=temperature)
    own = select(rows, "epsilon", part=3, temperature=temperature)
    return number(useful["calibration_error"]), f"{number(_mean(own, 'ours'))} (null {number(_mean(own, 'null'))})"


def _beyond(rows: Rows) -> Iterable[str]:
    white, single = select(rows, "white_box"), select(rows, "one_run")
    if not white and not single:
        return
    yield (
        "**Beyond the paper.** *White box*: the same training seen by an adversary who sees every step's noisy sum, with a "
        "canary whose gradient is at right angles to all others; in one training many canaries have a coin of their own in every step, which "
        "bounds the noise, and the accounting makes that a bound on ε. *One run*: one network with every record of D' as a target, in the "
        "data by a coin of its own; a record's score is the logit of the probability of its class, less the shadow models'. "
        f"Lower bounds with confidence {CONFIDENCE:.0%} each; for one run, the mean of the runs' bounds and their range.\n"
    )
    lines = []
    for row in white:
        what = f"{row['networks']:,} trainings" if "networks" in row else f"1 training, {row['guesses']:,} coins"
        cells = [what, number(row["ours"]), number(row.get("ceiling"))]
        lines.append([f"white box, {row['setting']['by']}", *cells, number(row.get("of_all"))])
    for row in single:
        what = f"{row['runs']} networks, {row['targets']:,} targets each"
        bound = f"{number(row['ours'])} [{number(min(row['each']))}, {number(max(row['each']))}]"
        right = f"{100 * row['right']:.0f}% of the guesses are right"
        lines.append([f"one run, {row['setting']['seen']}", what, bound, number(row["ceiling"]), right])
    yield table(["adversary", "what was run", "honest bound", "most possible", "estimate, or rate"], lines)
    (run,) = select(rows, "trained")
    spent = " and ".join(
        f"{number(row['ours'])} ({row['setting']['accounting']})" for row in select(rows, "accounted")
    )
    shown = [row[name] for row in select(rows, "epsilon", part=1) for name in ("honest", "likelihood_ratio")]
    most = f" The white box shows {number(max(row['ours'] for row in white))}." if white else ""
    networks = run["models"] * run["repeats"] * len(targets(rows))
    few = (
        f" One run's networks are {single[0]['runs']} trainings, where the data sets above took {networks:,}."
        if single
        else ""
    )
    yield (
        f"Promised: {spent}.{most} The outputs for one record show between {number(min(shown))} and {number(max(shown))}, over the data sets, "
        f"the statistics and both attacks.{few}\n"
    )


def _figure(figure: Any, file: str, title: str, figures: Path) -> str:
    save_png(figure, figures / file)
    return f"![{title}](figures/{file})\n"


def _all_at_once(rows: Rows) -> str:
    few, every = (
        f"{number(_mean(rows, ours))} ({number(_mean(rows, null))})"
        for ours, null in (("ours", "null"), ("of_all", "null_of_all"))
    )
    return f"{few} becomes {every}"


def _apart(row: dict[str, Any]) -> str:
    text = f"{row['first']:.2f} → {row['second']:.2f}: {row['ours']:+.2f} [{row['low']:+.2f}, {row['high']:+.2f}]"
    return f"**{text}**" if row["low"] > 0 or row["high"] < 0 else text


def _signs(rows: Rows) -> str:
    below, above = sum(row["high"] < 0 for row in rows), sum(row["low"] > 0 for row in rows)
    return f"{below} / {above} of {len(rows)}" if rows else "–"


def _spread(row: dict[str, Any]) -> str:
    return number(row["ours"]) + ("" if row["deviation"] is None else f" ± {row['deviation']:.2f}")


def with_null(row: dict[str, Any]) -> str:
    return f"{number(row['ours'])} ({number(row['null'])})"


def _mean(rows: Rows, name: str) -> float:
    return float(np.mean([row[name] for row in rows]))


def targets(rows: Rows) -> list[int]:
    return sorted({row["setting"]["target"] for row in select(rows, "epsilon", part=3)})


def _counts(rows: Rows) -> list[int]:
    return sorted({row["setting"]["samples"] for row in select(rows, "epsilon", part=2)})
