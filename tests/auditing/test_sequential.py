"""Looking after every trial is allowed: false alarms stay rare at all times together, bounds cover, faults show."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, special

import dpaudit
from dpaudit import Claim, Mechanism, _validate
from dpaudit._engine.game import play, play_on
from dpaudit.auditing.bounds import betting, plan, sequential
from dpaudit.auditing.bounds.estimate import epsilon_from_rates
from dpaudit.mechanisms import laplace
from tests.auditing.gambling import ALPHA, LOOKS, corner, paths

KEY = jax.random.key(8)


@pytest.mark.integration
@pytest.mark.parametrize(
    "delta, rates",
    [
        (0.01, corner(1.5, 0.01)),
        pytest.param(0.0, corner(1.5), marks=pytest.mark.slow),
        pytest.param(0.0, (0.02, 0.7), marks=pytest.mark.slow),
    ],
)
def test_bounds_cover_at_all_times_together_and_close_in(delta, rates):
    count = 400
    watch = sequential.start(None, delta)
    counts = paths(*rates, looks=LOOKS[::3], count=count)
    truth = float(epsilon_from_rates(rates[0], rates[1], delta))
    lower = betting.epsilon_lower(counts, delta=delta, confidence=0.95)
    _, fpr_high = betting.rate_bounds(betting.error_counts(counts)[0], counts.sum(-1), alpha=ALPHA)
    slack = 3 * math.sqrt(ALPHA / count)
    assert (lower > truth).any(1).mean() <= ALPHA + slack
    assert (fpr_high < rates[0]).any(1).mean() <= ALPHA + slack
    upper = np.array([[watch._replace(counts=state).epsilon_upper for state in path[::10]] for path in counts[:60]])
    assert (upper < truth).any(1).mean() <= ALPHA + 3 * math.sqrt(ALPHA / 60)
    assert truth - 0.2 < np.median(lower[:, -1]) < truth < np.median(upper[:, -1]) < truth + 0.3
    assert (lower > truth - 0.1).any(1).mean() > 2 * ALPHA  # the twin: a loss a little smaller is not covered


def lowest_rate(errors: int, trials: int, alpha: float) -> float:
    """The least rate that a Beta(1/2, 1/2) mixture of coins does not refute at ``alpha``, by its likelihood ratio."""
    mixture = special.beta(errors + 0.5, trials - errors + 0.5) / math.pi

    def evidence(rate: float) -> float:
        return math.log(mixture * alpha) - errors * math.log(rate) - (trials - errors) * math.log1p(-rate)

    return float(optimize.bisect(evidence, 1e-12, errors / trials, xtol=1e-15))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("counts", [[40, 3, 150, 9], [11, 2, 60, 30]])
@pytest.mark.parametrize("delta, confidence", [(0.0, 0.95), (0.01, 0.95), (0.0, 0.999)])
def test_the_upper_bound_gives_each_error_rate_half_of_the_level(counts, delta, confidence):
    """By the definition: both rates at their least, each with half of the probability that may be wrong."""
    watch = sequential.start(None, delta, confidence)._replace(counts=np.array(counts))

    def by_hand(alpha: float) -> float:
        none, wrong, _, both = counts
        fpr, fnr = (lowest_rate(errors, sum(counts), alpha) for errors in (wrong + both, wrong + none))
        return max(math.log((1 - delta - fnr) / fpr), math.log((1 - delta - fpr) / fnr))

    assert watch.epsilon_upper == pytest.approx(by_hand((1 - confidence) / 2), abs=1e-8)
    assert abs(watch.epsilon_upper - by_hand(1 - confidence)) > 1e-3  # the twin: all of it for each


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


def test_the_bound_exceeds_the_claim_exactly_where_the_claim_is_refuted():
    """With bets on rates that were seen, whose half of the capital the bound must not have to itself a second time."""
    claim, seen = Claim(1.0, 0.01), guesses(0.02, 0.5, 200)
    watch = sequential.next_stage(sequential.start(claim, stages=2), np.stack(seen))
    assert watch.bets.any()
    verdicts = set()
    for right in range(20, 60, 2):
        after = watch._replace(counts=np.array([400 - right, 0, right, 0]))
        found = sequential.conclude(after, method="own", most=400, aside=200)
        verdicts.add(found.verdict)
        assert (found.verdict == "violation") == after.violation == (found.epsilon_lower > 1.0)
        without = after._replace(bets=sequential.NO_COUNTS)
        assert found.epsilon_lower <= max(without.epsilon_lower, np.nextafter(1.0, 2.0))
    assert verdicts == {"violation", "consistent"}


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
    with pytest.raises(_validate.InputError, match=message):
        call()
