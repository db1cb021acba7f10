"""Defines the terms of a training, on which all parties must agree, and compares those of two parties.

Both servers and every owner state their :class:`Terms` before anything else is sent; the owners' names are stated as
their number and a digest. The first field that differs is refused with its name and both values, before any label or
share is used. The terms may limit what the training spends (:class:`Budget`): neighbours are two data sets that differ
in one example; the example may be in every step, and no amplification by sampling is used. Every opening that was
begun counts, whether or not it produced a result.
"""

import hashlib
import json
import math
import re
import struct
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import compress
from typing import Any, NamedTuple

import numpy as np

from dpaudit import _validate
from dpaudit.secure.channel import Channel
from dpaudit.secure.noise import accounting, lookup
from dpaudit.secure.noise.binomial import Binomial
from dpaudit.secure.noise.lookup import Table
from dpaudit.secure.protocol import fixed_point, norm_check, transfer_noise, two_server_sum
from dpaudit.secure.protocol.fixed_point import Scale
from dpaudit.secure.protocol.two_server_sum import Opening

VERSION = 7  # of the messages between the parties
MOST_OWNERS = 10_000
MOST_COORDINATES = ((1 << 31) - 1 - (1 << 17)) // two_server_sum.KEPT.itemsize  # in one message of gRPC
MOST_BLOCKS = 1 << 20  # that the servers prepare for the steps to come
SERVERS = ("h1", "h2")
MODES = ("noisy", "plain")
NOISES = ("binomial", "table")
PROTOCOLS = ("circuit", "transfers")
LONGEST = 1 << 16  # bytes in a statement
MOST = 10  # names in a line of a message
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_SIZE = struct.Struct("<I")


