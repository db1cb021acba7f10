"""Blocks prepared ahead and kept on disc, each of which is used once, whatever crashes.

A garbled block that is opened for two shares gives away both labels of a wire, and with them everything. So a block's
file is unlinked, and the folder that names it synchronised, before one byte of it is read: a server that dies at any
moment comes up again with the block unused and whole, or gone. What one of the two servers has lost the other must
throw away, so they agree on the number of the next one (:meth:`Store.agree`), and on one for a new block that is above
all that either has (:meth:`Store.free`); an old block never meets a new one.

Promised on a file system that keeps to POSIX, while nothing else copies or restores the files. Not promised: that an
unlinked block cannot be recovered from the disc; who finds H1's and has recorded what was sent can read H1's share.
Files and folder are for their owner alone.
"""

import hashlib
import os
from io import BufferedReader
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from dpaudit import check
from dpaudit.secure import circuit
from dpaudit.secure.channel import Channel
from dpaudit.secure.opening import Garbled, Opening, Received, checked_count

Block = TypeVar("Block", bound=Garbled | Received)

MOST = 1 << 20  # blocks of one store
_NONE = (1 << 64) - 1  # in place of a number, on the wire
_SUFFIX, _PARTIAL = ".block", ".partial"


class Store(Generic[Block]):
    """A folder of blocks of one kind and size.

    Args:
      folder: made where there is none; one store's alone, used by one process at a time.
      kind: :class:`opening.Garbled` for H1, :class:`opening.Received` for H2.
      opening: what the blocks are for; it must have noise, or H2's part depends on its share.
      count: coordinates of each block.

    Raises:
      InputError: an opening without noise, a count that is no block's; no folder, and none can be made.
    """

    def __init__(self, folder: str | os.PathLike[str], kind: type[Block], opening: Opening, count: int):
        if opening.noise is None:
            raise check.expected("opening", "one with noise, which needs no share ahead", "none")
        self._folder, self._kind, self._opening, self._count = Path(folder), kind, opening, checked_count(count)
        text = f"dpaudit block 1, {kind.__name__}, {count} coordinates, {opening.ring_bits} bits"
        self._header = hashlib.sha256(text.encode() + circuit.digest(opening.circuit)).digest()
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as fault:
            raise check.expected("folder", "a folder, or a place for one", f"{folder}: {fault.strerror}") from None
        for left_over in self._folder.glob("*" + _PARTIAL):
            left_over.unlink()

    def numbers(self) -> list[int]:
        """Those of the blocks that are there, rising."""
        return sorted(int(path.stem) for path in self._folder.glob("*" + _SUFFIX))

    def put(self, number: int, block: Block) -> None:
        """Keeps a block; it is there, whole, once this returns.

        Args:
          number: as agreed (:meth:`free`).
          block: as prepared, of this store's size. It must not be used otherwise.

        Raises:
          InputError: a number that is there already.
        """
        path = self._path(check.at_least(0, number=number))
        if path.exists():
            raise check.expected("number", "one that the store does not have", number)
        beside = path.with_suffix(_PARTIAL)
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            stream.write(self._header)
            for part in block.parts():
                stream.write(np.ascontiguousarray(part).data)
            stream.flush()
            os.fsync(stream.fileno())
        beside.rename(path)
        self._synchronise()

    def take(self, number: int) -> Block:
        """The block of this number, which is gone from the disc before it is read.

        Raises:
          InputError: no such block; one that is torn, or was made for something else: it is gone as well.
        """
        path = self._path(number)
        try:
            with open(path, "rb") as stream:
                path.unlink()
                self._synchronise()
                return self._read(stream, path.name)
        except FileNotFoundError:
            raise check.expected("number", f"that of a block in {self._folder}", number) from None

    def agree(self, channel: Channel) -> int | None:
        """The lowest number that both servers have, with the peer's ``agree``; what is below it, either burns.

        Returns:
          The number, or None where they have none in common: both stores are then empty.

        Raises:
          ChannelError: a message that did not come through.
        """
        while True:
            left = self.numbers()
            mine = left[0] if left else _NONE
            theirs = _exchanged(channel, mine)
            if mine == theirs:
                return None if mine == _NONE else mine
            for number in left:
                if number < theirs:
                    self._path(number).unlink()
            self._synchronise()

    def common(self, channel: Channel) -> int:
        """How many blocks both servers have, with the peer's ``common``.

        Raises:
          ChannelError: a message that did not come through.
        """
        mine = self.numbers()
        channel.send("offline.count", len(mine).to_bytes(8, "little"))
        channel.send("offline.numbers", np.array(mine, "<u8"))
        count = int.from_bytes(channel.receive("offline.count", 8).tobytes(), "little")
        if count > MOST:
            channel.refuse(f"receiving 'offline.numbers': {count} blocks are announced, more than {MOST}")
        theirs = set(channel.receive("offline.numbers", 8 * count).view("<u8").tolist())
        return len(theirs.intersection(mine))

    def free(self, channel: Channel) -> int:
        """A number for a new block, above all that either server has, with the peer's ``free``.

        Raises:
          ChannelError: a message that did not come through.
        """
        mine = max(self.numbers(), default=-1) + 1
        return max(mine, _exchanged(channel, mine))

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:020d}{_SUFFIX}"

    def _synchronise(self) -> None:
        """Waits until the disc has the folder's names as they are now."""
        descriptor = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _read(self, stream: BufferedReader, name: str) -> Block:
        block = self._kind.blank(self._opening, self._count)  # no memory is touched yet
        wanted = len(self._header) + sum(part.nbytes for part in block.parts())
        found = os.fstat(stream.fileno()).st_size
        if found != wanted:
            raise check.expected("block", f"{wanted} bytes (it is now burnt)", f"{found} in {name}")
        if stream.read(len(self._header)) != self._header:
            raise check.expected("block", "one made for this opening (it is now burnt)", name)
        for part in block.parts():
            stream.readinto(part.data)
        return block


def _exchanged(channel: Channel, number: int) -> int:
    channel.send("offline.number", number.to_bytes(8, "little"))
    return int.from_bytes(channel.receive("offline.number", 8).tobytes(), "little")
