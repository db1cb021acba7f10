"""Tests that owners whose integers are too long are named and left out, and the sum of the others is released."""

from pathlib import Path

import numpy as np
import pytest

from dpaudit import InputError
from dpaudit.secure.channel import ChannelError
from dpaudit.secure.protocol.agreement import Terms
from dpaudit.secure.service.owner import Owner
from tests.secure.servers import DIMENSION, OWNERS, Killed, play, reach, terms, total
from tests.secure.serving import owners, pair, until


def longest(mine: Terms, **more: int) -> np.ndarray:
    """Returns integers of exactly the largest norm that passes, or longer ones."""
    values = np.zeros(DIMENSION, np.int64)
    values[0] = mine.owner_examples * mine.levels
    for place, value in more.items():
        values[int(place[1:])] = value
    return values


@pytest.mark.parametrize(
    "long",
    [{"x1": 1}, {f"x{place}": -(1 << 24) for place in range(DIMENSION)}, {f"x{place}": 1 << 13 for place in range(7)}],
    ids=["just outside", "the largest of the ring", "squares that are 0 in the ring"],
)
@pytest.mark.parametrize("protocol", ["circuit", "transfers"])
def test_an_owner_that_is_too_long_is_named_and_left_out(tmp_path: Path, protocol: str, long: dict[str, int]) -> None:
    mine, lines = terms(protocol=protocol, owner_examples=10 if "x1" in long else 1, least_owners=2), []
    if long.get("x1") == 1 << 13:
        mine = mine._replace(levels=1000)
    sent = {"alice": longest(mine), "bob": longest(mine, **long), "carol": -np.arange(DIMENSION)}
    with pair(tmp_path, mine, lines.append) as both, owners(both, mine, *OWNERS) as all_of:
        for step in (1, 2):
            for one, name in zip(all_of, OWNERS, strict=True):
                one.submit(step, sent[name])
            for one in all_of:
                opened = one.result(step)
                assert opened.owners == ("alice", "carol")
                assert (np.abs(opened.values - sent["alice"] - sent["carol"]) <= reach(mine)).all()
        assert [server.figures()["submissions_refused"] for server in both] == [2, 2]
    wanted = f"expected integers of at most the norm of {mine.owner_examples} clipped examples"
    told = f"{wanted}, longer ones are refused of: bob"
    assert [lines.count(f"step {step}: {told}") for step in (1, 2)] == [2, 2]


def test_without_the_check_anything_is_added(tmp_path: Path) -> None:
    mine = terms("plain", least_owners=2)
    with pair(tmp_path, mine, lambda line: None) as both, owners(both, mine, *OWNERS) as all_of:
        for one in all_of:
            one.submit(1, np.full(DIMENSION, 5_000_000))
        np.testing.assert_array_equal(all_of[0].result(1).values, np.full(DIMENSION, 15_000_000))


def test_where_all_must_take_part_it_is_told_and_may_send_shorter_ones(tmp_path: Path) -> None:
    mine, lines = terms("plain", owner_examples=5), []
    with pair(tmp_path, mine, lines.append) as both, owners(both, mine, *OWNERS) as all_of:
        for one in all_of:
            one.submit(1, longest(mine, x3=one._name == "bob"))
        refused = f"values: expected integers of L2 norm at most that of {mine.owner_examples} clipped examples"
        until(lambda: sum("bob" in line for line in lines) == 2)
        with pytest.raises(InputError, match=rf"^h[12]: {refused}, got longer ones, by the check of both servers$"):
            all_of[1].result(1)
        with pytest.raises(InputError, match=f"^h1: {refused}"):
            all_of[1].submit(1, longest(mine, x3=1))
        address = tuple(f"127.0.0.1:{server.port}" for server in both)
        other = Owner("bob", mine, (address[0], address[1]))
        other.submit(1, longest(mine))
        np.testing.assert_array_equal(other.result(1).values, 3 * longest(mine))
        other.close()


@pytest.mark.parametrize("side", [0, 1])
def test_a_fault_in_the_check_opens_nothing_and_the_next_session_does(tmp_path: Path, side: int) -> None:
    mine = terms(owner_examples=5, protocol="transfers")
    whole = play(tmp_path / "whole", (mine, mine), until=1)
    kinds = [message.kind for message in whole[side].said]
    numbers = [number for number, kind in enumerate(kinds) if kind.startswith("norm.")]
    for number in {numbers[0], numbers[len(numbers) // 2], numbers[-1]}:
        folder = tmp_path / f"{number}"
        ended = play(folder, (mine, mine), until=1, changed=(side, lambda wire, last=number: Killed(wire, last)))
        assert all(isinstance(one.fault, ChannelError) for one in ended)
        assert [one.releases for one in ended] == [0, 0]
        again = play(folder, (mine, mine), until=1)
        assert [one.fault for one in again] == [None, None]
        assert (np.abs(again[0].steps[1].values - total(1)) <= reach(mine)).all()
