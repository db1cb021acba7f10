"""Paper 002's experiment: its settings, what is kept of a run, how claims are judged, and what the section says."""

import math
import re
import shlex
from functools import partial
from itertools import chain

import jax
import numpy as np
import pytest

from dpaudit import InputError, data
from dpaudit.federated import accounting, population, rounds
from dpaudit.federated.clip_size import EDGES
from dpaudit.report.rows import read_rows, write_rows
from dpaudit.training import models
from experiments.common import Rows, read_all, results
from experiments.paper002 import adaptive, figures, page, substitution
from experiments.paper002 import rows as clip_size_rows
from experiments.paper002 import run as clip_size
from experiments.paper002 import runs as clip_size_runs
from experiments.paper002.published import ACCURACY, COMPARISONS, Comparison
from experiments.paper002.runs import NON_PRIVATE, RULES, Bench, Run, Scale

ROUNDS, CLIENTS = 10, 10


@pytest.fixture(scope="module")
def bench():
    return Bench("digits", Scale(ROUNDS, CLIENTS, CLIENTS), seed=3)


def clip_norms(name, count):
    rule = RULES[name](Scale(count, 1_000, 1_000), 1.4042, {"w": np.ones(100)})
    return jax.lax.scan(lambda state, _: (rule.update(state, None), state.clip_norm), rule.init(), length=count)[1]


def test_the_paper_s_settings_and_noises():
    assert set(ACCURACY) <= set(RULES)
    assert {name for claim in COMPARISONS for name in (*claim.larger, *claim.smaller)} <= {NON_PRIVATE, *RULES}
    found = [accounting.gaussian(1, noise_multiplier=clip_size_runs.noise_multiplier(s), delta=1e-7) for s in (1, 2)]
    assert found == pytest.approx([18.30, 8.0], abs=0.01)


def test_schedules_keep_their_shares_of_the_rounds():
    for count in (10, 50):
        for share in (0.2, 0.6):
            expected = np.where(np.arange(count) < share * count, 0.05, 0.01)
            np.testing.assert_allclose(clip_norms(f"0.05to0.01({share:.0%})", count), expected, rtol=1e-6)
        np.testing.assert_allclose(clip_norms("poly(0.05)2.0", count)[-1], 0.05 * (2 / count) ** 2, rtol=1e-5)
        assert RULES["adaptive0.05"](Scale(count, 1_000, 20), 1.4042, None).every == count // 10


def test_processes_share_all_runs_out():
    wanted = clip_size_runs.runs([""], [1, 2], 3)
    assert len(set(wanted)) == len(wanted) == 3 * (1 + 2 * len(RULES))
    shares = [wanted[i::4] for i in range(4)]
    assert sorted(map(str, chain(*shares))) == sorted(map(str, wanted))
    assert {run.name for run in clip_size_runs.runs(["poly", "clip0.1"], [2], 1)} == {
        "clip0.1",
        *(name for name in RULES if name.startswith("poly")),
    }
    with pytest.raises(InputError, match=re.escape("--only: expected the beginning of one of non-private, clip0.01")):
        clip_size_runs.runs(["ploy"], [1], 1)
    with pytest.raises(InputError, match="--simulated: expected a divisor of 1000 clients, got 30"):
        clip_size.arguments(["--simulated", "30"])
    with pytest.raises(InputError, match="--work: expected a folder for the runs that --share shares out, got none"):
        clip_size.arguments(["--share", "0/2"])
    assert (
        clip_size.arguments([]).scale == clip_size.arguments(["--simulated", "1000"]).scale == (10_000, 1_000, 1_000)
    )


@pytest.mark.parametrize("share", ["2/2", "1/0", "-1/2", "1", "a/b", "1/2/3"])
def test_a_share_that_would_leave_runs_out_is_refused(share, capsys):
    with pytest.raises(SystemExit):
        clip_size.arguments(["--work", "somewhere", f"--share={share}"])
    assert f"argument --share: expected I/N with I from 0 to N - 1, got {share}" in capsys.readouterr().err


