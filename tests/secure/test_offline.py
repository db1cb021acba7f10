"""Blocks kept on disc are used once: also where a server dies between any two steps."""

import json
import stat
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from dpaudit import check
from dpaudit.secure import in_process, noise, offline, opening
from dpaudit.secure.opening import Evaluator, Garbled, Garbler, Received
from dpaudit.secure.randomness import Stream
from tests.secure import sessions

KIND = opening.noisy(noise.binomial(coins=1, step_bits=1), ring_bits=4)
COUNT = 5


def blocks(count: int = COUNT) -> tuple[Garbled, Received]:
    (first,), (second,) = sessions.play(KIND, [sessions.shares(1, count, 4)])[1:3]
    return first.prepared, second.prepared


def same(one: Garbled | Received, other: Garbled | Received) -> bool:
    pairs = zip(one.parts(), other.parts(), strict=True)
    return type(one) is type(other) and all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in pairs)


def test_what_was_put_is_taken_once(tmp_path: Path) -> None:
    for kind, block in zip((Garbled, Received), blocks(), strict=True):
        folder = tmp_path / kind.__name__
        store = offline.Store(folder, kind, KIND, COUNT)
        store.put(3, block)
        store.put(0, block)
        assert store.numbers() == [0, 3]
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in folder.iterdir())
        with pytest.raises(check.InputError, match="number: expected one that the store does not have, got 3"):
            store.put(3, block)
        again = offline.Store(folder, kind, KIND, COUNT)  # as after a crash
        assert same(again.take(3), block)
        for used in (store, again):
            with pytest.raises(check.InputError, match=r"number: expected that of a block in .*, got 3"):
                used.take(3)
        assert again.numbers() == [0]


def test_blocks_from_the_disc_open(tmp_path: Path) -> None:
    """Prepared in one session, opened in another, with shares of the same two chunks."""
    count = 4097
    shares = sessions.shares(2, count, 4)
    stores = [offline.Store(tmp_path / kind.__name__, kind, KIND, count) for kind in (Garbled, Received)]

    def ahead(channel, kind, store) -> None:
        server = kind(channel, source=Stream(kind.__name__.ljust(16).encode()).draw)
        store.put(store.free(channel), server.prepare(KIND, count))

    def step(channel, kind, store, share) -> np.ndarray:
        server = kind(channel)
        number = store.agree(channel)
        return server.open(KIND, store.take(number), share)

    for _ in range(2):
        in_process.together(
            in_process.channels(),
            lambda channel: ahead(channel, Garbler, stores[0]),
            lambda channel: ahead(channel, Evaluator, stores[1]),
        )
    assert [store.numbers() for store in stores] == [[0, 1], [0, 1]]
    one, two = in_process.together(
        in_process.channels(),
        lambda channel: step(channel, Garbler, stores[0], shares[0]),
        lambda channel: step(channel, Evaluator, stores[1], shares[1]),
    )
    np.testing.assert_array_equal(one, two)
    noises = (one - (shares[0] - shares[1]) + 8) % 16 - 8
    assert set(np.unique(noises)) == {-2, -1, 0, 1, 2}
    assert [store.numbers() for store in stores] == [[1], [1]]


@pytest.mark.parametrize(
    ("first", "second", "agreed"),
    [([], [], None), ([4], [4], 4), ([1, 2, 4], [3, 4, 5], 4), ([0, 1, 2], [], None), ([0, 2, 4], [1, 3, 5], None)],
)
def test_servers_agree_on_the_lowest_that_both_have(
    tmp_path: Path, first: list[int], second: list[int], agreed: int | None
) -> None:
    stores = [offline.Store(tmp_path / kind.__name__, kind, KIND, COUNT) for kind in (Garbled, Received)]
    for store, block, numbers in zip(stores, blocks(), (first, second), strict=True):
        for number in numbers:
            store.put(number, block)
    frees = in_process.together(in_process.channels(), stores[0].free, stores[1].free)
    assert frees == (max([*first, *second], default=-1) + 1,) * 2
    assert in_process.together(in_process.channels(), stores[0].agree, stores[1].agree) == (agreed, agreed)
    for store, numbers in zip(stores, (first, second), strict=True):
        assert store.numbers() == [number for number in numbers if agreed is not None and number >= agreed]


