"""Recomputes a sample of the committed rows, each from what it carries, and compares.

    make reproduce                                             # the cheapest part of every experiment: minutes
    python -m experiments.reproduce --seconds 600              # of parts that took up to so long, the longest
    python -m experiments.reproduce --only spgc_audit --all    # every part that took no longer than --seconds

A row carries the part of the experiment that made it, its arguments, its seed and the number of rows before it. Rows
that cannot be made again are counted and left: those from before rows carried a fingerprint, those that no part makes
alone, and measured times. Where the program has changed since, that is said, and the rows must still be the same.
The exit status is 1 where a row differs.
"""

import argparse
import io
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

from dpaudit import InputError
from dpaudit.auditing.result import json_number
from dpaudit.report.rows import read_rows
from experiments import fingerprint
from experiments.common import HERE, PROGRAMS, Rows, program

# Hours of trainings; environments or devices of their own; processes and times.
ELSEWHERE = (
    "clip_size_devices",
    "clip_size_unstated",
    "mc_dropout_full",
    "mc_dropout_risk",
    "mc_dropout_unstated",
    "libraries",
    "peers",
    "personalization_dpals",
    "personalization_scale",
    "recorded",
    "replayed",
    "spgc_protocol",
    "spgc_service",
    "spgc_table",
)
EXPERIMENTS: dict[str, ModuleType] = {
    name: import_module(f"experiments.{module}") for name, module in PROGRAMS.items() if name not in ELSEWHERE
}
TOLERANCE = 1e-4  # of a number, relative: what another processor's rounding makes of one trial in many
# Of what is trained, whose last digits another processor changes: 3,000 steps turned a median angle by 3%.
LEARNED = {"federated_audit": 0.02, "ldp_client_audit": 0.05, "personalization": 1e-3, "training_audit": 0.02}
COMPARED = ("quantity", "setting", "ours", "ours_low", "ours_high", "paper_value", "scale")
TIMES = "seconds"  # numbers of such a name are measured


class Part(NamedTuple):
    """What some rows of an experiment were made by."""

    name: str
    arguments: dict[str, Any]
    at: int  # rows before
    seed: int
    program: str
    rows: list[dict[str, Any]]

    @property
    def seconds(self) -> float:
        """As long as the last of its rows took."""
        return max(row["seconds"] or 0.0 for row in self.rows)


def parts_of(rows: Sequence[dict[str, Any]], made: Sequence[str]) -> list[Part]:
    """Returns the parts, among those that can be ``made`` again, that rows say they are of, in their order."""
    found: dict[str, Part] = {}
    for row in rows:
        by = row["made_by"]
        if row["fingerprint"] is None or by["part"] not in made:
            continue
        if row["fingerprint"] != fingerprint.of(by, row["seed"]):
            raise InputError(f"{row['quantity']}: expected the fingerprint of what its row carries, got another")
        found.setdefault(
            row["fingerprint"], Part(by["part"], by["arguments"], by["at"], row["seed"], by["program"], [])
        )
        found[row["fingerprint"]].rows.append(row)
    return list(found.values())


def made_again(experiment: str, part: Part, run: Callable[..., Any], data_dir: str | None) -> Sequence[dict[str, Any]]:
    """Returns the rows of a part, from nothing but what its rows carry."""
    with tempfile.TemporaryDirectory() as folder:
        rows = Rows(part.rows[0]["paper"], experiment, folder, part.seed, data_dir=data_dir)
        rows.rows += [{"quantity": ""}] * part.at  # on whose number keys depend
        with redirect_stdout(io.StringIO()):  # what a part says of its file, which is nobody's
            rows.run(run, **part.arguments)
        return rows.rows[part.at :]


def differences(committed: Sequence[dict[str, Any]], again: Sequence[dict[str, Any]], within: float) -> Iterator[str]:
    """A line for each row that is not the same."""
    if len(committed) != len(again):
        yield f"{len(committed)} rows are committed, {len(again)} were made"
    for one, other in zip(committed, again, strict=False):
        for name in COMPARED:
            if not same(one[name], json_number(other[name]), within):
                yield f"{one['quantity']} {one['setting']}: {name} is {one[name]}, was made as {other[name]}"


def same(one: Any, other: Any, within: float) -> bool:
    """Tells whether two JSON values are equal, numbers within a relative tolerance; measured times are not
    compared."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(
            same(one[name], other[name], within) for name in one if TIMES not in name
        )
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(same(a, b, within) for a, b in zip(one, other, strict=True))
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return math.isclose(one, json_number(other), rel_tol=within, abs_tol=within * 1e-2)
    return one == json_number(other)


def sample(parts: Sequence[Part], seconds: float, *, every: bool) -> list[Part]:
    """Of the parts that took no longer: all, or the longest that takes a tenth of that at most, else the shortest."""
    short = sorted((part for part in parts if part.seconds <= seconds), key=lambda part: part.seconds)
    if every or not short:
        return short
    return [max((part for part in short if part.seconds <= seconds / 10), key=lambda p: p.seconds, default=short[0])]


def reproduce(name: str, rows: Sequence[dict[str, Any]], seconds: float, data_dir: str | None, *, every: bool) -> bool:
    """Tells whether what was made again of an experiment is the same; says what was, and what was left."""
    made, good = EXPERIMENTS[name].REPRODUCIBLE, True
    parts = parts_of(rows, list(made))
    for part in sample(parts, seconds, every=every):
        how = f"{name}.{part.name}({', '.join(f'{key}={value}' for key, value in part.arguments.items())})"
        try:
            again = made_again(name, part, made[part.name], data_dir)
        except InputError as error:  # a data set that is not here
            print(f"  {how}: left out: {error}")
            continue
        found = list(differences(part.rows, again, LEARNED.get(name, TOLERANCE)))
        changed = (
            "" if part.program == fingerprint.of_module(program(name)) else ", by a program that has changed since"
        )
        print(f"  {how}: {len(again)} rows {'differ' if found else 'are the same'}{changed}", flush=True)
        print("".join(f"    {line}\n" for line in found), end="")
        good &= not found
    able = sum(len(part.rows) for part in parts)
    old = sum(row["fingerprint"] is None for row in rows)
    print(f"{name}: of {len(rows)} rows {able} can be made again, {old} are from before rows carried a fingerprint")
    return good


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=EXPERIMENTS, default=list(EXPERIMENTS), metavar="EXPERIMENT")
    parser.add_argument("--seconds", type=float, default=60.0, help="leave parts that took longer; default 60")
    parser.add_argument("--all", action="store_true", help="every such part, not one of each experiment")
    parser.add_argument("--data-dir", default=None, help="where the data sets lie; else $DPAUDIT_DATA")
    chosen = parser.parse_args(given)
    good, left = True, 0
    experiments: dict[str, list[dict[str, Any]]] = {}
    for file in sorted(HERE.glob("*/results/*.json")):
        experiments.setdefault(file.name.partition(".")[0], []).extend(read_rows(file))
    for name, rows in experiments.items():
        if name not in EXPERIMENTS:
            left += len(rows)
        elif name in chosen.only:
            good &= reproduce(name, rows, chosen.seconds, chosen.data_dir, every=chosen.all)
    print(f"Other files, of measured times, of hours of training, or drawn in figures: {left} rows, left.")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