def mean_loss(model, params, test):
    """The mean of log sum exp minus the label's logit, in NumPy."""
    logits = np.asarray(jax.vmap(lambda image: model.apply({"params": params}, image))(test.inputs), np.float64)
    return np.mean(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(logits)), test.labels])


def test_a_record_is_of_the_run_as_one_program_makes_it(bench, tmp_path):
    run = Run("adaptive0.01", 2, 1)
    (kept,) = clip_size_runs.play_all(bench, [run], str(tmp_path))
    people_key, first_key, rounds_key = jax.random.split(jax.random.fold_in(jax.random.key(3), 1), 3)
    test = data.load("digits", split="test")
    params = models.initial_parameters(first_key, bench.model, bench.image_shape)
    server = bench.server(run.name, run.sensitivity)
    everyone = population.iid(people_key, len(bench.train[1]), len(test.labels))
    state = server.init(params)
    for i in range(ROUNDS):
        state, info = rounds.run(rounds_key, server, state, everyone, bench.train, 1)
        right = models.accuracy(bench.model, state.params, test.inputs, test.labels)
        assert kept["accuracy"][i] == pytest.approx(right, rel=1e-4)
        assert kept["loss"][i] == pytest.approx(mean_loss(bench.model, state.params, test), rel=1e-4)
        assert (kept["norm"][i], kept["clip_norm"][i]) == pytest.approx(
            (float(info.norm[0]), float(info.clip_norm[0])), rel=1e-4
        )
        np.testing.assert_allclose(kept["released"][i], info.released[0], rtol=1e-4)
        np.testing.assert_allclose(kept["histogram"][i], info.histogram[0] / CLIENTS)
    assert kept["clip_norm"][0] != kept["clip_norm"][1]
    assert kept["diverged"] is None
    assert clip_size_runs.play_all(bench, [run], str(tmp_path)) == [kept]  # seconds too: it was not made again


def test_a_record_of_another_program_is_refused(bench, tmp_path, monkeypatch):
    run = Run("clip0.05", 2, 0)
    (kept,) = clip_size_runs.play_all(bench, [run], str(tmp_path))
    (file,) = tmp_path.glob("*/*/*/*.json")
    other = Bench("digits", bench.scale, seed=3)
    assert clip_size_runs.play_all(other, [run], str(tmp_path)) == [kept]  # the same, found by another process
    monkeypatch.setitem(RULES, "clip0.05", lambda scale, noise, params: clip_size_runs.clip_size.fixed(0.06))
    with pytest.raises(InputError, match=r"expected one of this experiment, got 0\.json: made by another "):
        clip_size_runs.play_all(Bench("digits", bench.scale, seed=3), [run], str(tmp_path))
    write_rows([kept | {"identity": None}], file)  # from before records had one
    (found,) = clip_size_runs.play_all(bench, [run], str(tmp_path))
    rows = Rows("002", "clip_size", str(tmp_path / "out"), 3)
    for record, known in ((kept, True), (found, False)):
        with rows.of_records([record]):
            assert (rows.signature()["fingerprint"] is not None) is known
    assert rows.signature()["fingerprint"] is not None


def test_the_commands_that_are_told_are_of_the_runs_that_the_rows_are_of():
    rows = [row for row in read_rows(results("clip_size")) if row["quantity"] == "accuracy_percent"]
    settings = {tuple(row["setting"][name] for name in ("dataset", *Scale._fields)) for row in rows}
    assert len(settings) > 3
    for scale in settings:
        own = [row for row in rows if page.scale_of(row["setting"]) == scale]
        trials: dict[tuple[str, int | None], int] = {}
        for line in page.commands_of(rows, scale):
            if line.startswith("python -m experiments.clip_size "):
                chosen = clip_size.arguments(shlex.split(line)[3:])
                assert (chosen.dataset[0], chosen.rounds, chosen.clients_per_round, chosen.simulated) == scale
                for run in clip_size_runs.runs(chosen.only, chosen.sensitivity, chosen.trials):
                    setting = run.name, run.sensitivity
                    trials[setting] = max(trials.get(setting, 0), run.trial + 1)
        told = {(row["setting"]["name"], row["setting"]["sensitivity"]): row["scale"].split()[-2] for row in own}
        assert {setting: str(count) for setting, count in trials.items()} == told


