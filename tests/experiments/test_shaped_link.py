import socket
import threading
import time

import pytest

from experiments.paper001.link import shaped


@pytest.fixture
def link():
    """A connection to an echo through 50 megabits a second, 40 ms each way."""
    listener = socket.create_server(("127.0.0.1", 0))

    def echo() -> None:
        peer, _ = listener.accept()
        with peer:
            while piece := peer.recv(1 << 16):
                peer.sendall(piece)

    threading.Thread(target=echo, daemon=True).start()
    with (
        listener,
        shaped(listener.getsockname()[1], 50, 40) as port,
        socket.create_connection(("127.0.0.1", port)) as connection,
    ):
        yield connection


def round_trip(connection: socket.socket, size: int) -> float:
    began, sent = time.monotonic(), bytes(range(256)) * (size // 256)
    sender = threading.Thread(target=connection.sendall, args=(sent,))
    sender.start()
    back = b""
    while len(back) < len(sent):
        back += connection.recv(1 << 16)
    sender.join()
    assert back == sent
    return time.monotonic() - began


def test_bytes_come_whole_and_no_sooner_than_the_link_allows(link: socket.socket) -> None:
    assert round_trip(link, 256) >= 0.08
    size = 1 << 20
    assert round_trip(link, size) >= 0.08 + 8 * size / 50e6
