"""Folders of checkpoints: whole at any moment, and left alone by those who only read them."""

import resource
import threading

import jax.numpy as jnp
import numpy as np
import pytest

from dpaudit import _validate
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


@pytest.mark.parametrize("step", [1, 2, 3])
def test_two_trainings_that_began_together_do_not_share_a_folder(tmp_path, step):
    """Orbax kept the later step, without a word to the other training, which had no checkpoint from then on."""
    kept(tmp_path).save(2, {"w": np.arange(3)})
    with pytest.raises(_validate.InputError, match=r"^checkpoint: expected one of this training, .* another program$"):
        FolderCheckpoint(tmp_path, {"program": "b"}).save(step, {"w": np.zeros(3)})
    np.testing.assert_array_equal(kept(tmp_path).restore()["w"], np.arange(3))
    kept(tmp_path).save(2, {"w": np.arange(3)})  # of the same training, by another process
    kept(tmp_path).save(4, {"w": np.ones(3)})
    np.testing.assert_array_equal(kept(tmp_path).restore()["w"], np.ones(3))


def test_a_folder_that_cannot_be_made_is_refused_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        _validate.InputError, match=r"^checkpoint: expected a folder that can be written, got Not a dir"
    ):
        kept(tmp_path / "file" / "run").save(1, {"w": np.arange(3)})


def test_a_folder_that_cannot_be_written_is_refused_before_the_first_step():
    """For root, too, no file can be made in /proc."""
    wanted = r"^checkpoint: expected a folder that can be written, got .*: /proc/nowhere/run$"
    with pytest.raises(_validate.InputError, match=wanted):
        in_parts(lambda *_: pytest.fail("trained"), 0, 3, every=2, identity=dict, checkpoint="/proc/nowhere/run")


def test_a_finished_run_is_read_from_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    def run():
        advance = lambda state, part: (state + part, jnp.zeros(part))  # noqa: E731
        return in_parts(advance, jnp.int32(0), 2, every=2, identity=lambda: IDENTITY, checkpoint=tmp_path / "run")

    run()
    monkeypatch.setattr(FolderCheckpoint, "refuse_unwritable", lambda self: pytest.fail("would write"))
    assert int(run().state) == 2


def test_a_step_that_cannot_be_written_leaves_the_one_before(tmp_path):
    """As on a full disk: a limit on the size of files fails in the same place."""
    kept(tmp_path).save(1, {"w": np.arange(3)})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(
            _validate.InputError, match=r"^checkpoint: expected a folder that can be written, got File too"
        ):
            kept(tmp_path).save(2, {"w": np.random.default_rng(0).random(30_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    np.testing.assert_array_equal(kept(tmp_path).restore()["w"], np.arange(3))
