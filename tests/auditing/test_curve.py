"""The test of a curve: errs as rarely as it says, finds what it should, chooses as well as who knows the truth."""

import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from dpaudit import Claim
from dpaudit._validate import InputError
from dpaudit.auditing.bounds import curve, sequential
from dpaudit.auditing.bounds.estimate import clopper_pearson, errors

MU = 0.268  # of (1, 1e-5)
CLAIMS = {
    "gaussian": Claim.gaussian(MU),
    "epsilon": Claim(1.0, 1e-3),
    "points": Claim.trade_off([0.0, 0.2, 0.5, 1.0], [0.9, 0.5, 0.25, 0.0]),
}


def brute(claim, x, y, n0, n1):
    """T on a fine grid of a, from below."""
    a = np.unique(np.concatenate([np.linspace(0, 1, 20_001), np.logspace(-12, 0, 5_000)]))
    largest = (binom.cdf(x, n0, a) * binom.cdf(y, n1, claim.fnr(a))).max()
    return min(1.0, largest * (1 - math.log(largest)))


@pytest.mark.parametrize("name", CLAIMS)
@pytest.mark.parametrize("counts", [(0, 0, 5, 5), (3, 40, 100, 50), (430, 400, 1000, 1000), (10, 10, 10, 10)])
def test_the_p_value_is_just_above_brute_force(name, counts):
    p, wanted = float(curve.p_value(CLAIMS[name], *counts)), brute(CLAIMS[name], *counts)
    assert wanted <= p * (1 + 1e-9)
    assert p <= 1.15 * wanted + 1e-12


@pytest.mark.parametrize("name", CLAIMS)
@pytest.mark.parametrize("fpr", [0.003, 0.1, 0.4, 0.8])
def test_a_promise_that_is_just_kept_is_rarely_called_broken_and_one_that_is_not_often(name, fpr):
    """Exactly: summed over all counts of 60 and 80 trials, at four levels."""
    claim = CLAIMS[name]
    fnr = float(claim.fnr(fpr))
    x, y = np.meshgrid(np.arange(61), np.arange(81), indexing="ij")
    p = curve.p_value(claim, x, y, 60, 80)

    def called(a, b, alpha):
        return float((np.outer(binom.pmf(np.arange(61), 60, a), binom.pmf(np.arange(81), 80, b)) * (p <= alpha)).sum())

    for alpha in (0.5, 0.2, 0.05, 0.001):
        assert called(fpr, fnr, alpha) <= alpha
    if fpr >= 0.1:
        assert called(fpr / 4, fnr / 4, 0.05) > 0.5


def test_it_finds_what_a_box_of_clopper_pearson_limits_does_and_more():
    claim, n = CLAIMS["gaussian"], 15_000
    cut = 0.1676
    box, joint = 0, 0
    rng = np.random.default_rng(1)
    for _ in range(200):
        x, y = int(rng.binomial(n, norm.sf(cut))), int(rng.binomial(n, norm.cdf(cut - MU / 0.8)))
        highs = [clopper_pearson(count, n, alpha=0.025)[1] for count in (x, y)]
        box += bool(highs[1] < claim.fnr(highs[0]))
        joint += curve.violated(claim, x, y, n, n, confidence=0.95)
    assert joint >= 195
    assert box <= joint


