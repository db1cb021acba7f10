"""Looking after every trial is allowed: false alarms stay rare at all times together, bounds cover, faults show."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpaudit
from dpaudit import Claim, Mechanism, check
from dpaudit.auditing import betting, plan, sequential
from dpaudit.auditing.estimate import epsilon_bounds, epsilon_from_rates
from dpaudit.auditing.game import play, play_on
from dpaudit.mechanisms import laplace

KEY = jax.random.key(8)
LOOKS = np.unique(np.ceil(1.08 ** np.arange(150)).astype(int))  # every pair at first, then 8 percent more, to 95,000
PATHS = 2000
ALPHA = 0.05


def corner(epsilon: float, delta: float = 0.0) -> tuple[float, float]:
    """Both error rates of the perfect attack."""
    rate = (1 - delta) / (1 + math.exp(epsilon))
    return rate, rate


def side(epsilon: float, delta: float, fpr: float) -> tuple[float, float]:
    """A point on the straight part of the trade-off curve with few false positives."""
    return fpr, 1 - delta - math.exp(epsilon) * fpr


def law(fpr: float, fnr: float) -> np.ndarray:
    """Probabilities of the four outcomes of a pair."""
    return np.array([(1 - fpr) * fnr, fpr * fnr, (1 - fpr) * (1 - fnr), fpr * (1 - fnr)])


def paths(fpr: float, fnr: float, *, looks=LOOKS, count=PATHS, seed=0) -> np.ndarray:
    """[count, looks, 4]: counts of outcomes of simulated audits."""
    draws = np.random.default_rng(seed).multinomial(np.diff(looks, prepend=0), law(fpr, fnr), (count, len(looks)))
    return np.cumsum(draws, axis=1)


def accused(counts: np.ndarray, claimed: float, delta: float) -> float:
    """The share of audits in which the wealth ever reaches 1/alpha."""
    wealth = betting.log_wealth(counts, claimed, delta=delta, expected_gap=claimed)
    return float((wealth >= math.log(1 / ALPHA)).any(1).mean())


NULLS = [
    (1.0, 0.0, corner(1.0)),
    (4.0, 0.0, corner(4.0)),
    (1.0, 0.0, side(1.0, 0.0, 0.1)),
    (1.0, 0.0, side(1.0, 0.0, 0.1)[::-1]),
    (1.0, 0.05, corner(1.0, 0.05)),
    (1.0, 0.05, side(1.0, 0.05, 0.0)),
    (0.2, 1e-3, corner(0.2, 1e-3)),
]


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


@pytest.mark.parametrize(
    "delta, rates",
    [
        (0.01, corner(1.5, 0.01)),
        pytest.param(0.0, corner(1.5), marks=pytest.mark.slow),
        pytest.param(0.0, (0.02, 0.7), marks=pytest.mark.slow),
    ],
)
def test_bounds_cover_at_all_times_together_and_close_in(delta, rates):
    count = 1000
    watch = sequential.start(None, delta)
    counts = paths(*rates, looks=LOOKS[::3], count=count)
    truth = float(epsilon_from_rates(rates[0], rates[1], delta))
    lower = betting.epsilon_lower(counts, delta=delta, confidence=0.95)
    _, fpr_high = betting.rate_bounds(betting.error_counts(counts)[0], counts.sum(-1), alpha=ALPHA)
    slack = 3 * math.sqrt(ALPHA / count)
    assert (lower > truth).any(1).mean() <= ALPHA + slack
    assert (fpr_high < rates[0]).any(1).mean() <= ALPHA + slack
    upper = np.array([[watch._replace(counts=state).epsilon_upper for state in path[::10]] for path in counts[:100]])
    assert (upper < truth).any(1).mean() <= ALPHA + 3 * math.sqrt(ALPHA / 100)
    assert truth - 0.2 < np.median(lower[:, -1]) < truth < np.median(upper[:, -1]) < truth + 0.3
    assert (lower > truth - 0.1).any(1).mean() > 2 * ALPHA  # the twin: a loss a little smaller is not covered


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


def guesses(fpr: float, fnr: float, n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draws = np.random.default_rng(seed).random((2, n))
    return draws[0] < fpr, draws[1] >= fnr


@pytest.mark.parametrize("until", [sequential.violation(), sequential.width(0.5), None])
def test_the_cut_into_updates_changes_nothing(until):
    guesses0, guesses1 = guesses(*corner(2.0), 20_000)
    ends = []
    for chunk in (1, 7, 500, 20_000) if until is sequential.violation() else (97, 20_000):
        watch = sequential.start(Claim(1.0), confidence=0.999, until=until)
        for begin in range(0, 20_000, chunk):
            watch = sequential.update(watch, guesses0[begin : begin + chunk], guesses1[begin : begin + chunk])
            if watch.stopped:
                break
        ends.append((watch.pairs, *watch.counts, watch.stopped, watch.epsilon_lower, watch.epsilon_upper))
    assert len(set(ends)) == 1
    assert watch.violation
    assert 1.0 < watch.epsilon_lower < 2.0 < watch.epsilon_upper
    if until is None:
        assert watch.pairs == 20_000
    else:
        assert 20 < watch.pairs < 10_000
        assert sequential.update(watch, [True], [False]) is watch  # nothing is looked at after the stop
    if until is not sequential.violation():
        assert watch.epsilon_upper - watch.epsilon_lower <= 0.5


def test_state_is_not_changed_by_an_update():
    watch = sequential.start(Claim(1.0))
    later = sequential.update(watch, [False, True], [True, True])
    assert watch.pairs == 0
    assert later.counts.tolist() == [0, 0, 1, 1]
    assert (watch.epsilon_lower, watch.epsilon_upper, watch.violation) == (0.0, math.inf, False)


def test_twice_the_claim_is_found_with_half_of_the_trials_of_a_fixed_plan():
    """The figure: claim 1, true epsilon 2, confidence 99.9%; the median against 80% power with a fixed number."""
    fixed = 2 * plan.needed(2.0, 1.0, delta=0.0, confidence=0.999)
    counts = paths(*corner(2.0), looks=np.arange(1, 201), count=2000, seed=3)
    certain = betting.log_wealth(counts, 1.0, delta=0.0, expected_gap=1.0) >= math.log(1000)
    assert certain.any(1).mean() > 0.98
    median = 2 * np.median(np.where(certain.any(1), 1 + certain.argmax(1), np.inf))
    assert median <= fixed / 2
    few = fixed // 2 - 1
    assert plan.power(2.0, 1.0, few, few, delta=0.0, confidence=0.999) < 0.8  # the fixed plan cannot do with less


X0, X1 = jnp.array([-0.5, 0.0]), jnp.array([0.5, 0.0])


def halved_noise() -> Mechanism:
    """Laplace noise for half of the sensitivity: it claims 1 and spends 2."""
    return Mechanism(laplace.mechanism(epsilon=2.0, clip_norm=0.5).apply, Claim(1.0))


def right_noise() -> Mechanism:
    return Mechanism(laplace.mechanism(epsilon=1.0, clip_norm=0.5).apply, Claim(1.0))


def test_an_audit_stops_as_soon_as_the_violation_is_certain():
    until = sequential.violation()
    settings = {"key": KEY, "confidence": 0.999, "until": until, "distinguisher": dpaudit.distinguish.projection}
    result = dpaudit.audit(halved_noise(), X0, X1, trials=100_000, **settings)
    assert result.verdict == "violation"
    assert 1.0 < result.epsilon_lower < 2.0 < result.epsilon_upper
    assert 100 < result.trials < 10_000
    aside = result.trials // 2 - result.negatives
    assert (
        result.method
        == f"projection, threshold from the first {2 * aside} trials; betting, valid at any time, stopped early"
    )
    assert result.epsilon_lower < result.ceiling
    assert result.detectable is not None
    assert 1.0 < result.detectable < 1.2
    assert dpaudit.AuditResult.from_json(result.to_json()) == result
    longer = dpaudit.audit(halved_noise(), X0, X1, trials=200_000, **settings)
    assert (longer.trials, longer.epsilon_lower) == (result.trials, result.epsilon_lower)


def test_an_honest_mechanism_uses_all_trials_and_is_not_accused():
    result = dpaudit.audit(right_noise(), X0, X1, key=KEY, trials=20_000, until=sequential.violation())
    assert (result.verdict, result.trials) == ("consistent", 20_000)
    assert 0.8 < result.epsilon_lower < 1.0 < result.epsilon_upper < 1.3
    assert result.method.endswith("; betting, valid at any time")
    few = dpaudit.audit(right_noise(), X0, X1, key=KEY, trials=12, until=sequential.violation())
    assert (few.verdict, few.trials, few.detectable) == ("underpowered", 12, math.inf)


def test_an_audit_without_a_claim_stops_at_a_width():
    fn = right_noise().apply
    result = dpaudit.audit(fn, X0, X1, key=KEY, trials=200_000, until=sequential.width(0.3))
    assert (result.verdict, result.detectable) == ("measured", None)
    assert result.epsilon_upper - result.epsilon_lower <= 0.3
    assert result.trials < 200_000
    assert result.negatives % sequential.LOOK_EVERY == 0


def test_parts_of_a_game_are_the_game_bit_for_bit():
    def release(key, world):
        return jax.random.normal(key, (5000,)) + world

    def score(z):
        return jnp.sum(jnp.sin(z))

    parts = list(play_on(KEY, release, score, 300))
    assert len(parts) > 1
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), play(KEY, release, score, 300))


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: sequential.width(0), "^width: expected a finite number > 0, got 0$"),
        (
            lambda: sequential.start(Claim(1.0), confidence=1.0),
            r"^confidence: expected a number in \(0, 1\), got 1.0$",
        ),
        (lambda: sequential.start(Claim(1.0, 0.1), 0.01), "^delta: expected at least the claim's own 0.1, got 0.01$"),
        (
            lambda: sequential.start(None, until=sequential.violation()),
            r"^claim: expected the promise that until=violation\(\) is to refute, got None$",
        ),
        (
            lambda: sequential.update(sequential.start(None), [True, False], [True]),
            r"^guesses1: expected as many guesses as in world 0, \[2\], in one row, got shape \[1\]$",
        ),
        (
            lambda: sequential.conclude(sequential.start(None), method="own", most=5),
            "^pairs: expected a whole number >= 1, got 0$",
        ),
        (
            lambda: dpaudit.audit(right_noise().apply, X0, X1, key=KEY, trials=100, until=sequential.violation()),
            r"^claim: expected the promise that until=violation\(\) is to refute, got None$",
        ),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(check.InputError, match=message):
        call()
