"""Two servers on one channel: from the handshake through steps until something fails, which ends both sides.

The handshake compares roles, terms and completed steps. A server that was killed between the two writing a result has
it from the other. Every step begins with its number and with whose shares are there: the sum is over the owners from
whom both servers have the two shares of one splitting. All secrets, the transfers' and the labels', are a session's
own and are forgotten with it: what a fault has left half used is never used again.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from dpaudit import check
from dpaudit.secure import agreement, reveal
from dpaudit.secure.agreement import Terms
from dpaudit.secure.ahead import Ahead
from dpaudit.secure.channel import Channel
from dpaudit.secure.opening import Evaluator, Garbled, Garbler, Opening, Received
from dpaudit.secure.randomness import Source, system
from dpaudit.secure.records import Opened, Records
from dpaudit.secure.reveal import KEPT

PEER = {"h1": "h2", "h2": "h1"}


class Agreed(NamedTuple):
    """What two servers have of a step.

    Attributes:
      owners: from whom both have the shares of one splitting; sorted.
      torn: from whom they have shares of two splittings, which are of no use.
    """

    owners: tuple[str, ...]
    torn: tuple[str, ...]


class Session:
    """One server's side. Its constructor and the peer's speak with each other.

    Args:
      channel: to the peer's session.
      role: "h1" or "h2".
      terms: of the training.
      records: this server's.
      source: where the secrets come from.

    Raises:
      InputError: a peer of the same role, or one whose terms or state do not go with this server's.
      ChannelError: a message that did not come through.
    """

    def __init__(self, channel: Channel, role: str, terms: Terms, records: Records, source: Source = system) -> None:
        self._channel, self._role, self._terms, self._records = channel, role, terms, records
        self._opening: Opening = terms.opening()
        mine = {"role": role, "completed": records.completed, **terms._asdict()}
        theirs = agreement.exchange(channel, "terms", mine)
        try:
            self._same("role", PEER[role], theirs)
            agreement.same(terms, theirs)
            if theirs.get("completed") not in range(records.completed - 1, records.completed + 2):
                raise check.expected("completed", f"about {records.completed} steps as here", theirs.get("completed"))
        except check.InputError:
            channel.close()
            raise
        self._catch_up(theirs["completed"])
        self._party = (Garbler if role == "h1" else Evaluator)(channel, depth=terms.depth, source=source)
        self._ahead = None
        if terms.ahead:
            self._ahead = Ahead(channel, self._party, self._opening, terms.dimension, terms.ahead, records.ahead)

    def prepare(self, seconds: float) -> None:
        """Makes the blocks that the terms want ahead, with the peer's ``prepare``.

        Args:
          seconds: for each block.

        Raises:
          ChannelError: a message that did not come through.
        """
        if self._ahead:
            self._ahead.fill(seconds)

    def agree(self, step: int, held: Mapping[str, str]) -> Agreed:
        """Whose shares the servers have.

        Args:
          step: the number.
          held: the splits that came to this server, by owner.

        Raises:
          ChannelError: a message that did not come through, or one of another step.
        """
        theirs = agreement.exchange(self._channel, "step", {"step": step, "held": dict(held)})
        try:
            self._same("step", step, theirs)
        except check.InputError as fault:
            self._channel.refuse(str(fault))
        other = theirs.get("held")
        other = other if isinstance(other, dict) else {}
        both = sorted(owner for owner in held if owner in other)
        whole = tuple(owner for owner in both if held[owner] == other[owner])
        return Agreed(whole, tuple(owner for owner in both if owner not in whole))

    def open(self, step: int, owners: tuple[str, ...], share: np.ndarray) -> None:
        """Opens the sum and records it.

        Args:
          step: the number.
          owners: as agreed.
          share: this server's of their sum, int64 [d].

        Raises:
          ChannelError: a message that did not come through; the result is recorded by neither server, or by one.
        """
        values = np.empty(self._terms.dimension, np.int64)
        for part in self._opening.blocks(len(values)):
            values[part] = self._block(step, share[part], first=part.start == 0)
        self._records.complete(step, Opened(values, owners, self._records.releases))

    def _block(self, step: int, share: np.ndarray, *, first: bool) -> np.ndarray:
        prepared = self._ahead.take(len(share)) if self._ahead else self._prepared(share)
        if first:
            self._records.begin(step)
        party: Any = self._party
        return party.open(self._opening, prepared, share)

    def _prepared(self, share: np.ndarray) -> Garbled | Received:
        if isinstance(self._party, Garbler):
            return self._party.prepare(self._opening, len(share))
        return self._party.prepare(self._opening, len(share), None if self._opening.noise else share)

    def _same(self, name: str, value: object, theirs: Mapping[str, object]) -> None:
        if theirs.get(name) != value:
            raise check.expected(f"{PEER[self._role]}'s {name}", str(value), theirs.get(name))

    def _catch_up(self, completed: int) -> None:
        """Who has completed a step more sends it."""
        records, step = self._records, max(completed, self._records.completed)
        if completed < records.completed:
            opened = records.opened(step)
            agreement.exchange(self._channel, "opened", {"owners": opened.owners, "releases": opened.releases})
            self._channel.send("opened.values", opened.values.astype(KEPT))
        elif completed > records.completed:
            said = agreement.exchange(self._channel, "opened", {})
            values = reveal.receive(self._channel, "opened.values", self._terms.dimension, self._terms.ring_bits)
            owners, releases = said.get("owners"), said.get("releases")
            if not isinstance(owners, list) or not isinstance(releases, int):
                self._channel.refuse(f"opened: expected owners and releases, got {said}")
            records.complete(step, Opened(values, tuple(owners), releases))
