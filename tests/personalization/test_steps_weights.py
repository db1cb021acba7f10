"""Weights of a user's ratings: closed forms, and a length of at most 1 whatever the server says of the items."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpaudit import InputError
from dpaudit.personalization.als import steps

RULES = {"uniform": steps.uniform, "tail": steps.tail(2), "little": steps.adaptive(0.25)}
RULES |= {"half": steps.adaptive(0.53), "strong": steps.adaptive(2.0)}


@pytest.mark.parametrize("name", RULES)
def test_weights_have_length_one_at_most_whatever_the_server_broadcasts(name):
    rule, rng = jax.jit(jax.vmap(RULES[name])), np.random.default_rng(0)
    present = jnp.asarray(np.sort(rng.random((500, 40)) < rng.random((500, 1)))[:, ::-1], jnp.float32)
    sane = jnp.asarray(rng.normal(20, 30, (500, 40)), jnp.float32)
    found = rule(sane, present)
    assert not jnp.any(jnp.where(present > 0, 0.0, found))
    lengths = np.linalg.norm(np.asarray(found, np.float64), axis=1)
    some = np.asarray(present).any(axis=1)
    assert not some.all()
    np.testing.assert_allclose(lengths, some, atol=3e-6)
    assert lengths.max() <= 1
    for strange in (np.nan, np.inf, -np.inf, 1e38, 3e37, -1e38, 0.0):
        for where in (np.ones((500, 40), bool), rng.random((500, 40)) < 0.3):
            hostile = jnp.where(where, jnp.float32(strange), sane)
            assert np.linalg.norm(np.asarray(rule(hostile, present), np.float64), axis=1).max() <= 1


def test_weights_are_no_longer_where_their_squares_are_too_small_for_float32():
    """All but one of the squares are below the smallest normal number, where a processor may take them for 0."""
    popularity = jnp.array([8.4e37] + 39 * [8.6e37])
    found = jax.jit(steps.adaptive(0.5))(popularity, jnp.ones(40))
    assert np.linalg.norm(np.asarray(found, np.float64)) <= 1


def test_tail_takes_the_least_popular_and_adaptive_weights_go_down_with_popularity():
    popularity, present = jnp.array([9.0, 4.0, 1.0, 4.0, 0.0]), jnp.array([1.0, 1.0, 1.0, 1.0, 0.0])
    half = np.sqrt(0.5)
    np.testing.assert_allclose(steps.tail(2)(popularity, present), [0, half, half, 0, 0], rtol=2e-6)
    powers = np.array([9.0, 4.0, 1.0, 4.0]) ** -0.5
    adaptive = steps.adaptive(0.5)(popularity, present)
    np.testing.assert_allclose(adaptive, [*powers / np.linalg.norm(powers), 0], rtol=2e-6)
    np.testing.assert_allclose(steps.uniform(popularity, present), 0.5 * present, rtol=2e-6)
    below = steps.adaptive(0.5)(jnp.array([-7.0, 0.3, 1.0, 4.0, 0.0]), present)  # counts that noise has made small
    np.testing.assert_allclose(below[:3], below[0], rtol=1e-6)


def test_settings_out_of_range():
    with pytest.raises(InputError, match="most: expected a whole number >= 1, got 0"):
        steps.tail(0)
    with pytest.raises(InputError, match=r"power: expected a finite number >= 0, got -0\.5"):
        steps.adaptive(-0.5)
