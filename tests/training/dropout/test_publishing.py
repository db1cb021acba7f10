"""Which of two attacks gains more: on normal laws, whose best advantage is 2 Phi(mu/2) - 1, and by plain loops."""

import itertools
import math
import statistics as plain

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import binom, norm
from scipy.stats import t as student

from dpaudit import _validate
from dpaudit.training.dropout.publishing import HALVINGS, compare, likelihood_ratio, thresholds

KEY = jax.random.key(61)


def best(mu):
    return 2 * norm.cdf(mu / 2) - 1


def game(rng, n, first, second, shared=0.0):
    """Two normal statistics [n, 1], shifted for members by ``first`` and ``second``, with correlation ``shared``."""
    member = np.arange(n) % 2 == 1
    common = math.sqrt(shared) * rng.normal(size=n)
    noise = math.sqrt(1 - shared) * rng.normal(size=(2, n))
    one, other = (common + noise + np.outer([first, second], member))[:, :, None]
    return one, other, member


def repeated(runs, seed, *law, **settings):
    games = (game(np.random.default_rng([seed, run]), *law) for run in range(runs))
    return [compare(jax.random.key(run), *given, **settings) for run, given in enumerate(games)]


@pytest.mark.parametrize("attack", [thresholds, likelihood_ratio])
def test_advantages_are_those_of_the_best_tests(attack):
    n = 10_000
    found = compare(KEY, *game(np.random.default_rng(1), n, 0.5, 1.5), attack=attack)
    error = math.sqrt(2 * 0.25 / (n / 2))
    for ours, mu in ((found.first, 0.5), (found.second, 1.5)):
        assert abs(ours - best(mu)) < 4 * error
        assert abs(ours - best(mu + 0.3)) > 4 * error
    assert found.low < best(1.5) - best(0.5) < found.high
    assert found.high - found.low < 8 * error


def test_the_likelihood_ratio_gains_from_what_no_threshold_sees():
    """Statistics that go together, shifted apart: mu is 3.16, while each by itself is shifted by 0.5."""
    rng = np.random.default_rng(2)
    member = np.arange(1_000) % 2 == 1
    points = rng.multivariate_normal([0, 0], [[1, 0.95], [0.95, 1]], size=1_000) + member[:, None] * [0.5, -0.5]
    found = {
        attack: compare(KEY, points[:, :1], points, member, attack=attack) for attack in (thresholds, likelihood_ratio)
    }
    assert found[likelihood_ratio].low > 0.5 > found[thresholds].high
    assert abs(found[likelihood_ratio].second - best(math.sqrt(10))) < 4 * math.sqrt(0.5 / 500)


@pytest.mark.integration
@pytest.mark.parametrize("mu, shared", [(0.0, 0.5), (1.0, 0.9)])
def test_attacks_that_are_worth_the_same_are_rarely_told_apart(mu, shared):
    runs = 120
    most = binom.ppf(0.999, runs, 0.05)
    found = repeated(runs, 3, 100, mu, mu, shared)
    difference, high = (np.array([getattr(one, name) for one in found]) for name in ("difference", "high"))
    margin = high - difference
    assert np.sum(np.abs(difference) > margin) <= most
    assert np.sum(np.abs(difference) > margin / 2) > most  # intervals of half the width
    assert np.sum(np.abs(difference - 0.25) > margin) > most  # attacks that differ by a quarter


@pytest.mark.integration
def test_a_stronger_attack_is_found_and_what_both_have_in_common_helps():
    found = {shared: repeated(40, 4, 200, 0.5, 1.5, shared) for shared in (0.0, 0.9)}
    for some in found.values():
        assert sum(one.low > 0 for one in some) > 30
        assert sum(one.low < best(1.5) - best(0.5) < one.high for one in some) >= binom.ppf(0.001, 40, 0.95)
    widths = [np.mean([one.high - one.low for one in some]) for some in found.values()]
    assert widths[1] < 0.9 * widths[0]


@pytest.mark.integration
def test_rules_that_have_seen_nothing_of_what_they_guess_gain_nothing_from_noise():
    """The wrong twin is the paper's way: the advantage on the very networks that the rule was chosen on."""
    runs, n = 100, 60
    games = [game(np.random.default_rng([5, run]), n, 0.0, 0.0) for run in range(runs)]
    crossed = [compare(jax.random.key(run), *given).first for run, given in enumerate(games)]
    error = math.sqrt(0.5 / (n / 2) / runs)
    assert abs(np.mean(crossed)) < 4 * error
    seen = [
        rule[member].mean() - rule[~member].mean() for x, _, member in games for rule in [thresholds(x, member)(x)]
    ]
    assert np.mean(seen) > 10 * error


def every_rule(x, member):
    """The largest advantage of "and" and "or" over all thresholds on two columns."""
    ends = [[-math.inf, *column, math.inf] for column in x.T]
    rules = [
        combine(x[:, 0] > s, x[:, 1] > t)
        for s, t in itertools.product(*ends)
        for combine in (np.logical_and, np.logical_or)
    ]
    return max(rule[member].mean() - rule[~member].mean() for rule in rules)


