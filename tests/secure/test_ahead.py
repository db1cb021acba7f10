"""Blocks made ahead: a step opens one that an earlier session made, once, and no fault lets one be used again."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from dpaudit import InputError
from dpaudit.secure.channel import ChannelError, Wire
from tests.secure import servers
from tests.secure.servers import Ended, play, terms, total

AHEAD = terms(ahead=2)
LABELS = {"labels", "tables"}


class Killed:
    """A wire that ends with the message of this number."""

    def __init__(self, wire: Wire, number: int) -> None:
        self._wire, self._left = wire, number

    def write(self, header: bytes, payload: memoryview, seconds: float) -> None:
        self._left -= 1
        if self._left < 0:
            self._wire.close()
        self._wire.write(header, payload, seconds)

    def read_into(self, out: memoryview, seconds: float) -> None:
        self._wire.read_into(out, seconds)

    def close(self) -> None:
        self._wire.close()


def count(ended: Ended, kind: str) -> int:
    return sum(message.kind == kind for message in ended.said)


def kept(folder: Path) -> list[list[str]]:
    """Names of both servers' blocks."""
    blocks = (folder / role / "ahead" / str(servers.DIMENSION) for role in ("h1", "h2"))
    return [sorted(path.name for path in one.iterdir()) for one in blocks]


def right(ended: tuple[Ended, Ended], steps: int) -> None:
    assert [one.fault for one in ended] == [None, None]
    for step in range(1, steps + 1):
        first, second = (one.steps[step].values for one in ended)
        np.testing.assert_array_equal(first, second)
        assert (np.abs(first - total(step)) <= servers.reach(AHEAD)).all()
        assert (first != total(step)).any()


def test_a_step_opens_what_an_earlier_session_made(tmp_path: Path) -> None:
    right(first := play(tmp_path, (AHEAD, AHEAD), until=1), 1)
    assert (count(first[0], "tables"), count(first[0], "labels")) == (2, 1)
    made, same = kept(tmp_path)
    assert made == same
    assert len(made) == 1
    right(then := play(tmp_path, (AHEAD, AHEAD), until=2), 2)
    assert (count(then[0], "tables"), count(then[0], "labels")) == (1, 1)
    assert set(kept(tmp_path)[0]).isdisjoint(made)  # the older one was opened


def test_a_block_that_one_server_has_lost_the_other_burns(tmp_path: Path) -> None:
    play(tmp_path, (AHEAD, AHEAD), until=1)
    (lost,) = (tmp_path / "h2" / "ahead" / str(servers.DIMENSION)).iterdir()
    lost.unlink()
    right(then := play(tmp_path, (AHEAD, AHEAD), until=2), 2)
    assert count(then[0], "tables") == 2


def test_a_torn_block_ends_the_session_and_is_burnt(tmp_path: Path) -> None:
    play(tmp_path, (AHEAD, AHEAD), until=1)
    (torn,) = (tmp_path / "h1" / "ahead" / str(servers.DIMENSION)).iterdir()
    torn.write_bytes(b"")
    ended = play(tmp_path, (AHEAD, AHEAD), until=2)
    assert "it is now burnt" in str(ended[0].fault)
    assert isinstance(ended[1].fault, ChannelError)
    right(play(tmp_path, (AHEAD, AHEAD), until=2), 2)


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
