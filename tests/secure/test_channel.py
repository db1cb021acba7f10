"""Tests that messages arrive whole and counted, and that a fault ends the channel with a clear line on both sides."""

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from dpaudit import _validate
from dpaudit.secure.channel import HEADER, Channel, ChannelError, Traffic, Wire
from dpaudit.secure.protocol import in_process

Frame = tuple[bytes, bytes]


class _Faulty:
    """A wire that replaces the second message written by others."""

    def __init__(self, wire: Wire, change: Callable[[Frame], list[Frame]]) -> None:
        self._wire, self._change, self._written = wire, change, 0
        self.read_into, self.close = wire.read_into, wire.close

    def write(self, header: bytes, payload: memoryview, seconds: float) -> None:
        self._written += 1
        frame = header, bytes(payload)
        for changed, part in self._change(frame) if self._written == 2 else [frame]:
            self._wire.write(changed, memoryview(part), seconds)


def _send(channel: Channel, kind: str, payloads: list[bytes]) -> None:
    for payload in payloads:
        channel.send(kind, payload)


def _receive(channel: Channel, kind: str, length: int, messages: int) -> None:
    for _ in range(messages):
        channel.receive(kind, length)


def test_messages_come_through_and_are_counted() -> None:
    table = np.arange(24, dtype=np.uint16).reshape(2, 12)

    def first(channel: Channel) -> None:
        channel.send("table", table)
        channel.send("empty", np.zeros((0, 16), np.uint8))
        mine = bytearray(b"before")
        channel.send("table", mine)
        mine[:] = b"after!"
        assert channel.receive("answer", 3).tobytes() == b"yes"
        assert (channel.sent, channel.received) == ({"table": (2, 54), "empty": (1, 0)}, {"answer": (1, 3)})

    def second(channel: Channel) -> None:
        np.testing.assert_array_equal(channel.receive("table", 48).view(np.uint16), table.ravel())
        assert channel.receive("empty", 0).shape == (0,)
        received = channel.receive("table", 6)
        received[0] += 1  # the receiver's own memory
        assert received.tobytes() == b"cefore"
        channel.send("answer", b"yes")
        assert channel.received == {"table": Traffic(2, 54), "empty": Traffic(1, 0)}

    in_process.together(in_process.channels(), first, second)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda frame: [], r"receiving 'bits', message 1: message 2 came"),
        (lambda frame: [frame, frame], r"receiving 'bits', message 2: message 1 came"),
        (
            lambda frame: [(frame[0], frame[1][:-1])],
            r"receiving 'bits', message 2: a message of kind 'its' came",
        ),
        (
            lambda frame: [(HEADER.pack(b"bits", 1, 1 << 60), frame[1])],
            r"receiving 'bits', message 1: expected 4 bytes, 1152921504606846976 were announced",
        ),
        (lambda frame: [(HEADER.pack(b"tables", 1, 4), frame[1])], r"message 1: a message of kind 'tables' came"),
        (lambda frame: [(HEADER.pack(b"bits", 0, 4), frame[1])], r"receiving 'bits', message 1: message 0 came"),
    ],
    ids=["lost", "twice", "truncated", "too long", "another kind", "reordered"],
)
def test_a_message_that_is_not_the_next_one_ends_the_channel(
    change: Callable[[Frame], list[Frame]], message: str
) -> None:
    one, other = in_process.wires()
    sender, receiver = Channel(_Faulty(one, change)), Channel(other)
    _send(sender, "bits", [bytes([number] * 4) for number in range(4)])
    assert receiver.receive("bits", 4).tobytes() == bytes(4)
    with pytest.raises(ChannelError, match=message):
        _receive(receiver, "bits", 4, messages=3)
    with pytest.raises(ChannelError, match=r"the channel failed earlier .*receiving 'bits'"):
        receiver.send("bits", b"more")
    with pytest.raises(ChannelError, match="sending 'bits', message 4: the peer has closed the channel"):
        sender.send("bits", b"more")


def test_a_peer_that_closes() -> None:
    one, other = in_process.channels()
    one.send("last", b"words")
    one.close()
    assert other.receive("last", 5).tobytes() == b"words"  # what was sent before can still be read
    with pytest.raises(ChannelError, match=r"^receiving 'more', message 1: the peer has closed the channel$"):
        other.receive("more", 5)
    with pytest.raises(ChannelError, match=r"^sending 'more', message 1: this side has closed the channel$"):
        one.send("more", b"")


def test_a_peer_that_closes_in_the_middle_of_a_message() -> None:
    one, other = in_process.wires()
    one.write(HEADER.pack(b"bits", 0, 9), memoryview(b"123"), 1.0)
    one.close()
    with pytest.raises(ChannelError, match=r"^receiving 'bits', message 0: the peer has closed the channel$"):
        Channel(other).receive("bits", 9)


def test_a_reader_that_waits_is_woken_when_the_peer_closes() -> None:
    one, other = in_process.channels(seconds=30.0)
    timer = threading.Timer(0.05, one.close)
    timer.start()
    with pytest.raises(ChannelError, match="the peer has closed"):
        other.receive("bits", 1)
    timer.join()


def test_the_deadline_is_for_all_messages_together() -> None:
    one, other = in_process.channels()
    other.deadline(0.3)
    start = time.monotonic()

    def drip() -> None:
        for number in range(100):
            time.sleep(0.02)
            try:
                one.send("drip", bytes([number]))
            except ChannelError:
                return  # the reader gave up, and this side knows

    thread = threading.Thread(target=drip)
    thread.start()
    with pytest.raises(ChannelError, match=r"^receiving 'drip', message \d+: the deadline has passed$"):
        _receive(other, "drip", 1, messages=100)
    assert time.monotonic() - start >= 0.3
    thread.join()


def test_a_writer_waits_for_its_reader_and_not_longer_than_the_deadline() -> None:
    one, _ = in_process.channels(seconds=0.5)
    with pytest.raises(ChannelError, match=r"^sending 'blocks', message [0-4]: the deadline has passed$"):
        _send(one, "blocks", [bytes(1 << 24)] * 8)


def test_the_failure_that_came_first_is_the_one_that_is_raised() -> None:
    def fails(channel: Channel) -> None:
        channel.receive("question", 1)
        raise ZeroDivisionError("the reason")

    def waits(channel: Channel) -> None:
        channel.send("question", b"?")
        channel.receive("answer", 1)

    for parties in ((fails, waits), (waits, fails)):
        with pytest.raises(ZeroDivisionError, match="the reason"):
            in_process.together(in_process.channels(), *parties)


def test_refusing_ends_both_sides() -> None:
    one, other = in_process.channels()
    with pytest.raises(ChannelError, match=r"^another circuit$"):
        one.refuse("another circuit")
    with pytest.raises(ChannelError, match=r"the channel failed earlier \(another circuit\)"):
        one.send("bits", b"")
    with pytest.raises(ChannelError, match="the peer has closed"):
        other.receive("bits", 1)


@pytest.mark.parametrize("kind", ["", "seventeen letters", "kïnd"])
def test_kinds_fit_the_header(kind: str) -> None:
    channel, _ = in_process.channels()
    with pytest.raises(_validate.InputError, match=r"^kind: expected 1 to 16 ASCII characters, got"):
        channel.send(kind, b"")
    with pytest.raises(_validate.InputError, match=r"^seconds: expected a finite number > 0, got 0$"):
        channel.deadline(0)
