"""Records everything that H2 holds in real openings: its share and bits, labels, tables, decoding, and results.

One session opens many coordinates, each a trial with labels of its own, so that a network can learn from thousands of
them. The noise is small, so that what the release tells is known exactly, and is much: a view that tells more is found
out by it. Of longer words the network reads the lowest bits, the ones that gates turn on; it is also given
those of the labels of H1's share with H2's own taken off.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from dpaudit import AuditResult, Claim
from dpaudit.auditing.attacks import choose, learned
from dpaudit.auditing.bounds import estimate
from dpaudit.auditing.conclude import from_counts
from dpaudit.secure.channel import Channel
from dpaudit.secure.circuits import garbling
from dpaudit.secure.circuits.garbling import BLOCK, GateKeys
from dpaudit.secure.crypto import shares
from dpaudit.secure.crypto.randomness import Source, Stream
from dpaudit.secure.noise import accounting, binomial
from dpaudit.secure.protocol import in_process, two_server_sum

LAW = binomial.binomial(coins=15, step_bits=1)
KIND = two_server_sum.noisy(LAW, ring_bits=7)
RECORD = 4  # units, about one standard deviation
DELTA = 1e-3
CLAIM = Claim(accounting.least_epsilon(LAW, shift=RECORD, delta=DELTA), DELTA, "add_remove")
COUNT = 4 * garbling.CHUNK  # coordinates of a session
SESSIONS = 4  # a world: two to learn from, one for the threshold, one to count
LOW = 2  # bits of a word that the network reads
_CLEARED = np.array([0xFE] + [0xFF] * (BLOCK - 1), np.uint8)  # of a label, all bits but the last
_OWN, _LABELS = KIND.mixed * COUNT // 8, KIND.ring_bits * COUNT * BLOCK  # bytes that each server draws at once


def released(record: int, seed: bytes) -> np.ndarray:
    """Returns the release alone, [n, 1], of a session in which every coordinate's owner has ``record``."""
    return view(record, seed)[:, :1]


def view(record: int, seed: bytes, *, telling: bool = False) -> np.ndarray:
    """H2's view of such a session, float32 [n, numbers], the release first.

    Args:
      record: units.
      seed: of everybody's secrets, which are for simulation.
      telling: whether H1's labels of its share end in the very bit that they hide.
    """
    owner, first, second = (Stream((role + seed).ljust(16)).draw for role in (b"o", b"1", b"2"))
    one, two = shares.split(np.full(COUNT, record), ring_bits=KIND.ring_bits, source=owner)
    if telling:
        first = _once(first, _LABELS, lambda drawn: np.frombuffer(drawn, np.uint8) & np.resize(_CLEARED, _LABELS))
    own = two_server_sum.fair_bits(second, (KIND.mixed, COUNT))
    second = _once(second, _OWN, lambda drawn: np.packbits(own))

    def garbler(channel: Channel) -> None:
        party = two_server_sum.Garbler(channel, source=first)
        party.open(KIND, party.prepare(KIND, COUNT), one)

    def evaluator(channel: Channel) -> np.ndarray:
        party = two_server_sum.Evaluator(channel, source=second)
        return _opened(channel, party.prepare(KIND, COUNT), two, own)

    return in_process.together(in_process.channels(600.0), garbler, evaluator)[1]


def _once(source: Source, size: int, change: Callable[[bytes], np.ndarray]) -> Source:
    """Returns a source whose answers of this size are changed."""
    return lambda count: change(source(count)).tobytes() if count == size else source(count)


def _opened(channel: Channel, received: two_server_sum.Received, share: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Does what :meth:`dpaudit.secure.protocol.two_server_sum.Evaluator.open` does, by an H2 that keeps all it
    sees."""
    bits = KIND.ring_bits
    labels = channel.receive("labels", bits * COUNT * BLOCK).reshape(bits, COUNT, BLOCK)
    decoding = np.unpackbits(channel.receive("decoding", bits * COUNT // 8)).reshape(bits, COUNT)
    inputs = np.concatenate([labels, received.labels])
    gates = tuple(gate._replace(last=()) for gate in KIND.gates.gates)
    every = KIND.gates._replace(gates=gates, outputs=tuple(range(2, 2 + len(inputs) + len(gates))))
    keys = GateKeys(received.seed.tobytes())
    wires = np.concatenate(list(garbling.evaluate(every, garbling.chunks(inputs), received.tables, keys)), axis=1)
    read = wires[np.array(KIND.gates.outputs) - 2] ^ decoding
    values = (1 << np.arange(bits)) @ read.astype(np.int64)
    opened = shares.smod(values - share - LAW.offset, 1 << (bits - 1))
    channel.send("opened", opened.astype(two_server_sum.KEPT))
    halves = np.concatenate(received.tables, axis=-1)[:, :, 0].astype(np.uint8)
    mine = binary(share, bits)
    words = [mine, mine ^ wires[:bits], own, wires, binary(inputs[..., 0], LOW), binary(halves, LOW), decoding, read]
    return np.concatenate([opened[None], *(part.reshape(-1, COUNT) for part in words)]).T.astype(np.float32)


def binary(values: np.ndarray, bits: int) -> np.ndarray:
    """Returns the lowest bits of numbers, [..., n] -> [..., bits, n]."""
    return values[..., None, :] >> np.arange(bits)[:, None] & 1


def told(seen: Callable[[int, bytes], np.ndarray], *, seed: int, confidence: float, steps: int = 1_000) -> AuditResult:
    """Returns an audit of whether the record is there: a network learns from some sessions, others are counted."""
    worlds = [
        [seen(record, b"%d %d %d" % (seed, world, number)) for number in range(SESSIONS)]
        for world, record in enumerate((0, RECORD))
    ]

    def both(part: slice) -> jax.Array:
        return jnp.asarray(np.stack([np.concatenate(sessions[part]) for sessions in worlds]))

    score = learned.train(jax.random.key(seed), both(slice(2)), steps=steps, batch=256, layers=2, hidden=64)
    chosen, counted = (np.asarray(jax.vmap(jax.vmap(score))(both(part))) for part in (slice(2, 3), slice(3, 4)))
    rule = choose.choose_rule(chosen, delta=DELTA, confidence=confidence)
    false = estimate.errors(counted, *rule)
    return from_counts(*false, COUNT, COUNT, claim=CLAIM, method="learned", confidence=confidence)
