"""What recorded or unrecorded chance decides is left to the audit, and proves neither a fault nor its absence."""

import numpy as np
import pytest
from scipy import stats

from dpaudit import Claim, _validate, record

X0, X1 = np.array([0.0, 1.0]), np.array([1.0, 1.0])


class Response:
    """Randomised response by a generator that is not recorded, as it was made before the call."""

    def __init__(self, beside):
        self.rng, self.beside = np.random.default_rng(5), beside

    def __call__(self, rng, x):
        answer = x if self.rng.random() < 0.9 else 1 - x
        return (answer, rng.laplace()) if self.beside else answer


@pytest.mark.parametrize("beside", [False, True])
def test_chance_that_is_not_recorded_is_no_proof(beside):
    fn = Response(beside)
    verdicts = [verdict(fn, seed) for seed in range(20)]
    assert "violation" not in verdicts
    assert verdicts.count("refused") > 10


def verdict(fn, seed):
    try:
        return record(fn, 0, 1, claim=Claim(2.5), trials=0, seed=seed).verdict
    except _validate.InputError:
        return "refused"


def test_a_bare_value_is_a_proof_only_beside_recorded_draws():
    alone, beside = (
        record(fn, 0.0, 1.0, claim=Claim(1.0), trials=0) for fn in (lambda x: x, lambda rng, x: (x, rng.laplace()))
    )
    assert (alone.verdict, alone.kinds) == ("fault", {"data_dependent_output"})
    assert (beside.verdict, beside.kinds) == ("violation", {"data_dependent_output"})


@pytest.mark.integration
def test_the_audit_decides_where_nothing_is_drawn():
    found = record(lambda x: x, 0.0, 1.0, claim=Claim(1.0))
    assert (found.verdict, found.audit is None) == ("violation", False)
    assert record(lambda x: x, 0.0, 1.0, claim=Claim(50.0)).verdict == "underpowered"  # no trials prove so much


def multivariate(rng, x):
    return rng.multivariate_normal(x, 4 * np.eye(2))


def far_apart(rng, x):
    return rng.multivariate_normal(100 * x, 4 * np.eye(2))


def posterior(rng, x):
    return rng.beta(5 + x[0], 5)


def proportions(rng, x):
    return rng.dirichlet(x + 5)


def counts(rng, x):
    return int(rng.poisson(x[0] + 50))


@pytest.mark.integration
@pytest.mark.parametrize("fn", [multivariate, posterior, proportions, counts])
def test_parameters_that_are_the_data_are_left_to_the_audit(fn):
    found = record(fn, X0, X1, claim=Claim(4.0, 1e-3), trials=1_000)
    assert (found.verdict in ("underpowered", "consistent"), found.kinds) == (True, {"data_dependent_law"}), str(found)
    assert record(fn, X0, X1, claim=Claim(4.0, 1e-3), trials=0).verdict == "fault"


@pytest.mark.integration
def test_parameters_that_tell_too_much_are_a_violation():
    assert record(far_apart, X0, X1, claim=Claim(4.0, 1e-3), trials=1_000).verdict == "violation"


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_a_drawn_bit_is_a_coin_though_the_output_may_be_the_same_number(seed):
    found = record(lambda x: int(x) ^ int(stats.bernoulli.rvs(0.25)), 0, 1, claim=Claim(1.2), trials=0, seed=seed)
    assert (found.verdict, found.findings) == ("underpowered", ()), str(found)
