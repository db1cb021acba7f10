"""Tests blocks prepared in advance: a step opens a block of an earlier session once, and no fault reuses one."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from dpaudit import InputError
from dpaudit.secure.channel import HEADER, ChannelError, Wire
from dpaudit.secure.protocol.prepared import WAY
from tests.secure import servers
from tests.secure.servers import Ended, Killed, play, terms, total

AHEAD = terms(ahead=2)
LABELS = {"labels", "tables"}


def count(ended: Ended, kind: str) -> int:
    return sum(message.kind == kind for message in ended.said)


def kept(folder: Path) -> list[list[str]]:
    """Lists the names of both servers' blocks."""
    blocks = (folder / role / "ahead" / str(servers.DIMENSION) for role in ("h1", "h2"))
    return [sorted(path.name for path in one.glob("*.block")) for one in blocks]


def put_back(folder: Path, copy: Path, role: str) -> None:
    """Restores one server's state from a copy."""
    shutil.rmtree(folder / role)
    shutil.copytree(copy / role, folder / role)


class Logless:
    """A wire of H2 that puts a folder in the place of one of its logs as soon as it has said what shares it holds."""

    def __init__(self, wire: Wire, log: Path) -> None:
        self._wire, self._log = wire, log
        self.read_into, self.close = wire.read_into, wire.close

    def write(self, header: bytes, payload: memoryview, seconds: float) -> None:
        if HEADER.unpack(header)[0].startswith(b"held"):
            self._log.rename(self._log.with_name("kept"))
            self._log.mkdir()
        self._wire.write(header, payload, seconds)


def right(ended: tuple[Ended, Ended], steps: int) -> None:
    assert [one.fault for one in ended] == [None, None]
    for step in range(1, steps + 1):
        first, second = (one.steps[step].values for one in ended)
        np.testing.assert_array_equal(first, second)
        assert (np.abs(first - total(step)) <= servers.reach(AHEAD)).all()
        assert (first != total(step)).any()


def test_a_step_opens_what_an_earlier_session_made(tmp_path: Path) -> None:
    right(first := play(tmp_path, (AHEAD, AHEAD), until=1), 1)
    assert (count(first[0], "tables"), count(first[0], "labels")) == (3, 1)
    made, same = kept(tmp_path)
    assert made == same
    assert len(made) == 2
    right(then := play(tmp_path, (AHEAD, AHEAD), until=2), 2)
    assert (count(then[0], "tables"), count(then[0], "labels")) == (1, 1)
    left, new = kept(tmp_path)[0]
    assert left == made[1]  # the older one was opened
    assert new > left


def test_a_block_that_one_server_has_lost_the_other_burns(tmp_path: Path) -> None:
    play(tmp_path, (AHEAD, AHEAD), until=1)
    for lost in (tmp_path / "h2" / "ahead" / str(servers.DIMENSION)).glob("*.block"):
        lost.unlink()
    right(then := play(tmp_path, (AHEAD, AHEAD), until=2), 2)
    assert count(then[0], "tables") == 3


@pytest.mark.parametrize("role", ["h1", "h2"])
@pytest.mark.parametrize("place", [0, 40, -1, None], ids=["made for", "identity", "tag", "torn"])
def test_a_changed_block_is_found_before_it_is_used(tmp_path: Path, role: str, place: int | None) -> None:
    """The session ends, or both servers discard the block when they compare, and the step uses another one."""
    play(tmp_path, (AHEAD, AHEAD), until=1)
    wrong = min((tmp_path / role / "ahead" / str(servers.DIMENSION)).glob("*.block"))
    content = bytearray(wrong.read_bytes())
    if place is None:
        content = content[:1000]
    else:
        content[place] ^= 1
    wrong.write_bytes(content)
    ended = play(tmp_path, (AHEAD, AHEAD), until=2)
    if place != 40:
        faults: dict[str, str] = dict(zip(servers.SERVERS, (str(one.fault) for one in ended), strict=True))
        assert "it is now used up" in faults.pop(role)
        assert "the peer has closed the channel" in faults.popitem()[1]
        side, first = {"h1": (0, "labels"), "h2": (1, "opened")}[role]
        assert not count(ended[side], first)  # the first message for which it would have been used
        assert [one.steps.keys() for one in ended] == [{1}, {1}]
    right(play(tmp_path, (AHEAD, AHEAD), until=2), 2)
    assert wrong.name not in kept(tmp_path)[0] + kept(tmp_path)[1]


@pytest.mark.parametrize("role", ["h1", "h2"])
@pytest.mark.parametrize("steps", [1, 2])
def test_a_state_that_was_put_back_is_refused_and_may_join_anew(tmp_path: Path, role: str, steps: int) -> None:
    """Restores a copy made after step 1 when ``steps`` more are done; two openings of one block must not happen."""
    play(tmp_path, (AHEAD, AHEAD), until=1)
    shutil.copytree(tmp_path / role, tmp_path / "copy" / role)
    play(tmp_path, (AHEAD, AHEAD), until=1 + steps)
    put_back(tmp_path, tmp_path / "copy", role)
    for ended in (play(tmp_path, (AHEAD, AHEAD), until=4), play(tmp_path, (AHEAD, AHEAD), until=4)):  # and again
        for one in ended:
            assert isinstance(one.fault, InputError)
            assert WAY in str(one.fault)
            assert "\n" not in str(one.fault)
            assert {message.kind for message in one.said}.isdisjoint(LABELS)
        if steps == 1:
            assert str(ended[0].fault) == str(ended[1].fault)
            assert str(ended[0].fault).startswith(f"{role}'s blocks: expected block 1 spent, as ")
    right(joined := play(tmp_path, (AHEAD, AHEAD), until=4, rejoin=role), 4)
    assert {message.kind for message in joined[0].said} >= {"pair", "base-ot.receiver", "tables"}
    assert [one.releases for one in joined] == [4, 4]  # those that the copy did not know of, too
    assert count(joined[0], "tables") == 2 + (4 - 1 - steps)  # none was kept


