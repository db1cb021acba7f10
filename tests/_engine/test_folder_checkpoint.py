"""Folders of checkpoints: whole at any moment, and left alone by those who only read them."""

import threading

import numpy as np

from dpaudit._engine.checkpoint import FolderCheckpoint

IDENTITY = {"program": "a"}
LEFT = "7.orbax-checkpoint-tmp"  # what a writer that was killed leaves: Orbax's name for a step half written


def kept(folder) -> FolderCheckpoint:
    return FolderCheckpoint(folder, IDENTITY)


def test_a_reader_removes_nothing(tmp_path):
    """Removal happens in the background: a reader that had begun one would take away what the next writer writes."""
    kept(tmp_path).save(5, {"w": np.arange(3)})
    half = tmp_path / LEFT
    half.mkdir()
    np.testing.assert_array_equal(kept(tmp_path).restore()["w"], np.arange(3))
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join(timeout=1)
    assert half.exists()


def test_a_writer_removes_what_another_left(tmp_path):
    (tmp_path / LEFT).mkdir()
    kept(tmp_path).save(9, {"w": np.arange(3)})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["9"]
