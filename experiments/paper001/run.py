"""Trains by SPGC beside LDP, no noise and no privacy: what models are worth at an epsilon of a step (Fig. 1).

    python -m experiments.spgc --quick --out DIR                     # bundled Cancer data: under a minute
    python -m experiments.spgc --work DIR                            # all three data sets; MNIST takes hours
    python -m experiments.spgc --work DIR --tasks Cancer Diabetes    # these two, ten trials

Three owners and the paper's rule for the noise; then exact rules, other ways to make the noise, and 10 and 100 owners;
MNIST, with the paper's owners and rule alone: three trials of what Fig. 1 draws, one of the other ways to noise.
Every run keeps a record in --work: a sweep that was killed goes on, and no run is made twice. Processes may share the
runs out with --share I/N; the one without it writes the rows. Rows of other trainings stay.

Expect SPGC to be as accurate with 100 owners as with 3 and LDP to fall; and, on Cancer, far better accuracies at small
epsilon than the paper's.
"""

import math
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging
from scipy.special import ndtr

from dpaudit._engine import hosts
from dpaudit.auditing.result import json_number
from dpaudit.secure.noise import accounting, gaussian
from dpaudit.secure.protocol import fixed_point
from experiments.common import Rows, options, refuse_homeless, shared_out
from experiments.paper001.figures import drawn
from experiments.paper001.runs import NOISELESS, SCHEMES, Run, play_all, runs, step_of
from experiments.paper001.tasks import DELTA, EPSILONS, OWNERS, TASKS

MEASURES = ("accuracy", "balanced_accuracy", "auc")
SETTING = ("data", "scheme", "epsilon", "rule", "owners")
RELATIONS = ("replace", "add_remove")
TRIALS = {"MNIST": 3, "Cancer": 10, "Diabetes": 10}
FIGURE = ("non-private", "MPC only", "SPGC", "LDP")  # what Fig. 1 draws
LONG = ("MNIST",)  # a run takes minutes: less of it


def gather(rows: Rows, records: Sequence[dict[str, Any]]) -> None:
    """Comparison rows of all runs of one data set."""
    of_setting: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for record in records:
        of_setting.setdefault(tuple(record[name] for name in SETTING), []).append(record)
    for values, own in of_setting.items():
        setting: dict[str, Any] = dict(zip(SETTING, values, strict=True))
        last = own[0]
        shown = setting | {name: last[name] for name in ("epochs", "steps", "parameters", "examples")}
        scale_text = f"{last['steps']:,} steps of {last['examples']:,} records, {len(own)} trials"
        took = sum(record["seconds_per_step"] * record["steps"] for record in own)
        for measure in MEASURES:
            curves = 100 * np.array([record[measure] for record in own])
            ends = curves[:, -1]
            bounds = float(ends.min()), float(ends.max())
            row = rows.add(
                measure,
                shown,
                float(ends.mean()),
                bounds,
                scale=scale_text,
                paper_value=_published(setting) if measure == "accuracy" else None,
                seconds=took,
            )
            if measure == "accuracy" and drawn(setting):
                row["curve"] = [round(float(value), 2) for value in curves.mean(axis=0)]
    for own in of_setting.values():
        _spent(rows, Run(**{name: own[0][name] for name in Run._fields}), own[0]["parameters"])
    rows.finish_part(records[0]["data"])


def _published(setting: dict[str, Any]) -> float | None:
    """Returns the paper's accuracy: three owners, its own rule."""
    if setting["owners"] != OWNERS or setting["rule"] not in (None, "classical"):
        return None
    return TASKS[setting["data"]].paper.get((setting["scheme"], setting["epsilon"]))


def _spent(rows: Rows, run: Run, dimension: int) -> None:
    """Adds what one step spends, and what all spend on a record, which is in one batch an epoch: by both relations."""
    if run.scheme in NOISELESS or run.epsilon is None or run.owners != OWNERS:
        return
    step = step_of(run)
    for neighbouring in RELATIONS:
        for releases in (1, run.epochs):
            if run.scheme == "SPGC":
                fixed, law = fixed_point.with_binomial(
                    noise_multiplier=step.noise_multiplier, examples=step.examples, clip_norm=step.clip_norm
                )
                moved = gaussian.SENSITIVITY[neighbouring] * fixed.levels
                found = accounting.epsilon(law, sensitivity=moved, dimension=dimension, delta=DELTA, steps=releases)
            elif run.scheme == "SPGC, noise from a table":
                found = math.inf
            else:
                found = gaussian.epsilon(step.noise_multiplier, delta=DELTA, neighbouring=neighbouring, steps=releases)
            setting = {name: getattr(run, name) for name in SETTING}
            setting |= {"neighbouring": neighbouring, "releases": releases, "delta": DELTA}
            rows.add("epsilon", setting, json_number(found), scale="accounted, not measured")


def outside(rows: Rows) -> None:
    """How often a coordinate's Gaussian noise alone leaves the ring by the paper's scale: m clip norms fill it."""
    for examples in sorted({task.examples for task in TASKS.values()}):
        for epsilon in (0.01, 0.1, *EPSILONS):
            multiplier = gaussian.classical(epsilon=epsilon, delta=DELTA)
            setting = {"examples": examples, "epsilon": epsilon, "noise_multiplier": multiplier}
            rows.add("outside", setting, float(2 * ndtr(-examples / multiplier)), scale="computed")
    rows.finish_part("room for the noise")


REPRODUCIBLE = {"outside": outside}


def arguments(given: Sequence[str] | None = None) -> Namespace:
    """Parses the command line, or ``given``."""
    parser = options(__doc__ or "", work="every run", share=True)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--schemes", nargs="+", default=list(SCHEMES), choices=list(SCHEMES))
    parser.add_argument("--trials", type=int, default=None, help="of each setting; default: MNIST 3, the others 10")
    chosen = parser.parse_args(given)
    refuse_homeless(chosen)
    return chosen


def wanted(chosen: Namespace) -> list[Run]:
    """Returns the runs asked for, those of Fig. 1 first."""
    if chosen.quick:
        return [run for run in runs(["Cancer"], 1, epochs=10) if _of_paper(run) and run.scheme in FIGURE]
    found = [run for task in chosen.tasks for run in runs([task], chosen.trials or TRIALS[task])]
    found.sort(key=lambda run: run.scheme not in FIGURE)
    found = [run for run in found if run.scheme in chosen.schemes]
    return [
        run for run in found if run.data not in LONG or (_of_paper(run) and (run.scheme in FIGURE or run.trial == 0))
    ]


def _other(row: dict[str, Any], settings: set[tuple[Any, ...]]) -> bool:
    """Tells whether a row is of a training with another setting; None of them has the rows that are computed alone."""
    return "data" in row["setting"] and tuple(row["setting"][name] for name in SETTING) not in settings


def _of_paper(run: Run) -> bool:
    return run.owners == OWNERS and run.rule in (None, "classical")


def main() -> None:
    chosen = arguments()
    hosts.alone("spgc", "--share shares the runs out")
    logging.set_verbosity("error")  # dp-accounting warns of every Renyi order that it does without
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(chosen.work or temporary)
        records = play_all(shared_out(wanted(chosen), chosen.share), work, chosen.seed, chosen.data_dir)
    if chosen.share is not None:
        return
    again = {tuple(record[name] for name in SETTING) for record in records}
    rows = Rows("001", "spgc", chosen.out, chosen.seed, keep=lambda row: _other(row, again))
    rows.run(outside)
    for task in dict.fromkeys(record["data"] for record in records):
        own = [record for record in records if record["data"] == task]
        with rows.of_records(own):
            gather(rows, own)
