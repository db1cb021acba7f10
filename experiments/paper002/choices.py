"""Tells what choices that paper 002 does not state change."""

import math
from collections.abc import Sequence

import numpy as np

from experiments.pages import Fact, Row, Rows, fact, only, select, table, values
from experiments.paper002.claims import AS_PRINTED, FEW, KEEPS, named, printed, scale_of, spread, trials_of
from experiments.paper002.published import ACCURACY
from experiments.paper002.unstated import AGAIN, FIRST_WEIGHTS, ONE, OURS, PYTORCH


def rows_of(rows: Rows, scale: tuple[object, ...]) -> dict[tuple[str, str], Row]:
    """Returns the rows of one scale by setting and choice."""
    found = select(rows, "accuracy_of_choice", **named(scale))
    return {(row["setting"]["name"], row["setting"]["choice"]): row for row in found}


def choices(rows: Rows) -> str:
    """Tabulates accuracies under every choice; ours with all clients is that of the tables above."""
    every, lines = values(select(rows, "accuracy_of_choice"), "choice"), []
    for scale in dict.fromkeys(scale_of(row["setting"]) for row in select(rows, "accuracy_of_choice")):
        found = rows_of(rows, scale)
        for name in dict.fromkeys(name for name, _ in found):
            cells = [spread(found[name, choice]) if (name, choice) in found else "–" for choice in every]
            if (name, OURS) not in found:
                cells[every.index(OURS)] = spread(ours(rows, scale, name))
            lines.append([f"{name}, {scale[-1]:,} of {scale[-2]:,} clients", printed(name), *cells])
    return table(["setting", "paper", *every], lines)


def ours(rows: Rows, scale: tuple[object, ...], name: str) -> Row:
    return only(rows, "accuracy_percent", **named(scale), name=name, sensitivity=KEEPS)


def by_first_weights(rows: Rows, name: str, among: Sequence[str]) -> tuple[float, int]:
    """Returns the standard deviation of a setting's accuracies over choices, in percent, within trials of the same
    clients and noise by a few clients; and how many trials these are."""
    found = rows_of(rows, FEW)
    each = np.array(list(zip(*(found[name, choice]["each"] for choice in among), strict=False)))  # [trials, choices]
    return math.sqrt(each.var(axis=1, ddof=1).mean()), len(each)


def drawn_otherwise(rows: Rows) -> tuple[str, Row]:
    """Returns the setting that was run with all clients and the first weights of another library, and its row."""
    return next((name, row) for (name, choice), row in rows_of(rows, AS_PRINTED).items() if choice == PYTORCH)


def first_weights(rows: Rows) -> Fact:
    """First weights move an accuracy by more than the paper's deviation, a second draw of one law does so too, other
    clients and noise less, and with all clients first weights lead from below to above the paper's accuracy, by less
    than two standard errors of a mean of draws."""
    name, whole = drawn_otherwise(rows)
    apart, trials = by_first_weights(rows, name, FIRST_WEIGHTS)
    again, _ = by_first_weights(rows, name, (OURS, AGAIN))
    one = rows_of(rows, FEW)[name, ONE]
    alone = one["ours_high"] - one["ours"]
    row, (paper, deviation) = ours(rows, AS_PRINTED, name), ACCURACY[name]
    here, count = row["ours"], trials_of(row)
    error = again / math.sqrt(count)
    return fact(
        min(apart, again) > alone > 2 * deviation and whole["ours"] < paper < here < paper + 2 * error,
        apart=apart, again=again, trials=trials, alone=alone, ones=len(one["each"]), few=FEW[-1], meant=FEW[-2],
        name=name, theirs=whole["ours"], ours=here, off=here - paper, paper=paper, deviation=deviation,
        count=count, error=error,
    )  # fmt: skip


def distances(rows: Rows) -> tuple[str, float, dict[str, float], list[str]]:
    """Returns the setting whose first weights were drawn again, the deviation of the two draws, how far each row of
    Tables 1 and 2 is above the paper's, in percent, and which are off by more than two of the paper's deviations and
    two standard errors of a mean of such draws."""
    name, _ = drawn_otherwise(rows)
    again, _ = by_first_weights(rows, name, (OURS, AGAIN))
    found = {each: ours(rows, AS_PRINTED, each) for each in ACCURACY}
    off = {each: row["ours"] - ACCURACY[each][0] for each, row in found.items()}
    errors = {each: max(ACCURACY[each][1], again / math.sqrt(trials_of(row))) for each, row in found.items()}
    return name, again, off, [each for each, by in off.items() if abs(by) > 2 * errors[each]]


def far_off(rows: Rows) -> Fact:
    """Rows of Tables 1 and 2 that differ from the paper's by more than two of its deviations do so by less than two
    standard errors of a mean of draws of first weights, but for one."""
    name, again, off, beyond = distances(rows)
    far = {each: by for each, by in off.items() if abs(by) > 2 * ACCURACY[each][1]}
    told = ", ".join(f"{each} ({by:+.2f})" for each, by in far.items())
    return fact(
        len(far) > len(beyond) == 1, rows=len(off), near=len(off) - len(far), told=told, beyond=", ".join(beyond),
        again=again, name=name, few=FEW[-1],
    )  # fmt: skip


def wide_trials(rows: Rows) -> Fact:
    """The setting that first weights alone do not explain is below the paper's by less than two standard errors of its
    own trials, which differ by more than two draws of first weights do."""
    _, again, off, (name, *_) = distances(rows)
    row = ours(rows, AS_PRINTED, name)
    own, count, below = row["ours"] - row["ours_low"], trials_of(row), -off[name]
    error = own / math.sqrt(count)
    return fact(own > again and 0 < below < 2 * error, name=name, own=own, count=count, error=error, below=below)


def own_trials(rows: Rows) -> Fact:
    """Our trials of one setting differ by more than twice the paper's, with all clients as with a few, but by less
    where all begin with one model."""
    name = "clip0.05"
    alike = rows_of(rows, FEW)[name, ONE]
    of = ours(rows, AS_PRINTED, name), ours(rows, FEW, name), alike
    whole, few, one = (row["ours"] - row["ours_low"] for row in of)
    paper, ones = ACCURACY[name][1], len(alike["each"])
    return fact(min(whole, few) > 2 * paper > one, name=name, whole=whole, few=few, one=one, ones=ones, paper=paper)
