"""Runs two servers' sessions in one process, step by step, on wires that may fail."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dpaudit.secure.channel import Channel, Wire
from dpaudit.secure.crypto.randomness import Source, Stream, system
from dpaudit.secure.crypto.shares import split
from dpaudit.secure.noise.binomial import Binomial
from dpaudit.secure.protocol import agreement, in_process
from dpaudit.secure.protocol.agreement import SERVERS, Terms
from dpaudit.secure.protocol.two_server_sum import KEPT
from dpaudit.secure.service.inbox import Inbox
from dpaudit.secure.service.records import Opened, Records
from dpaudit.secure.service.session import Session
from tests.secure.transcript import Message, Recorder

OWNERS = ("alice", "bob", "carol")
DIMENSION = 7


def terms(mode: str = "noisy", **changed) -> Terms:
    """Makes the terms of a small training, by the paper's protocol."""
    asked = {"owners": OWNERS, "dimension": DIMENSION, "examples": 30, "mode": mode, "protocol": "circuit"}
    asked |= {"noise_multiplier": 1.0} if mode == "noisy" else {}
    return agreement.terms(**asked | changed)


def integers(step: int) -> dict[str, np.ndarray]:
    """Returns the integers of the owners in a step."""
    return {owner: 1000 * step + np.arange(DIMENSION) * (-1) ** i for i, owner in enumerate(OWNERS)}


def total(step: int) -> np.ndarray:
    """Returns their sum."""
    return np.sum(list(integers(step).values()), axis=0)


def reach(terms: Terms) -> int:
    """Returns the largest absolute value of the noise."""
    noise = terms.opening().noise
    return noise.reach if isinstance(noise, Binomial) else 0


def submit(inbox: Inbox, side: int, step: int) -> None:
    """Submits every owner's share for H1 (side 0) or H2 (side 1)."""
    for number, (owner, values) in enumerate(integers(step).items()):
        shares = split(values, ring_bits=25, source=Stream(bytes([number, step]) * 8).draw)
        inbox.take(owner, step, bytes([number]) * 16, shares[side].astype(KEPT).tobytes())


class Ended(NamedTuple):
    """One server's side of a finished session."""

    fault: BaseException | None
    steps: dict[int, Opened]
    releases: int
    said: list[Message]


class Killed:
    """A wire that fails at the message of this number."""

    def __init__(self, wire: Wire, number: int) -> None:
        self._wire, self._left = wire, number

    def write(self, header: bytes, payload: memoryview, seconds: float) -> None:
        self._left -= 1
        if self._left < 0:
            self._wire.close()
        self._wire.write(header, payload, seconds)

    def read_into(self, out: memoryview, seconds: float) -> None:
        self._wire.read_into(out, seconds)

    def close(self) -> None:
        self._wire.close()


def play(
    folder: Path,
    terms: tuple[Terms, Terms],
    *,
    until: int,
    roles: tuple[str, str] = ("h1", "h2"),
    changed: tuple[int, Callable[[Wire], Wire]] = (0, lambda wire: wire),
    seconds: float = 60.0,
    rejoin: str = "",
    sources: tuple[Source, Source] = (system, system),
) -> tuple[Ended, Ended]:
    """Continues both servers from their state in ``folder`` to step ``until``; one side's wire may be replaced.

    As a server does, each prepares a step before it, and blocks ahead after the last one as well. The one named in
    ``rejoin`` begins anew.
    """
    wires = list(in_process.wires())
    wires[changed[0]] = changed[1](wires[changed[0]])

    def server(side: int) -> Ended:
        said: list[Message] = []
        records = Records(folder / SERVERS[side], roles[side], terms[side])
        channel = Channel(Recorder(wires[side], said), seconds)
        fault: BaseException | None = None
        try:
            mine, source, anew = terms[side], sources[side], rejoin == SERVERS[side]
            session = Session(channel, roles[side], mine, records, rejoin=anew, seconds=seconds, source=source)
            for step in range(records.completed + 1, until + 1):
                session.prepare(seconds)
                inbox = Inbox(terms[side], step - 1)
                submit(inbox, side, step)
                channel.deadline(seconds)
                owners, _ = session.agree(step, inbox.collect(0.0, lambda: False))
                long = session.longer(owners, inbox.shares(owners), seconds)
                owners = tuple(owner for owner in owners if owner not in long)
                session.open(step, owners, inbox.total(owners))
            if mine.ahead:
                session.prepare(seconds)
        except Exception as failure:
            fault = failure
        channel.close()
        steps = {step: records.opened(step) for step in range(1, records.completed + 1)}
        records.close()
        return Ended(fault, steps, records.releases, said)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(server, (0, 1))
    return first, second
