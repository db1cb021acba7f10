"""Measures the privacy risk of a Bayesian network made by dropout: RQ1 to RQ3 of the paper, and beyond.

    python -m experiments.mc_dropout_risk --scale cifar10 --work DIR       # the paper's network, 32 x 32 photos
    python -m experiments.mc_dropout_risk --scale cifar10-8x8 --work DIR   # a small network, all 4,000 trainings
    python -m experiments.mc_dropout_risk --scale digits --work DIR
    python -m experiments.mc_dropout_risk --scale paper --work DIR         # the paper's own: for accelerators
    python -m experiments.mc_dropout_risk --quick --out DIR                # digits: under a minute

How many hours a scale takes on this machine is told first. A killed run goes on from DIR: no network that is in a file
there is trained again. Each scale has a file of rows of its own.

Expect the paper's estimate far above zero even for networks that differ in nothing, and the honest bounds far below
the epsilon that was promised.
"""

import tempfile
import time
from pathlib import Path

import jax
from absl import logging

from dpaudit._engine import hosts
from experiments.common import Rows, options, refuse_homeless, results
from experiments.paper003 import beyond, questions, runs
from experiments.paper003.bench import SCALES, Bench
from experiments.paper003.figures import targets

QUICK = "quick"


def risk(rows: Rows, name: str, work: Path, pictures: Path, data_dir: str | None) -> None:
    """Runs all of one scale, and adds how many hours that took, with those of the files that were there before."""
    began, own = time.perf_counter(), work / f"{name}-seed{rows.seed}"
    before, bench = runs.spent(own), Bench(SCALES[name], rows.seed, own, data_dir)
    book_key, white_key, many_key = jax.random.split(jax.random.fold_in(bench.key, 1 << 16), 3)
    book = questions.Book(bench, name, rows, book_key)
    if name != QUICK:
        count, steps = 4 * bench.scale.trainings, bench.scale.steps
        print(f"{name}: {count:,} trainings of {steps:,} steps, about {bench.hours():.2g} hours here", flush=True)
    shadows = runs.shadows(bench)
    pairs = bench.targets(shadows)
    targets(pairs, bench.name, pictures)
    for pair in pairs:
        found = runs.found(bench, pair)
        if pair is pairs[0]:
            questions.trained(book, runs.judged(bench, found.params))
        for answer in (questions.question_1, questions.question_2, questions.question_3):
            answer(book, pair.number, pair.label, found)
        rows.finish_part(f"{name}, data set {pair.number}")
    beyond.white_box(book, white_key)
    beyond.many_targets(book, many_key, shadows)
    book.write("hours", {}, (before + time.perf_counter() - began) / 3600)
    rows.finish_part(f"{name}, beyond")


def main() -> None:
    parser = options(__doc__ or "", work="every network's predictions")
    parser.add_argument("--scale", choices=[name for name in SCALES if name != QUICK], default="cifar10-8x8")
    chosen = parser.parse_args()
    name = QUICK if chosen.quick else chosen.scale
    refuse_homeless(chosen)
    hosts.alone("mc_dropout_risk", "which uses all of its devices")
    logging.set_verbosity("error")  # dp-accounting warns of every Renyi order that it does without
    rows = Rows("003", f"mc_dropout_risk.{name}", chosen.out, chosen.seed)
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(chosen.work or temporary)
        own = (
            chosen.out is None and SCALES[name].data == "digits"
        )  # other data sets' pictures may not be redistributed
        pictures = results(rows.file.stem).parent if own else rows.file.parent if chosen.out else work
        risk(rows, name, work, pictures / f"mc_dropout_targets_{name}.png", chosen.data_dir)