def test_what_is_torn_or_foreign_is_refused_and_burnt(tmp_path: Path) -> None:
    block, _ = blocks()
    store = offline.Store(tmp_path, Garbled, KIND, COUNT)
    size = 32 + sum(part.nbytes for part in block.parts())

    for number, length in enumerate((size - 1, size + 1, 0)):
        store.put(number, block)
        (path,) = tmp_path.glob("*.block")
        path.write_bytes(path.read_bytes().ljust(length, b"\0")[:length])
        with pytest.raises(check.InputError, match=rf"block: expected {size} bytes \(it is now burnt\), got "):
            store.take(number)
        assert not list(tmp_path.iterdir())
    other = KIND._replace(circuit=KIND.circuit._replace(outputs=KIND.circuit.outputs[::-1]))
    store.put(0, block)
    with pytest.raises(check.InputError, match=r"block: expected one made for this opening \(it is now burnt\), got "):
        offline.Store(tmp_path, Garbled, other, COUNT).take(0)
    assert not list(tmp_path.iterdir())


def test_wrong_arguments_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # for short names: a line repeats so much of a value and no more
    with pytest.raises(check.InputError, match="opening: expected one with noise"):
        offline.Store(tmp_path, Garbled, opening.plain(ring_bits=4), COUNT)
    with pytest.raises(check.InputError, match="count: expected a whole number >= 1, got 0"):
        offline.Store(tmp_path, Garbled, KIND, 0)
    Path("file").touch()
    with pytest.raises(check.InputError, match="folder: expected a folder, or a place for one, got file: File"):
        offline.Store("file", Garbled, KIND, COUNT)
    with pytest.raises(check.InputError, match="number: expected a whole number >= 0, got -1"):
        offline.Store(tmp_path, Garbled, KIND, COUNT).put(-1, blocks()[0])


# Run in a process of its own: a child is forked for each step that put and take make of the operating system or of a
# file, and dies just before it. What is on the disc, and whether anything was handed out, is written down.
KILLED = '''
import json, os, sys, warnings
import numpy as np
from dpaudit.secure import noise, offline, opening
from dpaudit.secure.opening import Garbled

warnings.simplefilter("ignore")
kind = opening.noisy(noise.binomial(coins=1, step_bits=1), ring_bits=4)
store = offline.Store(sys.argv[1], Garbled, kind, 5)
block = Garbled(*(np.full(shape, 7, np.uint8) for shape in ((4, 5, 16), (16,), (4, 5))))
steps = {"open", "write", "flush", "fsync", "close", "rename", "unlink", "fstat", "read", "readinto"}

def put():
    store.put(0, block)

def take():
    store.take(0)

def dies(action, last):
    """The action with a death before its step number ``last``: the steps it made, and whether it came to its end."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        def watch(frame, event, called):
            if event == "c_call" and called.__name__ in steps:
                if len(made) == last:
                    os._exit(0)
                made.append(called.__name__)
                os.write(writing, (called.__name__ + " ").encode())
        made = []
        sys.setprofile(watch)
        action()
        sys.setprofile(None)
        os.write(writing, b"end")
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as stream:
        return stream.read().split()

for action in (put, take):
    last = 0
    while True:
        if action is take and not store.numbers():
            put()
        made = dies(action, last)
        names = sorted(os.listdir(sys.argv[1]))
        store = offline.Store(sys.argv[1], Garbled, kind, 5)
        left = store.numbers()
        whole = bool(left) and all((part == 7).all() for part in store.take(0))
        print(json.dumps([action.__name__, made, names, left, whole]))
        last += 1
        if made[-1:] == ["end"]:
            break
'''


class Death(NamedTuple):
    action: str
    made: list[str]  # the steps before it; the last one is "end" where it came after all of them
    names: list[str]
    numbers: list[int]  # of the store that is opened again
    whole: bool  # whether the block that is there can be taken


@pytest.fixture(scope="module")
def deaths(tmp_path_factory: pytest.TempPathFactory) -> list[Death]:
    folder = tmp_path_factory.mktemp("killed")
    command = [sys.executable, "-c", KILLED, str(folder)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout.splitlines()
    return [Death(*json.loads(line)) for line in lines]


def test_a_block_put_is_there_whole_or_not_at_all(deaths: list[Death]) -> None:
    put = [death for death in deaths if death.action == "put"]
    assert [len(death.made) for death in put] == [*range(len(put) - 1), len(put[-1].made)]
    for death in put:
        assert death.numbers == ([0] if "rename" in death.made else [])
        assert death.whole == bool(death.numbers)
        assert "fsync" in death.made or "rename" not in death.made
    complete = put[-1].made
    assert complete.index("fsync") < complete.index("rename") < len(complete) - 1 - complete[::-1].index("fsync")
    assert complete[-1] == "end"


def test_a_block_taken_is_gone_before_it_is_read(deaths: list[Death]) -> None:
    take = [death for death in deaths if death.action == "take"]
    for death in take:
        assert death.numbers == ([] if "unlink" in death.made else [0])
        assert death.whole == bool(death.numbers)
        if {"read", "readinto"} & set(death.made):
            assert death.made.index("unlink") < death.made.index("fsync") < death.made.index("read")
    assert take[-1].made[-1] == "end"
    assert "readinto" in take[-1].made
