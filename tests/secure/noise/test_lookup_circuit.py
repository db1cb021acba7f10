import numpy as np
import pytest

from dpaudit import InputError
from dpaudit.secure.circuits import circuit
from dpaudit.secure.noise import lookup
from dpaudit.secure.noise.lookup import noisy_sum

BITS = 25


def as_bits(numbers: np.ndarray, bits: int) -> np.ndarray:
    return (numbers >> np.arange(bits)[:, None] & 1).astype(bool)


@pytest.mark.parametrize("std, ands", [(3.0, 202), (437.0, 3_786)])
def test_the_circuit_looks_up_and_adds(std: float, ands: int) -> None:
    values = lookup.table(std)
    made = noisy_sum(values, bits=BITS)
    rng = np.random.default_rng(0)
    seeds = np.concatenate([[0, 32_767, 32_768, 65_535], rng.integers(0, 1 << 16, 1_000)])
    share = rng.integers(-(1 << 24), 1 << 24, len(seeds))
    outputs = circuit.evaluate(made, np.concatenate([as_bits(share, BITS), as_bits(seeds, 16)]))
    total = (1 << np.arange(BITS)) @ outputs
    assert ((total - share - values[seeds]) % (1 << BITS) == 0).all()
    assert ((total - share - values[seeds ^ 1]) % (1 << BITS) != 0).any()
    assert made.ands == ands


def test_wider_noise_takes_a_larger_circuit() -> None:
    sizes = [noisy_sum(lookup.table(std), bits=BITS).ands for std in (1.0, 4.0, 16.0, 64.0)]
    assert np.all(np.diff(sizes) > 50)


def test_other_tables_are_refused() -> None:
    values = lookup.table(3.0)
    with pytest.raises(InputError, match=r"values: expected 65536 of them, entry i minus the last but i, got \[4\]"):
        noisy_sum(values[:4], bits=BITS)
    with pytest.raises(InputError, match="values: expected rising from negative to positive"):
        noisy_sum(-values, bits=BITS)
    with pytest.raises(InputError, match="bits: expected a whole number >= 5"):
        noisy_sum(values, bits=4)
