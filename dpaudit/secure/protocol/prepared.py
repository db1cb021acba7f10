"""Stores garbled blocks that two servers prepare in advance, and makes sure that each is used at most once.

Two servers make blocks while they wait for owners, so that a step only opens them; a step for which there is none
makes its own. Blocks outlive the session that made them.

A garbled block that is opened for two shares reveals both labels of a wire, and with them everything; noise from
transfers that is used for two sums cancels in their difference. So before any of a block's secrets is read, its number
is written to the store's log of used blocks (:class:`storage.Ledger`) and its file is unlinked: a server that dies at
any moment restarts with the block either unused and whole, or used. Numbers only rise. Each block has an identity
drawn by both servers, and two blocks belong together only where number and identity are the same
(:meth:`Store.agree`); each server discards whatever lower blocks it has. A tag over number, identity and content,
under a key of this server, shows whether a block is unchanged since it was stored. Each garbled block has a delta of
its own, so that one that is found on a disk tells nothing of any other opening.

When two servers meet, each states which block it used last (:meth:`Store.meet`), and the other discards all blocks up
to that one. A server is *behind* if it has forgotten a block that the other saw it use: its state is an older copy
that was restored. It is refused; the only way forward is to discard all blocks of both (``rejoin``). H1 sends nothing
of a block that it took before H2 has said that it took it as well (:mod:`dpaudit.secure.service.session`): otherwise
H2 could see a part of it and die before its own log has it, and an H1 that is then restored would open it anew.

Guaranteed on a POSIX file system, as long as at most one of the two servers is restored to an earlier state. Not
guaranteed: that an unlinked block cannot be recovered from the disk; whoever finds one and has recorded what was sent
can read that server's share. Only their owner can read the files and the folder.
"""

import hashlib
import hmac
import os
import re
import struct
from io import BufferedReader
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from dpaudit import _validate
from dpaudit.secure.channel import Channel
from dpaudit.secure.crypto.randomness import Source, system, unshown
from dpaudit.secure.protocol import agreement, storage
from dpaudit.secure.protocol.agreement import MOST_BLOCKS
from dpaudit.secure.protocol.storage import IDENTITY_BYTES, NONE, Ledger, Past
from dpaudit.secure.protocol.transfer_noise import First, Second, Share
from dpaudit.secure.protocol.two_server_sum import Evaluator, Garbled, Garbler, Opening, Received, checked_count

with _validate.extra("secure"):
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

Block = TypeVar("Block", bound=Garbled | Received | Share)
Party = Garbler | Evaluator | First | Second

WAY = "to continue, use --rejoin at the next start of the server whose state was restored or lost"
_HIGHEST = 1 << 62  # above all numbers of blocks
_NONE = (1 << 64) - 1  # in place of a number, on the wire
_NAME = struct.Struct(f"<Q{IDENTITY_BYTES}s")  # number and identity of a block, on the wire
_SUFFIX, _PARTIAL, _LEDGER = ".block", ".partial", "ledger"
_NUMBERED = re.compile(r"[0-9]{20}")
_TAG_BYTES = 16


class Pair(NamedTuple):
    """The identity of two servers that prepare blocks together.

    Attributes:
      identity: 16 bytes drawn by both.
      key: 32 secret bytes of this server, for the tags of its blocks.
    """

    identity: bytes
    key: bytes
    __repr__ = unshown


