"""Runs one of the two servers of a training: collects owners' shares, opens their sum with its peer, serves results.

A round waits at most ``wait`` seconds for owners, and ends early when all shares have arrived; of two servers that
wait for different times, the one waits for the other. Then they compare which owners' shares both have. If these are
all, or at least ``least_owners`` where the terms allow it, they open the sum; otherwise the shares stay and a new
round of the same step begins. If the terms ask for it, they first check the norm of each owner's integers, and leave
out those that are too long. What the servers do together has ``deadline`` seconds. Any failure between them ends their
session on both sides, and H1 calls again: the step is repeated with new secrets. Once the budget of the terms is
spent, nothing more is opened; results are still served.

H2 stays up after any call: it refuses, in one log line, a caller whose terms or state do not match its own, or a
second caller during a session, and keeps the shares that wait. H1 ends if H2 never accepted it, and calls again
otherwise.

A server that was killed continues after its last completed step. It has lost the shares of the step in progress; their
owners, who learn of it when they ask for the result, send them again.
"""

import resource
import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dpaudit import _validate
from dpaudit.secure.channel import Channel, ChannelError, checked_seconds
from dpaudit.secure.protocol import agreement
from dpaudit.secure.protocol.agreement import Budget, Terms
from dpaudit.secure.protocol.two_server_sum import KEPT
from dpaudit.secure.service import certificates, grpc_wire, monitoring
from dpaudit.secure.service.certificates import Tls
from dpaudit.secure.service.grpc_wire import GrpcWire, Listener
from dpaudit.secure.service.inbox import WORKERS, Inbox, OwnersService
from dpaudit.secure.service.records import Records
from dpaudit.secure.service.session import PEER, Session

with _validate.extra("secure"):
    import grpc

_PAUSE = 0.3  # seconds between two calls to an unreachable peer
_GREETING = 10.0  # seconds for a caller to state its terms; longer only to copy a result
_FILES = 256  # open at once, besides a connection per owner
_STREAMS = 128  # calls of one connection at a time; more are refused, or wait at the caller


