"""A trial of paper 002 is compared with the same trial on another device, and pictures keep the noises apart."""

import pytest

from dpaudit import InputError, _platform
from dpaudit.report.rows import write_rows
from experiments import common
from experiments.common import Rows
from experiments.paper002 import devices, figures, page
from experiments.paper002.run import of_run
from experiments.paper002.runs import Bench, Run, Scale

RECORD = {
    "dataset": "mnist", "rounds": 10_000, "clients_per_round": 1_000, "simulated": 1_000, "name": "clip0.05",
    "sensitivity": 2, "trial": 0, "round": [5_000, 10_000], "accuracy": [0.5, 0.9], "loss": [1.0, 0.5],
    "device": "cpu", "identity": {"program": "a"}, "seconds_per_round": 0.2,
}  # fmt: skip
THERE = {"device": "NVIDIA H200", "identity": {"program": "b"}, "accuracy": [0.5003, 0.9], "loss": [1.0, 0.501]}


def compared(tmp_path, *there):
    rows = Rows("002", devices.NAME, str(tmp_path), 0)
    devices.compare(rows, {of_run(RECORD): RECORD}, there)
    return rows.rows


def test_the_largest_difference_of_a_trial_is_told(tmp_path):
    (row,) = compared(tmp_path, RECORD | THERE)
    assert row["ours"] == pytest.approx(0.03)
    assert row["loss_apart"] == pytest.approx(0.002)
    assert (row["device"], row["beside"], row["ended"]) == ("NVIDIA H200", "cpu", [90.0, 90.0])


def test_another_trial_or_the_same_device_is_not_compared(tmp_path):
    assert compared(tmp_path, RECORD, RECORD | THERE | {"trial": 1}, RECORD | THERE | {"sensitivity": 1}) == []


def test_curves_that_part_are_not_called_the_same(tmp_path):
    apart = [RECORD | THERE | {"accuracy": [0.5 + by, 0.9]} for by in (0.0003, 0.01)]
    rows = [compared(tmp_path, record)[0] for record in apart]
    alone = rows[0] | {"quantity": "accuracy_percent"}
    same = devices.same_elsewhere([rows[0], rows[0], alone])
    assert same.holds
    assert same.values["alone"] == "clip0.05 with noise of 2C"
    assert not devices.same_elsewhere([rows[0], rows[1], alone]).holds


@pytest.mark.integration
def test_the_program_of_a_gpu_learns_as_this_device_does():
    here, there = devices.both(0, None)
    for own, other in zip(here, there, strict=True):
        assert own["identity"]["program"] != other["identity"]["program"]
        assert own["accuracy"][-1] > 0.2
        assert max(abs(a - b) for a, b in zip(own["accuracy"], other["accuracy"], strict=True)) < 0.01


def test_a_record_of_a_gpu_is_known_by_the_program_of_a_gpu(tmp_path):
    bench, run = Bench("digits", Scale(10, 10, 10), 0), Run("clip0.05", 2, 0)
    ours = bench.identity(run.name, run.sensitivity)
    with _platform.named("gpu"):
        theirs = bench.identity(run.name, run.sensitivity)
    assert ours["program"] != theirs["program"]
    file = tmp_path / "0.json"

    def kept(**told):
        write_rows([RECORD | told], file)
        return common.kept_records(
            [run], lambda *_: pytest.fail("run again"), lambda _: file,
            lambda run: bench.identity(run.name, run.sensitivity), str, 10,
        )  # fmt: skip

    theirs["start"] = "rounded otherwise"
    assert kept(device="NVIDIA H200", identity=theirs)
    assert kept(device="cpu", identity=ours)
    for device, identity, other in (
        ("NVIDIA H200", ours, "program"),
        ("cpu", ours | {"start": "rounded otherwise"}, "start"),
        ("NVIDIA H200", theirs | {"data": "others"}, "data"),
    ):
        with pytest.raises(InputError, match=f"made by another {other}$"):
            kept(device=device, identity=identity)


@pytest.mark.parametrize("printed, kept, holds", [(96.2, 91.5, True), (92.1, 90.0, False), (92.0, None, False)])
def test_the_noise_that_fits_the_paper_is_the_nearer_one(printed, kept, holds):
    at = {"dataset": "mnist", "rounds": 10_000, "clients_per_round": 1_000, "simulated": 1_000, "name": "clip0.05"}
    rows = [
        {"quantity": "accuracy_percent", "setting": at | {"sensitivity": noise}, "ours": ours}
        for noise, ours in ((1, printed), (2, kept))
        if ours is not None
    ]
    assert page.fits(rows).holds is holds
    few = [row | {"setting": row["setting"] | {"simulated": 20}} for row in rows]
    assert not page.fits(few).holds


def test_noises_have_columns_of_their_own():
    def curve(name, sensitivity, rounds):
        return {
            "name": name, "sensitivity": sensitivity, "round": [rounds], "accuracy": [0.9], "loss": [0.1],
        }  # fmt: skip

    drawn = figures.whole(
        [curve("non-private", None, 10), *(curve("clip0.05", noise, 10) for noise in (1, 2)), curve("clip0.1", 2, 5)]
    )
    found = {axes.get_title(): [line.get_label() for line in axes.lines] for axes in drawn.axes if axes.get_title()}
    assert found == {
        "10 rounds, all clients, noise of 2C": ["non-private", "clip0.05"],
        "10 rounds, all clients, noise of C": ["non-private", "clip0.05"],
        "5 rounds, all clients, noise of 2C": ["clip0.1"],
    }
