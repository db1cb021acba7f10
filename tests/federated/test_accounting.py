"""Federated spending against closed forms, runs that were played, brute force over few clients and a convolution."""

import itertools
import math
from functools import partial
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, LaplaceDpEvent, NeighboringRelation, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from scipy.optimize import minimize_scalar
from scipy.stats import binom, norm

from dpaudit import Claim, InputError, _validate
from dpaudit.federated import clip_size
from dpaudit.federated.accounting import (
    counts,
    expected_clients,
    fixed_size,
    gaussian,
    gaussian_claim,
    most_participations,
    poisson,
    pure,
    pure_claim,
    renyi,
    statistic_claim,
    table,
)

PAPER = {"clients": 10_000_000, "clients_per_round": 1_000, "rounds": 10_000}
QUANTILE = {"rate": 1e-4, "releases": 10_000, "delta": 1e-7}  # of paper 002, released in every round
MEDIAN = GaussianDpEvent(6.30394)  # (0.8, 1e-8) by the analytic Gaussian, every 1,000 rounds
REPLACE = NeighboringRelation.REPLACE_ONE


def gaussian_delta(eps, mu):
    """Balle and Wang 2018, Theorem 8, for a sensitivity over sigma of ``mu``."""
    return norm.cdf(mu / 2 - eps / mu) - math.exp(eps) * norm.cdf(-mu / 2 - eps / mu)


def sampled_delta(eps, mu, rate):
    """Of one Gaussian release of a sample: rate delta(ln(1 + (e^eps - 1)/rate))."""
    return rate * gaussian_delta(math.log1p(math.expm1(eps) / rate), mu)


def played(rng, clients, clients_per_round, rounds):
    """Distinct clients of each round, [rounds, m]."""
    return rng.random((rounds, clients)).argsort(axis=1)[:, :clients_per_round]


def composed_delta(eps, multiplier, rate, releases, *, step=1e-7, cells=1 << 20):
    """Of Poisson-sampled Gaussian releases, one removed: privacy losses on a fine grid, convolved by FFT."""
    x = np.linspace(-12 * multiplier, 12 * multiplier + 1, 400_001)
    density = (1 - rate) * norm.pdf(x, 0, multiplier) + rate * norm.pdf(x, 1, multiplier)
    loss = np.log1p(rate * np.expm1((x - 0.5) / multiplier**2)) / step
    below = np.floor(loss).astype(int)
    mass = density / density.sum()
    one = np.bincount(below % cells, mass * (1 + below - loss), cells)  # the mean loss stays what it was
    one += np.bincount((below + 1) % cells, mass * (loss - below), cells)
    total = np.fft.irfft(np.fft.rfft(one) ** releases, cells)
    losses = step * np.fft.fftfreq(cells, 1 / cells)
    above = losses > eps
    return float(np.sum(total[above] * -np.expm1(eps - losses[above])))


def worst_delta(eps, sigma, clients, drawn, step=0.04):
    """Of two noisy counts of the bits of ``drawn`` out of ``clients``, the worst over all neighbours and queries."""
    y = np.arange(-8 * sigma, drawn + 8 * sigma, step)

    def density(bits):
        return step * np.mean([norm.pdf(y, sum(some), sigma) for some in itertools.combinations(bits, drawn)], axis=0)

    others = list(itertools.combinations_with_replacement((0, 1), clients - 1))
    pairs = [(density((bit, *rest)), density((1 - bit, *rest))) for bit in (0, 1) for rest in others]
    return max(
        np.maximum(np.outer(p, also_p) - math.exp(eps) * np.outer(q, also_q), 0).sum()
        for (p, q), (also_p, also_q) in itertools.combinations_with_replacement(pairs, 2)
    )


def test_participations_are_those_of_runs_that_were_played():
    rng, setting, runs = np.random.default_rng(0), {"clients": 400, "clients_per_round": 20, "rounds": 60}, 200
    observed = np.zeros(20)
    for _ in range(runs):
        histogram = counts(played(rng, **setting), clients=400)
        assert histogram.sum() == 400
        assert (histogram * np.arange(len(histogram))).sum() == 20 * 60
        observed[: len(histogram)] += histogram

    def surprise(setting):
        """The largest number of standard errors by which a common number of participations is off."""
        expected = runs * expected_clients(range(20), **setting)
        common = expected > 10
        return np.max(np.abs(observed - expected)[common] / np.sqrt(expected * (1 - expected / 400 / runs))[common])

    assert surprise(setting) < 4
    assert surprise(setting | {"clients_per_round": 21}) > 8


