"""Tests servers and owners over gRPC in one process: steps, owners' faults, certificates, a server's restart."""

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import grpc
import numpy as np
import pytest

from dpaudit import _validate
from dpaudit.secure.channel import LONGEST, ChannelError
from dpaudit.secure.service import certificates, spgc_pb2
from dpaudit.secure.service.inbox import SERVICE, WAITING
from dpaudit.secure.service.owner import Owner
from dpaudit.secure.service.server import Server
from tests.secure.certificates import Authority
from tests.secure.servers import DIMENSION, OWNERS, integers, terms, total
from tests.secure.serving import owners, pair, running, send, share_of, until


@pytest.mark.parametrize("secured", [False, True], ids=["clear", "tls"])
def test_steps_are_opened_and_told_to_all_owners(tmp_path, secured):
    mine, lines = terms("plain"), []
    trust = Authority(tmp_path / "trust") if secured else None
    with pair(tmp_path, mine, lines.append, trust=trust) as both, owners(both, mine, *OWNERS, trust=trust) as all_of:
        for step in (1, 2):
            for one, values in zip(all_of, integers(step).values(), strict=True):
                one.submit(step, values)
                one.submit(step, values)  # the same again is harmless
            for one in all_of:
                opened = one.result(step)
                np.testing.assert_array_equal(opened.values, total(step))
                assert opened[1:] == (OWNERS, step)
        with pytest.raises(_validate.InputError, match=r"^integers: expected those of step 2 that were submitted"):
            all_of[0].submit(2, np.zeros(DIMENSION, int))
        np.testing.assert_array_equal(all_of[0].result(1).values, total(1))
        with pytest.raises(_validate.InputError, match=r"^h1: step: expected one with a share of alice, .* got 3$"):
            all_of[0].result(3)
    assert sum("complete, of 3 owners" in line for line in lines) == 4


def test_an_owner_does_not_take_one_server_s_word(tmp_path):
    mine = terms("plain")
    with pair(tmp_path, mine, lambda line: None) as both, owners(both, mine, *OWNERS) as all_of:
        for one, values in zip(all_of, integers(1).values(), strict=True):
            one.submit(1, values)
        assert (all_of[0].result(1).values == total(1)).all()
        (kept,) = (tmp_path / "h2").glob("*.step")
        told = kept.read_bytes()
        for other in (
            told[:-1] + bytes([told[-1] ^ 1]),
            told.replace(b'"07"', b'"03"'),
        ):  # another sum, or of others
            assert other != told
            kept.write_bytes(other)
            with pytest.raises(ChannelError, match=r"^step 1: h1 and h2 report different results$"):
                all_of[0].result(1)


def test_shares_that_cannot_be_kept_are_not_sent(tmp_path):
    mine = terms("plain")
    folder = tmp_path / "gone"
    folder.mkdir()
    alice = Owner("alice", mine, ("127.0.0.1:1", "127.0.0.1:1"), kept=folder / "shares")
    shutil.rmtree(folder)
    with pytest.raises(_validate.InputError, match=r"^kept: expected a file to write the shares to, got No such file"):
        alice.submit(1, np.zeros(DIMENSION, int))
    assert alice.pending == 0
    alice.close()


def test_a_message_is_as_long_as_its_values(tmp_path):
    """Sends more bytes than a frame between the servers may have."""
    dimension = certificates.PIECE // 4 + 1
    mine = terms("plain", dimension=dimension, ring_bits=8, least_owners=1)
    values = np.arange(dimension) % 9 - 4
    with pair(tmp_path, mine, lambda line: None, wait=0.3) as both, owners(both, mine, "bob") as (bob,):
        bob.submit(1, values)
        np.testing.assert_array_equal(bob.result(1).values, values)


def test_an_owner_who_disappears_is_named_and_left_out_where_the_terms_say_so(tmp_path):
    mine, lines = terms("plain", least_owners=2), []
    with pair(tmp_path, mine, lines.append, wait=0.3) as both, owners(both, mine, "alice", "carol") as present:
        for one, name in zip(present, ("alice", "carol"), strict=True):
            one.submit(1, integers(1)[name])
        opened = present[0].result(1)
    np.testing.assert_array_equal(opened.values, integers(1)["alice"] + integers(1)["carol"])
    assert opened.owners == ("alice", "carol")
    assert "step 1: shares are not at both servers of: bob (not here either)" in lines


