"""Blocks for steps to come: two servers make them while they wait for owners, and a step then only opens them.

Both keep theirs in a folder (:mod:`offline`), from which each is taken once, whatever crashes; it outlives the session
that made it. A step for which there is none makes its own.
"""

from pathlib import Path
from typing import Any

from dpaudit import check
from dpaudit.secure.channel import Channel
from dpaudit.secure.offline import Store
from dpaudit.secure.opening import Evaluator, Garbled, Garbler, Opening, Received


class Ahead:
    """One server's.

    Args:
      channel: to the peer's.
      party: this server's side of the openings.
      kind: what is opened; it must have noise.
      dimension: d of a step.
      steps: for how many there shall be blocks.
      folder: made if need be; this server's alone.
    """

    def __init__(
        self, channel: Channel, party: Garbler | Evaluator, kind: Opening, dimension: int, steps: int, folder: Path
    ) -> None:
        self._channel, self._party, self._kind, self._steps = channel, party, kind, steps
        self._sizes = [part.stop - part.start for part in kind.blocks(dimension)]
        block: Any = Garbled if isinstance(party, Garbler) else Received
        self._stores = {count: Store(folder / f"{count}", block, kind, count) for count in dict.fromkeys(self._sizes)}

    def fill(self, seconds: float) -> None:
        """Makes blocks until both servers have all, with the peer's ``fill``.

        Args:
          seconds: for each of them.

        Raises:
          ChannelError: a message that did not come through.
        """
        for count, store in self._stores.items():
            self._channel.deadline(seconds)
            for _ in range(self._steps * self._sizes.count(count) - store.common(self._channel)):
                self._channel.deadline(seconds)
                number = store.free(self._channel)
                store.put(number, self._party.prepare(self._kind, count))

    def take(self, count: int) -> Garbled | Received:
        """A block of this size, with the peer's ``take``.

        Raises:
          ChannelError: a message that did not come through, or a block that is torn here: it is burnt.
        """
        store = self._stores[count]
        number = store.agree(self._channel)
        if number is None:
            return self._party.prepare(self._kind, count)
        try:
            return store.take(number)
        except check.InputError as fault:
            self._channel.refuse(str(fault))
