"""Extends 128 base transfers into millions of correlated oblivious transfers.

The sender has a secret delta of 128 bits, the receiver a choice bit r_i for each transfer i. The sender ends with q_i,
uniform, and the receiver with t_i = q_i xor r_i delta. These are the labels of a garbled circuit whose wires carry q_i
for zero and q_i xor delta for one, and whose evaluator's inputs are the r_i.

Delta is cut into 128 / k pieces of k bits. For each piece the receiver has a tree of 2^k seeds, and the sender all of
them but number D, the value of its piece. With P_x the stream of seed x, the receiver's u = xor_x P_x and v = xor_x x
P_x satisfy v xor u D = xor_x (x xor D) P_x, which the sender can compute: the seed that it lacks has weight zero. The
receiver sends u xor r, a bit for each transfer and piece, from which the sender makes v xor r D: a piece of its label.
``depth`` = k trades bytes for AES; a transfer costs 16 / k bytes and 16 2^k / k bytes of key stream:

* depth 1 is IKNP, 16 bytes; its trees are the seeds of the base transfers themselves;
* depth 2 is SoftSpoken with half the bytes for the same AES, depth 4 with a quarter for twice as much AES.

A tree comes from ``depth`` of the 128 base transfers. A node's two children are the first two blocks of the stream
that it seeds; a leaf seeds a stream of its own. At each level below the first, the owner sends the XOR of all left
children and the XOR of all right ones, each hidden by one seed of a base transfer. The other party can decrypt the one
on the side away from its hole, which gives it every node except those on the path to the hole. The two nodes of the
first level are the seeds of the base transfer themselves.

Guaranteed against semi-honest parties that do not collude: the sender learns nothing about the choices, and the
receiver nothing about delta, while AES is a good generator and the base transfers hold. Nothing is guaranteed against
a receiver that sends columns made with different choices; it learns bits of delta. All transfers of a sender share its
delta: to get independent pads, hash the labels first. A new sender takes a new delta.

Sources: Ishai, Kilian, Nissim and Petrank, Extending oblivious transfers efficiently (2003); one column a base
transfer and labels that stay correlated: Asharov, Lindell, Schneider and Zohner, More efficient oblivious transfer
(2013); all depths: Roy 2022, "SoftSpokenOT"; the trees: Goldreich, Goldwasser and Micali, How to construct random
functions (1986); opening all but one leaf by oblivious transfer: Boyle et al., Efficient two-round OT extension and
silent non-interactive secure computation (2019).
"""

import numpy as np

from dpaudit import _validate
from dpaudit.secure.channel import Channel
from dpaudit.secure.crypto import base_transfers
from dpaudit.secure.crypto.randomness import SEED_BYTES, Source, Stream, system

# Trees of seeds: one party knows all leaves, the other all but one of each tree, which one is its secret (the hole).


def grow_trees(channel: Channel, depth: int, source: Source) -> np.ndarray:
    """Grows 128 / depth trees of which this side knows every leaf.

    Args:
      channel: to the peer's :func:`grow_punctured_trees`.
      depth: the depth of each tree; divides 128.
      source: where the secrets come from.

    Returns:
      leaves, uint8 [trees, 2^depth, 16].
    """
    pairs = base_transfers.send(channel, source).reshape(-1, depth, 2, SEED_BYTES)
    nodes = pairs[:, depth - 1]
    for bit in reversed(range(depth - 1)):
        children = _children(nodes)
        channel.send("ggm.sums", np.bitwise_xor.reduce(children, axis=1) ^ pairs[:, bit])
        nodes = children.reshape(len(pairs), -1, SEED_BYTES)
    return nodes