def test_without_an_owner_the_step_waits_for_all_by_default(tmp_path):
    mine, lines = terms("plain"), []
    with pair(tmp_path, mine, lines.append, wait=0.3) as both, owners(both, mine, *OWNERS) as all_of:
        for one, name in zip(all_of[:2], OWNERS, strict=False):
            one.submit(1, integers(1)[name])
        with pytest.raises(ChannelError, match=r"^h[12]: (Deadline Exceeded|step 1 is not completed yet: ask again)$"):
            all_of[0].result(1, seconds=1.5)
        all_of[2].submit(1, integers(1)["carol"])  # late: the others' shares are still there
        np.testing.assert_array_equal(all_of[0].result(1).values, total(1))
    assert "step 1: shares are not at both servers of: carol (not here either)" in lines


def test_shares_of_two_splittings_are_not_added(tmp_path):
    """An owner restarted between sending to H1 and H2, which hold shares that do not belong together."""
    mine, lines = terms("plain"), []
    with pair(tmp_path, mine, lines.append) as both, owners(both, mine, *OWNERS) as all_of:
        send(both[0].port, share_of(mine))
        send(both[1].port, share_of(mine, split=b"1" * 16))
        with pytest.raises(_validate.InputError, match=r"^h1: values: expected the share of step 1 that came before"):
            all_of[1].submit(1, integers(1)["bob"])
        all_of[0].submit(1, integers(1)["alice"])
        all_of[2].submit(1, integers(1)["carol"])
        np.testing.assert_array_equal(all_of[1].result(1).values, total(1))  # bob's share goes to both once more
    assert lines.count("step 1: bob's two shares do not belong together; both servers discard them") == 2


@pytest.mark.integration
def test_an_owner_restarted_between_two_servers_has_split_anew(tmp_path):
    """Each run of the owner reaches one server: their shares of the same integers do not belong together."""
    mine, lines, values = terms("plain"), [], integers(1)
    with pair(tmp_path, mine, lines.append) as both:
        ports, nowhere = [f"127.0.0.1:{server.port}" for server in both], "127.0.0.1:1"
        for addresses in ((ports[0], nowhere), (nowhere, ports[1])):
            bob = Owner("bob", mine, addresses)
            with pytest.raises(ChannelError, match=r"^h[12]: "):
                bob.submit(1, values["bob"], seconds=1)
            bob.close()
        with owners(both, mine, *OWNERS) as all_of:
            for one, name in zip(all_of, OWNERS, strict=True):
                if name != "bob":
                    one.submit(1, values[name])
            with pytest.raises((_validate.InputError, ChannelError)):
                all_of[0].result(1, seconds=1)
    assert lines.count("step 1: bob's two shares do not belong together; both servers discard them") == 2


def test_what_an_owner_does_wrong_is_refused_and_named_in_the_log(tmp_path):
    mine, lines = terms("plain"), []
    wrong = {
        "values: expected 7 coordinates, got 6": share_of(mine, coordinates=6),
        "values: expected 7 coordinates, got 8": share_of(mine, coordinates=8),
        "owner: expected one of alice, bob, carol, got mallory": share_of(mine, "mallory"),
        "terms: clip_norm: expected 1.0 as here, got 2.0": share_of(mine._replace(clip_norm=2.0)),
        "statement: expected a JSON object, got": spgc_pb2.Share(values=b"1234"),
        "step: expected 1, the next one, got 5": share_of(mine, step=5),
    }
    with pair(tmp_path, mine, lines.append) as both, owners(both, mine, *OWNERS) as all_of:
        for message, sent in wrong.items():
            with pytest.raises(grpc.RpcError) as refused:
                send(both[0].port, sent)
            assert isinstance(refused.value, grpc.Call)
            assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert str(refused.value.details()).startswith(message)
            assert any(message in line for line in lines)
        with pytest.raises(grpc.RpcError, match="larger than max"):
            send(both[0].port, spgc_pb2.Share(values=bytes(2 << 20)))
        for one, values in zip(all_of, integers(1).values(), strict=True):
            one.submit(1, values)
        np.testing.assert_array_equal(all_of[0].result(1).values, total(1))
    assert sum(line.startswith("bob: a share of step 1 is refused") for line in lines) == 3