class Terms(NamedTuple):
    """The terms of a training; made by :func:`terms`.

    Attributes:
      version: version of the protocol.
      mode: "noisy", or "plain" for a sum without noise.
      noise: "binomial", "none" in mode "plain", or "table": a reproduction of the paper's, **not private**
        (:mod:`dpaudit.secure.noise.lookup`).
      protocol: "circuit", a garbled one, or "transfers" (:mod:`dpaudit.secure.protocol.transfer_noise`).
      dimension: d, coordinates of the sum.
      owners: their names, sorted.
      least_owners: how many must take part in a step.
      examples: m, of all owners together in one step.
      owner_examples: of one owner in one step, by which the servers check norms; 0 for no check.
      clip_norm: C, L2, per example.
      levels: Q, units in one clip norm.
      ring_bits: N + 1.
      coins, step_bits: of the binomial noise; 0 for other noise.
      table_std: standard deviation of the table, in units; 0 without a table.
      depth: depth of the correlated transfers.
      ahead: for how many steps blocks are prepared in advance.
      epsilon, delta: the budget of the whole training; 0 for none.
      openings: how many openings the budget allows; 0 for any number.
      circuit: SHA-256 of what the servers compute, hexadecimal; last, as it differs if almost any other field does.
    """

    version: int
    mode: str
    noise: str
    protocol: str
    dimension: int
    owners: tuple[str, ...]
    least_owners: int
    examples: int
    owner_examples: int
    clip_norm: float
    levels: int
    ring_bits: int
    coins: int
    step_bits: int
    table_std: float
    depth: int
    ahead: int
    epsilon: float
    delta: float
    openings: int
    circuit: str

    @property
    def scale(self) -> Scale:
        """The fixed-point scale of the owners' integers."""
        return Scale(self.clip_norm, self.levels, self.ring_bits)

    @property
    def bound(self) -> int:
        """The square of the largest norm of an owner's integers that passes the check, in units."""
        return (self.owner_examples * self.levels) ** 2

    def statement(self) -> dict[str, Any]:
        """States every field, the owners as their number and the SHA-256 of their names."""
        digest = hashlib.sha256("\n".join(self.owners).encode()).hexdigest()
        return self._asdict() | {"owners": f"{len(self.owners)} of SHA-256 {digest}"}

    def owner(self, **named: str) -> str:
        """Returns the name if it is an owner of the training; InputError otherwise."""
        ((what, name),) = named.items()
        if self.place(name) is None:
            raise _validate.expected(what, f"one of {listed(self.owners)}", name)
        return name

    def place(self, owner: str) -> int | None:
        """Returns the position of a name among the owners; None if it is not one of them."""
        place = bisect_left(self.owners, owner)
        return place if self.owners[place : place + 1] == (owner,) else None

    def names(self, owners: Iterable[str]) -> bytes:
        """Encodes owners of the training as bits, in the order of the names."""
        among = set(owners)
        return np.packbits([owner in among for owner in self.owners], bitorder="little").tobytes()

    def named(self, bits: bytes) -> tuple[str, ...]:
        """Decodes the owners whose bits are one; InputError for bits of another number of owners."""
        if len(bits) != -(-len(self.owners) // 8):
            raise _validate.expected("owners", f"bits of {len(self.owners)}", f"{len(bits)} bytes")
        present = np.unpackbits(np.frombuffer(bits, np.uint8), count=len(self.owners), bitorder="little")
        return tuple(compress(self.owners, present))

    def opening(self) -> Opening:
        """Builds the computation of the two servers."""
        if self.noise == "none":
            return two_server_sum.plain(ring_bits=self.ring_bits)
        if self.noise == "table":
            return two_server_sum.by_table(Table(lookup.table(self.table_std)), ring_bits=self.ring_bits)
        build = transfer_noise.by_transfers if self.protocol == "transfers" else two_server_sum.noisy
        return build(Binomial(self.coins, self.step_bits), ring_bits=self.ring_bits)


def terms(
    *,
    owners: Sequence[str],
    dimension: int,
    examples: int,
    clip_norm: float = 1.0,
    noise_multiplier: float | None = None,
    mode: str = "noisy",
    noise: str = "binomial",
    protocol: str | None = None,
    least_owners: int | None = None,
    owner_examples: int | None = None,
    coins: int = 127,
    ring_bits: int = 25,
    depth: int = 1,
    ahead: int = 0,
    budget: tuple[float, float] | None = None,
) -> Terms:
    """Works out the terms of a training.

    Args:
      owners: their names, as in their certificates; at most 10,000.
      dimension: d, coordinates of the sum, which have to fit into one message of at most 2 GiB.
      examples: m, the largest number of examples of all owners together in a step.
      clip_norm: C, L2, per example.
      noise_multiplier: wanted standard deviation of the noise over the clip norm; None for ``mode`` "plain".
      mode: "noisy" or "plain".
      noise: "binomial" or "table". The circuit of a table grows with its standard deviation; a small ring, such as the
        paper's 17 bits, keeps it small.
      protocol: "circuit", the paper's, or "transfers", which makes binomial noise without a circuit: a third of the
        bytes, and less to compute. By default transfers where the noise is binomial.
      least_owners: how many must take part in a step; all of them by default. An owner whose share is missing at
        either server when a round ends is left out of the sum, if enough others remain.
      owner_examples: the largest number of examples of one owner in a step. If it is given, the servers check that
        the integers of each owner have at most the norm of so many clipped examples, and leave out an owner whose are
        longer (:mod:`dpaudit.secure.protocol.norm_check`).
      coins: coins of the binomial, 2^k - 1; a table has none.
      ring_bits: N + 1, 2 to 32.
      depth: depth of the correlated transfers, 1, 2 or 4.
      ahead: for how many steps the servers prepare blocks in advance, while they wait for owners; needs noise.
      budget: (epsilon, delta) of the whole training, after which the servers open nothing more; needs binomial noise.
        None for no budget. It takes some seconds to compute how many openings it allows.

    Raises:
      InputError: a value is out of range.
    """
    names = tuple(sorted(checked_name(owner=owner) for owner in owners))
    if not names or len(set(names)) < len(names):
        raise _validate.expected("owners", "one name each, of at least one owner", listed(names) or "none")
    if len(names) > MOST_OWNERS:
        raise _validate.expected("owners", f"at most {MOST_OWNERS}", len(names))
    least = _validate.at_least(1, least_owners=len(names) if least_owners is None else least_owners)
    if least > len(names):
        raise _validate.expected("least_owners", f"at most {len(names)}, the number of owners", least)
    if (dimension := _validate.at_least(1, dimension=dimension)) > MOST_COORDINATES:
        raise _validate.expected("dimension", f"at most {MOST_COORDINATES}", dimension)
    if depth not in (1, 2, 4):
        raise _validate.expected("depth", "1, 2 or 4", depth)
    by_transfers = (mode, noise) == ("noisy", "binomial")
    protocol = protocol or PROTOCOLS[by_transfers]
    if _validate.one_of(PROTOCOLS, protocol=protocol) == "transfers" and not by_transfers:
        raise _validate.expected("protocol", "circuit, except for binomial noise", protocol)
    size: dict[str, Any] = {"examples": examples, "clip_norm": clip_norm, "ring_bits": ring_bits}
    law, table_std = Binomial(0, 0), 0.0
    table = _validate.one_of(NOISES, noise=noise) == "table"
    if _validate.one_of(MODES, mode=mode) == "plain":
        if _validate.at_least(0, ahead=ahead):
            raise _validate.expected("ahead", 'none in mode "plain", whose blocks depend on a share', ahead)
        for name, given in (
            ("noise", noise if table else None),
            ("noise_multiplier", noise_multiplier),
            ("budget", budget),
        ):
            if given is not None:
                raise _validate.expected(name, 'none in mode "plain"', given)
        fixed, noise = fixed_point.largest(**size), "none"
    else:
        wanted = _validate.positive(noise_multiplier=noise_multiplier)
        if table:
            fixed = fixed_point.for_gaussian(noise_multiplier=wanted, **size)
            table_std = float(fixed.levels * wanted)
        else:
            fixed, law = fixed_point.with_binomial(noise_multiplier=wanted, coins=coins, **size)
    epsilon, delta = (0.0, 0.0) if budget is None else _checked_budget(budget)
    made = Terms(
        version=VERSION,
        mode=mode,
        noise=noise,
        protocol=protocol,
        dimension=dimension,
        owners=names,
        least_owners=least,
        examples=_validate.at_least(1, examples=examples),
        owner_examples=_checked_examples(owner_examples, examples, dimension, fixed.ring_bits),
        clip_norm=fixed.clip_norm,
        levels=fixed.levels,
        ring_bits=fixed.ring_bits,
        coins=law.coins,
        step_bits=law.step_bits,
        table_std=table_std,
        depth=int(depth),
        ahead=_validate.at_least(0, ahead=ahead),
        epsilon=float(epsilon),
        delta=float(delta),
        openings=0,
        circuit="",
    )
    if budget is not None:
        made = made._replace(openings=_openings(made))
    opening = made.opening()
    if made.ahead > (most := MOST_BLOCKS // sum(1 for _ in opening.blocks(dimension))):
        raise _validate.expected("ahead", f"at most {most}, in blocks for all of these steps", ahead)
    return made._replace(circuit=opening.digest().hex())


def _checked_budget(budget: tuple[float, float]) -> tuple[float, float]:
    """Returns epsilon and delta; InputError if there are not two numbers."""
    if not isinstance(budget, Sequence) or len(budget) != 2:
        raise _validate.expected("budget", "two numbers, epsilon and delta", budget)
    epsilon, delta = budget
    return _validate.positive(epsilon=epsilon), _validate.open_unit(delta=delta)


def _checked_examples(owner_examples: int | None, examples: int, dimension: int, ring_bits: int) -> int:
    """Returns how many examples an owner may have where norms are checked, else 0; InputError for another number."""
    if owner_examples is None:
        return 0
    if (owner_examples := _validate.at_least(1, owner_examples=owner_examples)) > examples:
        raise _validate.expected("owner_examples", f"at most {examples}, of all owners together", owner_examples)
    norm_check.checked_size(dimension=dimension, ring_bits=ring_bits)
    return owner_examples


def _openings(terms: Terms) -> int:
    """Computes how many openings the budget of these terms allows; InputError if it allows none."""
    if terms.noise != "binomial":
        raise _validate.expected("budget", "none with noise from a table, which is not private", terms.epsilon)
    law, levels = Binomial(terms.coins, terms.step_bits), terms.levels
    size = {"sensitivity": 2 * levels, "dimension": terms.dimension, "delta": terms.delta}
    allowed = accounting.allowed(law, **size, epsilon=terms.epsilon)
    if allowed == 0:
        one = _validate.no_less(accounting.epsilon(law, **size))
        raise _validate.expected("budget", f"epsilon {one} or more, which one opening spends", terms.epsilon)
    return allowed


class BudgetSpent(_validate.InputError):
    """Refuses an opening beyond the budget of the terms."""


class Budget:
    """Computes what a training's openings have spent of the privacy budget in its terms.

    Args:
      terms: of the training; without a budget nothing is limited and epsilon is not reported.
    """

    def __init__(self, terms: Terms) -> None:
        self._terms = terms

    @cached_property
    def _curve(self) -> accounting.Spent:
        """What one opening spends; computed on first use, as it takes a moment."""
        terms = self._terms
        law, trimmed = Binomial(terms.coins, terms.step_bits), accounting.TRIMMED * terms.delta / terms.openings
        return accounting.spent(law, sensitivity=2 * terms.levels, dimension=terms.dimension, trimmed=trimmed)

    def epsilon(self, openings: int) -> float:
        """Returns what so many openings have spent, in nats at the terms' delta; infinite without a budget."""
        terms = self._terms
        return accounting.composed(self._curve, openings, terms.delta) if terms.openings else math.inf

    def spent(self, openings: int) -> bool:
        """Tells whether no further opening is allowed."""
        return 0 < self._terms.openings <= openings

    def require(self, openings: int) -> None:
        """Raises BudgetSpent where no further opening is allowed."""
        if self.spent(openings):
            terms = self._terms
            wanted = f"epsilon {terms.epsilon:g} at delta {terms.delta:g}, which {terms.openings} openings spend"
            raise BudgetSpent(str(_validate.expected("budget", wanted, f"another one after {openings}")))

    def describe(self, openings: int) -> str:
        """Describes the state of the budget, for a line of the log."""
        terms = self._terms
        if not terms.openings:
            return f"{openings} openings begun so far"
        return (
            f"{openings} of {terms.openings} openings begun so far, "
            f"epsilon {_validate.no_less(self.epsilon(openings))} of {terms.epsilon:g} at delta {terms.delta:g}"
        )


def checked_name(**named: str) -> str:
    """Returns a name that an owner may have: at most 63 of a-z, 0-9, inner hyphens, not a server's; or InputError."""
    ((what, name),) = named.items()
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in SERVERS:
        raise _validate.expected(
            what, f"at most 63 of a-z, 0-9 and hyphens within, none of {', '.join(SERVERS)}", name
        )
    return name


def listed(names: list[str] | tuple[str, ...]) -> str:
    """Lists the first names, and how many others there are."""
    more = f" and {len(names) - MOST} others" if len(names) > MOST else ""
    return ", ".join(names[:MOST]) + more


def stated(statement: Mapping[str, Any]) -> str:
    """Encodes a statement, such as the fields of terms, as JSON."""
    return json.dumps(statement, sort_keys=True)


def understood(text: str | bytes) -> dict[str, Any]:
    """Decodes what :func:`stated` encoded; InputError if it is not a JSON object."""
    try:
        statement = json.loads(text)
    except (ValueError, RecursionError):
        statement = None
    if not isinstance(statement, dict):
        raise _validate.expected("statement", "a JSON object", text)
    return statement


def same(mine: Terms, theirs: dict[str, Any]) -> None:
    """Compares terms with those that another party states.

    Raises:
      InputError: the first field that differs, with this side's value and the other's.
    """
    here = mine.statement()
    for name in mine._fields:
        if theirs.get(name) != here[name]:
            raise _validate.expected(f"terms: {name}", f"{here[name]} as here", theirs.get(name))


def exchange(channel: Channel, kind: str, mine: dict[str, Any]) -> dict[str, Any]:
    """Sends the peer a statement and receives the peer's.

    Raises:
      ChannelError: a message did not arrive, or is not a statement.
    """
    data = stated(mine).encode()
    channel.send(f"{kind}.size", _SIZE.pack(len(data)))
    channel.send(kind, data)
    (size,) = _SIZE.unpack(channel.receive(f"{kind}.size", _SIZE.size).tobytes())
    if not 0 < size <= LONGEST:
        channel.refuse(f"{kind}: expected at most {LONGEST} bytes, {size} were announced")
    try:
        return understood(channel.receive(kind, size).tobytes())
    except _validate.InputError as fault:
        channel.refuse(f"{kind}: {fault}")
