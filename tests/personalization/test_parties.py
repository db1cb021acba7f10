"""A round by separate parties: the same releases, and nothing to see but lengths that depend on nobody's data."""

import copy
import pickle
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.core import Tracer

from dpaudit._validate import InputError
from dpaudit.personalization.als import least_squares, steps
from dpaudit.personalization.als.layout import Everybody
from dpaudit.personalization.als.steps import Prior, Step
from dpaudit.personalization.boundary import aggregator as boundary
from dpaudit.personalization.boundary import messages, protocol
from dpaudit.personalization.boundary.channels import OVERHEAD, Network
from dpaudit.personalization.boundary.messages import terms
from dpaudit.personalization.boundary.parties import assemble
from dpaudit.personalization.boundary.processes import memoryless
from dpaudit.secure.channel import ChannelError
from tests.personalization import people, protocols, telling
from tests.personalization.rounds import DEVICES, PROTOCOL, start, users

DEVICE_NAMES = ("anna", "bert", "cleo", "dora")


def records(*, decoys=0):
    everyone = users(len(DEVICE_NAMES), decoys=decoys)
    return {name: {part: leaf[i] for part, leaf in everyone.items()} for i, name in enumerate(DEVICE_NAMES)}


def played(*, decoys=0, rounds=2):
    parties = assemble(PROTOCOL, *start(), records(decoys=decoys), Network())
    for t in range(rounds):
        parties.play(jax.random.key(0), t)
    return parties


@pytest.fixture(scope="module")
def parties():
    return played()


def same(one, other):
    return all(np.array_equal(*pair) for pair in zip(*map(jax.tree.leaves, (one, other)), strict=True))


@pytest.mark.integration
def test_parties_release_what_one_program_does(parties):
    state, memory = start()
    everyone = users(len(DEVICE_NAMES))
    end, _, transcript = boundary.run(jax.random.key(0), PROTOCOL, state, memory, everyone, rounds=2)
    for name in ("sums", "counts"):
        values = parties.server.transcript.values(name)
        np.testing.assert_allclose(values, transcript.values(name), rtol=1e-4, atol=1e-4)
    assert parties.server.transcript.mu() == pytest.approx(transcript.mu(), rel=1e-12)
    np.testing.assert_allclose(parties.server.state[0], end[0], rtol=1e-3, atol=1e-3)


@pytest.mark.integration
def test_parties_play_alternating_least_squares():
    """One bucket of users, each on a device: the same releases and item factors as of :func:`boundary.run`."""
    features, prior = jnp.ones((people.ITEMS, 1)), Prior(jnp.array([0.5, 0.2]), 3.0, 0.4)
    step, shares = Step(0.8, 1.5, steps.adaptive(0.25), unobserved=0.2), least_squares.Shares(0.3, 0.5, 0.2)
    whole = least_squares.alternating(step, noise_multiplier=0.5, features=features, prior=prior, shares=shares)
    state, rows, key = people.model(seed=6), people.honest(5, seed=5), jax.random.key(4)
    assert [] in rows
    bucket, everybody = people.batch(rows, 4), cast(Everybody, whole.devices)
    end, _, transcript = boundary.run(key, whole, state, memoryless(), (bucket,), rounds=2)

    one = everybody.devices._replace(compute=jax.jit(everybody.devices.compute), add=jax.jit(everybody.devices.add))
    apart = whole._replace(devices=one, update=jax.jit(whole.update))
    by_name = {f"device {i}": jax.tree.map(lambda leaf, i=i: leaf[i], bucket) for i in range(len(rows))}

    def off(devices, rounds):
        """How far the parties' server has strayed from the other's, in releases, and in factors in the end."""
        parties = assemble(apart, state, memoryless(), devices, Network())
        for t in range(rounds):
            parties.play(key, t)
        told, known = (made.values("statistics") for made in (parties.server.transcript, transcript))
        strayed = max(float(np.abs(told[name] - known[name][:rounds]).max()) for name in known)
        return strayed, float(np.abs(parties.server.state.factors - end.factors).max())

    assert max(off(by_name, 2)) < 1e-4
    last = by_name["device 4"]
    silent = off(by_name | {"device 4": jax.tree.map(jnp.zeros_like, last)}, 1)
    assert silent[0] > 1e-2
    assert off(by_name | {"device 4": last._replace(values=last.values.at[0].set(jnp.nan))}, 1) == silent


def found(contents, log):
    """Which of the contents are in what the network carried: any 8 bytes in a row of them."""
    seen = b"|".join(sent.message for sent in log)
    pieces = {name: {data[i : i + 8] for i in range(0, len(data) - 7, 4)} for name, data in contents.items()}
    return {name for name, own in pieces.items() if any(piece in seen for piece in own if len(set(piece)) > 2)}


