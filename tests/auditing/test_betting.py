"""Bets against a claim: the wealth by hand, fair or worse for honest mechanisms, and the bounds it gives."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import special, stats

from dpaudit.auditing.bounds import betting
from dpaudit.auditing.bounds.estimate import epsilon_bounds
from tests.auditing.gambling import ALPHA, PATHS, accused, corner, law, paths, side

NULLS = [
    (1.0, 0.0, corner(1.0)),
    (4.0, 0.0, corner(4.0)),
    (1.0, 0.0, side(1.0, 0.0, 0.1)),
    (1.0, 0.0, side(1.0, 0.0, 0.1)[::-1]),
    (1.0, 0.05, corner(1.0, 0.05)),
    (1.0, 0.05, side(1.0, 0.05, 0.0)),
    (0.2, 1e-3, corner(0.2, 1e-3)),
]


def test_outcomes_of_pairs_by_hand():
    found = betting.outcomes([0, 1, 0, 1, 1], [0, 0, 1, 1, 1])  # none, both wrong, both right, both 1, both 1
    assert found.tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 1, 2]]
    false_positives, false_negatives, pairs = betting.error_counts(found)
    assert false_positives.tolist() == [0, 1, 1, 2, 3]
    assert false_negatives.tolist() == [1, 2, 2, 2, 2]
    assert pairs.tolist() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("claimed", [0.0, 0.1, 1.0, 5.0, 20.0])
@pytest.mark.parametrize("delta", [0.0, 1e-6, 0.05, 0.9])
def test_the_gambler_starts_with_a_capital_of_one(claimed, delta):
    for gap in (1e-3, 1.0, 30.0):
        wealth = betting.log_wealth([0, 0, 0, 0], claimed, delta=delta, expected_gap=gap)
        assert wealth == pytest.approx(0.0, abs=1e-12)


def by_hand(outcomes: list[int], claimed: float, delta: float, gap: float) -> float:
    """The wealth, pot by pot and pair after pair, as the module's text has it."""
    q = (1 - delta) / (1 + math.exp(claimed))
    pots = [(0.6, gap)] + [(0.2 / 13, 2.0**k) for k in range(-9, 4)]
    wealth = 0.0
    for stake, more in pots:
        p = (1 - delta) / (1 + math.exp(claimed + more))
        for outcome in outcomes:
            x0, x1 = outcome % 2, outcome // 2
            for wrong in (x0, 1 - x1):
                stake *= p / q if wrong else (1 - p) / (1 - q)
        wealth += stake
    for share in (0.95, 0.75, *(2.0**-k for k in range(1, 9))):
        for flipped in (False, True):
            against = []
            for epsilon in (claimed, 0.0):
                stake, u = 0.2 / 20, math.exp(epsilon) + delta
                for outcome in outcomes:
                    x0, x1 = outcome % 2, outcome // 2
                    seen, other = (1 - x0, 1 - x1) if flipped else (x1, x0)
                    stake *= 1 + share * (seen - math.exp(epsilon) * other - delta) / u
                against.append(stake)
            wealth += min(against)
    return wealth


@pytest.mark.parametrize("claimed, delta, gap", [(1.0, 0.0, 1.0), (0.3, 0.02, 2.0), (4.0, 1e-3, 0.5)])
def test_wealth_is_what_it_is_by_hand(claimed, delta, gap):
    rng = np.random.default_rng(2)
    for played in ([2], [0], [1], [3], [2] * 12, [0, 2, 2, 3, 2, 1, 2], rng.choice(4, 40, p=law(0.1, 0.2)).tolist()):
        counts = np.bincount(played, minlength=4)
        found = betting.log_wealth(counts, claimed, delta=delta, expected_gap=gap)
        assert found == pytest.approx(math.log(by_hand(played, claimed, delta, gap)), abs=1e-9)


def every_count(pairs: int) -> tuple[np.ndarray, np.ndarray]:
    """All counts [k, 4] of so many pairs and, for each, how many orders of outcomes lead to them."""
    grid = np.stack(np.meshgrid(*[np.arange(pairs + 1)] * 4, indexing="ij"), axis=-1).reshape(-1, 4)
    counts = grid[grid.sum(axis=1) == pairs]
    return counts, np.exp(special.gammaln(pairs + 1) - special.gammaln(counts + 1).sum(axis=1))


