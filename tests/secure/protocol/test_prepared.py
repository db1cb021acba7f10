"""Tests that stored blocks are used once, also where a server dies between any two steps."""

import json
import resource
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from dpaudit import _validate
from dpaudit.secure.crypto.randomness import Stream
from dpaudit.secure.noise import binomial
from dpaudit.secure.protocol import in_process, prepared, two_server_sum
from dpaudit.secure.protocol.prepared import WAY, Pair
from dpaudit.secure.protocol.storage import Ledger, Past
from dpaudit.secure.protocol.two_server_sum import Evaluator, Garbled, Garbler, Received
from tests.secure import sessions

KIND = two_server_sum.noisy(binomial.binomial(coins=1, step_bits=1), ring_bits=4)
COUNT = 5
PAIR = Pair(b"the pair of them", bytes(range(32)))
NAMES = ("h1", "h2")


def store(folder: Path, kind: type, count: int = COUNT) -> Any:
    """Opens the store of one server, whose source draws the identities."""
    role = "h1" if kind is Garbled else "h2"
    return prepared.Store(folder, role, kind, KIND, count, PAIR, Stream(kind.__name__.ljust(16).encode()).draw)


def both(tmp_path: Path) -> list[Any]:
    return [store(tmp_path / kind.__name__, kind) for kind in (Garbled, Received)]


def identity(number: int) -> bytes:
    return bytes([number]) * 16


def blocks(count: int = COUNT) -> tuple[Garbled, Received]:
    (first,), (second,) = sessions.play(KIND, [sessions.shares(1, count, 4)])[1:3]
    return first.prepared, second.prepared


def same(one: Garbled | Received, other: Garbled | Received) -> bool:
    pairs = zip(one.parts(), other.parts(), strict=True)
    return type(one) is type(other) and all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in pairs)


def test_what_was_put_is_taken_once(tmp_path: Path) -> None:
    for kind, block in zip((Garbled, Received), blocks(), strict=True):
        folder = tmp_path / "made" / kind.__name__
        first = store(folder, kind)
        first.put(3, identity(3), block)
        first.put(4, identity(4), block)
        assert first.numbers() == [3, 4]
        for path in (folder, folder.parent, *folder.iterdir()):
            assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
        with pytest.raises(_validate.InputError, match=r"number: expected one that the store does not have .*, got 3"):
            first.put(3, identity(3), block)
        again = store(folder, kind)  # as after a crash
        assert same(again.take(3), block)
        for used in (first, again, store(folder, kind)):
            with pytest.raises(_validate.InputError, match=r"number: expected that of a block in .*, got 3"):
                used.take(3)
        with pytest.raises(_validate.InputError, match=r"number: expected one that the store does not have .*, got 3"):
            again.put(3, identity(3), block)
        assert again.numbers() == [4]


def test_a_block_that_is_put_back_when_it_was_spent_is_burnt(tmp_path: Path) -> None:
    one = store(tmp_path, Garbled)
    one.put(0, identity(0), blocks()[0])
    (path,) = tmp_path.glob("*.block")
    copy = path.read_bytes()
    one.take(0)
    path.write_bytes(copy)
    assert store(tmp_path, Garbled).numbers() == []
    assert not list(tmp_path.glob("*.block"))


@pytest.mark.parametrize("name", [f"{1:020} (copy).block", "other.block", "7.block", "1_0.block"])
def test_a_copy_of_a_block_beside_it_is_named_in_one_line(tmp_path: Path, name: str) -> None:
    store(tmp_path, Garbled).put(1, identity(1), blocks()[0])
    (path,) = tmp_path.glob("*.block")
    (tmp_path / name).write_bytes(path.read_bytes())
    with pytest.raises(_validate.InputError) as refused:
        store(tmp_path, Garbled)
    assert str(refused.value).startswith(f"folder: expected blocks named by 20 digits alone, got {name} in /")


def test_a_line_of_the_log_for_which_the_disc_has_no_room_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "log"
    ledger, (soft, hard) = Ledger(path), resource.getrlimit(resource.RLIMIT_FSIZE)
    ledger.spend(7, identity(7))
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 4, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            ledger.spend(8, identity(8))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert Ledger(path).past == Past(7, identity(7), -1)


def test_blocks_from_the_disc_open(tmp_path: Path) -> None:
    """They are prepared in one session and opened in another, with shares of the same two chunks."""
    count = 4097
    shares = sessions.shares(2, count, 4)
    stores = [store(tmp_path / kind.__name__, kind, count) for kind in (Garbled, Received)]

    def ahead(channel, kind, store) -> None:
        server = kind(channel, source=Stream(kind.__name__.ljust(16).encode()).draw)
        number, drawn = store.free(channel)
        store.put(number, drawn, server.prepare(KIND, count))

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
    stores = both(tmp_path)
    for one, block, numbers in zip(stores, blocks(), (first, second), strict=True):
        for number in numbers:
            one.put(number, identity(number), block)
    common = in_process.together(in_process.channels(), stores[0].common, stores[1].common)
    assert common == (len({*first} & {*second}),) * 2
    free, same_free = in_process.together(in_process.channels(), stores[0].free, stores[1].free)
    assert free == same_free
    assert free[0] == max([*first, *second], default=-1) + 1
    assert in_process.together(in_process.channels(), stores[0].agree, stores[1].agree) == (agreed, agreed)
    for one, numbers in zip(stores, (first, second), strict=True):
        assert one.numbers() == [number for number in numbers if agreed is not None and number >= agreed]


