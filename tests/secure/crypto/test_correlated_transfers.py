"""Tests that labels differ by delta exactly where a choice is one, with lengths, counters and the whole wire."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from dpaudit import _validate
from dpaudit.secure.channel import Channel, ChannelError
from dpaudit.secure.crypto import base_transfers, correlated_transfers
from dpaudit.secure.crypto.randomness import Stream
from dpaudit.secure.protocol import in_process
from tests.secure.transcript import Transcript, record

SENDER, RECEIVER = bytes(range(16)), bytes(range(16, 32))
DELTA = np.frombuffer(Stream(b"a delta for them").draw(16), np.uint8) | np.eye(1, 16, dtype=np.uint8)[0]


def _choices(count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 2, count).astype(bool)


def _play(
    counts: list[int], depth: int, choices: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, Transcript]:
    """Runs extensions one after the other with known sources: (q, t, transcript)."""
    bits = np.split(_choices(sum(counts)) if choices is None else choices, np.cumsum(counts)[:-1])

    def sender(channel: Channel) -> tuple[np.ndarray, int]:
        party = correlated_transfers.Sender(channel, DELTA, depth=depth, source=Stream(SENDER).draw)
        return np.concatenate([party.extend(count) for count in counts]), party.used

    def receiver(channel: Channel) -> tuple[np.ndarray, int]:
        party = correlated_transfers.Receiver(channel, depth=depth, source=Stream(RECEIVER).draw)
        return np.concatenate([party.extend(part) for part in bits]), party.used

    (q, sent), (t, received), said = record(sender, receiver)
    assert sent == received == sum(-(-count // 64) * 64 for count in counts)
    return q, t, said


def _correlated(q: np.ndarray, t: np.ndarray, choices: np.ndarray) -> bool:
    return np.array_equal(t, np.where(choices[:, None], q ^ DELTA, q))


@pytest.mark.parametrize(
    "count, depth", [*[(count, depth) for depth in (1, 4) for count in (1, 7, 128, 129, 100_000)], (129, 2)]
)
def test_labels_differ_by_delta_where_the_choice_is_one(count: int, depth: int) -> None:
    q, t, said = _play([count], depth)
    choices = _choices(count)
    assert q.shape == t.shape == (count, 16)
    assert _correlated(q, t, choices)
    choices[-1] ^= True
    assert not _correlated(q, t, choices)  # the twin: one wrong choice
    t[0, 15] ^= 128
    assert not _correlated(q, t, _choices(count))  # one wrong bit
    corrections = [length for kind, length in said.lengths() if kind == "cot.corrections"]
    full, rest = divmod(count, 65_536)
    assert corrections == [65_536 * 16 // depth] * full + [1024 // depth * -(-rest // 64)]


def test_depth_one_is_iknp_bit_by_bit() -> None:
    _, t, said = _play([130], depth=1)
    bits = np.unpackbits(DELTA, bitorder="little").astype(bool)
    pairs, _, _ = record(
        lambda channel: base_transfers.send(channel, Stream(RECEIVER).draw),
        lambda channel: base_transfers.receive(channel, ~bits, Stream(SENDER).draw),
    )
    counters = bytes(31) + b"\1"  # two blocks hold 192 bits, what 130 transfers take and burn

    def column(seed: bytes) -> bytes:
        return Cipher(algorithms.AES(seed), modes.ECB()).encryptor().update(counters)[:24]

    columns = np.array([[list(column(seed.tobytes())) for seed in pair] for pair in pairs], np.uint8)
    packed = np.zeros(24, np.uint8)
    packed[:17] = np.packbits(_choices(130), bitorder="little")
    (corrections,) = [message.payload for message in said.second if message.kind == "cot.corrections"]
    assert corrections == (columns[:, 0] ^ columns[:, 1] ^ packed).tobytes()
    for i in (0, 1, 63, 64, 129):
        label = sum(int(columns[j, 1, i // 8] >> (i % 8) & 1) << j for j in range(128))
        assert t[i].tobytes() == label.to_bytes(16, "little")


@pytest.mark.parametrize("depth", [1, 4])
def test_no_transfer_is_made_twice_however_the_calls_are_cut(depth: int) -> None:
    choices = _choices(65_536 + 192)
    q, t, _ = _play([65_536 + 192], depth, choices)
    for cut in ([64, 128, 65_536], [65_536 + 64, 128]):
        again_q, again_t, _ = _play(cut, depth, choices)
        np.testing.assert_array_equal(again_q, q)
        np.testing.assert_array_equal(again_t, t)
    assert len(np.unique(q, axis=0)) == len(q)
    burnt, _, _ = _play([1, 1], depth)  # the rest of a block is never used
    np.testing.assert_array_equal(burnt, q[[0, 64]])


@pytest.mark.parametrize("depth", [1, 4])
def test_delta_never_crosses_the_wire(depth: int) -> None:
    q, t, said = _play([1_000], depth)
    assert not said.leaks(DELTA, t)
    for planted in (DELTA.tobytes(), (t[5] ^ DELTA).tobytes()):  # the scan's power
        message = said.second[-1]._replace(payload=said.second[-1].payload[:-3] + planted)
        assert said._replace(second=[*said.second, message]).leaks(DELTA, t)
    assert said._replace(second=[said.second[-1]._replace(payload=q.tobytes() + t.tobytes())]).leaks(DELTA, t)


@pytest.mark.parametrize(
    "depth, expected",
    [
        (1, "92cba004f7cb673e79d09fe653c1584a4599d86ec67c16c265d26c2fa2044e7a"),
        (4, "cdd6eb3b6bea9b080944ebf6290e0583cfc7f01cc41504ecfef98666f6cc1f82"),
    ],
)
def test_the_wire_is_pinned(depth: int, expected: str) -> None:  # whoever changes it makes a new protocol version
    assert _play([100, 3], depth)[2].hash() == expected


def test_sessions_of_the_system_differ() -> None:
    def sender(channel: Channel) -> np.ndarray:
        return correlated_transfers.Sender(channel, DELTA).extend(10)

    def receiver(channel: Channel) -> np.ndarray:
        return correlated_transfers.Receiver(channel).extend(_choices(10))

    sessions = [record(sender, receiver) for _ in range(2)]
    assert all(_correlated(q, t, _choices(10)) for q, t, _ in sessions)
    assert len(np.unique(np.concatenate([q for q, _, _ in sessions]), axis=0)) == 20


def test_parties_that_disagree_are_told() -> None:
    with pytest.raises(ChannelError, match=r"'cot.corrections', message 1: a message of kind 'ggm.sums' came"):
        in_process.together(
            in_process.channels(),
            lambda channel: correlated_transfers.Sender(channel, DELTA, depth=1).extend(64),
            lambda channel: correlated_transfers.Receiver(channel, depth=4),
        )
    with pytest.raises(ChannelError, match=r"'cot.corrections', message 1: expected 1024 bytes, 2048 were announced"):
        in_process.together(
            in_process.channels(),
            lambda channel: correlated_transfers.Sender(channel, DELTA).extend(64),
            lambda channel: correlated_transfers.Receiver(channel).extend(_choices(65)),
        )


def test_wrong_arguments_are_named() -> None:
    channel, _ = in_process.channels()
    with pytest.raises(_validate.InputError, match=r"^delta: expected uint8 \[16\], got int64 \[16\]$"):
        correlated_transfers.Sender(channel, DELTA.astype(np.int64))
    with pytest.raises(_validate.InputError, match=r"^depth: expected 1, 2 or 4, got 3$"):
        correlated_transfers.Receiver(channel, depth=3)

    def receiver(channel: Channel) -> None:
        party = correlated_transfers.Receiver(channel)
        with pytest.raises(_validate.InputError, match=r"^choices: expected bool \[n\], got uint8 \[3\]$"):
            party.extend(np.ones(3, np.uint8))
        with pytest.raises(_validate.InputError, match=r"^transfers: expected a whole number >= 1, got 0$"):
            party.extend(np.zeros(0, bool))
        party.used = correlated_transfers.LIMIT - 64
        with pytest.raises(
            _validate.InputError, match=r"^transfers: expected at most 64 more from these base OTs, got 65$"
        ):
            party.extend(_choices(65))

    in_process.together(in_process.channels(), lambda channel: correlated_transfers.Sender(channel, DELTA), receiver)
