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


def test_a_file_is_of_one_process_at_a_time(tmp_path):
    """The shares of one splitting would be sent to one server, and those of another to the other."""
    kept = tmp_path / "k"
    first = Owner("alice", terms("plain"), ADDRESSES, kept=kept)
    assert refused(kept) == f"kept: expected a file that no other owner has open, got {kept}"
    first.close()
    kept.write_bytes(b"another's")
    for _ in range(2):  # a refusal leaves it unlocked
        assert refused(kept).startswith("kept: expected shares of alice in this training, got /")
    kept.unlink()
    Owner("alice", terms("plain"), ADDRESSES, kept=kept).close()


def test_two_processes_do_not_share_the_folder_of_a_training(tmp_path):
    def begun() -> Participant:
        return Participant(
            "bob", training.TASK, training.terms("plain"), ADDRESSES, batch_size=training.BATCH, folder=tmp_path
        )

    first = begun()
    with pytest.raises(_validate.InputError, match=r"^kept: expected a file that no other owner has open, got /"):
        begun()
    first.close()
    begun().close()


def test_a_folder_that_cannot_be_written_is_named_at_once():
    """For root, too, no file can be made in /proc."""
    told = refused(Path("/proc/shares"))
    assert told.startswith("kept: expected a file to write the shares to, got ")


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
