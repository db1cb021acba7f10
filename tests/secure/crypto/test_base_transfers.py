"""Tests base transfers against a textbook computation, and against peers that send invalid points."""

import hashlib

import numpy as np
import pytest

from dpaudit import _validate
from dpaudit.secure.channel import Channel, ChannelError
from dpaudit.secure.crypto import base_transfers
from dpaudit.secure.crypto.randomness import Stream
from dpaudit.secure.protocol import in_process
from tests.secure import textbook
from tests.secure.transcript import record

SENDER, RECEIVER = bytes(range(16)), bytes(range(16, 32))
CHOICES = np.random.default_rng(0).integers(0, 2, 128).astype(bool)


def test_seeds_are_the_textbook_s() -> None:
    both, chosen, said = record(
        lambda channel: base_transfers.send(channel, Stream(SENDER).draw),
        lambda channel: base_transfers.receive(channel, CHOICES, Stream(RECEIVER).draw),
    )
    assert said.lengths() == [("base-ot.sender", 65), ("base-ot.receiver", 128 * 65)]
    np.testing.assert_array_equal(chosen, both[np.arange(128), CHOICES.astype(int)])
    a = int.from_bytes(Stream(SENDER).draw(32), "big")
    numbers = np.frombuffer(Stream(RECEIVER).draw(128 * 32), np.uint8).reshape(128, 32)
    mine = textbook.times(a)
    assert said.first[0].payload == textbook.encode(mine)
    checked = [0, 125]
    assert sorted(CHOICES[checked].tolist()) == [False, True]
    for index in checked:
        theirs = textbook.times(int.from_bytes(numbers[index].tobytes(), "big"))
        theirs = textbook.add(theirs, mine) if CHOICES[index] else theirs
        encoded = textbook.encode(theirs)
        assert said.second[0].payload[65 * index : 65 * (index + 1)] == encoded
        for choice, point in enumerate((theirs, textbook.add(theirs, textbook.negative(mine)))):
            product = textbook.times(a, point)
            assert product is not None
            hashed = hashlib.sha256(b"dpaudit base OT" + index.to_bytes(4, "big") + textbook.encode(mine) + encoded)
            hashed.update(product[0].to_bytes(32, "big"))
            assert both[index, choice].tobytes() == hashed.digest()[:16]


def test_system_seeds_agree_and_never_repeat() -> None:
    sessions = [
        record(base_transfers.send, lambda channel: base_transfers.receive(channel, ~CHOICES)) for _ in range(2)
    ]
    for both, chosen, _ in sessions:
        np.testing.assert_array_equal(chosen, both[np.arange(128), (~CHOICES).astype(int)])
        assert (chosen != both[np.arange(128), CHOICES.astype(int)]).any(axis=1).all()  # the twin: the other choice
    seeds = np.concatenate([both.reshape(-1, 16) for both, _, _ in sessions])
    assert len(np.unique(seeds, axis=0)) == 2 * 128 * 2


def test_a_receiver_s_points_are_checked() -> None:
    def receiver(last: int) -> None:
        def answer(channel: Channel) -> None:
            theirs = channel.receive("base-ot.sender", 65).tobytes()
            good = textbook.encode(textbook.GENERATOR)
            bad = theirs if last == 0 else good[:-1] + bytes([good[-1] ^ 1])
            channel.send("base-ot.receiver", good * 127 + bad)

        in_process.together(in_process.channels(), base_transfers.send, answer)

    with pytest.raises(ChannelError, match=r"^base OT 127: point: expected neither its summand"):
        receiver(0)
    with pytest.raises(ChannelError, match=r"^base OT 127: point: expected 65 bytes of an uncompressed point"):
        receiver(1)


def test_a_sender_s_point_is_checked() -> None:
    with pytest.raises(ChannelError, match=r"^base OT: point: expected 65 bytes of an uncompressed point of P-256"):
        in_process.together(
            in_process.channels(),
            lambda channel: channel.send("base-ot.sender", bytes(65)),
            lambda channel: base_transfers.receive(channel, CHOICES),
        )


def test_choices_are_bits() -> None:
    channel, _ = in_process.channels()
    for choices in (CHOICES[:127], CHOICES.astype(np.uint8)):
        with pytest.raises(_validate.InputError, match=r"^choices: expected bool \[128\], got"):
            base_transfers.receive(channel, choices)
