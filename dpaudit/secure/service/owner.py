"""Takes part in a training as an owner: sends shares of its integers to two servers and reads the opened sums."""

import hashlib
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from dpaudit import _validate
from dpaudit.secure.channel import ChannelError, checked_seconds
from dpaudit.secure.crypto import randomness, shares
from dpaudit.secure.protocol import agreement, storage
from dpaudit.secure.protocol.agreement import SERVERS, Budget, BudgetSpent, Terms
from dpaudit.secure.protocol.two_server_sum import KEPT
from dpaudit.secure.service import certificates
from dpaudit.secure.service.certificates import Tls
from dpaudit.secure.service.inbox import SERVICE, SPENT, SPLIT_BYTES
from dpaudit.secure.service.records import Opened

with _validate.extra("secure"):
    import grpc

    from dpaudit.secure.service import spgc_pb2 as messages

_T = TypeVar("_T")

_PAUSE = 0.1  # seconds until an unreachable server is tried again
_LOOK = 1.0  # seconds to wait for one server before asking the other
_LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.FAILED_PRECONDITION)  # the share may be missing there
_BUSY = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.ABORTED)  # the server asks to try again
_SPREAD = 0.001  # seconds of pause per owner, so that all owners together do not ask too often
_REFUSED = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.PERMISSION_DENIED,
)


class _Split(NamedTuple):
    step: int
    integers: np.ndarray
    label: bytes
    shares: tuple[bytes, bytes]
    __repr__ = randomness.unshown


class _Calls:
    """The two calls of one server."""

    def __init__(self, connection: grpc.Channel) -> None:
        self.submit = connection.unary_unary(
            f"/{SERVICE}/Submit", messages.Share.SerializeToString, messages.Receipt.FromString
        )
        self.result = connection.unary_unary(
            f"/{SERVICE}/Result", messages.Wanted.SerializeToString, messages.Opened.FromString
        )


