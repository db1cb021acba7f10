"""Paper 002: how long an update may be before a client clips it and adds noise, in federated learning under local DP.

    python -m experiments.clip_size --quick --out DIR                     # bundled digits: under a minute
    python -m experiments.clip_size --work DIR                            # as in the paper: for a machine with a GPU
    python -m experiments.clip_size --work DIR --rounds 1000 --trials 1   # a tenth of the rounds, once: for two cores

Every run (setting, noise, trial) keeps a checkpoint and, at its end, a record in --work: a sweep that was killed goes
on, and no run is made twice. Processes may share the runs out; on a CPU, one for each core is fastest:

    for i in 0 1; do
      XLA_FLAGS=--xla_cpu_multi_thread_eigen=false taskset -c $i \\
        python -m experiments.clip_size --work DIR --rounds 1000 --trials 1 --share $i/2 &
    done; wait

The same command without --share then makes what is missing and writes the rows.

Expect on MNIST that C = 0.05 leads early and 0.01 late, that every way to lower C from 0.05 to 0.01 ends above both,
and that the quantile rule's C grows without end.
"""

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from dpaudit import check
from dpaudit.report.rows import write_rows
from experiments import clip_size_rows
from experiments.clip_size_published import CLIENTS_PER_ROUND, ROUNDS, TRIALS
from experiments.clip_size_runs import Bench, noise_multiplier, play_all, runs
from experiments.common import Rows, options

QUICK = {"dataset": ["digits"], "rounds": 100, "trials": 1, "clients_per_round": 200, "sensitivity": [2]}
QUICK_ONLY = ("non", "clip0.01", "clip0.05", "0.05to0.01(20%)", "poly(0.05)1", "quantile(0.01)5", "adaptive0.01")


def gather(rows: Rows, chosen: Namespace, dataset: str, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Comparison rows of one data set's runs; returns their curves and histograms, as rows too."""
    of_setting: dict[tuple[str, int | None], list[dict[str, Any]]] = {}
    for record in records:
        of_setting.setdefault((record["name"], record["sensitivity"]), []).append(record)
    shared = {"dataset": dataset, "rounds": chosen.rounds, "clients_per_round": chosen.clients_per_round}
    trials = "1 trial" if chosen.trials == 1 else f"{chosen.trials} trials"
    scale = f"{chosen.rounds:,} rounds x {chosen.clients_per_round:,} clients of 5 images, {trials}"
    kept = []
    for (name, sensitivity), own in of_setting.items():
        labels = shared | {"name": name, "sensitivity": sensitivity}
        clip_size_rows.compare(rows, labels, own, scale)
        kept.append(clip_size_rows.curves(labels, own))
        kept += clip_size_rows.histograms(labels, own[0])
    for sensitivity in chosen.sensitivity:
        those = [record for record in records if record["sensitivity"] in (None, sensitivity)]
        clip_size_rows.judge(rows, shared | {"sensitivity": sensitivity}, those, scale)
    rows.finish_part(dataset)
    return kept


def arguments(given: Sequence[str] | None = None) -> Namespace:
    """What was asked for on the command line, or ``given``."""
    parser = options(__doc__ or "")
    parser.add_argument("--dataset", nargs="+", default=["mnist"], choices=("digits", "mnist", "fashion_mnist"))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--clients-per-round", type=int, default=CLIENTS_PER_ROUND)
    parser.add_argument(
        "--sensitivity", type=int, nargs="+", choices=(1, 2), default=[1, 2], help="of the noise, over C"
    )
    parser.add_argument("--only", nargs="+", default=None, metavar="NAME", help="settings whose names begin so")
    parser.add_argument("--work", default=None, metavar="DIR", help="keeps every run, to go on from")
    parser.add_argument("--share", default=None, metavar="I/N", help="every N-th run from the I-th on, and no rows")
    chosen = parser.parse_args(given)
    if chosen.quick:
        vars(chosen).update(QUICK)
    if chosen.only is None:
        chosen.only = QUICK_ONLY if chosen.quick else ("",)
    check.at_least(10, rounds=chosen.rounds)
    check.at_least(1, trials=chosen.trials)
    if chosen.share is not None and chosen.work is None:
        raise check.expected("--work", "a folder for the runs that --share shares out", "none")
    return chosen


def main() -> None:
    chosen = arguments()
    wanted = runs(chosen.only, chosen.sensitivity, chosen.trials)
    scale = chosen.rounds, chosen.clients_per_round, chosen.seed, chosen.data_dir
    if chosen.share is not None:
        first, step = map(int, chosen.share.split("/"))
        for dataset in chosen.dataset:
            play_all(Bench(dataset, *scale), wanted[first::step], chosen.work)
        return
    rows, kept = Rows("002", "clip_size", chosen.out, chosen.seed), []
    for dataset in chosen.dataset:
        bench = Bench(dataset, *scale)
        kept += gather(rows, chosen, bench.name, play_all(bench, wanted, chosen.work))
    clip_size_rows.privacy(rows, {sensitivity: noise_multiplier(sensitivity) for sensitivity in (1, 2)})
    rows.finish_part("privacy")
    write_rows(kept, rows.file.with_name(rows.file.stem + "_curves.json"))


if __name__ == "__main__":
    main()
