"""Paper 003 at its own scale: memberships are judged without their coins, and networks are trained once."""

import json

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit

from dpaudit import InputError
from dpaudit.report.rows import read_rows
from experiments.common import Rows, files_of, read_all, results
from experiments.paper003 import full_claims, full_scale, memberships, networks
from experiments.paper003.bench import Bench, Scale
from experiments.paper003.memberships import Published
from experiments.paper003.published import STATED

NETWORKS, TARGETS = 4, 1_000
TINY = Scale("digits", 8, 80, 20, 2, noise=1.0, models=2, repeats=2, samples=3)


def said(leak, *, scale=1.0, seed=0):
    """What networks say whose members' logits are ``leak`` higher; targets are easy or hard for all networks."""
    rng = np.random.default_rng(seed)
    member = rng.random((NETWORKS, TARGETS)) < 0.5
    easy = 3 * rng.normal(size=TARGETS)

    def probabilities(rows, leaks):
        return expit(scale * (easy + rng.normal(size=(rows, TARGETS))) + leaks)

    own = {name: probabilities(NETWORKS, leak * member) for name in ("deterministic", "mean")}
    own["std"] = np.exp(rng.normal(size=(NETWORKS, TARGETS)) - leak * member)
    others = {name: probabilities(2, 0) for name in ("deterministic", "mean", "std")}
    return Published(own, others, member, np.repeat(np.arange(4), TARGETS // 4))


def test_a_leak_is_seen_and_its_absence_is_not():
    for leak, seen in ((2.0, True), (0.0, False)):
        published = said(leak)
        score = memberships.together(published, ("deterministic",))
        told = memberships.advantage(score, published.member, 0.999)
        bound, most = memberships.bound(score, published.member, delta=1e-5, confidence=0.95)
        assert (told.low > 0) is seen
        assert told.low < told.value < told.high
        assert (bound.epsilon_lower > 0.3) is seen
        assert bound.epsilon_lower < most


def test_a_bound_stays_below_the_truth_of_randomised_coins():
    """Each coin is told truly with probability e^eps/(1 + e^eps): the bound comes near epsilon and not above it."""
    rng, epsilon = np.random.default_rng(1), 1.5
    member = rng.random((NETWORKS, 5_000)) < 0.5
    told = np.where(rng.random(member.shape) < expit(epsilon), member, ~member) + 1e-3 * rng.random(member.shape)
    bound, _ = memberships.bound(told, member, delta=1e-5, confidence=0.95)
    assert 0.85 * epsilon < bound.epsilon_lower < epsilon


def test_what_is_easy_for_all_is_taken_off():
    """The others' statistics make an attack stronger, and its own network's are not among them."""
    published = said(1.0)
    score = memberships.together(published, ("deterministic",))
    alone = published._replace(
        own={name: values[:1] for name, values in published.own.items()},
        others={name: np.full_like(values[:1], 0.5) for name, values in published.others.items()},
        member=published.member[:1],
    )
    raw = memberships.together(alone, ("deterministic",))
    with_others = memberships.advantage(score[:1], published.member[:1], 0.95)
    assert with_others.value > 0.1 + memberships.advantage(raw, alone.member, 0.95).value
    apart = memberships.less_the_others(published, "mean")
    moved = {name: values.copy() for name, values in published.own.items()}
    moved["mean"][0] = expit(memberships.feature(moved["mean"][0], "mean", None) + 1.0)
    again = memberships.less_the_others(published._replace(own=moved), "mean")
    np.testing.assert_allclose(again[0] - apart[0], 1.0, atol=1e-6)
    np.testing.assert_allclose(again[1] - apart[1], -1 / (NETWORKS + 1), atol=1e-6)


def test_kinds_are_ranked_on_their_own():
    published = said(0.0)
    score = memberships.together(published, ("mean", "std"))
    for kind in range(4):
        assert np.abs(np.median(score[:, published.kinds == kind], axis=1)).max() < 0.1


def test_a_difference_counts_the_same_decisions():
    published = said(2.0)
    good, none = (memberships.together(published, (name,)) for name in ("deterministic", "mean"))
    none = np.random.default_rng(2).permutation(none.ravel()).reshape(none.shape)
    told = memberships.difference(none, good, published.member, 0.99)
    one, other = (memberships.advantage(score, published.member, 0.99).value for score in (good, none))
    assert told.value == pytest.approx(one - other)
    assert told.low > 0
    same = memberships.difference(good, good, published.member, 0.99)
    assert same.low < 0 == same.value < same.high


def test_true_positives_at_a_small_rate_of_false_ones():
    rng = np.random.default_rng(3)
    member = np.arange(20_000) % 2 == 1
    told = memberships.true_positives(rng.normal(size=20_000) + 2 * member, member, 0.95)
    exact = 0.138  # P(Z > 3.09 - 2)
    assert told.low < told.value < told.high
    assert abs(told.value - exact) < 0.04  # the threshold is the tenth largest of ten thousand: its own error


def test_rounding_is_applied_before_the_logit():
    values = np.array([[0.1249, 0.004]])
    np.testing.assert_allclose(memberships.feature(values, "mean", 0.01), np.log([[0.12 / 0.88, 2**-24]]), atol=1e-6)
    np.testing.assert_allclose(memberships.feature(values, "std", None), -np.log(values))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    bench = Bench(TINY, 0, tmp_path_factory.mktemp("work"))
    shadows = networks.shadows(bench)
    targets = networks.choose(bench, shadows, 40)
    return bench, shadows, targets


def test_targets_are_of_four_kinds(trained):
    bench, shadows, targets = trained
    assert len(set(targets.places)) == 40
    assert np.bincount(targets.kinds).tolist() == [10] * 4
    members = bench.rows.members[targets.places]
    moved = np.abs(targets.images - bench.images[members]).max(axis=(1, 2, 3))
    assert (moved[targets.kinds % 2 == 0] == 0).all()
    assert (moved[targets.kinds % 2 == 1] > 0.05).all()
    losses = networks.losses(bench.loss, shadows, bench.images, bench.labels, bench.rows.members).mean(axis=0)
    hard = targets.kinds >= 2
    assert losses[targets.places[hard]].min() >= np.delete(losses, targets.places[hard]).max()


def test_targets_are_chosen_once(trained, monkeypatch):
    bench, shadows, targets = trained
    monkeypatch.setattr(networks, "losses", lambda *given: pytest.fail("chosen again"))
    for own, kept in zip(targets, networks.choose(bench, shadows, 40), strict=True):
        np.testing.assert_array_equal(own, kept)
    with pytest.raises(InputError, match="made by another targets"):
        networks.choose(bench, shadows, 20)


def test_absent_targets_are_absent(trained):
    bench, _, targets = trained
    member = np.arange(40) % 3 == 0
    rows = networks.rows_of(bench, targets, member)
    np.testing.assert_array_equal(np.asarray(rows.present)[targets.places], member)
    assert float(rows.present.sum()) == 40 + member.sum()
    np.testing.assert_array_equal(np.asarray(rows.records[0])[targets.places], targets.images)


def test_a_network_is_trained_once_and_refused_by_another_program(trained, monkeypatch):
    bench, _, targets = trained
    record = networks.network(bench, 0, targets, lambda _: None)
    assert len(record["member"]) == 40
    assert set(record["member"]) == {"0", "1"}
    assert set(record["targets"]) == {"mean of 1", "mean of 2", "mean", "std", "min", "max", "deterministic"}
    assert record["utility"]["deterministic"] == pytest.approx(0.1, abs=0.4)
    monkeypatch.setattr(networks, "fit", lambda *given, **named: pytest.fail("trained again"))
    assert networks.network(bench, 0, targets, lambda _: None) == json.loads(json.dumps(record))
    learner = bench.learner
    monkeypatch.setattr(bench, "learner", lambda records, steps: learner(records, steps + 1))
    with pytest.raises(InputError, match="made by another program"):
        networks.network(bench, 0, targets, lambda _: None)


def test_networks_can_be_added_to_those_that_are_committed(tmp_path):
    rows = Rows("003", "mc_dropout_full", str(tmp_path), 0, beside=full_scale.of_targets)
    rows.earlier = read_all(results("mc_dropout_full"))
    (first, *_) = known = [row for row in rows.earlier if row["quantity"] == "full_network"]
    found = full_scale.earlier(rows, first["identity"], [9])
    assert [record["network"] for record in found] == [row["setting"]["network"] for row in known]
    told = next(row["told"] for row in rows.earlier if row["quantity"] == "full_shadows")
    full_scale.gather(rows, "again", networks.TARGETS, found, told)
    again = {(row["quantity"], str(row["setting"])): row["ours"] for row in rows.rows}
    wanted = {(row["quantity"], str(row["setting"])): row["ours"] for row in rows.earlier}
    assert {name: wanted[name] for name in again} == pytest.approx(again)
    assert len(again) > 80
    files = {file.name: read_rows(file) for file in files_of(rows.file)}
    assert {name for name in files if "network" in name} == {
        f"results.network-{row['setting']['network']}.json" for row in known
    }
    assert sum(map(len, files.values())) == len(rows.earlier)


def test_networks_of_another_program_are_never_pooled(tmp_path):
    rows = Rows("003", "mc_dropout_full", str(tmp_path), 0)
    told = {"targets": {"mean": [0.5, 0.25]}, "utility": {}, "judged": 1, "judged_whole": 1, "cpu_hours": 1.0}
    rows.earlier = [
        {"quantity": "full_network", "setting": {"network": i}, "member": "01", "identity": {"program": "a"}} | told
        for i in (0, 1)
    ]
    (found,) = full_scale.earlier(rows, {"program": "a"}, [1])
    assert found == told | {"network": 0, "member": "01", "identity": {"program": "a"}}
    with pytest.raises(InputError, match="made by another program"):
        full_scale.earlier(rows, {"program": "b"}, [1])
    assert full_scale.earlier(rows, {"program": "b"}, [0, 1]) == []


def test_an_accuracy_s_interval_is_student_s_where_many_records_are_judged():
    each = [0.47, 0.49, 0.5, 0.46]
    wanted = stats.t.interval(0.95, 3, np.mean(each), stats.sem(each))
    assert networks.interval(each, 10**12) == pytest.approx((np.mean(each), *wanted))
    assert networks.interval([0.5], 10_000) == pytest.approx((0.5, 0.4902, 0.5098))


@pytest.mark.parametrize("each, holds", [([0.48, 0.49], None), ([0.48, 0.49] * 5, True), ([0.52, 0.60], None)])
def test_two_networks_that_differ_tell_little_of_their_mean(each, holds):
    rows = [
        {"quantity": "full_network", "setting": {"network": i}, "utility": dict.fromkeys(STATED, value)}
        for i, value in enumerate(each)
    ]
    middle, low, high = networks.interval(each, 10_000)
    rows += [
        {"quantity": "full_accuracy", "setting": {"published": name}, "paper_value": 0.48, "scale": ""}
        | {"ours": middle, "ours_low": low, "ours_high": high}
        for name in STATED
    ]
    assert full_claims.accuracies(rows).holds is holds


@pytest.mark.parametrize("low, apart, holds", [(0.15, 0.02, True), (0.05, 0.02, None), (0.15, 0.2, None)])
def test_attacks_that_see_nothing_do_not_show_that_two_samples_leak_as_much_as_all(low, apart, holds):
    rows = [
        {"quantity": "full_difference", "setting": {"question": 2, "samples": 2}, "scale": ""}
        | {"ours_low": -apart, "ours_high": apart},
        {"quantity": "full_advantage", "setting": {"seen": "mean std", "kind": "all"}}
        | {"ours": low + 0.05, "ours_low": low, "ours_high": low + 0.1},
        {"quantity": "full_advantage", "setting": {"seen": "deterministic", "kind": "all"}}
        | {"ours": 0.9, "ours_low": 0.8, "ours_high": 1.0},  # sees more, and says nothing of samples
    ]
    found = full_claims.as_much(rows)
    assert found.holds is holds
    assert ("too little to tell" in found.ours) == (low < 0.1)
