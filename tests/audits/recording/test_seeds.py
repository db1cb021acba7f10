"""Generators that were given no seed, a fixed one, or that were made before the call."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

from dpaudit import Claim, record

HELD = np.random.RandomState(3)


def frozen_with_a_seed(x):
    frozen = stats.laplace()
    frozen.random_state = 3
    return x + frozen.rvs()


SEEDED = {
    "number": lambda x: x + stats.laplace.rvs(random_state=3),
    "numpy number": lambda x: x + stats.laplace.rvs(random_state=np.int64(3)),
    "state": lambda x: x + stats.laplace.rvs(random_state=np.random.RandomState(3)),
    "generator": lambda x: x + stats.laplace.rvs(random_state=np.random.default_rng(3)),
    "frozen": lambda x: stats.laplace(loc=x).rvs(random_state=0),
    "attribute": frozen_with_a_seed,
}
FREE = {
    "none": lambda x: x + stats.laplace.rvs(),
    "module": lambda x: x + stats.laplace.rvs(random_state=np.random),
    "generator": lambda x: x + stats.laplace.rvs(random_state=np.random.default_rng()),
    "state": lambda x: x + stats.laplace.rvs(random_state=np.random.RandomState()),
    "frozen": lambda x: stats.laplace(loc=x).rvs(),
    "made before": lambda x, held=HELD: x + stats.laplace.rvs(random_state=held),
    "legacy": lambda x: x + np.random.RandomState().laplace(),
    "bits": lambda x: x + np.random.Generator(np.random.PCG64()).laplace(),
    "bits of a generator": lambda x: x + np.random.default_rng(np.random.MT19937()).laplace(),
}


@pytest.mark.parametrize("name", SEEDED)
def test_a_fixed_seed_for_scipy_is_found(name):
    found = record(SEEDED[name], 0.0, 1.0, claim=Claim(1.0), trials=0)
    assert (found.verdict, "constant_seed" in found.kinds) == ("violation", True), str(found)


@pytest.mark.parametrize("name", FREE)
def test_a_generator_without_a_seed_is_replayed_exactly(name):
    found = record(FREE[name], 0.0, 1.0, claim=Claim(1.0), trials=0)
    assert (found.verdict, found.epsilon_returned) == ("consistent", 1.0), str(found)


def test_draws_of_several_variables_are_recorded():
    """Their law is left to the audit; SciPy's own generator is none that the recorder does not know."""
    rvs: Any = stats.multivariate_normal.rvs
    found = record(lambda x: rvs(x, np.eye(2)), np.zeros(2), np.ones(2), trials=0)
    assert found.left == ("the parameters of multivariate_normal depend on the data",)