def test_tables_are_in_the_paper_s_order_whatever_was_run_last():
    rows = read_rows(results("clip_size"))
    tables = page.accuracies(rows), page.few_accuracies(rows)
    assert (page.accuracies(rows[::-1]), page.few_accuracies(rows[::-1])) == tables
    named = [line.split(" | ")[0][2:] for line in tables[0].splitlines()[2:-1]]
    assert len(named) > 9
    assert named == [name for name in (NON_PRIVATE, *RULES) if name in named]
    assert "| poly(0.01)2.0 | 89.65 ± 0.20 | " in tables[0]


@pytest.mark.parametrize("share", ["50%", "10%"])
@pytest.mark.parametrize("rounds", [1_000, 10_000])
def test_the_sentence_on_the_quantile_rule_fails_where_one_run_s_c_ends_high(monkeypatch, share, rounds):
    def growing(read, file):
        kept = read(file)
        setting = {"name": f"quantile(0.01){share}", "rounds": rounds, "simulated": 1_000}
        for row in [row for row in kept if setting.items() <= row.items()][-1:]:
            row["clip_norm"] = [*sorted(row["clip_norm"])[:-1], max(1.1, *row["clip_norm"])]
        return kept

    assert adaptive.adapting([]).holds
    for read in (read_rows, read_all):
        monkeypatch.setattr(adaptive, read.__name__, partial(growing, read))
    assert not adaptive.adapting([]).holds


def test_a_margin_tells_how_many_trials_it_is_of(tmp_path):
    rows = Rows("002", "clip_size", str(tmp_path), 3)
    labels = {"sensitivity": 2}
    for record in RECORDS:
        record["sensitivity"] = 2
    claims = [Comparison(1, "", "accuracy", 0.5, ("a",), ("b",)), Comparison(1, "", "accuracy", 0.5, ("a",), ("c",))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clip_size_rows, "COMPARISONS", claims)
        clip_size_rows.judge(rows, labels, RECORDS, lambda trials: f"{trials} trials")
    assert [row["scale"] for row in rows.rows] == ["2 trials", "1 trials"]
    assert [row["apart"] for row in rows.rows] == [pytest.approx([10, 20]), pytest.approx([40])]


def test_a_fixed_c_is_known_without_a_run():
    ends = {"name": "quantile(0.01)50%", "trial": 0, "round": [1, 2], "clip_norm": [30.0, 0.25]}
    claim = Comparison(4, "", "clip_norm", 1, ("quantile(0.01)50%",), ("clip1.0",))
    assert clip_size_rows.margin(claim, [ends]) == (("quantile(0.01)50%", "clip1.0"), [-0.75], 1)
    longer = claim._replace(quantity="norm")
    assert clip_size_rows.margin(longer, [ends | {"norm": [2.0, 3.0]}])[1] == []  # other quantities take a run


def test_a_few_clients_in_place_of_all_leave_the_noise_as_it_is():
    """A round is noise of length 1.4042 C sqrt(d/m), within 1/sqrt(2 d), and a mean of updates of length C at most."""
    few = Bench("digits", Scale(ROUNDS, 10, 2), seed=3)
    server, before = few.server("clip1.0", 2), few.first(0)
    everyone = population.iid(jax.random.key(6), 99, 9)
    after, info = rounds.run(jax.random.key(5), server, server.init(before), everyone, few.train, 1)
    moved = np.concatenate(
        [np.ravel(a - b) for a, b in zip(*map(jax.tree.leaves, (after.params, before)), strict=True)]
    )
    noise = 1.4042 * np.sqrt(moved.size / 10)
    assert abs(np.linalg.norm(moved) - noise) < 1 + 4 * noise / np.sqrt(2 * moved.size) < noise / 5
    assert info.histogram.sum() == 2


