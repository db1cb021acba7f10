from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from dpaudit import _validate
from dpaudit.secure.crypto.randomness import Stream
from dpaudit.secure.noise.binomial import Binomial, binomial, from_bits, probabilities, sample, tail


def convolved(coins: int, step_bits: int) -> list[Fraction]:
    """Computes P(Z = -reach), ..., P(Z = reach) in fractions, adding one coin or uniform after the other."""

    def add(law: list[Fraction], values: list[int]) -> list[Fraction]:
        total = [Fraction(0)] * (len(law) + max(values))
        for start, mass in enumerate(law):
            for value in values:
                total[start + value] += mass / len(values)
        return total

    law = [Fraction(1)]
    for _ in range(coins):
        law = add(law, [0, 1 << step_bits])
    for _ in range(2):
        law = add(law, list(range(1 << step_bits)))
    return law


@pytest.mark.parametrize(("coins", "step_bits"), [(1, 1), (3, 2), (7, 3), (15, 1)])
def test_probabilities_are_those_of_coins_and_uniforms(coins: int, step_bits: int) -> None:
    noise, exact = binomial(coins=coins, step_bits=step_bits), convolved(coins, step_bits)
    values = np.arange(-noise.reach, noise.reach + 1)
    np.testing.assert_allclose(probabilities(noise, values), [float(mass) for mass in exact], rtol=1e-13)
    np.testing.assert_array_equal(probabilities(noise, np.array([-noise.reach - 1, noise.reach + 1])), 0)
    assert sum(mass * int(z) ** 2 for mass, z in zip(exact, values, strict=True)) == pytest.approx(noise.std**2)
    for t in range(noise.reach + 1):
        beyond = float(sum(mass for mass, z in zip(exact, values, strict=True) if abs(z) > t))
        corner = (2 * t + coins * noise.step) % (2 * noise.step) == 0
        assert tail(noise, t) == pytest.approx(beyond, rel=1e-12) if corner else tail(noise, t) >= beyond * (1 - 1e-12)


def test_bits_in_the_order_of_the_circuit() -> None:
    noise = Binomial(coins=3, step_bits=2)  # 4 popcount + U + U' - 9
    bits = np.array([[0, 0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1], [0, 1, 0, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0, 1]])
    np.testing.assert_array_equal(from_bits(noise, bits), [-9, 12 + 6 - 9, 4 + 1 - 9, 2 - 9])
    drawn = Stream(bytes(16)).draw(1 << 12)
    by_hand = np.unpackbits(np.frombuffer(drawn, np.uint8))[: 100 * noise.bits].reshape(100, noise.bits)
    np.testing.assert_array_equal(sample(noise, 100, lambda count: drawn[:count]), from_bits(noise, by_hand))


def chi_square(values: np.ndarray, noise: Binomial) -> float:
    """Returns the p-value of samples against the law of ``noise``, in about a hundred equally likely cells."""
    expected = len(values) * probabilities(noise, np.arange(-noise.reach, noise.reach + 1))
    observed = np.bincount(np.clip(values, -noise.reach, noise.reach) + noise.reach, minlength=len(expected))
    starts = np.unique(np.floor(np.cumsum(expected) / len(values) * 100 - 1e-6), return_index=True)[1]
    return float(stats.chisquare(np.add.reduceat(observed, starts), np.add.reduceat(expected, starts)).pvalue)


def test_samples_follow_the_law_whatever_one_server_does() -> None:
    noise, count = binomial(coins=127, step_bits=3), 100_000
    rng = np.random.default_rng(0)
    honest = rng.integers(0, 2, (count, noise.bits), np.uint8)
    replayed = np.tile(rng.integers(0, 2, (1, noise.bits), np.uint8), (count, 1))
    for other in (np.zeros_like(honest), replayed):
        values = from_bits(noise, honest ^ other)
        assert chi_square(values, noise) > 1e-4
        assert chi_square(values + 2, noise) < 1e-6
        assert chi_square(np.rint(values * 1.01).astype(int), noise) < 1e-6
    only_coins = honest.copy()
    only_coins[:, noise.coins :] = 0
    assert chi_square(from_bits(noise, only_coins), noise) < 1e-9


def test_wrong_number_of_coins_is_rejected() -> None:
    """63 coins of step 16 are as wide as 15 of step 32 to 1%, but follow another law."""
    right, wrong = binomial(coins=63, step_bits=4), binomial(coins=15, step_bits=5)
    assert right.std == pytest.approx(wrong.std, rel=0.01)
    values = sample(wrong, 300_000, Stream(bytes(16)).draw)
    assert chi_square(values, wrong) > 1e-4
    assert chi_square(values, right) < 1e-9


def test_refusals() -> None:
    with pytest.raises(_validate.InputError, match=r"coins: expected 2\^k - 1, at most 1023, got 126"):
        binomial(coins=126, step_bits=3)
    with pytest.raises(_validate.InputError, match="step_bits: expected a whole number >= 1, got 0"):
        binomial(coins=127, step_bits=0)
    with pytest.raises(_validate.InputError, match=r"bits: expected shape \[d, 133\], got shape \[2, 132\]"):
        from_bits(binomial(coins=127, step_bits=3), np.zeros((2, 132), np.uint8))
