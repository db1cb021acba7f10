"""Tests that channels notice whatever the network does to a message, and that nothing of it can be read."""

import pickle

import pytest

from dpaudit._validate import InputError
from dpaudit.personalization.boundary.channels import OVERHEAD, Identity, Links, Network, SealedWire
from dpaudit.secure.channel import ChannelError

LENGTH = 64
A, B = b"a" * LENGTH, b"b" * LENGTH


def pair(*, pinned=None):
    """The links of anna and bert, open, and their network; ``pinned`` is whom anna takes for bert."""
    network, anna, bert = Network(), Identity("anna"), Identity("bert")
    ends = (
        Links(anna, network, {"bert": (pinned or bert).public}),
        Links(bert, network, {"anna": anna.public}),
    )
    for end in ends:
        end.hello()
    for end in ends:
        end.greet()
    return *ends, network


def test_messages_come_through_in_both_directions():
    anna, bert, network = pair()
    for n in range(3):
        anna.send("bert", "greeting", b"x" * n)
        assert bert.receive("anna", "greeting", n) == b"x" * n
        bert.send("anna", "answer", b"")
        assert anna.receive("bert", "answer", 0) == b""
    assert [size for _, _, size in network.traffic()[2:]] == [OVERHEAD + n for n in (0, 0, 1, 0, 2, 0)]


def flipped(byte):
    def attack(first, second):
        return first[:byte] + bytes([first[byte] ^ 1]) + first[byte + 1 :]

    return attack


CHANGED = "message 0 was changed on the way, is not the next one, or is not from this peer"


@pytest.mark.parametrize(
    "attack",
    [
        lambda first, second: second,
        lambda first, second: first[:-1],
        lambda first, second: first + b"\0",
        lambda first, second: first[:32] + second[32:],
        lambda first, second: b"",
        flipped(0),
        flipped(40),
        flipped(-17),
    ],
)
def test_what_the_network_changes_is_refused_for_good(attack):
    anna, bert, network = pair()
    anna.send("bert", "greeting", A)
    anna.send("bert", "greeting", B)
    first, second = (network.receive("anna", "bert") or b"" for _ in range(2))
    network.send("anna", "bert", attack(first, second))
    network.send("anna", "bert", first)
    with pytest.raises(ChannelError, match=f"channel of 'bert' to 'anna': {CHANGED}"):
        bert.receive("anna", "greeting", LENGTH)
    for again in (lambda: bert.receive("anna", "greeting", LENGTH), lambda: bert.send("anna", "answer", A)):
        with pytest.raises(ChannelError, match=r"channel of 'bert' to 'anna': .*closed"):
            again()


def test_a_replay_and_a_reflection_are_refused():
    anna, bert, network = pair()
    anna.send("bert", "greeting", A)
    first = network.log[-1].message
    assert bert.receive("anna", "greeting", LENGTH) == A
    network.send("anna", "bert", first)
    with pytest.raises(ChannelError, match="message 1 was changed on the way, is not the next one"):
        bert.receive("anna", "greeting", LENGTH)
    network.send("bert", "anna", first)
    with pytest.raises(ChannelError, match=CHANGED):
        anna.receive("bert", "greeting", LENGTH)


def test_another_kind_or_length_is_refused():
    """By the channel above the wire: the peer is the right one, but keeps to another protocol."""
    anna, bert, _ = pair()
    anna.send("bert", "greeting", A)
    with pytest.raises(ChannelError, match="receiving 'answer', message 0: a message of kind 'greeting' came"):
        bert.receive("anna", "answer", LENGTH)
    anna, bert, _ = pair()
    anna.send("bert", "greeting", A)
    with pytest.raises(ChannelError, match="expected 63 bytes, 64 were announced"):
        bert.receive("anna", "greeting", LENGTH - 1)


def test_another_peer_is_refused():
    anna, bert, _ = pair(pinned=Identity("bert"))
    anna.send("bert", "greeting", A)
    with pytest.raises(ChannelError, match=CHANGED):
        bert.receive("anna", "greeting", LENGTH)
    anna, bert, _ = pair(pinned=Identity("bert"))
    bert.send("anna", "greeting", A)
    with pytest.raises(ChannelError, match=CHANGED):
        anna.receive("bert", "greeting", LENGTH)


def test_a_hello_in_the_middle_is_refused():
    network, anna, bert, eve = Network(), Identity("anna"), Identity("bert"), Identity("anna")
    end, middle = Links(bert, network, {"anna": anna.public}), Links(eve, network, {"bert": bert.public})
    for link in (end, middle):  # eve calls herself anna
        link.hello()
    for link in (end, middle):
        link.greet()
    middle.send("bert", "greeting", A)
    with pytest.raises(ChannelError, match=CHANGED):
        end.receive("anna", "greeting", LENGTH)
    end.hello()
    with pytest.raises(ChannelError, match="channel of 'anna' to 'bert': a second hello came"):
        middle.greet()


def test_channels_open_with_a_public_key_of_another_party():
    network, anna, bert = Network(), Identity("anna"), Identity("bert")
    link = Links(bert, network, {"anna": anna.public})
    with pytest.raises(ChannelError, match=r"channel of 'bert' to 'anna': .*no keys yet"):
        link.send("anna", "greeting", A)
    with pytest.raises(ChannelError, match="channel of 'bert' to 'anna': no hello came"):
        link.greet()
    network.send("anna", "bert", bytes(32))
    with pytest.raises(ChannelError, match="channel of 'bert' to 'anna': its hello is no public key"):
        Links(bert, network, {"anna": anna.public}).greet()
    with pytest.raises(InputError, match="peer: expected another name than 'bert', got bert"):
        SealedWire(bert, "bert", anna.public, network)


def test_same_contents_never_look_the_same():
    anna, _, network = pair()
    other, _, elsewhere = pair()
    for end in (anna, anna, other):
        end.send("bert", "greeting", A)
    sent = [entry.message for log in (network.log, elsewhere.log) for entry in log[2:]]
    assert len(sent) == len(set(sent)) == 3


def test_network_keeps_what_it_sees():
    anna, bert, network = pair()
    anna.send("bert", "greeting", b"good morning")
    assert bert.receive("anna", "greeting", 12) == b"good morning"
    assert network.traffic() == [("anna", "bert", 32), ("bert", "anna", 32), ("anna", "bert", 12 + OVERHEAD)]
    assert not any(b"morning" in sent.message for sent in network.log)
    with pytest.raises(ChannelError, match=r"channel of 'bert' to 'anna': .*\(nothing came\)"):
        bert.receive("anna", "greeting", LENGTH)
    own = Identity("anna")
    with pytest.raises(InputError, match="Identity: expected its public key to be copied"):
        pickle.dumps(own)
    assert repr(own) == f"Identity('anna', public={own.public.hex()})"
