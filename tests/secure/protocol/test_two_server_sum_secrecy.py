"""Tests by scans of whole sessions that nothing secret crosses the wire and nothing is used twice."""

import numpy as np
import pytest

from dpaudit.secure.circuits import garbling
from dpaudit.secure.circuits.garbling import GateKeys, Keys
from dpaudit.secure.crypto.randomness import Source, Stream
from dpaudit.secure.noise import binomial
from dpaudit.secure.protocol import two_server_sum
from tests.secure import sessions
from tests.secure.sessions import FIRST, SECOND, Session, given

KIND = two_server_sum.noisy(binomial.binomial(coins=7, step_bits=2), ring_bits=25)


def session(count: int, sources: tuple[Source, Source] | None = None, blocks: int = 2) -> Session:
    return sessions.play(KIND, [sessions.shares(seed, count, 25) for seed in range(blocks)], sources=sources)


def test_delta_never_crosses_the_wire() -> None:
    played = session(3)
    said = played.said
    shown = [np.frombuffer(payload, np.uint8).reshape(-1, 16) for payload in played.payloads("labels")]
    known = np.concatenate([*shown, *(side.prepared.labels.reshape(-1, 16) for side in played.second)])
    assert not said.leaks(played.delta, known)
    last = said.first[-1]
    for planted in (played.delta, shown[0][4] ^ played.delta):  # the scan's power
        message = last._replace(payload=last.payload[:-3] + planted.tobytes())
        assert said._replace(first=[*said.first, message]).leaks(played.delta, known)


def repeated_seeds(played: Session) -> bool:
    seeds = played.payloads("seed")
    return len(set(seeds)) < len(seeds)


def repeated_transfers(*played: Session) -> bool:
    """Tells whether two labels of transfers, of any block, step or session, are equal or partners."""
    zeros = [one.zeros(KIND, block).reshape(-1, 16) for one in played for block in range(len(one.first))]
    both = [labels ^ delta for labels in zeros for delta in (np.zeros(16, np.uint8), played[0].delta)]
    return len(np.unique(np.concatenate(both), axis=0)) < 2 * sum(map(len, zeros))


def repeated_queries(played: Session) -> bool:
    """Tells whether AES gets a key with an input twice while both blocks are garbled again, as they were sent."""
    asked: dict[bytes, list[bytes]] = {}

    def recorded(seed: bytes) -> Keys:
        keys = GateKeys(seed)

        def keyed(chunk: int, gate: int) -> garbling.Encrypt:
            encrypt, key = keys(chunk, gate), bytearray(31)
            garbling.encryption(seed)(
                memoryview(chunk.to_bytes(8, "little") + gate.to_bytes(8, "little")), memoryview(key)
            )

            def recording(source: memoryview, target: memoryview) -> object:
                asked.setdefault(bytes(key[:16]), []).append(bytes(source))
                return encrypt(source, target)

            return recording

        return keyed

    tables = []
    for block, (side, seed) in enumerate(zip(played.first, played.payloads("seed"), strict=True)):
        mixed = garbling.choose(played.zeros(KIND, block), side.bits(KIND), played.delta)
        inputs = garbling.chunks(np.concatenate([side.prepared.zeros, mixed]))
        tables += garbling.garble(KIND.gates, inputs, played.delta, recorded(seed))
    assert [part.tables.tobytes() for part in tables] == played.payloads("tables")  # so those were the queries
    inputs = [np.frombuffer(b"".join(calls), "<u8").reshape(-1, 2) for calls in asked.values()]
    assert sum(map(len, inputs)) == 4 * KIND.gates.ands * sum(len(side.opened) for side in played.first)
    return any(len(np.unique(blocks, axis=0)) < len(blocks) for blocks in inputs)


@pytest.mark.integration
def test_nothing_is_used_twice_within_and_across_steps() -> None:
    played = session(garbling.CHUNK + 7, blocks=3)
    assert not repeated_seeds(played)
    assert not repeated_transfers(played)
    assert not repeated_queries(played)


def test_what_is_used_twice_is_told() -> None:
    one, two = Stream(FIRST).draw, Stream(SECOND).draw
    seed_again = session(40, (given(one, 16, bytes(range(1, 17))), two))  # delta and all seeds
    assert repeated_seeds(seed_again)
    assert not repeated_queries(seed_again)
    labels_again = session(
        40, (given(given(one, 16, bytes(range(1, 17))), 25 * 40 * 16, Stream(SECOND).draw(16000)), two)
    )
    assert repeated_queries(labels_again)
    played = session(40)
    assert repeated_transfers(played, session(40))  # a session that is replayed
    assert not repeated_transfers(played)
