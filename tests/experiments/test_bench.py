"""The table of benchmarks holds what the benchmarks measured, and says what they did not."""

import json
import math
import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from dpaudit.kernels import philox
from dpaudit.report.rows import read_rows, write_rows
from experiments.bench import kernels as bench_kernels
from experiments.bench import ldp as bench_ldp
from experiments.bench import page
from experiments.bench import run as bench
from experiments.bench.table import FIGURES, Figure, taken
from experiments.common import results

COMMITTED = {name: results(part.program) for name, part in bench.PARTS.items()}
COMMITTED = {name: file for name, file in COMMITTED.items() if file.exists()}
HERE = {"machine": bench.describe("cpu"), "versions": {"python": "3"}, "date": "2026-11-21 12:00 UTC", "load": 0.5}
HERE |= {"gflops": 120.4, "copied_gigabytes_a_second": 4.56}


def rendered(part, lines):
    return page.machines([line | HERE | {"part": part} for line in lines])


def test_every_part_has_a_program_and_figures():
    assert FIGURES.keys() == bench.PARTS.keys()
    assert all(FIGURES.values())
    assert {"ldp", "training", "federated", "mc_dropout", "secure", "personalization", "audit"} <= COMMITTED.keys()


@pytest.mark.parametrize("part", COMMITTED)
def test_every_figure_is_found_in_the_rows_and_ratios_point_the_same_way(part):
    lines = taken(FIGURES[part], read_rows(COMMITTED[part]))
    for figure, line in zip(FIGURES[part], lines, strict=True):
        assert line["figure"] == figure.what
        if line["ratio"] is not None:
            quotient = line["ours"] / line["peer_value"]
            assert abs(math.log(line["ratio"] / (quotient if figure.more else 1 / quotient))) < math.log(1.3)
            assert line["ratio_low"] is None or line["ratio_low"] <= line["ratio"] <= line["ratio_high"]
    assert taken([FIGURES[part][0]._replace(quantity="another")], read_rows(COMMITTED[part])) == []


@pytest.mark.parametrize(
    "part, network, quantity, sides, best",
    [
        ("personalization", "MLP", "user_sum_seconds", "jax-privacy*", min),
        ("federated", "CNN28", "round_seconds", "ours, one draw*", min),
        ("training", "CNN8", "networks_per_hour", "*", max),
    ],
)
def test_the_best_of_several_sides_is_taken(part, network, quantity, sides, best):
    rows = [row for row in read_rows(COMMITTED[part]) if row["quantity"] == quantity]
    rows = [row for row in rows if row["setting"]["network"] == network]
    own = [row["ours"] for row in rows if row["setting"]["side"].startswith(sides.rstrip("*"))]
    figure = Figure("", quantity, {"network": network, "side": sides}, more=best is max)
    (line,) = taken([figure], rows)
    assert line["ours"] == best(own)
    assert min(own) < max(own)


def test_a_peer_that_was_not_there_is_said_to_be_not_measured():
    (figure,) = (
        figure for figure in FIGURES["personalization"] if figure.peer and "NumPy loop" in figure.peer.values()
    )
    rows = read_rows(COMMITTED["personalization"])
    (with_peer,) = taken([figure], rows)
    alone = [row for row in rows if "NumPy loop" not in row["setting"].values()]
    (without,) = taken([figure], alone)
    assert with_peer["ratio"] > 1
    assert without["ratio"] is without["peer_value"] is None
    assert without["ours"] == with_peer["ours"]
    assert "NumPy loop: not measured | not measured |" in rendered("personalization", [without])
    assert "NumPy loop: not measured" not in rendered("personalization", [with_peer])


