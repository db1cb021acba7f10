"""Tests that terms state everything that decides the noise, and are compared and exchanged without trust."""

import struct
from typing import Any

import numpy as np
import pytest

from dpaudit import _validate
from dpaudit.secure.channel import Channel, ChannelError
from dpaudit.secure.circuits import circuit
from dpaudit.secure.noise import lookup
from dpaudit.secure.noise.binomial import Binomial
from dpaudit.secure.noise.lookup import Table
from dpaudit.secure.protocol import agreement, in_process
from dpaudit.secure.protocol.agreement import LONGEST, MOST_COORDINATES
from dpaudit.secure.protocol.two_server_sum import KEPT
from dpaudit.secure.service import certificates
from tests.secure.servers import terms


def test_terms_state_the_binomial_that_is_opened() -> None:
    made = terms(noise_multiplier=2.0, coins=31, clip_norm=0.5)
    law = made.opening().noise
    assert isinstance(law, Binomial)
    assert (law.coins, law.step_bits) == (made.coins, made.step_bits)
    assert made.coins == 31
    assert 2.0 <= law.std / made.levels < 2.01  # in clip norms
    assert made.scale.unit == 0.5 / made.levels
    assert 30 * made.levels + law.reach < 1 << 24  # the sum and its noise stay in the ring
    assert (made.mode, made.noise, made.table_std) == ("noisy", "binomial", 0.0)


def test_terms_state_the_table_that_is_opened() -> None:
    made = terms(noise="table", ring_bits=12)
    assert made.table_std == made.levels * 1.0
    law = made.opening().noise
    assert isinstance(law, Table)
    assert law.values.tolist() == lookup.table(made.levels * 1.0).tolist()
    assert (made.coins, made.step_bits) == (0, 0)


def test_plain_terms_have_no_noise_and_the_finest_scale() -> None:
    made = terms("plain")
    assert (made.noise, made.coins, made.step_bits, made.table_std) == ("none", 0, 0, 0.0)
    assert made.opening().noise is None
    assert 30 * made.levels < 1 << 24 <= 30 * (made.levels + 1)


def test_the_circuit_of_the_terms_is_that_of_their_opening() -> None:
    several = [terms(), terms("plain"), terms(coins=31), terms(noise="table", ring_bits=12)]
    assert [made.circuit for made in several] == [circuit.digest(made.opening().gates).hex() for made in several]
    without = [terms(protocol="transfers"), terms(protocol="transfers", coins=31)]
    assert [made.circuit for made in without] == [made.opening().digest().hex() for made in without]
    assert len({made.circuit for made in several + without}) == 6


def test_binomial_noise_is_made_by_transfers_unless_told_otherwise() -> None:
    for mode, change, protocol in (
        ("noisy", {}, "transfers"),
        ("noisy", {"noise": "table", "ring_bits": 12}, "circuit"),
        ("plain", {}, "circuit"),
    ):
        assert terms(mode, **{"protocol": None} | change).protocol == protocol


def test_owners_are_the_same_in_any_order() -> None:
    assert terms(owners=("carol", "alice", "bob")) == terms()
    assert terms().least_owners == 3
    assert terms(least_owners=2).least_owners == 2


@pytest.mark.parametrize(
    ("mode", "change", "message"),
    [
        ("noisy", {"owners": ()}, "owners: expected one name each, of at least one owner, got none"),
        ("noisy", {"owners": ("bob", "bob")}, "owners: expected one name each, of at least one owner, got bob, bob"),
        ("noisy", {"least_owners": 4}, "least_owners: expected at most 3, the number of owners, got 4"),
        ("noisy", {"least_owners": 0}, "least_owners: expected a whole number >= 1, got 0"),
        ("noisy", {"depth": 3}, "depth: expected 1, 2 or 4, got 3"),
        ("noisy", {"noise_multiplier": None}, "noise_multiplier: expected a finite number > 0, got None"),
        ("noisy", {"noise": "gaussian"}, "noise: expected one of binomial, table, got gaussian"),
        ("noisy", {"ahead": -1}, "ahead: expected a whole number >= 0, got -1"),
        (
            "noisy",
            {"ahead": 1 << 21},
            "ahead: expected at most 1048576, in blocks for all of these steps, got 2097152",
        ),
        ("noisy", {"dimension": 0}, "dimension: expected a whole number >= 1, got 0"),
        ("plain", {"dimension": MOST_COORDINATES + 1}, "dimension: expected at most 536838143, got 536838144"),
        ("noisy", {"protocol": "trust"}, "protocol: expected one of circuit, transfers, got trust"),
        ("plain", {"protocol": "transfers"}, "protocol: expected circuit, except for binomial noise, got transfers"),
        (
            "noisy",
            {"protocol": "transfers", "noise": "table", "ring_bits": 12},
            "protocol: expected circuit, except for binomial noise, got transfers",
        ),
        ("silent", {}, "mode: expected one of noisy, plain, got silent"),
        ("plain", {"noise_multiplier": 1.0}, 'noise_multiplier: expected none in mode "plain", got 1.0'),
        ("plain", {"noise": "table"}, 'noise: expected none in mode "plain", got table'),
        ("plain", {"ahead": 1}, 'ahead: expected none in mode "plain", whose blocks depend on a share, got 1'),
    ],
)
def test_terms_that_cannot_be_are_refused(mode, change, message) -> None:
    with pytest.raises(_validate.InputError) as refused:
        terms(mode, **change)
    assert str(refused.value) == message


