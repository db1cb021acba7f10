"""Tests that closing an owner ends its calls, whatever they wait for."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from dpaudit.secure.channel import ChannelError
from dpaudit.secure.service.owner import Owner
from tests.secure.servers import integers, terms
from tests.secure.serving import owners, pair

PATIENCE, SOON = 40.0, 10.0  # seconds
VALUES = integers(1)["alice"]


def closed_while(alice: Owner, call: Callable[[], object]) -> float:
    """Closes the owner while a call waits; returns the seconds until the call has failed."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(call)
        time.sleep(1.5)
        assert not waiting.done()
        began = time.monotonic()
        alice.close()
        with pytest.raises(ChannelError):
            waiting.result()
    return time.monotonic() - began


@pytest.mark.parametrize("reached", [0, 1, 2])
def test_a_call_that_waits_for_a_server_ends_when_its_owner_is_closed(tmp_path, reached):
    """``reached`` of the two servers are there; with both, the owner waits for the others' shares."""
    mine = terms("plain")
    with pair(tmp_path, mine, lambda line: None) as both:
        ports = [f"127.0.0.1:{server.port}" for server in both][:reached]
        addresses = (*ports, *["127.0.0.1:1"] * (2 - reached))
        alice = Owner("alice", mine, (addresses[0], addresses[1]))
        if reached == 2:
            alice.submit(1, VALUES)
            assert closed_while(alice, lambda: alice.result(1, seconds=PATIENCE)) < SOON
        else:
            assert closed_while(alice, lambda: alice.submit(1, VALUES, seconds=PATIENCE)) < SOON


def test_a_closed_owner_says_so(tmp_path):
    mine = terms("plain")
    with pair(tmp_path, mine, lambda line: None) as both, owners(both, mine, "alice") as (alice,):
        alice.submit(1, VALUES)
        alice.close()
        for call in (lambda: alice.submit(1, VALUES), lambda: alice.result(1)):
            with pytest.raises(ChannelError, match=r"^alice: its connections are closed$"):
                call()
