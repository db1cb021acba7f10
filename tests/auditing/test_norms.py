"""Releases that no coordinate tells apart: on spheres of two radii, or with something odd anywhere."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpaudit.auditing.attacks import features, pilot
from tests.auditing.test_portfolio import noisy, of_strength, plain


def on_a_sphere(key, x, dimension=40):
    z = noisy(key, (dimension,))
    return z / jnp.linalg.norm(z) * (3 + 1e-3 * x[0])


def on_a_cross_polytope(key, x):
    z = noisy(key, (40,))
    return z / jnp.abs(z).sum() * (3 + 1e-3 * x[0])


def beside_a_noisy_count(key, x):
    own, count = jax.random.split(key)
    return {"count": noisy(count, (), 100.0), "direction": on_a_sphere(own, x), "rows": noisy(count, (2, 3))}


def in_one_world(key, x):
    """Lengths that are spread in world 0 alone."""
    z = noisy(key, (40,))
    return z / jnp.linalg.norm(z) * (1 + 1e-3 * (1 - x[0]) * jnp.tanh(z[0]))


@pytest.mark.integration
@pytest.mark.parametrize("leak", [on_a_sphere, on_a_cross_polytope, beside_a_noisy_count])
def test_a_radius_is_found_and_its_twin_is_not_accused(leak):
    found = plain(of_strength(leak, 1))
    assert (found.verdict, found.fpr, found.fnr) == ("violation", 0, 0)
    twin = plain(of_strength(leak, 0))
    assert twin.verdict != "violation"
    assert twin.epsilon_lower < 0.5


def anywhere(what, dimension=2_000):
    """Noise, of which one number anywhere is replaced, more often in world 1."""

    def release(key, x):
        own, place, coin = jax.random.split(key, 3)
        shown = jax.random.bernoulli(coin, 0.1 + 0.8 * x[0])
        return (
            noisy(own, (dimension,)).at[jax.random.randint(place, (), 0, dimension)].set(jnp.where(shown, what, 1.0))
        )

    return release


@pytest.mark.integration
@pytest.mark.parametrize("what", [0.0, -0.0, float("nan"), float("-inf")])
def test_one_odd_number_anywhere_is_found(what):
    leak = anywhere(what)
    assert plain(of_strength(leak, 1)).epsilon_lower > 1.9  # of ln 9
    assert plain(of_strength(leak, 0)).verdict != "violation"


@pytest.mark.parametrize("kind", ["float32", "int32", "uint8", "bfloat16"])
def test_zeros_are_counted_of_every_type(kind):
    release = jnp.asarray([[3, 0, 0, 7], [2, 1, 5, 7]]).astype(kind)
    for xp in (np, jnp):
        view = features.View(xp, [xp.asarray(release)], [np.asarray(release[1])], lead=1)
        assert view.zero.sum(-1).tolist() == [2, 0]


@pytest.mark.integration
def test_lengths_that_vary_in_one_world_are_found():
    assert plain(in_one_world).verdict == "violation"
    assert plain(lambda key, x: in_one_world(key, 0 * x)).verdict != "violation"


@pytest.mark.integration
@pytest.mark.parametrize("dimension", [3, 20_000])
def test_how_norms_are_rounded_does_not_show(dimension):
    """Turned by the input, a direction has the same length up to the last digits."""

    def turned(key, x):
        z = on_a_sphere(key, 0 * x, dimension)
        angle = 1e-3 * x[0]
        first, second = jnp.cos(angle) * z[0] - jnp.sin(angle) * z[1], jnp.sin(angle) * z[0] + jnp.cos(angle) * z[1]
        return z.at[0].set(first).at[1].set(second)

    assert plain(turned, trials=1_000).verdict != "violation"


def test_parts_are_the_whole_release_and_its_largest_arrays():
    assert features.parts([(3, 2)]) == (slice(0, 6),)
    assert features.parts([(), (2,), (1,), (2, 2)]) == (slice(0, 8), slice(1, 3), slice(4, 8))
    many = [(i,) for i in range(2, 12)]
    assert len(features.parts(many)) == 1 + features.MOST_PARTS
    assert features.parts(many)[1] == slice(5, 9)  # the two smallest are left out


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_norms_of_any_size_are_read_alike(scale):
    """In steps of the usual one: 2^14 times the relative difference, whatever the unit."""
    z = np.random.default_rng(0).normal(size=(2, 50, 30))
    z /= np.linalg.norm(z, axis=-1, keepdims=True) * np.array([1, 1.01])[:, None, None]
    release = (scale * z).astype(np.float32)
    view = features.View(np, [release], [release[0, 0]], lead=2)
    sight = pilot.sight(view, None)
    with np.errstate(over="ignore", invalid="ignore"):  # of other numbers
        steps = features.read(np, view, sight)[..., features.names(sight).index("L2 norm of the release")]
    low, high = np.unique(steps)
    assert abs(high - low - 0.01 * features.STEPS) < 0.02 * 0.01 * features.STEPS
