"""Tests that the noise that the protocols add follows its law, whatever one server does with its bits."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from dpaudit.secure.crypto.randomness import Source, Stream
from dpaudit.secure.crypto.shares import smod
from dpaudit.secure.noise import binomial
from dpaudit.secure.noise.binomial import Binomial
from dpaudit.secure.protocol import in_process, transfer_noise, two_server_sum
from dpaudit.secure.protocol.two_server_sum import LARGEST, Evaluator, Garbler
from tests.secure.noise.test_binomial import chi_square
from tests.secure.sessions import given

Protocol = Callable[[Binomial, int, Source, Source], np.ndarray]
HONEST = 1e-4  # the smallest p-value that passes; the seeds are fixed


def by_circuit(law: Binomial, blocks: int, one: Source, two: Source) -> np.ndarray:
    kind = two_server_sum.noisy(law, ring_bits=(2 * law.reach).bit_length() + 1)
    shares = np.full(LARGEST, 5), np.full(LARGEST, -3)
    opened, _ = in_process.together(
        in_process.channels(3600.0),
        lambda channel: _each(Garbler(channel, source=one), kind, shares[0], blocks),
        lambda channel: _each(Evaluator(channel, source=two), kind, shares[1], blocks),
    )
    return opened - 8


def _each(server: Garbler | Evaluator, kind: two_server_sum.Opening, share: np.ndarray, blocks: int) -> np.ndarray:
    def opened() -> Iterator[np.ndarray]:
        for _ in range(blocks):
            prepared = server.prepare(kind, LARGEST)
            yield server.open(kind, prepared, share)  # pyright: ignore[reportArgumentType]  # of its own kind

    return np.concatenate(list(opened()))


def by_transfers(law: Binomial, blocks: int, one: Source, two: Source) -> np.ndarray:
    bits = (2 * law.reach).bit_length() + 1

    def each(server: transfer_noise.First | transfer_noise.Second) -> np.ndarray:
        kind = transfer_noise.by_transfers(law, ring_bits=bits)
        return np.concatenate([server.prepare(kind, LARGEST).values for _ in range(blocks)])

    first, second = in_process.together(
        in_process.channels(3600.0),
        lambda channel: each(transfer_noise.First(channel, source=one)),
        lambda channel: each(transfer_noise.Second(channel, source=two)),
    )
    return smod(first - second, 1 << (bits - 1))


def _sources(law: Binomial, first: str, second: str) -> tuple[Source, Source]:
    """Makes two servers that are honest, take all their bits to be zero, or reuse the same bits in every block."""
    size = law.bits * LARGEST // 8

    def made(server: bytes, how: str) -> Source:
        source = Stream(server * 16).draw
        if how == "honest":
            return source
        return given(source, size, bytes(size) if how == "zero" else Stream(b"replayed" + server * 8).draw(size))

    return made(b"1", first), made(b"2", second)


@pytest.mark.parametrize("protocol", [by_circuit, by_transfers])
@pytest.mark.parametrize(
    ("first", "second"),
    [("honest", "honest"), ("zero", "honest"), ("honest", "zero"), ("replayed", "honest"), ("honest", "replayed")],
)
def test_one_honest_server_is_enough(protocol: Protocol, first: str, second: str) -> None:
    law, wrong = binomial.binomial(coins=7, step_bits=3), binomial.binomial(coins=31, step_bits=2)
    assert wrong.std == pytest.approx(law.std, rel=0.02)
    values = protocol(law, 4, *_sources(law, first, second))
    assert len(values) > 100_000
    assert chi_square(values, law) > HONEST
    assert chi_square(values, wrong) < 1e-9


@pytest.mark.parametrize("protocol", [by_circuit, by_transfers])
@pytest.mark.parametrize(("first", "second"), [("zero", "zero"), ("replayed", "replayed"), ("zero", "replayed")])
def test_none_is_caught(protocol: Protocol, first: str, second: str) -> None:
    law = binomial.binomial(coins=7, step_bits=3)
    values = protocol(law, 4, *_sources(law, first, second))
    assert chi_square(values, law) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second"), [("zero", "honest"), ("replayed", "honest"), ("honest", "zero"), ("honest", "replayed")]
)
def test_ten_million_follow_the_law(first: str, second: str) -> None:
    law, wrong = binomial.binomial(coins=127, step_bits=3), binomial.binomial(coins=31, step_bits=4)
    assert wrong.std == pytest.approx(law.std, rel=0.005)
    values = by_circuit(law, -(-10_000_000 // LARGEST), *_sources(law, first, second))
    assert len(values) >= 10_000_000
    assert chi_square(values, law) > HONEST
    assert chi_square(values, wrong) < 1e-9
