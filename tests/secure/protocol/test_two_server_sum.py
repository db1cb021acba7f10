"""Tests that the shares' difference is opened with the noise of both servers' bits; lengths and wire are pinned."""

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from dpaudit import _validate
from dpaudit.secure.channel import Channel, ChannelError
from dpaudit.secure.crypto.shares import smod
from dpaudit.secure.noise import binomial, lookup
from dpaudit.secure.noise.lookup import Table
from dpaudit.secure.protocol import in_process, two_server_sum
from dpaudit.secure.protocol.two_server_sum import LARGEST, Evaluator, Garbler
from tests.secure import sessions
from tests.secure.sessions import Session

LAW = binomial.binomial(coins=7, step_bits=2)
NOISY = two_server_sum.noisy(LAW, ring_bits=25)
PLAIN = two_server_sum.plain(ring_bits=25)


def expected(session: Session, block: int, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    bits = session.first[block].bits(NOISY) ^ session.second[block].bits(NOISY)
    return smod(first - second + binomial.from_bits(LAW, bits.T), 1 << 24)


@pytest.mark.parametrize(("count", "depth"), [(1, 1), (7, 2), (65, 4), (4097, 1), (4097, 4)])
def test_what_is_opened_is_the_difference_and_the_noise_of_both(count: int, depth: int) -> None:
    blocks = [sessions.shares(seed, count, 25) for seed in range(2)]
    session = sessions.play(NOISY, blocks, depth=depth)
    for number, (first, second) in enumerate(blocks):
        wanted = expected(session, number, first, second)
        assert wanted.dtype == session.first[number].opened.dtype == session.second[number].opened.dtype
        np.testing.assert_array_equal(session.first[number].opened, wanted)
        np.testing.assert_array_equal(session.second[number].opened, wanted)
        assert number == 0 or (wanted != expected(session, 0, first, second)).any()


def test_a_step_of_two_blocks() -> None:
    count = LARGEST + 5
    first, second = sessions.shares(3, count, 25)
    parts = list(NOISY.blocks(count))
    session = sessions.play(NOISY, [(first[part], second[part]) for part in parts])
    assert [len(side.opened) for side in session.first] == [LARGEST, 5]
    for number, part in enumerate(parts):
        np.testing.assert_array_equal(
            session.first[number].opened, expected(session, number, first[part], second[part])
        )


@pytest.mark.parametrize("count", [1, 4097])
def test_the_plain_opening_is_the_difference(count: int) -> None:
    first, second = sessions.shares(4, count, 25)
    session = sessions.play(PLAIN, [(first, second)], depth=4)
    for side in (session.first[0], session.second[0]):
        np.testing.assert_array_equal(side.opened, smod(first - second, 1 << 24))


def test_the_paper_s_table_is_looked_up_at_both_seeds() -> None:
    values = lookup.table(3.0)
    kind = two_server_sum.by_table(Table(values), ring_bits=25)
    first, second = sessions.shares(7, 65, 25)
    session = sessions.play(kind, [(first, second)])
    one, two = (side[0].bits(kind).T @ (1 << np.arange(16)) for side in (session.first, session.second))
    wanted = smod(first - second + lookup.from_seeds(values, one, two), 1 << 24)
    for side in (session.first[0], session.second[0]):
        np.testing.assert_array_equal(side.opened, wanted)
    assert (wanted != smod(first - second + lookup.from_seeds(values, one, one), 1 << 24)).any()


def test_another_constant_shows() -> None:
    """The evaluator assumes noise of another reach: all values are off by the difference."""
    first, second = sessions.shares(5, 65, 25)
    wrong = binomial.binomial(coins=7, step_bits=3)
    session = sessions.play(NOISY, [(first, second)], meant=NOISY._replace(noise=wrong))
    off = smod(session.first[0].opened - expected(session, 0, first, second), 1 << 24)
    assert (off == LAW.reach - wrong.reach).all()


@pytest.mark.parametrize(("kind", "depth"), [(NOISY, 1), (NOISY, 2), (NOISY, 4), (PLAIN, 1)])
def test_lengths_are_those_that_are_told(kind: two_server_sum.Opening, depth: int) -> None:
    counts = [128, 4097, 1]
    session = sessions.play(kind, [sessions.shares(6, count, 25) for count in counts], depth=depth)
    spoken = Counter[str]()
    for name, length in session.said.lengths():
        spoken[name] += length
    per_coordinate = kind.payload_bytes(depth)
    padded = [64 * math.ceil(kind.mixed * count / 64) for count in counts]  # transfers are made 64 at a time
    wanted = {name: sum(math.ceil(count * rate) for count in counts) for name, rate in per_coordinate.items()}
    wanted |= {"cot.corrections": sum(padded) * 16 // depth, "seed": 16 * len(counts)}
    assert 0 <= wanted["cot.corrections"] - sum(counts) * per_coordinate["cot.corrections"] < len(counts) * 64 * 16
    session_start = {"base-ot.sender": 65, "base-ot.receiver": 128 * 32}
    if depth > 1:
        session_start |= {"ggm.sums": (depth - 1) * 128 // depth * 32}
    assert spoken == wanted | session_start
    assert [len(table) for table in session.payloads("tables")] == [
        32 * kind.gates.ands * count for count in (128, 4096, 1, 1)
    ]


@pytest.mark.parametrize(
    ("kind", "depth", "first", "second"),
    [
        (
            NOISY,
            1,
            "5737e9d9ccfffac89cf1e8e0278815e314e6c02d9493a6b4efa98820dd4a68bd",
            "e2f8a296a14932a545abe0274a2a430400b97133cef08f65de848d420920518e",
        ),
        (
            NOISY,
            4,
            "a875c232cfbeb7cb2b2a2c7319380ccb78b3469868876c25425f9d2c624850ef",
            "89514a7a5164d74d1fe664a592843db3337518cad597e4f9fb0069409075332d",
        ),
        (
            PLAIN,
            1,
            "9c06ae2589eab2a874c26da52dd97e27bcf41abd332d33bc8e86b35f7fa5c8c1",
            "6a1fe7f6b3bc75bb047ee150381e7cdacc105520809a070cb9c2833648affb97",
        ),
    ],
)
def test_the_wire_is_pinned(kind: two_server_sum.Opening, depth: int, first: str, second: str) -> None:
    """Covers each direction, headers included; a change needs a new protocol version."""
    blocks = [sessions.shares(seed, 70, 25) for seed in range(2)]
    said = sessions.play(kind, blocks, depth=depth).said
    assert said._replace(second=[]).hash() == first
    assert said._replace(first=[]).hash() == second


def test_bad_input_is_named() -> None:
    share = np.zeros(3, np.int64)
    wanted = r"share: expected int64 \[3\] in \[-16777216, 16777216\), got "

    def first(channel: Channel) -> None:
        server = Garbler(channel)
        for bad in (0, -1, 2.5):
            with pytest.raises(_validate.InputError, match=f"count: expected a whole number >= 1, got {bad}"):
                server.prepare(NOISY, bad)  # pyright: ignore
        with pytest.raises(_validate.InputError, match="count: expected at most 32768 coordinates a block, got 32769"):
            server.prepare(NOISY, LARGEST + 1)
        prepared = server.prepare(NOISY, 3)
        for bad in (share[:2], share.astype(np.int32), share + (1 << 24)):
            with pytest.raises(_validate.InputError, match=wanted):
                server.open(NOISY, prepared, bad)

    def second(channel: Channel) -> None:
        server = Evaluator(channel)
        with pytest.raises(_validate.InputError, match="share: expected H2's share, whose bits are chosen before"):
            server.prepare(PLAIN, 3)
        with pytest.raises(_validate.InputError, match=wanted + r"int64 \[3\]"):
            server.prepare(PLAIN, 3, share - (1 << 24) - 1)
        prepared = server.prepare(NOISY, 3)
        for kind in (NOISY, PLAIN):
            with pytest.raises(_validate.InputError, match=wanted + r"int64 \[4\]"):
                server.open(kind, prepared, np.zeros(4, np.int64))

    in_process.together(in_process.channels(), first, second)
    with pytest.raises(_validate.InputError, match="bits: expected a whole number >= 6, got 5"):
        two_server_sum.noisy(LAW, ring_bits=5)
    with pytest.raises(_validate.InputError, match="dimension: expected a whole number >= 1, got 0"):
        next(PLAIN.blocks(0))


def test_a_block_s_tables_have_a_bound() -> None:
    kind = two_server_sum.by_table(Table(lookup.table(437.0)), ring_bits=17)
    parts = list(kind.blocks(21_258))
    assert [parts[0].start, parts[-1].stop] == [0, 21_258]
    assert all(one.stop == other.start for one, other in pairwise(parts))
    most = max(part.stop - part.start for part in parts)
    assert 1 << 27 < most * kind.payload_bytes(1)["tables"] <= 1 << 28
    assert len(list(NOISY.blocks(21_258))) == 1


def test_values_that_no_evaluator_opens_are_refused() -> None:
    def first(channel: Channel) -> None:
        server = Garbler(channel)
        prepared = server.prepare(NOISY, 3)
        server.open(NOISY, prepared, np.zeros(3, np.int64))

    def second(channel: Channel) -> None:
        Evaluator(channel).prepare(NOISY, 3)
        for kind, length in (("labels", 25 * 3 * 16), ("decoding", 10)):
            channel.receive(kind, length)
        channel.send("opened", np.array([0, 1 << 24, 0], "<i4"))

    with pytest.raises(ChannelError, match=r"'opened': values outside \[-16777216, 16777216\)"):
        in_process.together(in_process.channels(), first, second)