class Store(Generic[Block]):
    """Stores blocks of one kind and size in a folder.

    Args:
      folder: created if missing; for one store only, used by one process at a time.
      role: "h1" or "h2".
      kind: of block: :class:`two_server_sum.Garbled` for H1 and :class:`two_server_sum.Received` for H2, or
        :class:`transfer_noise.Share`.
      opening: what the blocks are for; it must have noise, as otherwise H2's part depends on its share.
      count: coordinates of each block.
      pair: the identity of the two servers.
      source: where this server's part of a block's identity comes from.

    Raises:
      InputError: the opening has no noise, no block has this count, the folder cannot be created or holds a copy of a
        block beside it, or the log of used blocks cannot be read.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        role: str,
        kind: type[Block],
        opening: Opening,
        count: int,
        pair: Pair,
        source: Source = system,
    ):
        if opening.noise is None:
            raise _validate.expected("opening", "one with noise, which needs no share ahead", "none")
        self._folder, self._kind, self._opening, self._count = Path(folder), kind, opening, checked_count(count)
        self._role, self._pair, self._source = role, pair, source
        text = f"dpaudit block 2, {kind.__name__}, {count} coordinates, {opening.ring_bits} bits"
        self._header = hashlib.sha256(text.encode() + opening.digest()).digest()
        try:
            storage.folder(self._folder)
        except OSError as fault:
            raise _validate.expected("folder", "a folder, or a place for one", f"{folder}: {fault.strerror}") from None
        for left_over in self._folder.glob("*" + _PARTIAL):
            left_over.unlink()
        self.ledger = Ledger(self._folder / _LEDGER)
        paths = sorted(self._folder.glob("*" + _SUFFIX))
        if stray := [path.name for path in paths if not _NUMBERED.fullmatch(path.stem)]:
            raise _validate.expected("folder", "blocks named by 20 digits alone", f"{stray[0]} in {self._folder}")
        self._identities = {int(path.stem): self._identity(path) for path in paths}
        self._burn(self.ledger.floor)

    def numbers(self) -> list[int]:
        """Lists the numbers of the stored blocks, rising."""
        return sorted(self._identities)

    def put(self, number: int, identity: bytes, block: Block) -> None:
        """Stores a block; it is on disk, whole, when this returns.

        Args:
          number, identity: as both servers agreed (:meth:`free`).
          block: as prepared, of this store's size. Do not use it in any other way.

        Raises:
          InputError: the number is stored already, or was used.
        """
        if _validate.at_least(0, number=number) in self._identities or number <= self.ledger.floor:
            raise _validate.expected("number", "one that the store does not have and has not had", number)
        path = self._path(number)
        beside = path.with_suffix(_PARTIAL)
        with open(storage.create(beside), "wb") as stream:
            stream.write(self._header + identity)
            for part in block.parts():
                stream.write(np.ascontiguousarray(part).data)
            stream.write(self._tag(number, identity, block))
            stream.flush()
            os.fsync(stream.fileno())
        beside.rename(path)
        storage.synchronise(self._folder)
        self._identities[number] = identity

    def take(self, number: int) -> Block:
        """Takes the block of this number; it counts as used before it is read.

        Raises:
          InputError: there is no such block; or it is incomplete, changed or made for another opening, and is then
            used up.
        """
        if number not in self._identities:
            raise _validate.expected("number", f"that of a block in {self._folder}", number)
        identity, path = self._identities.pop(number), self._path(number)
        self.ledger.spend(number, identity)
        try:
            with open(path, "rb") as stream:
                path.unlink()
                return self._read(stream, number, identity)
        except FileNotFoundError:
            raise _validate.expected("number", f"that of a block in {self._folder}", number) from None

    def agree(self, channel: Channel) -> int | None:
        """Finds the lowest block that both servers have, together with the peer's ``agree``; discards all lower ones.

        Returns:
          The number, or None if they have none in common; both stores are then empty.

        Raises:
          ChannelError: a message did not arrive.
        """
        while True:
            mine = min(self._identities.items(), default=(_NONE, bytes(IDENTITY_BYTES)))
            theirs = _exchanged(channel, *mine)
            if mine == theirs:
                return None if mine[0] == _NONE else mine[0]
            self._burn(theirs[0] if mine[0] == theirs[0] else theirs[0] - 1)

    def common(self, channel: Channel) -> int:
        """Counts the blocks that both servers have, together with the peer's ``common``.

        Raises:
          ChannelError: a message did not arrive.
        """
        channel.send("offline.count", len(self._identities).to_bytes(8, "little"))
        channel.send("offline.blocks", b"".join(_NAME.pack(*block) for block in self._identities.items()))
        count = int.from_bytes(channel.receive("offline.count", 8).tobytes(), "little")
        if count > MOST_BLOCKS:
            channel.refuse(f"receiving 'offline.blocks': {count} blocks are announced, more than {MOST_BLOCKS}")
        theirs = channel.receive("offline.blocks", _NAME.size * count)
        return len(self._identities.items() & set(_NAME.iter_unpack(theirs.tobytes())))

    def free(self, channel: Channel) -> tuple[int, bytes]:
        """Chooses number and identity of a new block, together with the peer's ``free``.

        Returns:
          A number above all that either has or had, and 16 bytes drawn by both.

        Raises:
          ChannelError: a message did not arrive.
        """
        mine = max(self.ledger.floor, *self._identities, NONE) + 1, self._source(IDENTITY_BYTES)
        theirs = _exchanged(channel, *mine)
        number = max(mine[0], theirs[0])
        if number >= _HIGHEST:
            channel.refuse(f"receiving 'offline.block': number {number}, beyond {_HIGHEST}")
        drawn = mine[1] + theirs[1] if self._role == "h1" else theirs[1] + mine[1]
        text = b"dpaudit block" + self._pair.identity + struct.pack("<QQ", self._count, number) + drawn
        return number, hashlib.sha256(text).digest()[:IDENTITY_BYTES]

    def meet(self, theirs: Past, names: tuple[str, str]) -> None:
        """Compares what both have used, and discards all blocks up to the last that the peer used.

        Args:
          theirs: the peer's log.
          names: this server's name and the peer's.

        Raises:
          InputError: one of the two is behind, or they have used different blocks of one number.
        """
        mine = self.ledger.past
        for name, other, past, seen in ((*names[::-1], theirs, mine.seen), (*names, mine, theirs.seen)):
            if past.spent < seen:
                raise self._behind(name, f"block {seen} spent, as {other} has seen", past.spent)
        if theirs.spent == mine.spent and theirs.identity != mine.identity:
            raise self._behind(names[1], f"spent the block {mine.spent} that {names[0]} has", "another one")
        if theirs.spent > mine.spent:
            if self._identities.get(theirs.spent) != theirs.identity:
                raise self._behind(names[0], f"block {theirs.spent}, which {names[1]} has spent", "none such")
            self.ledger.spend(*theirs[:2])
            self._burn(theirs.spent)

    def _behind(self, name: str, wanted: str, found: Any) -> _validate.InputError:
        found = "none" if found == NONE else found
        return _validate.expected(f"{name}'s blocks", f"{wanted} (its state is an older copy; {WAY})", found)

    def _burn(self, last: int) -> None:
        """Discards the blocks up to this number."""
        lost = [number for number in self._identities if number <= last]
        if lost and max(lost) > self.ledger.floor:
            self.ledger.burn(max(lost))
        for number in lost:
            self._path(number).unlink(missing_ok=True)
            del self._identities[number]

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:020d}{_SUFFIX}"

    def _identity(self, path: Path) -> bytes:
        """Reads the identity in a block's file; padded with zeros if the file ends before it."""
        with open(path, "rb") as stream:
            return stream.read(len(self._header) + IDENTITY_BYTES)[len(self._header) :].ljust(IDENTITY_BYTES, b"\0")

    def _tag(self, number: int, identity: bytes, block: Block) -> bytes:
        """Authenticates a block's number, identity and content, by AES-GCM under a key used for nothing else."""
        key = hmac.digest(self._pair.key, struct.pack("<Q", number) + identity, "sha256")[:_TAG_BYTES]
        authenticator = Cipher(algorithms.AES(key), modes.GCM(bytes(12))).encryptor()
        authenticator.authenticate_additional_data(self._header)
        for part in block.parts():
            authenticator.authenticate_additional_data(np.ascontiguousarray(part).data.cast("B"))
        authenticator.finalize()
        return authenticator.tag

    def _read(self, stream: BufferedReader, number: int, identity: bytes) -> Block:
        block, name = (
            self._kind.blank(self._opening, self._count),
            self._path(number).name,
        )  # allocated, but not touched yet
        head = self._header + identity
        wanted = len(head) + sum(part.nbytes for part in block.parts()) + _TAG_BYTES
        found = os.fstat(stream.fileno()).st_size
        if found != wanted:
            raise _validate.expected("block", f"{wanted} bytes (it is now used up)", f"{found} in {name}")
        came = stream.read(len(head))
        if came[: len(self._header)] != self._header:
            raise _validate.expected("block", "one made for this opening (it is now used up)", name)
        for part in block.parts():
            stream.readinto(part.data)
        if came != head or not hmac.compare_digest(stream.read(), self._tag(number, identity, block)):
            raise _validate.expected("block", "an unchanged one (it is now used up)", name)
        return block


