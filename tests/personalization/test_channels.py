"""Channels: whatever the network does to a message is noticed, and nothing of it can be read."""

import pickle

import pytest

from dpaudit._validate import InputError
from dpaudit.personalization.boundary.channels import OVERHEAD, Channel, ChannelError, Identity, Links, Network

LENGTH = 64


def pair(*, pinned=None):
    """The two ends of an open channel; ``pinned`` is whom anna takes for bert."""
    anna, bert = Identity("anna"), Identity("bert")
    ends = Channel(anna, "bert", (pinned or bert).public), Channel(bert, "anna", anna.public)
    for end, other in (ends, ends[::-1]):
        end.greet(other.hello)
    return ends


def test_messages_come_through_in_both_directions():
    anna, bert = pair()
    for n in range(3):
        assert bert.open("greeting", anna.seal("greeting", b"x" * n, LENGTH), LENGTH) == b"x" * n
        assert anna.open("answer", bert.seal("answer", b"", LENGTH), LENGTH) == b""
    assert len({len(anna.seal("greeting", b"x" * n, LENGTH)) for n in (0, 1, LENGTH)} | {LENGTH + OVERHEAD}) == 1
    with pytest.raises(InputError, match="payload: expected at most 64 bytes, got 65 bytes"):
        anna.seal("greeting", b"x" * 65, LENGTH)


def flipped(byte):
    def attack(first, second):
        return first[:byte] + bytes([first[byte] ^ 1]) + first[byte + 1 :]

    return attack


CHANGED = "'greeting', message 0: what came was changed on the way, or is not this peer's of this kind"


@pytest.mark.parametrize(
    "attack, message",
    [
        (lambda first, second: second, "message 1 came, which was sent before or ahead of its turn"),
        (lambda first, second: first[:-1], "expected 96 bytes, got 95"),
        (lambda first, second: first + b"\0", "expected 96 bytes, got 97"),
        (lambda first, second: first[:8] + second[8:], CHANGED),
        (flipped(8), CHANGED),
        (flipped(40), CHANGED),
        (flipped(-17), CHANGED),
    ],
)
def test_what_the_network_changes_is_refused_for_good(attack, message):
    anna, bert = pair()
    first, second = anna.seal("greeting", b"a", LENGTH), anna.seal("greeting", b"b", LENGTH)
    with pytest.raises(ChannelError, match=f"channel of 'bert' to 'anna': .*{message}"):
        bert.open("greeting", attack(first, second), LENGTH)
    with pytest.raises(ChannelError, match="channel of 'bert' to 'anna': closed"):
        bert.open("greeting", first, LENGTH)


def test_a_replay_a_reflection_and_another_kind_are_refused():
    anna, bert = pair()
    first = anna.seal("greeting", b"a", LENGTH)
    assert bert.open("greeting", first, LENGTH) == b"a"
    with pytest.raises(ChannelError, match="message 0 came, which was sent before"):
        bert.open("greeting", first, LENGTH)
    anna, bert = pair()
    with pytest.raises(ChannelError, match=CHANGED):
        anna.open("greeting", anna.seal("greeting", b"a", LENGTH), LENGTH)
    anna, bert = pair()
    with pytest.raises(ChannelError, match="'answer', message 0: what came was changed"):
        bert.open("answer", anna.seal("greeting", b"a", LENGTH), LENGTH)


def test_another_peer_is_refused():
    anna, bert = pair(pinned=Identity("bert"))
    with pytest.raises(ChannelError, match=CHANGED):
        bert.open("greeting", anna.seal("greeting", b"a", LENGTH), LENGTH)
    with pytest.raises(ChannelError, match=CHANGED):
        anna.open("greeting", bert.seal("greeting", b"a", LENGTH), LENGTH)


def test_a_hello_in_the_middle_is_refused():
    anna, bert, eve = Identity("anna"), Identity("bert"), Identity("anna")  # eve calls herself anna
    end, middle = Channel(bert, "anna", anna.public), Channel(eve, "bert", bert.public)
    end.greet(middle.hello)
    middle.greet(end.hello)
    with pytest.raises(ChannelError, match=CHANGED):
        end.open("greeting", middle.seal("greeting", b"a", LENGTH), LENGTH)
    with pytest.raises(ChannelError, match="a second hello came"):
        middle.greet(end.hello)
    with pytest.raises(ChannelError, match="its hello is no public key"):
        Channel(bert, "anna", anna.public).greet(bytes(32))
    with pytest.raises(ChannelError, match=r"closed \(no keys yet\)"):
        Channel(bert, "anna", anna.public).seal("greeting", b"a", LENGTH)
    with pytest.raises(InputError, match="peer: expected another name than 'bert', got bert"):
        Channel(bert, "bert", anna.public)


def test_same_contents_never_look_the_same():
    anna, other = pair()[0], pair()[0]
    sealed = [end.seal("greeting", b"a", LENGTH) for end in (anna, anna, other)]
    assert len({message[8:] for message in sealed}) == 3


def test_network_keeps_what_it_sees():
    network, own = Network(), {name: Identity(name) for name in ("anna", "bert")}
    links = [Links(own[a], network, {b: own[b].public}) for a, b in (("anna", "bert"), ("bert", "anna"))]
    for link in links:
        link.hello()
    for link in links:
        link.greet()
    links[0].send("bert", "greeting", b"good morning", LENGTH)
    assert links[1].receive("anna", "greeting", LENGTH) == b"good morning"
    assert network.traffic() == [("anna", "bert", 32), ("bert", "anna", 32), ("anna", "bert", LENGTH + OVERHEAD)]
    assert not any(b"morning" in sent.message for sent in network.log)
    with pytest.raises(ChannelError, match="channel of 'bert' to 'anna': nothing came"):
        links[1].receive("anna", "greeting", LENGTH)
    with pytest.raises(InputError, match="Identity: expected its public key to be copied"):
        pickle.dumps(own["anna"])
    assert repr(own["anna"]) == f"Identity('anna', public={own['anna'].public.hex()})"
