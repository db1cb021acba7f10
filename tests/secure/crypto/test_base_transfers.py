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
    assert said.lengths() == [("base-ot.sender", 65), ("base-ot.receiver", 128 * 32)]
    np.testing.assert_array_equal(chosen, both[np.arange(128), CHOICES.astype(int)])
    a = int.from_bytes(Stream(SENDER).draw(32), "big")
    numbers = np.frombuffer(Stream(RECEIVER).draw(128 * 32), np.uint8).reshape(128, 32)
    mine = textbook.times(a)
    assert said.first[0].payload == textbook.encode(mine)
    checked = [0, 125]
    assert sorted(CHOICES[checked].tolist()) == [False, True]
    for index in checked:
        b = int.from_bytes(numbers[index].tobytes(), "big")
        theirs = textbook.times(b, mine) if CHOICES[index] else textbook.times(b)
        assert theirs is not None
        sent = theirs[0].to_bytes(32, "big")
        assert said.second[0].payload[32 * index : 32 * (index + 1)] == sent
        for choice, factor in enumerate((a, pow(a, -1, textbook.ORDER))):
            product = textbook.times(factor, theirs)
            assert product is not None
            hashed = hashlib.sha256(b"dpaudit base OT" + index.to_bytes(4, "big") + textbook.encode(mine) + sent)
            hashed.update(product[0].to_bytes(32, "big"))
            assert both[index, choice].tobytes() == hashed.digest()[:16]


def test_what_is_sent_for_one_choice_could_have_been_sent_for_the_other() -> None:
    """For every b and choice there is one b' that sends the same point for the other choice: b a, or b / a."""
    a, b = 12345678901234567890, 987654321
    mine = textbook.times(a)
    for_one, for_zero = textbook.times(b, mine), textbook.times(b)
    assert for_one == textbook.times(a * b)
    assert for_zero == textbook.times(b * pow(a, -1, textbook.ORDER), mine)


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
    good = textbook.GENERATOR[0].to_bytes(32, "big")
    bad = next(x.to_bytes(32, "big") for x in range(1, 99) if not textbook.on_curve(x))

    def answer(channel: Channel) -> None:
        channel.receive("base-ot.sender", 65)
        channel.send("base-ot.receiver", good * 127 + bad)

    with pytest.raises(ChannelError, match=r"^base OT 127: point: expected 32 bytes, the x of a point of P-256"):
        in_process.together(in_process.channels(), base_transfers.send, answer)


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