@pytest.mark.parametrize(
    ("method", "sent", "code", "reason", "logged"),
    [
        ("Submit", b"\xff", "INVALID_ARGUMENT", "message: expected Share, got something else", "a call is refused: "),
        ("Result", b"\xff", "INVALID_ARGUMENT", "message: expected Wanted, got something else", "a call is refused: "),
        (
            "Submit",
            spgc_pb2.Share(owner="bob", step=1, terms='{"version": "\\ud800\\u2028"}').SerializeToString(),
            "INVALID_ARGUMENT",
            "terms: version: expected 7 as here, got \\ud800",
            "bob: a share of step 1 is refused: ",
        ),
        (
            "Result",
            spgc_pb2.Wanted(owner="bob", step=2).SerializeToString(),
            "FAILED_PRECONDITION",
            "step: expected one with a share of bob, or a completed one, got 2",
            "bob: asking for the result of step 2 is refused: ",
        ),
    ],
)
def test_each_refusal_goes_to_its_owner_and_to_the_log(tmp_path, method, sent, code, reason, logged):
    lines = []
    server = Server("h2", terms("plain"), listen="127.0.0.1:0", state=tmp_path, log=lines.append)
    connection = certificates.call(f"127.0.0.1:{server.port}", "h2", None)
    with running(server), connection, pytest.raises(grpc.RpcError) as refused:
        connection.unary_unary(f"/{SERVICE}/{method}")(sent, timeout=20)
    assert isinstance(refused.value, grpc.Call)
    assert refused.value.code() is grpc.StatusCode[code]
    assert str(refused.value.details()) == reason
    assert len(lines) == 1
    assert lines[0].endswith(logged + reason)


def test_an_owner_waits_for_a_server_that_is_not_there_yet(tmp_path):
    mine = terms("plain")
    with pair(tmp_path, mine, lambda line: None) as both:
        ports = [server.port for server in both]
    with owners(both, mine, *OWNERS) as all_of, ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(one.submit, 1, integers(1)[one._name]) for one in all_of]
        time.sleep(0.5)
        assert not any(call.done() for call in calls)
        second = Server("h2", mine, listen=f"127.0.0.1:{ports[1]}", state=tmp_path / "h2")
        at = f"127.0.0.1:{ports[1]}"
        first = Server("h1", mine, listen=f"127.0.0.1:{ports[0]}", state=tmp_path / "h1", peer=at)
        with running(second), running(first):
            for call in calls:
                call.result(30)
            np.testing.assert_array_equal(all_of[0].result(1).values, total(1))


def test_owners_who_wait_for_results_keep_nobody_from_submitting(tmp_path):
    mine = terms("plain")
    with pair(tmp_path, mine, lambda line: None) as both, owners(both, mine, "bob", "carol") as others:
        send(both[0].port, share_of(mine, "alice"))
        send(both[1].port, share_of(mine, "alice"))
        with certificates.call(f"127.0.0.1:{both[0].port}", "h1", None) as connection:
            serializer, deserializer = spgc_pb2.Wanted.SerializeToString, spgc_pb2.Opened.FromString
            result = connection.unary_unary(f"/{SERVICE}/Result", serializer, deserializer)
            calls = [result.future(spgc_pb2.Wanted(owner="alice", step=1), timeout=60) for _ in range(3 * WAITING)]
            until(lambda: sum(call.done() for call in calls) >= 3 * WAITING - 1)  # one of an owner's waits
            assert {call.code() for call in calls if call.done()} <= {
                grpc.StatusCode.ABORTED,
                grpc.StatusCode.RESOURCE_EXHAUSTED,
            }
            for one in others:
                one.submit(1, integers(1)[one._name], seconds=20)
            waiting = [call for call in calls if not call.done() or call.code() is grpc.StatusCode.OK]
            assert len(waiting) == 1
            wanted = integers(1)["bob"] + integers(1)["carol"]
            for call in waiting:
                np.testing.assert_array_equal(np.frombuffer(call.result().values, "<i4"), wanted)


@pytest.mark.parametrize("restarted", ["h1", "h2"])
def test_a_server_that_is_restarted_goes_on_and_owners_send_again(tmp_path, restarted):
    mine, lines = terms("plain"), []
    with ExitStack() as first_life, ExitStack() as rest:
        second = Server("h2", mine, listen="127.0.0.1:0", state=tmp_path / "h2", log=lines.append)
        at = f"127.0.0.1:{second.port}"
        first = Server("h1", mine, listen="127.0.0.1:0", state=tmp_path / "h1", peer=at, log=lines.append)
        for role, server in (("h1", first), ("h2", second)):
            (first_life if role == restarted else rest).enter_context(running(server))
        port = {"h1": first.port, "h2": second.port}[restarted]
        all_of = rest.enter_context(owners((first, second), mine, *OWNERS))
        for one, values in zip(all_of, integers(1).values(), strict=True):
            one.submit(1, values)
        assert all_of[0].result(1).releases == 1
        for one, values in zip(all_of[:2], integers(2).values(), strict=False):
            one.submit(2, values)  # these are lost
        first_life.close()
        again = Server(
            restarted, mine, listen=f"127.0.0.1:{port}", state=tmp_path / restarted, peer=at, log=lines.append
        )
        rest.enter_context(running(again))
        all_of[2].submit(2, integers(2)["carol"])
        with ThreadPoolExecutor(3) as pool:
            for opened in pool.map(lambda one: one.result(2), all_of):
                np.testing.assert_array_equal(opened.values, total(2))
        np.testing.assert_array_equal(all_of[0].result(1).values, total(1))