def test_two_blocks_of_one_number_meet_only_if_they_are_one(tmp_path: Path) -> None:
    stores = both(tmp_path)
    for side, (one, block) in enumerate(zip(stores, blocks(), strict=True)):
        one.put(0, identity(side), block)
        one.put(1, identity(9), block)
    assert in_process.together(in_process.channels(), stores[0].common, stores[1].common) == (1, 1)
    assert in_process.together(in_process.channels(), stores[0].agree, stores[1].agree) == (1, 1)
    assert [one.numbers() for one in stores] == [[1], [1]]


def test_numbering_never_starts_again_and_both_draw_each_identity(tmp_path: Path) -> None:
    block, _ = blocks()
    drawn = set()
    for number in range(3):
        stores = both(tmp_path)  # one server is put back to its first source: the other's part is new
        stores[1]._source = lambda count, number=number: bytes([number]) * count
        frees = in_process.together(in_process.channels(), stores[0].free, stores[1].free)
        assert frees[0] == frees[1]
        assert frees[0][0] == number
        drawn.add(frees[0][1])
        stores[0].put(*frees[0], block)
        stores[0].take(number)  # nothing is left from which a number could be counted on
    assert len(drawn) == 3


def test_a_server_that_died_before_it_spent_burns_what_the_other_has_spent(tmp_path: Path) -> None:
    stores = both(tmp_path)
    for one, block in zip(stores, blocks(), strict=True):
        for number in range(4):
            one.put(number, identity(number), block)
    stores[0].take(2)
    past = [one.ledger.past for one in stores]
    assert past[0] == Past(2, identity(2), -1)
    stores[0].meet(past[1], NAMES)
    stores[1].meet(past[0], NAMES[::-1])
    assert [one.numbers() for one in stores] == [[0, 1, 3], [3]]
    assert in_process.together(in_process.channels(), stores[0].agree, stores[1].agree) == (3, 3)


@pytest.mark.parametrize(
    ("mine", "theirs", "message"),
    [
        ((1, 1), Past(0, identity(0), 0), "h2's blocks: expected block 1 spent, as h1 has seen"),
        ((1, 1), Past(2, identity(2), 2), "h1's blocks: expected block 2 spent, as h2 has seen"),
        ((1, -1), Past(1, identity(7), -1), "h2's blocks: expected spent the block 1 that h1 has"),
        ((1, -1), Past(2, identity(7), -1), "h1's blocks: expected block 2, which h2 has spent"),
        ((1, -1), Past(8, identity(8), -1), "h1's blocks: expected block 8, which h2 has spent"),
    ],
)
def test_who_is_behind_is_refused(tmp_path: Path, mine: tuple[int, int], theirs: Past, message: str) -> None:
    one = store(tmp_path, Garbled)
    for number in range(3):
        one.put(number, identity(number), blocks()[0])
    one.take(mine[0])
    if mine[1] >= 0:
        one.ledger.see(mine[1])
    again = store(tmp_path, Garbled)
    with pytest.raises(_validate.InputError) as refused:
        again.meet(theirs, NAMES)
    assert str(refused.value).startswith(f"{message} (its state is an older copy; {WAY}), got ")
    assert again.numbers() == [2]  # nothing was burnt but what is below the one spent


@pytest.mark.integration
def test_every_bit_of_a_block_counts(tmp_path: Path) -> None:
    """Changes one bit in each of many places, in every part of the file."""
    for kind, block in zip((Garbled, Received), blocks(), strict=True):
        one = store(tmp_path / kind.__name__, kind)
        size = 64 + sum(part.nbytes for part in block.parts())
        places = {*range(48, size, 37), *range(48), *range(size - 16, size)}
        for number, place in enumerate(sorted(places)):
            one.put(number, identity(number % 256), block)
            (path,) = (tmp_path / kind.__name__).glob("*.block")
            content = bytearray(path.read_bytes())
            assert len(content) == size
            content[place] ^= 1 << place % 8
            path.write_bytes(content)
            wanted = "one made for this opening" if place < 32 else "an unchanged one"
            with pytest.raises(_validate.InputError, match=rf"block: expected {wanted} \(it is now used up\), got "):
                one.take(number)
            assert not list((tmp_path / kind.__name__).glob("*.block"))


