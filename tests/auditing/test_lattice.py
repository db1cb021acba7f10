"""Noise in whole steps, which hides no part of a step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpaudit.auditing.attacks import features, pilot
from tests.auditing.test_portfolio import of_strength, plain


def steps(key, scale=100.0, shape=(3,)):
    return jnp.round(scale * jax.random.laplace(key, shape))


def whole_steps(key, x):
    """Of 1/8, added to a number that is no multiple of it."""
    return steps(key) / 8 + 0.1 + 0.02 * x[0]


def in_a_mixture(key, x):
    """One coordinate on a lattice beside continuous ones."""
    own, more = jax.random.split(key)
    return jax.random.normal(more, (30,)).at[17].set(steps(own, shape=()) + 0.5 * x[0])


@pytest.mark.integration
@pytest.mark.parametrize("leak, whole", [(whole_steps, 6.25), (in_a_mixture, 2.0)])
def test_what_whole_steps_do_not_hide_is_found_and_its_twins_are_not_accused(leak, whole):
    found = plain(of_strength(leak, 1))
    assert (found.verdict, found.fpr, found.fnr) == ("violation", 0, 0)
    for strength in (0, whole):  # a whole step
        assert plain(of_strength(leak, strength)).verdict != "violation"


def fitted(z):
    z = z.astype(np.float32)
    view = features.View(np, [z], [z[0, 0]], lead=2)
    return view, pilot.sight(view, None)


@pytest.mark.parametrize("n", [16, 400])
@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_continuous_noise_lies_on_no_lattice(n, scale):
    z = scale * np.random.default_rng(0).laplace(size=(2, n, 40))
    assert not fitted(z)[1].lattice[1].any()


@pytest.mark.parametrize("scale", [1e-15, 0.1, 1.0, 1e15])
@pytest.mark.parametrize("wide", [3, 300])
@pytest.mark.parametrize("world", [0, 1])
def test_a_lattice_of_either_world_is_found_in_any_unit(scale, wide, world):
    """And the other world is half a step away from it."""
    draws = np.random.default_rng(0)
    z = np.rint(wide * draws.laplace(size=(2, 400, 2))) * 0.25
    z[1 - world] += 0.125
    view, sight = fitted(scale * z)
    np.testing.assert_allclose(sight.lattice[1], 4 / scale, rtol=1e-5)
    place = features.names(sight).index("distance from a lattice")
    away = features.read(np, view, sight)[..., place]
    assert {round(float(one), 2) for one in np.unique(away)} == {0.0, 1.0}


def test_noise_of_one_world_alone_may_be_discrete():
    draws = np.random.default_rng(0)
    z = np.stack([np.rint(30 * draws.laplace(size=(400, 1))), draws.normal(size=(400, 1))])
    for both in (z, z[::-1]):
        np.testing.assert_allclose(fitted(both)[1].lattice[1], 1, rtol=1e-5)
