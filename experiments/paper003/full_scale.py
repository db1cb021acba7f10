"""Asks the paper's questions at the paper's own scale, of networks that each had a coin for 1,000 targets.

    python -m experiments.paper003.full_scale --work DIR --networks 0 1   # of ten; a network takes a CPU hour
    python -m experiments.paper003.full_scale --quick --out DIR           # digits: under a minute

A killed training goes on from DIR. Networks that the committed rows have stay in them, if the program, the data and
the targets are the same, and all that is known of all of them is computed again. Expect accuracies near the paper's,
and bounds far below the promise.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging

from dpaudit._engine import hosts
from dpaudit._engine.fingerprint import refuse_another
from dpaudit.cli.command import bars_on_terminal
from experiments.common import Rows, as_command, bar_of, options, refuse_homeless
from experiments.paper003 import memberships, networks
from experiments.paper003.bench import COUNTS, DELTA, SCALES, Bench
from experiments.paper003.memberships import Guessed, Published
from experiments.paper003.networks import KINDS
from experiments.paper003.published import STATED
from experiments.paper003.questions import CONFIDENCE, DETERMINISTIC, UNITS

NAME = "mc_dropout_full"
TOGETHER = {"mean std": ("mean", "std"), "min max": ("min", "max"), "min max mean std": ("mean", "std", "min", "max")}
QUICK_NETWORKS, QUICK_TARGETS = (0, 1), 80


def of_targets(row: dict[str, Any]) -> str:
    """Names the file beside that has what a network, or the shadow models, say of each target."""
    if row["quantity"] == "full_network":
        return f"network-{row['setting']['network']}"
    return "shadows" * (row["quantity"] == "full_shadows")


def gather(rows: Rows, scale: str, targets: int, found: Sequence[dict[str, Any]], shadows: Sequence[Any]) -> None:
    """Adds a row for each network, and what they say together."""
    for record in found:
        row = rows.add("full_network", {"network": record["network"]}, record["utility"][DETERMINISTIC], scale=scale)
        row |= {name: value for name, value in record.items() if name != "network"}
    rows.add("full_shadows", {}, len(shadows), scale=scale)["told"] = list(shadows)
    kinds = np.repeat(np.arange(len(KINDS)), targets // len(KINDS))
    useful(rows, scale, found)
    seen = memberships.published(found, shadows, kinds)
    bounds(rows, scale, seen)
    questions(rows, scale, seen)
    rows.finish_part(scale)


def useful(rows: Rows, scale: str, found: Sequence[dict[str, Any]]) -> None:
    """Adds accuracies over the networks."""
    for name in found[0]["utility"]:
        each = [record["utility"][name] for record in found]
        judged = found[0]["judged" if name in STATED else "judged_whole"]
        middle, *ends = networks.interval(each, judged)
        row = rows.add("full_accuracy", {"published": name}, middle, ends, scale=scale, paper_value=STATED.get(name))
        row["records"] = judged


def bounds(rows: Rows, scale: str, seen: Published) -> None:
    """Adds what each output reveals: a bound on epsilon, the advantage, and TPR at a small FPR."""
    for name, columns in ({DETERMINISTIC: (DETERMINISTIC,)} | TOGETHER).items():
        score = memberships.together(seen, columns)
        found, most = memberships.bound(score, seen.member, delta=DELTA, confidence=CONFIDENCE)
        rate = memberships.true_positives(score, seen.member, CONFIDENCE)
        row = rows.add("full_bound", {"seen": name}, found.epsilon_lower, scale=scale)
        row |= {"ceiling": round(most, 4), "right": found.correct / sum(found.plan), "guesses": sum(found.plan)}
        _add(rows, "full_true_positives", {"seen": name}, rate, scale)
        for kind, own in _kinds(seen):
            told = memberships.advantage(score[:, own], seen.member[:, own], CONFIDENCE)
            _add(rows, "full_advantage", {"seen": name, "kind": kind}, told, scale)


def questions(rows: Rows, scale: str, seen: Published) -> None:
    """Adds the differences that RQ1 to RQ3 ask for; the intervals of a question hold together."""
    plain, groups = memberships.together(seen, (DETERMINISTIC,)), _kinds(seen)
    among = len(TOGETHER) * len(groups)
    for name, columns in TOGETHER.items():
        second = memberships.together(seen, columns)
        for kind, own in groups:
            apart = _difference(plain[:, own], second[:, own], seen.member[:, own], among)
            _add(rows, "full_difference", {"question": 1, "seen": name, "kind": kind}, apart, scale)
    whole = memberships.together(seen, ("mean",))
    fewer = [count for count in COUNTS if f"mean of {count}" in seen.own and count < COUNTS[-1]]
    for count in fewer:
        second = memberships.together(seen, (f"mean of {count}",))
        told = {"question": 2, "seen": "mean", "samples": count}
        _add(rows, "full_difference", told, _difference(whole, second, seen.member, len(fewer)), scale)
    whole = memberships.together(seen, TOGETHER["mean std"])
    for unit in UNITS:
        second = memberships.together(seen, TOGETHER["mean std"], unit)
        told = {"question": 3, "seen": "mean std", "unit": unit}
        _add(rows, "full_difference", told, _difference(whole, second, seen.member, len(UNITS)), scale)


def _difference(first: np.ndarray, second: np.ndarray, member: np.ndarray, among: int) -> Guessed:
    return memberships.difference(first, second, member, 1 - (1 - CONFIDENCE) / among)


def _kinds(seen: Published) -> list[tuple[str, np.ndarray]]:
    """All targets, and those of each kind."""
    every = ("all", np.ones(len(seen.kinds), bool))
    return [every, *((name, seen.kinds == kind) for kind, name in enumerate(KINDS))]


def _add(rows: Rows, quantity: str, setting: dict[str, Any], told: Guessed, scale: str) -> None:
    rows.add(quantity, setting, told.value, (told.low, told.high), scale=scale)


def earlier(rows: Rows, identity: dict[str, str], wanted: Sequence[int]) -> list[dict[str, Any]]:
    """Returns the networks of the committed rows that are not trained now, all of the same program."""
    found = []
    for row in rows.earlier:
        if row["quantity"] == "full_network" and row["setting"]["network"] not in wanted:
            refuse_another(identity, row["identity"], "experiment", rows.file.name)
            told = ("identity", "member", "targets", "utility", "judged", "judged_whole", "cpu_hours")
            found.append(row["setting"] | {name: row[name] for name in told})
    return found


def main() -> None:
    parser = options(__doc__ or "", work="networks")
    parser.add_argument(
        "--networks", type=int, nargs="+", choices=range(networks.NETWORKS), default=list(range(networks.NETWORKS))
    )
    chosen = parser.parse_args()
    refuse_homeless(chosen)
    hosts.alone(NAME, "--networks shares the networks out")
    logging.set_verbosity("error")  # dp-accounting warns of every Renyi order that it does without
    rows = Rows("003", NAME, chosen.out, chosen.seed, keep=lambda row: False, beside=of_targets)
    scale = SCALES["quick" if chosen.quick else "paper"]
    targets = QUICK_TARGETS if chosen.quick else networks.TARGETS
    wanted = QUICK_NETWORKS if chosen.quick else chosen.networks
    with tempfile.TemporaryDirectory() as temporary, bars_on_terminal() as bars:
        bench = Bench(scale, chosen.seed, Path(chosen.work or temporary), chosen.data_dir)
        bench.work.mkdir(parents=True, exist_ok=True)
        shadows = networks.shadows(bench)
        selected = networks.choose(bench, shadows, targets)
        told = networks.references(bench, shadows, selected)
        found = earlier(rows, networks.identity_of(bench, selected), wanted)
        for number in wanted:
            shown = bar_of(bars, f"network {number}", scale.steps)
            found.append(networks.network(bench, number, selected, shown))
    found = sorted(found, key=lambda record: record["network"])
    for accounting, spent in bench.epsilon().items():
        rows.add("full_accounted", {"accounting": accounting}, spent, scale="closed form")
    text = f"{len(found)} network{'s' * (len(found) > 1)}, {targets:,} targets each"
    text += f", {scale.records:,} records, {scale.steps:,} steps"
    gather(rows, text, targets, found, told)


if __name__ == "__main__":
    as_command(main)
