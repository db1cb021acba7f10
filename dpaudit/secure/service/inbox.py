"""Accepts the owners' shares of the next step over gRPC, and answers owners that ask for a step's result.

A share is accepted as a whole or not at all: exactly d whole numbers of the ring, from an owner of the training, for
the next step. Sending the same share again is harmless; a different one for the same step is refused. Accepted shares
stay until the step is completed, also when an opening fails; those whose norm the servers refuse are discarded.

A call keeps a thread from its start, so its message has limited time to arrive. With certificates, who calls is known
before that: a call of none of the owners is refused at once, and an owner may have a few calls at a time, silent
ones included. One of an owner's calls may wait for a result. The others are asked to try again, so that no owner keeps
another from submitting or from waiting.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import NoReturn, TypeVar

import numpy as np

from dpaudit import _validate
from dpaudit.secure.crypto import shares
from dpaudit.secure.protocol import agreement
from dpaudit.secure.protocol.agreement import Budget, BudgetSpent, Terms
from dpaudit.secure.protocol.two_server_sum import KEPT
from dpaudit.secure.service import certificates, monitoring
from dpaudit.secure.service.certificates import Tls
from dpaudit.secure.service.records import Records

with _validate.extra("secure"):
    import grpc
    from google.protobuf.message import DecodeError

    from dpaudit.secure.service.spgc_pb2 import Opened, Receipt, Share, Wanted

_Message = TypeVar("_Message", Share, Wanted)

SPLIT_BYTES = 16
SERVICE = "dpaudit.secure.Owners"
SPENT = grpc.StatusCode.OUT_OF_RANGE  # of a share for an opening beyond the budget, or its result
WORKERS = 64  # threads that answer owners
WAITING = 32  # owners that may wait for a result, a thread each; others are asked to try again
CALLS = 4  # of one owner at a time
_ARRIVES = 20.0  # seconds for a message to arrive, and
_SLOWEST = 1 << 16  # bytes of values for another second
_ALIVE = 0.2  # seconds between checks whether an owner is still connected
_LOOK = 0.1  # seconds between checks whether to stop


class Inbox:
    """Holds the shares of the next step at one server. Thread-safe.

    Args:
      terms: of the training.
      completed: the number of the last completed step.

    Attributes:
      ended: whether no step after the last completed one will ever be opened.
    """

    def __init__(self, terms: Terms, completed: int) -> None:
        self._terms, self._completed, self.ended = terms, completed, False
        lock = threading.RLock()
        self._changed, self._completes = threading.Condition(lock), threading.Condition(lock)
        self._held: dict[str, tuple[bytes, np.ndarray]] = {}
        self._refused: dict[str, bytes] = {}  # the splits of this step whose norm was too large

    def take(self, owner: str, step: int, split: bytes, values: bytes) -> None:
        """Accepts an owner's share; ignores one of a completed step.

        Args:
          owner: the owner's name.
          step: the step's number.
          split: 16 bytes that both shares of one splitting have in common.
          values: int32, little-endian.

        Raises:
          InputError: the share is refused, as described above; nothing has changed.
        """
        half, dimension = 1 << (self._terms.ring_bits - 1), self._terms.dimension
        self._terms.owner(owner=owner)
        if len(split) != SPLIT_BYTES:
            raise _validate.expected("split", f"{SPLIT_BYTES} bytes", len(split))
        if len(values) != KEPT.itemsize * dimension:
            raise _validate.expected("values", f"{dimension} coordinates", f"{len(values) / KEPT.itemsize:g}")
        share = np.frombuffer(values, KEPT)
        outside = (share < -half) | (share >= half)
        if outside.any():
            raise _validate.expected("values", f"integers in [{-half}, {half})", f"{outside.sum()} beyond")
        with self._changed:
            if 1 <= step <= self._completed:
                return
            if step != self._completed + 1:
                raise _validate.expected("step", f"{self._completed + 1}, the next one", step)
            if self._refused.get(owner) == split:
                raise self._too_long()
            earlier_split, earlier = self._held.setdefault(owner, (split, share))
            if earlier_split != split or not np.array_equal(earlier, share):
                raise _validate.expected("values", f"the share of step {step} that came before", "another one")
            self._changed.notify_all()

    def collect(self, seconds: float, stop: Callable[[], bool]) -> dict[str, bytes]:
        """Waits until all owners' shares have arrived, the time is over, or ``stop()`` is true.

        Returns:
          The splits of the owners whose shares have arrived.
        """
        until = time.monotonic() + seconds
        with self._changed:
            while len(self._held) < len(self._terms.owners) and not stop() and time.monotonic() < until:
                self._changed.wait(min(_LOOK, max(0.0, until - time.monotonic())))
            return {owner: split for owner, (split, _) in self._held.items()}

    def held(self) -> int:
        """Counts the owners whose shares have arrived."""
        return len(self._held)

    def shares(self, owners: Sequence[str]) -> list[np.ndarray]:
        """Lists this server's shares of these owners, int32 [d] each."""
        with self._changed:
            return [self._held[owner][1] for owner in owners]

    def total(self, owners: Sequence[str]) -> np.ndarray:
        """Adds up this server's share of the sum of these owners: int64 [d]."""
        held = (share.astype(np.int64) for share in self.shares(owners))
        return shares.add(held, ring_bits=self._terms.ring_bits)

    def forget(self, owners: Iterable[str]) -> None:
        """Discards these owners' shares of the step; they may send others."""
        with self._changed:
            for owner in owners:
                self._held.pop(owner, None)

    def refuse(self, owners: Iterable[str]) -> None:
        """Discards these owners' shares of the step, whose norm is too large; they may send others."""
        with self._changed:
            self._refused |= {owner: self._held.pop(owner)[0] for owner in owners}

    def complete(self, step: int, *, last: bool = False) -> None:
        """Marks a step as completed, and if so as the last: discards its shares and wakes owners that wait for it."""
        with self._changed:
            if step > self._completed:
                self._completed, self._held, self._refused = step, {}, {}
            self.ended = self.ended or last
            self._completes.notify_all()

    def wait(self, owner: str, step: int, seconds: float) -> bool:
        """Waits until the step is completed; returns whether it is.

        Raises:
          InputError: the owner's share of this step has not arrived.
        """
        self._terms.owner(owner=owner)
        with self._changed:
            if step == self._completed + 1 and owner in self._refused and owner not in self._held:
                raise self._too_long()
            if step < 1 or (step > self._completed and (step != self._completed + 1 or owner not in self._held)):
                raise _validate.expected("step", f"one with a share of {owner}, or a completed one", step)
            return self._completes.wait_for(lambda: step <= self._completed, seconds)

    def _too_long(self) -> _validate.InputError:
        wanted = f"integers of L2 norm at most that of {self._terms.owner_examples} clipped examples"
        return _validate.expected("values", wanted, "longer ones, by the check of both servers")