def test_numbers_of_numpy_are_stated_as_python_s() -> None:
    given: dict[str, Any] = {
        "dimension": 4,
        "examples": 30,
        "owner_examples": 2,
        "depth": 2,
        "ahead": 1,
        "least_owners": 2,
    }
    numpys: dict[str, Any] = {name: np.int64(value) for name, value in given.items()}
    assert agreement.stated(terms(**numpys).statement()) == agreement.stated(terms(**given).statement())
    table = terms(noise="table", ring_bits=12, noise_multiplier=np.float32(1))
    assert agreement.stated(table.statement()) == agreement.stated(terms(noise="table", ring_bits=12).statement())


def test_a_sum_of_the_most_coordinates_fits_into_a_message() -> None:
    for more, longest in ((0, 1 << 31), (1, (1 << 31) + 4)):
        limits = dict(certificates.options(KEPT.itemsize * (MOST_COORDINATES + more)))
        assert longest - 4 <= limits["grpc.max_receive_message_length"] < longest


def test_the_first_term_that_differs_is_named_with_both_values() -> None:
    mine = terms()
    theirs = agreement.understood(agreement.stated(mine.statement()))
    agreement.same(mine, theirs)
    with pytest.raises(_validate.InputError, match=r"^terms: circuit: expected [0-9a-f]{64} as here, got 00$"):
        agreement.same(mine, theirs | {"circuit": "00"})
    with pytest.raises(_validate.InputError, match=f"^terms: step_bits: expected {mine.step_bits} as here, got 9$"):
        agreement.same(mine, theirs | {"step_bits": 9, "circuit": "00"})
    with pytest.raises(_validate.InputError, match=r"^terms: version: expected 7 as here, got None$"):
        agreement.same(mine, {})


def test_the_version_before_is_refused_in_one_line() -> None:
    """That version stated the names of all owners and began with the same first message."""
    mine = terms()
    with pytest.raises(_validate.InputError, match=r"^terms: version: expected 7 as here, got 1$"):
        agreement.same(mine, mine._asdict() | {"version": 1})


def test_a_statement_is_short_however_many_owners_there_are() -> None:
    names = [f"{'a' * 58}{number:05}" for number in range(agreement.MOST_OWNERS)]
    many = terms(owners=names)
    assert len(agreement.stated(many.statement())) < 1_000
    other = terms(owners=["b", *names[1:]])
    with pytest.raises(
        _validate.InputError, match=r"^terms: owners: expected 10000 of SHA-256 .* got 10000 of SHA-256 "
    ):
        agreement.same(many, other.statement())
    with pytest.raises(_validate.InputError, match=r"^owners: expected at most 10000, got 10001$"):
        terms(owners=[*names, "b"])


def test_owners_as_bits() -> None:
    names = [f"o{number}" for number in range(19)]
    mine = terms(owners=names)
    for some in ((), mine.owners, mine.owners[::3], mine.owners[-1:]):
        assert mine.named(mine.names(some)) == some
    assert [mine.place(name) for name in mine.owners] == list(range(19))
    assert [mine.place(name) for name in ("", "a", "o1 ", "o20", "z")] == [None] * 5
    with pytest.raises(_validate.InputError, match=r"^owners: expected bits of 19, got 2 bytes$"):
        mine.named(b"12")
    listed = r"o0, o1, o10, o11, o12, o13, o14, o15, o16, o17 and 9 others"
    with pytest.raises(_validate.InputError, match=rf"^name: expected one of {listed}, got bob$"):
        mine.owner(name="bob")


@pytest.mark.parametrize(
    ("size", "statement", "message"),
    [
        (LONGEST + 1, b"", "hello: expected at most 65536 bytes, 65537 were announced"),
        (0, b"", "hello: expected at most 65536 bytes, 0 were announced"),
        (2, b"[]", "hello: statement: expected a JSON object, got "),
        (2, b"{]", "hello: statement: expected a JSON object, got "),
    ],
)
def test_a_statement_that_is_none_ends_the_channel(size, statement, message) -> None:
    def honest(channel: Channel) -> str:
        with pytest.raises(ChannelError) as refused:
            agreement.exchange(channel, "hello", {"a": 1})
        with pytest.raises(ChannelError):
            channel.send("more", b"")
        return str(refused.value)

    def other(channel: Channel) -> None:
        channel.send("hello.size", struct.pack("<I", size))
        if statement:
            channel.send("hello", statement)
        length = len(agreement.stated({"a": 1}))
        assert channel.receive("hello.size", 4).tobytes() == struct.pack("<I", length)
        assert agreement.understood(channel.receive("hello", length).tobytes()) == {"a": 1}

    said, _ = in_process.together(in_process.channels(), honest, other)
    assert said.startswith(message)