def test_the_most_participations_are_not_exceeded_more_often_than_stated():
    rng, setting, runs = np.random.default_rng(1), {"clients": 400, "clients_per_round": 20, "rounds": 60}, 200
    most = most_participations(**setting, confidence=0.9)
    largest = np.array([len(counts(played(rng, **setting), clients=400)) - 1 for _ in range(runs)])
    allowed = 0.1 + 3 * math.sqrt(0.1 * 0.9 / runs)
    assert (largest > most).mean() < allowed < (largest > most - 1).mean()


def test_the_most_participations_of_two_clients_and_three_coins():
    """One of them has all three rounds with probability 1/4."""
    setting = {"clients": 2, "clients_per_round": 1, "rounds": 3}
    assert most_participations(**setting, confidence=0.74) == 2
    assert most_participations(**setting, confidence=0.76) == 3
    assert most_participations(clients=5, clients_per_round=5, rounds=7) == 7


def test_the_participations_of_paper_002():
    """More than a third of ten million phones is never asked; one in the whole population is asked ten times."""
    assert expected_clients(0, **PAPER) == pytest.approx(1e7 * (1 - 1e-4) ** 10_000, rel=1e-9)
    assert expected_clients([1, 10], **PAPER) == pytest.approx([3_678_978, 1.01], rel=1e-3)
    assert most_participations(**PAPER) == 11


def test_counts_by_hand_and_without_memory_for_those_never_drawn():
    assert counts([[3, 1], [1, 0], [1, 3]], clients=10**15).tolist() == [10**15 - 3, 1, 1, 1]


@pytest.mark.parametrize("k", [1, 2, 10_000])
def test_gaussian_messages_are_one_release_with_more_sensitivity(k):
    spent = gaussian(k, noise_multiplier=1.4042, delta=1e-7)
    release = SelfComposedDpEvent(GaussianDpEvent(1.4042), k)
    assert k > 2 or spent == pytest.approx(PLDAccountant(REPLACE).compose(release).get_epsilon(1e-7), rel=1e-3)
    mu = 2 * math.sqrt(k) / 1.4042
    above = spent / mu - mu / 2  # ln delta by log survival functions, as e^epsilon overflows
    log_delta = norm.logsf(above) + math.log1p(-math.exp(spent + norm.logsf(above + mu) - norm.logsf(above)))
    assert log_delta == pytest.approx(math.log(1e-7), rel=1e-6)


def test_algorithm_3_with_the_sensitivity_it_prints_is_not_private_as_claimed():
    """sigma = 0.7021 is (8, 1e-7) at sensitivity 1: times 2 C it keeps the claim, times C it spends 18.3."""
    assert gaussian_delta(8, 1 / 0.70211) == pytest.approx(1e-7, rel=1e-3)
    assert gaussian(1, noise_multiplier=2 * 0.70211, delta=1e-7) == pytest.approx(8, abs=1e-3)
    assert gaussian(1, noise_multiplier=0.70211, delta=1e-7) == pytest.approx(18.30, abs=5e-3)


@pytest.mark.parametrize(
    ("k", "epsilon", "at"), [(1, 0.5, 1e-5), (8, 0.5, 1e-5), (100, 0.5, 1e-5), (8, 4.0, 1e-5), (5, 1e-6, 1e-7)]
)
def test_pure_messages_by_every_outcome_of_randomised_responses(k, epsilon, at):
    def delta(eps):
        truths = np.arange(k + 1)
        p, q = binom.pmf(truths, k, 1 / (1 + math.exp(-epsilon))), binom.pmf(truths, k, 1 / (1 + math.exp(epsilon)))
        return np.maximum(p - math.exp(eps) * q, 0).sum()

    spent = pure(k, epsilon=epsilon, delta=at)
    assert delta(spent * (1 + 1e-9)) <= at < delta(spent * (1 - 1e-7))
    assert spent < pure(k, epsilon=epsilon) == k * epsilon
    assert pure_claim(k, epsilon=epsilon).epsilon_at(at) == pytest.approx(spent)


@pytest.mark.parametrize(
    ("accounting", "noise_multiplier", "published"),
    [
        (poisson, 5.0, 0.0072),  # a plain bit
        (poisson, 10.0, 0.0034),  # a centred one, which moves the sum by half as much when added
        (renyi, 5.0, 0.0211),
        (renyi, 10.0, 0.0051),
        (partial(fixed_size, replacement=1.0), 5.0, 0.0077),
        (fixed_size, 10.0, 0.0077),  # replaced, a centred bit and a plain one are the same
    ],
)
def test_the_quantile_rule_of_paper_002_and_its_epsilon_of_0_006(accounting, noise_multiplier, published):
    """True of centred bits and clients drawn on their own; not of plain bits, nor of a fixed number of clients."""
    assert accounting(GaussianDpEvent(noise_multiplier), **QUANTILE) == pytest.approx(published, abs=5e-5)