@pytest.mark.parametrize(
    ("whole", "low", "holds"),
    [(90.5, None, True), (92.0, None, False), (92.0, 89.0, True), (92.0, 90.5, False)],  # against 90; low: a deviation
)
def test_the_sentence_on_a_few_clients_holds_within_a_point_or_what_trials_differ_by(whole, low, holds):
    at = {"dataset": "mnist", "rounds": 100, "clients_per_round": 10, "name": "clip0.1", "sensitivity": 2}
    rows = [
        {"quantity": "accuracy_percent", "setting": at | {"simulated": played}, "ours": ours, "ours_low": lowest}
        for played, ours, lowest in ((10, whole, low), (2, 90.0, None))
    ]
    found = page.few_clients(rows)
    assert (bool(found.holds), found.values["settings"], found.values["few"]) == (holds, 1, "90.00")


def test_a_report_that_counts_for_many_is_released_with_the_noise_of_many():
    key, reports = jax.random.key(0), np.array([0, 1, 1, 4])
    rule = RULES["adaptive0.01"](Scale(10, 200, 4), 1.4042, None)
    release = clip_size_runs.repeated(rule, 50).release
    assert rule.release is not None
    assert release is not None
    few, all_of_them = jax.jit(release)(key, reports), jax.jit(rule.release)(key, np.repeat(reports, 50))
    np.testing.assert_array_equal(few, all_of_them)
    assert np.abs(few - np.array([0.25, 0.5, 0, 0, 0.25])).max() < 4 * 6.3 / 200
    assert clip_size_runs.repeated(RULES["clip0.1"](Scale(10, 200, 4), 1.4042, None), 50).release is None


def test_rows_are_of_all_that_a_folder_holds(bench, tmp_path):
    wanted = [Run("clip0.05", 2, 0), Run("clip0.01", 2, 0), Run(NON_PRIVATE, None, 0)]
    records = [{"dataset": "mnist", **bench.scale._asdict(), **run._asdict()} for run in wanted]
    for record in records:
        folder = tmp_path / "scale" / str(record["sensitivity"]) / record["name"]
        folder.mkdir(parents=True)
        write_rows([record], folder / "0.json")
    assert clip_size_runs.all_records(str(tmp_path)) == records[::-1]


def test_committed_records_and_new_ones_make_rows_together(tmp_path):
    """Rows of settings without a record stay, as does a margin of more settings or trials than the records have."""
    at = dict(zip(("dataset", *Scale._fields), ("mnist", 10_000, 1_000, 1_000), strict=True))
    first, second, again = (
        at | run._asdict() | {"accuracy": [accuracy]}
        for run, accuracy in ((Run("clip0.01", 2, 0), 0.1), (Run("clip0.05", 2, 0), 0.2), (Run("clip0.01", 2, 0), 0.3))
    )
    rows = Rows("002", "clip_size", str(tmp_path), 0)
    write_rows([first], tmp_path / "results_records.json")
    rows.earlier = [{}]
    assert clip_size.joined(rows, [second]) == [first, second]
    assert clip_size.joined(rows, [again]) == [again]
    program, trial = {"identity": {"program": "a", "data": "b"}}, {"trial": 1}
    write_rows([first | program], tmp_path / "results_records.json")
    assert len(clip_size.joined(rows, [first | program | trial])) == 2
    assert len(clip_size.joined(rows, [second | {"identity": {"program": "c", "data": "b"}}])) == 2  # another setting
    with pytest.raises(
        InputError, match=r"trial 1 of clip0\.01: expected the program of its trial 0, or all .* again"
    ):
        clip_size.joined(rows, [first | trial | {"identity": {"program": "c", "data": "b"}}])
    own, other = ({"quantity": "loss", "setting": at | {"name": n, "sensitivity": 2}} for n in ("clip0.01", "clip0.1"))
    assert [rows.keep(own), rows.keep(other)] == [False, True]
    margin = {"quantity": "claim_margin", "setting": at | {"sensitivity": 2, "claim": 0, "pairs": 1}, "apart": [1.0]}
    assert rows.keep(margin)
    rows.rows = [margin]
    assert not rows.keep(margin)
    assert rows.keep(margin | {"apart": [1.0, 2.0]})
    assert rows.keep(margin | {"setting": margin["setting"] | {"pairs": 2}})
    assert clip_size.whole(first)
    assert not clip_size.whole(first | {"simulated": 20})


