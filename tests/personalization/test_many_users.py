"""Sums over a million users: one of them moves a total by no more than its bound, rounding included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpaudit.kernels import philox
from dpaudit.personalization.boundary.bounds import _summed
from dpaudit.personalization.boundary.protocol import each, everything

USERS = 1_000_000


@pytest.mark.parametrize("chunk", [1_000, 900])  # with and without a rest
def test_a_user_among_a_million_moves_a_total_by_the_bound_alone(chunk):
    """Added one chunk after the other in float32, they moved it by up to a third more."""
    values = np.random.default_rng(0).uniform(0.5, 1.0, USERS).astype(np.float32)
    devices = each(everything, lambda key, model, user: user, clip_norm=1.0, chunk=chunk)
    total = jax.jit(lambda users: devices(philox.from_key(jax.random.key(0)), (), users))
    whole, resolution = float(total(values)), float(np.spacing(np.float32(USERS)))
    assert whole == pytest.approx(float(np.minimum(values, 1 - 2.0**-16).astype(float).sum()), abs=resolution)
    for away in (0, 1, 17, 123_456, 500_000, USERS - 1):
        moved = whole - float(total(np.delete(values, away)))
        assert moved == pytest.approx(values[away], abs=1.1 * resolution)


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 129, 1_000])
def test_messages_are_added_once_each(count):
    messages = np.arange(count * 3.0).reshape(count, 3)
    np.testing.assert_array_equal(_summed(jnp.asarray(messages, jnp.float32)), messages.sum(axis=0))