class Server:
    """Listens as one of the two servers; :meth:`run` plays its part in the training.

    Args:
      role: "h1" or "h2".
      terms: the terms of the training.
      listen: host:port; the system chooses a port for 0.
      state: directory of its state, used by no other server.
      peer: H2's address, needed by H1, which calls.
      own: this server's certificate, if there is one.
      insecure: whether to talk to other machines without a certificate.
      wait: seconds that a round waits for owners; if the other server's are more, the step is opened after these.
      deadline: seconds that a step of the servers, or the beginning of a session, may take.
      rejoin: start the first session anew (:mod:`dpaudit.secure.service.session`), for a state that was restored from
        a copy or is new.
      log: receives a line for each event.

    Attributes:
      port: the port on which it listens.

    Raises:
      InputError: a value is out of range, or an address or a directory cannot be used.
    """

    def __init__(
        self,
        role: str,
        terms: Terms,
        *,
        listen: str,
        state: str | Path,
        peer: str | None = None,
        own: Tls | None = None,
        insecure: bool = False,
        wait: float = 60.0,
        deadline: float = 60.0,
        rejoin: bool = False,
        log: Callable[[str], None] = print,
    ) -> None:
        _validate.one_of(PEER, role=role)
        if role == "h1" and peer is None:
            raise _validate.expected("peer", "the address of h2, which h1 calls", "none")
        self._role, self._terms, self._peer, self._own, self._insecure = role, terms, peer, own, insecure
        self._wait, self._deadline = checked_seconds(wait=wait), checked_seconds(deadline=deadline)
        self._rejoin, self._let_in, self._budget = rejoin, False, Budget(terms)
        self._log = lambda line: log(monitoring.printable(line))
        self._stopped = threading.Event()
        self._wire: GrpcWire | None = None
        self._said = ""
        self._channel: Channel | None = None
        self._earlier, self._sessions = (0, 0), 0  # bytes of closed channels; sessions begun
        self._refused = 0  # submissions whose norm was too large
        options = certificates.options(KEPT.itemsize * terms.dimension)
        self._server = grpc.server(  # whose maximum_concurrent_rpcs would count owners' calls and refuse H1's
            ThreadPoolExecutor(WORKERS), options=[*options, ("grpc.max_concurrent_streams", _STREAMS)]
        )
        self.port = certificates.listen(self._server, listen, own, insecure=insecure)
        self._records = Records(state, role, terms)
        self._inbox = Inbox(terms, self._records.completed)
        if (files := _descriptors(len(terms.owners) + _FILES)) is not None:
            self._log(
                f"the system allows this process {files} open files, too few for {len(terms.owners)} owners at once"
            )
        self._listener = Listener(self._server, own, self._log_once) if role == "h2" else None
        OwnersService(self._server, terms, self._inbox, self._records, self._budget, own, self._log)
        self._server.start()

    def run(self) -> None:
        """Runs until :meth:`stop`.

        Raises:
          InputError: this is H1, and its first call was refused by or refused H2; or the state can no longer be
            written.
        """
        try:
            while not self._stopped.is_set():
                try:
                    self._session()
                except ChannelError as fault:
                    why = str(fault).partition(": ")[2]  # without which message it met, which changes
                    self._log_once(f"no session with {PEER[self._role]}: {fault}", why)
                    self._stopped.wait(_PAUSE)
                except _validate.InputError as fault:
                    if self._listener is None and not self._let_in:
                        raise
                    who = f"h1 at {self._listener.caller}" if self._listener else "h2"
                    self._log_once(f"{who} is refused: {fault}")
                    self._stopped.wait(_PAUSE)
        except OSError as fault:
            raise _validate.expected("state", "a directory to write to", fault) from None
        finally:
            self._server.stop(grace=1.0).wait()
            self._records.close()

    def figures(self) -> dict[str, float]:
        """Returns the metrics: counts over the life of this state, bytes and sessions of this process."""
        records, terms = self._records, self._terms
        sent, received = self._moved()
        shown = {
            "steps_completed": records.completed,
            "openings_begun": records.releases,
            "owners": len(terms.owners),
            "owners_waiting": self._inbox.held(),
            "submissions_refused": self._refused,
            "sessions": self._sessions,
            "session_open": self._channel is not None,
            "peer_bytes_sent": sent,
            "peer_bytes_received": received,
            **monitoring.used(),
        }
        if terms.openings:
            spent = self._budget.epsilon(records.releases)
            shown |= {"openings_allowed": terms.openings, "epsilon_spent": spent, "epsilon_budget": terms.epsilon}
        return shown

    def _moved(self) -> tuple[int, int]:
        """Counts the bytes of payload to and from the peer."""
        channel, sides = self._channel, []
        for before, side in zip(self._earlier, ("sent", "received"), strict=True):
            now = getattr(channel, side).copy() if channel else {}
            sides.append(before + sum(each.payload_bytes for each in now.values()))
        return sides[0], sides[1]

    def stop(self) -> None:
        """Makes :meth:`run` end soon; callable from any thread or signal handler."""
        self._stopped.set()
        if wire := self._wire:
            wire.close()

    def _session(self) -> None:
        wire = self._connected()
        if wire is None:
            return
        self._wire = wire
        self._channel = channel = Channel(wire, min(_GREETING, self._deadline))
        try:
            session = Session(
                channel,
                self._role,
                self._terms,
                self._records,
                budget=self._budget,
                rejoin=self._rejoin,
                wait=self._wait,
                seconds=self._deadline,
            )
            self._rejoin, self._let_in = False, True
            self._sessions += 1
            self._tell()
            label = "; noise from a table, a reproduction that is not private" if self._terms.noise == "table" else ""
            self._log_once(f"session with {PEER[self._role]}: {self._records.completed} steps are complete{label}")
            while not self._stopped.is_set():
                self._round(session, channel, wire)
        except ChannelError:
            if not self._stopped.is_set():
                raise
        finally:
            self._earlier, self._channel = self._moved(), None
            wire.abandon()

    def _connected(self) -> GrpcWire | None:
        """Returns a wire to the peer; None if there is none yet."""
        if self._listener is None:
            return grpc_wire.connect(str(self._peer), self._own, insecure=self._insecure)
        return self._listener.next(_PAUSE)

    def _round(self, session: Session, channel: Channel, wire: GrpcWire) -> None:
        step = self._records.completed + 1
        if self._budget.spent(self._records.releases):
            self._log_once(
                f"the budget is spent: {self._budget.describe(self._records.releases)}; no more steps are opened"
            )
            while not self._ended(wire):
                self._stopped.wait(_PAUSE)
            raise ChannelError("the other server has ended the session")
        session.prepare(self._deadline)
        channel.deadline(session.round)
        held = self._inbox.collect(self._wait, lambda: self._ended(wire))
        owners, torn = session.agree(step, held)
        for owner in torn[: agreement.MOST]:
            self._log(f"step {step}: {owner}'s two shares do not belong together; both servers discard them")
        if torn[agreement.MOST :]:
            self._log(f"step {step}: nor do those of {len(torn) - agreement.MOST} others")
        self._inbox.forget(torn)
        present = {*owners, *torn}
        lacking = [owner for owner in self._terms.owners if owner not in present]
        if lacking and held:
            here = [f"{owner}{'' if owner in held else ' (not here either)'}" for owner in lacking]
            self._log(f"step {step}: shares are not at both servers of: {agreement.listed(here)}")
        if len(owners) >= self._terms.least_owners:
            owners = self._within(session, step, owners)
        if len(owners) < self._terms.least_owners:
            return
        channel.deadline(self._deadline)
        session.open(step, owners, self._inbox.total(owners))
        self._tell()
        self._log(f"step {step}: complete, of {len(owners)} owners; {self._budget.describe(self._records.releases)}")

    def _tell(self) -> None:
        """Tells owners which steps are completed, and whether that was the last: the two servers agree on both now."""
        records = self._records
        self._inbox.complete(records.completed, last=self._budget.spent(records.releases))

    def _within(self, session: Session, step: int, owners: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the owners whose integers are as short as the terms ask, if they do; refuses those of the others."""
        long = set(session.longer(owners, self._inbox.shares(owners), self._deadline))
        if long:
            self._inbox.refuse(long)
            self._refused += len(long)
            wanted = f"at most the norm of {self._terms.owner_examples} clipped examples"
            self._log(f"step {step}: expected integers of {wanted}, longer ones are refused of: {_named(long)}")
        return tuple(owner for owner in owners if owner not in long)

    def _ended(self, wire: GrpcWire) -> bool:
        return wire.closed or self._stopped.is_set()

    def _log_once(self, line: str, why: str = "") -> None:
        """Logs a line, unless it, or the reason that it gives, repeats the last one logged here."""
        if (why or line) != self._said:
            self._log(line)
        self._said = why or line


def _named(owners: Collection[str]) -> str:
    return agreement.listed(sorted(owners))


def _descriptors(wanted: int) -> int | None:
    """Raises this process's limit of open files; returns the limit if the system allows fewer than wanted."""
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, most))
    return allowed if allowed < wanted else None
