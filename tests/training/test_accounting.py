"""Epsilon of a training against published values, closed forms and a second accounting."""

import math
import warnings

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from scipy.stats import norm

from dpaudit import InputError, _validate
from dpaudit.training.accounting import RELATIONS, TOLERANCE, claim, epsilon, noise_multiplier, pld, rdp
from dpaudit.training.sampling import fixed_size, poisson, shuffled

PAPER_003 = poisson(50_000, 256)


def gaussian_delta(eps, ratio):
    """Balle and Wang 2018, Theorem 8: delta of a Gaussian release whose sensitivity over sigma is ``ratio``."""
    return norm.cdf(ratio / 2 - eps / ratio) - math.exp(eps) * norm.cdf(-ratio / 2 - eps / ratio)


@pytest.mark.integration
def test_the_published_theory_of_paper_003():
    """It prints 25.63 (another conversion of the same divergences); dp-accounting's orders give 26.0, PLD 23.1."""
    assert epsilon(PAPER_003, 0.5, 11_700, delta=1e-5, accounting=rdp) == pytest.approx(26.01, abs=0.01)
    assert epsilon(PAPER_003, 0.5, 11_700, delta=1e-5) == pytest.approx(23.11, abs=0.01)


@pytest.mark.parametrize(("neighbouring", "reach"), [("add_remove", 1.0), ("replace", 2.0)])
def test_full_batches_are_gaussian_releases(neighbouring, reach):
    spent = epsilon(poisson(7, 7), 3.0, 4, delta=1e-5, neighbouring=neighbouring)
    assert gaussian_delta(spent, reach * math.sqrt(4) / 3.0) == pytest.approx(1e-5, rel=1e-2)


def test_shuffled_batches_count_epochs_and_both_accountings_agree_on_the_sensitivity():
    sampling = shuffled(100, 10)
    one_epoch = epsilon(sampling, 4.0, 10, delta=1e-5, neighbouring="replace")
    assert gaussian_delta(one_epoch, 2 / 4.0) == pytest.approx(1e-5, rel=1e-2)
    assert epsilon(sampling, 4.0, 11, delta=1e-5, neighbouring="replace") == epsilon(
        sampling, 4.0, 20, delta=1e-5, neighbouring="replace"
    )
    by_renyi = epsilon(sampling, 4.0, 10, delta=1e-5, neighbouring="replace", accounting=rdp)
    assert one_epoch < by_renyi < 1.25 * one_epoch


def test_fixed_size_batches_that_hold_everything_are_gaussian_releases():
    spent = epsilon(fixed_size(9, 9), 4.0, 1, delta=1e-5, neighbouring="replace", accounting=rdp)
    exact = epsilon(shuffled(9, 9), 4.0, 1, delta=1e-5, neighbouring="replace")
    assert exact < spent < 1.25 * exact


def test_replacing_costs_more_than_adding_and_less_than_removing_and_adding():
    added = epsilon(PAPER_003, 1.0, 500, delta=1e-5)
    replaced = epsilon(PAPER_003, 1.0, 500, delta=1e-5, neighbouring="replace")
    removed_then_added = 2 * epsilon(PAPER_003, 1.0, 500, delta=1e-5 / (1 + math.exp(added)))
    assert added < replaced < removed_then_added


@pytest.mark.integration
def test_truncated_batches_cost_more_the_smaller_they_are():
    whole = epsilon(poisson(1_000, 50), 2.0, 100, delta=1e-5)
    large = epsilon(poisson(1_000, 50, capacity=100), 2.0, 100, delta=1e-5)
    small = epsilon(poisson(1_000, 50, capacity=55), 2.0, 100, delta=1e-5)
    assert whole <= large < whole + 1e-2 < small


@pytest.mark.parametrize("accounting", [pytest.param(pld, marks=pytest.mark.slow), rdp])
def test_the_calibrated_noise_meets_its_target_from_below_and_not_much_less_noise_does(accounting):
    found = noise_multiplier(PAPER_003, 2.0, 1_000, delta=1e-5, accounting=accounting)
    assert epsilon(PAPER_003, found, 1_000, delta=1e-5, accounting=accounting) <= 2.0
    assert epsilon(PAPER_003, found - 1e-3, 1_000, delta=1e-5, accounting=accounting) > 2.0


@pytest.mark.integration
@pytest.mark.parametrize("steps, target", [(30, 0.5), (3_000, 0.1)])  # where a coarse search leads close, and astray
def test_the_noise_is_that_of_a_search_without_a_coarse_one(steps, target):
    sampling = poisson(1_000, 40)
    found = noise_multiplier(sampling, target, steps, delta=1e-5)
    whole = dp_accounting.calibrate_dp_mechanism(
        PLDAccountant, lambda noise: sampling.event(noise, steps, RELATIONS["add_remove"]), target, 1e-5, tol=TOLERANCE
    )
    assert abs(found - whole) <= 2 * TOLERANCE
    assert epsilon(sampling, found, steps, delta=1e-5) <= target