@pytest.mark.parametrize("noise_multiplier", [5.0, 10.0])
def test_ten_thousand_sampled_releases_by_convolution(noise_multiplier):
    spent = poisson(GaussianDpEvent(noise_multiplier), **QUANTILE)
    assert composed_delta(spent, noise_multiplier, 1e-4, 10_000) == pytest.approx(1e-7, rel=2e-2)
    assert composed_delta(spent, 0.95 * noise_multiplier, 1e-4, 10_000) > 1.1e-7


def test_ten_releases_of_the_median_rule():
    released = {"releases": 10, "delta": 1e-8}
    assert gaussian_delta(0.8, 1 / MEDIAN.noise_multiplier) == pytest.approx(1e-8, rel=1e-3)
    whole = poisson(MEDIAN, rate=1.0, **released)
    assert whole == pytest.approx(2.717, abs=5e-4)
    assert gaussian_delta(whole, math.sqrt(10) / MEDIAN.noise_multiplier) == pytest.approx(1e-8, rel=1e-3)
    sampled = poisson(MEDIAN, rate=1e-4, **released)
    assert sampled == pytest.approx(0.000176, abs=1e-6)
    assert composed_delta(sampled, MEDIAN.noise_multiplier, 1e-4, 10) == pytest.approx(1e-8, rel=5e-2)
    replaced = fixed_size(MEDIAN, rate=1.0, **released, replacement=math.sqrt(2))
    assert gaussian_delta(replaced, math.sqrt(20) / MEDIAN.noise_multiplier) == pytest.approx(1e-8, rel=1e-3)


@pytest.mark.parametrize("accounting", [poisson, partial(fixed_size, replacement=1.0)])
@pytest.mark.parametrize("rate", [1.0, 0.3, 1e-3])
def test_one_release_of_a_sample_in_closed_form(accounting, rate):
    spent = accounting(GaussianDpEvent(2.0), rate=rate, releases=1, delta=1e-6)
    assert sampled_delta(spent, 1 / 2.0, rate) == pytest.approx(1e-6, rel=2e-2)
    assert sampled_delta(spent, 1.1 / 2.0, rate) > 1.2e-6


@pytest.mark.parametrize("noise_multiplier", [0.7, 5.0, 50.0])
def test_renyi_divergences_of_whole_releases_in_closed_form(noise_multiplier):
    """Two Gaussians 1 apart have divergence a/(2 sigma^2) at order a; the best orders are near 3, 16 and 130."""

    def epsilon(a):
        return 2 * a / (2 * noise_multiplier**2) + math.log1p(-1 / a) - math.log(1e-5 * a) / (a - 1)

    spent = renyi(GaussianDpEvent(noise_multiplier), rate=1.0, releases=2, delta=1e-5)
    best: Any = minimize_scalar(epsilon, bounds=(1.01, 2_000), method="bounded")
    assert best.fun - 1e-9 <= spent <= 1.002 * best.fun


@pytest.mark.integration
def test_fixed_size_by_brute_force_over_two_releases_of_four_clients():
    """No neighbours and no two queries, turned against each other or not, leak more; some leak almost as much."""
    setting = {"rate": 1 / 4, "releases": 2, "delta": 1e-3}
    spent = fixed_size(GaussianDpEvent(1.0), **setting, replacement=1.0)
    assert 0.9e-3 < worst_delta(spent, 1.0, 4, 1) <= 1e-3
    assert worst_delta(fixed_size(GaussianDpEvent(1.0), **setting, replacement=0.9), 1.0, 4, 1) > 1.1e-3
    one = fixed_size(GaussianDpEvent(1.0), **setting | {"releases": 1}, replacement=1.0)
    assert worst_delta(one, 1.0, 4, 1) > 1.1e-3


def test_fixed_size_lies_between_one_order_of_neighbours_and_renyi_divergences():
    setting = {"rate": 0.01, "releases": 500, "delta": 1e-6}
    sampled = dp_accounting.SampledWithoutReplacementDpEvent(10_000, 100, GaussianDpEvent(2.0))
    loose = RdpAccountant(neighboring_relation=REPLACE).compose(SelfComposedDpEvent(sampled, 500)).get_epsilon(1e-6)
    spent = fixed_size(GaussianDpEvent(2.0), **setting, replacement=1.0)
    assert poisson(GaussianDpEvent(2.0), **setting) < spent < loose


