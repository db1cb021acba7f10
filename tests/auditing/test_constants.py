"""What a mechanism closes over is data: one program for all its values, and never those of an earlier call."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpaudit import play
from dpaudit.auditing import game

KEY = jax.random.key(5)
PROGRAM: Any = game._run


def test_other_values_are_played_by_the_same_program():
    weights = np.ones(20, np.float32)

    def release(key, world):
        return jax.random.normal(key, (20,)) + world

    def score(z):
        return z @ jnp.asarray(weights)

    first = play(KEY, release, score, 1000)
    programs = PROGRAM._cache_size()
    weights *= 2
    np.testing.assert_allclose(play(KEY, release, score, 1000), 2 * first, rtol=1e-5)
    play(jax.random.key(6), release, score, 1000)
    assert PROGRAM._cache_size() == programs


def test_arrays_of_another_shape_are_another_program():
    inputs = [np.zeros(3, np.float32), np.ones(3, np.float32)]

    def release(key, world):
        return jax.random.normal(key, ()) + jnp.asarray(inputs[world]).sum()

    shift = np.diff(play(KEY, release, jnp.float32, 1000).mean(axis=1))
    inputs[1] = np.ones(5, np.float32)
    wider = np.diff(play(KEY, release, jnp.float32, 1000).mean(axis=1))
    np.testing.assert_allclose(wider - shift, 2, atol=1e-5)
