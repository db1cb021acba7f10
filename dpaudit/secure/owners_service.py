"""What a server offers to owners over gRPC: to take their shares, and to tell what a step opened."""

from collections.abc import Callable, Iterator

import grpc

from dpaudit import check
from dpaudit.secure import agreement, tls
from dpaudit.secure.agreement import Terms
from dpaudit.secure.inbox import Inbox
from dpaudit.secure.records import Records
from dpaudit.secure.reveal import KEPT
from dpaudit.secure.spgc_pb2 import Opened, Receipt, Share, Wanted
from dpaudit.secure.tls import PIECE, Tls

SERVICE = "dpaudit.secure.Owners"
_LOOK = 0.2  # seconds between two looks at whether an owner is still there


class OwnersService:
    """One server's. Whatever is wrong with a call is told to its owner and to ``log``, and touches nobody else's data.

    Args:
      server: of gRPC, not yet started.
      terms: of the training.
      inbox: takes the shares.
      records: has the results.
      own: this server's certificate; then an owner must show one for the name that is given.
      log: is told each refusal, in one line.
    """

    def __init__(
        self,
        server: grpc.Server,
        terms: Terms,
        inbox: Inbox,
        records: Records,
        own: Tls | None,
        log: Callable[[str], None],
    ) -> None:
        self._terms, self._inbox, self._records, self._tls, self._log = terms, inbox, records, own, log
        submit = grpc.stream_unary_rpc_method_handler(
            self._submit, request_deserializer=Share.FromString, response_serializer=Receipt.SerializeToString
        )
        result = grpc.unary_stream_rpc_method_handler(
            self._result, request_deserializer=Wanted.FromString, response_serializer=Opened.SerializeToString
        )
        handlers = {"Submit": submit, "Result": result}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))

    def _submit(self, messages: Iterator[Share], context: grpc.ServicerContext) -> Receipt:
        head = Share.Head()
        try:
            first = next(messages, Share())
            head = first.head
            tls.require(context, head.owner, self._tls, self._log)
            values = self._values(first, messages)
            self._inbox.take(head.owner, head.step, head.split, values)
        except check.InputError as fault:
            self._log(f"{head.owner or context.peer()}: a share of step {head.step} is refused: {fault}")
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(fault))
        except grpc.RpcError:
            self._log(f"{head.owner or context.peer()}: a share of step {head.step} broke off")
            raise
        return Receipt()

    def _values(self, first: Share, messages: Iterator[Share]) -> bytes:
        """All values of a share whose terms are ours; more than they ask for are not waited for."""
        agreement.same(self._terms, agreement.understood(first.head.terms))
        values = bytearray(first.values)
        for message in messages:
            values += message.values
            if len(values) > KEPT.itemsize * self._terms.dimension:
                raise check.expected("values", f"{self._terms.dimension} coordinates", "more")
        return bytes(values)

    def _result(self, wanted: Wanted, context: grpc.ServicerContext) -> Iterator[Opened]:
        tls.require(context, wanted.owner, self._tls, self._log)
        try:
            while not self._inbox.wait(wanted.owner, wanted.step, _LOOK):
                if not context.is_active():
                    return
        except check.InputError as fault:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(fault))
        opened = self._records.opened(wanted.step)
        values = opened.values.astype(KEPT).tobytes()
        yield Opened(head=Opened.Head(owners=opened.owners, releases=opened.releases), values=values[:PIECE])
        for start in range(PIECE, len(values), PIECE):
            yield Opened(values=values[start : start + PIECE])