def grow_punctured_trees(channel: Channel, holes: np.ndarray, depth: int, source: Source) -> np.ndarray:
    """Grows the peer's trees without the leaf number ``hole`` of each.

    Leaves are ordered by their number XOR the hole's. The unknown one comes first and is left out, so later steps are
    the same for all holes.

    Args:
      channel: to the peer's :func:`grow_trees`.
      holes: bool [128]: ``depth`` bits a tree, the least significant first.
      depth: as the peer's.
      source: where the secrets come from.

    Returns:
      leaves, uint8 [trees, 2^depth - 1, 16]: entry y - 1 of a tree is the owner's leaf y XOR hole.
    """
    seeds = base_transfers.receive(channel, ~holes, source).reshape(-1, depth, SEED_BYTES)
    trees = np.arange(len(seeds))
    sides = holes.reshape(-1, depth).astype(int)
    nodes = seeds[:, depth - 1 :]
    for bit in reversed(range(depth - 1)):
        sums = channel.receive("ggm.sums", seeds.shape[0] * 2 * SEED_BYTES).reshape(-1, 2, SEED_BYTES)
        hole_side = sides[:, bit]
        children = _children(nodes)[trees, :, np.stack([hole_side, 1 - hole_side])].transpose(1, 2, 0, 3)
        off_path = sums[trees, 1 - hole_side] ^ seeds[:, bit] ^ np.bitwise_xor.reduce(children[:, :, 1], axis=1)
        nodes = np.concatenate([off_path[:, None], children.reshape(len(trees), -1, SEED_BYTES)], axis=1)
    return nodes


def _children(nodes: np.ndarray) -> np.ndarray:
    """Returns the left and right children: uint8 [trees, n, 16] -> [trees, n, 2, 16]."""
    drawn = b"".join(Stream(node.tobytes()).draw(2 * SEED_BYTES) for node in nodes.reshape(-1, SEED_BYTES))
    return np.frombuffer(drawn, np.uint8).reshape(*nodes.shape[:2], 2, SEED_BYTES)


# Transposing a bit matrix of 128 rows: from one stream of bits per base transfer to one 128-bit label per transfer.
#
# A 64 x 64 block, held as 64 words of 64 bits, is transposed in six rounds. Round s = 32, 16, ..., 1 exchanges, for
# every pair of rows (r, r + s) with bit s of r clear, the columns of the first whose bit s is set with the columns of
# the second whose bit s is clear: shifts and masks on whole rows, which NumPy runs over many blocks at once.

ROWS = 128
_WORD = np.dtype("<u8")  # bit i of a row is bit i % 8 of its byte i // 8
_BLOCKS = 256  # transposed together: 128 rows of 2 KiB and scratch of half that size, which fit in a core's L2 cache


# For each round, the distance s and the mask of the columns whose bit s is clear.
_ROUNDS = [
    (np.uint64(s), np.uint64(sum(1 << column for column in range(64) if not column & s))) for s in (32, 16, 8, 4, 2, 1)
]