def _exchanged(channel: Channel, number: int, identity: bytes) -> tuple[int, bytes]:
    channel.send("offline.block", _NAME.pack(number, identity))
    return _NAME.unpack(channel.receive("offline.block", _NAME.size).tobytes())


class PreparedBlocks:
    """Prepares blocks for the steps to come, and takes them, at one server.

    Args:
      channel: to the peer's object of this class.
      names: this server's name, "h1" or "h2", and the peer's.
      kind: the opening; it must have noise.
      dimension: d, of a step.
      steps: for how many steps to keep blocks.
      folder: created if missing; used by this server only.
      pair: the identity of the two servers.
      source: where this server's part of the identities comes from.
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
        block: Any = Share if kind.circuit is None else Garbled if names[0] == "h1" else Received
        self._stores = {
            count: Store(folder / f"{count}", names[0], block, kind, count, pair, source)
            for count in dict.fromkeys(self._sizes)
        }
        self._taken: dict[int, int] = {}  # the number of the last block that this session took, by size

    def meet(self) -> None:
        """Compares what both servers have used, together with the peer's ``meet``.

        Raises:
          InputError: one of the two is behind; both raise.
          ChannelError: a message did not arrive.
        """
        told = {f"{count}": store.ledger.past for count, store in self._stores.items()}
        mine = {count: {**past._asdict(), "identity": past.identity.hex()} for count, past in told.items()}
        theirs = agreement.exchange(self._channel, "spent", mine)
        refusal = ""
        try:
            for count, store in self._stores.items():
                store.meet(_past(theirs.get(f"{count}")), self._names)
        except _validate.InputError as fault:
            refusal = str(fault)
        other = agreement.exchange(self._channel, "met", {"refusal": refusal}).get("refusal")
        if refusal or other:
            self._channel.close()
            raise _validate.InputError(refusal or str(other))

    def fill(self, party: Party, seconds: float) -> None:
        """Makes blocks until both servers have enough, together with the peer's ``fill``.

        Args:
          party: this server's side of the opening.
          seconds: time limit for each block.

        Raises:
          ChannelError: a message did not arrive.
        """
        for count, store in self._stores.items():
            self._channel.deadline(seconds)
            for _ in range(self._steps * self._sizes.count(count) - store.common(self._channel)):
                self._channel.deadline(seconds)
                number, identity = store.free(self._channel)
                store.put(number, identity, party.anew().prepare(self._kind, count))

    def take(self, party: Party, count: int) -> Garbled | Received | Share:
        """Takes a block of this size, together with the peer's ``take``; makes one if there is none.

        Raises:
          ChannelError: a message did not arrive, or the block here is damaged, and is then used up.
        """
        store = self._stores[count]
        number = store.agree(self._channel)
        if number is None:
            return party.prepare(self._kind, count)
        try:
            block = store.take(number)
        except _validate.InputError as fault:
            self._channel.refuse(str(fault))
        self._taken[count] = number
        return block

    def opened(self) -> None:
        """Records that the peer, too, has used what was taken, since its answer depends on those blocks."""
        for count, number in self._taken.items():
            self._stores[count].ledger.see(number)
        self._taken = {}


def _past(said: Any) -> Past:
    """Parses what a peer states about one store; InputError if it is malformed."""
    try:
        spent, seen, identity = said["spent"], said["seen"], bytes.fromhex(said["identity"])
        whole = type(spent) is type(seen) is int and min(spent, seen) >= NONE
        whole = whole and len(identity) == IDENTITY_BYTES * (spent != NONE)
    except (KeyError, TypeError, ValueError):
        whole = False
    if not whole:
        raise _validate.expected("spent", "a block's number and identity, and the number of one seen", said)
    return Past(spent, identity, seen)
