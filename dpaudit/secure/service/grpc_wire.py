"""Connects the two servers by one gRPC stream each way, in frames of at most a mebibyte.

H1 calls, H2 is called. Each side buffers up to :data:`_AHEAD` bytes that are not yet sent or not yet read; beyond
that, writing waits. Frames are protobuf messages that are encoded here, as protobuf's classes would copy each byte
twice more on either side.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from dpaudit import _validate
from dpaudit.secure.channel import Part, Pipe
from dpaudit.secure.service import certificates
from dpaudit.secure.service.certificates import PIECE, Tls

with _validate.extra("secure"):
    import grpc

_AHEAD = 8 << 20
_LINGER = 1.0  # seconds
_CALLERS = 4  # threads for calls of H1: of the session, of one that is ending, and of others, refused at once
_METHOD = "Exchange"
_SERVICE = "dpaudit.secure.Peer"
_TAG = 0x0A  # of field 1, whose length follows, seven bits a byte


class GrpcWire:
    """Carries bytes on a stream of frames (a :class:`Wire`); made by :func:`connect` and :class:`Listener`.

    Args:
      cancel: ends the call immediately.
    """

    def __init__(self, cancel: Callable[[], object]) -> None:
        self._cancel = cancel
        self._over = threading.Event()  # set when the peer's stream has ended
        self._incoming, self._outgoing = Pipe(_AHEAD), Pipe(_AHEAD)

    def write(self, header: bytes, payload: memoryview, seconds: float) -> None:
        """Sends header and payload, as :meth:`Wire.write`."""
        first, until = PIECE - len(header), time.monotonic() + seconds
        self._outgoing.write([frame(header, payload[:first])], seconds)
        for start in range(first, len(payload), PIECE):
            self._outgoing.write([frame(payload[start : start + PIECE])], until - time.monotonic())

    def read_into(self, out: memoryview, seconds: float) -> None:
        """Fills ``out``, as :meth:`Wire.read_into`."""
        self._incoming.read_into(out, seconds)

    def close(self, reason: str = "") -> None:
        """Closes both directions; what was written is still sent while the peer accepts it."""
        self._incoming.close(reason)
        self._outgoing.close(reason)

    @property
    def closed(self) -> bool:
        """Whether either side has closed the wire."""
        return self._outgoing.closed

    def abandon(self) -> None:
        """Closes, waits a moment for the peer to read the rest, and discards what it has not read."""
        self.close()
        self._over.wait(_LINGER)
        self._cancel()

    def frames(self) -> Iterator[Part]:
        """Yields what is written, until the wire is closed."""
        while True:
            try:
                yield self._outgoing.take(None)
            except ConnectionError:
                return

    def take_in(self, frames: Iterable[memoryview]) -> None:
        """Receives the peer's frames until there are no more; discards those that arrive after a close."""
        reason = ""
        try:
            for data in frames:
                if not self._incoming.closed:
                    self._incoming.write([data], threading.TIMEOUT_MAX)
        except grpc.RpcError as fault:
            reason = certificates.reason(fault)
        except ConnectionError:
            pass  # closed on this side while the frame waited
        finally:
            self.close(reason)
            self._over.set()


def connect(address: str, own: Tls | None, *, insecure: bool = False) -> GrpcWire:
    """Calls H2 and returns H1's end of the wire.

    Args:
      address: H2's address, host:port.
      own: H1's certificate.
      insecure: whether the call may leave this machine unencrypted.
    """
    connection = certificates.call(address, "h2", own, insecure=insecure)
    exchange = connection.stream_stream(f"/{_SERVICE}/{_METHOD}", response_deserializer=data_of)
    wire = GrpcWire(connection.close)
    threading.Thread(target=wire.take_in, args=(exchange(wire.frames()),), daemon=True).start()
    return wire


def frame(*parts: bytes | memoryview) -> bytes:
    """Encodes the message Frame whose data are these parts, joined; they must not be empty."""
    left, head = sum(map(len, parts)), bytearray([_TAG])
    while left > 0x7F:
        head.append(left & 0x7F | 0x80)
        left >>= 7
    head.append(left)
    return b"".join((head, *parts))


def data_of(message: bytes) -> memoryview:
    """Decodes the data of a Frame; ValueError if it is malformed."""
    size, end = 0, 1
    while end < min(5, len(message)):
        size |= (message[end] & 0x7F) << 7 * (end - 1)
        end += 1
        if message[end - 1] < 0x80:
            break
    if message[:1] != bytes([_TAG]) or len(message) != max(end, 2) + size:
        raise ValueError("a frame: expected one field of data")
    return memoryview(message)[end:]


class Listener:
    """Accepts H1's calls at H2, one at a time; with certificates, only from H1's.

    During a call others are refused, so a second H1 does not disturb the first. gRPC's keepalive detects a caller that
    vanished (:mod:`dpaudit.secure.service.certificates`). The calls have threads of their own, so that owners' calls
    do not keep H1 out.

    Args:
      server: the gRPC server, not yet started.
      own: H2's certificate.
      log: receives a line for each refused caller.
    """

    def __init__(self, server: grpc.Server, own: Tls | None, log: Callable[[str], None]) -> None:
        self._calls: queue.Queue[GrpcWire] = queue.Queue()
        self._tls, self._log = own, log
        self._one = threading.Lock()
        self._current: tuple[GrpcWire | None, str] = None, ""  # the wire and the caller's address
        exchange: Any = partial(self._exchange)
        exchange.experimental_thread_pool = ThreadPoolExecutor(_CALLERS)  # gRPC runs this method there
        handler = grpc.stream_stream_rpc_method_handler(exchange, request_deserializer=data_of)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: handler}),))

    def next(self, seconds: float) -> GrpcWire | None:
        """Waits for a call from H1 and returns H2's end of it; None if there is none in time."""
        try:
            return self._calls.get(timeout=seconds)
        except queue.Empty:
            return None

    @property
    def caller(self) -> str:
        """The address of the last caller."""
        return self._current[1]

    def _exchange(self, requests: Iterator[memoryview], context: grpc.ServicerContext) -> Iterator[Part]:
        certificates.require(context, "h1", self._tls, self._log)
        who = certificates.host(context)
        with self._one:
            current, other = self._current
            wire = None if current and not current.closed else GrpcWire(context.cancel)
            if wire:
                self._current = wire, who
        if wire is None:
            self._log(f"a second h1, at {who}, is refused: there is a session with the one at {other}")
            context.abort(grpc.StatusCode.ALREADY_EXISTS, f"h2 has a session with another h1, at {other}")
        threading.Thread(target=wire.take_in, args=(requests,), daemon=True).start()
        self._calls.put(wire)
        yield from wire.frames()
