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


def _rounds() -> list[tuple[int, int]]:
    """Lists (distance s, mask of the columns whose bit s is clear), from the largest distance to the smallest."""
    return [(s, sum(1 << column for column in range(64) if not column & s)) for s in (32, 16, 8, 4, 2, 1)]


_ROUNDS = _rounds()


def transpose_into_labels(rows: np.ndarray, labels: np.ndarray) -> None:
    """Writes column i of the matrix to label i: bit j of ``labels[i]`` is bit i of ``rows[j]``, lowest bit first.

    Args:
      rows: uint8 [128, w], C-contiguous, w a multiple of 8: 8 w columns of bits; not changed.
      labels: uint8 [8 w, 16], C-contiguous; overwritten.

    Raises:
      InputError: an array has another shape or type.

    Source: Warren, Hacker's Delight, 2nd edition, section 7-3 (transposing a bit matrix by halves).
    """
    blocks = rows.size // (ROWS * 8)
    _check("rows", rows, (ROWS, 8 * blocks))
    _check("labels", labels, (64 * blocks, ROWS // 8))
    words = rows.view(_WORD)
    by_block = labels.view(_WORD).reshape(blocks, 64, 2)
    for start in range(0, blocks, _BLOCKS):
        part = words[:, start : start + _BLOCKS].copy()
        _transpose_blocks(part)
        by_block[start : start + _BLOCKS] = part.reshape(2, 64, -1).transpose(2, 1, 0)


def _check(name: str, array: np.ndarray, shape: tuple[int, int]) -> None:
    if array.dtype != np.uint8 or array.shape != shape or not array.flags.c_contiguous:
        raise _validate.expected(name, f"uint8 {list(shape)}, C-contiguous", f"{array.dtype} {list(array.shape)}")


def _transpose_blocks(rows: np.ndarray) -> None:
    """Transposes each block (h, b), the words ``rows[64h : 64h + 64, b]`` of uint64 [128, blocks], in place."""
    blocks = rows.shape[1]
    for distance, mask in _ROUNDS:
        pairs = rows.reshape(ROWS // (2 * distance), 2, distance, blocks)
        upper, lower = pairs[:, 0], pairs[:, 1]
        moved = upper >> np.uint64(distance)
        moved ^= lower
        moved &= np.uint64(mask)
        lower ^= moved
        moved <<= np.uint64(distance)
        upper ^= moved


# The transfers.

LIMIT = 1 << 40  # transfers from one set of base OTs: 2^33 blocks of each stream
_CHUNK = 1 << 16  # transfers in one message: 8 KiB a stream, at most 1 MiB in all
_BLOCK = 64  # transfers made at once; the rest of a block in which a call ends is discarded


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
        labels = _room(count, self.used)
        self.used += len(labels)  # used from here on, even after a failure
        for start in range(0, len(labels), _CHUNK):
            part = labels[start : start + _CHUNK]
            width = len(part) // 8
            rows, _ = _weighed(self._streams, self._depth, width)
            corrections = self._channel.receive("cot.corrections", len(rows) * width)
            rows ^= corrections.reshape(-1, 1, width) & self._masks
            transpose_into_labels(rows.reshape(ROWS, width), part)
        return labels[:count]


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
        if choices.ndim != 1 or choices.dtype != bool:
            raise _validate.expected("choices", "bool [n]", f"{choices.dtype} {list(choices.shape)}")
        labels = _room(len(choices), self.used)
        self.used += len(labels)  # used from here on, even after a failure
        bits = np.zeros(len(labels) // 8, np.uint8)
        packed = np.packbits(choices, bitorder="little")
        bits[: len(packed)] = packed
        for start in range(0, len(labels), _CHUNK):
            part = labels[start : start + _CHUNK]
            width = len(part) // 8
            rows, totals = _weighed(self._streams, self._depth, width)
            self._channel.send("cot.corrections", totals ^ bits[start // 8 : start // 8 + width])
            transpose_into_labels(rows.reshape(ROWS, width), part)
        return labels[: len(choices)]


def _weighed(streams: list[list[Stream]], depth: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Combines the next ``width`` bytes of a tree's streams P_x: xor_x x P_x, a row per bit of x, and xor_x P_x.

    The sender lacks the stream of weight zero, so its totals have no meaning.

    Returns:
      uint8 [trees, depth, width] and [trees, width].
    """
    leaves = np.zeros((len(streams), 2**depth, width), np.uint8)
    rows = np.empty((len(streams), depth, width), np.uint8)
    for tree, grown in zip(streams, leaves, strict=True):
        for stream, leaf in zip(tree, grown[-len(tree) :], strict=True):
            stream.fill(leaf)
    for bit in range(depth):  # the lowest remaining bit of x; then leaves that differ only in it are added up
        np.bitwise_xor.reduce(leaves[:, 1::2], axis=1, out=rows[:, bit])
        leaves[:, ::2] ^= leaves[:, 1::2]
        leaves = leaves[:, ::2]
    return rows, leaves[:, 0]


def _streams(seeds: np.ndarray) -> list[list[Stream]]:
    return [[Stream(seed.tobytes()) for seed in tree] for tree in seeds]


def _room(count: int, used: int) -> np.ndarray:
    """Allocates the labels of ``count`` transfers, rounded up to whole blocks."""
    _validate.at_least(1, transfers=count)
    if count > LIMIT - used:
        raise _validate.expected("transfers", f"at most {LIMIT - used} more from these base OTs", count)
    return np.empty((-(-count // _BLOCK) * _BLOCK, ROWS // 8), np.uint8)


def _checked(depth: int) -> int:
    if depth not in (1, 2, 4):
        raise _validate.expected("depth", "1, 2 or 4", depth)
    return depth