def test_contents_are_not_in_what_the_network_sees(parties):
    agreed, (state, _), user = terms(PROTOCOL, *start(), users(4)), start(), records()["anna"]
    key = jax.random.fold_in(boundary.round_keys(jax.random.key(0), 0, ["sums", "counts"], start()[1])[0], 0)
    request = DEVICES.select.ask(user)
    part = DEVICES.select.take(state[0], request)
    message = DEVICES.compute(key, part, user)
    contents = {
        "request": messages.pack(request, agreed.request),
        "slice": messages.pack(part, agreed.slice),
        "message": messages.pack(message, agreed.message),
    }
    assert found(contents, parties.network.log) == set()
    in_the_clear = [parties.network.log[0]._replace(message=data) for data in contents.values()]
    assert found(contents, in_the_clear) == {"request", "slice", "message"}


def test_what_devices_ask_for_leaves_no_trace(parties):
    other = played(decoys=1)
    assert not same(records(), records(decoys=1))
    assert parties.network.traffic() == other.network.traffic()
    assert same(parties.server.transcript, other.server.transcript)
    assert parties.aggregator.outside()[0][:2] == ("sums", 0)
    agreed = terms(PROTOCOL, *start(), users(4))
    asked = {bytes_ for sender, receiver, bytes_ in parties.network.traffic()[14:] if sender in DEVICE_NAMES}
    assert asked == {messages.length(agreed.request) + OVERHEAD, messages.length(agreed.message) + OVERHEAD}


def test_administrator_sees_releases_alone(parties):
    aggregator = parties.aggregator
    transcript = parties.server.transcript
    for outside in (aggregator.outside(), pickle.loads(pickle.dumps(aggregator)), copy.deepcopy(aggregator)):
        assert [(name, number) for name, number, _ in outside] == [
            ("sums", 0), ("counts", 0), ("sums", 1), ("counts", 1)
        ]  # fmt: skip
        np.testing.assert_array_equal(outside[2][2], transcript.values("sums")[1])
    assert repr(aggregator) == "Aggregator(releases=4)"
    assert not hasattr(aggregator, "__dict__")
    with pytest.raises(InputError, match="Identity: expected its public key to be copied"):
        pickle.dumps(parties.distributor)


def test_a_device_is_heard_once_a_round_and_faults_are_noticed():
    parties = assemble(PROTOCOL, *start(), records(), Network())
    devices_key, release_key = parties.aggregator.keys(jax.random.key(0), 0)
    with pytest.raises(InputError, match="release: expected a round in which a device sent a message, got none"):
        parties.aggregator.release(release_key)
    parties.server.broadcast()
    parties.distributor.load()
    anna = parties.devices["anna"]
    anna.ask()
    parties.distributor.serve("anna")
    anna.answer(devices_key)
    parties.aggregator.collect("anna")
    with pytest.raises(InputError, match="device: expected one that has not sent its message of this round, got anna"):
        parties.aggregator.collect("anna")
    parties.network.send("bert", "aggregator", parties.network.log[-1].message)  # anna's, as if it were bert's
    with pytest.raises(ChannelError, match="channel of 'aggregator' to 'bert': message 0 was changed on the way"):
        parties.aggregator.collect("bert")


QUIET = protocols.steps(1e-6, rate=1.0)
PEOPLE: dict[str, jax.Array] = dict(zip(DEVICE_NAMES, protocols.people(4), strict=True))


def clipped_sum(*names, state):
    """What these devices send together, by hand."""
    moves = [np.asarray(PEOPLE[name] - state) for name in names]
    return sum(move / max(1.0, float(np.linalg.norm(move))) for move in moves)


def test_devices_that_drop_out_in_the_middle_are_not_waited_for():
    """They are missing from the sum; back again, they use the round's slice and not the one that they left."""
    parties, key = assemble(QUIET, 3.0 + protocols.START, None, PEOPLE, Network()), jax.random.key(0)
    there = [("anna", "dora"), ("anna", "bert", "cleo", "dora"), ("bert",)]
    gone = [{"away": ["cleo"], "leaving": ["bert"]}, {}, {"leaving": ["anna", "dora"], "away": ["cleo"]}]
    for t, (names, how) in enumerate(zip(there, gone, strict=True)):
        state = parties.server.state
        (release,) = parties.play(key, t, **how)
        np.testing.assert_allclose(release.value, clipped_sum(*names, state=state), atol=1e-3)
    stale = clipped_sum(*there[1], state=3.0 + protocols.START)
    assert np.abs(np.asarray(parties.server.transcript.values("steps"))[1] - stale).max() > 5e-3  # it would be seen
    assert parties.server.transcript.draws().shape == (3, 4)
    with pytest.raises(InputError, match="device: expected one of anna, bert, cleo, dora, got emil"):
        parties.play(key, 3, away=["emil"])


