"""A number with noise in it behaves as the ``numpy.float64`` that it stands for."""

import cProfile
import pstats
from decimal import Decimal

import numpy as np
import pytest

from dpaudit import Claim, record

FOLLOWED = {
    "max": lambda y: y.max(),
    "min": lambda y: y.min(),
    "sum": lambda y: y.sum(),
    "mean": lambda y: y.mean(),
    "tolist": lambda y: y.tolist(),
    "conj": lambda y: y.conj(),
    "real": lambda y: y.real,
    "squeeze": lambda y: y.squeeze(),
    "T": lambda y: y.T,
    "reshape": lambda y: y.reshape(1, 1),
    "ravel": lambda y: y.ravel(),
    "array": lambda y: np.array([y]),
    "nested": lambda y: np.array([[y], [1]]),
}
PLAIN = {
    "clip": lambda y: y.clip(0, 1),
    "clip below": lambda y: y.clip(min=0),
    "tobytes": lambda y: y.tobytes(),
    "str": str,
    "decimal": lambda y: Decimal(str(y)).quantize(Decimal("0.01")),
    "round": lambda y: np.round(y, 2),
    "std": lambda y: (y.std(), y.nbytes, y.is_integer(), f"{y:.1f}", y),
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_noise_is_followed_through_its_methods(name):
    found, small = (
        record(lambda rng, x: FOLLOWED[name](x + rng.laplace()), 0.0, 1.0, claim=Claim(epsilon), trials=0)
        for epsilon in (1.0, 0.9)
    )
    assert (found.verdict, found.epsilon_returned) == ("consistent", 1.0), str(found)
    assert small.verdict == "violation"


@pytest.mark.parametrize("name", PLAIN)
def test_what_is_computed_from_a_release_by_its_methods_is_no_leak(name):
    found = record(lambda rng, x: PLAIN[name](x + rng.laplace()), 0.0, 1.0, claim=Claim(1.0), trials=0)
    assert found.verdict == "consistent", str(found)
    bare = record(lambda rng, x: (rng.laplace(), PLAIN[name](x + 0.5)), np.float64(0), np.float64(1), trials=0)
    assert bare.kinds == {"data_dependent_output"} or name == "clip"


def test_it_is_a_floating_number_of_numpy():
    seen = []

    def kind(rng, x):
        noisy = x + rng.laplace()
        seen.append((isinstance(noisy, np.floating), np.array([noisy, noisy]).dtype, str(noisy) == str(float(noisy))))
        return noisy

    record(kind, 0.0, 1.0, trials=0)
    assert set(seen) == {(True, np.dtype(float), True)}


def calls(count):
    """Returns the number of calls of functions that recording so many draws takes."""
    profile = cProfile.Profile()
    profile.runcall(record, lambda rng, x: [value + rng.laplace() for value in x], *np.eye(2, count), trials=0)
    return pstats.Stats(profile).total_calls  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.integration
def test_the_time_is_proportional_to_the_number_of_draws():
    few, more = calls(50), calls(200)
    assert more < 4.5 * few
