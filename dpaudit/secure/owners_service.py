"""What a server offers to owners over gRPC: to take their shares, and to tell what a step opened."""

import threading
from collections.abc import Callable

import grpc

from dpaudit import check
from dpaudit.secure import agreement, lines, tls
from dpaudit.secure.agreement import Terms
from dpaudit.secure.budget import Budget
from dpaudit.secure.inbox import Inbox
from dpaudit.secure.records import Records
from dpaudit.secure.reveal import KEPT
from dpaudit.secure.spgc_pb2 import Opened, Receipt, Share, Wanted
from dpaudit.secure.tls import Tls

SERVICE = "dpaudit.secure.Owners"
WAITING = 32  # owners that may wait for a result, each with a thread; others are told to ask again
_LOOK = 0.2  # seconds between two looks at whether an owner is still there


class OwnersService:
    """One server's. Whatever is wrong with a call is told to its owner and to ``log``, and touches nobody else's data.

    Args:
      server: of gRPC, not yet started.
      terms: of the training.
      inbox: takes the shares.
      records: has the results.
      budget: of the training; a share for an opening beyond it is refused.
      own: this server's certificate; then an owner must show one for the name that is given.
      log: is told each refusal, in one line.
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
        self._waiting = threading.BoundedSemaphore(WAITING)
        submit = grpc.unary_unary_rpc_method_handler(
            self._submit, request_deserializer=Share.FromString, response_serializer=Receipt.SerializeToString
        )
        result = grpc.unary_unary_rpc_method_handler(
            self._result, request_deserializer=Wanted.FromString, response_serializer=Opened.SerializeToString
        )
        handlers = {"Submit": submit, "Result": result}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))

    def _submit(self, share: Share, context: grpc.ServicerContext) -> Receipt:
        try:
            tls.require(context, share.owner, self._tls, self._log)
            agreement.same(self._terms, agreement.understood(share.terms))
            if share.step > self._records.completed:
                self._budget.require(self._records.releases)
            self._inbox.take(share.owner, share.step, share.split, share.values)
        except check.InputError as fault:
            who = lines.short(share.owner) or context.peer()
            self._log(f"{who}: a share of step {share.step} is refused: {fault}")
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(fault))
        return Receipt()

    def _result(self, wanted: Wanted, context: grpc.ServicerContext) -> Opened:
        tls.require(context, wanted.owner, self._tls, self._log)
        waits = self._waiting.acquire(blocking=False)
        try:
            while not self._inbox.wait(wanted.owner, wanted.step, _LOOK if waits else 0.0):
                if not waits:
                    context.abort(grpc.StatusCode.ABORTED, f"step {wanted.step} is not completed yet: ask again")
                if not context.is_active():
                    return Opened()
        except check.InputError as fault:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(fault))
        finally:
            if waits:
                self._waiting.release()
        try:
            opened = self._records.opened(wanted.step)
        except check.InputError as fault:
            self._log(f"the result of step {wanted.step} cannot be told: {fault}")
            context.abort(grpc.StatusCode.DATA_LOSS, f"the result of step {wanted.step} is lost here")
        owners, values = self._terms.names(opened.owners), opened.values.astype(KEPT).tobytes()
        return Opened(owners=owners, releases=opened.releases, values=values)