def test_a_round_of_too_few_devices_releases_nothing_and_costs_nothing():
    parties, key = assemble(QUIET, protocols.START, None, PEOPLE, Network(), minimum_users=3), jax.random.key(0)
    assert parties.play(key, 0, leaving=["bert"], away=["anna"]) == ()
    assert parties.server.transcript.parts == ()
    assert parties.aggregator.outside() == []
    np.testing.assert_array_equal(parties.server.state, protocols.START)
    (release,) = parties.play(key, 1, leaving=["bert"])
    assert int(release.number) == 0
    total = clipped_sum("anna", "cleo", "dora", state=protocols.START)  # of this round alone
    np.testing.assert_allclose(release.value, total, atol=1e-3)


KEYS = 2 * 2 * (len(DEVICE_NAMES) + 1)  # messages that open the channels: of two parties to all others, both ways


class Losing(Network):
    """Loses the first message from ``sender`` to ``receiver`` over their channel."""

    def __init__(self, sender, receiver):
        super().__init__()
        self.lost = sender, receiver

    def send(self, sender, receiver, message):
        if len(self.log) >= KEYS and (sender, receiver) == self.lost:
            self.lost = None
        else:
            super().send(sender, receiver, message)


@pytest.mark.parametrize("lost", [("cleo", "distributor"), ("distributor", "cleo"), ("cleo", "aggregator")])
def test_what_a_failed_round_has_collected_is_in_no_later_round(lost):
    """Neither in a sum nor in the count of who came; the round is released once, with the noise that it had."""
    parties = assemble(QUIET, protocols.START, None, PEOPLE, Losing(*lost), minimum_users=2)
    key, rest = jax.random.key(0), ["cleo"]
    with pytest.raises(ChannelError, match=r"'cleo'.*nothing came"):
        parties.play(key, 0)  # anna and bert have sent their messages
    assert parties.aggregator.outside() == []
    assert parties.play(key, 0, away=["anna", "bert", *rest]) == ()  # dora alone is too few
    (release,) = parties.play(key, 0, away=rest)
    total = clipped_sum("anna", "bert", "dora", state=protocols.START)
    np.testing.assert_allclose(release.value, total, atol=1e-3)
    parties.play(key, 1, away=rest)
    assert [number for _, number, _ in parties.aggregator.outside()] == [0, 1]
    assert parties.server.transcript.mu() == pytest.approx(np.sqrt(2) / 1e-6)


@pytest.mark.parametrize("part", ["ask", "take", "compute", "add", "release"])
def test_a_function_with_effects_is_refused_before_a_party_holds_it(part):
    with pytest.raises(InputError, match=f"^{part}: expected a function without effects, because it runs on raw data"):
        assemble(telling.protocol(part, telling.pure), *start(), records(), Network())
    assert telling.SEEN == []


def test_no_party_runs_the_developer_s_python():
    """A function that writes down what it is called with sees shapes, never a number."""
    seen = []

    def kept(function):
        def called(*given):
            seen.extend(jax.tree.leaves(given))
            return function(*given)

        return called

    (ask, take), compute, add = DEVICES.select, DEVICES.compute, DEVICES.add
    devices = protocol.each(protocol.Select(kept(ask), kept(take)), kept(compute), kept(add))
    spying = PROTOCOL._replace(devices=devices, release=kept(PROTOCOL.release))
    assemble(spying, *start(), records(), Network()).play(jax.random.key(0), 0)
    assert len(seen) > 5
    assert all(isinstance(leaf, Tracer) for leaf in seen)


def test_records_that_would_tell_themselves_apart_are_refused():
    state, memory = start()
    short = {name: {part: leaf[:3] for part, leaf in record.items()} if name == "bert" else record
             for name, record in records().items()}  # fmt: skip
    with pytest.raises(InputError, match="users: expected records of the shape of 'anna', padded to it"):
        assemble(PROTOCOL, state, memory, short, Network())
    with pytest.raises(InputError, match=r"users: expected records by names of devices, got \['server'\]"):
        assemble(PROTOCOL, state, memory, {"server": records()["anna"]}, Network())
    whole = PROTOCOL._replace(devices=lambda key, model, users: DEVICES(key, model, users))
    with pytest.raises(InputError, match=r"devices: expected what protocol.each makes of one device, got <function"):
        assemble(whole, state, memory, records(), Network())
    agreed = terms(PROTOCOL, state, memory, users(4))
    with pytest.raises(InputError, match=r"message: expected \['int32\[5\]'\] in .*, got \['int32\[4\]'\] in"):
        messages.pack(np.zeros(4, np.int32), agreed.request)
    with pytest.raises(InputError, match="message: expected 20 bytes, got 16 bytes"):
        messages.unpack(bytes(16), agreed.request)
