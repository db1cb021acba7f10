"""Tests trees of seeds against naive recursion; the other side has every leaf except the one at its hole."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from dpaudit.secure.crypto import base_transfers, correlated_transfers
from dpaudit.secure.crypto.randomness import Stream
from tests.secure.transcript import record

OWNER, OTHER = bytes(range(16)), bytes(range(16, 32))
HOLES = np.random.default_rng(1).integers(0, 2, 128).astype(bool)


def _grown(node: bytes, levels: int) -> list[bytes]:
    if levels == 0:
        return [node]
    both = Cipher(algorithms.AES(node), modes.ECB()).encryptor().update(bytes(31) + b"\1")
    return [leaf for child in (both[:16], both[16:]) for leaf in _grown(child, levels - 1)]


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_all_leaves_but_one(depth: int) -> None:
    leaves, others, said = record(
        lambda channel: correlated_transfers.grow_trees(channel, depth, Stream(OWNER).draw),
        lambda channel: correlated_transfers.grow_punctured_trees(channel, HOLES, depth, Stream(OTHER).draw),
    )
    trees = 128 // depth
    assert said.lengths() == [
        ("base-ot.sender", 65),
        *[("ggm.sums", 32 * trees)] * (depth - 1),
        ("base-ot.receiver", 128 * 32),
    ]
    pairs, _, _ = record(
        lambda channel: base_transfers.send(channel, Stream(OWNER).draw),
        lambda channel: base_transfers.receive(channel, ~HOLES, Stream(OTHER).draw),
    )
    heard = b"".join(message.payload for message in said.first)
    for tree, hole_bits in enumerate(HOLES.reshape(trees, depth)):
        hole = sum(1 << bit for bit in range(depth) if hole_bits[bit])
        roots = pairs[depth * (tree + 1) - 1]
        naive = [leaf for root in roots for leaf in _grown(root.tobytes(), depth - 1)]
        assert leaves[tree].tobytes() == b"".join(naive)
        assert others[tree].tobytes() == b"".join(naive[y ^ hole] for y in range(1, 2**depth))
        assert naive[hole] not in others[tree].tobytes()
        assert naive[hole] not in heard
    assert len(np.unique(leaves.reshape(-1, 16), axis=0)) == trees * 2**depth
