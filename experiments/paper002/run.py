"""Compares clip sizes, and rules that change them, in federated learning under local differential privacy.

    python -m experiments.clip_size --quick --out DIR                  # bundled digits: under a minute
    python -m experiments.clip_size --work DIR                         # as in the paper: for a machine with a GPU
    python -m experiments.clip_size --work DIR --simulated 20          # all rounds, 20 clients for the 1,000 of each

Every run (setting, noise, trial) keeps a checkpoint and, at its end, a record in --work: a sweep that was killed goes
on, and no run is made twice. Records of all clients at all of the paper's rounds are committed beside the rows, which
are written of these and of all that --work holds; rows of runs that left no record stay. With --add only runs without
a committed record are made, so that --trials 3 adds a third trial to two. Processes may share the runs out; on a CPU,
one for each core is fastest:

    for i in 0 1; do
      XLA_FLAGS=--xla_cpu_multi_thread_eigen=false taskset -c $i \\
        python -m experiments.clip_size --work DIR --simulated 20 --share $i/2 &
    done; wait

Expect on MNIST that C = 0.05 leads early and 0.01 late, that every way to lower C from 0.05 to 0.01 ends above both,
and that the quantile rules, whose C grows at first without end, destroy the network.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dpaudit import _validate
from dpaudit._engine import hosts
from dpaudit.report.rows import read_rows, write_rows
from experiments.common import Rows, options, read_all, results, shared_out
from experiments.paper002 import rows as clip_size_rows
from experiments.paper002.published import CLIENTS_PER_ROUND, ROUNDS, TRIALS
from experiments.paper002.runs import Bench, Run, Scale, all_records, in_order, noise_multiplier, play_all, runs
from experiments.paper002.substitution import substitution

QUICK = {"dataset": ["digits"], "rounds": 100, "trials": 1, "clients_per_round": 200, "sensitivity": [2]}
SUBSTITUTION = {"quick": (10, 20, 100), "paper": (300, 20, 1_000)}  # rounds, clients for all, updates
QUICK_ONLY = ("non", "clip0.01", "clip0.05", "0.05to0.01(20%)", "poly(0.05)1", "quantile(0.01)5", "adaptive0.01")


def gather(rows: Rows, records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Comparison rows of one data set's runs at one scale; returns their curves and histograms, as rows too."""
    of_setting: dict[tuple[str, int | None], list[dict[str, Any]]] = {}
    for record in records:
        of_setting.setdefault((record["name"], record["sensitivity"]), []).append(record)
    shared = {name: records[0][name] for name in ("dataset", *Scale._fields)}
    kept = []
    for (name, sensitivity), own in of_setting.items():
        labels = shared | {"name": name, "sensitivity": sensitivity}
        clip_size_rows.compare(rows, labels, own, scale_of(shared, len(own)))
        kept.append(clip_size_rows.curves(labels, own))
        kept += clip_size_rows.histograms(labels, own[0])
    for sensitivity in sorted({record["sensitivity"] for record in records} - {None}):
        those = [record for record in records if record["sensitivity"] in (None, sensitivity)]
        clip_size_rows.judge(rows, shared | {"sensitivity": sensitivity}, those, partial(scale_of, shared))
    rows.finish_part(shared["dataset"])
    return kept


def privacy(rows: Rows) -> None:
    """Adds what is promised, in closed form."""
    clip_size_rows.privacy(rows, {sensitivity: noise_multiplier(sensitivity) for sensitivity in (1, 2)})
    rows.finish_part("privacy")


REPRODUCIBLE = {"privacy": privacy, "substitution": substitution}


def of_setting(row: dict[str, Any]) -> tuple[Any, ...]:
    """Which setting a record, a curve or a row's setting is of."""
    return *(row[name] for name in ("dataset", *Scale._fields, "name")), row["sensitivity"] or 0


def of_run(record: dict[str, Any]) -> tuple[Any, ...]:
    return *of_setting(record), record["trial"]


def of_claim(row: dict[str, Any]) -> tuple[Any, ...]:
    """Which claim, at which scale and under which noise, a margin is of."""
    return tuple(row["setting"][name] for name in ("dataset", *Scale._fields, "sensitivity", "claim"))


def extent(row: dict[str, Any]) -> tuple[int, int]:
    """How many pairs of settings, and trials of the closest one, a margin is of."""
    return row["setting"]["pairs"], len(row.get("apart", ()))


def whole(record: dict[str, Any]) -> bool:
    """Whether all clients of all of the paper's rounds were computed."""
    return record["rounds"] == ROUNDS and record["simulated"] == record["clients_per_round"]


def scale_of(shared: dict[str, Any], trials: int) -> str:
    """Describes what was really run."""
    played, meant = shared["simulated"], shared["clients_per_round"]
    people = f"{meant:,} clients" if played == meant else f"{played:,} clients in place of {meant:,}"
    return f"{shared['rounds']:,} rounds x {people} of 5 images, {trials} {'trial' if trials == 1 else 'trials'}"


def sized(parser: ArgumentParser, *, trials: int, simulated: int | None) -> None:
    """Adds the options of a run's scale, with these defaults; None for all clients."""
    told = f"of a round's clients; default: {simulated or 'all'}"
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--trials", type=int, default=trials)
    parser.add_argument("--clients-per-round", type=int, default=CLIENTS_PER_ROUND)
    parser.add_argument("--simulated", type=int, default=simulated, metavar="N", help=told)