def test_nothing_is_spent_before_the_first_step_and_more_with_every_one():
    spent = [epsilon(PAPER_003, 1.0, steps, delta=1e-5, accounting=rdp) for steps in (0, 1, 10, 100)]
    assert spent[0] == 0
    assert (np.diff(spent) > 0).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"noise_multiplier": 0.0}, "noise_multiplier: expected a finite number > 0, got 0.0"),
        ({"steps": -1}, "steps: expected a whole number >= 0, got -1"),
        ({"delta": 1.0}, r"delta: expected a number in \(0, 1\), got 1.0"),
        ({"neighbouring": "zero_out"}, "neighbouring: expected one of add_remove, replace, got zero_out"),
    ],
)
def test_bad_input(change, message):
    settings = {"noise_multiplier": 1.0, "steps": 10, "delta": 1e-5} | change
    with pytest.raises(InputError, match=message):
        epsilon(PAPER_003, **settings)


def test_a_target_out_of_reach_is_refused():
    with pytest.raises(InputError, match="target: expected an epsilon that 1000000 steps can keep at delta 1e-09"):
        noise_multiplier(poisson(10, 10), 1e-9, 10**6, delta=1e-9, accounting=rdp)
    with pytest.raises(InputError, match="target: expected a finite number > 0, got 0"):
        noise_multiplier(PAPER_003, 0, 10, delta=1e-5)


@pytest.mark.parametrize(
    ("sampling", "steps", "chance", "how"),
    [
        (poisson(2_797, 256), 1, 0.0915, {}),
        (poisson(2_797, 256), 3, 0.25, {}),
        (poisson(2_797, 256, capacity=300), 1, 0.0915, {"neighbouring": "replace"}),
        (fixed_size(100, 25), 2, 0.438, {"neighbouring": "replace", "accounting": rdp}),
    ],
)
def test_a_delta_that_asks_for_no_noise_is_refused_before_a_search(monkeypatch, sampling, steps, chance, how):
    """With the chance that an example takes part as delta, its batch may be published; a search would never end."""
    monkeypatch.setattr(dp_accounting, "calibrate_dp_mechanism", lambda *given, **more: 1 / 0)
    message = (
        f"^delta: expected a number below {chance}, the chance that an example takes part: else no noise .*, got 0.5"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(InputError, match=message):
            noise_multiplier(sampling, 4.0, steps, delta=0.5, **how)
    for less in (sampling, shuffled(100, 25)):
        with pytest.warns(_validate.InputWarning), pytest.raises(ZeroDivisionError):
            noise_multiplier(less, 4.0, steps, delta=0.99 * chance, **{"neighbouring": "replace"} | how)


def test_a_delta_above_one_over_the_number_of_examples_is_warned_of():
    """At a million examples, a delta of 1e-5 lets ten of them be published."""
    many = poisson(1_000_000, 1_000)
    message = (
        "^delta: expected at most 1/1000000, one over the number of examples, got 1e-05: publishing all data of one "
        "of them, drawn at random, would keep it$"
    )
    with pytest.warns(_validate.InputWarning, match=message) as warned:
        epsilon(many, 5.0, 1, delta=1e-5, accounting=rdp)
    assert (len(warned), warned[0].filename) == (1, __file__)
    with pytest.warns(_validate.InputWarning, match=message) as warned:
        noise_multiplier(many, 1.0, 1, delta=1e-5, accounting=rdp)
    assert len(warned) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        epsilon(many, 5.0, 1, delta=1e-6, accounting=rdp)
        epsilon(poisson(100_000, 1_000), 5.0, 1, delta=1e-5, accounting=rdp)


@pytest.mark.parametrize(("neighbouring", "accounting"), [("add_remove", pld), ("replace", pld), ("add_remove", rdp)])
def test_the_claim_is_the_curve_through_every_epsilon(neighbouring, accounting):
    sampling = poisson(1_000, 100)
    promised = claim(sampling, 1.2, 5, neighbouring=neighbouring, accounting=accounting)
    assert promised.neighbouring == neighbouring
    for delta in (1e-2, 1e-5):
        spent = epsilon(sampling, 1.2, 5, delta=delta, neighbouring=neighbouring, accounting=accounting)
        assert promised.epsilon_at(delta) <= spent * 1.002
        if accounting is pld:  # of Renyi divergences the curve is the better conversion
            assert promised.epsilon_at(delta) == pytest.approx(spent, rel=2e-3)


def test_the_claim_of_whole_batches_is_gaussian():
    fpr = np.linspace(0.01, 0.99, 50)
    whole = claim(poisson(7, 7), 3.0, 4).fnr(fpr)
    assert whole == pytest.approx(norm.cdf(norm.isf(fpr) - 2 / 3.0), abs=1e-3)
    assert (whole <= norm.cdf(norm.isf(fpr) - 2 / 3.0) + 1e-9).all()
    with pytest.raises(InputError, match="steps: expected a whole number >= 1, got 0"):
        claim(poisson(7, 7), 3.0, 0)
