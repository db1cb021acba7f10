"""What is made once and kept: the same arrays at the next start, and nobody else's."""

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