def scale_chosen(chosen: Namespace) -> Scale:
    """Returns the scale that was asked for."""
    _validate.at_least(10, rounds=chosen.rounds)
    _validate.at_least(1, trials=chosen.trials)
    _validate.at_least(1, clients_per_round=chosen.clients_per_round)
    simulated = chosen.clients_per_round if chosen.simulated is None else chosen.simulated
    if simulated < 1 or chosen.clients_per_round % simulated:
        raise _validate.expected("--simulated", f"a divisor of {chosen.clients_per_round} clients", simulated)
    return Scale(chosen.rounds, chosen.clients_per_round, simulated)


def arguments(given: Sequence[str] | None = None) -> Namespace:
    """Parses the command line, or ``given``."""
    parser = options(__doc__ or "", work="every run", share=True)
    parser.add_argument("--dataset", nargs="+", default=["mnist"], choices=("digits", "mnist", "fashion_mnist"))
    sized(parser, trials=TRIALS, simulated=None)
    parser.add_argument(
        "--sensitivity", type=int, nargs="+", choices=(1, 2), default=[1, 2], help="of the noise, over C"
    )
    parser.add_argument("--only", nargs="+", default=None, metavar="NAME", help="settings whose names begin so")
    parser.add_argument("--add", action="store_true", help="make only runs that have no committed record")
    chosen = parser.parse_args(given)
    if chosen.quick:
        vars(chosen).update(QUICK)
    if chosen.only is None:
        chosen.only = QUICK_ONLY if chosen.quick else ("",)
    chosen.scale = scale_chosen(chosen)
    if chosen.share is not None and chosen.work is None:
        raise _validate.expected("--work", "a folder for the runs that --share shares out", "none")
    if chosen.add and chosen.out is not None:
        raise _validate.expected("--add", "no --out, since it adds to the committed results", chosen.out)
    return chosen


def main() -> None:
    chosen = arguments()
    hosts.alone("clip_size", "--share shares the runs out")
    records = []
    for dataset in chosen.dataset:
        bench = Bench(dataset, chosen.scale, chosen.seed, chosen.data_dir)
        records += play_all(bench, shared_out(wanted(chosen, dataset), chosen.share), chosen.work)
    if chosen.share is not None:
        return
    played = records if chosen.work is None else all_records(chosen.work)
    rows, kept = Rows("002", "clip_size", chosen.out, chosen.seed, keep=chosen.out is None), []
    played = joined(rows, played)
    by_scale: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for record in played:
        by_scale.setdefault(tuple(record[name] for name in ("dataset", *Scale._fields)), []).append(record)
    for _, own in sorted(by_scale.items(), reverse=True):
        with rows.of_records(own):
            kept += [row | rows.signature() for row in gather(rows, own)]
    rows.run(privacy)
    rows.run(substitution, chosen.dataset[0], *SUBSTITUTION["quick" if chosen.quick else "paper"])
    curves = rows.file.with_name(f"{rows.file.stem}_curves.json")
    earlier = read_rows(curves) if rows.earlier else []
    write_rows([row for row in earlier if of_setting(row) not in set(map(of_setting, kept))] + kept, curves)
    complete = [record for record in played if whole(record)]
    for trial in sorted({record["trial"] for record in complete}):
        rows.write([record for record in complete if record["trial"] == trial], f"_records.trial-{trial}")


def wanted(chosen: Namespace, dataset: str) -> list[Run]:
    """Returns the runs of one data set that were asked for; those without a committed record alone to add to these."""
    every = runs(chosen.only, chosen.sensitivity, chosen.trials)
    done = committed(results("clip_size")) if chosen.add else {}
    at = {"dataset": dataset, **chosen.scale._asdict()}
    return [run for run in every if of_run(at | run._asdict()) not in done]


def committed(file: Path) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Returns the records beside a file of rows, by their runs."""
    return {of_run(record): record for record in read_all(file.with_name(f"{file.stem}_records.json"))}


def refuse_mixed(records: Iterable[dict[str, Any]]) -> None:
    """Raises InputError where two trials of a setting are of different programs, data or first models."""
    first: dict[tuple[Any, ...], dict[str, Any]] = {}
    for record in records:
        own = record.get("identity")
        if own is None:  # from before records had one
            continue
        other = first.setdefault(of_setting(record), record)
        if differing := [part for part in own if own[part] != other["identity"].get(part)]:
            raise _validate.expected(
                f"trial {record['trial']} of {record['name']}",
                f"the {' and the '.join(differing)} of its trial {other['trial']}, or all of its trials run again",
                "another",
            )


def joined(rows: Rows, played: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the committed records and these, each run once; rows of settings that they tell of are made again.

    A margin stays where the records have fewer of its claim's pairs of settings, or fewer trials of as many.

    Raises:
      InputError: trials of one setting that differ in more than their keys.
    """
    found = committed(rows.file) if rows.earlier else {}
    found |= {of_run(record): record for record in played}
    refuse_mixed(found.values())
    settings = {of_setting(record) for record in found.values()}

    def keep(row: dict[str, Any]) -> bool:
        if row["quantity"] == "claim_margin":
            made = {of_claim(own): extent(own) for own in rows.rows if own["quantity"] == "claim_margin"}
            return extent(row) > made.get(of_claim(row), (0, 0))
        return "name" in row["setting"] and of_setting(row["setting"]) not in settings

    rows.keep = keep
    return in_order(found.values())
