"""What paper 003 leaves to its libraries: choices change what they name and nothing else, and rows stay."""

import copy
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpaudit import InputError
from dpaudit.report.rows import read_rows
from dpaudit.training import models
from dpaudit.training.dropout import mc_dropout
from experiments import pages
from experiments.common import Rows
from experiments.paper003 import networks, page_full, unstated
from experiments.paper003.bench import Bench, Scale
from experiments.paper003.published import STATED
from experiments.paper003.unstated import CHANNELS, CHOICES, OURS, PYTORCH, STANDARDISED, Otherwise

TINY = Scale("digits", 8, 80, 20, 2, noise=1.0, models=2, repeats=2, samples=3)


def under(choice, folder):
    return Otherwise(CHOICES[choice], TINY, 0, folder)


def first(bench):
    return bench.first(jax.random.key(5))


def same(one, other):
    return jax.tree.all(jax.tree.map(jnp.array_equal, one, other))


def test_a_choice_changes_what_it_names_alone(tmp_path):
    plain = Bench(TINY, 0, tmp_path)
    changed = {name: under(name, tmp_path) for name in CHOICES}
    weights = {name: not same(first(bench), first(plain)) for name, bench in changed.items()}
    pixels = {name: not np.array_equal(bench.images, plain.images) for name, bench in changed.items()}
    assert weights == {name: PYTORCH in name for name in CHOICES}
    assert pixels == {name: STANDARDISED in name for name in CHOICES}
    assert {name for name, bench in changed.items() if bench.model != plain.model} == {f"{PYTORCH}, {CHANNELS}"}
    assert OURS in CHOICES


def test_weights_and_biases_are_drawn_as_pytorch_draws_them(tmp_path):
    for layer in first(under(PYTORCH, tmp_path)).values():
        inputs = np.prod(layer["kernel"].shape[:-1])
        for values in (np.ravel(layer["kernel"]), np.ravel(layer["bias"])):
            assert np.abs(values).max() <= 1 / np.sqrt(inputs)
            assert np.any(values)
        of_one = np.ravel(layer["kernel"]) * np.sqrt(inputs)  # uniform on [-1, 1], of variance 1/3
        assert abs(of_one.var() * 3 - 1) < 4.5 * np.sqrt((9 / 5 - 1) / len(of_one))


def test_pixels_are_standardised_by_the_records_that_are_learnt(tmp_path):
    bench = under(STANDARDISED, tmp_path)
    members = bench.images[bench.rows.members]
    assert float(members.mean()) == pytest.approx(0, abs=1e-5)
    assert float(members.std()) == pytest.approx(1, abs=1e-5)


def test_batches_and_noise_are_the_same_under_every_choice(tmp_path):
    """Noise is most of what moves such a network, as long as one choice's draws are another's."""
    moved = []
    for choice, trial in ((OURS, 0), (PYTORCH, 0), (PYTORCH, 1)):
        bench = under(choice, tmp_path)
        init_key, train_key, _ = jax.random.split(jax.random.fold_in(bench.key, networks.NETWORKS + trial), 3)
        rows = bench.all_of(bench.rows.members)
        params, _ = networks.trained(bench, init_key, train_key, rows, f"{len(moved)}", lambda _: None)
        apart = jax.tree.map(lambda end, start: np.ravel(end - start), params, bench.first(init_key))
        moved.append(np.concatenate(jax.tree.leaves(apart)))
    assert np.corrcoef(moved[0], moved[1])[0, 1] > 0.7
    assert abs(np.corrcoef(moved[1], moved[2])[0, 1]) < 0.3


def test_a_network_is_trained_once_and_refused_by_another_choice(tmp_path, monkeypatch):
    bench = under(PYTORCH, tmp_path)
    record = unstated.network(bench, PYTORCH, 0, lambda _: None)
    assert STATED.keys() < record["utility"].keys()
    monkeypatch.setattr(networks, "fit", lambda *given, **named: pytest.fail("trained again"))
    assert unstated.network(bench, PYTORCH, 0, lambda _: None) == json.loads(json.dumps(record))
    with pytest.raises(InputError, match="made by another program"):
        unstated.network(under(OURS, tmp_path), PYTORCH, 0, lambda _: None)


def test_rows_of_other_choices_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(unstated, "SCALES", {"quick": TINY})

    def made(*choices):
        command = ["unstated", "--quick", "--out", str(tmp_path / "out"), "--work", str(tmp_path / "work")]
        monkeypatch.setattr(sys, "argv", [*command, "--choices", *choices])
        unstated.main()
        rows = read_rows(tmp_path / "out" / "results.json")
        return {row["setting"]["choice"]: row["each"] for row in rows if row["setting"]["published"] == "mean of all"}

    one = made(PYTORCH)
    both = made(STANDARDISED)
    assert list(both) == [PYTORCH, STANDARDISED]
    assert both[PYTORCH] == one[PYTORCH]
    assert made(PYTORCH)[STANDARDISED] == both[STANDARDISED]


def test_a_row_has_every_network(tmp_path):
    rows = Rows("003", "mc_dropout_unstated", str(tmp_path), 0)
    told = {"judged": 10_000, "judged_whole": 1_000}
    found = [
        told | {"utility": {"deterministic": value, "mean of all": 0.5}, "cpu_hours": 1.0} for value in (0.47, 0.49)
    ]
    unstated.gather(rows, PYTORCH, found, "2 networks")
    plain, whole = rows.rows
    assert (plain["ours"], plain["paper_value"], plain["each"]) == (pytest.approx(0.48), 0.48, [0.47, 0.49])
    assert (plain["records"], whole["records"], whole["paper_value"]) == (10_000, 1_000, None)
    assert plain["ours_high"] - plain["ours"] > 0.1  # two networks that differ by two points tell little
    assert whole["ours_high"] - whole["ours"] == pytest.approx(1.96 * np.sqrt(0.25 / 1_000))


def test_whole_channels_are_dropped_in_training_and_in_what_is_asked(tmp_path):
    plain, bench = Bench(TINY, 0, tmp_path), under(f"{PYTORCH}, {CHANNELS}", tmp_path)
    network = models.CNN8(10, dropout_rate=0.5, channel_dropout=True)
    params, image, key = first(bench), bench.images[0], jax.random.key(1)
    for own, wanted in (
        (bench.network(params, image, key), models.logits(network)(params, image, key)),
        (bench.loss(params, image, 3, key), models.cross_entropy(network)(params, image, 3, key)),
        (bench.probabilities(params, image, key), mc_dropout.probabilities(network)(params, image, key)),
    ):
        np.testing.assert_array_equal(own, wanted)
    assert not same(plain.network(params, image, key), bench.network(params, image, key))
    assert same(plain.network(params, image), bench.network(params, image))


@pytest.mark.parametrize("shift, holds", [(0.0, True), (0.05, False), (-0.08, False)])
def test_the_sentence_on_first_weights_fails_where_they_cost_nothing_or_all(shift, holds):
    rows = copy.deepcopy(pages.rows_of("paper003"))
    for row in rows:
        if row["quantity"] == "accuracy_of_choice":
            row |= {name: row[name] + shift for name in ("ours", "ours_low", "ours_high")}
    assert page_full.full_first_weights(rows).holds is holds
