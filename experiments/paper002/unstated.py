"""Measures what paper 002 does not state: how the first weights are drawn, and how pixels are scaled.

    python -m experiments.paper002.unstated --work DIR              # 20 clients for 1,000: an hour and a half
    python -m experiments.paper002.unstated --work DIR --simulated 1000 --trials 1 --only '0.05to0.01(20%)' \\
        --choices "PyTorch's uniform"                               # all clients: an hour
    python -m experiments.paper002.unstated --quick --out DIR       # bundled digits: under a minute

A trial has the same clients and the same noise under every choice, so that a choice is compared within trials. Every
run keeps a checkpoint and a record in --work; rows are made of all records there, and those of other settings stay.

Expect accuracies of one trial to differ between first weights by more than the paper's do from trial to trial, by as
much between two draws of one law, and less where all trials begin with one model.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.common import Rows, as_command, options, refuse_homeless
from experiments.first_weights import Law, glorot, lecun, pytorch, redrawn
from experiments.paper002.published import ACCURACY
from experiments.paper002.rows import over_trials, seconds, stated
from experiments.paper002.run import scale_chosen, scale_of, sized
from experiments.paper002.runs import Bench, Run, Scale, all_records, play_all

SETTINGS, SENSITIVITY = ("clip0.05", "0.05to0.01(20%)"), 2
TRIALS, FEW = 3, 20  # clients in place of all
QUICK = {"dataset": "digits", "rounds": 50, "clients_per_round": 200, "trials": 1}


class Choice(NamedTuple):
    """What an author may leave to a library."""

    kernel: Law | None = None  # None: as Flax draws it
    bias: Law | None = None  # None: 0
    one_model: bool = False  # all trials begin with the first one's
    standardised: bool = False  # pixels of mean 0 and deviation 1 over the training set, instead of [0, 1]


OURS, AGAIN, ONE, PYTORCH, GLOROT = (
    "LeCun normal",
    "LeCun normal, another draw",
    "one LeCun normal model",
    "PyTorch's uniform",
    "Glorot uniform",
)
FIRST_WEIGHTS = (OURS, AGAIN, PYTORCH, GLOROT)
CHOICES = {
    OURS: Choice(),
    AGAIN: Choice(kernel=lecun),
    ONE: Choice(one_model=True),
    PYTORCH: Choice(kernel=pytorch, bias=pytorch),
    GLOROT: Choice(kernel=glorot),
    "standardised pixels": Choice(standardised=True),
}


class Otherwise(Bench):
    """The federations of :class:`Bench` under another choice."""

    def __init__(self, choice: Choice, dataset: str, scale: Scale, seed: int, data_dir: str | None = None):
        super().__init__(dataset, scale, seed, data_dir)
        self.choice = choice
        if choice.standardised:
            pixels = np.asarray(self.train[0], np.float64)  # whose mean is the same on any number of cores
            middle, deviation = np.float32(pixels.mean()), np.float32(pixels.std())
            self.train, self.test = (
                ((images - middle) / deviation, labels) for images, labels in (self.train, self.test)
            )

    def first(self, trial: int) -> Any:
        whose = 0 if self.choice.one_model else trial
        key = jax.random.fold_in(self.keys(whose)[1], 1)
        return redrawn(key, super().first(whose), self.choice.kernel, self.choice.bias)


def gather(rows: Rows, choice: str, records: Iterable[dict[str, Any]]) -> None:
    """Adds the accuracy of every setting under a choice: mean ± standard deviation over trials, and ``each`` trial's,
    in percent."""
    of_setting: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for record in records:
        of_setting.setdefault(tuple(record[name] for name in ("dataset", *Scale._fields, "name")), []).append(record)
    for own in of_setting.values():
        setting = {name: own[0][name] for name in ("dataset", *Scale._fields, "name", "sensitivity")}
        each = np.array([100 * record["accuracy"][-1] for record in own])
        row = rows.add(
            "accuracy_of_choice",
            setting | {"choice": choice},
            *over_trials(each),
            scale=scale_of(setting, len(own)),
            paper_value=stated(setting),
            seconds=seconds(own),
        )
        row |= {"each": [float(f"{value:.5g}") for value in each], "device": own[0]["device"]}


def main() -> None:
    parser = options(__doc__ or "", work="every run")
    parser.add_argument("--dataset", default="mnist", choices=("digits", "mnist", "fashion_mnist"))
    sized(parser, trials=TRIALS, simulated=FEW)
    parser.add_argument("--only", nargs="+", default=SETTINGS, choices=tuple(ACCURACY), help="settings of the tables")
    parser.add_argument("--choices", nargs="+", default=tuple(CHOICES), choices=tuple(CHOICES))
    chosen = parser.parse_args()
    if chosen.quick:
        vars(chosen).update(QUICK)
    refuse_homeless(chosen)
    scale = scale_chosen(chosen)
    wanted = [Run(name, SENSITIVITY, trial) for trial in range(chosen.trials) for name in chosen.only]
    found = {}
    for choice in chosen.choices:
        bench = Otherwise(CHOICES[choice], chosen.dataset, scale, chosen.seed, chosen.data_dir)
        found[choice] = play_all(bench, wanted, home(chosen.work, choice))
    if chosen.work is not None:
        found = {choice: all_records(str(home(chosen.work, choice))) for choice in CHOICES}
    rows = Rows("002", "clip_size_unstated", chosen.out, chosen.seed, keep=chosen.out is None)
    rows.keep = lambda row: all(row["setting"] != own["setting"] for own in rows.rows)
    for choice, records in found.items():
        with rows.of_records(records):
            gather(rows, choice, records)
    rows.finish_part(chosen.dataset)


def home(work: str | None, choice: str) -> str | None:
    """Returns the folder of a choice's runs."""
    return None if work is None else str(Path(work) / choice.replace("'", "").replace(",", "").replace(" ", "-"))


if __name__ == "__main__":
    as_command(main)
