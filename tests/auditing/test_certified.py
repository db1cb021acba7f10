"""What an attack achieves in other terms: closed forms, bounds that cover, and rules that tell nothing."""

from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from dpaudit import _validate
from dpaudit.auditing.bounds import certified

MANY = 10**12  # trials, at which bounds and value are one


def told(fpr: float, fnr: float) -> tuple[int, int, int, int]:
    return round(fpr * MANY), round(fnr * MANY), MANY, MANY


def laplace_rates(threshold: float) -> tuple[float, float]:
    """Of epsilon 1, for a threshold >= 0.5: a tail of the one law, the rest of the other."""
    beyond = np.exp(threshold - 1) / 2 if threshold < 1 else 1 - np.exp(1 - threshold) / 2
    return np.exp(-threshold) / 2, beyond


def gaussian_rates(threshold: float, mu: float = 1.0) -> tuple[float, float]:
    return float(ndtr(-threshold)), float(ndtr(threshold - mu))


def near(value: float) -> Any:
    return pytest.approx(value, abs=1e-3)


def test_advantage_of_known_mechanisms():
    half = np.tanh(0.5)  # randomised response of epsilon 1: (e - 1)/(e + 1)
    wrong = 1 / (1 + np.e)
    assert certified.advantage(*told(wrong, wrong), confidence=0.95) == (near(half),) * 3
    # Laplace of epsilon 1: the total variation distance 1 - e^(-1/2)
    assert certified.advantage(*told(*laplace_rates(0.5)), confidence=0.95) == (near(1 - np.exp(-0.5)),) * 3
    # a Gaussian of mu 1: 2 Phi(mu/2) - 1
    assert certified.advantage(*told(*gaussian_rates(0.5)), confidence=0.95) == (near(2 * ndtr(0.5) - 1),) * 3


def test_accuracy_of_known_mechanisms():
    assert certified.accuracy(*told(*gaussian_rates(0.5)), confidence=0.95).value == near(ndtr(0.5))
    assert certified.accuracy(*told(*laplace_rates(0.5)), confidence=0.95).value == near(1 - np.exp(-0.5) / 2)


@pytest.mark.parametrize("f", [0.01, 0.001])
def test_tpr_at_a_small_fpr_of_known_mechanisms(f):
    # the rule whose FPR is f: Laplace attains e f beyond its peaks, a Gaussian Phi(Phi^-1(f) + mu)
    rates = laplace_rates(-np.log(2 * f))
    assert certified.tpr_at(f, *told(*rates), confidence=0.95) == (near(np.e * f),) * 3
    rates = gaussian_rates(-float(ndtri(f)))
    assert certified.tpr_at(f, *told(*rates), confidence=0.95) == (near(ndtr(ndtri(f) + 1)),) * 3
    # randomised response has one rule; mixed with "never", its TPR at f is e f
    wrong = 1 / (1 + np.e)
    assert certified.tpr_at(f, *told(wrong, wrong), confidence=0.95) == (near(np.e * f),) * 3


def test_tpr_beyond_the_rule_is_mixed_with_always():
    found = certified.tpr_at(0.5, *told(0.2, 0.4), confidence=0.95)
    assert found.value == near(1 - 0.4 * 0.5 / 0.8)


def test_a_useless_rule_is_worth_guessing():
    assert certified.tpr_at(0.1, *told(0.6, 0.6), confidence=0.95).value == near(0.1)
    assert certified.advantage(*told(0.6, 0.6), confidence=0.95) == (0, 0, 0)
    assert certified.posterior(0.3, 0, 50, 50, 50, confidence=0.95).value == 0.3  # it never says "world 1"


@pytest.mark.parametrize("prior", [0.01, 0.5, 0.9])
def test_posterior_of_randomised_response(prior):
    wrong = 1 / (1 + np.e)
    most = prior * np.e / (1 - prior + prior * np.e)
    assert certified.posterior(prior, *told(wrong, wrong), confidence=0.95) == (near(most),) * 3


def test_bounds_cover_and_have_power():
    draws, n, audits = np.random.default_rng(3), 200, 2000
    fpr, fnr = gaussian_rates(0.7)
    truth = 1 - fpr - fnr
    counts = draws.binomial(n, [[fpr], [fnr]], size=(2, audits)).T
    found = np.array([certified.advantage(a, b, n, n, confidence=0.9) for a, b in counts])
    most = binom.ppf(1 - 1e-6, audits, 0.1)
    assert np.sum(found[:, 1] > truth) <= most
    assert np.sum(found[:, 2] < truth) <= most
    assert np.sum(found[:, 0] > truth) > most  # the value itself is no bound
    assert found[:, 1].mean() > truth - 0.15


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: certified.tpr_at(0.0, 1, 1, 9, 9, confidence=0.9), "fpr"),
        (lambda: certified.posterior(1.0, 1, 1, 9, 9, confidence=0.9), "prior"),
        (lambda: certified.advantage(10, 1, 9, 9, confidence=0.9), "false_positives"),
        (lambda: certified.accuracy(1, 1, 9, 9, confidence=1.0), "confidence"),
    ],
)
def test_values_out_of_range_are_refused(call, message):
    with pytest.raises(_validate.InputError, match=message):
        call()
