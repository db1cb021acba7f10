"""Measures what paper 003 leaves to its libraries: how first weights are drawn, how pixels are scaled, and whether
dropout of a convolution drops single values or whole channels (PyTorch has both).

    python -m experiments.paper003.unstated --work DIR --choices "PyTorch's uniform"  # 1.3 to 1.5 CPU hours a network
    python -m experiments.paper003.unstated --quick --out DIR                         # digits: under a minute

A network is trained under each choice by the paper's recipe on all 50,000 records, and judged on all others as those
of :mod:`experiments.paper003.full_scale` are, which have our own choice. A killed training goes on from DIR. Rows of
choices that are not asked for stay.

Expect PyTorch's first weights, a third of the variance of ours, to cost accuracy, and dropout of whole channels to
make single samples less accurate.
"""

import json
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from dpaudit._engine import hosts
from dpaudit._engine.fingerprint import of_run
from dpaudit.cli.command import bars_on_terminal
from experiments.common import Rows, as_command, bar_of, options, refuse_homeless, refuse_stale
from experiments.first_weights import Law, pytorch, redrawn
from experiments.paper003 import networks
from experiments.paper003.bench import SCALES, Bench, Scale
from experiments.paper003.published import STATED

NAME = "mc_dropout_unstated"


class Choice(NamedTuple):
    """What an author may leave to a library."""

    weights: Law | None = None  # None: as Flax draws kernels, and biases of 0
    standardised: bool = False  # pixels of mean 0 and deviation 1 over the training set, instead of [0, 1]
    channels: bool = False  # dropout of a convolution drops whole channels, as PyTorch's Dropout2d does


OURS, PYTORCH, STANDARDISED, CHANNELS = "LeCun normal", "PyTorch's uniform", "standardised pixels", "whole channels"
CHOICES = {
    OURS: Choice(),
    PYTORCH: Choice(weights=pytorch),
    STANDARDISED: Choice(standardised=True),
    f"{PYTORCH}, {STANDARDISED}": Choice(weights=pytorch, standardised=True),
    f"{PYTORCH}, {CHANNELS}": Choice(weights=pytorch, channels=True),
}


class Otherwise(Bench):
    """The trainings of :class:`Bench` under another choice."""

    def __init__(self, choice: Choice, scale: Scale, seed: int, work: Path, data_dir: str | None = None):
        super().__init__(scale, seed, work, data_dir)
        self.choice = choice
        self.use(self.model.clone(channel_dropout=choice.channels))
        if choice.standardised:
            pixels = np.asarray(self.images[self.rows.members], np.float64)
            self.images = (self.images - np.float32(pixels.mean())) / np.float32(pixels.std())

    def first(self, key: jax.Array) -> Any:
        return redrawn(jax.random.fold_in(key, 1), super().first(key), self.choice.weights, self.choice.weights)


def network(bench: Bench, name: str, trial: int, progress: Any) -> dict[str, Any]:
    """Returns how accurate a network under a choice is, from its file or trained; of all trials of a number, whatever
    the choice, batches, noise and dropout are the same."""
    init_key, train_key, look_key = jax.random.split(jax.random.fold_in(bench.key, networks.NETWORKS + trial), 3)
    rows = bench.all_of(bench.rows.members)
    learn = bench.learner(bench.scale.records, bench.scale.steps)
    identity = of_run(learn, key=bench.key, start=rows.present, data=rows, scale=bench.scale)
    own = re.sub(r"\W+", "-", name.replace("'", "")) + f"-{trial}"
    file = bench.work / f"{own}.json"
    if file.exists():
        record = json.loads(file.read_text())
        refuse_stale(record, identity, file)
        return record
    params, hours = networks.trained(bench, init_key, train_key, rows, own, progress)
    record = {"trial": trial, "identity": identity} | networks.useful(bench, look_key, params) | {"cpu_hours": hours}
    file.write_text(json.dumps(record))
    return record


def gather(rows: Rows, choice: str, found: Sequence[dict[str, Any]], scale: str) -> None:
    """Adds the accuracies of networks under a choice: their mean, its interval, and ``each``."""
    for name in found[0]["utility"]:
        each = [record["utility"][name] for record in found]
        judged = found[0]["judged" if name in STATED else "judged_whole"]
        middle, *ends = networks.interval(each, judged)
        setting = {"choice": choice, "published": name}
        row = rows.add("accuracy_of_choice", setting, middle, ends, scale=scale, paper_value=STATED.get(name))
        row |= {"each": each, "records": judged, "cpu_hours": [record["cpu_hours"] for record in found]}


def main() -> None:
    parser = options(__doc__ or "", work="networks")
    parser.add_argument("--choices", nargs="+", default=tuple(CHOICES)[1:], choices=tuple(CHOICES))
    parser.add_argument("--trials", type=int, default=1, help="networks of each choice; default 1")
    chosen = parser.parse_args()
    refuse_homeless(chosen)
    hosts.alone(NAME, "--choices shares the networks out")
    scale = SCALES["quick" if chosen.quick else "paper"]
    rows = Rows("003", NAME, chosen.out, chosen.seed, keep=True)
    rows.keep = lambda row: all(row["setting"] != own["setting"] for own in rows.rows)
    text = f"{scale.records:,} records, {scale.steps:,} steps"
    with tempfile.TemporaryDirectory() as temporary, bars_on_terminal() as bars:
        for name in chosen.choices:
            bench = Otherwise(CHOICES[name], scale, chosen.seed, Path(chosen.work or temporary), chosen.data_dir)
            bench.work.mkdir(parents=True, exist_ok=True)
            found = [network(bench, name, i, bar_of(bars, name, scale.steps)) for i in range(chosen.trials)]
            gather(rows, name, found, f"{len(found)} network{'s' * (len(found) > 1)}, {text}")
            rows.finish_part(name)


if __name__ == "__main__":
    as_command(main)
