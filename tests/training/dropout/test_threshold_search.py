"""The search against every combination of observed values and infinity; for many models, against cumulative sums."""

import itertools

import numpy as np
import pytest

from dpaudit import _validate
from dpaudit.auditing.bounds.estimate import epsilon_from_rates
from dpaudit.training.dropout.threshold_search import KINDS, Rule, errors, search

SUBSETS = [subset for k in range(1, 5) for subset in itertools.combinations(range(4), k)]


def eq7(member, delta=1e-5, zero=0.5):
    """Eq. (7) by false positives and false negatives, a count of zero taken for ``zero``."""
    n1 = int(member.sum())
    n0 = len(member) - n1
    fpr, fnr = np.maximum(np.arange(n0 + 1), zero) / n0, np.maximum(np.arange(n1 + 1), zero) / n1
    return epsilon_from_rates(fpr[:, None], fnr[None, :], delta)


def random_values(rng, member):
    """Any table that grows in neither count."""
    steps = rng.integers(0, 3, (np.sum(~member) + 1, np.sum(member) + 1))
    return -steps.cumsum(axis=0).cumsum(axis=1).astype(float)


def dropout_like(rng, n, shift=0.0):
    """[n, 4]: the mean, 1/std, minimum and maximum of 20 probabilities, so that minimum <= mean <= maximum."""
    member = np.arange(n) % 2 == 1
    logits = (rng.normal(size=n) + shift * member)[:, None] + rng.normal(size=(n, 20))
    p = 1 / (1 + np.exp(-logits))
    return np.stack([p.mean(1), 1 / p.std(1), p.min(1), p.max(1)], axis=1), member


def few_levels(rng, n):
    return rng.integers(0, 3, (n, 4)).astype(float)


def with_infinities(rng, n):
    points = rng.normal(size=(n, 4))
    points[rng.random((n, 4)) < 0.2] = np.inf
    return points


def every_combination(statistics, member, value, subset, kind):
    """The largest value over all combinations of thresholds out of -inf, the observed values and inf."""
    thresholds = [np.unique([-np.inf, *statistics[:, j], np.inf]) for j in subset]
    above = [statistics[:, j] > t[:, None] for j, t in zip(subset, thresholds, strict=True)]  # [thresholds, n]
    combine = np.logical_and if kind == "and" else np.logical_or
    guesses = above[0]
    for more in above[1:]:
        guesses = combine(guesses[:, None], more).reshape(-1, len(member))
    return value[(guesses & ~member).sum(axis=1), (~guesses & member).sum(axis=1)].max()


@pytest.mark.parametrize("draw", [lambda rng, n: rng.normal(size=(n, 4)), few_levels, with_infinities])
@pytest.mark.parametrize("table", ["eq7", "infinite", "any"])
def test_every_subset_and_rule_is_the_best_of_all_combinations(draw, table):
    rng = np.random.default_rng(1)
    for n in (2, 3, 4, 5, 6, 6, 7, 7):
        statistics = draw(rng, n)
        member = rng.permutation(np.arange(n) < rng.integers(1, n))
        value = random_values(rng, member) if table == "any" else eq7(member, 0.05, 0.5 if table == "eq7" else 0.0)
        found = search(statistics, member, value, subsets=SUBSETS)
        assert set(found) == set(itertools.product(SUBSETS, KINDS))
        for (subset, kind), best in found.items():
            assert best.value == every_combination(statistics, member, value, subset, kind)
            counts = errors(best.rule, statistics, member)
            assert (best.value, best.false_positives, best.false_negatives) == (value[counts], *counts)
            unused = -np.inf if kind == "and" else np.inf
            assert all(best.rule.thresholds[j] == unused for j in range(4) if j not in subset)


def one_by_one(statistics, member, value, subset, kind):
    """The wrong twin: each threshold is the best one, given those before it."""
    thresholds = np.full(4, -np.inf if kind == "and" else np.inf)
    best = -np.inf
    for j in subset:
        tried = [np.where(np.arange(4) == j, t, thresholds) for t in (thresholds[j], *statistics[:, j])]
        worth = [value[errors(Rule(kind, tuple(t)), statistics, member)] for t in tried]
        thresholds, best = tried[int(np.argmax(worth))], max(worth)
    return best


@pytest.mark.parametrize("n, subset", [(60, (0, 1)), (30, (0, 2, 3)), (14, (3, 1, 2, 0))])
def test_more_models_whose_statistics_go_together(n, subset):
    rng = np.random.default_rng(2)
    short = 0
    for shift, kind, delta in itertools.product((0.0, 0.3, 0.6, 2.0), KINDS, (0.0, 0.05)):
        statistics, member = dropout_like(rng, n, shift)
        value = eq7(member, delta)
        (best,) = search(statistics, member, value, subsets=[subset], kinds=[kind]).values()
        assert best.value == every_combination(statistics, member, value, subset, kind)
        short += one_by_one(statistics, member, value, subset, kind) < best.value
    assert short > 0


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_a_thousand_models_against_cumulative_sums(shift):
    """On two statistics all thresholds at once are a two-dimensional histogram of ranks, summed up."""
    rng = np.random.default_rng(3)
    statistics, member = dropout_like(rng, 1000, shift)
    value = eq7(member)
    found = search(statistics, member, value, subsets=SUBSETS)
    ranks = statistics.argsort(axis=0).argsort(axis=0)

    def below(world, pair):
        grid = np.zeros((1001, 1001), int)
        np.add.at(grid, (ranks[world, pair[0]] + 1, ranks[world, pair[1]] + 1), 1)
        return grid.cumsum(axis=0).cumsum(axis=1)  # [i, j]: models whose ranks are below i and below j

    for pair in itertools.combinations(range(4), 2):
        true_negatives, false_negatives = below(~member, pair), below(member, pair)
        assert found[pair, "or"].value == value[500 - true_negatives, false_negatives].max()
        both = [n[-1:, -1:] - n[:, -1:] - n[-1:, :] + n for n in (true_negatives, false_negatives)]
        assert found[pair, "and"].value == value[both[0], 500 - both[1]].max()
    for (small, kind), (large, other) in itertools.product(found, found):
        if kind == other and set(small) < set(large):
            assert found[small, kind].value <= found[large, kind].value


