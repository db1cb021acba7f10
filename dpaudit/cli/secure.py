"""Implements ``dpaudit secure``: two servers learn a noisy sum of owners' integers and nothing else (paper 001).

``server`` runs one of the two; ``keys`` makes the certificates by which servers and owners authenticate each other.
"""

import dataclasses
import os
import signal
import sys
from typing import Annotated, Literal

import tyro

from dpaudit import _validate


@dataclasses.dataclass(frozen=True, kw_only=True)
class Server:
    """Run one of the two servers of a secure training (paper 001) until it is interrupted. The other server and every
    owner need the same terms: owners, dimension, examples, clip norm, noise, protocol, ring bits, coins, depth,
      budget.
    """

    role: Literal["h1", "h2"]
    """h1 garbles and connects to h2, which evaluates. The two should be run by parties that do not collude."""
    listen: str
    """HOST:PORT on which owners, and h1, reach this server. For port 0 the system chooses one; the first line of
    output shows it."""
    state: str
    """Directory of the state, from which a server that was killed continues."""
    owners: tuple[str, ...]
    """Names of all owners, as in their certificates."""
    dimension: int
    """Number of coordinates of the sum."""
    examples: int
    """Largest number of examples of all owners together in a step."""
    peer: str | None = None
    """HOST:PORT of h2, to which h1 connects; h2 ignores it."""
    clip_norm: float = 1.0
    """L2 norm to which each example's gradient is clipped."""
    noise_multiplier: float | None = None
    """Standard deviation of the noise divided by the clip norm; not for mode plain."""
    mode: Literal["noisy", "plain"] = "noisy"
    """noisy adds noise; plain opens the sum without noise, which is not private."""
    noise: Literal["binomial", "table"] = "binomial"
    """Distribution of the noise. table is the paper's, for comparison: it is not private, and large in rings of more
    than 17 bits."""
    protocol: Literal["circuit", "transfers"] | None = None
    """How the servers make the noise: by a garbled circuit, as in the paper, or by oblivious transfers alone, which
    send a third of the bytes and compute less. By default transfers where the noise is binomial."""
    least_owners: int | None = None
    """Number of owners with which a step proceeds once --wait is over; by default all."""
    coins: int = 127
    """Number of coins of the binomial noise, 2^k - 1."""
    ring_bits: int = 25
    """Bits of the ring: shares are modulo 2 to this power."""
    depth: Literal[1, 2, 4] = 1
    """Depth of the oblivious transfers: a larger one sends fewer bytes and computes more."""
    ahead: int = 0
    """Number of steps for which the servers prepare garbled blocks on disk in advance, while they wait for owners."""
    budget: tuple[float, float] | None = None
    """EPSILON DELTA of the whole training, for a record in every step; once it is spent, nothing more is opened."""
    wait: float = 60.0
    """Seconds for which a round waits for owners."""
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
    """Sum the owners' integers between two servers, neither of which sees them; make the parties' keys."""

    command: Annotated[
        Annotated[Server, tyro.conf.subcommand("server", prefix_name=False)]
        | Annotated[Keys, tyro.conf.subcommand("keys", prefix_name=False)],
        tyro.conf.arg(name=""),
    ]


def run(options: Secure) -> None:
    """Runs a server until SIGINT or SIGTERM, or makes keys.

    Raises:
      InputError: options are unusable, or differ from the peer's.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # failures are reported in our own log lines
    from dpaudit.secure.service import certificates

    command = options.command
    if isinstance(command, Server):
        _serve(command)
    else:
        for name in certificates.make(command.out, command.owners, days=command.days):
            print(f"{command.out}/{name}")


def _serve(options: Server) -> None:
    from dpaudit.secure.protocol import agreement
    from dpaudit.secure.service import certificates, monitoring, server

    own = certificates.read(options.keys, name=options.role) if options.keys else None
    terms = agreement.terms(
        owners=options.owners,
        dimension=options.dimension,
        examples=options.examples,
        clip_norm=options.clip_norm,
        noise_multiplier=options.noise_multiplier,
        mode=options.mode,
        noise=options.noise,
        protocol=options.protocol,
        least_owners=options.least_owners,
        coins=options.coins,
        ring_bits=options.ring_bits,
        depth=options.depth,
        ahead=options.ahead,
        budget=options.budget,
    )

    def log(line: str) -> None:
        if options.log == "json":
            print(monitoring.as_json(options.role, line), file=sys.stderr, flush=True)
        else:
            print(f"dpaudit {options.role}: {line}", file=sys.stderr, flush=True)

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
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: serving.stop())
    print(f"{options.role} listens on {options.listen.rpartition(':')[0]}:{serving.port}", flush=True)
    if metrics:
        print(f"{options.role} serves metrics on port {metrics.port}", flush=True)
    try:
        serving.run()
    except _validate.InputError as fault:
        raise _validate.InputError(monitoring.printable(str(fault))) from None
