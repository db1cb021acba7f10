"""Tests that H2 stays up, loses nothing, and refuses each wrong caller in one line."""

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np
import pytest

from dpaudit import _validate
from dpaudit.secure.channel import Channel, ChannelError
from dpaudit.secure.protocol import agreement
from dpaudit.secure.protocol.prepared import WAY
from dpaudit.secure.service import certificates, grpc_wire, inbox, monitoring
from dpaudit.secure.service import server as server_module
from dpaudit.secure.service.certificates import Tls
from dpaudit.secure.service.inbox import CALLS, SERVICE, WORKERS
from dpaudit.secure.service.server import Server
from tests.secure.certificates import Authority
from tests.secure.servers import DIMENSION, OWNERS, integers, play, terms, total
from tests.secure.serving import owners, pair, running, send, share_of, until

PLACE = "127.0.0.1:0"
AT = "h1 at ipv4:127.0.0.1 is refused: "


def called_in_vain(folder, mine, wrong, tmp_path, lines, begin: int = 0) -> str:
    """Plays a step around a refused call, while alice's share waits at H2; returns what the caller was told."""
    second = Server("h2", mine, listen=PLACE, state=folder / "h2", log=lines.append)
    at, values = f"127.0.0.1:{second.port}", integers(begin + 1)
    first = Server("h1", mine, listen=PLACE, state=folder / "h1", peer=at, log=lambda line: None)
    with running(second), owners((first, second), mine, *OWNERS) as all_of:
        all_of[0].submit(begin + 1, values["alice"])
        with pytest.raises(_validate.InputError) as refused:
            Server("h1", wrong, listen=PLACE, state=tmp_path / "wrong", peer=at, log=lambda line: None).run()
        until(lambda: any(line.startswith(AT) for line in lines))
        with running(first):
            for one in all_of[1:]:
                one.submit(begin + 1, values[one._name])
            np.testing.assert_array_equal(all_of[0].result(begin + 1).values, total(begin + 1))  # sent once
    assert sum(line.startswith(AT) for line in lines) == 1
    return str(refused.value)


def test_a_caller_with_other_terms_is_refused_and_a_waiting_share_is_kept(tmp_path):
    mine, told = terms("plain"), []
    refused = called_in_vain(tmp_path, mine, mine._replace(examples=31), tmp_path, told)
    assert refused == "terms: examples: expected 31 as here, got 30"
    assert f"{AT}terms: examples: expected 30 as here, got 31" in told


@pytest.mark.parametrize("begin", [1, 2])
def test_an_empty_stand_by_is_refused_and_a_waiting_share_is_kept(tmp_path, begin):
    mine, told = terms("plain"), []
    play(tmp_path, (mine, mine), until=begin)
    refused = called_in_vain(tmp_path, mine, mine, tmp_path, told, begin)
    wanted = f"states of h1 and h2: expected those of one training; {WAY}, got others (h1's is empty)"
    assert refused == wanted
    assert AT + wanted in told


def test_a_caller_with_another_count_of_steps_is_refused_and_a_waiting_share_is_kept(tmp_path):
    mine, told = terms("plain"), []
    play(tmp_path, (mine, mine), until=1)
    shutil.copytree(tmp_path / "h1", tmp_path / "wrong")
    play(tmp_path, (mine, mine), until=4)
    refused = called_in_vain(tmp_path, mine, mine, tmp_path, told, 4)
    assert refused == f"h2's completed: expected about 1 steps as here; {WAY}, got 4"
    assert f"{AT}h1's completed: expected about 4 steps as here; {WAY}, got 1" in told


def test_a_stand_by_takes_the_place_of_a_lost_server_when_it_is_told_to(tmp_path):
    mine, told = terms("plain"), []
    play(tmp_path, (mine, mine), until=2)
    second = Server("h2", mine, listen=PLACE, state=tmp_path / "h2", log=told.append)
    at = f"127.0.0.1:{second.port}"
    new = Server("h1", mine, listen=PLACE, state=tmp_path / "new", peer=at, rejoin=True, log=told.append)
    with running(second), running(new), owners((new, second), mine, *OWNERS) as all_of:
        until(lambda: {f"session with {role}: 2 steps are complete" for role in certificates.SERVERS} <= {*told})
        for one in all_of:
            one.submit(3, integers(3)[one._name])
        for step in (1, 2, 3):
            opened = all_of[0].result(step)
            np.testing.assert_array_equal(opened.values, total(step))
            assert opened[1:] == (OWNERS, step)