class Places:
    """Counts the calls of each owner, and those that wait for a result. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: Counter[str] = Counter()
        self._waiting: set[str] = set()

    def enter(self, owner: str) -> bool:
        """Counts a call, unless the owner has :data:`CALLS` already; tells whether it was counted."""
        with self._lock:
            if self._calls[owner] >= CALLS:
                return False
            self._calls[owner] += 1
            return True

    def leave(self, owner: str) -> None:
        """Ends a call that was counted."""
        with self._lock:
            self._calls[owner] -= 1
            if not self._calls[owner]:
                del self._calls[owner]

    def wait(self, owner: str) -> bool:
        """Takes a place to wait in, if the owner has none yet and one of :data:`WAITING` is free."""
        with self._lock:
            if owner in self._waiting or len(self._waiting) >= WAITING:
                return False
            self._waiting.add(owner)
            return True

    def go(self, owner: str) -> None:
        """Gives the place back."""
        with self._lock:
            self._waiting.discard(owner)


class OwnersService:
    """Serves owners over gRPC. A call that is refused affects no other owner.

    Args:
      server: the gRPC server, not yet started, with :data:`WORKERS` threads.
      terms: of the training.
      inbox: holds the shares.
      records: hold the results.
      budget: the budget of the training; a share for an opening beyond it is refused, as is waiting for its result.
      own: this server's certificate; with one, an owner must show a certificate for the name that it states.
      log: receives each refusal, as one line, except for those of messages that are too long, which gRPC refuses.
    """

    def __init__(
        self,
        server: grpc.Server,
        terms: Terms,
        inbox: Inbox,
        records: Records,
        budget: Budget,
        own: Tls | None,
        log: Callable[[str], None],
    ) -> None:
        self._terms, self._inbox, self._records, self._budget = terms, inbox, records, budget
        self._tls, self._log = own, log
        self._places, self._stated = Places(), agreement.stated(terms.statement())
        self._encoded: tuple[object, Opened] | None = None  # the last result that was told, by what its file is
        self._readers = ThreadPoolExecutor(WORKERS)  # of messages; a call waits for its own with a limit of time
        self._arrives = _ARRIVES + KEPT.itemsize * terms.dimension / _SLOWEST
        # As streams, of one message: gRPC reads that of a unary call before it asks us, and waits without limit.
        submit = grpc.stream_unary_rpc_method_handler(self._submit, response_serializer=Receipt.SerializeToString)
        result = grpc.stream_unary_rpc_method_handler(self._result, response_serializer=Opened.SerializeToString)
        handlers = {"Submit": submit, "Result": result}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))

    def _submit(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Receipt:
        with self._call(context) as caller:
            share = self._message_of(Share, caller, requests, context)
            try:
                if share.terms != self._stated:
                    agreement.same(self._terms, agreement.understood(share.terms))
                self._require(share.step)
                self._inbox.take(share.owner, share.step, share.split, share.values)
            except _validate.InputError as fault:
                code = SPENT if isinstance(fault, BudgetSpent) else grpc.StatusCode.INVALID_ARGUMENT
                who = monitoring.short(share.owner) or caller
                self._refuse(context, code, f"{who}: a share of step {share.step}", str(fault))
        return Receipt()

    def _result(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Opened:
        with self._call(context) as caller:
            wanted = self._message_of(Wanted, caller, requests, context)
            try:
                return self._told(wanted, context)
            except _validate.InputError as fault:
                code = SPENT if isinstance(fault, BudgetSpent) else grpc.StatusCode.FAILED_PRECONDITION
                who = monitoring.short(wanted.owner) or caller
                self._refuse(context, code, f"{who}: asking for the result of step {wanted.step}", str(fault))

    @contextmanager
    def _call(self, context: grpc.ServicerContext) -> Iterator[str]:
        """Counts a call, before its message is read, and says who calls: an owner or, in the clear, an address.

        Refuses a caller whose certificate is not an owner's, and an owner's call beyond its number.
        """
        if self._tls is None:
            yield context.peer()
            return
        names = certificates.names(context)
        owner = names[0] if len(names) == 1 else ""
        if self._terms.place(owner) is None:
            line = f"certificate: expected one for an owner of the training, got {names}"
            self._refuse(context, grpc.StatusCode.PERMISSION_DENIED, certificates.host(context), line)
        if not self._places.enter(owner):
            context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"at most {CALLS} calls of an owner at a time: ask again"
            )
        try:
            yield owner
        finally:
            self._places.leave(owner)

    def _message_of(
        self, kind: type[_Message], caller: str, requests: Iterator[bytes], context: grpc.ServicerContext
    ) -> _Message:
        """Returns the one message of a call; no message is read as an empty one.

        Refuses what is late, is no message, or states another owner than the caller's certificate.
        """
        try:
            data = self._readers.submit(next, requests, b"").result(self._arrives)
            message = kind.FromString(data)
        except TimeoutError:
            line = f"message: expected within {self._arrives:.0f} seconds, got none or a part"
            self._refuse(context, grpc.StatusCode.DEADLINE_EXCEEDED, f"{caller}: a call", line)
        except DecodeError:
            line = f"message: expected {kind.__name__}, got something else"
            self._refuse(context, grpc.StatusCode.INVALID_ARGUMENT, f"{caller}: a call", line)
        certificates.require(context, message.owner, self._tls, self._log)
        return message

    def _refuse(self, context: grpc.ServicerContext, code: grpc.StatusCode, what: str, line: str) -> NoReturn:
        """Ends a call by a refusal, and logs it."""
        self._log(f"{what} is refused: {line}")
        context.abort(code, monitoring.printable(line))

    def _told(self, wanted: Wanted, context: grpc.ServicerContext) -> Opened:
        waits = self._places.wait(wanted.owner)
        try:
            while not self._inbox.wait(wanted.owner, wanted.step, _ALIVE if waits else 0.0):
                self._require(wanted.step)
                if not waits:
                    context.abort(grpc.StatusCode.ABORTED, f"step {wanted.step} is not completed yet: ask again")
                if not context.is_active():
                    return Opened()
        finally:
            if waits:
                self._places.go(wanted.owner)
        try:
            return self._message(wanted.step)
        except _validate.InputError as fault:
            self._log(f"the result of step {wanted.step} cannot be read: {fault}")
            context.abort(grpc.StatusCode.DATA_LOSS, f"the result of step {wanted.step} is lost here")

    def _require(self, step: int) -> None:
        """Raises BudgetSpent for a step that the budget of the training no longer allows.

        Until the last opening has ended, and this server has heard whether the other has its result, the budget is
        spent but the step may still be completed.
        """
        if self._inbox.ended and step > self._records.completed:
            self._budget.require(self._records.releases)

    def _message(self, step: int) -> Opened:
        """Encodes a step's result, which all owners ask for one after the other."""
        file = self._records.file(step)
        told = self._encoded
        if told is None or told[0] != file:
            opened = self._records.opened(step)
            owners, values = self._terms.names(opened.owners), opened.values.astype(KEPT).tobytes()
            told = self._encoded = file, Opened(owners=owners, releases=opened.releases, values=values)
        return told[1]
