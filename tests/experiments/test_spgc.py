"""Paper 001's trainings: whole numbers add up in any parts, a run is a function of its seed, its rows tell of it."""

import jax
import numpy as np
import pytest
from scipy.stats import norm

from dpaudit import InputError
from dpaudit.secure.noise import gaussian
from dpaudit.secure.protocol import schemes
from experiments.common import Rows
from experiments.pages import select
from experiments.paper001 import page
from experiments.paper001 import run as spgc
from experiments.paper001 import runs as spgc_runs
from experiments.paper001 import tasks as spgc_tasks
from experiments.paper001.runs import SCHEMES, Run
from experiments.paper001.tasks import DELTA, EPSILONS, TASKS, load

CANCER = load("Cancer", None, 0)
EPOCHS = 8
PRIVATE = Run("Cancer", "SPGC", 8.0, "classical", 3, EPOCHS, 0)


@pytest.fixture(scope="module")
def records():
    wanted = [
        PRIVATE,
        Run("Cancer", "MPC only", None, None, 3, EPOCHS, 0),
        Run("Cancer", "non-private", None, None, 3, EPOCHS, 0),
    ]
    return [spgc_runs.play(run, *CANCER, seed=1) for run in wanted]


def test_the_paper_s_runs_are_among_ours():
    for name, task in TASKS.items():
        found = spgc_runs.runs([name], 1)
        assert len(set(found)) == len(found)
        of_paper = {(run.scheme, run.epsilon) for run in found if run.owners == 3 and run.rule in (None, "classical")}
        assert set(task.paper) <= of_paper
        assert {run.owners for run in found} == {3, 10, 100}
        assert {run.scheme for run in found} == set(SCHEMES)
    assert {spgc_runs.step_of(run).examples for run in spgc_runs.runs(["MNIST"], 1)} == {3_000}
    batches = {k: spgc_runs.step_of(PRIVATE._replace(owners=k)).examples for k in (3, 10, 100)}
    assert batches == {3: 30, 10: 30, 100: 100}  # of each owner at least one
    assert spgc_runs.step_of(PRIVATE).noise_multiplier == gaussian.classical(epsilon=8.0, delta=DELTA)


def test_whole_numbers_add_up_in_any_parts():
    learn = spgc_runs.learner("Cancer", (90,))
    params = learn.first(jax.random.key(0))
    scheme = schemes.spgc(spgc_runs.step_of(PRIVATE))
    batch = np.arange(30)
    whole = sum(spgc_runs.contributions(scheme, learn, params, CANCER[0], batch))
    parts = [sum(spgc_runs.contributions(scheme, learn, params, CANCER[0], batch[i::3])) for i in range(3)]
    np.testing.assert_array_equal(whole, sum(parts))
    assert np.abs(whole).max() > 1_000


def test_where_nothing_is_rounded_the_sum_of_a_batch_is_that_of_its_clipped_gradients():
    learn = spgc_runs.learner("Cancer", (90,))
    params = learn.first(jax.random.key(0))
    train, batch = CANCER[0], np.arange(30)
    each = np.asarray(learn.clipped(params, (train.inputs[batch], train.labels[batch])), np.float64)
    found = sum(spgc_runs.contributions(schemes.ldp(spgc_runs.step_of(PRIVATE)), learn, params, train, batch))
    np.testing.assert_allclose(found, each.sum(axis=0), rtol=1e-4, atol=1e-4)
    assert np.abs(found).max() > 1


def test_mnist_has_three_trials_of_what_fig_1_draws_and_one_of_other_noise():
    runs = spgc.wanted(spgc.arguments(["--work", "DIR", "--tasks", "MNIST"]))
    drawn = [run for run in runs if run.scheme in spgc.FIGURE]
    assert runs[: len(drawn)] == drawn  # first
    assert {run.trial for run in drawn} == {0, 1, 2}
    assert len(drawn) == 3 * (2 + 2 * len(EPSILONS))
    others = [run for run in runs if run.scheme not in spgc.FIGURE]
    assert {run.scheme for run in others} == set(SCHEMES) - set(spgc.FIGURE)
    assert len(others) == len(set(others)) == 3 * len(EPSILONS)
    assert {(run.trial, run.owners, run.rule) for run in others} == {(0, 3, "classical")}


def test_a_run_is_a_function_of_its_seed(records):
    again = spgc_runs.play(PRIVATE, *CANCER, seed=1)
    other = spgc_runs.play(PRIVATE, *CANCER, seed=2)
    assert again["auc"] == records[0]["auc"]
    assert other["auc"] != records[0]["auc"]


def test_fixed_point_costs_next_to_nothing_and_networks_learn(records):
    _, fixed, real = records
    np.testing.assert_allclose(fixed["auc"], real["auc"], atol=2e-3)
    assert fixed["accuracy"][-1] > 0.9
    assert fixed["steps"] == EPOCHS * 13


