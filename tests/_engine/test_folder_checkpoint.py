"""Folders of checkpoints: whole at any moment, and left alone by those who only read them."""

import threading

import jax.numpy as jnp
import numpy as np

from dpaudit._engine.checkpoint import FolderCheckpoint
from dpaudit._engine.long_run import in_parts

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


def test_a_run_goes_on_where_some_of_its_information_is_empty(tmp_path):
    """Orbax keeps no empty arrays."""

    def run(steps):
        def advance(state, part):
            return state + part, {"none": jnp.zeros((part, 0)), "some": jnp.ones(part)}

        return in_parts(advance, jnp.int32(0), steps, every=2, identity=lambda: IDENTITY, checkpoint=tmp_path / "run")

    run(3)
    found = run(5)
    assert (int(found.state), found.info["none"].shape) == (5, (5, 0))
    np.testing.assert_array_equal(found.info["some"], np.ones(5))
