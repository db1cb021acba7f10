"""Tests that an owner names a file or a folder that cannot hold its shares, and quotes nothing of it."""

from pathlib import Path

import pytest

from dpaudit import _validate
from dpaudit.secure.service.owner import Owner
from dpaudit.training.two_servers import Participant
from tests.secure.servers import terms
from tests.training import test_two_servers as training

ADDRESSES = "127.0.0.1:1", "127.0.0.1:2"


def refused(kept: Path) -> str:
    with pytest.raises(_validate.InputError) as refusal:
        Owner("alice", terms("plain"), ADDRESSES, kept=kept)
    return str(refusal.value)


@pytest.mark.parametrize("held", [b"", b"\n", b"secret" * 20, b'["secret"]\n', b"\xff\x00secret\n"])
def test_a_file_of_something_else_is_named_and_not_quoted(tmp_path, held):
    kept = tmp_path / "k"
    kept.write_bytes(held)
    told = refused(kept)
    assert told.startswith("kept: expected shares of alice in this training, got /")
    assert "secret" not in told


def test_what_cannot_be_read_is_named(tmp_path):
    assert refused(tmp_path).startswith("kept: expected a file of shares that can be read, got Is a directory: ")
    (tmp_path / "taken").touch()
    with pytest.raises(_validate.InputError, match=r"^folder: expected a folder, or a place for one, got File exists"):
        Participant(
            "bob",
            training.TASK,
            training.terms("plain"),
            ADDRESSES,
            batch_size=training.BATCH,
            folder=tmp_path / "taken",
        )