def test_cancer_is_ninety_bits_and_diabetes_standardised_by_the_training_records():
    train = np.array([[0.0, 10.0], [1.0, 20.0], [2.0, 1000.0], [3.0, 30.0], [4.0, 5.0], [5.0, 40.0]])
    where = spgc_tasks.thirds(train, train).reshape(6, 2, 3).argmax(axis=-1)
    np.testing.assert_array_equal(where, [[0, 0], [0, 1], [1, 2], [1, 1], [2, 0], [2, 2]])
    beyond = spgc_tasks.thirds(train, np.array([[-9.0, 1e6], [9.0, -1e6]]))
    np.testing.assert_array_equal(beyond, [[1, 0, 0, 0, 0, 1], [0, 0, 1, 1, 0, 0]])
    np.testing.assert_allclose(CANCER[0].inputs.mean(axis=0), 1 / 3, atol=0.02)
    found = spgc_tasks.standardised(train, train[:1] + 1)
    np.testing.assert_allclose(found, (train[:1] + 1 - train.mean(axis=0)) / train.std(axis=0), rtol=1e-6)


def test_other_trials_split_the_records_of_a_table_anew():
    train, test = load("Cancer", None, 3)
    assert (train.inputs.shape, test.inputs.shape) == ((390, 90), (179, 90))
    assert abs(train.labels.mean() - CANCER[0].labels.mean()) < 0.005
    assert not np.array_equal(train.inputs, CANCER[0].inputs)


def test_worth_of_known_guesses():
    found = spgc_runs.worth(np.array([[0.9, 0.1], [0.4, 0.6], [0.2, 0.8], [0.7, 0.3]]), np.array([0, 0, 1, 0]))
    assert found == pytest.approx({"accuracy": 0.75, "balanced_accuracy": (2 / 3 + 1) / 2, "auc": 1.0})
    ranked = spgc_runs.worth(np.array([[0.9, 0.1], [0.1, 0.9], [0.2, 0.8], [0.7, 0.3]]), np.array([0, 0, 1, 0]))
    assert ranked["auc"] == pytest.approx(2 / 3)


def test_rows_and_the_page(records, tmp_path):
    rows = Rows("001", "spgc", str(tmp_path / "out"), 1)
    spgc.outside(rows)
    spgc.gather(rows, records)
    (accuracy,) = select(rows.rows, "accuracy", scheme="SPGC")
    assert (accuracy["ours"], accuracy["paper_value"]) == (pytest.approx(100 * records[0]["accuracy"][-1]), 92.1)
    one, both = (select(rows.rows, "epsilon", neighbouring="replace", releases=n)[0]["ours"] for n in (1, EPOCHS))
    assert 21.3 < one < both
    of_all = [
        row | {"setting": row["setting"] | {"epsilon": epsilon}}
        for row in rows.rows
        for epsilon in (EPSILONS if row["setting"].get("epsilon") == 8.0 else [row["setting"].get("epsilon")])
    ]
    prior = {"quantity": "prior", "setting": {"data": "Cancer"}, "ours": 62.6}
    many = [row | {"scale": row["scale"].replace(" 1 trials", " 10 trials")} for row in of_all]
    for trials, told in ((of_all, " ("), (many, " [")):  # a single trial has no range
        text = page.accuracies([*trials, prior])
        (line,) = (line for line in text.splitlines() if line.startswith("| Cancer, SPGC |"))
        assert line.count(f" {accuracy['ours']:.1f}{told}") == len(EPSILONS)
    assert "| m = 30 | 9.4e-01 (4.8e-01) |" in page.outside(rows.rows)
    (lost,) = select(rows.rows, "outside", examples=30, epsilon=0.01)
    assert lost["ours"] == pytest.approx(2 * norm.sf(30 / 377.6), rel=1e-3)


@pytest.mark.parametrize("deviation", [7.0, 37.8, 377.6])
def test_the_share_of_signs_that_a_ring_turns_is_that_of_drawn_noise(deviation):
    noise = deviation * np.random.default_rng(0).normal(size=200_000)
    turned = np.sign((noise + 30) % 60 - 30) != np.sign(noise)
    found = page.wrong_sign({"setting": {"examples": 30, "noise_multiplier": deviation}})
    assert abs(turned.mean() - found) < 4 * np.sqrt(found * (1 - found) / len(noise)) + 1e-6


def test_bad_arguments_are_refused():
    with pytest.raises(InputError, match="--work: expected a folder for what takes hours, got none"):
        spgc.arguments([])
    quick = spgc.wanted(spgc.arguments(["--quick"]))
    assert {run.scheme for run in quick} == set(spgc.FIGURE)


def test_a_record_of_another_program_is_refused(tmp_path, monkeypatch):
    run = PRIVATE._replace(epochs=1)
    (kept,) = spgc_runs.play_all([run], tmp_path, 1, None)
    assert spgc_runs.play_all([run], tmp_path, 1, None) == [kept]
    monkeypatch.setattr(spgc_runs.fingerprint, "of_module", lambda name: "another")
    with pytest.raises(InputError, match=r"one of this experiment, got .*\.json: made by another program"):
        spgc_runs.play_all([run], tmp_path, 1, None)