def test_a_second_h1_that_calls_takes_nothing_from_the_first(tmp_path):
    mine, told, other_told = terms("plain"), [], []
    with pair(tmp_path, mine, told.append) as both, owners(both, mine, *OWNERS) as all_of:
        until(lambda: sum(line.startswith("session with") for line in told) == 2)
        at = f"127.0.0.1:{both[1].port}"
        other = Server("h1", mine, listen=PLACE, state=tmp_path / "other", peer=at, log=other_told.append)
        with running(other):
            all_of[0].submit(1, integers(1)["alice"])
            until(lambda: len(other_told) > 0)
            time.sleep(1.0)  # it calls again and again
            for one in all_of[1:]:
                one.submit(1, integers(1)[one._name])
            np.testing.assert_array_equal(all_of[0].result(1).values, total(1))
    second = "a second h1, at ipv4:127.0.0.1, is refused: there is a session with the one at ipv4:127.0.0.1"
    assert told.count(second) == 1
    assert sum(line.startswith("session with") for line in told) == 2  # of each server one
    assert len(other_told) == 1
    assert "(h2 has a session with another h1, at ipv4:127.0.0.1)" in other_told[0]


def test_a_reason_is_told_once_whichever_message_it_meets(tmp_path, monkeypatch):
    told, left = [], [f"{doing} 'terms.size', message 0: {why}" for why in "ab" for doing in ("receiving", "sending")]

    def session(*args, **kwargs):
        if not left:
            server.stop()
        raise ChannelError(left.pop(0) if left else "the end")

    monkeypatch.setattr(server_module, "Session", session)
    monkeypatch.setattr(server_module, "_PAUSE", 0.0)
    monkeypatch.setattr(grpc_wire, "_LINGER", 0.0)
    server = Server("h1", terms("plain"), listen=PLACE, peer="127.0.0.1:1", state=tmp_path, log=told.append)
    server.run()
    assert told == [f"no session with h2: receiving 'terms.size', message 0: {why}" for why in "ab"]


@pytest.mark.integration
def test_a_caller_that_says_nothing_sensible_is_refused(tmp_path):
    mine, told = terms("plain"), []
    second = Server("h2", mine, listen=PLACE, state=tmp_path / "h2", log=told.append)
    at = f"127.0.0.1:{second.port}"
    fit = {"role": "h1", "completed": 0, "releases": 0, "pair": "", "rejoin": False, "round": 120.0}
    fit |= mine.statement()
    wrong = [
        ({**fit, "completed": -1}, "h1's completed: expected a value that a server can state, got -1"),
        ({**fit, "completed": "many"}, "h1's completed: expected a value that a server can state, got many"),
        ({**fit, "releases": 10**15}, "h1's releases: expected a value that a server can state, got 1000000000000000"),
        ({**fit, "pair": 5}, "h1's pair: expected a value that a server can state, got 5"),
        ({**fit, "round": None}, "h1's round: expected a value that a server can state, got None"),
        ({**fit, "round": float("nan")}, "h1's round: expected a value that a server can state, got nan"),
        ({**fit, "round": 1e10}, "h1's round: expected a value that a server can state, got 10000000000.0"),
        ({**fit, "mode": "\x1b[2J\n"}, "terms: mode: expected plain as here, got \\x1b[2J"),
        ({}, "h1's role: expected h1, got None"),
    ]
    with running(second):
        for said, reason in wrong:
            channel = Channel(grpc_wire.connect(at, None), 30.0)
            try:
                agreement.exchange(channel, "terms", said)
                channel.receive("more", 1)
            except ChannelError:
                pass
            channel.close()
            until(lambda reason=reason: AT + reason in told)
        for stray in (b"", b"no message at all, of more than thirty-two bytes"):
            wire = grpc_wire.connect(at, None)
            wire.write(stray + b"!", memoryview(b""), 5.0)
            wire.abandon()
        first = Server("h1", mine, listen=PLACE, state=tmp_path / "h1", peer=at, log=told.append)
        with running(first), owners((first, second), mine, *OWNERS) as all_of:
            for one in all_of:
                one.submit(1, integers(1)[one._name])
            np.testing.assert_array_equal(all_of[0].result(1).values, total(1))
    assert all(line.isprintable() for line in told)