@pytest.mark.parametrize("claimed, delta, rates", NULLS)
def test_expected_wealth_of_an_honest_mechanism_never_exceeds_the_start(claimed, delta, rates):
    """Exact, over all outcomes of up to nine pairs; the bets on the sum are fair on the edge of the claim."""
    for pairs in (1, 2, 5, 9):
        counts, orders = every_count(pairs)
        chance = orders * np.prod(law(*rates) ** counts, axis=1)
        assert chance.sum() == pytest.approx(1, abs=1e-9)
        expected = chance @ np.exp(betting.log_wealth(counts, claimed, delta=delta, expected_gap=claimed))
        assert 0.8 * (sum(rates) <= 2 * corner(claimed, delta)[0] + 1e-12) - 1e-9 <= expected <= 1 + 1e-9
        if rates == corner(claimed, delta):
            near = np.prod(law(*corner(claimed + 0.5, delta)) ** counts, axis=1) * orders  # the twin: beyond the claim
            assert near @ np.exp(betting.log_wealth(counts, claimed, delta=delta, expected_gap=claimed)) > 1


def ever_accused(claimed: float, rates: tuple[float, ...], pairs: int) -> float:
    """The exact probability that the wealth reaches 1/alpha within so many pairs: a walk over all counts."""
    a, b, c = np.meshgrid(*[np.arange(pairs + 1)] * 3, indexing="ij")
    chance, accused = np.zeros(a.shape), 0.0
    chance[0, 0, 0] = 1.0
    for n in range(1, pairs + 1):
        after = law(*rates)[3] * chance
        for axis in range(3):
            moved = np.moveaxis(law(*rates)[axis] * chance, axis, 0)[:-1]
            np.moveaxis(after, axis, 0)[1:] += moved
        counts = np.stack([a, b, c, np.maximum(n - a - b - c, 0)], axis=-1)
        wealth = betting.log_wealth(counts, claimed, delta=0.0, expected_gap=claimed)
        over = (wealth >= math.log(1 / ALPHA)) & (a + b + c <= n)
        accused += after[over].sum()
        chance = np.where(over, 0, after)
    assert accused + chance.sum() == pytest.approx(1, abs=1e-9)
    return accused


def test_an_honest_mechanism_is_ever_accused_with_at_most_the_stated_probability():
    """Ville's bound, exactly, for 16 looks at 16 pairs; a mechanism at four times its claim is found by then."""
    for rates in (corner(1.0), side(1.0, 0.0, 0.1), side(1.0, 0.0, 0.02)[::-1], (0.5, 0.5)):
        assert ever_accused(1.0, rates, 16) <= ALPHA
    assert ever_accused(1.0, corner(1.0), 16) > ALPHA / 20  # the bound is not idle
    assert ever_accused(1.0, corner(4.0), 16) > 0.9


@pytest.mark.parametrize("claimed, delta, rates", NULLS)
def test_honest_mechanisms_at_their_limit_are_rarely_accused_however_often_one_looks(claimed, delta, rates):
    assert accused(paths(*rates), claimed, delta) <= ALPHA + 3 * math.sqrt(ALPHA / PATHS)


def test_looking_often_at_a_bound_for_a_fixed_number_of_trials_is_wrong_much_more_often():
    """The twin: the bounds of an ordinary audit, looked at as often, accuse twice as many; and 5% more is seen."""
    counts = paths(*corner(1.0))
    false_positives, false_negatives, pairs = betting.error_counts(counts)
    lower, _ = epsilon_bounds(false_positives, false_negatives, pairs, pairs, delta=0.0, confidence=1 - ALPHA)
    assert (lower > 1.0).any(1).mean() > 2 * ALPHA
    assert accused(paths(*corner(1.05), count=300), 1.0, 0.0) > 0.9