def test_the_rules_are_algorithm_2():
    statistics = np.array([[1.0, 5.0], [3.0, 5.0], [3.0, 1.0], [np.inf, 7.0]])
    assert Rule("and", (2.0, 5.0)).guesses(statistics).tolist() == [False, False, False, True]
    assert Rule("or", (2.0, 5.0)).guesses(statistics).tolist() == [False, True, True, True]
    assert Rule("or", (np.inf, 5.0)).guesses(statistics).tolist() == [False, False, False, True]
    assert errors(Rule("or", (2.0, 5.0)), statistics, [0, 0, 1, 0]) == (2, 0)


def test_thresholds_lie_between_what_they_part():
    statistics, member = np.array([[1.0], [2.0], [6.0], [9.0]]), np.array([0, 0, 1, 1])
    found = search(statistics, member, eq7(member.astype(bool)), subsets=[[0]])
    assert [best.rule.thresholds for best in found.values()] == [(4.0,), (4.0,)]


@pytest.mark.parametrize("kind, left_out", [("and", -np.inf), ("or", np.inf)])
def test_a_threshold_that_makes_no_difference_is_left_out(kind, left_out):
    """The first statistic parts all models. The others do nearly: which model is the odd one is theirs."""
    member = np.array([0, 0, 0, 1, 1, 1])
    statistics = np.array([[1.0, 1, 2], [2, 4, 3], [3, 2, 1], [5, 3, 6], [6, 6, 2.5], [7, 5, 4]])
    (best,) = search(statistics, member, eq7(member.astype(bool)), subsets=[range(3)], kinds=[kind]).values()
    assert best.rule.thresholds == (4.0, left_out, left_out)
    together = statistics[:, 1:]  # neither is enough
    (best,) = search(together, member, eq7(member.astype(bool)), subsets=[range(2)], kinds=["or"]).values()
    assert np.isfinite(best.rule.thresholds).all()


@pytest.mark.parametrize(
    "statistics, member, subsets, kinds, message",
    [
        ([1.0, 2.0], [0, 1], [[0]], KINDS, r"statistics: expected shape \[n, k\] with n, k >= 1, got shape \[2\]"),
        ([[1.0], [np.nan]], [0, 1], [[0]], KINDS, "statistics: expected numbers or inf, got NaN or -inf in 1 of 2"),
        ([[1.0], [-np.inf]], [0, 1], [[0]], KINDS, "statistics: expected numbers or inf, got NaN or -inf in 1 of 2"),
        ([[1.0], [2.0]], [0, 2], [[0]], KINDS, "member: expected 2 booleans, got shape"),
        ([[1.0], [2.0]], [0, 1, 1], [[0]], KINDS, r"member: expected 2 booleans, got shape \[3\]"),
        ([[1.0], [2.0]], [1, 1], [[0]], KINDS, "member: expected models of both worlds, got 2 of 2 trained on D'"),
        ([[1.0], [2.0]], [0, 1], [[1]], KINDS, r"subsets: expected different numbers in 0..0, got \(1,\)"),
        ([[1.0], [2.0]], [0, 1], [[0, 0]], KINDS, r"subsets: expected different numbers in 0..0, got \(0, 0\)"),
        ([[1.0], [2.0]], [0, 1], [[]], KINDS, r"subsets: expected different numbers in 0..0, got \(\)"),
        ([[1.0], [2.0]], [0, 1], [[0]], ["xor"], "kind: expected one of and, or, got xor"),
    ],
)
def test_bad_input_is_refused(statistics, member, subsets, kinds, message):
    with pytest.raises(_validate.InputError, match=message):
        search(statistics, member, np.zeros((3, 3)), subsets=subsets, kinds=kinds)


def test_a_rule_is_of_its_own_statistics():
    four, rule = np.ones((5, 4)), Rule("and", (0.5,) * 4)
    for statistics, found in [(four[:, :1], "5, 1"), (four[0], "4")]:
        with pytest.raises(_validate.InputError, match=rf"statistics: .* \[n, 4\], one for each .* shape \[{found}\]"):
            rule.guesses(statistics)
    with pytest.raises(_validate.InputError, match="kind: expected one of and, or, got AND"):
        rule._replace(kind="AND").guesses(four)
    with pytest.raises(_validate.InputError, match=r"member: expected shape \[5\], one a row, got shape \[1\]"):
        errors(rule, four, [True])