def test_an_owner_s_name_stays_within_one_line_of_the_log(tmp_path):
    mine, told = terms("plain"), []
    with pair(tmp_path, mine, told.append) as both:
        for name in ("bob\nstep 1: complete, of 3 owners", "\x1b[2Jbob", "b" * 100_000, "b\u2028ob"):
            with pytest.raises(grpc.RpcError):
                send(both[0].port, share_of(mine, name))
    refused = [line for line in told if "is refused" in line]
    assert len(refused) == 4
    assert all(line.isprintable() and len(line) < 400 for line in told)
    assert refused[0].startswith("bob\\nstep 1: complete, of 3 owners: a share of step 1 is refused: owner: expected")
    assert refused[1].startswith("\\x1b[2Jbob: a share")
    assert refused[3].startswith("b\\u2028ob: a share")


@contextmanager
def silent(server: Server, calls: int, own: Tls | None = None) -> Iterator[list[Any]]:
    """Opens calls to H2, as an owner does, that never send their message."""
    over = threading.Event()

    def nothing() -> Iterator[bytes]:
        over.wait()
        yield from ()

    with certificates.call(f"127.0.0.1:{server.port}", "h2", own) as connection:
        submit = connection.stream_unary(f"/{SERVICE}/Submit")
        try:
            yield [submit.future(nothing()) for _ in range(calls)]
        finally:
            over.set()


@pytest.mark.integration
def test_an_owner_s_silent_calls_keep_nobody_from_submitting(tmp_path, monkeypatch):
    monkeypatch.setattr(inbox, "_ARRIVES", 60.0)
    mine, told, trust, calls = terms("plain"), [], Authority(tmp_path / "trust"), WORKERS + 16
    with pair(tmp_path, mine, told.append, trust=trust) as both, owners(both, mine, *OWNERS, trust=trust) as all_of:
        with silent(both[1], calls, trust.tls("bob")) as held:
            until(lambda: sum(call.done() for call in held) == calls - CALLS)
            assert {call.code() for call in held if call.done()} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
            all_of[0].submit(1, integers(1)["alice"], seconds=20)
            assert sum(call.done() for call in held) == calls - CALLS
        for one in all_of[1:]:
            one.submit(1, integers(1)[one._name], seconds=20)
        np.testing.assert_array_equal(all_of[0].result(1).values, total(1))


@pytest.mark.integration
def test_silent_calls_in_all_threads_that_answer_owners_do_not_keep_h1_out(tmp_path, monkeypatch):
    monkeypatch.setattr(inbox, "_ARRIVES", 60.0)
    mine, told = terms("plain"), []
    second = Server("h2", mine, listen=PLACE, state=tmp_path / "h2", log=told.append)
    with running(second), silent(second, WORKERS + 16) as held:
        time.sleep(1.0)  # until all threads have a call
        at = f"127.0.0.1:{second.port}"
        with running(Server("h1", mine, listen=PLACE, state=tmp_path / "h1", peer=at, log=told.append)):
            until(lambda: "session with h2: 0 steps are complete" in told)
        assert not any(call.done() for call in held)


def test_a_message_that_does_not_arrive_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(inbox, "_ARRIVES", 0.0)
    monkeypatch.setattr(inbox, "_SLOWEST", 6 * DIMENSION)
    told = []
    second = Server("h2", terms("plain"), listen=PLACE, state=tmp_path, log=told.append)
    with running(second), silent(second, 1) as (call,):
        until(call.done)
        assert call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert call.details() == "message: expected within 1 seconds, got none or a part"
    assert len(told) == 1
    assert told[0].endswith(f": a call is refused: {call.details()}")


def test_a_caller_that_is_no_owner_is_refused_before_its_message(tmp_path):
    trust, told = Authority(tmp_path / "trust"), []
    certificates.make(trust.folder, ["mallory"])
    second = Server("h2", terms("plain"), listen=PLACE, state=tmp_path, own=trust.tls("h2"), log=told.append)
    wanted = "certificate: expected one for an owner of the training, got "
    with running(second):
        for name in ("mallory", "h1"):
            with silent(second, 1, trust.tls(name)) as (call,):
                until(call.done)
                assert call.code() is grpc.StatusCode.PERMISSION_DENIED
                assert call.details() == f"{wanted}['{name}']"
    assert told == [f"ipv4:127.0.0.1 is refused: {wanted}['{name}']" for name in ("mallory", "h1")]


def test_lines_repeat_so_much_of_a_text_and_no_more() -> None:
    assert monitoring.short("a" * 80) == "a" * 80
    assert monitoring.short("a" * 81) == "a" * 77 + "..."
    assert agreement.listed([f"{n}" for n in range(12)]) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 others"
