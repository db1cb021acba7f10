"""Tests that shares add to the noise of both servers' bits, exactly; lengths and wire are pinned, a share uniform."""

import math
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from dpaudit import _validate
from dpaudit.secure.crypto.randomness import Source, Stream
from dpaudit.secure.crypto.shares import smod
from dpaudit.secure.noise import binomial
from dpaudit.secure.noise.binomial import Binomial
from dpaudit.secure.protocol import in_process, transfer_noise, two_server_sum
from dpaudit.secure.protocol.transfer_noise import by_transfers
from tests.secure.sessions import Recorded, given
from tests.secure.transcript import Transcript, record

LAW = binomial.binomial(coins=7, step_bits=3)


def play(
    law: Binomial, counts: list[int], *, ring_bits: int = 25, depth: int = 1, second: Source | None = None
) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray], Transcript]:
    """Runs both servers block by block: (H1's shares, H2's, the noise of both servers' bits, transcript)."""
    sources = Recorded(Stream(b"the first server").draw), Recorded(second or Stream(b"the other server").draw)

    def both(kind: type, source: Recorded):
        def party(channel):
            server = kind(channel, depth=depth, source=source)
            start = len(source.drawn)
            opening = by_transfers(law, ring_bits=ring_bits)
            return [server.prepare(opening, count).values for count in counts], source.drawn[start:]

        return party

    (one, drawn), (two, chosen), said = record(
        both(transfer_noise.First, sources[0]), both(transfer_noise.Second, sources[1])
    )
    pairs = zip(drawn[::2], chosen, strict=True)  # H1 draws a seed of the keys, too
    bits = [
        np.unpackbits(np.bitwise_xor(*(np.frombuffer(side, np.uint8) for side in pair)), count=law.bits * count)
        for pair, count in zip(pairs, counts, strict=True)
    ]
    wanted = [binomial.from_bits(law, row.reshape(law.bits, count).T) for row, count in zip(bits, counts, strict=True)]
    return one, two, wanted, said


@pytest.mark.parametrize(
    ("law", "ring_bits"),
    [
        (LAW, 25),
        (binomial.binomial(coins=127, step_bits=15), 25),
        (binomial.binomial(coins=1, step_bits=30), 32),
        (binomial.binomial(coins=1, step_bits=1), 3),
    ],
)
@pytest.mark.parametrize("depth", [1, 4])
def test_the_shares_differ_by_the_noise_of_both(law: Binomial, ring_bits: int, depth: int) -> None:
    one, two, wanted, _ = play(law, [1, 7, 65], ring_bits=ring_bits, depth=depth)
    for first, second, noises in zip(one, two, wanted, strict=True):
        np.testing.assert_array_equal(smod(first - second, 1 << (ring_bits - 1)), noises)


@pytest.mark.parametrize("law", [LAW, binomial.binomial(coins=31, step_bits=3)])
def test_a_block_of_two_chunks(law: Binomial) -> None:
    """The second law has so many bits that some groups of them are coins alone."""
    (one,), (two,), (wanted,), _ = play(law, [4097])
    np.testing.assert_array_equal(smod(one - two, 1 << 24), wanted)


def test_opened_with_a_sum() -> None:
    """Both learn the noisy sum, the noise of the same bits as when only shares are made."""
    (one,), (two,), (wanted,), _ = play(LAW, [65])
    sums, opening = (np.arange(65) * 1000 + 5, np.arange(65) * -77), by_transfers(LAW, ring_bits=25)

    def party(kind: type, own: np.ndarray, share: np.ndarray):
        return lambda channel: kind(channel).open(opening, transfer_noise.Share(own), share)

    opened = in_process.together(
        in_process.channels(),
        party(transfer_noise.First, one, sums[0]),
        party(transfer_noise.Second, two, sums[1]),
    )
    for values in opened:
        np.testing.assert_array_equal(values, sums[0] - sums[1] + wanted)


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_lengths_are_those_that_are_told(depth: int) -> None:
    counts = [128, 4097, 1]
    *_, said = play(LAW, counts, depth=depth)
    spoken = Counter[str]()
    for name, length in said.lengths():
        spoken[name] += length
    rates = transfer_noise.payload_bytes(by_transfers(LAW, ring_bits=25), depth=depth)
    padded = sum(64 * math.ceil(LAW.bits * count / 64) for count in counts)
    assert spoken["cot.corrections"] == padded * 16 // depth
    assert rates["cot.corrections"] == LAW.bits * 16 / depth
    bits = 7 * (24 - 3) + 2 * (24 + 23 + 22)
    assert rates["products"] == bits / 8
    assert spoken["products"] == sum(math.ceil(bits * count / 8) for count in (128, 4096, 1, 1))
    assert spoken["seed"] == 16 * len(counts)


