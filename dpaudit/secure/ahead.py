"""Blocks for steps to come: two servers make them while they wait for owners, and a step then only opens them.

Both keep theirs in a folder (:mod:`offline`), from which each is taken once, whatever crashes; it outlives the session
that made it. A step for which there is none makes its own.
"""

from pathlib import Path
from typing import Any

from dpaudit import check
from dpaudit.secure import agreement
from dpaudit.secure.channel import Channel
from dpaudit.secure.ledger import IDENTITY_BYTES, NONE, Past
from dpaudit.secure.offline import Pair, Store
from dpaudit.secure.opening import Evaluator, Garbled, Garbler, Opening, Received
from dpaudit.secure.randomness import Source, system


class Ahead:
    """One server's.

    Args:
      channel: to the peer's.
      names: this server's, "h1" or "h2", and the peer's.
      kind: what is opened; it must have noise.
      dimension: d of a step.
      steps: for how many there shall be blocks.
      folder: made if need be; this server's alone.
      pair: of the two servers.
      source: where this server's part of identities comes from.
    """

    def __init__(
        self,
        channel: Channel,
        names: tuple[str, str],
        kind: Opening,
        dimension: int,
        steps: int,
        folder: Path,
        pair: Pair,
        source: Source = system,
    ) -> None:
        self._channel, self._names, self._kind, self._steps = channel, names, kind, steps
        self._sizes = [part.stop - part.start for part in kind.blocks(dimension)]
        block: Any = Garbled if names[0] == "h1" else Received
        self._stores = {
            count: Store(folder / f"{count}", block, kind, count, pair, source) for count in dict.fromkeys(self._sizes)
        }
        self._taken: dict[int, int] = {}  # number of the last block of each size that this session took

    def meet(self) -> None:
        """Compares what both servers have spent, with the peer's ``meet``.

        Raises:
          InputError: one of the two is behind; both say so.
          ChannelError: a message that did not come through.
        """
        told = {f"{count}": store.ledger.past for count, store in self._stores.items()}
        mine = {count: {**past._asdict(), "identity": past.identity.hex()} for count, past in told.items()}
        theirs = agreement.exchange(self._channel, "spent", mine)
        refusal = ""
        try:
            for count, store in self._stores.items():
                store.meet(_past(theirs.get(f"{count}")), self._names)
        except check.InputError as fault:
            refusal = str(fault)
        other = agreement.exchange(self._channel, "met", {"refusal": refusal}).get("refusal")
        if refusal or other:
            self._channel.close()
            raise check.InputError(refusal or str(other))

    def fill(self, party: Garbler | Evaluator, seconds: float) -> None:
        """Makes blocks until both servers have all, with the peer's ``fill``.

        Args:
          party: this server's side of the openings.
          seconds: for each of them.

        Raises:
          ChannelError: a message that did not come through.
        """
        for count, store in self._stores.items():
            self._channel.deadline(seconds)
            for _ in range(self._steps * self._sizes.count(count) - store.common(self._channel)):
                self._channel.deadline(seconds)
                number, identity = store.free(self._channel)
                store.put(number, identity, party.prepare(self._kind, count))

    def take(self, party: Garbler | Evaluator, count: int) -> Garbled | Received:
        """A block of this size, with the peer's ``take``.

        Raises:
          ChannelError: a message that did not come through, or a block that is torn here: it is burnt.
        """
        store = self._stores[count]
        number = store.agree(self._channel)
        if number is None:
            return party.prepare(self._kind, count)
        try:
            block = store.take(number)
        except check.InputError as fault:
            self._channel.refuse(str(fault))
        self._taken[count] = number
        return block

    def opened(self) -> None:
        """Notes that the peer, too, has spent what was taken: it has answered with what only the blocks tell."""
        for count, number in self._taken.items():
            self._stores[count].ledger.see(number)
        self._taken = {}


def _past(said: Any) -> Past:
    """What a peer says of one store; InputError if it says nothing of the kind."""
    try:
        spent, seen, identity = said["spent"], said["seen"], bytes.fromhex(said["identity"])
        whole = type(spent) is type(seen) is int and min(spent, seen) >= NONE
        whole = whole and len(identity) == IDENTITY_BYTES * (spent != NONE)
    except (KeyError, TypeError, ValueError):
        whole = False
    if not whole:
        raise check.expected("spent", "a block's number and identity, and the number of one seen", said)
    return Past(spent, identity, seen)
