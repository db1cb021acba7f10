"""The servers' wire: one gRPC stream each way, in frames of a mebibyte or less.

H1 calls, H2 is called. Either side may be :data:`_AHEAD` bytes ahead of what the network takes, and as far of what
its peer reads: beyond, writing waits. Frames are protobuf's, put together here: its classes would copy each byte twice
more on either side.
"""

import queue
import threading
from collections.abc import Callable, Iterable, Iterator

import grpc

from dpaudit.secure.channel import Part, Pipe
from dpaudit.secure.service import certificates
from dpaudit.secure.service.certificates import PIECE, Tls

_AHEAD = 8 << 20
_LINGER = 1.0  # seconds
_METHOD = "Exchange"
_SERVICE = "dpaudit.secure.Peer"
_TAG = 0x0A  # of field 1, whose length follows, seven bits a byte


class GrpcWire:
    """A :class:`dpaudit.secure.channel.Wire` on a stream of frames; :func:`connect` and :class:`Listener` make it.

    Args:
      cancel: ends the call at once.
    """

    def __init__(self, cancel: Callable[[], object]) -> None:
        self._cancel = cancel
        self._over = threading.Event()  # the peer has nothing more to say
        self._incoming, self._outgoing = Pipe(_AHEAD), Pipe(_AHEAD)

    def write(self, header: bytes, payload: memoryview, seconds: float) -> None:
        """As the protocol asks."""
        first = PIECE - len(header)
        self._outgoing.write([frame(header, payload[:first])], seconds)
        for start in range(first, len(payload), PIECE):
            self._outgoing.write([frame(payload[start : start + PIECE])], seconds)

    def read_into(self, out: memoryview, seconds: float) -> None:
        """As the protocol asks."""
        self._incoming.read_into(out, seconds)

    def close(self, reason: str = "") -> None:
        """As the protocol asks; what was written goes out as long as the peer takes it."""
        self._incoming.close(reason)
        self._outgoing.close(reason)

    @property
    def closed(self) -> bool:
        """Whether either side has closed."""
        return self._outgoing.closed

    def abandon(self) -> None:
        """Closes, gives the peer a moment for what it has not taken yet, and lets go of the rest."""
        self.close()
        self._over.wait(_LINGER)
        self._cancel()

    def frames(self) -> Iterator[Part]:
        """What is written, until the wire is closed."""
        while True:
            try:
                yield self._outgoing.take(None)
            except ConnectionError:
                return

    def take_in(self, frames: Iterable[memoryview]) -> None:
        """Lets the peer's frames be read, until there are no more; those that come after a close are lost."""
        reason = ""
        try:
            for data in frames:
                if not self._incoming.closed:
                    self._incoming.write([data], threading.TIMEOUT_MAX)
        except grpc.RpcError as fault:
            reason = certificates.reason(fault)
        except ConnectionError:
            pass  # closed here while this frame waited
        finally:
            self.close(reason)
            self._over.set()


def connect(address: str, own: Tls | None, *, insecure: bool = False) -> GrpcWire:
    """H1's end of a call to H2.

    Args:
      address: H2's, host:port.
      own: H1's certificate.
      insecure: whether the call may leave this machine in the clear.
    """
    connection = certificates.call(address, "h2", own, insecure=insecure)
    exchange = connection.stream_stream(f"/{_SERVICE}/{_METHOD}", response_deserializer=data_of)
    wire = GrpcWire(connection.close)
    threading.Thread(target=wire.take_in, args=(exchange(wire.frames()),), daemon=True).start()
    return wire


def frame(*parts: bytes | memoryview) -> bytes:
    """The message Frame whose data are these parts together, not none."""
    left, head = sum(map(len, parts)), bytearray([_TAG])
    while left > 0x7F:
        head.append(left & 0x7F | 0x80)
        left >>= 7
    head.append(left)
    return b"".join((head, *parts))


def data_of(message: bytes) -> memoryview:
    """The data of a Frame; ValueError if it is none."""
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
    """H2's side: lets H1 call, one at a time. Where there are certificates, only H1's is let in.

    While one call lasts others are refused: a second H1 takes nothing from the first. A caller that is gone without a
    word is found out by gRPC's keepalive (:mod:`tls`).

    Args:
      server: of gRPC, not yet started.
      own: H2's certificate.
      log: is told who is refused.
    """

    def __init__(self, server: grpc.Server, own: Tls | None, log: Callable[[str], None]) -> None:
        self._calls: queue.Queue[GrpcWire] = queue.Queue()
        self._tls, self._log = own, log
        self._one = threading.Lock()
        self._current: tuple[GrpcWire | None, str] = None, ""  # the wire, and where it comes from
        handler = grpc.stream_stream_rpc_method_handler(self._exchange, request_deserializer=data_of)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: handler}),))

    def next(self, seconds: float) -> GrpcWire | None:
        """H2's end of the call that H1 has made; waits for one."""
        try:
            return self._calls.get(timeout=seconds)
        except queue.Empty:
            return None

    @property
    def caller(self) -> str:
        """The address of who called last."""
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
