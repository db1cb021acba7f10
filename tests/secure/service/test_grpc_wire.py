"""Tests the gRPC wire on loopback: order, waiting, closing, and what each side sees when the other ends."""

import hashlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest

from dpaudit.secure.channel import Channel, ChannelError
from dpaudit.secure.protocol import agreement
from dpaudit.secure.protocol.in_process import together
from dpaudit.secure.service import certificates, grpc_wire, spgc_pb2
from dpaudit.secure.service.grpc_wire import GrpcWire, Listener

Ends = tuple[GrpcWire, GrpcWire]
Listening = tuple[Listener, str, grpc.Server, list[str]]


@pytest.fixture
def listening() -> Iterator[Listening]:
    server = grpc.server(ThreadPoolExecutor(4), options=certificates.options())
    lines: list[str] = []
    listener = Listener(server, None, lines.append)
    port = certificates.listen(server, "127.0.0.1:0", None)
    server.start()
    yield listener, f"127.0.0.1:{port}", server, lines
    server.stop(0)


@pytest.fixture
def ends(listening: Listening) -> Iterator[Ends]:
    listener, address, *_ = listening
    first = grpc_wire.connect(address, None)
    second = listener.next(30.0)
    assert second is not None
    yield first, second
    first.abandon()
    second.abandon()


@pytest.mark.parametrize("size", [1, 127, 128, 16_383, 16_384, certificates.PIECE])
def test_frames_are_those_of_protobuf(size):
    data = np.random.default_rng(size).bytes(size)
    message = spgc_pb2.Frame(data=data).SerializeToString()
    assert grpc_wire.frame(data[:1], memoryview(data)[1:]) == message
    assert grpc_wire.data_of(message) == data


@pytest.mark.parametrize(
    "message", [b"", b"\x0a", b"\x0a\x05", b"\x0a\x05123", b"\x0a\x01123", b"\x12\x0112", b"\x0a" + b"\xff" * 9]
)
def test_what_is_no_frame_is_refused(message):
    with pytest.raises(ValueError, match=r"^a frame: expected one field of data$"):
        grpc_wire.data_of(message)


def test_the_messages_between_owners_and_servers_are_pinned():
    """Another hash is another wire format, which needs another ``agreement.VERSION``."""
    assert agreement.VERSION == 7
    described = hashlib.sha256(spgc_pb2.DESCRIPTOR.serialized_pb).hexdigest()
    assert described == "ef385936e650d5585eed3dab8f02f79ce0e7e64292ff5f6989c0e595e99a3cf9"


def test_messages_of_every_size_come_through_both_ways(ends):
    draw = np.random.default_rng(0)
    sizes = (
        0,
        1,
        certificates.PIECE - 33,
        certificates.PIECE - 32,
        certificates.PIECE - 31,
        3 * certificates.PIECE + 5,
        30 << 20,
    )
    sent = [draw.integers(0, 256, size, np.uint8) for size in sizes]

    def party(channel: Channel) -> None:
        sending = threading.Thread(target=lambda: [channel.send("bytes", payload) for payload in sent])
        sending.start()
        for payload in sent:
            np.testing.assert_array_equal(channel.receive("bytes", len(payload)), payload)
        sending.join()

    together((Channel(ends[0]), Channel(ends[1])), party, party)


def test_a_writer_whose_reader_does_not_read_waits_until_its_deadline(ends):
    channel = Channel(ends[0], 1.0)
    with pytest.raises(ChannelError, match="the deadline has passed"):
        _send_much(channel)
    assert 0 < channel.sent["much"].messages < 60  # 8 MiB each side, and what the connection holds


def _send_much(channel: Channel) -> None:
    for _ in range(100):
        channel.send("much", bytes(1 << 20))


def test_a_reader_waits_no_longer_than_its_deadline(ends):
    began = time.monotonic()
    with pytest.raises(ChannelError, match="the deadline has passed"):
        Channel(ends[1], 0.2).receive("nothing", 1)
    assert time.monotonic() - began >= 0.2


@pytest.mark.parametrize("closing", [0, 1])
def test_what_was_written_before_a_close_is_read_and_then_the_end(ends, closing):
    one, other = Channel(ends[closing]), Channel(ends[1 - closing])
    one.send("last", bytes(3 << 20))
    one.close()
    assert len(other.receive("last", 3 << 20)) == 3 << 20
    with pytest.raises(ChannelError, match="the peer has closed the channel"):
        other.receive("more", 1)
    with pytest.raises(ChannelError, match="this side has closed the channel"):
        one.send("more", b"")


@pytest.mark.parametrize("gone", [0, 1])
def test_a_peer_that_is_gone_ends_a_read_that_waits(ends, gone):
    threading.Timer(0.1, ends[gone].abandon).start()
    with pytest.raises(ChannelError, match="the peer has closed the channel"):
        Channel(ends[1 - gone]).receive("bytes", 1)
    assert ends[1 - gone].closed


def test_a_second_caller_is_refused_while_the_first_is_there(listening):
    listener, address, _, lines = listening
    first = grpc_wire.connect(address, None)
    wire = listener.next(30.0)
    assert wire is not None
    second = Channel(grpc_wire.connect(address, None), 30.0)
    with pytest.raises(ChannelError, match=r"the peer has closed the channel \(h2 has a session with another h1, at "):
        second.receive("hello", 1)
    assert lines == ["a second h1, at ipv4:127.0.0.1, is refused: there is a session with the one at ipv4:127.0.0.1"]
    Channel(first).send("still", b"here")
    assert Channel(wire).receive("still", 4).tobytes() == b"here"
    first.abandon()
    until = time.monotonic() + 30
    while not wire.closed and time.monotonic() < until:
        time.sleep(0.01)
    third = grpc_wire.connect(address, None)
    then = listener.next(30.0)
    assert then is not None
    assert listener.next(0.01) is None
    third.abandon()


def test_nobody_there_is_told_with_the_reason():
    channel = Channel(grpc_wire.connect("127.0.0.1:1", None))
    with pytest.raises(ChannelError, match=r"the peer has closed the channel \(failed to connect .*refused"):
        channel.receive("hello", 1)


def test_all_frames_of_a_message_have_one_limit_of_time():
    """The peer takes a frame now and then: each waits for less than the limit, all together for longer."""
    wire, over = GrpcWire(lambda: None), threading.Event()

    def take_slowly() -> None:
        for _ in wire.frames():
            over.wait(0.3)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(take_slowly)
        began = time.monotonic()
        try:
            with pytest.raises(TimeoutError):
                wire.write(bytes(32), memoryview(bytes(40 * certificates.PIECE)), 1.0)
            assert time.monotonic() - began < 5
        finally:
            over.set()
            wire.close()
