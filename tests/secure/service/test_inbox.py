"""Tests which shares of owners are accepted, and that a fault of one owner does not affect the others."""

import threading

import numpy as np
import pytest

from dpaudit import _validate
from dpaudit.secure.protocol.two_server_sum import KEPT
from dpaudit.secure.service.inbox import CALLS, WAITING, Inbox, Places
from tests.secure.servers import DIMENSION, OWNERS, submit, terms

SPLIT = bytes(16)
ZEROS = bytes(4 * DIMENSION)
ANOTHER = "values: expected the share of step 3 that came before, got another one"


def _of(value: int) -> bytes:
    return np.full(DIMENSION, value, KEPT).tobytes()


@pytest.mark.parametrize(
    ("owner", "step", "split", "values", "message"),
    [
        ("mallory", 3, SPLIT, ZEROS, "owner: expected one of alice, bob, carol, got mallory"),
        ("bob", 3, SPLIT, ZEROS[:-4], "values: expected 7 coordinates, got 6"),
        ("bob", 3, SPLIT, ZEROS[:-1], "values: expected 7 coordinates, got 6.75"),
        ("bob", 3, SPLIT, ZEROS + ZEROS, "values: expected 7 coordinates, got 14"),
        ("bob", 3, SPLIT, _of(1 << 24), "values: expected integers in [-16777216, 16777216), got 7 beyond"),
        ("bob", 3, SPLIT, _of(-(1 << 24) - 1), "values: expected integers in [-16777216, 16777216), got 7 beyond"),
        ("bob", 3, SPLIT[1:], ZEROS, "split: expected 16 bytes, got 15"),
        ("bob", 4, SPLIT, ZEROS, "step: expected 3, the next one, got 4"),
        ("bob", 0, SPLIT, ZEROS, "step: expected 3, the next one, got 0"),
        ("alice", 3, SPLIT, _of(1), "values: expected the share of step 3 that came before, got another one"),
        (
            "alice",
            3,
            SPLIT[1:] + b"1",
            ZEROS,
            "values: expected the share of step 3 that came before, got another one",
        ),
    ],
)
def test_what_is_refused_changes_nothing(owner, step, split, values, message):
    inbox = Inbox(terms(), 2)
    inbox.take("alice", 3, SPLIT, ZEROS)
    with pytest.raises(_validate.InputError) as refused:
        inbox.take(owner, step, split, values)
    assert str(refused.value) == message
    assert inbox.collect(0.0, lambda: False) == {"alice": SPLIT}
    inbox.take("bob", 3, SPLIT, _of(-(1 << 24)))
    np.testing.assert_array_equal(inbox.total(["alice", "bob"]), np.full(DIMENSION, -(1 << 24)))


def test_a_share_again_and_one_of_a_completed_step_are_harmless():
    inbox = Inbox(terms(), 2)
    inbox.take("alice", 3, SPLIT, _of(5))
    inbox.take("alice", 3, SPLIT, _of(5))
    inbox.take("alice", 2, SPLIT, _of(6))
    np.testing.assert_array_equal(inbox.total(["alice"]), np.full(DIMENSION, 5))


def test_collecting_ends_early_when_all_are_there_or_it_is_told_to():
    inbox = Inbox(terms(), 0)
    thread = threading.Timer(0.05, submit, (inbox, 0, 1))
    thread.start()
    assert tuple(inbox.collect(60.0, lambda: False)) == OWNERS
    thread.join()
    inbox.complete(1)
    assert inbox.collect(60.0, lambda: True) == {}
    assert inbox.collect(0.05, lambda: False) == {}


def test_who_waits_for_a_step():
    inbox = Inbox(terms(), 0)
    with pytest.raises(_validate.InputError, match=r"^step: expected one with a share of alice, .* got 1$"):
        inbox.wait("alice", 1, 60.0)
    submit(inbox, 0, 1)
    assert not inbox.wait("alice", 1, 0.01)
    thread = threading.Timer(0.05, inbox.complete, (1,))
    thread.start()
    assert inbox.wait("alice", 1, 60.0)
    thread.join()
    inbox.complete(1)  # the same again
    assert inbox.wait("bob", 1, 0.0)
    with pytest.raises(_validate.InputError, match=r"^owner: expected one of alice, bob, carol, got mallory$"):
        inbox.wait("mallory", 1, 0.0)


def test_an_owner_has_a_few_calls_at_a_time_and_one_place_to_wait_in():
    places = Places()
    assert [places.enter("alice") for _ in range(CALLS + 1)] == [True] * CALLS + [False]
    assert places.enter("bob")
    places.leave("alice")
    assert places.enter("alice")
    assert (places.wait("alice"), places.wait("alice"), places.wait("bob")) == (True, False, True)
    places.go("alice")
    assert places.wait("alice")


def test_no_more_owners_wait_than_there_are_places():
    places = Places()
    assert all(places.wait(f"owner-{number}") for number in range(WAITING))
    assert not places.wait("late")
    places.go("owner-0")
    assert places.wait("late")
