"""Correlated oblivious transfers by the million from 128 base ones: labels that differ by delta where a choice is one.

The sender has a secret delta of 128 bits, the receiver a choice bit r_i for each transfer i. The sender ends with q_i,
uniform, and the receiver with t_i = q_i xor r_i delta: the very labels of a garbled circuit whose wires carry q_i for
zero and q_i xor delta for one, and whose evaluator puts in r_i.

Delta is cut into 128 / k pieces of k bits. For each the receiver has a tree of 2^k seeds (:mod:`dpaudit.secure.ggm`),
and the sender all of them but number D, its piece. With P_x the stream of seed x, the receiver's u = xor_x P_x and
v = xor_x x P_x satisfy v xor u D = xor_x (x xor D) P_x, which the sender can compute: the seed that it lacks has the
weight zero. The receiver sends u xor r, a bit for each transfer and piece, which makes the sender's v xor r D: a piece
of its label. ``depth`` = k trades bytes for AES, a transfer costing 16 / k bytes and 16 2^k / k bytes of key stream:

* depth 1 is IKNP, 16 bytes; its trees are the base OTs' seeds themselves;
* depth 2 is SoftSpoken with half the bytes for the same AES, depth 4 with a quarter for twice as much AES.

Promised against semi-honest parties that do not collude: the sender learns nothing of the choices, and the receiver
nothing of delta, while AES is a good generator and the base OTs hold. Not promised: anything against a receiver who
sends columns made with different choices; it learns bits of delta. All transfers of a sender share its delta: whoever
needs pads that are independent must hash the labels first. A new sender takes a new delta.

Source: Ishai, Kilian, Nissim and Petrank, Extending oblivious transfers efficiently (2003); one column a base OT and
labels that stay correlated: Asharov, Lindell, Schneider and Zohner, More efficient oblivious transfer (2013); all
depths: Roy 2022, "SoftSpokenOT".
"""

import numpy as np

from dpaudit import check
from dpaudit.secure import ggm, transpose
from dpaudit.secure.channel import Channel
from dpaudit.secure.randomness import Source, Stream, system

LIMIT = 1 << 40  # transfers from one set of base OTs: 2^33 blocks of each stream
_CHUNK = 1 << 16  # transfers that are one message: 8 KiB a stream, at most 1 MiB in all
_BLOCK = 64  # transfers that are made at once; where a call ends within a block, the rest of it is burnt


class Sender:
    """The party with delta. Its constructor and the peer's speak with each other: 128 base OTs, then the trees.

    Args:
      channel: to the peer's :class:`Receiver`.
      delta: uint8 [16], secret and uniform, but for a bit that its use fixes (garbling: the lowest of byte 0 is one).
      depth: 1, 2 or 4, the peer's.
      source: where the secrets come from.

    Attributes:
      used: transfers made or burnt; the next one has this number, and none is made twice.
    """

    def __init__(self, channel: Channel, delta: np.ndarray, *, depth: int = 1, source: Source = system):
        if delta.shape != (transpose.ROWS // 8,) or delta.dtype != np.uint8:
            raise check.expected("delta", "uint8 [16]", f"{delta.dtype} {list(delta.shape)}")
        bits = np.unpackbits(delta, bitorder="little")
        self.used = 0
        self._channel = channel
        self._depth = _checked(depth)
        self._masks = (255 * bits).reshape(-1, depth, 1)  # all ones where delta has a one
        self._streams = _streams(ggm.punctured(channel, bits.astype(bool), depth, source))

    def extend(self, count: int) -> np.ndarray:
        """The next ``count`` transfers: q, uint8 [count, 16].

        Raises:
          InputError: a count below 1, or beyond what is left of :data:`LIMIT`.
          ChannelError: a message that did not come through.
        """
        labels = _room(count, self.used)
        self.used += len(labels)  # burnt from here on, whatever happens
        for start in range(0, len(labels), _CHUNK):
            part = labels[start : start + _CHUNK]
            width = len(part) // 8
            rows, _ = _weighed(self._streams, self._depth, width)
            corrections = self._channel.receive("cot.corrections", len(rows) * width)
            rows ^= corrections.reshape(-1, 1, width) & self._masks
            transpose.into_labels(rows.reshape(transpose.ROWS, width), part)
        return labels[:count]


class Receiver:
    """The party that chooses.

    Args:
      channel: to the peer's :class:`Sender`.
      depth: 1, 2 or 4, the peer's.
      source: where the secrets come from.

    Attributes:
      used: as the sender's.
    """

    def __init__(self, channel: Channel, *, depth: int = 1, source: Source = system):
        self.used = 0
        self._channel = channel
        self._depth = _checked(depth)
        self._streams = _streams(ggm.whole(channel, depth, source))

    def extend(self, choices: np.ndarray) -> np.ndarray:
        """The next transfers: t, uint8 [n, 16], for choices r, bool [n].

        Raises:
          InputError: no choices, of another shape or type, or more than what is left of :data:`LIMIT`.
          ChannelError: a message that did not come through.
        """
        if choices.ndim != 1 or choices.dtype != bool:
            raise check.expected("choices", "bool [n]", f"{choices.dtype} {list(choices.shape)}")
        labels = _room(len(choices), self.used)
        self.used += len(labels)  # burnt from here on, whatever happens
        bits = np.zeros(len(labels) // 8, np.uint8)
        packed = np.packbits(choices, bitorder="little")
        bits[: len(packed)] = packed
        for start in range(0, len(labels), _CHUNK):
            part = labels[start : start + _CHUNK]
            width = len(part) // 8
            rows, totals = _weighed(self._streams, self._depth, width)
            self._channel.send("cot.corrections", totals ^ bits[start // 8 : start // 8 + width])
            transpose.into_labels(rows.reshape(transpose.ROWS, width), part)
        return labels[: len(choices)]


def _weighed(streams: list[list[Stream]], depth: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """The next ``width`` bytes of all streams P_x of each tree: xor_x x P_x, a row a bit of x, and xor_x P_x.

    A tree's streams are its last ones: the sender has none of weight zero, and its totals have no meaning.

    Returns:
      uint8 [trees, depth, width] and [trees, width].
    """
    leaves = np.zeros((len(streams), 2**depth, width), np.uint8)
    rows = np.empty((len(streams), depth, width), np.uint8)
    for tree, grown in zip(streams, leaves, strict=True):
        for stream, leaf in zip(tree, grown[-len(tree) :], strict=True):
            stream.fill(leaf)
    for bit in range(depth):  # the lowest bit of x that is left; then leaves that differ in it alone are added up
        np.bitwise_xor.reduce(leaves[:, 1::2], axis=1, out=rows[:, bit])
        leaves[:, ::2] ^= leaves[:, 1::2]
        leaves = leaves[:, ::2]
    return rows, leaves[:, 0]


def _streams(seeds: np.ndarray) -> list[list[Stream]]:
    return [[Stream(seed.tobytes()) for seed in tree] for tree in seeds]


def _room(count: int, used: int) -> np.ndarray:
    """Memory for the labels of ``count`` transfers and of those that end their last block."""
    check.at_least(1, transfers=count)
    if count > LIMIT - used:
        raise check.expected("transfers", f"at most {LIMIT - used} more from these base OTs", count)
    return np.empty((-(-count // _BLOCK) * _BLOCK, transpose.ROWS // 8), np.uint8)


def _checked(depth: int) -> int:
    if depth not in (1, 2, 4):
        raise check.expected("depth", "1, 2 or 4", depth)
    return depth