def test_thresholds_are_the_best_of_all():
    rng = np.random.default_rng(6)
    for _ in range(20):
        x, member = np.round(rng.normal(size=(15, 2)), 1), rng.permutation(np.arange(15) < rng.integers(2, 13))
        x[rng.random((15, 2)) < 0.1] = math.inf
        guesses = thresholds(x, member)(x)
        assert guesses[member].mean() - guesses[~member].mean() == pytest.approx(every_rule(x, member))


def test_the_interval_is_that_of_loops_and_no_rule_guesses_what_it_was_chosen_on():
    rng = np.random.default_rng(7)
    member = np.arange(53) % 3 > 0  # 18 of D and 35 of D'
    one, other = (np.column_stack([np.arange(53), rng.normal(size=53) + mu * member]) for mu in (0.5, 1.5))
    chosen = []

    def attack(points, members):
        """Half-way between the means; the first column is a network's number."""
        chosen.append(set(points[:, 0].astype(int)))
        cut = (points[members, 1].mean() + points[~members, 1].mean()) / 2
        return lambda points: points[:, 1] > cut

    found = compare(KEY, one, other, member, attack=attack, confidence=0.9)
    ways = [chosen[i : i + 2] for i in range(0, len(chosen), 4)]
    assert chosen == [half for way in ways for half in way * 2]  # both attacks have the same halves
    assert len({frozenset(way[0]) for way in ways}) == HALVINGS
    for way in ways:
        assert way[0] | way[1] == set(range(53))
        assert not way[0] & way[1]
        assert [sum(member[list(half)]) for half in way] == [17, 18]
        assert [len(half) for half in way] == [26, 27]

    def guess(side, half, i):
        x = (one, other)[side][:, 1]
        means = [plain.mean(x[j] for j in half if member[j] == world) for world in (False, True)]
        return float(x[i] > plain.mean(means))

    def gain(values):
        worlds = [[values[i] for i in range(53) if member[i] == world] for world in (False, True)]
        return plain.mean(worlds[1]) - plain.mean(worlds[0])

    gains, variances = [], []
    for way in ways:
        guesses = [[guess(side, way[i in way[0]], i) for i in range(53)] for side in (0, 1)]
        gains.append([gain(side) for side in guesses])
        d = [[guesses[1][i] - guesses[0][i] for i in range(53) if member[i] == world] for world in (False, True)]
        variances.append(sum(plain.variance([*world, 1.0, -1.0]) / len(world) for world in d))
    assert [found.first, found.second] == pytest.approx([plain.mean(side) for side in zip(*gains, strict=True)])
    apart = [second - first for first, second in gains]
    assert found.difference == pytest.approx(plain.mean(apart))
    luck = plain.pvariance(apart)
    margin = student.ppf(0.95, 17) * math.sqrt(plain.mean(variances) + luck)
    assert (found.low, found.high) == pytest.approx((found.difference - margin, found.difference + margin))
    assert luck > 0.01 * plain.mean(variances)  # so it is seen
    assert compare(jax.random.key(62), one, other, member, attack=attack, confidence=0.9) != found


def test_guesses_that_are_all_alike_are_no_certainty():
    first, _, member = game(np.random.default_rng(8), 40, 1.0, 1.0)
    found = compare(KEY, first, first, member)
    assert found.difference == 0
    assert found.low < -0.05
    assert found.high > 0.05


def test_beside_a_statistic_that_tells_nothing_there_is_the_second_alone():
    _, second, member = game(np.random.default_rng(9), 200, 0.0, 2.0)
    found = compare(KEY, np.zeros((200, 1)), second, member)
    assert found.first == 0
    assert found.difference == found.second
    assert 0.3 < found.low < best(2.0) < found.high < 1


MEMBER = np.arange(20) % 2 == 1
GOOD = np.arange(20.0)[:, None]


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: compare(KEY, GOOD[:, 0], GOOD, MEMBER), r"first: expected shape \[n, k\] .* got shape \[20\]"),
        (
            lambda: compare(KEY, GOOD, GOOD[:19], MEMBER),
            r"second: expected shape \[20, l\] as first, got shape \[19, 1\]",
        ),
        (lambda: compare(KEY, GOOD, GOOD[:, 0], MEMBER), r"second: expected shape \[n, k\] .* got shape \[20\]"),
        (lambda: compare(KEY, GOOD, GOOD * np.nan, MEMBER), "second: expected numbers or inf, got NaN or -inf in 20"),
        (lambda: compare(KEY, GOOD, GOOD, MEMBER[1:]), r"member: expected 20 booleans, got shape \[19\]"),
        (
            lambda: compare(KEY, GOOD, GOOD, np.arange(20) < 3),
            "member: expected at least 4 .* got 17 of D and 3 of D'",
        ),
        (lambda: compare(KEY, GOOD, GOOD, MEMBER, confidence=1), r"confidence: expected a number in \(0, 1\), got 1"),
        (lambda: compare(jnp.zeros(3), GOOD, GOOD, MEMBER), "key: expected a key, as made by jax.random.key, got"),
        (
            lambda: compare(KEY, GOOD, np.full((20, 1), np.inf), MEMBER, attack=likelihood_ratio),
            "features: expected finite numbers, got 10 NaN or infinite of 10",
        ),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(_validate.InputError, match=message):
        call()
