"""Accounting at little noise: bounded in memory, above the truth, and the library's own numbers everywhere else."""

import math

import dp_accounting
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import PLDAccountant

from dpaudit._validate import InputError
from dpaudit.personalization.boundary.budget import spent
from dpaudit.personalization.boundary.processes import poisson_gaussian
from dpaudit.training import accounting, loss_grid
from dpaudit.training.loss_grid import LossAccountant, width
from dpaudit.training.sampling import poisson, shuffled

DELTA = 1e-5
ADD, REPLACE = NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(loss_grid, "POINTS", 1 << 16)


def points(accountant):
    return accountant._pld._pmf_remove.size


@pytest.mark.parametrize(("multiplier", "steps"), [(1e-3, 1), (0.011, 10)])
def test_little_noise_costs_no_less_than_it_does_and_little_more(small, multiplier, steps):
    exact = dp_accounting.get_epsilon_gaussian(multiplier / math.sqrt(steps), DELTA)
    found = accounting.epsilon(poisson(1_000, 1_000), multiplier, steps, delta=DELTA)
    assert exact <= found <= 1.001 * exact
    twice = dp_accounting.get_epsilon_gaussian(multiplier / 2, DELTA)
    assert twice <= accounting.epsilon(shuffled(1_000, 100), multiplier, 10, delta=DELTA, neighbouring="replace")
    assert found <= spent(poisson_gaussian("x", rate=1.0, noise_multiplier=multiplier).event(steps), DELTA) * 1.001


@pytest.mark.parametrize(("rate", "multiplier", "steps"), [(0.5, 0.02, 10), (0.5, 0.05, 200), (0.01, 0.02, 5_000)])
def test_the_grid_has_no_more_points_than_memory_holds(small, rate, multiplier, steps):
    """And coarser steps give larger epsilons, which is what makes them upper bounds."""
    event = poisson(1_000, round(1_000 * rate)).event(multiplier, steps, ADD)
    found = LossAccountant().compose(event)
    assert points(found) < 2 * loss_grid.POINTS
    finer = PLDAccountant(value_discretization_interval=0.05).compose(event)
    assert found.get_epsilon(DELTA) >= finer.get_epsilon(DELTA) * (1 - 1e-4)


@pytest.mark.parametrize(
    ("sampling", "multiplier", "steps", "relation"),
    [
        (poisson(1_000, 10), 1.0, 1_000, ADD),
        (poisson(1_000, 10), 0.8, 50, REPLACE),
        (poisson(1_000, 10, capacity=20), 1.0, 20, ADD),
        (shuffled(1_000, 10), 0.5, 100, REPLACE),
    ],
)
def test_ordinary_noise_is_accounted_as_ever_and_narrower_than_estimated(sampling, multiplier, steps, relation):
    event, shift = sampling.event(multiplier, steps, relation), 1 if relation is ADD else 2
    ours, theirs = LossAccountant(relation).compose(event), PLDAccountant(relation).compose(event)
    assert ours.get_epsilon(DELTA) == theirs.get_epsilon(DELTA)
    assert points(theirs) * accounting.INTERVAL < width(event, shift) < 40 * points(theirs) * accounting.INTERVAL


def test_noise_that_is_nearly_none_counts_as_none():
    sampling = poisson(1_000, 1_000)
    for multiplier in (1e-6, 1e-200):
        assert accounting.epsilon(sampling, multiplier, 2, delta=DELTA) == math.inf
    with pytest.raises(InputError, match="accountant: expected one whose releases have noise"):
        accounting.claim(sampling, 1e-6, 2)
