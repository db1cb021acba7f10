"""Releases that vary less along one direction in one world, which no coordinate shows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpaudit.auditing.attacks import features, pilot
from tests.auditing.test_portfolio import noisy, of_strength, plain

U0, U1 = (np.linalg.qr(np.random.default_rng(3).normal(size=(20, 2)))[0].T).astype(np.float32)


def along(x):
    """A direction that turns by a right angle with the input."""
    return jnp.cos(jnp.pi / 2 * x[0]) * U0 + jnp.sin(jnp.pi / 2 * x[0]) * U1


def without(z, u):
    return z - (z @ u) * u


def orthogonal(key, x):
    """No noise along the direction."""
    return without(noisy(key, (20,)), along(x))


def spiked(key, x):
    own, more = jax.random.split(key)
    return noisy(own, (20,)) + noisy(more, (), 2.0) * along(x)


@pytest.mark.integration
@pytest.mark.parametrize("leak, most", [(orthogonal, 5.0), (spiked, 2.0)])
def test_a_direction_of_other_spread_is_found_and_its_twin_is_not_accused(leak, most):
    found = plain(of_strength(leak, 1))
    assert found.verdict == "violation"
    assert found.epsilon_lower > most
    assert plain(of_strength(leak, 0)).verdict != "violation"


@pytest.mark.integration
def test_rounding_along_a_direction_without_noise_does_not_show():
    """Both worlds have none along U0; where it is taken out twice, less of it is left by rounding."""

    def release(key, x):
        once = without(noisy(key, (20,)), U0)
        return jnp.where(x[0] > 0, without(once, U0), once)

    assert plain(release).verdict != "violation"


@pytest.mark.parametrize("d", [2, 30, features.MOST_SPREAD + 1])
@pytest.mark.parametrize("n", [16, 1200])
def test_directions_are_fitted_to_pilots_of_any_size(d, n):
    """That without noise in world 1, where it can be seen; sizes along it have the usual scale in the other world."""
    z = np.random.default_rng(0).normal(size=(2, n, d)).astype(np.float32)
    u = np.ones(d, np.float32) / np.sqrt(d) if d < features.MOST_SPREAD else np.eye(d, dtype=np.float32)[3]
    z[1] -= (z[1] @ u)[:, None] * u
    z[..., 0] *= 1e-20  # in other units
    view = features.View(np, [z], [z[0, 0]], lead=2)
    sight = pilot.sight(view, None)
    sizes = features.project(np, view.numbers, sight)[..., -2]  # of world 1, which varies least along it
    assert np.isfinite(sizes).all()
    if n >= pilot.FEW_MORE * d or d > features.MOST_SPREAD:
        assert sizes[1].max() < 0.01 * np.median(sizes[0])


def test_what_never_varies_has_no_spread():
    z = np.ones((2, 20, 3), np.float32)
    view = features.View(np, [z], [z[0, 0]], lead=2)
    found = features.project(np, view.numbers, pilot.sight(view, None))
    assert np.isfinite(found).all()
    assert len(np.unique(found[..., -2:].reshape(-1, 2), axis=0)) == 1
