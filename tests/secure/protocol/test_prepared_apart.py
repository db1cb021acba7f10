"""Tests that a block found on H1's disk tells H2 nothing of the shares that other blocks opened."""

from pathlib import Path
from typing import Any

import numpy as np

from dpaudit.secure.channel import Channel
from dpaudit.secure.circuits import garbling
from dpaudit.secure.noise import binomial
from dpaudit.secure.protocol import in_process, two_server_sum
from dpaudit.secure.protocol.prepared import Pair, PreparedBlocks
from dpaudit.secure.protocol.two_server_sum import Evaluator, Garbled, Garbler, Received
from tests.secure import sessions

BITS, COUNT = 4, 64
KIND = two_server_sum.noisy(binomial.binomial(coins=1, step_bits=1), ring_bits=BITS)
PAIR = Pair(b"the pair of them", bytes(range(32)))


def three(channel: Channel, names: tuple[str, str], kind: type, folder: Path) -> list[Any]:
    """Takes a block that is made on the spot, and then two that were stored."""
    blocks, party = PreparedBlocks(channel, names, KIND, COUNT, 2, folder / names[0], PAIR), kind(channel)
    taken = [blocks.take(party, COUNT)]
    blocks.fill(party, 60.0)
    return [*taken, *(blocks.take(party, COUNT) for _ in range(2))]


def read(labels: np.ndarray, first: Garbled, second: Received, delta: np.ndarray) -> np.ndarray:
    """Reads all but the highest bit of H1's share from the labels and the decoding that H2 was sent.

    With the other label of a bit the result differs by that bit's value, upwards where the bit is zero.
    """

    def result(labels: np.ndarray) -> np.ndarray:
        keys, inputs = garbling.GateKeys(second.seed.tobytes()), np.concatenate([labels, second.labels])
        (found,) = garbling.evaluate(KIND.gates, [inputs], second.tables, keys)
        return (1 << np.arange(BITS)) @ (found ^ first.decoding).astype(np.int64)

    bits = []
    for bit in range(BITS - 1):
        turned = labels.copy()
        turned[bit] ^= delta
        bits.append((result(turned) - result(labels)) % (1 << BITS) != 1 << bit)
    return np.array(bits)


def test_the_delta_of_one_block_reads_no_share_that_another_opened(tmp_path: Path) -> None:
    firsts, seconds = in_process.together(
        in_process.channels(),
        lambda channel: three(channel, ("h1", "h2"), Garbler, tmp_path),
        lambda channel: three(channel, ("h2", "h1"), Evaluator, tmp_path),
    )
    share, _ = sessions.shares(3, COUNT, BITS)
    bits = (share >> np.arange(BITS)[:, None] & 1).astype(np.uint8)
    for number, (first, second) in enumerate(zip(firsts, seconds, strict=True)):
        labels = garbling.choose(first.zeros, bits, first.delta)
        right = [(read(labels, first, second, found.delta) == bits[:-1]).all() for found in firsts]
        assert right == [other == number for other in range(3)]