def test_a_whole_block_under_another_number_or_of_another_pair_is_found_out(tmp_path: Path) -> None:
    one, (block, _) = store(tmp_path, Garbled), blocks()
    for number in (0, 1):
        one.put(number, identity(7), block)
    first, second = sorted(tmp_path.glob("*.block"))
    second.write_bytes(first.read_bytes())
    with pytest.raises(_validate.InputError, match=r"block: expected an unchanged one \(it is now used up\)"):
        one.take(1)
    other = prepared.Store(tmp_path, "h1", Garbled, KIND, COUNT, PAIR._replace(key=bytes(32)))
    assert other.numbers() == []  # below one that was spent
    other.put(2, identity(2), block)
    with pytest.raises(_validate.InputError, match=r"block: expected an unchanged one \(it is now used up\)"):
        store(tmp_path, Garbled).take(2)


def test_what_is_torn_or_foreign_is_refused_and_burnt(tmp_path: Path) -> None:
    block, _ = blocks()
    one = store(tmp_path, Garbled)
    size = 64 + sum(part.nbytes for part in block.parts())

    for number, length in enumerate((size - 1, size + 1, 0)):
        one.put(number, identity(number), block)
        (path,) = tmp_path.glob("*.block")
        path.write_bytes(path.read_bytes().ljust(length, b"\0")[:length])
        with pytest.raises(_validate.InputError, match=rf"block: expected {size} bytes \(it is now used up\), got "):
            one.take(number)
        assert not list(tmp_path.glob("*.block"))
    other = KIND._replace(circuit=KIND.gates._replace(outputs=KIND.gates.outputs[::-1]))
    one.put(3, identity(3), block)
    with pytest.raises(
        _validate.InputError, match=r"block: expected one made for this opening \(it is now used up\), got "
    ):
        prepared.Store(tmp_path, "h1", Garbled, other, COUNT, PAIR).take(3)
    assert not list(tmp_path.glob("*.block"))


def test_wrong_arguments_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # for short names: a line repeats so much of a value and no more
    with pytest.raises(_validate.InputError, match="opening: expected one with noise"):
        prepared.Store(tmp_path, "h1", Garbled, two_server_sum.plain(ring_bits=4), COUNT, PAIR)
    with pytest.raises(_validate.InputError, match="count: expected a whole number >= 1, got 0"):
        store(tmp_path, Garbled, 0)
    Path("file").touch()
    with pytest.raises(_validate.InputError, match="folder: expected a folder, or a place for one, got file: File"):
        store(Path("file"), Garbled)
    with pytest.raises(_validate.InputError, match="number: expected a whole number >= 0, got -1"):
        store(tmp_path, Garbled).put(-1, bytes(16), blocks()[0])


# Run in a process of its own: a child is forked for each step that put and take make of the operating system or of a
# file, and dies just before it. What is on the disc, and whether anything was handed out, is written down.
KILLED = '''
import json, os, sys, warnings
import numpy as np
from dpaudit.secure.noise.binomial import binomial
from dpaudit.secure.protocol import prepared, two_server_sum
from dpaudit.secure.protocol.two_server_sum import Garbled

warnings.simplefilter("ignore")
kind = two_server_sum.noisy(binomial(coins=1, step_bits=1), ring_bits=4)
pair = prepared.Pair(bytes(16), bytes(32))
store = prepared.Store(sys.argv[1], "h1", Garbled, kind, 5, pair)
block = Garbled(*(np.full(shape, 7, np.uint8) for shape in ((4, 5, 16), (16,), (4, 5))))
steps = {"open", "write", "flush", "fsync", "close", "rename", "unlink", "fstat", "read", "readinto"}

def put():
    store.put(store.ledger.floor + 1, bytes(16), block)

def take():
    store.take(store.numbers()[0])

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
        store = prepared.Store(sys.argv[1], "h1", Garbled, kind, 5, pair)
        left = store.numbers()
        names = sorted(os.listdir(sys.argv[1]))
        whole = bool(left) and all((part == 7).all() for part in store.take(left[0]))
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


@pytest.mark.integration
def test_a_block_put_is_there_whole_or_not_at_all(deaths: list[Death]) -> None:
    put = [death for death in deaths if death.action == "put"]
    assert [len(death.made) for death in put] == [*range(len(put) - 1), len(put[-1].made)]
    for death in put:
        assert bool(death.numbers) == ("rename" in death.made)
        assert death.whole == bool(death.numbers)
        assert "fsync" in death.made or "rename" not in death.made
    complete = put[-1].made
    assert complete.index("fsync") < complete.index("rename") < len(complete) - 1 - complete[::-1].index("fsync")
    assert complete[-1] == "end"


@pytest.mark.integration
def test_a_block_taken_is_spent_and_gone_before_it_is_read(deaths: list[Death]) -> None:
    """The write is that of its number, to a file that is synchronised at every write."""
    take = [death for death in deaths if death.action == "take"]
    for death in take:
        assert bool(death.numbers) == ("write" not in death.made)
        assert death.whole == bool(death.numbers)
        assert len(death.names) == 1 + len(death.numbers)  # besides the log
        if {"read", "readinto"} & set(death.made):
            assert death.made.index("write") < death.made.index("unlink") < death.made.index("read")
    assert take[-1].made[-1] == "end"
    assert "readinto" in take[-1].made