def transposed(rows: np.ndarray) -> np.ndarray:
    """Transposes a bit matrix of 128 rows into the two words of each column.

    Args:
      rows: uint8 [128, w], w a multiple of 8: 8 w columns of bits; not changed. A row is contiguous.

    Returns:
      uint64 [2, 64, w / 8]. Bit j of word h of column 64 b + r, at ``[h, r, b]``, is that column of row 64 h + j.

    Raises:
      InputError: the rows have another shape or type.

    Source: Warren, Hacker's Delight, 2nd edition, section 7-3 (transposing a bit matrix by halves).
    """
    blocks = rows.size // (ROWS * 8)
    if rows.dtype != np.uint8 or rows.shape != (ROWS, 8 * blocks) or rows.strides[-1] != 1:
        wanted = f"uint8 [{ROWS}, {8 * blocks}], with contiguous rows"
        raise _validate.expected("rows", wanted, f"{rows.dtype} {list(rows.shape)}")
    words = rows.view(_WORD).reshape(2, 64, blocks)
    found = np.empty(words.shape, _WORD)
    part = np.empty(ROWS * min(blocks, _BLOCKS), _WORD)
    scratch = np.empty(len(part) // 2, _WORD)
    for start in range(0, blocks, _BLOCKS):
        before, after = words[:, :, start : start + _BLOCKS], found[:, :, start : start + _BLOCKS]
        between = part[: before.size].reshape(before.shape)
        _exchange(before, between, _ROUNDS[0], scratch)
        for each in _ROUNDS[1:-1]:
            _exchange(between, between, each, scratch)
        _exchange(between, after, _ROUNDS[-1], scratch)
    return found


def _exchange(before: np.ndarray, after: np.ndarray, of: tuple[np.uint64, np.uint64], scratch: np.ndarray) -> None:
    """Does one round from uint64 [2, 64, blocks] to the same memory or other; ``scratch`` has half its size."""
    distance, mask = of
    shape = 2, 32 // int(distance), 2, int(distance), before.shape[2]
    old, new = before.reshape(shape), after.reshape(shape)
    moved = scratch[: before.size // 2].reshape(shape[0], shape[1], *shape[3:])
    np.right_shift(old[:, :, 0], distance, out=moved)
    np.bitwise_xor(moved, old[:, :, 1], out=moved)
    np.bitwise_and(moved, mask, out=moved)
    np.bitwise_xor(old[:, :, 1], moved, out=new[:, :, 1])
    np.left_shift(moved, distance, out=moved)
    np.bitwise_xor(old[:, :, 0], moved, out=new[:, :, 0])


# The transfers.

LIMIT = 1 << 40  # transfers from one set of base OTs: 2^33 blocks of each stream
TOGETHER = 1 << 16  # most transfers in one message: 8 KiB a stream, at most 1 MiB in all
BLOCK = 64  # transfers made at once; the rest of a block in which a call ends is discarded


class Sender:
    """Plays the sender, who holds delta. Its constructor exchanges the base transfers and the trees with the peer's.

    Args:
      channel: to the peer's :class:`Receiver`.
      delta: uint8 [16], secret and uniform, except for a bit that its use fixes (for garbling the lowest of byte 0 is
        one).
      depth: 1, 2 or 4, the same as the peer's.
      source: where the secrets come from.

    Attributes:
      used: transfers made or discarded; the next one has this number, and none is made twice.
    """

    def __init__(self, channel: Channel, delta: np.ndarray, *, depth: int = 1, source: Source = system):
        if delta.shape != (ROWS // 8,) or delta.dtype != np.uint8:
            raise _validate.expected("delta", "uint8 [16]", f"{delta.dtype} {list(delta.shape)}")
        bits = np.unpackbits(delta, bitorder="little")
        self.used = 0
        self._channel = channel
        self._depth = _checked(depth)
        self._masks = (255 * bits).reshape(-1, depth, 1)  # all ones where delta has a one
        self._streams = _streams(grow_punctured_trees(channel, bits.astype(bool), depth, source))

    def extend(self, count: int) -> np.ndarray:
        """Makes the next ``count`` transfers: q, uint8 [count, 16].

        Raises:
          InputError: the count is below 1, or more than what is left of :data:`LIMIT`.
          ChannelError: a message did not arrive.
        """
        parts = _parts(count, self.used)
        return _joined([self.words(part.stop - part.start) for part in parts], count)

    def words(self, count: int) -> np.ndarray:
        """Makes at most :data:`TOGETHER` transfers, by one message: q by words, uint64 [2, 64, blocks].

        The label of transfer 64 b + r has the words ``[:, r, b]``; those beyond ``count`` are not to be used. Errors
        are those of :meth:`extend`.
        """
        blocks, self.used = _taken(count, self.used)
        width = blocks * BLOCK // 8
        rows, _ = _weighed(self._streams, self._depth, width)
        corrections = self._channel.receive("cot.corrections", len(rows) * width)
        rows ^= corrections.reshape(-1, 1, width) & self._masks
        return transposed(rows.reshape(ROWS, width))


class Receiver:
    """Plays the receiver, who makes the choices.

    Args:
      channel: to the peer's :class:`Sender`.
      depth: 1, 2 or 4, the same as the peer's.
      source: where the secrets come from.

    Attributes:
      used: as for the sender.
    """

    def __init__(self, channel: Channel, *, depth: int = 1, source: Source = system):
        self.used = 0
        self._channel = channel
        self._depth = _checked(depth)
        self._streams = _streams(grow_trees(channel, depth, source))

    def extend(self, choices: np.ndarray) -> np.ndarray:
        """Makes the next transfers: t, uint8 [n, 16], for choices r, bool [n].

        Raises:
          InputError: there are no choices, they have another shape or type, or are more than what is left of
            :data:`LIMIT`.
          ChannelError: a message did not arrive.
        """
        parts = _parts(_of_bits(choices), self.used)
        return _joined([self.words(choices[part]) for part in parts], len(choices))

    def words(self, choices: np.ndarray) -> np.ndarray:
        """Makes at most :data:`TOGETHER` transfers, by one message: t by words, as the sender's ``words``."""
        blocks, self.used = _taken(_of_bits(choices), self.used)
        width = blocks * BLOCK // 8
        rows, totals = _weighed(self._streams, self._depth, width)
        packed = np.packbits(choices, bitorder="little")
        totals[:, : len(packed)] ^= packed
        self._channel.send("cot.corrections", totals)
        return transposed(rows.reshape(ROWS, width))


def _weighed(streams: list[list[Stream]], depth: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Combines the next ``width`` bytes of a tree's streams P_x: xor_x x P_x, a row per bit of x, and xor_x P_x.

    The sender lacks the stream of weight zero, so it has no totals; what stands in their place has no meaning.

    Returns:
      uint8 [trees, depth, width] and [trees, width].
    """
    leaves = np.empty((2**depth, len(streams), width), np.uint8)
    lacking = len(leaves) - len(streams[0])
    for number, tree in enumerate(streams):
        for stream, leaf in zip(tree, leaves[lacking:, number], strict=True):
            stream.fill(leaf)
    if depth == 1:
        if not lacking:
            leaves[0] ^= leaves[1]
        return leaves[1, :, None], leaves[0]
    leaves[:lacking] = 0
    rows = np.empty((len(streams), depth, width), np.uint8)
    for bit in range(depth):  # the lowest remaining bit of x; then leaves that differ only in it are added up
        np.bitwise_xor.reduce(leaves[1::2], axis=0, out=rows[:, bit])
        leaves[::2] ^= leaves[1::2]
        leaves = leaves[::2]
    return rows, leaves[0]


def _streams(seeds: np.ndarray) -> list[list[Stream]]:
    return [[Stream(seed.tobytes()) for seed in tree] for tree in seeds]


def _of_bits(choices: np.ndarray) -> int:
    """Counts choices; InputError if they are not bits."""
    if choices.ndim != 1 or choices.dtype != bool:
        raise _validate.expected("choices", "bool [n]", f"{choices.dtype} {list(choices.shape)}")
    return len(choices)


def _taken(count: int, used: int) -> tuple[int, int]:
    """Returns how many blocks ``count`` transfers take, and how many transfers are used from then on."""
    _validate.at_least(1, transfers=count)
    left = min(LIMIT - used, TOGETHER)
    if count > left:
        raise _validate.expected("transfers", f"at most {left} at once", count)
    blocks = -(-count // BLOCK)
    return blocks, used + blocks * BLOCK  # used even after a failure


def _parts(count: int, used: int) -> list[slice]:
    """Cuts ``count`` transfers into messages; InputError if there are not so many left."""
    _validate.at_least(1, transfers=count)
    if count > LIMIT - used:
        raise _validate.expected("transfers", f"at most {LIMIT - used} more from these base OTs", count)
    return [slice(start, min(start + TOGETHER, count)) for start in range(0, count, TOGETHER)]


def _joined(parts: list[np.ndarray], count: int) -> np.ndarray:
    """Writes labels by words, uint64 [2, 64, blocks], one after the other: uint8 [count, 16]."""
    labels = np.empty((sum(part.shape[2] for part in parts), BLOCK, 2), _WORD)
    start = 0
    for part in parts:
        labels[start : start + part.shape[2]] = part.transpose(2, 1, 0)
        start += part.shape[2]
    return labels.reshape(-1, 2).view(np.uint8)[:count]


def _checked(depth: int) -> int:
    if depth not in (1, 2, 4):
        raise _validate.expected("depth", "1, 2 or 4", depth)
    return depth