@pytest.mark.parametrize("claimed", [0.1, 1.0, 5.0])
def test_no_next_pair_raises_the_expected_wealth(claimed):
    """Exact, from any state: a supermartingale for every private pair of rates, each pair of trials its own."""
    states = np.random.default_rng(1).integers(0, 40, (200, 4))
    after = np.stack([states + step for step in np.eye(4, dtype=int)])
    settings = {"delta": 0.0, "expected_gap": claimed}
    growth = np.exp(betting.log_wealth(after, claimed, **settings) - betting.log_wealth(states, claimed, **settings))
    rate, _ = corner(claimed)
    private = [side(claimed, 0.0, fpr) for fpr in np.linspace(0, rate, 9)]
    private += [pair[::-1] for pair in private] + [(0.5, 0.5), (0.9, 0.4), (1.0, 1.0)]
    for rates in private:
        assert (law(*rates) @ growth).max() <= 1 + 1e-12
    assert (law(rate * 0.9, rate * 0.9) @ growth).max() > 1  # the twin: a little less than private


@pytest.mark.parametrize("delta", [0.0, 0.03])
def test_wealth_falls_with_the_claim_so_that_the_lower_bound_is_where_it_crosses(delta):
    epsilon = np.linspace(0, 8, 500)
    for counts in ([0, 0, 30, 0], [300, 20, 800, 60], [5000, 4, 190, 2], [60, 90, 30, 20], [0, 0, 0, 0]):
        wealth = betting.log_wealth(counts, epsilon, delta=delta, expected_gap=1.0)
        assert (np.diff(wealth) <= 1e-12).all()
        lower = betting.epsilon_lower(counts, delta=delta, confidence=0.95)
        refuted = wealth >= math.log(20)
        assert refuted.sum() == np.searchsorted(epsilon, lower, side="right") * (lower > 0)


def test_rate_bounds_agree_with_the_martingale_in_exact_fractions():
    """Few trials, where the beta mixture is an integral that can be summed by hand."""
    share = (np.arange(20_000) + 0.5) / 20_000
    prior = 1 / (np.pi * np.sqrt(share * (1 - share)))
    for errors, trials in ((0, 5), (2, 7), (7, 7)):
        mixture = np.mean(prior * share**errors * (1 - share) ** (trials - errors))
        inside = share[mixture / (share**errors * (1 - share) ** (trials - errors)) < 1 / ALPHA]
        low, high = betting.rate_bounds(errors, trials, alpha=ALPHA)
        assert (low, high) == pytest.approx((inside[0], inside[-1]), abs=2e-3)
    assert betting.rate_bounds(0, 0, alpha=ALPHA) == (0, 1)


def test_rate_bounds_hold_at_all_times_together():
    """400 paths of one rate, looked at 300 times each; ordinary bounds, looked at as often, are wrong far oftener."""
    trials = np.arange(1, 1501)
    for rate in (0.02, 0.3):
        errors = np.cumsum(np.random.default_rng(3).random((400, 1500)) < rate, axis=1)[:, ::5]
        low, high = betting.rate_bounds(errors, np.broadcast_to(trials[::5], errors.shape), alpha=ALPHA)
        missed = ((low > rate) | (high < rate)).any(axis=1).mean()
        assert missed <= ALPHA + 3 * math.sqrt(ALPHA / 400)
        assert high[:, -1].mean() - low[:, -1].mean() < 8 * math.sqrt(rate / 1500)
        fixed = (
            stats.beta.isf(ALPHA / 2, errors + 1, trials[::5] - errors),
            stats.beta.ppf(ALPHA / 2, np.maximum(errors, 1e-9), trials[::5] - errors + 1),
        )
        assert ((fixed[1] > rate) | (fixed[0] < rate)).any(axis=1).mean() > 2 * ALPHA


