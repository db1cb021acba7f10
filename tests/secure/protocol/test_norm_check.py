"""Tests that the norm check is exact for every sharing, whatever wraps; its bytes and wire are pinned."""

from collections import Counter

import numpy as np
import pytest

from dpaudit import InputError
from dpaudit.secure.circuits import circuit
from dpaudit.secure.crypto.randomness import Stream
from dpaudit.secure.crypto.shares import join
from dpaudit.secure.protocol import norm_check
from tests.secure.servers import terms
from tests.secure.transcript import Transcript, record

Pair = tuple[np.ndarray, np.ndarray]


def play(pair: Pair, bound: int, *, ring_bits: int = 25, depth: int = 1) -> tuple[np.ndarray, Transcript]:
    """Checks owners' shares, [owners, d] at each server; what both learn must be the same."""

    def side(kind: type, seed: bytes, shares: np.ndarray):
        def party(channel):
            server = kind(channel, depth=depth, source=Stream(seed).draw)
            return server.longer(list(shares), bound=bound, ring_bits=ring_bits, seconds=60.0)

        return party

    first, second, said = record(
        side(norm_check.First, b"the first server", pair[0]), side(norm_check.Second, b"the other server", pair[1])
    )
    np.testing.assert_array_equal(first, second)
    return first, said


def hidden(pair: Pair, ring_bits: int) -> list[int]:
    """Returns the squared norms of what is shared, as Python's integers."""
    return [sum(int(x) ** 2 for x in row) for row in join(*pair, ring_bits=ring_bits)]


@pytest.mark.parametrize(("ring_bits", "dimension"), [(25, 7), (25, 182), (17, 40), (2, 9), (32, 1), (31, 7)])
@pytest.mark.parametrize("depth", [1, 4])
def test_it_is_exact_for_shares_that_an_owner_chose_at_will(ring_bits: int, dimension: int, depth: int) -> None:
    half = 1 << (ring_bits - 1)
    draw = np.random.default_rng(ring_bits)
    first, second = draw.integers(-half, half, (2, 24, dimension))
    first[:8] = draw.choice([-half, -1, 0, half - 1], (8, dimension))  # all corners of the ring
    second[:8] = draw.choice([-half, -1, 0, half - 1], (8, dimension))
    small = draw.integers(-2, 2, (8, dimension))
    first[8:16] = (small + second[8:16] + half) % (2 * half) - half
    pair = first, second
    norms = hidden(pair, ring_bits)
    for bound in {0, half**2 - 1, *(max(0, norm + more) for norm in norms[::5] for more in (-1, 0))}:
        if bound < half**2:
            found, _ = play(pair, bound, ring_bits=ring_bits, depth=depth)
            assert found.tolist() == [norm > bound for norm in norms]


@pytest.mark.parametrize("size", [1 << 13, 1 << 20, -(1 << 24), (1 << 24) - 1])
def test_a_sum_of_squares_that_would_wrap_is_refused(size: int) -> None:
    """Each square, and their sum, is 0 modulo 2^25 for three of the sizes; all are far beyond the bound."""
    values, bound = np.full((1, 1024), size), 10**6
    second = np.random.default_rng(0).integers(-(1 << 24), 1 << 24, values.shape)
    pair = (values + second + (1 << 24)) % (1 << 25) - (1 << 24), second
    if size != (1 << 24) - 1:
        assert sum(int(x) ** 2 for x in values[0]) % (1 << 25) == 0 <= bound
    assert play(pair, bound)[0].tolist() == [True]


@pytest.mark.integration
def test_the_largest_sum_of_all_fits_into_its_64_bits() -> None:
    """One coordinate more is refused by the terms: 32,768 squares of 2^48 are 2^63, the sign."""
    most, half = (1 << 15) - 1, 1 << 24
    assert norm_check.checked_size(dimension=most, ring_bits=25) == 64
    pair = np.full((2, most), -half), np.zeros((2, most), np.int64)
    pair[0][1] = 0
    pair[0][1, 0] = half - 1
    assert play(pair, (half - 1) ** 2)[0].tolist() == [True, False]
    with pytest.raises(InputError, match=r"^owner_examples: expected none with more than 32767 coordinates in a ring"):
        terms(dimension=most + 1, owner_examples=1)
    assert terms(dimension=most, owner_examples=1).bound == terms(dimension=most).levels ** 2