class Owner:
    """An owner of a training, connected to both servers.

    Args:
      name: the owner's name in the terms and in the certificate.
      terms: the terms of the training; a server with different ones refuses the shares.
      addresses: H1's and H2's, host:port.
      own: this owner's certificate, if there is one.
      insecure: whether to connect to other machines without a certificate.
      kept: file in an existing folder for the shares of the step in progress, readable by its owner alone, so that a
        new process after a kill sends the same shares, when it asks for the step's result. Both shares together are
        this owner's integers: keep it where the owner's records are. Without it, shares are in memory only. A file
        ``<kept>.lock`` beside it keeps other processes away until :meth:`close`.

    Raises:
      InputError: the name is not in the terms, an address cannot be used, or ``kept`` belongs to another training, is
        open in another owner until that is closed, or is in a folder that cannot be written.
    """

    def __init__(
        self,
        name: str,
        terms: Terms,
        addresses: tuple[str, str],
        *,
        own: Tls | None = None,
        insecure: bool = False,
        kept: str | Path | None = None,
    ) -> None:
        self._name, self._terms = terms.owner(name=name), terms
        self._said = agreement.stated(terms.statement())
        self._kept = None if kept is None else Path(kept)
        size = KEPT.itemsize * terms.dimension
        with ExitStack() as stack:
            if self._kept is not None:
                stack.callback(os.close, _locked(self._kept))
            self._split: _Split | None = self._restored()
            self._connections = {
                server: certificates.call(address, server, own, insecure=insecure, values=size)
                for server, address in zip(SERVERS, addresses, strict=True)
            }
            self._unlock = stack.pop_all()
        self._calls = {server: _Calls(connection) for server, connection in self._connections.items()}
        self._thread = ThreadPoolExecutor(1)  # calls one server while the caller's own calls the other
        self._closed = threading.Event()
        self._budget, self._releases = Budget(terms), 0

    @property
    def epsilon(self) -> float:
        """What the training has spent on an example that is in every step, as far as :attr:`releases` tells.

        Infinite for terms without a budget.
        """
        return self._budget.epsilon(self._releases)

    @property
    def releases(self) -> int:
        """The openings begun in the training, up to the last result that was read; all, once the budget is spent."""
        return self._releases

    @property
    def pending(self) -> int:
        """The step whose shares were made last, here or, with ``kept``, by an earlier process; 0 for none."""
        return self._split.step if self._split else 0

    def submit(self, step: int, integers: np.ndarray, *, seconds: float = 60.0) -> None:
        """Sends the shares of a step to both servers; tries again while one is unreachable or busy.

        After an error, submit the same integers again, which sends the same shares; this is harmless where they have
        arrived before.

        Args:
          step: the step's number, from 1.
          integers: the sum of the owner's quantised gradients, int [d].
          seconds: time limit of the whole call.

        Raises:
          InputError: the integers differ from those submitted before for this step, ``kept`` cannot be written (then
            nothing was sent), or a server refuses, in its words.
          BudgetSpent: the budget is spent, as far as this owner or a server knows; it is an InputError.
          ChannelError: a server could not be reached.
        """
        split = self._split
        if split is None or split.step != step:
            self._budget.require(self._releases)
            split = self._split = self._divided(step, np.asarray(integers))
        if not np.array_equal(split.integers, integers):
            raise _validate.expected("integers", f"those of step {step} that were submitted before", "others")
        self._send(split, time.monotonic() + checked_seconds(seconds=seconds))

    def result(self, step: int, *, seconds: float = 60.0) -> Opened:
        """Waits for the result of a step, on which both servers must agree.

        Sends the step's share again to a server that was restarted in the meantime.

        Args:
          step: the step's number.
          seconds: time limit of the whole call.

        Raises:
          InputError: a server refuses, in its words; BudgetSpent if it is for the budget.
          ChannelError: there is no result in time, or the servers' results differ.
        """
        _validate.at_least(1, step=step)
        until = time.monotonic() + checked_seconds(seconds=seconds)
        told: dict[str, Opened] = {}
        while lacking := [server for server in SERVERS if server not in told]:
            answers = self._at_once(lambda server: self._ask(server, step, until), lacking)
            for server, answer in answers.items():
                if opened := self._told(server, answer, step, until):
                    told[server] = opened
        first, second = (told[server] for server in SERVERS)
        if first.owners != second.owners or not np.array_equal(first.values, second.values):
            raise ChannelError(f"step {step}: h1 and h2 report different results")
        self._releases = max(self._releases, first.releases, second.releases)
        return first._replace(releases=max(first.releases, second.releases))

    def close(self) -> None:
        """Closes both connections; a call that waits in another thread ends at once, with a ChannelError."""
        self._closed.set()
        for connection in self._connections.values():
            connection.close()
        self._thread.shutdown()
        self._unlock.close()

    def _divided(self, step: int, integers: np.ndarray) -> _Split:
        if integers.shape != (self._terms.dimension,):
            raise _validate.expected("integers", f"shape [{self._terms.dimension}]", f"shape {list(integers.shape)}")
        pair = shares.split(integers, ring_bits=self._terms.ring_bits)
        first, second = (share.astype(KEPT).tobytes() for share in pair)
        label = randomness.system(SPLIT_BYTES)
        split = _Split(_validate.at_least(1, step=step), integers.copy(), label, (first, second))
        if self._kept is not None:
            head = agreement.stated({"training": self._training(), "step": step, "label": label.hex()})
            try:
                storage.put(self._kept, head.encode() + b"\n" + first + second)
            except OSError as fault:
                found = f"{fault.strerror}: {self._kept}"
                raise _validate.expected("kept", "a file to write the shares to", found) from None
        return split

    def _training(self) -> str:
        """Identifies the owner and the terms."""
        return hashlib.sha256(f"{self._name}\n{self._said}".encode()).hexdigest()

    def _restored(self) -> _Split | None:
        """Reads the shares that an earlier process kept, if any."""
        if self._kept is None or not self._kept.exists():
            return None
        try:
            head, _, both = self._kept.read_bytes().partition(b"\n")
            said = agreement.understood(head)
        except OSError as fault:
            found = f"{fault.strerror}: {self._kept}"
            raise _validate.expected("kept", "a file of shares that can be read", found) from None
        except _validate.InputError:  # which quotes what was found
            said, both = {}, b""
        size = KEPT.itemsize * self._terms.dimension
        if said.get("training") != self._training() or len(both) != 2 * size:
            raise _validate.expected("kept", f"shares of {self._name} in this training", self._kept)
        pair = both[:size], both[size:]
        first, second = (np.frombuffer(share, KEPT).astype(np.int64) for share in pair)
        integers = shares.join(first, second, ring_bits=self._terms.ring_bits)
        return _Split(said["step"], integers, bytes.fromhex(said["label"]), pair)

    def _send(self, split: _Split, until: float) -> None:
        answers = self._at_once(lambda server: self._submit(server, split, until), SERVERS)
        for server, answer in answers.items():
            if isinstance(answer, grpc.RpcError):
                raise self._failure(server, answer) from None

    def _at_once(self, call: Callable[[str], _T], servers: Sequence[str]) -> dict[str, _T | grpc.RpcError]:
        """Calls one or both servers at the same time; returns what each answered, or how its call failed."""

        def answer(server: str) -> _T | grpc.RpcError:
            try:
                return call(server)
            except grpc.RpcError as fault:
                return fault

        try:
            begun = {server: self._thread.submit(answer, server) for server in servers[1:]}
            found = {server: answer(server) for server in servers[:1]}
            return found | {server: each.result() for server, each in begun.items()}
        except (ValueError, RuntimeError):  # of gRPC and of the pool, once they are closed
            if self._closed.is_set():
                raise ChannelError(f"{self._name}: its connections are closed") from None
            raise

    def _submit(self, server: str, split: _Split, until: float) -> None:
        """Sends one server its share."""
        submit = self._calls[server].submit
        values = split.shares[SERVERS.index(server)]
        share = messages.Share(owner=self._name, step=split.step, split=split.label, terms=self._said, values=values)
        while True:
            try:
                submit(share, until - time.monotonic())
            except grpc.RpcError as fault:
                if not _transient(fault) or until <= time.monotonic() or self._closed.is_set():
                    raise
                self._rest(until)
            else:
                return

    def _rest(self, until: float) -> None:
        """Waits for a random moment, so that owners do not retry together."""
        longest = max(_PAUSE, _SPREAD * len(self._terms.owners))
        self._closed.wait(max(0.0, min(random.uniform(0.0, 2 * longest), until - time.monotonic())))

    def _ask(self, server: str, step: int, until: float) -> messages.Opened:
        """Asks one server, with a short time limit."""
        left = max(0.0, min(_LOOK, until - time.monotonic()))
        return self._calls[server].result(messages.Wanted(owner=self._name, step=step), left)

    def _told(self, server: str, answer: messages.Opened | grpc.RpcError, step: int, until: float) -> Opened | None:
        """Returns one server's result; None if it should be asked again."""
        if not isinstance(answer, grpc.RpcError):
            return self._whole(server, answer)
        code, failure = _code(answer), self._failure(server, answer)
        if until <= time.monotonic() or code not in (*_LOST, *_BUSY, grpc.StatusCode.DEADLINE_EXCEEDED):
            raise failure
        if code in _BUSY:
            self._rest(until)
        if code in _LOST:
            self._send_again(step, failure, until)
        return None

    def _whole(self, server: str, told: messages.Opened) -> Opened:
        if len(told.values) != KEPT.itemsize * self._terms.dimension:
            raise ChannelError(f"{server}: expected {self._terms.dimension} coordinates, another number came")
        try:
            owners = self._terms.named(told.owners)
        except _validate.InputError as fault:
            raise ChannelError(f"{server}: {fault}") from None
        return Opened(np.frombuffer(told.values, KEPT).astype(np.int64), owners, told.releases)

    def _send_again(self, step: int, failure: Exception, until: float) -> None:
        """Sends the shares again after a server was unreachable or lacks the share of the step."""
        if self._split is None or self._split.step != step:
            raise failure
        self._closed.wait(_PAUSE)
        with suppress(ChannelError):
            self._send(self._split, until)

    def _failure(self, server: str, fault: grpc.RpcError) -> Exception:
        """Converts the failure of a call: a refusal, in the server's words, or an unreachable server."""
        code, line = _code(fault), f"{server}: {certificates.reason(fault)}"
        if code == SPENT:  # also by openings that failed, of which no result tells
            self._releases = max(self._releases, self._terms.openings)
            return BudgetSpent(line)
        return (_validate.InputError if code in _REFUSED else ChannelError)(line)


def _locked(kept: Path) -> int:
    """Locks the file ``<kept>.lock``: of two processes that made shares of one step, one would send the other's."""
    try:
        return storage.lock(kept.with_name(kept.name + ".lock"))
    except BlockingIOError:
        raise _validate.expected("kept", "a file that no other owner has open", kept) from None
    except OSError as fault:
        raise _validate.expected("kept", "a file to write the shares to", f"{fault.strerror}: {kept}") from None


def _code(fault: grpc.RpcError) -> grpc.StatusCode | None:
    return fault.code() if isinstance(fault, grpc.Call) else None


def _transient(fault: grpc.RpcError) -> bool:
    """Tells whether the same call may succeed later; it will not where certificates are not trusted."""
    lost = _code(fault) == grpc.StatusCode.UNAVAILABLE and "handshake" not in certificates.reason(fault).lower()
    return lost or _code(fault) in _BUSY