def test_those_who_know_the_sample_account_as_for_messages():
    known = fixed_size(GaussianDpEvent(5.0), rate=1.0, releases=8, delta=1e-7)
    assert known == pytest.approx(gaussian(8, noise_multiplier=5.0, delta=1e-7), rel=1e-3)


def test_laplace_noise_is_amplified_by_the_closed_form_of_pure_privacy():
    """A report in [0, 1] with Laplace noise of scale 2, replaced by any other: epsilon 2/2 for the whole, pure."""
    for accounting, whole in ((fixed_size, 1.0), (poisson, 0.5)):
        spent = accounting(LaplaceDpEvent(2.0), rate=0.1, releases=1, delta=1e-12)
        assert spent == pytest.approx(math.log1p(0.1 * math.expm1(whole)), rel=1e-2)


@pytest.mark.parametrize(("scale", "replacement"), [(1.0, 2.0), (2.0, 1.0), (5.0, 1.0), (10.0, 2.0), (100.0, 2.0)])
def test_laplace_noise_whose_shares_round_below_one(scale: float, replacement: float):
    """What is left of one, 1e-16, is no infinite loss. epsilon is what pure privacy has at this delta."""
    spent = fixed_size(LaplaceDpEvent(scale), rate=1.0, releases=1, delta=1e-6, replacement=replacement)
    assert spent == pytest.approx(replacement / scale + 2 * math.log1p(-1e-6), rel=1e-4)


@pytest.mark.integration
def test_nothing_is_spent_before_the_first_release_and_more_with_each():
    for accounting in (fixed_size, poisson, renyi):
        spent = [accounting(GaussianDpEvent(5.0), rate=0.1, releases=k, delta=1e-5) for k in (0, 1, 10)]
        assert spent[0] == 0
        assert (np.diff(spent) > 0).all()
    assert gaussian(0, noise_multiplier=1.0, delta=1e-5) == pure(0, epsilon=1.0, delta=1e-5) == 0


