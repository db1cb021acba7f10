"""What is made once and kept: the same arrays at the next start, and nobody else's; files are whole or refused."""

import errno
import os

import jax.numpy as jnp
import numpy as np
import pytest

from dpaudit import InputError
from dpaudit._engine.checkpoint import Checkpoint


def test_what_is_kept_is_not_made_again_and_comes_back_as_it_was(tmp_path):
    made = []

    def make():
        made.append(None)
        return {"w": jnp.arange(6.0).reshape(2, 3), "rest": (jnp.int32(len(made)), [jnp.ones(2), jnp.zeros(2)])}

    def start():
        return Checkpoint(tmp_path / "kept.npz", {"key": "one"}, False).made_once(make)

    first, again = start(), start()
    assert first["rest"][0] == again["rest"][0] == 1
    np.testing.assert_array_equal(first["w"], again["w"])
    np.testing.assert_array_equal(np.array(first["rest"][1]), np.array(again["rest"][1]))
    with pytest.raises(InputError, match="made by another key"):
        Checkpoint(tmp_path / "kept.npz", {"key": "two"}, False).made_once(make)


def test_a_file_of_other_arrays_is_no_checkpoint(tmp_path):
    np.savez(tmp_path / "scores.npz", scores0=np.ones(3))
    with pytest.raises(InputError, match=r"^checkpoint: expected a checkpoint of dpaudit, got scores\.npz, which is "):
        Checkpoint(tmp_path / "scores.npz", {"key": "one"}, False).restore()


def test_two_processes_that_write_one_file_leave_a_whole_one(tmp_path, monkeypatch):
    file, sync = Checkpoint(tmp_path / "kept.npz", {"key": "one"}, False), os.fsync

    def meanwhile(descriptor: int) -> None:
        monkeypatch.setattr(os, "fsync", sync)
        file.save(counts=np.zeros(7))  # as another process would
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", meanwhile)
    file.save(counts=np.arange(3))
    found = file.restore()
    assert found is not None
    np.testing.assert_array_equal(found["counts"], np.arange(3))
    assert os.listdir(tmp_path) == ["kept.npz"]


def test_a_file_that_cannot_be_written_is_one_line_and_the_old_one_stays(tmp_path, monkeypatch):
    file = Checkpoint(tmp_path / "kept.npz", {"key": "one"}, False)
    file.save(counts=np.zeros(7))

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"^checkpoint: expected a file that can be written, got No space left on "):
        file.save(counts=np.arange(3))
    found = file.restore()
    assert found is not None
    np.testing.assert_array_equal(found["counts"], np.zeros(7))
    assert os.listdir(tmp_path) == ["kept.npz"]
