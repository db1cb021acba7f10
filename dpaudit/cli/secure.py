"""Implements ``dpaudit secure``: two servers learn a noisy sum of owners' integers and nothing else (paper 001).

``server`` runs one of the two; ``keys`` makes the certificates by which servers and owners authenticate each other;
``train`` trains a user's model (:mod:`dpaudit.cli.secure_train`).
"""

import dataclasses
import gc
import os
import signal
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from dpaudit import _validate
from dpaudit.cli import freed_memory, secure_train
from dpaudit.cli.command import even_if_unread, tell
from dpaudit.cli.secure_terms import TermsOptions

if TYPE_CHECKING:
    from dpaudit.secure.service import server


@dataclasses.dataclass(frozen=True, kw_only=True)
class Server(TermsOptions):
    """Run one of the two servers of a secure training (paper 001) until it is interrupted. The other server and every
    owner need the same terms: owners, dimension, examples, clip norm, noise, protocol, ring bits, coins, depth,
    budget."""

    role: Literal["h1", "h2"]
    """h1 garbles and connects to h2, which evaluates. The two should be run by parties that do not collude."""
    listen: str
    """HOST:PORT on which owners, and h1, reach this server. For port 0 the system chooses one; the first line of
    output shows it."""
    state: str
    """Directory of the state, from which a server that was killed continues."""
    dimension: int
    """Number of coordinates of the sum."""
    examples: int
    """Largest number of examples of all owners together in a step."""
    peer: str | None = None
    """HOST:PORT of h2, to which h1 connects; h2 ignores it."""
    wait: float = 60.0
    """Seconds for which a round waits for owners; if the other server waits longer, a step is opened after that."""
    deadline: float = 60.0
    """Seconds that a step of the servers may take."""
    rejoin: bool = False
    """Use once after this server's state was lost or restored from a copy: both servers discard their prepared blocks,
    and this one copies the results that it lacks from the other."""
    keys: str | None = None
    """This server's folder from `dpaudit secure keys`; without it, only loopback addresses are allowed."""
    metrics: str | None = None
    """HOST:PORT of this machine at which GET /metrics reports steps, waiting owners, openings, epsilon and bytes."""
    log: Literal["text", "json"] = "text"
    """Format of the log; json writes an object per line: time, server, step (or null), message."""
    insecure: bool = False
    """Allow other machines without certificates; anyone on the network path can then read both shares."""
    attached: bool = False
    """Stop when standard input ends, as it does when the process that started this server was killed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Keys:
    """Make keys and certificates: an authority, and a folder for each server and owner.

    Existing folders are not changed: run it again with more owners to add theirs.
    """

    out: str
    """Where to put the folders of all parties and of the authority. Store the authority's key elsewhere: it is needed
    only to add owners."""
    owners: tuple[str, ...]
    """Names of the owners."""
    days: int = 365
    """Days for which certificates are valid."""


@dataclasses.dataclass(frozen=True)
class Secure:
    """Sum the owners' integers between two servers, neither of which sees them; make the parties' keys; train."""

    command: Annotated[
        Annotated[Server, tyro.conf.subcommand("server", prefix_name=False)]
        | Annotated[Keys, tyro.conf.subcommand("keys", prefix_name=False)]
        | Annotated[secure_train.Train, tyro.conf.subcommand("train", prefix_name=False)],
        tyro.conf.arg(name=""),
    ]


def run(options: Secure) -> None:
    """Runs a server until SIGINT or SIGTERM, makes keys, or trains.

    Raises:
      InputError: options are unusable, or differ from the peer's.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # failures are reported in our own log lines
    from dpaudit.secure.service import certificates

    freed_memory.keep()
    command = options.command
    if isinstance(command, Server):
        _serve(command)
    elif isinstance(command, secure_train.Train):
        secure_train.run(command)
    else:
        with even_if_unread():
            for name in certificates.make(command.out, command.owners, days=command.days):
                print(f"{command.out}/{name}")


def _serve(options: Server) -> None:
    from dpaudit.secure.service import certificates, monitoring, server

    own = certificates.read(options.keys, name=options.role) if options.keys else None
    terms = options.terms(options.dimension, options.examples)

    def log(line: str) -> None:
        if options.log == "json":
            tell(monitoring.as_json(options.role, line))
        else:
            tell(f"dpaudit {options.role}: {line}")

    running: list[server.Server] = []
    metrics = None
    if options.metrics:
        metrics = monitoring.Metrics(options.metrics, lambda: running[0].figures() if running else {})
    serving = server.Server(
        options.role,
        terms,
        listen=options.listen,
        state=options.state,
        peer=options.peer,
        own=own,
        insecure=options.insecure,
        wait=options.wait,
        deadline=options.deadline,
        rejoin=options.rejoin,
        log=log,
    )
    running.append(serving)
    _stops_at_signals(serving.stop)
    if options.attached:
        threading.Thread(target=_stops_with_input, args=(serving,), daemon=True).start()
    with even_if_unread():
        print(f"{options.role} listens on {options.listen.rpartition(':')[0]}:{serving.port}", flush=True)
        if metrics:
            print(f"{options.role} serves metrics on port {metrics.port}", flush=True)
    gc.freeze()  # what start-up made stays, and collections need not look through it
    try:
        serving.run()
    except _validate.InputError as fault:
        raise _validate.InputError(monitoring.printable(str(fault))) from None


def _stops_at_signals(stop: Callable[[], None]) -> None:
    """Makes SIGINT and SIGTERM call ``stop`` in a thread of its own, as the main one may hold the locks it needs."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: threading.Thread(target=stop, daemon=True).start())


def _stops_with_input(serving: "server.Server") -> None:
    while os.read(0, 1024):
        pass
    serving.stop()
