"""Sentences of the results pages stop the build where the rows say something else: each holds for the committed rows,
and its twin, of rows with one number changed, does not."""

import copy
from functools import cache

import pytest

from experiments import pages
from experiments.libraries import page as libraries


@cache
def committed(folder):
    return pages.rows_of(folder)


def of(name, change, /, **at):
    """A change to the rows of one quantity whose setting agrees."""

    def changed(rows):
        for row in pages.select(rows, name, **at):
            row |= change if isinstance(change, dict) else change(row)

    return changed


def times(factor):
    names = ("ours", "ours_low", "ours_high")
    return lambda row: {name: factor * row[name] for name in names if row.get(name) is not None}


def margins_times(factor):
    def changed(row):
        ends = [row["ours_low"], row["ours_high"]]  # None of a single trial
        low, high = ends if None in ends else sorted(factor * end for end in ends)
        more = {"apart": [factor * each for each in row["apart"]]} if "apart" in row else {}
        return {"ours": factor * row["ours"], "ours_low": low, "ours_high": high, **more}

    return changed


def ranked(row):
    return {"setting": row["setting"] | {"choice": row["setting"]["choice"] | {"rank": 2}}}


def judged(verdict):
    return lambda row: {"setting": row["setting"] | {"verdict": verdict}}


def several(row):
    return {"ours_low": row["ours"], "ours_high": row["ours"]}


def ran(scale):
    return {"scale": scale}


def set_to(**changed):
    return lambda row: {"setting": row["setting"] | changed}


FEW = {"dataset": "mnist", "rounds": 1_000, "clients_per_round": 1_000, "simulated": 20, "sensitivity": 2}
LAST = {"craft": "label_flip", "steps": 3_000, "clip_norm": 0.2}
TWINS = {
    "paper000": {
        "longer_training": [of("sweep_accuracy_percent", times(2), **LAST)],
        "short_of_l": [of("epsilon_optimal", times(2), dataset="mnist", craft="benign", epsilon=4.0)],
    },
    "paper001": {
        "rule_breaks": [
            of("rule", ran("400,000,000 trials"), epsilon=8.0, neighbouring="replace"),
            of("rule", ran("20,000,000 trials"), epsilon=8.0),
            of("rule", judged("consistent"), epsilon=8.0, neighbouring="add_remove"),
        ],
        "as_guessing": [of("accuracy", {"paper_value": 70.0}, data="Cancer", scheme="SPGC", epsilon=0.5)],
        "another_training": [
            of("accuracy", set_to(steps=1_300, examples=30), data="Cancer", owners=100),
            of("accuracy", set_to(examples=130), data="Cancer", owners=100),
        ],
        "truncation": [
            of("printed_accuracy", times(1.3), arithmetic="as printed, bits dropped"),
            of("printed_accuracy", times(0.7), arithmetic="as printed"),
            of("printed_accuracy", {"ours_low": 85.0, "ours_high": 86.0}, arithmetic="as printed, bits dropped"),
        ],
        "table_grows": [
            of("table_bytes", times(0.5), data="MNIST", circuit="binomial", epsilon=0.01),
            of("table_bytes", times(0.1), data="Cancer", circuit="table", epsilon=0.01),
        ],
        "faults_found": [
            of("fault", {"ours_high": 0.2}, verdict="underpowered"),
            of("fault", {"ours_high": 0.0}, verdict="underpowered"),
            of("fault", {"ours_low": 0.01}, verdict="underpowered"),
            of("fault", judged("violation"), broken=False, verdict="consistent"),
            of("fault", judged("violation"), broken=False, verdict="underpowered"),
            of("fault", judged("consistent"), broken=True, seen_by="H1"),
            of("fault", judged("underpowered"), broken=True, seen_by="anyone else"),
        ],
    },
    "paper002": {
        "times_as_fast": [of("seconds_per_round", times(100), name="clip0.05", simulated=20, rounds=10_000)],
        "never_behind": [
            of("claim_margin", margins_times(-1), **FEW),
            of("claim_margin", margins_times(0), **FEW),
        ],
        "best_at": [of("accuracy_percent", times(2), name="poly(0.05)1.0")],
    },
    "paper003": {"ceilings": [of("epsilon", {"honest": 3.0}, scale="digits", part=3)]},
    "paper004": {
        "on_devices": [
            of("rmse", ranked, method="alternating", epsilon=1.0),
            of("rmse", times(0.9), method="alternating", epsilon=1.0),
        ],
        "other_users": [of("crossover rmse", several)],
        "crossover_run": [of("crossover rmse", set_to(delta=1e-6))],
        "federated_run": [of("federated accuracy", set_to(delta=1e-6))],
        "jester_run": [of("jester rmse", set_to(delta=1e-6))],
    },
}
EACH = [(folder, name, twin) for folder, own in TWINS.items() for name, twins in own.items() for twin in twins]


@pytest.mark.parametrize(
    "folder, name, twin", EACH, ids=[f"{folder}-{name}-{i}" for i, (folder, name, _) in enumerate(EACH)]
)
def test_a_sentence_holds_for_the_rows_and_not_for_its_twin(folder, name, twin):
    told = getattr(pages.page_of(folder), name)
    assert told(committed(folder)).holds
    rows = copy.deepcopy(committed(folder))
    twin(rows)
    assert rows != committed(folder)
    assert not told(rows).holds


def test_a_whole_audit_counts_all_of_its_seconds():
    rows = [
        {
            "quantity": "a_audit_seconds",
            "setting": {},
            "ours": 20.0,
            "scale": "3 turns of an audit of 4,000 trials and more",
        },
        {"quantity": "a_loop_calls_per_second", "setting": {}, "ours": 400.0, "scale": ""},
    ]
    assert libraries.whole(rows, "a") == 0.5