def test_a_copy_put_back_at_any_moment_gives_no_label_away(tmp_path: Path) -> None:
    """Restores either server to any moment: it is refused, or right with secrets that nobody has seen."""
    states = [tmp_path / "state"]
    said: list[set[bytes]] = []
    for until in (1, 2, 3):
        first, _ = play(states[0], (AHEAD, AHEAD), until=until)
        said.append({message.payload for message in first.said if message.kind in LABELS})
        shutil.copytree(states[0], tmp_path / f"after {until}")
    seen = set().union(*said)
    refused = 0
    for role in servers.SERVERS:
        for moment in (1, 2, 3):
            folder = tmp_path / f"{role} {moment}"
            shutil.copytree(tmp_path / "after 3", folder)
            put_back(folder, tmp_path / f"after {moment}", role)
            ended = play(folder, (AHEAD, AHEAD), until=4)
            refused += all(isinstance(one.fault, InputError) for one in ended)
            if moment == 3:
                right(ended, 4)
            assert seen.isdisjoint(message.payload for message in ended[0].said if message.kind in LABELS)
    assert refused == 4


@pytest.mark.parametrize("protocol", ["circuit", "transfers"])
@pytest.mark.parametrize(("ahead", "log"), [(2, f"ahead/{servers.DIMENSION}/ledger"), (0, "begun")])
def test_h2_can_read_nothing_that_it_has_not_logged(tmp_path: Path, protocol: str, ahead: int, log: str) -> None:
    """H2 ends before it logs step 2. H1, put back to before, shall not open the block again, nor an uncounted sum."""
    mine = terms(ahead=ahead, protocol=protocol)
    right(play(tmp_path, (mine, mine), until=1), 1)
    shutil.copytree(tmp_path / "h1", tmp_path / "copy" / "h1")
    path = tmp_path / "h2" / log
    ended = play(tmp_path, (mine, mine), until=2, changed=(1, lambda wire: Logless(wire, path)))
    assert isinstance(ended[1].fault, IsADirectoryError)
    assert {message.kind for message in ended[0].said}.isdisjoint({"labels", "share"})
    path.rmdir()
    path.with_name("kept").rename(path)
    put_back(tmp_path, tmp_path / "copy", "h1")
    right(again := play(tmp_path, (mine, mine), until=2), 2)
    assert [one.releases for one in again] == [2, 2]


def test_a_state_of_another_pair_is_refused(tmp_path: Path) -> None:
    """The other H1 is an empty stand-by, or one of another training with the same terms."""
    for folder in ("one", "other"):
        right(play(tmp_path / folder, (AHEAD, AHEAD), until=1), 1)
    for copy, told in (("other", "got others"), ("none", "got others (h1's is empty)")):
        shutil.copytree(tmp_path / "one", tmp_path / copy / "with")
        shutil.rmtree(tmp_path / copy / "with" / "h1")
        if copy == "other":
            shutil.copytree(tmp_path / "other" / "h1", tmp_path / copy / "with" / "h1")
        for one in play(tmp_path / copy / "with", (AHEAD, AHEAD), until=2):
            assert str(one.fault) == f"states of h1 and h2: expected those of one training; {WAY}, {told}"
    right(play(tmp_path / "none" / "with", (AHEAD, AHEAD), until=2, rejoin="h1"), 2)
    right(play(tmp_path / "one", (AHEAD, AHEAD), until=2), 2)


def test_a_log_that_is_none_is_refused_until_both_join_anew(tmp_path: Path) -> None:
    play(tmp_path, (AHEAD, AHEAD), until=1)
    (log,) = (tmp_path / "h2" / "ahead" / str(servers.DIMENSION)).glob("ledger")
    log.write_bytes(log.read_bytes().replace(b"spent", b"spelt"))
    assert str(play(tmp_path, (AHEAD, AHEAD), until=2)[1].fault).startswith(
        "ledger: expected lines of blocks that are"
    )
    right(play(tmp_path, (AHEAD, AHEAD), until=2, rejoin="h1"), 2)


@pytest.mark.integration
def test_no_label_is_used_twice_whatever_breaks_off(tmp_path: Path) -> None:
    whole = play(tmp_path / "whole", (AHEAD, AHEAD), until=2)

    def broken(where: tuple[int, int]) -> None:
        side, number = where
        folder = tmp_path / f"{side}-{number}"
        ended = play(folder, (AHEAD, AHEAD), until=2, changed=(side, lambda wire: Killed(wire, number)))
        assert all(isinstance(one.fault, ChannelError) for one in ended)
        again = play(folder, (AHEAD, AHEAD), until=2)
        right(again, 2)
        first, then = ({m.payload for one in both for m in one.said if m.kind in LABELS} for both in (ended, again))
        assert not first & then

    with ThreadPoolExecutor(8) as pool:
        places = [(side, number) for side in (0, 1) for number in range(side, len(whole[side].said), 2)]
        assert len(list(pool.map(broken, places))) == len(places) > 15


def test_a_sum_without_noise_has_nothing_ahead() -> None:
    with pytest.raises(
        InputError, match='ahead: expected none in mode "plain", whose blocks depend on a share, got 1'
    ):
        terms("plain", ahead=1)