def test_runs_that_are_added_are_those_without_a_committed_record():
    kept = {clip_size.of_run(record) for record in read_all(results("clip_size").with_name("clip_size_records.json"))}
    every, chosen = (clip_size.arguments(["--trials", "9", *more]) for more in ([], ["--add"]))
    left = {dataset: clip_size.wanted(chosen, dataset) for dataset in ("digits", "mnist", "fashion_mnist")}
    assert sum(len(clip_size.wanted(every, dataset)) - len(own) for dataset, own in left.items()) == len(kept) > 17
    assert left["digits"] == clip_size.wanted(every, "digits")  # of which no records are kept
    assert Run("clip0.01", 2, 0) not in left["mnist"]
    assert Run("clip0.01", 2, 8) in left["mnist"]
    with pytest.raises(InputError, match="--add: expected no --out"):
        clip_size.arguments(["--add", "--out", "here"])


def test_histograms_in_the_bins_of_the_median_rule():
    norms = np.random.default_rng(0).uniform(0, 0.2, 500)
    fine = np.histogram(norms, [0, *rounds.EDGES, np.inf])[0] / 500
    expected = np.histogram(norms, [*EDGES[:-1], np.inf])[0] / 500
    (row,) = clip_size_rows.histograms({}, {"tenths": [9], "histogram": [fine], "released": [[0.0] * 5]})
    assert row["raw"] == pytest.approx(expected.tolist(), abs=1e-4)


def recorded(name, trial, accuracy, loss):
    """Of four looks, a quarter of the rounds apart."""
    return {"name": name, "trial": trial, "round": [25, 50, 75, 100], "accuracy": accuracy, "loss": loss}


RECORDS = [
    recorded("a", 0, [0.1, 0.5, 0.6, 0.9], [2.0, 1.0, 1.0, None]),
    recorded("a", 1, [0.1, 0.7, 0.6, 0.9], [2.0, 1.0, 1.0, None]),
    recorded("b", 0, [0.1, 0.4, 0.8, 0.5], [2.0, 0.5, 0.5, 0.5]),
    recorded("b", 1, [0.1, 0.5, 0.8, 0.5], [2.0, 0.5, 0.5, 0.5]),
    recorded("c", 0, [0.1, 0.1, 0.1, 0.1], [2.0, 2.0, 2.0, None]),
]


def test_a_claim_s_margin_is_that_of_its_closest_pair():
    at_half = Comparison(1, "", "accuracy", 0.5, ("a",), ("c", "b", "not run"))
    pair, apart, compared = clip_size_rows.margin(at_half, RECORDS)
    assert (pair, compared) == (("a", "b"), 2)
    assert apart == pytest.approx([10, 20])
    turned = at_half._replace(larger=("b",), smaller=("a",))
    assert clip_size_rows.margin(turned, RECORDS)[1] == pytest.approx([-10, -20])
    assert clip_size_rows.margin(at_half._replace(at=0.6), RECORDS)[1] == pytest.approx([-20, -20])  # the look after
    diverged = Comparison(1, "", "loss", 1, ("a",), ("b",))
    assert clip_size_rows.margin(diverged, RECORDS)[1] == [np.inf, np.inf]
    assert clip_size_rows.margin(diverged._replace(smaller=("c",)), RECORDS)[1] == [0.0]
    assert clip_size_rows.margin(at_half._replace(larger=("not run",)), RECORDS)[2] == 0
    once = at_half._replace(at=1, larger=("c", "b"), smaller=("a",))  # c is further below a, in its only trial
    assert clip_size_rows.margin(once, RECORDS) == (("b", "a"), pytest.approx([-40, -40]), 2)
    assert clip_size_rows.margin(once, [record for record in RECORDS if record["trial"] == 0])[0] == ("c", "a")


