"""Trees of seeds: one party knows all leaves, the other all but one of each tree, and which one is its secret.

The trees come from the 128 base OTs, ``depth`` of them a tree. A node's two children are the first two blocks of the
stream that it seeds; a leaf seeds a stream of its own. At each level below the first, the owner sends the XOR of all
left children and the XOR of all right ones, each hidden by one seed of a base OT; the other party can open the one on
the side where its hole is not, which is what it lacks to know every node but the one that leads to the hole. The two
nodes of the first level are the base OT's seeds themselves.

Promised (semi-honest): the owner learns nothing of the holes; a hole's leaf is as good as random to the other party.

Source: the trees, Goldreich, Goldwasser and Micali, How to construct random functions (1986); opening all but one leaf
by OT, Boyle et al., Efficient two-round OT extension and silent non-interactive secure computation (2019).
"""

import numpy as np

from dpaudit.secure import base_ot
from dpaudit.secure.channel import Channel
from dpaudit.secure.randomness import SEED_BYTES, Source, Stream


def whole(channel: Channel, depth: int, source: Source) -> np.ndarray:
    """The owner's side, of 128 / depth trees.

    Args:
      channel: to the peer's :func:`punctured`.
      depth: of each tree; divides 128.
      source: where the secrets come from.

    Returns:
      leaves, uint8 [trees, 2^depth, 16].
    """
    pairs = base_ot.send(channel, source).reshape(-1, depth, 2, SEED_BYTES)
    nodes = pairs[:, depth - 1]
    for bit in reversed(range(depth - 1)):
        children = _children(nodes)
        channel.send("ggm.sums", np.bitwise_xor.reduce(children, axis=1) ^ pairs[:, bit])
        nodes = children.reshape(len(pairs), -1, SEED_BYTES)
    return nodes


def punctured(channel: Channel, holes: np.ndarray, depth: int, source: Source) -> np.ndarray:
    """The other side: all leaves but number ``hole`` of each tree.

    Leaves are ordered by their number XOR the hole's, so that the unknown one comes first and is left out: what is
    done with them later is the same for all holes.

    Args:
      channel: to the peer's :func:`whole`.
      holes: bool [128]: ``depth`` bits a tree, the least significant first.
      depth: as the peer's.
      source: where the secrets come from.

    Returns:
      leaves, uint8 [trees, 2^depth - 1, 16]: entry y - 1 of a tree is the owner's leaf y XOR hole.
    """
    seeds = base_ot.receive(channel, ~holes, source).reshape(-1, depth, SEED_BYTES)
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
    """uint8 [trees, n, 16] -> [trees, n, 2, 16], left and right."""
    drawn = b"".join(Stream(node.tobytes()).draw(2 * SEED_BYTES) for node in nodes.reshape(-1, SEED_BYTES))
    return np.frombuffer(drawn, np.uint8).reshape(*nodes.shape[:2], 2, SEED_BYTES)
