"""Tests that calls to this machine, which need no certificates, do not leave it by a proxy of the environment."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from dpaudit.secure.service.owner import Owner
from tests.secure.servers import integers, terms
from tests.secure.serving import pair

VALUES = integers(1)["alice"]


@contextmanager
def proxy(asked: list[bytes]) -> Iterator[str]:
    """Listens as an HTTP proxy, as on another machine; notes the first line of each request and refuses it."""

    def listens() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                asked.append(connection.recv(4096).partition(b"\r\n")[0])
                connection.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=listens, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
    thread.join()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_call_to_this_machine_does_not_go_by_a_proxy(tmp_path, monkeypatch, host):
    asked: list[bytes] = []
    mine = terms("plain", least_owners=1)
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    with proxy(asked) as address:
        monkeypatch.setenv("http_proxy", address)
        with pair(tmp_path, mine, lambda line: None, wait=0.3) as (first, second):
            alice = Owner("alice", mine, (f"{host}:{first.port}", f"{host}:{second.port}"))
            try:
                alice.submit(1, VALUES, seconds=20)
                np.testing.assert_array_equal(alice.result(1, seconds=20).values, VALUES)
            finally:
                alice.close()
    assert asked == []
