"""Noise that keeps to a budget, and what events cost: exact, against another algorithm, and inverse to each other."""

import dp_accounting
import pytest
from dp_accounting import (
    ComposedDpEvent,
    GaussianDpEvent,
    NonPrivateDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting.pld import PLDAccountant

from dpaudit._validate import InputError
from dpaudit.personalization.boundary import processes
from dpaudit.personalization.boundary.budget import Budget, affordable, noise_for, spent


@pytest.mark.parametrize(
    "epsilon, delta, rounds, participation", [(1.0, 1e-6, 1, None), (0.3, 1e-8, 40, None), (5.0, 1e-5, 40, 7)]
)
def test_noise_is_the_least_that_keeps_to_the_budget(epsilon, delta, rounds, participation):
    z = noise_for(epsilon, delta, rounds=rounds, participation=participation)
    taken = participation or rounds
    assert spent(processes.gaussian("a", noise_multiplier=z).event(taken), delta) == pytest.approx(epsilon, rel=1e-6)
    assert Budget(epsilon, delta).pays(processes.gaussian("a", noise_multiplier=z).event(taken))
    assert not Budget(epsilon, delta).pays(processes.gaussian("a", noise_multiplier=z).event(taken + 1))
    assert not Budget(epsilon, delta).pays(processes.gaussian("a", noise_multiplier=0.999 * z).event(taken))


@pytest.mark.integration
def test_events_cost_what_another_algorithm_says():
    gaussians = ComposedDpEvent([SelfComposedDpEvent(GaussianDpEvent(3.0), 4), GaussianDpEvent(2.0)])
    by_pld = PLDAccountant().compose(gaussians).get_epsilon(1e-5)
    assert spent(gaussians, 1e-5) <= by_pld <= 1.001 * spent(gaussians, 1e-5)
    sampled = ComposedDpEvent([PoissonSampledDpEvent(0.1, GaussianDpEvent(1.0)), GaussianDpEvent(4.0)])
    assert spent(sampled, 1e-5) == pytest.approx(PLDAccountant().compose(sampled).get_epsilon(1e-5))
    assert spent(ComposedDpEvent([]), 1e-5) == 0
    assert spent(NonPrivateDpEvent(), 1e-5) == spent(GaussianDpEvent(0.0), 1e-5) == float("inf")
    assert not Budget(1e9, 1e-5).pays(ComposedDpEvent([GaussianDpEvent(4.0), NonPrivateDpEvent()]))
    assert spent(dp_accounting.NoOpDpEvent(), 1e-5) == 0


@pytest.mark.parametrize("most", [0, 1, 7, 64])
def test_as_many_as_can_be_paid(most):
    for limit in (0, 1, 3, 63, 64, 99):
        assert affordable(lambda r, limit=limit: r <= limit, most) == min(most, limit)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: Budget(0, 1e-6), "epsilon: expected a finite number > 0, got 0"),
        (lambda: Budget(float("nan"), 1e-6), "epsilon: expected a finite number > 0, got nan"),
        (lambda: Budget(1.0, 1.0), r"delta: expected a number in .0, 1., got 1.0"),
        (lambda: noise_for(1.0, 1e-6, rounds=0), "rounds: expected a whole number >= 1, got 0"),
        (
            lambda: noise_for(1.0, 1e-6, rounds=3, participation=4),
            "participation: expected at most the 3 rounds, got 4",
        ),
    ],
)
def test_bad_budgets_are_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()
