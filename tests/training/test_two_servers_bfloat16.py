"""Tests that a model of bfloat16, a type that NumPy's files lack, is kept as it is."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpaudit.cli.secure_train import _save
from dpaudit.training.two_servers import Participant
from tests.training.test_two_servers import BATCH, TASK, terms

HALF = TASK._replace(
    initial=jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), TASK.initial),
    optimizer=optax.adam(0.1, mu_dtype=jnp.bfloat16),
)


def begun(folder: Path) -> Participant:
    addresses = "127.0.0.1:1", "127.0.0.1:2"
    return Participant("bob", HALF, terms("plain"), addresses, batch_size=BATCH, folder=folder)


def test_a_model_of_bfloat16_is_resumed_and_written(tmp_path: Path) -> None:
    mine, total = terms("plain"), 100_000 * np.arange(-4, 6)
    one = begun(tmp_path)
    one.model.learn(total, mine.examples)
    one.step = 1
    one.save()
    one.close()  # lets go of its folder
    again = begun(tmp_path)
    assert again.step == 1
    for model in (one.model, again.model):
        model.learn(total[::-1], mine.examples)  # with the optimizer's state
    for name, leaf in one.model.arrays().items():
        found = again.model.arrays()[name]
        assert found.dtype == leaf.dtype
        np.testing.assert_array_equal(found, leaf)
    assert one.model.params["w"].dtype == jnp.bfloat16
    _save(tmp_path / "params.npz", one.model.params)
    with np.load(tmp_path / "params.npz") as kept:
        for name, leaf in one.model.params.items():
            assert kept[name].dtype == np.float32
            assert np.any(kept[name])
            np.testing.assert_array_equal(kept[name], np.asarray(leaf, np.float32))
    again.close()
