import math

import numpy as np
import pytest

from dpaudit import _validate
from dpaudit.secure.noise import accounting, gaussian
from dpaudit.secure.noise.binomial import binomial, probabilities


def summed(coins: int, step_bits: int, shift: int, epsilon: float) -> float:
    """Sums the divergence value by value."""
    noise = binomial(coins=coins, step_bits=step_bits)
    values = np.arange(-noise.reach, noise.reach + shift + 1)
    return float(
        np.maximum(probabilities(noise, values) - math.exp(epsilon) * probabilities(noise, values - shift), 0).sum()
    )


@pytest.mark.parametrize(
    ("coins", "step_bits", "shift"), [(1, 1, 1), (3, 2, 5), (7, 3, 8), (7, 3, 100), (127, 4, 90), (127, 1, 1)]
)
def test_series_are_the_sum_over_all_values(coins: int, step_bits: int, shift: int) -> None:
    noise = binomial(coins=coins, step_bits=step_bits)
    for epsilon in (0.0, 0.1, 0.7, 3.0, 20.0):
        found = accounting.divergence(noise, shift=shift, epsilon=epsilon)
        assert found == pytest.approx(summed(coins, step_bits, shift, epsilon), rel=1e-9, abs=1e-15)
    assert (
        accounting.divergence(noise, shift=shift, epsilon=0.0)
        != pytest.approx(summed(coins, step_bits, shift + 1, 0.0), rel=1e-3)
        or shift > 2 * noise.reach
    )


@pytest.mark.parametrize("multiplier", [0.5, 1.0, 4.0])
def test_between_a_gaussian_of_its_variance_and_the_bound_of_all_vectors(multiplier: float) -> None:
    noise = binomial(coins=127, step_bits=10)
    shift = round(noise.std / multiplier)
    exact = accounting.least_epsilon(noise, shift=shift, delta=1e-3)
    continuous = gaussian.epsilon(noise.std / shift, delta=1e-3, neighbouring="add_remove")
    assert continuous < exact < 1.05 * continuous
    assert exact < accounting.epsilon(noise, sensitivity=shift, dimension=1, delta=1e-3)


def test_a_shift_to_where_the_noise_cannot_reach_is_infinite() -> None:
    noise = binomial(coins=3, step_bits=2)
    assert accounting.least_epsilon(noise, shift=noise.reach, delta=1e-3) == math.inf
    assert accounting.least_epsilon(noise, shift=1, delta=0.5) == 0.0


def test_refuses_values_out_of_range() -> None:
    noise = binomial(coins=3, step_bits=2)
    with pytest.raises(_validate.InputError, match="shift: expected a whole number >= 1, got 0"):
        accounting.divergence(noise, shift=0, epsilon=1.0)
    with pytest.raises(_validate.InputError, match="epsilon: expected a number from 0 to 500, got -1"):
        accounting.divergence(noise, shift=1, epsilon=-1.0)
    with pytest.raises(_validate.InputError, match=r"delta: expected a number in \(0, 1\), got 1"):
        accounting.least_epsilon(noise, shift=1, delta=1.0)