@pytest.mark.slow
def test_one_part_is_run_and_the_lines_of_the_others_stay(tmp_path):
    file = tmp_path / f"bench_{bench.slug(bench.describe('cpu'))}.json"
    (old,) = taken(FIGURES["audit"][:1], read_rows(COMMITTED["audit"]))
    stale = old | {"figure": "stale"}
    write_rows([old | HERE | {"part": "audit"}, stale | HERE | {"part": "secure"}], file)
    bench.main(["--only", "secure", "--quick", "--out", str(tmp_path)])
    rows = read_rows(file)
    secure = [row for row in rows if row["part"] == "secure"]
    assert [row for row in rows if row["part"] == "audit"] == [old | HERE | {"part": "audit"}]
    assert [row["part"] for row in rows] == ["secure"] * len(secure) + ["audit"]  # in the order of the parts
    quantities = {"step_seconds", "ands_per_second", "cots_per_second", "peak_gib", "noise_seconds", "noise_bytes"}
    assert {row["quantity"] for row in secure} == quantities
    measured = {row["quantity"]: row["ours"] for row in read_rows(tmp_path / "bench_secure" / "results.json")}
    assert next(row["ours"] for row in secure if row["quantity"] == "peak_gib") == measured["peak_gib"]
    for row in secure:
        assert row["figure"] != "stale"
        assert row["date"] > HERE["date"]
        assert row["machine"] == bench.describe("cpu")
        assert row["versions"].keys() == {"python", *bench.OURS}
    text = page.machines(rows)
    assert f"audit, {HERE['date']} at load 0.5, 120 GFLOP/s and 4.6 GB/s" in text
    assert f"secure, {secure[0]['date']} at load" in text
    assert f"{len(os.sched_getaffinity(0))} cores" in text


def test_versions_of_the_other_interpreter_are_those_that_it_has(monkeypatch):
    monkeypatch.setattr(bench, "OURS", ())
    monkeypatch.setattr(bench, "PEERS", ("numpy", "nowhere"))
    assert bench.versions(sys.executable).keys() == {"python", "numpy"}
    assert bench.versions(None).keys() == {"python"}


def test_quick_needs_a_place_of_its_own(capsys):
    with pytest.raises(SystemExit):
        bench.main(["--quick"])
    assert "--quick: expected --out DIR beside it" in capsys.readouterr().err


def test_without_an_accelerator_one_line_and_status_2(tmp_path):
    command = [sys.executable, "-m", "experiments.bench.run", "--only", "gpu", "--out", str(tmp_path)]
    ended = subprocess.run(command, env=os.environ | {"JAX_PLATFORMS": "cpu"}, capture_output=True, text=True)
    assert ended.returncode == 2
    assert ended.stderr.splitlines() == ["bench_gpu: expected an accelerator that JAX can use, got a CPU alone"]
    assert list(tmp_path.iterdir()) == []


def test_a_machine_s_file_is_named_for_it_and_found():
    machine = {"processor": "Intel(R) Xeon(R) Gold 6 @ 2.5GHz", "cores": 2, "memory_gib": 8.0, "accelerator": None}
    assert bench.slug(machine) == "intel-xeon-gold-6-2-5ghz-2-cores"
    assert bench.slug(machine | {"accelerator": "NVIDIA H200"}) == "nvidia-h200-2-cores"
    machine = bench.describe("cpu")
    assert machine["cores"] == len(os.sched_getaffinity(0))
    assert 0.1 < machine["memory_gib"] < 100_000
    assert json.loads(json.dumps(machine)) == machine


def test_a_side_that_plays_another_game_ends_the_benchmark_of_trials():
    draw = np.random.default_rng(0)
    wrong = 1 / (1 + math.exp(bench_ldp.EPSILON))
    bench_ldp.refuse_wrong({"ours": draw.random((8, 1_024)) < wrong})
    for other in (1 - wrong, 2 * wrong, math.nan):
        with pytest.raises(AssertionError, match="vmap plays another game: "):
            bench_ldp.refuse_wrong({"vmap": (draw.random(4_096) < other) + 0 * other})


def test_all_sides_of_the_randomised_trial_play_the_same_trials():
    keys = jax.random.split(philox.from_key(jax.random.key(1)), 50)
    sides = bench_kernels.sides(*jax.random.normal(jax.random.key(0), (2, 37)))
    found = {side: np.asarray(run(keys)) for side, run in sides.items()}
    assert len(found) == 3
    for cosines in found.values():
        np.testing.assert_allclose(cosines, found[bench_kernels.SHIPPED], atol=1e-6)