@pytest.mark.parametrize(
    ("depth", "first", "second"),
    [
        (
            1,
            "16d5192208046fe35816a4427972d823495bc2c13a91434689678affe882ce11",
            "bd06ff72d694976c62e29211bb8ae57c4ed9d091c93bcf24bac698a90462d2a1",
        ),
        (
            4,
            "2d592e62ee28c59ae1e5b39b1d23d6e6af98a8cf8f309d68a218f8f64bb59da4",
            "c6d117f044aa67e3fba5a7e2b3a83dbe57d9a0c1907271b8d13fbda0013b3347",
        ),
    ],
)
def test_the_wire_is_pinned(depth: int, first: str, second: str) -> None:
    *_, said = play(LAW, [70, 3], depth=depth)
    assert said._replace(second=[]).hash() == first
    assert said._replace(first=[]).hash() == second


def test_a_share_says_nothing_of_either_servers_bits() -> None:
    """With H2's bits all zero, each share is uniform in the ring, and so is what H2 is sent, bit by bit."""
    count, size = 8192, LAW.bits * 8192 // 8
    second = given(Stream(b"the other server").draw, size, bytes(size))
    (one,), (two,), (wanted,), said = play(LAW, [count], second=second)
    for share in (one, two):
        assert stats.kstest(share, stats.uniform(-(1 << 24), 1 << 25).cdf).pvalue > 1e-3
        assert abs(np.corrcoef(share, wanted)[0, 1]) < 4 / count**0.5
    payloads = [message.payload for message in said.first if message.kind == "products"]
    law, ones = transfer_noise._law(by_transfers(LAW, ring_bits=25)), np.zeros((LAW.bits, 24))
    for payload, (bits, part) in zip(payloads, transfer_noise._groups(LAW, count), strict=True):
        widths = law[1][bits]
        numbers = transfer_noise._unpacked(np.frombuffer(payload, np.uint8), widths, part.stop - part.start)
        ones[bits] += (numbers[:, None] >> np.arange(24, dtype=np.uint32)[:, None] & 1).sum(axis=2)
        assert (numbers >> widths[:, None] == 0).all()
    sent = ones[np.arange(24) < law[1][:, None]] / count
    assert len(sent) == law[1].sum()
    assert (abs(sent - 0.5) < 5 * 0.5 / count**0.5).all()


@pytest.mark.parametrize("widths", [[8, 8, 8], [16, 16], [9, 9, 9, 9], [24, 1, 7, 8, 9, 15, 16, 17, 23], [3]])
def test_numbers_are_packed_into_as_many_bits_as_they_have(widths: list[int]) -> None:
    wide = np.array(widths)
    numbers = np.random.default_rng(0).integers(1 << 32, size=(len(wide), 37), dtype=np.uint32)
    packed = transfer_noise._packed(numbers, wide)
    assert len(packed) == transfer_noise._packed_bytes(wide, 37) == -(-int(wide.sum()) * 37 // 8)
    found = transfer_noise._unpacked(packed, wide, 37)
    np.testing.assert_array_equal(found, numbers & ((1 << wide) - 1).astype(np.uint32)[:, None])
    packed[3] ^= 4
    assert (transfer_noise._unpacked(packed, wide, 37) != found).sum() == 1


def test_bad_input_is_named() -> None:
    def first(channel) -> None:
        server = transfer_noise.First(channel)
        with pytest.raises(
            _validate.InputError, match=f"count: expected at most {two_server_sum.LARGEST} coordinates a block"
        ):
            server.prepare(by_transfers(LAW, ring_bits=25), two_server_sum.LARGEST + 1)
        with pytest.raises(_validate.InputError, match="opening: expected one with binomial noise, got None"):
            server.prepare(two_server_sum.plain(ring_bits=25), 3)
        with pytest.raises(_validate.InputError, match=r"share: expected int64 \[3\]"):
            server.open(by_transfers(LAW, ring_bits=25), transfer_noise.Share(np.zeros(3, np.int64)), np.zeros(4, int))

    def second(channel) -> None:
        server = transfer_noise.Second(channel)
        with pytest.raises(_validate.InputError, match="count: expected a whole number >= 1, got 0"):
            server.prepare(by_transfers(LAW, ring_bits=25), 0)

    with pytest.raises(_validate.InputError, match="ring_bits: expected a whole number >= 7, got 6"):
        by_transfers(LAW, ring_bits=6)
    with pytest.raises(_validate.InputError, match="ring_bits: expected a whole number from 2 to 32, got 33"):
        by_transfers(LAW, ring_bits=33)
    in_process.together(in_process.channels(), first, second)