def test_a_time_that_the_system_cannot_wait_is_refused(tmp_path):
    mine, refused = terms("plain"), r"expected at most \d+ seconds, got 10000000000.0$"
    with pytest.raises(_validate.InputError, match=f"^wait: {refused}"):
        Server("h2", mine, listen="127.0.0.1:0", state=tmp_path, wait=1e10)
    with pytest.raises(_validate.InputError, match=f"^deadline: {refused}"):
        Server("h2", mine, listen="127.0.0.1:0", state=tmp_path, deadline=1e10)
    bob = Owner("bob", mine, ("127.0.0.1:1", "127.0.0.1:1"))
    with pytest.raises(_validate.InputError, match=f"^seconds: {refused}"):
        bob.submit(1, integers(1)["bob"], seconds=1e10)
    with pytest.raises(_validate.InputError, match=f"^seconds: {refused}"):
        bob.result(1, seconds=1e10)
    bob.close()


@pytest.mark.integration
@pytest.mark.parametrize("waits", [(0.1, 2.5), (2.5, 0.1)], ids=["h2 waits longer", "h1 waits longer"])
def test_servers_that_wait_for_different_times_open_a_step_without_an_owner(tmp_path, waits):
    mine, lines, at = terms("plain", least_owners=2), [], "127.0.0.1:0"
    two = [{"state": tmp_path / f"{wait}", "wait": wait, "deadline": 1.0, "log": lines.append} for wait in waits]
    second = Server("h2", mine, listen=at, **two[1])
    first = Server("h1", mine, listen=at, peer=f"127.0.0.1:{second.port}", **two[0])
    with running(second), running(first), owners((first, second), mine, "alice", "carol") as present:
        for one in present:
            one.submit(1, integers(1)[one._name])
        opened = present[0].result(1, seconds=25)
    assert opened.owners == ("alice", "carol")
    np.testing.assert_array_equal(opened.values, integers(1)["alice"] + integers(1)["carol"])


def test_the_longest_times_can_be_waited(tmp_path):
    mine, lines = terms("plain"), []
    second = Server(
        "h2", mine, listen="127.0.0.1:0", state=tmp_path / "h2", wait=LONGEST, deadline=LONGEST, log=lines.append
    )
    at = f"127.0.0.1:{second.port}"
    first = Server(
        "h1", mine, listen="127.0.0.1:0", state=tmp_path / "h1", peer=at, wait=LONGEST, deadline=LONGEST, log=print
    )
    with running(second), running(first), owners((first, second), mine, *OWNERS) as all_of:
        for one, values in zip(all_of, integers(1).values(), strict=True):
            one.submit(1, values, seconds=LONGEST)
        np.testing.assert_array_equal(all_of[0].result(1, seconds=20).values, total(1))
    assert lines[0] == "session with h1: 0 steps are complete"


def test_an_address_beyond_this_machine_needs_certificates(tmp_path):
    mine = terms("plain")
    with pytest.raises(_validate.InputError, match=r"^listen: expected certificates, .* got 0\.0\.0\.0:0$"):
        Server("h2", mine, listen="0.0.0.0:0", state=tmp_path)
    with pytest.raises(_validate.InputError, match=r"^h2: expected certificates, .* got example\.org:1$"):
        Owner("bob", mine, ("127.0.0.1:1", "example.org:1"))
    with pytest.raises(_validate.InputError, match=r"^listen: expected HOST:PORT, got 127\.0\.0\.1$"):
        Server("h2", mine, listen="127.0.0.1", state=tmp_path)
    with pytest.raises(_validate.InputError, match=r"^peer: expected the address of h2, which h1 calls, got none$"):
        Server("h1", mine, listen="127.0.0.1:0", state=tmp_path)