def test_bets_on_the_sum_are_part_of_the_wealth():
    pairs = np.array([40, 60, 1000])
    strict = {"delta": 0.0, "confidence": 0.999, "expected_gap": 1.0}
    most = betting.most_errors(pairs, 1.0, **strict)
    assert most[0] >= 0
    for n, errors in zip(pairs, most, strict=True):
        settings: dict[str, Any] = {"delta": 0.0, "expected_gap": 1.0}
        halves = [int(errors) // 2, 0, 0, (int(errors) + 1) // 2]
        halves[2] = n - sum(halves)
        assert betting.log_wealth(halves, 1.0, **settings) >= math.log(1000)
        more = [halves[0] + n // 10 + 2, 0, halves[2] - n // 10 - 2, halves[3]]
        assert betting.log_wealth(more, 1.0, **settings) < math.log(1000)
    assert betting.most_errors(np.array([3]), 1.0, **strict) == -1


LINES = [(0.0, 0.1, 0.3, 0.4), (1.0, 1e-5, 0.05, 0.5), (1.0, 0.0, 0.5, 0.02), (3.0, 0.01, 0.001, 0.6)]


def expected_factor(bet: np.ndarray, share: float, fpr: np.ndarray, fnr: np.ndarray) -> np.ndarray:
    a, b, s, t = bet
    return (1 + share * s * (fpr - a)) * (1 + share * t * (fnr - b))


@pytest.mark.parametrize("epsilon, delta, fpr, fnr", LINES)
def test_a_bet_on_a_line_is_fair_for_all_rates_that_keep_the_promise(epsilon, delta, fpr, fnr):
    bet = betting.bet_on_line(epsilon, delta, fpr, fnr)
    rates = np.linspace(0, 1, 401)
    a, b = np.meshgrid(rates, rates)
    steep = np.exp(epsilon)
    kept = (steep * a + b >= 1 - delta) & (a + steep * b >= 1 - delta)
    for share in betting.STAKES:
        assert (expected_factor(bet, share, a, b)[kept] <= 1 + 1e-9).all()
        assert expected_factor(bet, share, np.array(fpr), np.array(fnr)) > 1
    assert (expected_factor(2 * bet - np.array([bet[0], bet[1], 0, 0]), 1, a, b)[kept] <= 1 + 1e-9).all()
    twin = bet * [1, 1, -1, -1]  # a bet on the other side of the line is not fair
    assert (expected_factor(twin, 1, a, b)[kept] > 1).any()


@pytest.mark.parametrize("epsilon, delta, fpr, fnr", LINES)
def test_a_bet_on_a_line_is_the_likelihood_ratio_to_the_nearest_point(epsilon, delta, fpr, fnr):
    """By brute force: the point of both lines that is hardest to tell from the guess."""
    a, b, s, t = betting.bet_on_line(epsilon, delta, fpr, fnr)
    on_one = np.linspace(0, 1, 200_001)[1:-1]
    best = 0.0
    for p, q in ((fpr, fnr), (fnr, fpr)):
        other = 1 - delta - np.exp(epsilon) * on_one
        on = (other > 0) & (other < 1)
        x, y = on_one[on], other[on]
        entropy = p * np.log(p / x) + (1 - p) * np.log((1 - p) / (1 - x))
        entropy += q * np.log(q / y) + (1 - q) * np.log((1 - q) / (1 - y))
        if np.exp(epsilon) * p + q < 1 - delta:
            best = max(best, entropy.min())
    grown = fpr * np.log1p(s * (1 - a)) + (1 - fpr) * np.log1p(-s * a)
    grown += fnr * np.log1p(t * (1 - b)) + (1 - fnr) * np.log1p(-t * b)
    assert grown == pytest.approx(best, rel=1e-3)
    counts = np.array([3, 1, 20, 2])
    wealth = [np.prod([(1 + c * s * (x - a)) * (1 + c * t * (y - b)) for x, y, k in
                       ((0, 1, 3), (1, 1, 1), (0, 0, 20), (1, 0, 2)) for _ in range(k)])
              for c in betting.STAKES]  # fmt: skip
    assert np.exp(betting.log_wealth_on_line(counts, np.array([a, b, s, t]))) == pytest.approx(np.mean(wealth))


def test_nothing_is_bet_where_the_guess_keeps_the_promise():
    assert betting.bet_on_line(1.0, 0.1, 0.3, 0.4).tolist() == [0, 0, 0, 0]
    assert betting.log_wealth_on_line([5, 6, 7, 8], np.zeros(4)) == 0
