"""Runs two servers on one channel, from the handshake through the steps until something fails, which ends both sides.

The handshake compares roles, terms, and whether the states of the two belong together: the identity that both drew
when they first met, the completed steps, and the blocks that were used (:mod:`dpaudit.secure.protocol.prepared`). It
states how long a round may last, of which both use the longer time. A server that was killed after the other had
written a result copies the result from the other. Both sides refuse what does not match; the way forward is a session
that one of them begins with ``rejoin``: both discard all blocks and draw a new identity, and the one that lacks
results copies them from the other.

Every step begins with its number and with the owners whose shares have arrived: the sum is over the owners from whom
both servers have the two shares of one splitting, except for those whose norm the servers check and find too large
(:mod:`dpaudit.secure.protocol.norm_check`). Both log an opening, and each block for it, before H1 sends anything from
which H2 could read the sum, so that either of them alone remembers it. All secrets, of transfers and labels, belong to
one session and are discarded with it: nothing that a fault left half used is ever used again.
"""

import hashlib
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dpaudit import _validate
from dpaudit.secure.channel import LONGEST, Channel
from dpaudit.secure.crypto.randomness import Source, system
from dpaudit.secure.protocol import agreement, norm_check, two_server_sum
from dpaudit.secure.protocol.agreement import Budget, Terms
from dpaudit.secure.protocol.prepared import IDENTITY_BYTES, WAY, Party, PreparedBlocks
from dpaudit.secure.protocol.transfer_noise import First, Second, Share
from dpaudit.secure.protocol.two_server_sum import KEPT, Evaluator, Garbled, Garbler, Opening, Received
from dpaudit.secure.service.inbox import SPLIT_BYTES
from dpaudit.secure.service.records import Opened, Records

PEER = {"h1": "h2", "h2": "h1"}
MOST = 1 << 40  # steps, and openings
_STEP = struct.Struct("<Q")
_HELD = struct.Struct(f"<?{SPLIT_BYTES}s")  # for each owner: whether its share is there, and its split
_BEGUN = b"\1"  # H2 has logged the opening and the block
_BY = struct.Struct("<Q")  # openings begun; the bits of the owners follow


class Agreed(NamedTuple):
    """The owners whose shares two servers have for a step.

    Attributes:
      owners: those from whom both have the shares of one splitting; sorted.
      torn: those from whom they have shares of two different splittings, which are useless.
    """

    owners: tuple[str, ...]
    torn: tuple[str, ...]


