"""Paper 003's trainings: kept part by part, taken up where they ended, and by the same run alone."""

import itertools
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from dpaudit import InputError
from dpaudit.training.neighbouring import random_target
from experiments.common import Rows
from experiments.paper003 import run, runs
from experiments.paper003.bench import Bench, Scale, averaged
from experiments.paper003.runs import Judged

TINY = Scale("digits", 8, 60, 20, 2, noise=1.0, models=2, repeats=2, samples=3, judged=3, kept=2)
IDENTITY = {"key": "a", "data": "b"}


class Torn:
    """Cannot be written."""

    def __reduce__(self):
        raise OSError("the disk is full")


MADE = Judged(*(np.array([float(i)]) for i in range(4)))


def never():
    raise AssertionError("made again")


def test_a_file_is_made_once(tmp_path):
    file = tmp_path / "new" / "part.npz"
    assert runs.kept(file, IDENTITY, lambda: MADE, Judged) is MADE
    assert runs.kept(file, IDENTITY, never, Judged) == MADE
    with pytest.raises(InputError, match=r"expected one of this experiment, got part\.npz: made by another data"):
        runs.kept(file, IDENTITY | {"data": "c"}, never, Judged)


def test_a_torn_write_leaves_no_file(tmp_path):
    file = tmp_path / "part.npz"
    with pytest.raises(OSError, match="the disk is full"):
        runs.kept(file, IDENTITY, lambda: MADE._replace(std=np.array([Torn()])), Judged)
    assert not file.exists()
    runs.kept(file, IDENTITY, lambda: MADE, Judged)
    assert runs.kept(file, IDENTITY, never, Judged) == MADE


def test_a_folder_tells_how_long_its_files_took(tmp_path, monkeypatch):
    """As long as it took to make each, once, and nothing that is certain where a file does not tell."""
    assert runs.spent(tmp_path) == 0
    clock = itertools.count(step=0.5)
    monkeypatch.setattr(runs, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    for name in ("one", "further/other", "one"):
        runs.kept(tmp_path / f"{name}.npz", IDENTITY, lambda: MADE, Judged)
    assert runs.spent(tmp_path) == 2 * 0.5
    np.savez(tmp_path / "before.npz", identity="", **MADE._asdict())
    assert np.isnan(runs.spent(tmp_path))


def test_the_hours_of_a_scale_are_those_of_its_files_and_of_the_run_that_ends_it(tmp_path, monkeypatch):
    clock = itertools.count(step=1800.0)
    bench = SimpleNamespace(key=jax.random.key(0), scale=TINY, name="digits", hours=float, targets=lambda shadows: [])
    monkeypatch.setattr(run, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    monkeypatch.setattr(run, "Bench", lambda *given: bench)
    for module, name in ((runs, "shadows"), (run, "targets"), (run.beyond, "white_box"), (run.beyond, "many_targets")):
        monkeypatch.setattr(module, name, lambda *given: None)
    monkeypatch.setattr(runs, "spent", lambda work: 3600.0 if work == tmp_path / "digits-seed0" else 0.0)
    rows = Rows("003", "mc_dropout_risk.digits", str(tmp_path / "rows"), 0)
    run.risk(rows, "digits", tmp_path, tmp_path, None)
    assert [(row["quantity"], row["setting"], row["ours"]) for row in rows.rows] == [
        ("hours", {"scale": "digits"}, 1.5)
    ]


def test_images_are_averaged_in_blocks():
    images = np.arange(2 * 4 * 4 * 3, dtype=np.float32).reshape(2, 4, 4, 3)
    small = averaged(images, 2)
    assert small.shape == (2, 2, 2, 3)
    for i, row, column, channel in np.ndindex(small.shape):
        block = images[i, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2, channel]
        assert small[i, row, column, channel] == block.mean()
    np.testing.assert_array_equal(averaged(images, 4), images)


@pytest.mark.parametrize("changed", ["training", "sampler", "nothing"])
def test_a_file_of_another_training_or_another_sampler_is_refused(tmp_path, changed):
    bench, identities = Bench(TINY, 0, tmp_path), []
    pair = random_target(bench.target_key, bench.images, bench.labels, bench.rows.members)

    def noted(path, identity, make, kind):
        identities.append(identity)
        return kind(*(np.zeros(1) for _ in kind._fields))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "kept", noted)
        runs.found(bench, pair)
        if changed == "training":
            learner = bench.learner
            patch.setattr(bench, "learner", lambda records, steps: learner(records, steps + 1))
        if changed == "sampler":
            observe = bench.observe
            bench.observe = lambda key, params, image: observe(jax.random.fold_in(key, 1), params, image)
        runs.found(bench, pair)
    first, second = identities[0], identities[-1]
    assert (first == second) is (changed == "nothing")
    assert {part for part in first if first[part] != second[part]} <= {"program"}


@pytest.mark.slow
def test_a_killed_run_goes_on_behind_its_last_file(tmp_path):
    bench = Bench(TINY, 0, tmp_path)
    pair = random_target(bench.target_key, bench.images, bench.labels, bench.rows.members)
    calls, together = [], bench.together

    def counted(run, arguments, **named):
        if len(calls) == last:
            raise KeyboardInterrupt
        calls.append(len(arguments[0]))
        return together(run, arguments, **named)

    def found(work):
        calls.clear()
        bench.work = tmp_path / work
        return runs.found(bench, pair)

    bench.together = counted
    last = None
    whole = found("whole")
    assert calls == [2, 2, 2, 2]  # trained and looked at, in two parts
    last = 3  # the second part is trained, not yet looked at
    with pytest.raises(KeyboardInterrupt):
        found("broken")
    last = None
    resumed = found("broken")
    assert calls == [2, 2]
    for one, other in zip(whole, resumed, strict=True):
        np.testing.assert_array_equal(one, other)
    found("whole")
    assert calls == []
    assert whole.samples.shape == (4, 3, 10)
    assert len(whole.params) == TINY.judged
    assert np.ptp(whole.deterministic, axis=0).min() > 0
    bench.key = jax.random.key(9)
    with pytest.raises(InputError, match=r"expected one of this experiment, got 00000\.npz: made by another key"):
        found("whole")
