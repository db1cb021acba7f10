"""``dpaudit secure``: two servers that learn a noisy sum of what owners share, and nothing else (paper 001).

``server`` runs one of the two, ``keys`` makes the certificates with which they and the owners know each other.
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
    """Run one of the two servers of a secure training (paper 001), until it is interrupted; its peer and every owner
    must have the same terms: owners, dimension, examples, clip norm, noise, ring bits, coins, depth, budget."""

    role: Literal["h1", "h2"]
    """h1 garbles and calls; h2 evaluates and is called. Two who do not collude should run them."""
    listen: str
    """HOST:PORT for owners, and for h1; with port 0 the system chooses one, and the first line of output tells it."""
    state: str
    """Directory for what must outlive this process; a server that was killed goes on from it."""
    owners: tuple[str, ...]
    """Names of all owners, as their certificates have them."""
    dimension: int
    """Coordinates of the sum."""
    examples: int
    """The most examples that all owners together have in a step."""
    peer: str | None = None
    """The other server's HOST:PORT, which h1 calls; h2 waits for that call and makes no use of it."""
    clip_norm: float = 1.0
    """L2 norm to which each example's gradient is clipped."""
    noise_multiplier: float | None = None
    """Standard deviation of the noise over the clip norm; in mode plain there is none."""
    mode: Literal["noisy", "plain"] = "noisy"
    """plain opens the sum without noise, which is not private."""
    noise: Literal["binomial", "table"] = "binomial"
    """table is the paper's, for comparison: it is not private, and large beyond its ring of 17 bits."""
    least_owners: int | None = None
    """With how many a step goes on when a round's time is over; all by default."""
    coins: int = 127
    """Of the binomial noise, 2^k - 1."""
    ring_bits: int = 25
    """Shares are modulo 2 to this power."""
    depth: Literal[1, 2, 4] = 1
    """Of the oblivious transfers: the more, the fewer bytes and the more computing."""
    ahead: int = 0
    """For how many steps the servers make ahead, on disk, what depends on no share, while they wait for owners."""
    budget: tuple[float, float] | None = None
    """EPSILON DELTA of the whole training, for a record in every step; once it is spent the servers open no more."""
    wait: float = 60.0
    """Seconds that a round waits for owners."""
    deadline: float = 60.0
    """Seconds that a step of the servers may take."""
    rejoin: bool = False
    """Begin anew with the other server, once, after this one's state was put back from a copy, or was lost: both drop
    what they made ahead, and this one has the results that it lacks from the other."""
    keys: str | None = None
    """This server's folder of those that `dpaudit secure keys` makes; without it, only loopback addresses are used."""
    metrics: str | None = None
    """HOST:PORT of this machine where GET /metrics tells steps, waiting owners, openings, epsilon and bytes."""
    log: Literal["text", "json"] = "text"
    """json writes an object a line: time, server, step where a line is of one, and what is told."""
    insecure: bool = False
    """Speak beyond this machine without certificates: whoever is on the way can read both shares."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Keys:
    """Make keys and certificates: an authority, and a folder for each server and owner to have.

    Folders that are there are left as they are: the same again with more owners makes theirs.
    """

    out: str
    """Takes a folder for each party, and the authority's, whose key is needed for new owners only: keep it apart."""
    owners: tuple[str, ...]
    """Names of all owners."""
    days: int = 365
    """For how long certificates are valid."""


@dataclasses.dataclass(frozen=True)
class Secure:
    """Add up what nobody may see: a training's two servers, and their keys."""

    command: Annotated[
        Annotated[Server, tyro.conf.subcommand("server", prefix_name=False)]
        | Annotated[Keys, tyro.conf.subcommand("keys", prefix_name=False)],
        tyro.conf.arg(name=""),
    ]


def run(options: Secure) -> None:
    """Serves until SIGINT or SIGTERM, or makes keys.

    Raises:
      InputError: unusable options, or a peer with other ones.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what fails is told in lines of our own
    try:
        from dpaudit.secure.service import certificates
    except ImportError as missing:
        raise _validate.expected("secure", "its libraries (pip install 'dpaudit[secure]')", missing) from None
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
    told = None
    if options.metrics:
        told = monitoring.Metrics(options.metrics, lambda: running[0].figures() if running else {})
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
    if told:
        print(f"{options.role} tells its figures on port {told.port}", flush=True)
    try:
        serving.run()
    except _validate.InputError as fault:
        raise _validate.InputError(monitoring.printable(str(fault))) from None