class Session:
    """Runs one server's side of a session. Its constructor and the peer's talk to each other.

    Args:
      channel: to the peer's session.
      role: "h1" or "h2".
      terms: of the training.
      records: this server's records.
      budget: the budget of the terms, if the caller has one already.
      rejoin: discard all blocks, here and at the peer, and copy the results that are missing here.
      wait: seconds for which this server waits for owners in a round; the two need not be equal.
      seconds: time limit for each result that one side copies from the other.
      source: where the secrets come from.

    Attributes:
      round: seconds in which a round ends at both: the larger of the two servers' ``wait`` and ``seconds`` together.

    Raises:
      InputError: the peer has the same role, or terms or a state that do not match this server's.
      ChannelError: a message did not arrive.
    """

    def __init__(
        self,
        channel: Channel,
        role: str,
        terms: Terms,
        records: Records,
        *,
        budget: Budget | None = None,
        rejoin: bool = False,
        wait: float = 60.0,
        seconds: float = 60.0,
        source: Source = system,
    ) -> None:
        self._channel, self._role, self._terms, self._records = channel, role, terms, records
        self._opening: Opening = terms.opening()
        self._budget = budget or Budget(terms)
        pair = records.pair.identity.hex() if records.pair else ""
        mine = {"completed": records.completed, "releases": records.releases, "pair": pair, "rejoin": rejoin}
        mine["round"] = float(wait + seconds)
        theirs = agreement.exchange(channel, "terms", {"role": role, **mine, **terms.statement()})
        try:
            self._same("role", PEER[role], theirs)
            agreement.same(terms, theirs)
            anew = self._anew(mine, theirs)
        except _validate.InputError:
            channel.close()
            raise
        self.round = max(mine["round"], theirs["round"])
        self._catch_up(theirs["completed"], seconds)
        records.heard(theirs["releases"])
        channel.deadline(seconds)
        if anew:
            self._join(source)
        self._ahead = self._stores(source)
        self._next: Garbled | Received | Share | None = None  # the first block of the next step
        kinds: tuple[Any, Any] = (First, Second) if terms.protocol == "transfers" else (Garbler, Evaluator)
        self._party: Party = kinds[role == "h2"](channel, depth=terms.depth, source=source)
        self._check = None
        if terms.owner_examples:
            checks = norm_check.First, norm_check.Second
            self._check = checks[role == "h2"](channel, depth=terms.depth, source=source)

    def prepare(self, seconds: float) -> None:
        """Prepares the noise of the next step's first block, together with the peer's ``prepare``.

        It depends on no share, so that the servers can do it while the owners compute. Where the terms ask for blocks
        in advance, these are filled up instead.

        Args:
          seconds: time limit for each block.

        Raises:
          ChannelError: a message did not arrive.
        """
        if self._ahead:
            self._ahead.fill(self._party, seconds)
        elif self._opening.noise and self._next is None:
            self._channel.deadline(seconds)
            first = next(self._opening.blocks(self._terms.dimension))
            self._next = self._party.prepare(self._opening, first.stop)

    def agree(self, step: int, held: Mapping[str, bytes]) -> Agreed:
        """Finds the owners whose shares both servers have.

        Args:
          step: the number.
          held: the splits that arrived at this server, 16 bytes by owner.

        Raises:
          ChannelError: a message did not arrive, or belongs to another step.
        """
        self._channel.send("step", _STEP.pack(step))
        self._channel.send(
            "held", b"".join(_HELD.pack(name in held, held.get(name, b"")) for name in self._terms.owners)
        )
        (other,) = _STEP.unpack(self._channel.receive("step", _STEP.size).tobytes())
        if other != step:
            self._channel.refuse(f"{PEER[self._role]}'s step: expected {step}, got {other}")
        theirs = self._channel.receive("held", _HELD.size * len(self._terms.owners)).tobytes()
        whole, torn = [], []
        for name, (there, split) in zip(self._terms.owners, _HELD.iter_unpack(theirs), strict=True):
            if there and name in held:
                (whole if split == held[name] else torn).append(name)
        return Agreed(tuple(whole), tuple(torn))

    def longer(self, owners: Sequence[str], shares: Sequence[np.ndarray], seconds: float) -> tuple[str, ...]:
        """Finds the owners whose integers are longer than the terms allow; none where these ask for no check.

        Args:
          owners: as agreed.
          shares: this server's share of each one's integers, int [d].
          seconds: time limit for each part of the check.

        Raises:
          ChannelError: a message did not arrive.
        """
        if self._check is None:
            return ()
        terms = self._terms
        found = self._check.longer(shares, bound=terms.bound, ring_bits=terms.ring_bits, seconds=seconds)
        return tuple(owner for owner, long in zip(owners, found, strict=True) if long)

    def open(self, step: int, owners: tuple[str, ...], share: np.ndarray) -> None:
        """Opens the sum and records it.

        Args:
          step: the number.
          owners: as agreed.
          share: this server's share of their sum, int64 [d].

        Raises:
          InputError: the budget is spent; nothing was opened.
          ChannelError: a message did not arrive; neither server or only one has recorded the result.
        """
        self._budget.require(self._records.releases)
        values = np.empty(self._terms.dimension, np.int64)
        for part in self._opening.blocks(len(values)):
            values[part] = self._block(step, share[part], first=part.start == 0)
        self._records.complete(step, Opened(values, owners, self._records.releases))
        if self._ahead:
            self._ahead.opened()

    def _block(self, step: int, share: np.ndarray, *, first: bool) -> np.ndarray:
        if self._ahead:
            prepared = self._ahead.take(self._party, len(share))
        elif first and self._next is not None:
            prepared, self._next = self._next, None
        else:
            prepared = self._prepared(share)
        if first:
            self._records.begin(step)
        if first or self._ahead:
            self._logged()
        party: Any = self._party
        return party.open(self._opening, prepared, share)

    def _logged(self) -> None:
        """Makes H1 wait until H2 has logged the opening and the block, as from H1's next message H2 can read the sum.

        H2 thus remembers both, even if it ends there and H1 is put back to a state of before.
        """
        if self._role == "h1":
            self._channel.receive("begun", len(_BEGUN))
        else:
            self._channel.send("begun", _BEGUN)

    def _prepared(self, share: np.ndarray) -> Garbled | Received | Share:
        if isinstance(self._party, Evaluator):
            return self._party.prepare(self._opening, len(share), None if self._opening.noise else share)
        return self._party.prepare(self._opening, len(share))

    def _same(self, name: str, value: object, theirs: Mapping[str, object]) -> None:
        if theirs.get(name) != value:
            raise _validate.expected(f"{PEER[self._role]}'s {name}", str(value), theirs.get(name))

    def _anew(self, mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
        """Tells whether the two start anew, without blocks; InputError if their states do not belong together."""
        most = {"completed": MOST, "releases": MOST, "round": 2 * LONGEST}
        for name, kind in {"completed": int, "releases": int, "pair": str, "rejoin": bool, "round": float}.items():
            if type(theirs.get(name)) is not kind or (name in most and not 0 <= theirs[name] <= most[name]):
                raise _validate.expected(
                    f"{PEER[self._role]}'s {name}", "a value that a server can state", theirs.get(name)
                )
        if mine["rejoin"] or theirs["rejoin"]:
            return True
        fresh = not any(side[name] for side in (mine, theirs) for name in ("completed", "releases"))
        if mine["pair"] != theirs["pair"] and not fresh:
            names = {self._role: mine, PEER[self._role]: theirs}
            empty = [f" ({name}'s is empty)" for name, side in names.items() if not side["pair"]]
            wanted = f"those of one training; {WAY}"
            raise _validate.expected("states of h1 and h2", wanted, f"others{''.join(empty)}")
        if abs(mine["completed"] - theirs["completed"]) > 1:
            wanted = f"about {mine['completed']} steps as here; {WAY}"
            raise _validate.expected(f"{PEER[self._role]}'s completed", wanted, theirs["completed"])
        return not mine["pair"] or mine["pair"] != theirs["pair"]

    def _join(self, source: Source) -> None:
        """Draws the identity of the two servers."""
        mine = source(IDENTITY_BYTES)
        self._channel.send("pair", mine)
        theirs = self._channel.receive("pair", IDENTITY_BYTES).tobytes()
        first, second = (mine, theirs) if self._role == "h1" else (theirs, mine)
        self._records.join(hashlib.sha256(b"dpaudit pair" + first + second).digest()[:IDENTITY_BYTES])

    def _stores(self, source: Source) -> PreparedBlocks | None:
        """Opens the store of prepared blocks, once both agree on which are used."""
        pair = self._records.pair
        if not self._terms.ahead or pair is None:
            return None
        terms, records, names = self._terms, self._records, (self._role, PEER[self._role])
        ahead = PreparedBlocks(
            self._channel, names, self._opening, terms.dimension, terms.ahead, records.ahead, pair, source
        )
        ahead.meet()
        return ahead

    def _catch_up(self, completed: int, seconds: float) -> None:
        """Copies results from the server that has completed more steps to the other."""
        records = self._records
        for step in range(completed + 1, records.completed + 1):
            self._channel.deadline(seconds)
            opened = records.opened(step)
            self._channel.send("opened.by", _BY.pack(opened.releases) + self._terms.names(opened.owners))
            self._channel.send("opened.values", opened.values.astype(KEPT))
        for step in range(records.completed + 1, completed + 1):
            self._channel.deadline(seconds)
            by = self._channel.receive("opened.by", _BY.size + len(self._terms.names(()))).tobytes()
            values = two_server_sum.receive_values(
                self._channel, "opened.values", self._terms.dimension, self._terms.ring_bits
            )
            owners = self._terms.named(by[_BY.size :])
            records.complete(step, Opened(values, owners, _BY.unpack_from(by)[0]))