@pytest.mark.parametrize(
    ("count", "message"), [(0, "a whole number >= 1"), (31, "at most 30, of all owners together")]
)
def test_terms_refuse_a_number_of_examples_that_no_owner_can_have(count: int, message: str) -> None:
    with pytest.raises(InputError, match=f"^owner_examples: expected {message}, got {count}$"):
        terms(owner_examples=count)


def test_owners_are_told_apart_across_parts() -> None:
    """A part holds 8,192 coordinates: here one owner ends in the middle of each."""
    dimension, draw = 3000, np.random.default_rng(2)
    second = draw.integers(-(1 << 24), 1 << 24, (7, dimension))
    values = np.zeros((7, dimension), np.int64)
    values[[1, 2, 5], [0, dimension - 1, 1500]] = 101, -101, 100
    pair = (values + second + (1 << 24)) % (1 << 25) - (1 << 24), second
    assert play(pair, 100**2)[0].tolist() == [False, True, True, False, False, False, False]


def test_the_circuits_are_their_formulas() -> None:
    numbers = np.arange(16)
    first, second = (each.ravel() for each in np.meshgrid(numbers, numbers))
    bits = np.concatenate([first >> np.arange(4)[:, None] & 1, second >> np.arange(4)[:, None] & 1]).astype(bool)
    np.testing.assert_array_equal(circuit.evaluate(norm_check.less(4), bits)[0], first < second)
    np.testing.assert_array_equal(circuit.evaluate(norm_check.negative(4), bits)[0], (first + second) % 16 >= 8)
    assert (norm_check.less(25).ands, norm_check.negative(57).ands) == (25, 56)


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_lengths_are_those_that_are_told(depth: int) -> None:
    """Transfers of a multiple of 64 owners and coordinates are not rounded up."""
    zeros = np.zeros((64, 64), np.int64)
    _, said = play((zeros, zeros), 0, depth=depth)
    spoken = Counter[str]()
    for name, length in said.lengths():
        spoken[name] += length
    for name, length in norm_check.payload_bytes(dimension=64, ring_bits=25, depth=depth).items():
        assert spoken[name] == 64 * length
    assert spoken["norm.bits"] == 2 * 64 // 8


@pytest.mark.parametrize(
    ("depth", "pin"),
    [
        (1, "3b753127f289e64be698b830519223d23591f0ff17a1f4908adbb4fc52084c8f"),
        (4, "62ee9be6e0adbf7bccad3f17b9591f884f80889fc99d1ebab23d6eb053dc5dbb"),
    ],
)
def test_the_wire_is_pinned(depth: int, pin: str) -> None:
    """Another hash is another wire format, which needs another ``agreement.VERSION``."""
    shares = np.random.default_rng(0).integers(-(1 << 24), 1 << 24, (2, 3, 5))
    assert play((shares[0], shares[1]), 10**9, depth=depth)[1].hash() == pin


def test_what_a_server_is_sent_is_as_uniform_as_if_it_were_of_nothing() -> None:
    """Owners of zeros and of large numbers: each bit of the masked numbers and labels is as often one as zero."""
    for value in (0, (1 << 24) - 1):
        second = np.zeros((16, 512), np.int64)
        _, said = play((second + value, second), 100)
        for kind in ("norm.products", "norm.labels", "cot.corrections", "norm.tables"):
            payload = b"".join(message.payload for message in said.first + said.second if message.kind == kind)
            bits = np.unpackbits(np.frombuffer(payload, np.uint8))
            assert abs(bits.mean() - 0.5) < 5 * 0.5 / len(bits) ** 0.5
