from collections.abc import Callable

import numpy as np
import pytest

from dpaudit import _validate
from dpaudit.secure.circuits import circuit
from dpaudit.secure.circuits.circuit import Builder, Circuit
from dpaudit.secure.noise import binomial

RNG = np.random.default_rng(0)


def to_bits(numbers: np.ndarray, count: int) -> np.ndarray:
    """Splits numbers into bits: [d] -> [count, d], lowest bit first."""
    return numbers >> np.arange(count)[:, None] & 1


def to_numbers(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.int64) << np.arange(len(bits))[:, None]).sum(0)


def two_numbers(bits: int, operation: Callable[[Builder, list[int], list[int]], list[int]]) -> Circuit:
    builder = Builder(2 * bits)
    return builder.build(operation(builder, builder.inputs[:bits], builder.inputs[bits:]))


def pairs(bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Lists all pairs of small numbers, and 2,000 random pairs of larger ones."""
    if bits <= 4:
        x, y = np.mgrid[: 1 << bits, : 1 << bits].reshape(2, -1)
        return x, y
    x, y = RNG.integers(1 << bits, size=(2, 2000))
    return x, y


@pytest.mark.parametrize("bits", [1, 2, 4, 25])
@pytest.mark.parametrize("carry", [0, 1])
def test_addition(bits: int, carry: int) -> None:
    x, y = pairs(bits)
    inputs = np.concatenate([to_bits(x, bits), to_bits(y, bits)])
    whole = two_numbers(bits, lambda builder, a, b: circuit.add(builder, a, b, carry))
    modulo = two_numbers(bits, lambda builder, a, b: circuit.add(builder, a, b, carry)[:-1])
    np.testing.assert_array_equal(to_numbers(circuit.evaluate(whole, inputs)), x + y + carry)
    np.testing.assert_array_equal(to_numbers(circuit.evaluate(modulo, inputs)), (x + y + carry) % (1 << bits))
    assert (whole.ands, modulo.ands) == (bits, bits - 1)


@pytest.mark.parametrize("bits", [1, 2, 4, 25])
def test_reconstruction_subtracts(bits: int) -> None:
    x, y = pairs(bits)
    built = circuit.reconstruction(bits=bits)
    result = to_numbers(circuit.evaluate(built, np.concatenate([to_bits(x, bits), to_bits(y, bits)])))
    np.testing.assert_array_equal(result, (x - y) % (1 << bits))
    assert built.ands == bits - 1


@pytest.mark.parametrize("k", [1, 2, 3, 7, 10])
def test_popcount_takes_n_less_k_gates(k: int) -> None:
    n = (1 << k) - 1
    builder = Builder(n)
    built = builder.build(circuit.popcount(builder, builder.inputs))
    coins = RNG.random((n, 500)) < RNG.random(500)  # of every bias, so that counts from 0 to n come up
    np.testing.assert_array_equal(to_numbers(circuit.evaluate(built, coins)), coins.sum(0))
    assert (built.ands, len(built.outputs)) == (n - k, k)


@pytest.mark.parametrize(("coins", "step_bits", "bits"), [(127, 14, 25), (255, 13, 25), (3, 1, 4), (1, 1, 3)])
def test_noisy_sum_is_the_noise_in_plaintext(coins: int, step_bits: int, bits: int) -> None:
    law = binomial.binomial(coins=coins, step_bits=step_bits)
    built = binomial.noisy_sum(law, bits=bits)
    assert built.ands == coins + step_bits + bits - 1
    shares = RNG.integers(1 << bits, size=3000)
    flips = RNG.integers(2, size=(law.bits, 3000))
    result = to_numbers(circuit.evaluate(built, np.concatenate([to_bits(shares, bits), flips])))
    expected = shares + binomial.from_bits(law, flips.T) + law.reach
    np.testing.assert_array_equal(result, expected % (1 << bits))
    assert (np.roll(flips, 1, axis=0) != flips).any()  # bits in another order are another number
    twin = shares + binomial.from_bits(law, np.roll(flips, 1, axis=0).T) + law.reach
    assert (result != twin % (1 << bits)).mean() > 0.3


def test_a_ring_without_room_is_refused() -> None:
    with pytest.raises(_validate.InputError, match="bits: expected a whole number >= 22, got 21"):
        binomial.noisy_sum(binomial.binomial(coins=127, step_bits=14), bits=21)
    assert binomial.noisy_sum(binomial.binomial(coins=127, step_bits=14), bits=22).ands == 127 + 14 + 21
    with pytest.raises(_validate.InputError, match="bits: expected a whole number >= 1, got 0"):
        circuit.reconstruction(bits=0)