@pytest.mark.parametrize("played", [20, 1_000])
def test_the_page_says_what_the_rows_say(tmp_path, played):
    looks, final = [10, 20, 100], (0.90, 0.94, 0.92)
    records = []
    for name in ("non-private", "clip0.01", "clip0.05", "adaptive0.01"):
        for trial in range(3):
            ahead = name == "clip0.05"
            loss = [1.0 + (0.5 if ahead and trial else -0.5 * ahead), 0.9, 0.8]
            own = recorded(name, trial, [0.5 + 0.25 * ahead, 0.8, final[trial]], loss)
            own |= {"sensitivity": None if name == "non-private" else 2, "round": looks, "clip_norm": [0.05] * 3}
            own |= {"norm": [1.0, 2.0, None], "tenths": [10], "histogram": [[0.5, *[0.0] * 24, 0.5]], "device": "cpu"}
            own |= {"released": [[0.4, 0.0, 0.0, 0.0, 0.6]] if name == "adaptive0.01" else []}
            own |= {"dataset": "mnist", **Scale(10_000, 1_000, played)._asdict()}
            records.append(own | {"diverged": 90 + trial if ahead else None, "seconds_per_round": 0.1})
    rows = Rows("002", "clip_size", str(tmp_path), 0)
    kept = clip_size.gather(rows, records)
    clip_size_rows.privacy(rows, {1: 0.7021, 2: 1.4042})
    whole = played == 1_000
    shown, hidden = (page.accuracies, page.few_accuracies)[:: 1 if whole else -1]
    assert "| clip0.05 | 92.03 ± 0.33 | 92.00 ± 2.00 |" in shown(rows.rows)
    assert "clip0.05" not in hidden(rows.rows)
    text = (page.claims if whole else page.few_claims)(rows.rows)
    assert "| 1: early on, C = 0.05 is more accurate than 0.01 | **holds** +25 ± 0 |" in text  # all trials are alike
    assert ("| 4: all adaptive rules end less accurate than C = 0.01 | open +0 ± 0 |" in text) is whole
    found = page.noises(rows.rows)
    assert found.holds
    assert found.values["spent"] == pytest.approx(18.30, abs=0.01)
    assert page.drawn(kept).keys() == {"fixed", "schedules", "lowered_2C", "adaptive", "norms", "histograms_2C"}


def test_accuracies_are_drawn_as_far_apart_as_errors_on_a_logarithmic_axis():
    curve = {"name": "clip0.05", "sensitivity": 2, "round": [100, 200], "accuracy": [0.2, 0.99], "loss": [2.0, 0.1]}
    axes = figures.whole([curve]).axes[0]
    ticks = np.array(axes.get_yticks())
    assert ticks.tolist() == [20, 60, 80, 90, 94, 96, 98, 99]
    to = axes.yaxis.get_transform()
    np.testing.assert_allclose(to.inverted().transform(to.transform(ticks)), ticks)
    far = np.diff(
        to.transform(np.array([80.5, 90.5, 95.5]))
    )  # errors of 20, 10 and 5 with the half point that is spare
    np.testing.assert_allclose(far, math.log(2))


def test_no_two_settings_are_drawn_alike():
    drawn = {(colour, repr(figures.pattern(name))) for name, colour in figures.COLOURS.items()}
    assert {NON_PRIVATE, *RULES} <= set(figures.COLOURS)
    assert len(drawn) == len(figures.COLOURS)


def test_variances_along_the_leading_directions_of_other_updates():
    """Ten directions of deviation 3 among 40 of deviation 1: both halves' means are elsewhere."""
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.normal(size=(50, 50)))[0]
    deviations = np.repeat([3.0, 1.0], [substitution.DIRECTIONS, 40])
    first, second = (rng.normal(size=(4_000, 50)) * deviations @ basis + shift for shift in (5.0, -2.0))
    along, total = substitution.variances_of(first, second)
    assert along == pytest.approx(np.full(substitution.DIRECTIONS, 9.0), rel=0.1)
    assert total == pytest.approx(9 * substitution.DIRECTIONS + 40, rel=0.03)


def test_updates_are_clipped(bench):
    found = substitution.updates(jax.random.key(0), bench, bench.first(0), 8)
    norms = np.linalg.norm(found, axis=1)
    assert found.shape[0] == 8
    assert norms.max() <= substitution.CLIP_NORM * (1 + 1e-5)
    assert np.median(norms) > 0.5 * substitution.CLIP_NORM
