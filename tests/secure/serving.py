"""Runs servers and owners over gRPC in one process."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from dpaudit.secure.protocol import agreement
from dpaudit.secure.protocol.agreement import Terms
from dpaudit.secure.service import certificates, spgc_pb2
from dpaudit.secure.service.certificates import Tls
from dpaudit.secure.service.inbox import SERVICE
from dpaudit.secure.service.owner import Owner
from dpaudit.secure.service.server import Server
from tests.secure.certificates import Authority
from tests.secure.servers import DIMENSION

Pair = tuple[Server, Server]


def until(done: Callable[[], object]) -> None:
    """Waits for a condition, at most half a minute."""
    end = time.monotonic() + 30
    while not done():
        assert time.monotonic() < end
        time.sleep(0.01)


@contextmanager
def running(server: Server) -> Iterator[Server]:
    """Runs a server in a thread of its own; does not re-raise what ends it early."""
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join()


@contextmanager
def pair(
    folder: Path, terms: Terms, log: Callable[[str], None], *, trust: Authority | None = None, wait: float = 20.0
) -> Iterator[Pair]:
    """Runs both servers."""
    own = (trust.tls("h1"), trust.tls("h2")) if trust else (None, None)
    second = Server("h2", terms, listen="127.0.0.1:0", state=folder / "h2", own=own[1], wait=wait, log=log)
    first = Server(
        "h1",
        terms,
        listen="127.0.0.1:0",
        state=folder / "h1",
        peer=f"127.0.0.1:{second.port}",
        own=own[0],
        wait=wait,
        log=log,
    )
    with running(second), running(first):
        yield first, second


@contextmanager
def owners(servers: Pair, terms: Terms, *names: str, trust: Authority | None = None) -> Iterator[list[Owner]]:
    """Connects owners of these names to both servers."""
    addresses = f"127.0.0.1:{servers[0].port}", f"127.0.0.1:{servers[1].port}"
    with ExitStack() as stack:
        made = [Owner(name, terms, addresses, own=trust.tls(name) if trust else None) for name in names]
        for one in made:
            stack.callback(one.close)
        yield made


def send(port: int, share: spgc_pb2.Share, own: Tls | None = None) -> None:
    """Sends a share to one server."""
    with certificates.call(f"127.0.0.1:{port}", "h1", own, values=2 << 20) as connection:
        serializer, deserializer = spgc_pb2.Share.SerializeToString, spgc_pb2.Receipt.FromString
        connection.unary_unary(f"/{SERVICE}/Submit", serializer, deserializer)(share, timeout=20)


def share_of(
    mine: Terms, owner: str = "bob", *, coordinates: int = DIMENSION, step: int = 1, split: bytes = bytes(16)
) -> spgc_pb2.Share:
    """Makes an owner's share of zeros."""
    said = agreement.stated(mine.statement())
    return spgc_pb2.Share(owner=owner, step=step, split=split, terms=said, values=bytes(4 * coordinates))