def audit_of_noise(rng, mu, trials, confidence):
    """Scores of Gaussian noise, a quarter set aside for the threshold, as ``dpaudit.audit`` does."""
    half = trials // 2
    scores = rng.standard_normal((2, half))
    scores[1] += mu
    threshold, _ = curve.choose_threshold(CLAIMS["gaussian"], scores[:, : half // 4])
    rest = scores[:, half // 4 :]
    x, y = int((rest[0] > threshold).sum()), int((rest[1] <= threshold).sum())
    return curve.violated(CLAIMS["gaussian"], x, y, rest.shape[1], rest.shape[1], confidence=confidence)


@pytest.mark.parametrize(
    "noise, trials, least, most",
    [(0.5, 10_000, 20, 20), (0.8, 40_000, 19, 20), (1.0, 10_000, 0, 1), (1.0, 40_000, 0, 1)],
)
def test_too_little_gaussian_noise_is_found_and_enough_is_not(noise, trials, least, most):
    rng = np.random.default_rng([25, trials])
    found = sum(audit_of_noise(rng, MU / noise, trials, 0.95) for _ in range(20))
    assert least <= found <= most


@pytest.mark.slow
def test_noise_that_is_a_fifth_short_is_found_in_nearly_every_audit():
    rng = np.random.default_rng(7)
    assert sum(audit_of_noise(rng, MU / 0.8, 40_000, 0.95) for _ in range(100)) >= 97


@pytest.mark.slow
def test_the_choice_of_a_threshold_does_not_leak_into_the_error():
    """At the promise itself, where chance alone chooses: 2,000 audits at 80%, at most the error and 4 deviations."""
    rng = np.random.default_rng(8)
    alarms = sum(audit_of_noise(rng, MU, 2_000, 0.8) for _ in range(2_000))
    assert alarms <= 400 + 4 * math.sqrt(2_000 * 0.2 * 0.8)


def test_the_corner_of_epsilon_and_delta_sees_nothing_of_half_the_noise():
    """Why the claim has to be a curve: the best threshold of all against (1, 1e-5) at 10,000 trials."""
    claim, n = Claim(1.0, 1e-5), 3_750
    cuts = np.linspace(-4, 5, 200)
    x, y = n * norm.sf(cuts), n * norm.cdf(cuts - 2 * MU)
    assert (curve.p_value(claim, x.astype(int), y.astype(int), n, n) > 0.05).all()
    assert (curve.p_value(CLAIMS["gaussian"], x.astype(int), y.astype(int), n, n) < 1e-6).any()


def test_the_threshold_is_near_the_best_one_and_takes_atoms_and_ties():
    rng = np.random.default_rng(2)
    scores = rng.standard_normal((2, 20_000))
    scores[1] += 1.0
    claim = Claim.gaussian(0.8)
    threshold, p = curve.choose_threshold(claim, scores)
    assert abs(threshold - 0.5) < 0.7
    assert p < 1e-6
    tail = rng.standard_normal((2, 5_000))
    tail[1, :40] += 8  # a delta of 8e-3, narrow among the ranks
    assert curve.choose_threshold(Claim(1.0, 1e-4), tail)[0] > 3
    atoms = np.repeat([[0.0, 0.0, 0.0, 1.0], [0.0, 1.0, 1.0, 1.0]], 500, axis=1)
    assert curve.choose_threshold(Claim(0.5), atoms)[0] == 0.0
    same = np.zeros((2, 50))
    assert curve.choose_threshold(Claim(0.5), same) == (0.0, 1.0)
    rare = np.zeros((2, 5_000))
    rare[1, :40] = 1.0  # a delta of 8e-3
    assert curve.choose_threshold(Claim(1.0, 1e-4), rare)[0] == 0.0
    infinite = np.where(rare > 0, np.inf, -np.inf)
    assert curve.choose_threshold(Claim(1.0, 1e-4), infinite)[0] == -np.inf


def test_the_tangent_is_the_curve_s_own_and_nearly_as_strong():
    claim, n = CLAIMS["gaussian"], 3_750
    cut = MU
    counts = int(n * norm.sf(cut)), int(n * norm.cdf(cut - 2 * MU)), n, n
    touching = curve.tangent(claim, *counts)
    assert touching.delta == pytest.approx(claim.delta_at(touching.epsilon))
    assert (touching.fnr(np.linspace(0, 1, 201)) <= claim.fnr(np.linspace(0, 1, 201)) + 1e-9).all()
    assert float(curve.p_value(touching, *counts)) < 1e-8
    assert curve.tangent(Claim(1.0, 1e-3), *counts) == Claim(1.0, 1e-3)
    rare = Claim.trade_off([0.0, 1e-3, 1.0], [0.99, 0.98, 0.0])
    assert curve.tangent(rare, 0, 960, 1000, 1000).epsilon > 1  # few false positives: a steep line
    assert curve.tangent(rare, 960, 0, 1000, 1000).epsilon > 1  # few false negatives: the other way round


@pytest.mark.parametrize("mu, violation", [(5 * MU, True), (MU, False)])
def test_betting_against_the_tangent_finds_what_was_not_clipped_in_a_few_hundred_trials(mu, violation):
    """The pilot of 200 trials a world chooses; then trials are looked at one by one, at 99.9%."""
    needed = []
    for seed in range(11):
        scores = np.random.default_rng([3, seed]).standard_normal((2, 2_200))
        scores[1] += mu
        pilot, rest = scores[:, :200], scores[:, 200:]
        threshold, _ = curve.choose_threshold(CLAIMS["gaussian"], pilot)
        touching = curve.tangent(CLAIMS["gaussian"], *errors(pilot, threshold), 200, 200)
        watch = sequential.start(touching, confidence=0.999, until=sequential.violation())
        for at in range(0, 2_000, 50):
            watch = sequential.update(watch, *(rest[:, at : at + 50] > threshold))
            if watch.violation:
                break
        needed.append(at + 50 if watch.violation else math.inf)
    assert (np.median(needed) + 200 <= 500) if violation else np.isinf(needed).all()


def test_of_two_directions_the_milder_counts():
    from dp_accounting.pld import privacy_loss_distribution as pld

    claim = Claim.pld(pld.from_gaussian_mechanism(0.5, sampling_prob=0.1, value_discretization_interval=1e-3))
    cuts = np.linspace(-1, 3, 20)
    with_record = 0.9 * norm.sf(cuts / 0.5) + 0.1 * norm.sf((cuts - 1) / 0.5)
    fpr, fnr = norm.sf(cuts / 0.5), 1 - with_record
    n = 10_000_000
    x, y = (n * fpr).astype(int), (n * fnr).astype(int)
    assert (curve.p_value(claim, x, y, n, n) > 0.05).all()  # world 1 has the record
    assert (curve.p_value(claim, y, x, n, n) > 0.05).all()  # world 0 has it
    assert (curve.p_value(claim, (0.97 * x).astype(int), (0.97 * y).astype(int), n, n) < 1e-3).any()


@pytest.mark.parametrize(
    "counts, message",
    [
        ((-1, 0, 10, 10), "false_positives: expected a number from 0"),
        ((0, 11, 10, 10), "false_negatives: expected a number from 0"),
        ((0, 0, 0, 10), "false_positives: expected a number from 0 to that of trials, which is >= 1"),
    ],
)
def test_counts_out_of_range_are_refused(counts, message):
    with pytest.raises(InputError, match=message):
        curve.p_value(CLAIMS["epsilon"], *counts)


def test_scores_that_are_no_numbers_are_refused():
    with pytest.raises(InputError, match="NaN in 1 of 4"):
        curve.choose_threshold(CLAIMS["epsilon"], [[0.0, math.nan], [1.0, 2.0]])
    with pytest.raises(InputError, match="confidence"):
        curve.violated(CLAIMS["epsilon"], 0, 0, 1, 1, confidence=1.0)


@pytest.mark.parametrize("name, fewest, most", [("gaussian", 250, 450), ("epsilon", 15, 100), ("points", 20, 120)])
def test_a_perfect_attack_finds_twice_the_loss_from_so_many_trials_on(name, fewest, most):
    """Played: the best of many rules on a mechanism that loses exactly what two records may, f(1 - f(.))."""
    claim, rng, games = CLAIMS[name], np.random.default_rng(5), 150
    fpr = np.linspace(0.05, 0.95, 10)
    fnr = claim.fnr(1 - claim.fnr(fpr))

    def power(pairs):
        x, y = (rng.binomial(pairs, rate, size=(games, len(rate))) for rate in (fpr, fnr))
        return (curve.p_value(claim, x, y, pairs, pairs) <= 0.05).mean(axis=0).max()

    assert not curve.finds_twice(claim, fewest, confidence=0.95)
    assert curve.finds_twice(claim, most, confidence=0.95)
    assert power(fewest) < 0.8 < power(most)


def test_twice_a_gaussian_loss_is_that_of_twice_its_mu():
    fpr = np.linspace(0.001, 0.999, 50)
    once, twice = Claim.gaussian(0.7), Claim.gaussian(1.4)
    np.testing.assert_allclose(once.fnr(1 - once.fnr(fpr)), twice.fnr(fpr), rtol=1e-9)