@pytest.mark.integration
def test_the_table_of_a_run_of_paper_002():
    message = partial(gaussian, noise_multiplier=2 * 0.70211)
    event = clip_size.adaptive_median(0.01).event
    rows = table(message, event, **PAPER, delta=1e-7, every=1_000, replacement=math.sqrt(2))
    messages = [row for row in rows if row["release"] == "message"]
    assert [row["participations"] for row in messages] == list(range(12))
    assert sum(row["clients"] for row in messages) == pytest.approx(1e7, abs=1)
    assert [round(row["epsilon"], 1) for row in messages[:3]] == [0.0, 8.0, 12.0]
    known, *secret = [row for row in rows if row["release"] == "statistic"]
    assert known["participations"] == most_participations(**PAPER | {"rounds": 10}) == 2
    assert gaussian_delta(known["epsilon"], 2 / MEDIAN.noise_multiplier) == pytest.approx(1e-7, rel=1e-3)
    labels = [(row["accounting"], row["neighbouring"], row["participations"]) for row in secret]
    assert labels == [
        ("fixed size", "replace", None),
        ("Poisson", "add_remove", None),
        ("Poisson, Renyi", "add_remove", None),
    ]
    assert [row["epsilon"] for row in secret] == pytest.approx([0.000214, 0.000136, 0.01188], rel=1e-2)
    assert table(message, None, **PAPER, delta=1e-7) == messages
    assert len(table(message, LaplaceDpEvent(2.0), **PAPER, delta=1e-7, every=1_000)) == len(messages) + 3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: expected_clients(1, clients=5, clients_per_round=6, rounds=1), "clients_per_round: expected at most"),
        (
            lambda: most_participations(clients=5, clients_per_round=1, rounds=0),
            "rounds: expected a whole number >= 1",
        ),
        (lambda: most_participations(**PAPER, confidence=1.0), r"confidence: expected a number in \(0, 1\), got 1.0"),
        (lambda: counts([1, 2], clients=5), r"drawn: expected whole numbers of shape \[rounds, m\], got int64 \[2\]"),
        (lambda: counts([[0.5]], clients=5), r"drawn: expected whole numbers of shape .*, got float64 \[1, 1\]"),
        (lambda: counts([[1, 5]], clients=5), r"drawn: expected clients in \[0, 5\), got 5"),
        (lambda: counts([[1, -1]], clients=5), r"drawn: expected clients in \[0, 5\), got -1"),
        (
            lambda: counts([[0, 1], [3, 3]], clients=5),
            "drawn: expected distinct clients in a round, got client 3 twice",
        ),
        (
            lambda: gaussian(-1, noise_multiplier=1.0, delta=0.1),
            "participations: expected a whole number >= 0, got -1",
        ),
        (lambda: gaussian(1, noise_multiplier=0.0, delta=0.1), "noise_multiplier: expected a finite number > 0"),
        (lambda: gaussian(1, noise_multiplier=1.0, delta=0.0), r"delta: expected a number in \(0, 1\), got 0.0"),
        (lambda: pure(1, epsilon=-1.0), "epsilon: expected a finite number > 0, got -1.0"),
        (lambda: table(gaussian, None, **PAPER, delta=0.1, every=0), "every: expected a whole number >= 1, got 0"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(InputError, match=message):
        call()


@pytest.mark.parametrize(
    ("event", "change", "message"),
    [
        (GaussianDpEvent(1.0), {"rate": 0.0}, r"rate: expected a number in \(0, 1\], got 0.0"),
        (GaussianDpEvent(1.0), {"rate": 1.5}, r"rate: expected a number in \[0, 1\], got 1.5"),
        (GaussianDpEvent(1.0), {"releases": 0.5}, "releases: expected a whole number >= 0, got 0.5"),
        (GaussianDpEvent(1.0), {"delta": 1.0}, r"delta: expected a number in \(0, 1\), got 1.0"),
        (GaussianDpEvent(1.0), {"replacement": 2.5}, r"replacement: expected a number in \(0, 2\], got 2.5"),
        (GaussianDpEvent(0.1), {}, r"event: expected a finite noise multiplier >= 0.5, got GaussianDpEvent\(.*0.1\)"),
        (None, {}, "event: expected a GaussianDpEvent or a LaplaceDpEvent, got None"),
    ],
)
def test_bad_input_of_a_statistic(event, change, message):
    with pytest.raises(InputError, match=message):
        fixed_size(event, **{"rate": 0.1, "releases": 1, "delta": 1e-5} | change)


def test_renyi_divergences_are_of_gaussian_noise():
    with pytest.raises(InputError, match="event: expected one that dp-accounting's RdpAccountant can sample"):
        renyi(LaplaceDpEvent(2.0), rate=0.1, releases=1, delta=1e-5)


def test_a_delta_above_one_over_the_number_of_clients_is_warned_of():
    settings = {"clients": 1_000_000, "clients_per_round": 100, "rounds": 3, "delta": 1e-5}
    message = "^delta: expected at most 1/1000000, one over the number of clients, got 1e-05: .* would keep it$"
    with pytest.warns(_validate.InputWarning, match=message):
        table(partial(gaussian, noise_multiplier=2.0), None, **settings)


@pytest.mark.parametrize(
    ("promised", "spent", "neighbouring"),
    [
        (partial(gaussian_claim, 3, noise_multiplier=4.0), partial(gaussian, 3, noise_multiplier=4.0), "replace"),
        (partial(pure_claim, 5, epsilon=0.5), partial(pure, 5, epsilon=0.5), "replace"),
        (
            partial(statistic_claim, MEDIAN, rate=0.5, releases=4, neighbouring="replace"),
            partial(fixed_size, MEDIAN, rate=0.5, releases=4),
            "replace",
        ),
        (
            partial(statistic_claim, MEDIAN, rate=0.5, releases=4, neighbouring="add_remove"),
            partial(poisson, MEDIAN, rate=0.5, releases=4),
            "add_remove",
        ),
    ],
    ids=["gaussian", "pure", "fixed size", "Poisson"],
)
def test_a_claim_is_the_curve_through_every_epsilon(promised, spent, neighbouring):
    claim = promised()
    assert claim.neighbouring == neighbouring
    for delta in (1e-2, 1e-5):
        assert claim.epsilon_at(delta) == pytest.approx(spent(delta=delta), rel=0.02, abs=1e-3)


def test_the_claim_of_one_pure_message_is_its_epsilon_at_no_delta():
    one = pure_claim(1, epsilon=0.7)
    fpr = np.linspace(0, 1, 101)
    assert one.fnr(fpr) == pytest.approx(Claim(0.7).fnr(fpr), abs=1e-3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gaussian_claim(0, noise_multiplier=1.0), "participations: expected a whole number >= 1"),
        (lambda: pure_claim(1, epsilon=0.0), "epsilon: expected a finite number > 0"),
        (
            lambda: statistic_claim(dp_accounting.GaussianDpEvent(1.0), rate=0.0, releases=1, neighbouring="replace"),
            "rate: expected a number in",
        ),
    ],
)
def test_a_claim_of_nothing_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()
