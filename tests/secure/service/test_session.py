"""Tests steps between two servers: what they open, that they agree first, and a fault in every message."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from dpaudit import _validate
from dpaudit.secure.channel import ChannelError, Wire
from dpaudit.secure.crypto.randomness import Stream
from dpaudit.secure.protocol import agreement
from dpaudit.secure.protocol.agreement import Terms
from tests.secure import servers
from tests.secure.servers import play, terms, total
from tests.secure.transcript import Transcript

Frames = list[tuple[bytes, bytes]]

FIRST = ["terms.size", "terms", "pair", "base-ot.receiver"]
SECOND = ["terms.size", "terms", "pair", "base-ot.sender", "cot.corrections", "step", "held", "begun", "opened"]
KINDS = {  # what each server sends in a session of one step with noise, in order
    "circuit": ([*FIRST, "seed", "tables", "step", "held", "labels", "decoding"], SECOND),
    "transfers": ([*FIRST, "seed", "products", "step", "held", "share"], SECOND),
}
PLAIN = (
    [*FIRST, "step", "held", "seed", "tables", "labels", "decoding"],
    [*SECOND[:4], "step", "held", *SECOND[4:5], "begun", "opened"],
)
TELLING = {"circuit": "labels", "transfers": "share"}  # from this message on H2 can read the sum


class _Faulty:
    """A wire that replaces one message by others, perhaps together with the next one, or that ends there."""

    def __init__(self, wire: Wire, number: int, change: Callable[[Frames], Frames] | None, after: bool) -> None:
        self._wire, self._number, self._change, self._after = wire, number, change, after
        self._kept: Frames = []
        self._written = 0
        self.read_into, self.close = wire.read_into, wire.close

    def write(self, header: bytes, payload: memoryview, seconds: float) -> None:
        number, frame = self._written, (header, bytes(payload))
        self._written += 1
        if number < self._number or (number > self._number and not self._kept and self._change is not None):
            self._wire.write(header, payload, seconds)
            return
        if self._change is None:
            self._wire.close()
            raise ConnectionError
        self._kept.append(frame)
        if len(self._kept) == 1 + self._after:
            for changed, part in self._change(self._kept):
                self._wire.write(changed, memoryview(part), seconds)
            self._kept = []


def _late(frames: Frames) -> Frames:
    time.sleep(1.2 * DEADLINE)
    return frames


DEADLINE = 0.5  # seconds, where a fault leaves the other side waiting
HANGING = ("truncated", "lost", "reordered", "late")
SECRET = ("seed", "tables", "labels", "products", "share", "base-ot.sender", "base-ot.receiver", "cot.corrections")
FAULTS: dict[str, tuple[Callable[[Frames], Frames] | None, bool]] = {  # what becomes of it; whether the next is needed
    "killed": (None, False),
    "truncated": (lambda frames: [(frames[0][0], frames[0][1][:-1])], False),
    "lost": (lambda frames: [], False),
    "twice": (lambda frames: frames * 2, False),
    "reordered": (lambda frames: frames[::-1], True),
    "late": (_late, False),
}


@pytest.mark.parametrize(("mode", "protocol"), [("noisy", "circuit"), ("noisy", "transfers"), ("plain", "circuit")])
def test_the_sum_is_opened_and_recorded_by_both(tmp_path, mode, protocol):
    mine = terms(mode, protocol=protocol)
    ended = first, second = play(tmp_path, (mine, mine), until=2)
    assert (first.fault, second.fault) == (None, None)
    for one, kinds in zip(ended, PLAIN if mode == "plain" else KINDS[protocol], strict=True):
        assert [message.kind for message in one.said][: len(kinds)] == kinds
    for step in (1, 2):
        one, other = first.steps[step], second.steps[step]
        np.testing.assert_array_equal(one.values, other.values)
        assert one[1:] == other[1:] == (servers.OWNERS, step)
        assert (np.abs(one.values - total(step)) <= servers.reach(mine)).all()
        assert np.array_equal(one.values, total(step)) == (mode == "plain")


@pytest.mark.parametrize(
    ("protocol", "ahead", "pin"),
    [
        ("circuit", 0, "e16cfb73e8239317900a6972e17870c823486e0e6af945579faf6ba5bfa8f431"),
        ("circuit", 1, "fbd63e3fd02cb55c51c3293c8e2f36345747948eff68f2e6cb78ffe710dc4ed3"),
        ("transfers", 0, "f2d19ebe256d0e9f7341a435369bc53b42ec222984c878f00cff7aa438a6b96b"),
        ("transfers", 1, "c2da68288e4219773cdcbe1e8c09586ea18e0dc285495741026dffed63e09cba"),
    ],
)
def test_all_that_servers_say_is_pinned(tmp_path, protocol, ahead, pin):
    """Secrets are fixed. Another hash is another wire format, which needs another ``agreement.VERSION``."""
    mine = terms(ahead=ahead, protocol=protocol)
    sources = Stream(b"the first server").draw, Stream(b"the other server").draw
    first, second = play(tmp_path, (mine, mine), until=2, sources=sources)
    assert (first.fault, second.fault) == (None, None)
    assert agreement.VERSION == 7
    assert Transcript(first.said, second.said).hash() == pin


SHARED = len(FIRST)  # messages before the first step, which do not depend on the protocol
TOGETHER = 3  # messages that go wrong one after another in sessions of the same two servers


@pytest.mark.integration
@pytest.mark.parametrize("protocol", KINDS)
@pytest.mark.parametrize("name", FAULTS)
def test_each_message_of_a_step_goes_wrong(tmp_path, name, protocol):
    every = [range(SHARED * (protocol != "circuit"), len(kinds)) for kinds in KINDS[protocol]]
    some = [(side, own[i : i + TOGETHER]) for side, own in enumerate(every) for i in range(0, len(own), TOGETHER)]
    with ThreadPoolExecutor(8) as pool:
        broken = pool.map(lambda where: _some_go_wrong(tmp_path / f"{where}", name, protocol, *where), some)
        assert sum(broken) == sum(map(len, every))


def _some_go_wrong(folder: Path, name: str, protocol: str, side: int, numbers: range) -> int:
    """Breaks one session after another, each at a message of its own, until one has begun to release; each time the
    session after the last one is whole.

    Returns:
      How many were broken.
    """
    ended, broken = [], 0
    for number in numbers:
        ended.append(_one_goes_wrong(folder / f"{broken}", name, protocol, side, number))
        begun = max(one.releases for one in ended[-1])
        if begun or number == numbers[-1]:
            _is_completed(folder / f"{broken}", terms(protocol=protocol), ended)
            broken, ended = broken + len(ended), []
    return broken


def _one_goes_wrong(folder: Path, name: str, protocol: str, side: int, number: int) -> tuple[servers.Ended, ...]:
    """Breaks a step, which fails on both sides in time or is complete."""
    mine, (change, after) = terms(protocol=protocol), FAULTS[name]
    faulty = side, lambda wire: _Faulty(wire, number, change, after)
    ended = play(folder, (mine, mine), until=2, changed=faulty, seconds=DEADLINE if name in HANGING else 60.0)
    for one in ended:
        assert isinstance(one.fault, ChannelError), (side, number, one.fault)
        assert "\n" not in str(one.fault)
        assert one.steps.keys() <= {1}
    told = any(message.kind == TELLING[protocol] for message in ended[0].said)
    assert told <= max(one.releases for one in ended) <= 1
    return ended


def _is_completed(folder: Path, mine: Terms, broken: list[tuple[servers.Ended, ...]]) -> None:
    """The next session opens both steps, has secrets of its own, and releases nothing anew that was opened before."""
    before = {step: opened.values for one in broken[-1] for step, opened in one.steps.items()}
    begun = max(one.releases for one in broken[-1])
    again = play(folder, (mine, mine), until=2)
    assert [one.fault for one in again] == [None, None]
    for step in (1, 2):
        np.testing.assert_array_equal(again[0].steps[step].values, again[1].steps[step].values)
        assert (np.abs(again[0].steps[step].values - total(step)) <= servers.reach(mine)).all()
    if before:
        np.testing.assert_array_equal(again[0].steps[1].values, before[1])  # the same output, no new release
    assert max(one.releases for one in again) == 2 + (begun and not before)
    secrets = [
        {said.payload for one in session for said in one.said if said.kind in SECRET} for session in (*broken, again)
    ]
    assert sum(map(len, secrets)) == len(set().union(*secrets))


@pytest.mark.parametrize(
    "change",
    [
        {"version": 1},
        {"mode": "plain"},
        {"noise": "table", "table_std": 3.0},
        {"protocol": "transfers"},
        {"circuit": "00" * 32},
        {"dimension": 8},
        {"owners": ("alice", "bob", "dave")},
        {"least_owners": 2},
        {"examples": 31},
        {"owner_examples": 30},
        {"clip_norm": 2.0},
        {"levels": 5},
        {"ring_bits": 26},
        {"coins": 255},
        {"step_bits": 4},
        {"table_std": 4.0},
        {"depth": 2},
        {"ahead": 1},
        {"epsilon": 2.0},
        {"delta": 1e-6},
        {"openings": 9},
    ],
    ids=lambda change: next(iter(change)),
)
def test_terms_that_differ_are_refused_by_name_before_any_secret(tmp_path, change):
    name = next(iter(change))
    mine = terms()
    theirs = mine._replace(**change)
    ended = play(tmp_path, (mine, theirs), until=1)
    for one, (here, there) in zip(ended, ((mine, theirs), (theirs, mine)), strict=True):
        assert isinstance(one.fault, _validate.InputError)
        shown = f"terms: {name}: expected {here.statement()[name]} as here, got {there.statement()[name]}"
        assert str(one.fault)[:100] == shown[:100]
        assert {message.kind for message in one.said} == {"terms.size", "terms"}


def test_every_term_is_compared():
    assert len(terms()) == len(test_terms_that_differ_are_refused_by_name_before_any_secret.pytestmark[0].args[1])


def test_two_servers_of_one_role_refuse_each_other(tmp_path):
    mine = terms()
    ended = play(tmp_path, (mine, mine), until=1, roles=("h2", "h2"))
    for one in ended:
        assert isinstance(one.fault, _validate.InputError)
        assert str(one.fault) == "h1's role: expected h1, got h2"
        assert {message.kind for message in one.said} == {"terms.size", "terms"}


def test_servers_whose_states_are_far_apart_refuse_each_other(tmp_path):
    mine = terms("plain")
    play(tmp_path, (mine, mine), until=2)
    for file in (tmp_path / "h2").glob("*.step"):
        file.unlink()
    ended = play(tmp_path, (mine, mine), until=3)
    way = "to continue, use --rejoin at the next start of the server whose state was restored or lost"
    assert str(ended[0].fault) == f"h2's completed: expected about 2 steps as here; {way}, got 0"
    assert str(ended[1].fault) == f"h1's completed: expected about 0 steps as here; {way}, got 2"
    again = play(tmp_path, (mine, mine), until=3, rejoin="h2")
    assert [one.fault for one in again] == [None, None]
    for one in again:
        assert [(one.steps[step].values == total(step)).all() for step in (1, 2, 3)] == [True] * 3


@pytest.mark.parametrize("behind", [0, 1])
def test_a_server_that_lacks_the_last_result_has_it_from_the_other(tmp_path, behind):
    mine = terms()
    ended = play(tmp_path, (mine, mine), until=2)
    (tmp_path / servers.SERVERS[behind] / "00000002.step").unlink()
    again = play(tmp_path, (mine, mine), until=2)
    assert [one.fault for one in again] == [None, None]
    np.testing.assert_array_equal(again[behind].steps[2].values, ended[behind].steps[2].values)
    assert again[behind].steps[2][1:] == ended[behind].steps[2][1:]
    assert [one.releases for one in again] == [2, 2]
    assert not any(message.kind in ("seed", "labels", "cot.corrections") for one in again for message in one.said)
